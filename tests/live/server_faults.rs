//! Servers that are unavailable at the start, restarted, flushed or badly configured.

use crate::bad_input::tells;
use crate::help::{Eyes, addr, held, locks, ms, soon, until, url};
use crate::server::RedisServer;
use crate::support::events::Watch;
use crate::support::proxy::{Direction, Flow, Proxy};
use std::time::Duration;
use tenure::error::StoreErrorKind;
use tenure::{Error, Key};

/// Redis 6.2 runs scripts without the configured number of replicas. Redis 7 refuses them.
#[tokio::test]
async fn replica_settings_that_do_not_apply_to_scripts_are_warned_of() {
    let server =
        RedisServer::with_args(&["--maxmemory-policy", "noeviction", "--min-replicas-to-write", "1"]);
    let watch = Watch::of(format!("127.0.0.1:{}", server.port()));
    let version: String = redis::cmd("INFO")
        .arg("server")
        .query(&mut server.client())
        .unwrap();
    let is_old = version.contains("redis_version:6.");
    let locks = locks(&server.url(), ms(10_000)).await;
    if is_old {
        let told = watch.until("server_warning").await;
        tells(&told.text, &["min-replicas-to-write", "6.2", "7.0"]);
        held(&locks, "a").await.release().await.unwrap();
        return;
    }
    let refused = soon(locks.mutex("a").lock()).await.map(drop);
    let text = refused.unwrap_err().to_string();
    tells(&text, &["NOREPLICAS"]);
    assert_eq!(watch.count("server_warning"), 0, "{:#?}", watch.told());
}

#[tokio::test]
async fn a_server_that_evicts_is_warned_of_once() {
    let server = RedisServer::with_args(&["--maxmemory-policy", "volatile-lru"]);
    let watch = Watch::of(format!("127.0.0.1:{}", server.port()));
    let locks = locks(&server.url(), ms(10_000)).await;
    let told = watch.until("server_warning").await;
    assert_eq!(told.target, "tenure");
    assert_eq!(told.level, tracing::Level::WARN);
    tells(&told.text, &["volatile-lru", "maxmemory-policy", "noeviction"]);
    held(&locks, "a").await.release().await.unwrap();
    assert_eq!(watch.count("server_warning"), 1, "{:#?}", watch.told());

    let fine = RedisServer::start();
    let watch = Watch::of(format!("127.0.0.1:{}", fine.port()));
    let locks = crate::help::locks(&fine.url(), ms(10_000)).await;
    held(&locks, "a").await.release().await.unwrap();
    assert_eq!(watch.count("server_warning"), 0);
}

#[tokio::test]
async fn lazy_locks_start_while_redis_is_unavailable() {
    let mut server = RedisServer::start();
    server.kill();
    let locks = crate::help::builder()
        .lease(ms(8_000))
        .lazy()
        .connect(&server.url())
        .await
        .unwrap();
    assert!(locks.ping().await.is_err());
    let error = soon(locks.mutex("a").lock()).await.map(drop).unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    tells(&error, &["`a`", "unreachable", &server.port().to_string()]);
    assert_eq!((locks.key_count(), locks.waiter_count()), (0, 0));
    server.restart();
    let guard = soon(async {
        loop {
            match locks.mutex("a").lock().await {
                Ok(guard) => return guard,
                Err(error) => assert!(error.is_unreachable(), "{error}"),
            }
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    guard.release().await.unwrap();
    locks.ping().await.unwrap();
    soon(locks.idle()).await;
    assert!(Eyes::on(&server).left_behind().is_empty());
}

/// The server restarts while the node is idle. The first lock after the restart must not fail.
#[tokio::test]
async fn a_restart_while_idle_fails_no_caller() {
    let mut server = RedisServer::start();
    let locks = locks(&server.url(), ms(10_000)).await;
    for _ in 0..5 {
        let guard = held(&locks, "a").await;
        let fence = guard.fence();
        guard.release().await.unwrap();
        soon(locks.idle()).await;
        server.restart();
        let guard = soon(locks.mutex("a").lock())
            .await
            .expect("a lock after a restart");
        assert!(guard.fence() > fence, "the clock key is lost, the clock is not");
        soon(guard.release()).await.expect("a release after a restart");
        soon(locks.mutex("b").try_lock())
            .await
            .unwrap()
            .expect("the key is free")
            .release()
            .await
            .unwrap();
    }
    soon(locks.idle()).await;
    assert!(Eyes::on(&server).left_behind().is_empty());
}

/// A probe that fails once must not fail for ever: a service that is not ready gets no calls that would connect again.
#[tokio::test]
async fn a_probe_finds_a_server_again() {
    let mut server = RedisServer::start();
    let locks = locks(&server.url(), ms(5000)).await;
    locks.ping().await.unwrap();
    server.restart();
    let _ = locks.ping().await;
    locks.ping().await.expect("a probe after a restart");
    // The connection is silent, not broken, as behind a firewall that dropped its state.
    let proxy = Proxy::start(addr(&server));
    let locks = crate::help::builder()
        .request_timeout(ms(2_000))
        .connect(&url(proxy.addr()))
        .await
        .unwrap();
    proxy.set_existing(Direction::Both, Flow::Hold);
    match locks.ping().await {
        Err(Error::Connect { source, .. }) => assert_eq!(*source.kind(), StoreErrorKind::TimedOut),
        other => panic!("{other:?}"),
    }
    locks.ping().await.expect("a probe on a connection of its own");
    soon(locks.idle()).await;
}

/// The server restarts under a guard. With its data the lease continues. Without its data the holder asserts the lease if it
/// is the first to show the loss; if the waiter is first, the lease is lost, and reported.
#[tokio::test]
async fn a_restart_without_its_data_under_a_guard_is_no_silent_loss() {
    for keeps_data in [false, true] {
        let args: &[&str] = if keeps_data {
            &["--appendonly", "yes", "--appendfsync", "always"]
        } else {
            &[]
        };
        let mut server = RedisServer::with_args(args);
        let key = format!("restarted {keeps_data}");
        let watch = Watch::of(format!("key={key} "));
        let locks = locks(&server.url(), ms(6_000)).await;
        let other = crate::help::locks(&server.url(), ms(6_000)).await;
        let guard = held(&locks, key.as_str()).await;
        let waiter = tokio::spawn(other.mutex(key.as_str()).lock());
        until("the caller waits", || {
            other.waiter_count() == 1 && Eyes::on(&server).queue(&key) == 1
        })
        .await;
        server.restart();
        if keeps_data {
            watch.until("renewed").await;
            assert!(guard.is_held());
            soon(guard.release()).await.unwrap();
        } else {
            tokio::select! {
                _ = soon(guard.lost()) => assert!(!guard.is_held()),
                _ = watch.until("renewed") => {}
            }
            match soon(guard.release()).await {
                Ok(()) => {}
                Err(error) => assert!(error.is_lost(), "{error}"),
            }
        }
        soon(waiter).await.unwrap().unwrap().release().await.unwrap();
        soon(locks.idle()).await;
        soon(other.idle()).await;
        Eyes::on(&server).until_empty().await;
    }
}

#[tokio::test]
async fn flushed_scripts_and_killed_clients_are_no_failures() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let other = crate::help::locks(&server.url(), ms(10_000)).await;
    let kept = held(&locks, "kept").await;
    for kind in ["", "normal", "pubsub", "normal", "pubsub", ""] {
        let guard = held(&locks, "a").await;
        let waiter = tokio::spawn(other.mutex("a").lock());
        until("the caller waits", || eyes.queue("a") == 1).await;
        let _: String = eyes.text("SCRIPT FLUSH");
        if !kind.is_empty() {
            let _: u64 = eyes.text(&format!("CLIENT KILL TYPE {kind}"));
        }
        soon(guard.release()).await.expect("a release");
        let guard = soon(waiter).await.unwrap().expect("a waiter's lock");
        soon(guard.release()).await.expect("a waiter's release");
        soon(locks.mutex("b").lock())
            .await
            .expect("a lock")
            .release()
            .await
            .expect("its release");
    }
    assert!(kept.is_held());
    soon(kept.release()).await.unwrap();
    soon(locks.idle()).await;
    soon(other.idle()).await;
    assert!(eyes.left_behind().is_empty());
}

/// A connection is refused several times, and then accepted.
#[tokio::test]
async fn refused_connections_lose_no_held_lease() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let locks = locks(&url(proxy.addr()), ms(30_000)).await;
    let kept = held(&locks, "kept").await;
    proxy.refuse(true);
    proxy.reset();
    let error = soon(locks.mutex("a").lock()).await.map(drop).unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    assert!(kept.is_held());
    proxy.refuse(false);
    soon(async {
        while locks.mutex(Key::from("a")).lock().await.is_err() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert!(kept.is_held());
    soon(kept.release()).await.unwrap();
    soon(locks.idle()).await;
    assert!(Eyes::on(&server).left_behind().is_empty());
}

/// The longest timeout is refused as an option, or works like none. It never panics, also not in the background after a
/// caller dropped everything while the store was stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_request_timeout_is_no_panic() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let url = server.url();
    let builder = crate::help::builder()
        .lease(ms(30_000))
        .request_timeout(Duration::MAX);
    let built = tokio::spawn(async move { builder.connect(&url).await });
    let locks = match built.await.expect("no panic") {
        Ok(locks) => locks,
        Err(Error::Options(_)) => return,
        Err(other) => panic!("{other}"),
    };
    let watch = Watch::of(locks.node_id().to_string());
    let waited = soon(locks.mutex("a").lock_timeout(ms(5_000))).await.unwrap();
    soon(waited.release()).await.unwrap();
    soon(locks.ping()).await.unwrap();
    let guard = held(&locks, "a").await;
    server.freeze();
    drop((guard, locks));
    tokio::time::sleep(ms(500)).await;
    server.thaw();
    until("the key is free", || eyes.owner("a").is_none()).await;
    until("nothing is left", || {
        let clients: String = eyes.text("CLIENT LIST");
        clients.lines().count() == 1
    })
    .await;
    let told = watch.told();
    assert!(
        told.iter().all(|told| told.level != tracing::Level::ERROR),
        "{told:#?}"
    );
}
