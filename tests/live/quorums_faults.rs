//! A quorum of five masters without a majority, and while its masters are restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::{Error, Guard, Locks};
use tokio::task::{JoinSet, block_in_place};

use crate::help::{Canary, ms, now, soon};
use crate::masters::{Masters, is_none_lost, mutexes};

const MASTERS: usize = 5;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("held:{n}")).collect()
}

fn record(name: &str) -> String {
    format!("lock:{name}")
}

/// Starts masters that vote, and two nodes.
async fn start(lease: Duration) -> (Masters, [Locks; 2]) {
    let masters = Masters::start(MASTERS);
    let nodes = [masters.locks(lease).await, masters.locks(lease).await];
    block_in_place(|| {
        masters.until_used();
        masters.end_recoveries();
    });
    (masters, nodes)
}

/// Acquires the locks, each node one half of them.
async fn hold(nodes: &[Locks; 2], names: &[String]) -> Vec<Guard> {
    let mut guards = Vec::new();
    for (n, name) in names.iter().enumerate() {
        guards.push(soon(nodes[n % 2].mutex(&**name).lock()).await.unwrap());
    }
    guards
}

/// Why three masters give no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Down {
    /// They are killed, refuse connections, and come back empty.
    Killed,
    /// They accept connections, stay mute, and come back with what they had.
    Mute,
}

/// Asks for a free key and a held one until told to stop. Each call must end with `Error::Store` within its wait. Returns the
/// number of calls.
async fn ask_in_vain(locks: Locks, held: String, stop: Arc<AtomicBool>) -> u64 {
    let wait = ms(700);
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        for key in ["free", &held] {
            let mutex = locks.mutex(key);
            let timed = soon(mutex.lock_timeout(wait)).await;
            // These end when the masters' answers are due.
            let others = [mutex.try_lock().await, mutex.lock().await.map(Some)];
            for answer in others.into_iter().chain([timed.map(Some)]) {
                let is_store = matches!(answer, Err(Error::Store { .. }));
                assert!(is_store, "{key}: {answer:?}");
                calls += 1;
            }
        }
    }
    calls
}

/// Waits until the guard is told that it is lost. Checks that it is not held after `deadline`.
async fn told(guard: Guard, deadline: Duration) {
    let watch = async {
        loop {
            // Read first, because a process may stand still in between.
            let at = now();
            if !guard.is_held() {
                return;
            }
            assert!(at <= deadline, "held {:?} after the deadline", at - deadline);
            tokio::time::sleep(ms(1)).await;
        }
    };
    tokio::join!(watch, soon(guard.lost()));
}

/// Each lease ends by its deadline, and dead masters that come back grant nothing before they vote.
async fn without_a_majority(down: Down) {
    let lease = ms(2_000);
    let (mut masters, nodes) = start(lease).await;
    let names = names(10);
    let guards = hold(&nodes, &names).await;
    let last = guards.iter().map(|guard| guard.fence()).max().unwrap();
    block_in_place(|| {
        masters.0[..3].iter_mut().for_each(|master| match down {
            Down::Killed => master.kill(),
            Down::Mute => master.freeze(),
        });
    });
    let deadline = now() + lease;
    let stop = Arc::<AtomicBool>::default();
    let mut callers = JoinSet::new();
    for (node, held) in [(&nodes[0], &names[1]), (&nodes[1], &names[0])] {
        callers.spawn(ask_in_vain(node.clone(), held.clone(), stop.clone()));
    }
    let mut holders = JoinSet::new();
    guards.into_iter().for_each(|guard| {
        holders.spawn(told(guard, deadline));
    });
    while let Some(told) = soon(holders.join_next()).await {
        told.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let mut calls = 0;
    while let Some(called) = soon(callers.join_next()).await {
        calls += called.unwrap();
    }
    block_in_place(|| {
        masters.0[..3].iter_mut().for_each(|master| match down {
            Down::Killed => master.restart(),
            Down::Mute => master.thaw(),
        });
    });
    let back = now();
    let grant = async {
        loop {
            match nodes[0].mutex(&*names[0]).lock().await {
                Ok(guard) => return guard,
                Err(Error::Store { .. }) => tokio::time::sleep(ms(5)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let guard = soon(grant).await;
    let took = now() - back;
    assert!(guard.fence() > last);
    // A recovery that is over stays over, so this is checked after the grant.
    let votes = block_in_place(|| (0..3).any(|at| masters.votes(at)));
    assert!(votes, "granted {took:?} after the restart, by recovering masters");
    println!("{down:?}: {calls} calls in vain, granted {took:?} after the masters were back");
    soon(guard.release()).await.unwrap();
    for node in &nodes {
        soon(node.shutdown()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_granted() {
    without_a_majority(Down::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_mute_majority_nothing_is_granted() {
    without_a_majority(Down::Mute).await;
}

/// All masters lose all that they know, one after the other. Each is restarted when the one before it votes again, and has
/// the record of each lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_outlive_the_restart_of_all_masters_in_turn() {
    let (lease, names) = (ms(1_000), names(20));
    // A machine that stalled for a part of a lease gets another round.
    for round in 1.. {
        let (mut masters, nodes) = start(lease).await;
        let mut canary = Canary::start();
        masters.0.iter().for_each(|master| canary.watch(master));
        let guards = hold(&nodes, &names).await;
        for at in 0..MASTERS {
            block_in_place(|| {
                masters.0[at].restart();
                masters.until_votes(&[at]);
                names
                    .iter()
                    .for_each(|name| masters.until_renewed(&record(name), &[at]));
            });
        }
        if !is_none_lost(&guards, lease, &canary, round) {
            continue;
        }
        // A node that has seen no fence, on masters that have lost their counters.
        let other = masters.locks(lease).await;
        for (guard, mutex) in guards.into_iter().zip(mutexes(&other, &names)) {
            let fence = guard.fence();
            soon(guard.release()).await.unwrap();
            let later = soon(mutex.lock()).await.unwrap();
            assert!(later.fence() > fence, "{:?} after {fence:?}", later.fence());
            soon(later.release()).await.unwrap();
        }
        return;
    }
}
