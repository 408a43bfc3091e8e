//! A deploy to another version and back: replicas of two versions use one Redis, and are replaced one by one while they work.
//!
//! `replica <url> <side> <name>` runs one replica until SIGTERM. `deploy <earlier program> <seconds>` starts and replaces
//! replicas, and checks the records that they wrote.
#![allow(clippy::disallowed_methods)]

#[allow(unreachable_pub)]
#[path = "../../../tests/live/server.rs"]
mod server;

mod books;
mod replica;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use books::Books;
use server::RedisServer;

const REPLICAS: usize = 3;
const SIDES: [&str; 2] = ["before", "after"];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    match words.as_slice() {
        ["replica", url, side, name] => runtime.block_on(replica::run(url, side, name)),
        ["deploy", before, seconds] => {
            let seconds = seconds.parse().expect("a number");
            runtime.block_on(deploy(Path::new(before), Duration::from_secs(seconds)));
        }
        _ => panic!("usage: replica <url> <side> <name>, or deploy <earlier program> <seconds>"),
    }
}

/// The process of a replica. Dropping it kills the process, so that a failed run leaves no process behind.
struct Replica {
    name: String,
    child: Child,
}

impl Replica {
    /// Starts a replica, and returns when it works. Before that, SIGTERM would end it without a handler.
    fn start(program: &Path, url: &str, side: &str, name: String) -> Replica {
        let mut command = Command::new(program);
        command.args(["replica", url, side, &name]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut replica = Replica {
            name,
            child: child.expect("a replica"),
        };
        let mut line = String::new();
        let said = replica.child.stdout.take().expect("it is piped");
        let read = BufReader::new(said).read_line(&mut line);
        assert!(read.is_ok_and(|bytes| bytes > 0), "the replica ended by itself");
        replica
    }

    fn terminate(&mut self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().expect("kill");
        assert!(sent.success(), "the replica ended by itself");
        let ended = self.child.wait().expect("a child");
        assert!(ended.success(), "replica {} failed: {ended}", self.name);
    }

    fn kill(&mut self) {
        self.child.kill().expect("a child");
        self.child.wait().expect("a child");
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Replaces one replica after the other, by SIGTERM and by a kill in turns. Deploys the other version and back
/// until the time is over.
async fn deploy(before: &Path, span: Duration) {
    let server = RedisServer::as_service();
    let url = server.url();
    let after = std::env::current_exe().expect("this program");
    let mut started = 0;
    let mut start = |side: usize| {
        started += 1;
        Replica::start([before, &after][side], &url, SIDES[side], started.to_string())
    };
    let mut books = Books::open(&url, "", "").await;
    let mut replicas: Vec<Replica> = (0..REPLICAS).map(|_| start(0)).collect();
    let (begin, mut turn) = (Instant::now(), 0);
    while begin.elapsed() < span {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let leaves = &mut replicas[turn % REPLICAS];
        if turn % 2 == 0 {
            leaves.terminate();
        } else {
            // Its work between this line and its end is not checked.
            books.declare_dead(&leaves.name).await;
            leaves.kill();
        }
        *leaves = start(if turn / REPLICAS % 2 == 0 { 1 } else { 0 });
        turn += 1;
    }
    replicas.iter_mut().for_each(Replica::terminate);
    println!("{turn} replicas replaced, {} of them killed", turn / 2);
    judge(&mut books).await;
}

/// Prints how often each version did each work. Asserts that both versions did all of it, and that there is no fault.
async fn judge(books: &mut Books) {
    println!("{:24} {:>8} {:>8}", "", SIDES[0], SIDES[1]);
    for what in replica::WORK {
        let done = [books.done(SIDES[0], what).await, books.done(SIDES[1], what).await];
        println!("{what:24} {:8} {:8}", done[0], done[1]);
        assert!(!done.contains(&0), "one version never did it: {what}");
    }
    let mut lost = 0;
    for counter in replica::counters() {
        let (value, added) = books.counter(&counter).await;
        println!("{counter}: {added} additions, {value} is its value");
        lost += added - value;
    }
    let faults = books.faults().await;
    assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
    assert_eq!(lost, 0, "additions were lost");
}
