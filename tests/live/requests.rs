//! Requests to replicas that are processes: withdrawals from few accounts, and transfers between them, by clients that
//! time out and try again, through a proxy that repeats what is answered with 503, while replicas are killed and drained.
//!
//! A statement that was sent to the ledger is carried out, whether or not somebody waits for it: it reads, thinks and
//! writes. Two at a time on one account lose money. A transfer locks both of its accounts, which its body names. What was
//! done is remembered with the same write, so a retry that comes after its first attempt is given the same answer; one
//! that runs beside it is done twice.
//!
//! `TENURE_REQUESTS_SECONDS` says for how long.

mod answers;
mod clients;
mod leaving;
mod ledger;
mod modes;
mod orders;
mod outages;
mod repeater;
mod replica;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::help::{Eyes, PATIENCE, locks, ms, soon, until};
use crate::server::RedisServer;
use clients::{Client, Tally};
use ledger::Ledger;
use orders::Order;
use repeater::Repeater;
use replica::{Layers, Replica};

const CLIENTS: usize = 120;

/// What happens to the replicas meanwhile.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Faults {
    None,
    /// One after the other is killed, or told to shut down and killed a moment later, and started again.
    KillAndDrain,
}

/// What came of it.
struct Outcome {
    tally: Tally,
    accepted: BTreeMap<String, Order>,
    repeats: u64,
    kills: u64,
    /// What is wrong with the books.
    wrong: Vec<String>,
}

fn storm(layers: Layers, faults: Faults, lasts: Duration) -> Outcome {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut replicas = [(); 2].map(|()| Replica::start(&server.url(), layers));
    let addresses = [replicas[0].addr(), replicas[1].addr()];
    let (tally, stop) = (Tally::default(), Arc::new(AtomicBool::new(false)));
    let (ledger, repeater, mut clients) = runtime.block_on(async {
        let ledger = Ledger::connect(&server.url()).await;
        ledger.open().await;
        let repeater = Repeater::start(addresses).await;
        let mut clients = JoinSet::new();
        for n in 0..CLIENTS {
            let client = Client::new(n, repeater.addr(), addresses, tally.clone(), stop.clone());
            clients.spawn(client.sends_orders());
        }
        (ledger, repeater, clients)
    });
    let kills = match faults {
        Faults::None => {
            sleep(lasts);
            0
        }
        Faults::KillAndDrain => kill_and_drain(&mut replicas, lasts),
    };
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        let mut accepted = BTreeMap::new();
        // Each ends the order that it is at.
        while let Some(client) = soon(clients.join_next()).await {
            accepted.extend(client.unwrap());
        }
        let wrong = ledger.audit(&accepted).await;
        if faults != Faults::None {
            let mut eyes = Eyes::on(&server);
            // The killed hold their keys for a lease, and who stood in a line of theirs is forgotten with it.
            until("the locks leave nothing behind", || {
                eyes.left_behind()
                    .iter()
                    .all(|key| key.starts_with(ledger::PREFIX))
            })
            .await;
        }
        Outcome {
            tally,
            accepted,
            repeats: repeater.repeats(),
            kills,
            wrong,
        }
    })
}

/// Answers how many were killed.
fn kill_and_drain(replicas: &mut [Replica; 2], lasts: Duration) -> u64 {
    let began = Instant::now();
    let mut kills = 0;
    while began.elapsed() < lasts {
        let turn = kills as usize;
        let replica = &mut replicas[turn % 2];
        sleep(ms(1_500));
        // Both ways to each of them.
        if matches!(turn % 4, 1 | 2) {
            replica.drain();
            sleep(ms(400));
        }
        replica.kill();
        kills += 1;
        sleep(ms(300));
        replica.restart();
    }
    kills
}

fn asked() -> Duration {
    let seconds = std::env::var("TENURE_REQUESTS_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse().expect("TENURE_REQUESTS_SECONDS is a number"));
    Duration::from_secs(seconds.unwrap_or(10))
}

#[test]
fn every_order_is_done_once_whatever_becomes_of_clients_and_replicas() {
    let began = Instant::now();
    let outcome = storm(Layers::Both, Faults::KillAndDrain, asked());
    let Outcome {
        tally,
        accepted,
        repeats,
        kills,
        wrong,
    } = outcome;
    let answers: BTreeMap<String, u64> = tally.answers();
    println!(
        "{} accepted, {kills} kills, {repeats} repeats by the proxy, in {:?}: {answers:#?}",
        accepted.len(),
        began.elapsed()
    );
    assert!(wrong.is_empty(), "the books are wrong: {wrong:#?}");
    assert_eq!(tally.undocumented(), Vec::<String>::new());
    // It was as bad as it was meant to be.
    let seen = |what: &str| answers.get(what).copied().unwrap_or(0);
    assert!(kills >= 4, "{kills} kills");
    assert!(repeats > 0, "nothing was repeated");
    assert!(
        seen("timed out") > 0 && seen("connection failed") > 0,
        "{answers:#?}"
    );
    assert!(tally.retried() > 0, "nobody was served by a retry");
    assert!(seen("413") > 0 && seen("half of a body") > 0, "{answers:#?}");
    let transfers = accepted.values().filter_map(|order| match order {
        Order::Transfer { from, to, .. } => Some((*from, *to)),
        Order::Withdrawal { .. } => None,
    });
    let directions: BTreeSet<_> = transfers.collect();
    assert!(
        directions
            .iter()
            .any(|(from, to)| directions.contains(&(*to, *from))),
        "{directions:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sums_are_exact_whatever_the_order_of_the_layers() {
    let server = RedisServer::start();
    let replicas = [
        locks(&server.url(), ms(10_000)).await,
        locks(&server.url(), ms(10_000)).await,
    ];
    crate::support::layer_storm::storm(replicas, 4 * asked().as_secs() as usize).await;
    Eyes::on(&server).until_empty().await;
}

/// The test notices what the layers are for.
fn is_noticed(layers: Layers) {
    let began = Instant::now();
    // A slow machine may do too few of them at first.
    while began.elapsed() < 2 * PATIENCE {
        let outcome = storm(layers, Faults::None, ms(1_500));
        assert_eq!(outcome.tally.undocumented(), Vec::<String>::new());
        if let Some(wrong) = outcome.wrong.first() {
            println!("{layers:?}: {} accepted, {wrong}", outcome.accepted.len());
            return;
        }
    }
    panic!("the books are exact with {layers:?}");
}

#[test]
fn without_the_layers_the_books_are_wrong() {
    is_noticed(Layers::None);
}

#[test]
fn without_completion_the_books_are_wrong() {
    is_noticed(Layers::NoCompletion);
}

#[test]
fn without_the_lock_of_the_account_that_is_paid_the_books_are_wrong() {
    is_noticed(Layers::OneAccount);
}
