//! Callers get errors while the server is unavailable. They are served when it is back, or if it was never gone.

use tenure::Error;

use crate::help::{Eyes, addr, held, held_at_last, locks, ms, soon, until, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

/// A waiter in an outage gets a store error when its wait ends, not `Busy`: the owner is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_in_an_outage_is_not_told_busy() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let direct = locks(&server.url(), ms(60_000)).await;
    let guard = held(&direct, "a").await;
    // The waiter polls after three seconds, and survives an outage of nine seconds.
    let cut_off = locks(&url(proxy.addr()), ms(9_000)).await;
    let waiting = cut_off.mutex("a");
    let waiting = tokio::spawn(async move { waiting.lock_timeout(ms(6_000)).await });
    until("the caller waits", || eyes.queue("a") == 1).await;
    proxy.refuse(true);
    proxy.reset();
    let refused = soon(waiting).await.unwrap().unwrap_err();
    assert!(proxy.counts().refused > 0, "no node tried to reconnect");
    assert!(refused.is_unreachable(), "{refused:?}");
    assert!(matches!(refused, Error::Store { .. }), "{refused:?}");
    proxy.heal();
    soon(guard.release()).await.unwrap();
}

/// A firewall dropped idle connections. The next caller is served by another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_that_was_dropped_costs_no_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let locks = crate::help::builder().connect(&url(proxy.addr())).await.unwrap();
    // All connections are open: the caller sends a release, and the background sends a drop.
    held(&locks, "a").await.release().await.unwrap();
    drop(held(&locks, "a").await);
    soon(locks.idle()).await;
    proxy.set_existing(Direction::Both, Flow::Hold);
    let guard = soon(locks.mutex("a").lock()).await;
    let guard = guard.expect("the server is reachable");
    soon(guard.release()).await.unwrap();
    soon(locks.idle()).await;
    assert!(eyes.left_behind().is_empty());
}

/// Returns the server's names of its clients whose descriptions contain `word`.
fn served(eyes: &mut Eyes, word: &str) -> Vec<String> {
    let clients: String = eyes.text("CLIENT LIST");
    let with_word = clients.lines().filter(|line| line.contains(word));
    let ids = with_word.filter_map(|line| line.split(' ').next());
    ids.map(str::to_owned).collect()
}

/// An abandoned attempt to connect may fail much later. That does not affect its successor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_failure_to_connect_harms_no_successor() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    // The longest attempt. A later result of it is ignored.
    let builder = crate::help::builder().lease(ms(8_000)).request_timeout(ms(2_000));
    let locks = builder.lazy().connect(&url(proxy.addr())).await.unwrap();
    proxy.set_new(Direction::Both, Flow::Hold);
    let first = tokio::spawn(locks.mutex("first").lock());
    proxy.until(|counts| counts.held[0] > 0).await;
    proxy.set_new(Direction::Both, Flow::Pass);
    // An attempt may take 2 s; then another is made.
    if let Ok(guard) = soon(first).await.unwrap() {
        soon(guard.release()).await.unwrap();
    }
    // A caller in the pause after an attempt gets its error.
    drop(held_at_last(locks.mutex("a")).await);
    for key in ["a", "b"] {
        held(&locks, key).await.release().await.unwrap();
        drop(held(&locks, key).await);
        soon(locks.idle()).await;
    }
    let before = served(&mut eyes, "cmd=evalsha");
    assert!(!before.is_empty());
    // Now the first attempt fails, if it still exists.
    proxy.discard();
    let (mut done, mut failed) = (0, Vec::new());
    let end = tokio::time::Instant::now() + ms(1_000);
    while tokio::time::Instant::now() < end {
        match soon(locks.mutex("c").lock()).await {
            Ok(guard) => {
                soon(guard.release()).await.unwrap();
                done += 1;
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    assert!(
        failed.is_empty(),
        "{} failed and {done} did not: {:?}",
        failed.len(),
        failed.first()
    );
    let after = served(&mut eyes, "id=");
    assert!(
        before.iter().all(|id| after.contains(id)),
        "a healthy one of {before:?} was replaced"
    );
}
