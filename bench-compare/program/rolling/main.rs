//! A deploy that goes there and back: replicas of two versions on one Redis, replaced one by one while they work.
//!
//! `replica <url> <side> <name>` is one of them, until SIGTERM. `deploy <earlier program> <seconds>` starts and replaces them, and
//! judges what they wrote into the books.
#![allow(clippy::disallowed_methods)]

#[allow(unreachable_pub)]
#[path = "../../../tests/live/server.rs"]
mod server;

mod books;
mod replica;

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
        _ => panic!("replica or deploy"),
    }
}

/// Replaces one replica after the other, by SIGTERM and by a kill in turns, there and back until the time is over.
async fn deploy(before: &Path, span: Duration) {
    let server = RedisServer::as_service();
    let url = server.url();
    let after = std::env::current_exe().expect("this program");
    let mut started = 0;
    let mut start = |side: usize| {
        started += 1;
        let name = started.to_string();
        let mut replica = Command::new([before, &after][side]);
        replica
            .args(["replica", &url, SIDES[side], &name])
            .stdin(Stdio::null());
        (name, replica.spawn().expect("a replica"))
    };
    let mut books = Books::open(&url, "", "").await;
    let mut replicas: Vec<(String, Child)> = (0..REPLICAS).map(|_| start(0)).collect();
    let (begin, mut turn) = (Instant::now(), 0);
    while begin.elapsed() < span {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (name, leaves) = &mut replicas[turn % REPLICAS];
        if turn % 2 == 0 {
            terminate(leaves);
        } else {
            // What it does between this line and its end is not judged.
            books.declare_dead(name).await;
            leaves.kill().expect("a child");
            leaves.wait().expect("a child");
        }
        let side = if turn / REPLICAS % 2 == 0 { 1 } else { 0 };
        replicas[turn % REPLICAS] = start(side);
        turn += 1;
    }
    for (_, replica) in &mut replicas {
        terminate(replica);
    }
    println!("{turn} replicas replaced, {} of them killed", turn / 2);
    judge(&mut books).await;
}

fn terminate(replica: &mut Child) {
    let pid = replica.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status().expect("kill");
    assert!(sent.success(), "the replica ended by itself");
    assert!(replica.wait().expect("a child").success(), "a replica failed");
}

/// Prints how often each version did what, and asserts that both did all of it, and that nothing was wrong.
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
