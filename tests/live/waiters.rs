//! How many may wait, and in which order they are served, on a real server.

use std::sync::{Arc, Mutex};

use crate::help::{Eyes, addr, held, locks, ms, soon, until, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

/// To ask the store is not to wait for somebody: a node that may have few waiters takes as many free keys at once as come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_a_free_key_is_no_waiter() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let builder = crate::help::builder()
        .lease(ms(60_000))
        .request_timeout(ms(10_000));
    let locks = builder
        .max_waiters_per_node(5)
        .connect(&url(proxy.addr()))
        .await
        .unwrap();
    held(&locks, "warm").await.release().await.unwrap();
    proxy.set(Direction::Replies, Flow::Delay(ms(50)));
    let tasks: Vec<_> = (0..50)
        .map(|n| tokio::spawn(locks.mutex(n.to_string()).lock()))
        .collect();
    let (mut guards, mut refused) = (Vec::new(), Vec::new());
    for task in tasks {
        match soon(task).await.unwrap() {
            Ok(guard) => guards.push(guard),
            Err(error) => refused.push(error.to_string()),
        }
    }
    assert!(
        refused.is_empty(),
        "{} of 50: {:?}",
        refused.len(),
        refused.first()
    );
    drop(guards);
    soon(locks.idle()).await;
}

/// First come, first served, whosever process it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair_callers_of_two_nodes_are_served_in_the_order_in_which_they_came() {
    let server = RedisServer::start();
    let (url, mut eyes) = (server.url(), Eyes::on(&server));
    let nodes = [
        locks(&url, ms(30_000)).await,
        locks(&url, ms(30_000)).await,
        locks(&url, ms(30_000)).await,
    ];
    let first = held(&nodes[2], "k").await;
    let order = Arc::<Mutex<Vec<usize>>>::default();
    let mut tasks = Vec::new();
    for caller in 0..20 {
        let lock = nodes[caller % 2].mutex("k").fair().lock();
        let order = order.clone();
        tasks.push(tokio::spawn(async move {
            let guard = lock.await.unwrap();
            order.lock().unwrap().push(caller);
            guard.release().await.unwrap();
        }));
        // The next comes when this one has its place.
        until("it has a place in the queue", || eyes.queue("k") > caller).await;
    }
    first.release().await.unwrap();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), Vec::from_iter(0..20));
    eyes.until_empty().await;
}
