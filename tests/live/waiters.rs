//! How many may wait, on a real server.

use tenure::Locks;

use crate::help::{addr, held, ms, soon, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

/// To ask the store is not to wait for somebody: a node that may have few waiters takes as many free keys at once as come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_for_a_free_key_is_no_waiter() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let builder = Locks::builder().lease(ms(60_000)).request_timeout(ms(10_000));
    let locks = builder
        .waiters_per_node(5)
        .redis(&url(proxy.addr()))
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
