//! Waiting is silent.

use std::collections::BTreeMap;

use crate::help::{Eyes, held, now, soon, until};
use crate::server::RedisServer;

/// A hundred tasks on each of two nodes wait for ten seconds at the default lease, behind a holder of a third.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_waiters_cost_fewer_than_ten_commands_a_second() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other, claim_id) = (
        crate::help::connect(&server.url()).await.unwrap(),
        crate::help::connect(&server.url()).await.unwrap(),
        crate::help::connect(&server.url()).await.unwrap(),
    );
    let guard = held(&claim_id, "busy").await;
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let mutex = if n % 2 == 0 { &one } else { &other }.mutex("busy");
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    until("they wait", || {
        one.waiter_count() == 100 && other.waiter_count() == 100 && eyes.queue("busy") == 2
    })
    .await;

    let (since, before) = (now(), eyes.calls());
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    let (after, took) = (eyes.calls(), now() - since);

    // Our own look is in it, once.
    let calls: BTreeMap<_, _> = after
        .iter()
        .map(|(name, calls)| (name, calls - before.get(name).unwrap_or(&0)))
        .filter(|(name, calls)| *calls > 0 && *name != "info")
        .collect();
    let all: u64 = calls.values().sum();
    let rate = all as f64 / took.as_secs_f64();
    println!("{rate:.1} commands a second, scripts and what is inside of them:");
    for (name, calls) in &calls {
        println!("{calls:6}  {name}");
    }
    assert!(
        calls.get(&"evalsha".to_owned()).is_some_and(|calls| *calls >= 3),
        "nobody is alive"
    );
    assert!(rate < 10.0, "{rate:.1} commands a second");

    guard.release().await.unwrap();
    for task in tasks {
        soon(task).await.unwrap();
    }
    soon(one.idle()).await;
    soon(other.idle()).await;
    soon(claim_id.idle()).await;
    assert!(eyes.left_behind().is_empty());
}
