//! `tenure serve`: what it answers, to which requests, and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::server::RedisServer;
use crate::tools::{command, run};

const TOKEN: &str = "0123456789abcdef-secret";

/// A page that is served.
struct Page {
    process: Child,
    address: String,
}

impl Page {
    fn serve(server: &RedisServer, args: &[&str]) -> Page {
        let url = server.url();
        let all = [&["serve", "--url", &url, "--listen", "127.0.0.1:0"], args].concat();
        let mut process = command(&all).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let out = process.stdout.as_mut().expect("it is piped");
        BufReader::new(out).read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_prefix("http://")
            .and_then(|line| line.strip_suffix('/'));
        let address = address
            .unwrap_or_else(|| panic!("no address in {line:?}"))
            .to_owned();
        Page { process, address }
    }

    /// Sends a request, and returns the answer with its head.
    fn ask(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn ask_here(&self, path: &str) -> String {
        self.ask(path, &format!("host: {}\r\n", self.address))
    }

    /// Sends SIGTERM, and returns the exit code.
    fn end(mut self) -> Option<i32> {
        let id = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &id])
                .status()
                .unwrap()
                .success()
        );
        self.process.wait().unwrap().code()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_page_is_for_reading_and_for_this_machine_unless_told_otherwise() {
    let server = RedisServer::start();
    let page = Page::serve(&server, &[]);
    assert!(
        page.ask_here("/leases").starts_with("HTTP/1.1 200 OK"),
        "{}",
        page.ask_here("/leases")
    );
    assert!(page.ask_here("/pause?k=61").starts_with("HTTP/1.1 403"));
    assert!(
        page.ask("/leases", "host: evil.example\r\n")
            .starts_with("HTTP/1.1 403")
    );
    assert_eq!(page.end(), Some(0));
    let page = Page::serve(&server, &["--operate", "--by", "mia"]);
    // The store knows no such job.
    assert!(page.ask_here("/pause?k=61").starts_with("HTTP/1.1 409"));
}

#[test]
fn a_client_that_never_ends_its_request_does_not_keep_the_process() {
    let server = RedisServer::start();
    let page = Page::serve(&server, &["--operate", "--by", "mia"]);
    let begins = [
        "GET /leases HTTP/1.1\r\nhost: local",
        "POST /pause?k=61 HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: same-origin\r\ncontent-length: 9\r\n\r\nwhy",
    ];
    let clients: Vec<_> = begins
        .iter()
        .map(|begin| {
            let mut stream = TcpStream::connect(&page.address).unwrap();
            stream.write_all(begin.as_bytes()).unwrap();
            stream
        })
        .collect();
    // Connections are accepted in their order.
    page.ask_here("/leases");
    assert_eq!(page.end(), Some(0));
    drop(clients);
}

#[test]
fn a_token_opens_the_page_by_any_name() {
    let (server, file) = (
        RedisServer::start(),
        std::env::temp_dir().join(format!("tenure-token-{}", std::process::id())),
    );
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let page = Page::serve(&server, &["--token-file", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    let denied = page.ask("/leases", "host: lock.example\r\n");
    assert!(
        denied.starts_with("HTTP/1.1 401") && !denied.contains(TOKEN),
        "{denied}"
    );
    let headers = format!("host: lock.example\r\nauthorization: Bearer {TOKEN}\r\n");
    assert!(page.ask("/leases", &headers).starts_with("HTTP/1.1 200 OK"));
}

#[test]
fn what_would_open_the_page_to_all_is_refused() {
    let short = std::env::temp_dir().join(format!("tenure-short-{}", std::process::id()));
    std::fs::write(&short, "short").unwrap();
    let short_path = short.to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (args, words) in [
        (&["serve", "--listen", "0.0.0.0:0"][..], "--token-file"),
        (&["serve", "--listen", "[::]:0"], "--token-file"),
        (
            &["serve", "--listen", "0.0.0.0:0", "--token-file", short_path],
            "16 characters",
        ),
        (&["serve", "--token-file", "/no/such/file"], "/no/such/file"),
        (&["serve", "--listen", &taken], &taken),
        (&["serve", "--listen", "localhost"], "localhost"),
    ] {
        run(args).refuses(2, words);
    }
    std::fs::remove_file(&short).unwrap();
}
