//! Eight processes that want one key of a quorum all the time. The masters keep no queue of waiters.

use std::sync::{Arc, Mutex};

use crate::help::{Other, ms, quorum, soon, until};
use crate::quorums::{masters, urls};
use crate::support::mutexes::busy_at_last;

const PROCESSES: usize = 8;
/// The grants of each process. More of them could take too long on a slow machine, because the order is random.
const GRANTS: u64 = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_process_gets_a_contended_key() {
    let masters = masters(3).await;
    let urls = urls(&masters).join(",");
    let grants = Arc::new(Mutex::new([0; PROCESSES]));
    let started: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut other = Other::plays("contends", &urls, "a", ms(4_000));
            other.hears("ready");
            other
        })
        .collect();
    let mut contenders = Vec::new();
    for (at, mut other) in started.into_iter().enumerate() {
        other.nod();
        let grants = grants.clone();
        contenders.push(other.told_to(move |_| grants.lock().unwrap()[at] += 1));
    }
    until("each process got the key", || {
        grants.lock().unwrap().iter().all(|granted| *granted >= GRANTS)
    })
    .await;
    println!("grants of each process: {:?}", grants.lock().unwrap());
}

/// The masters that answer are a majority, and name the key taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_key_is_busy_whichever_master_is_away() {
    for away in 0..3 {
        let mut masters = masters(3).await;
        let holder = quorum(urls(&masters)).await.unwrap();
        let waiter = quorum(urls(&masters)).await.unwrap();
        let guard = soon(holder.mutex("a").lock()).await.unwrap();
        masters[away].kill();
        for _ in 0..3 {
            let wait = ms(1_000);
            busy_at_last(async || waiter.mutex("a").lock_timeout(wait).await.map(drop)).await;
            busy_at_last(async || waiter.multi(["a", "b"]).lock_timeout(wait).await.map(drop)).await;
        }
        assert!(guard.is_held());
    }
}
