//! Transfers of leases between processes, on a real server.

use std::time::Duration;

use tenure::{Error, Locks, Transfer};

use crate::help::{Eyes, Other, addr, held, locks, ms, soon, url};
use crate::server::RedisServer;
use crate::support::proxy::Proxy;

const MINUTE: Duration = Duration::from_secs(60);

async fn nodes() -> (Locks, Locks, RedisServer) {
    let server = RedisServer::start();
    let (one, other) = (
        locks(&server.url(), ms(10_000)).await,
        locks(&server.url(), ms(10_000)).await,
    );
    (one, other, server)
}

fn is_empty(server: RedisServer) {
    let mut eyes = Eyes::on(&server);
    assert!(eyes.left_behind().is_empty(), "{:?}", eyes.left_behind());
}

crate::laws_of_transfers!(nodes, is_empty);

/// Each of transfer, adoption, extension and release takes one round trip.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_takes_one_round_trip() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(60_000)).await;
    held(&locks, "warm").await.release().await.unwrap();
    let mut last = eyes.calls()["evalsha"];
    let mut trips = || {
        let now = eyes.calls()["evalsha"];
        std::mem::replace(&mut last, now).abs_diff(now)
    };
    for permits in [false, true] {
        let guard = match permits {
            false => held(&locks, "order").await,
            true => soon(locks.semaphore("order", 3).acquire()).await.unwrap(),
        };
        assert_eq!(trips(), 1, "to acquire it");
        let transfer = soon(guard.into_transfer(MINUTE)).await.unwrap();
        assert_eq!(trips(), 1, "to give it up");
        soon(locks.extend_transfer(&transfer, 2 * MINUTE)).await.unwrap();
        assert_eq!(trips(), 1, "to extend it");
        let adopted = soon(locks.adopt(&transfer)).await.unwrap();
        assert_eq!(trips(), 1, "to adopt it");
        soon(adopted.release()).await.unwrap();
        assert_eq!(trips(), 1, "to release it");
    }
    let permit = soon(locks.semaphore("order", 3).acquire_transfer(MINUTE))
        .await
        .unwrap();
    assert_eq!(trips(), 2, "to acquire and transfer a permit");
    soon(locks.release_transfer(&permit)).await.unwrap();
    assert_eq!(trips(), 1, "to release it");
}

/// The sender of a transfer, a handler behind a layer, is killed as soon as it has sent its message, which is delivered twice. One process adopts the
/// lease, does the work once, and is not disturbed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_of_a_killed_process_is_worked_on_once() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    // Long enough that no slow machine loses a lease.
    let lease = ms(10_000);
    let (one, other) = (
        locks(&server.url(), lease).await,
        locks(&server.url(), lease).await,
    );
    for round in 0..2 {
        let mut handler = Other::plays("hands on", &server.url(), "order", lease);
        handler.hears("sent");
        handler.kill();
        let message: String = eyes.text("RPOP messages");
        assert!(
            soon(other.mutex("order").try_lock()).await.unwrap().is_none(),
            "the message travels"
        );
        let work = async |locks: Locks| {
            let transfer: Transfer = message.parse().unwrap();
            let guard = soon(locks.adopt(&transfer)).await?;
            let mut eyes = Eyes::on(&server);
            let _: u64 = eyes.text("INCR done");
            // For longer than the transferred lease would have lasted.
            tokio::time::sleep(ms(10_500)).await;
            guard.release().await
        };
        let (first, second) = tokio::join!(work(one.clone()), work(other.clone()));
        let (done, refused) = if first.is_ok() {
            (first, second)
        } else {
            (second, first)
        };
        done.unwrap();
        assert!(matches!(refused, Err(Error::Gone { .. })), "{refused:?}");
        assert_eq!(eyes.text::<u64>("GET done"), round + 1);
    }
    let _: u64 = eyes.text("DEL done");
    eyes.until_empty().await;
}

/// The answer is lost, and the request is repeated. It is executed once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_loses_no_lease() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let direct = locks(&server.url(), ms(10_000)).await;
    let behind = locks(&url(proxy.addr()), ms(10_000)).await;
    for round in 0..4 {
        // The transfer is executed, but its answer is lost.
        let guard = held(&behind, "order").await;
        let owner = Eyes::on(&server).owner("order").unwrap();
        let (claim_id, _) = owner.rsplit_once(':').unwrap();
        proxy.cut_reply_to(claim_id);
        let transfer = soon(guard.into_transfer(MINUTE)).await.unwrap();
        // The answers to an adoption, an extension and a release are lost, too.
        proxy.cut_reply_to(holder_of(&transfer));
        match round {
            0 => soon(soon(behind.adopt(&transfer)).await.unwrap().release())
                .await
                .unwrap(),
            1 => soon(behind.release_transfer(&transfer)).await.unwrap(),
            _ => {
                soon(behind.extend_transfer(&transfer, MINUTE)).await.unwrap();
                soon(direct.release_transfer(&transfer)).await.unwrap();
            }
        }
        let again = soon(direct.adopt(&transfer)).await.map(drop);
        assert!(matches!(again, Err(Error::Gone { .. })), "{again:?}");
        Eyes::on(&server).until_empty().await;
    }
}

fn holder_of(transfer: &Transfer) -> String {
    let text = transfer.to_string();
    text.split('.').nth(4).unwrap().to_owned()
}

/// A process that cannot reach the store loses no transfer: another process adopts it, or the same process later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unavailable_store_loses_no_transfer() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let direct = locks(&server.url(), ms(10_000)).await;
    let builder = crate::help::builder()
        .lease(ms(1_000))
        .request_timeout(ms(10_000));
    let behind = builder.connect(&url(proxy.addr())).await.unwrap();
    let transfer = soon(held(&direct, "order").await.into_transfer(MINUTE))
        .await
        .unwrap();
    proxy.refuse(true);
    proxy.reset();
    for answer in [
        soon(behind.adopt(&transfer)).await.map(drop),
        soon(behind.extend_transfer(&transfer, MINUTE)).await,
        soon(behind.release_transfer(&transfer)).await,
    ] {
        assert!(answer.as_ref().is_err_and(Error::is_unreachable), "{answer:?}");
    }
    proxy.heal();
    let adopted = soon(async {
        loop {
            match behind.adopt(&transfer).await {
                Err(error) if error.is_unreachable() => tokio::time::sleep(ms(10)).await,
                answer => return answer,
            }
        }
    });
    soon(adopted.await.unwrap().release()).await.unwrap();
}

/// Foreign values are refused and not changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_values_are_refused_and_left_alone() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    for (write, read) in [
        ("RPUSH lock:order x", "TYPE lock:order"),
        ("HSET lock:order a b", "TYPE lock:order"),
        ("SET lock:order foreign", "GET lock:order"),
        ("ZADD lock:order 5 foreign", "TYPE lock:order"),
    ] {
        for reads in [false, true] {
            let guard = match reads {
                true => soon(locks.rw_lock("order").read()).await.unwrap(),
                false => held(&locks, "order").await,
            };
            let transfer = soon(guard.into_transfer(MINUTE)).await.unwrap();
            let _: redis::Value = eyes.text("DEL lock:order");
            let _: redis::Value = eyes.text(write);
            let before: String = eyes.text(read);
            for answer in [
                soon(locks.adopt(&transfer)).await.map(drop),
                soon(locks.extend_transfer(&transfer, MINUTE)).await,
                soon(locks.release_transfer(&transfer)).await,
            ] {
                assert!(
                    matches!(answer, Err(Error::Gone { .. } | Error::Store { .. })),
                    "{write}: {answer:?}"
                );
            }
            assert_eq!(eyes.text::<String>(read), before, "{write}");
            let _: redis::Value = eyes.text("DEL lock:order");
        }
    }
}

/// A lease that exists needs no more memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_a_lease_is_still_transferred() {
    let server = RedisServer::with_args(&["--maxmemory-policy", "noeviction"]);
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(60_000)).await;
    let guards = [
        held(&locks, "order").await,
        soon(locks.rw_lock("prices").read()).await.unwrap(),
        soon(locks.semaphore("calls", 3).acquire()).await.unwrap(),
    ];
    let _: String = eyes.text("CONFIG SET maxmemory 1");
    for guard in guards {
        let transfer = soon(guard.into_transfer(MINUTE)).await.unwrap();
        let adopted = soon(locks.adopt(&transfer)).await.unwrap();
        soon(adopted.release()).await.unwrap();
    }
}
