//! `tenure serve`, as an operator starts it.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::server::RedisServer;

/// A running `tenure serve`.
pub struct Serve {
    child: Child,
    pub url: String,
}

impl Serve {
    /// Starts it at this address; port 0 is any free port.
    pub fn start(server: &RedisServer, address: &str) -> Serve {
        let mut child = Command::new(path())
            .args([
                "serve",
                "--url",
                &server.url(),
                "--listen",
                address,
                "--operate",
                "--by",
                "mia",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("page/browser builds the command");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("a pipe");
        BufReader::new(out)
            .read_line(&mut line)
            .expect("the command tells its address");
        let url = line.trim().to_owned();
        assert!(url.starts_with("http://"), "{url}");
        Serve { child, url }
    }

    /// Returns the address without the scheme.
    pub fn address(&self) -> String {
        self.url
            .trim_start_matches("http://")
            .trim_end_matches('/')
            .to_owned()
    }

    /// Returns how many KiB of memory the process has.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number
            .and_then(|number| number.parse().ok())
            .expect("Linux tells it")
    }

    /// Lets the process end itself, and returns how long that takes.
    pub fn stop(&mut self) -> Duration {
        let (begin, id) = (Instant::now(), self.child.id().to_string());
        let told = Command::new("kill").args(["-TERM", &id]).status();
        assert!(told.expect("kill is there").success());
        let end = self.child.wait().unwrap();
        assert!(end.success(), "{end}");
        begin.elapsed()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the path of the command, which is built beside the tests.
fn path() -> PathBuf {
    let tests = std::env::current_exe().expect("a path");
    let built = tests.ancestors().nth(2).expect("target/debug");
    built.join("tenure")
}
