//! `ls --watch`, with JSON: each listing is written again.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use crate::server::RedisServer;
use crate::tools::command;

/// A watch that runs. Dropping it kills the process.
struct Watch(Child);

impl Watch {
    fn start(server: &RedisServer) -> Watch {
        let mut command = command(&["ls", "--json", "--watch", "100ms", "--url", &server.url()]);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Watch(command.spawn().unwrap())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn set(server: &RedisServer, key: &str) {
    redis::cmd("SET")
        .arg(&[key, "abc"])
        .exec(&mut server.client())
        .unwrap();
}

/// Reads lines until one contains the words. The process that writes them ends with the test.
fn hear(from: &mut impl BufRead, words: &str) {
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert_ne!(
            from.read_line(&mut line).unwrap(),
            0,
            "the watch ended before {words}"
        );
    }
}

#[test]
fn a_watch_lists_until_it_is_interrupted_and_survives_an_outage() {
    let mut server = RedisServer::start();
    set(&server, "lock:first");
    let mut watch = Watch::start(&server);
    let mut out = BufReader::new(watch.0.stdout.take().unwrap());
    let mut err = BufReader::new(watch.0.stderr.take().unwrap());
    hear(&mut out, "\"first\"");
    hear(&mut out, "\"first\"");
    server.kill();
    hear(&mut err, "tenure: ");
    server.restart();
    set(&server, "lock:second");
    hear(&mut out, "\"second\"");
    let pid = watch.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(watch.0.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("panicked"), "{rest}");
}
