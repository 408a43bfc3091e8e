//! A quorum of real masters: leases that stand on a majority.

use tenure::Error;
use tenure::error::{StoreErrorKind, StoreRefusal};

use crate::bad_input::tells;
use crate::help::{Eyes, HOUR, ms, quorum, soon};
use crate::server::RedisServer;

pub fn urls(masters: &[RedisServer]) -> Vec<String> {
    masters.iter().map(RedisServer::url).collect()
}

/// Masters that do not recover: their run was noted, and nothing was granted before.
pub async fn masters(count: usize) -> Vec<RedisServer> {
    let masters: Vec<_> = (0..count).map(|_| RedisServer::start()).collect();
    drop(quorum(urls(&masters)).await.unwrap());
    for master in &masters {
        Eyes::on(master).text::<u8>("DEL tenure1:recovering");
    }
    masters
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_stands_on_the_masters_and_leaves_nothing() {
    let masters = masters(3).await;
    let (one, other) = (
        quorum(urls(&masters)).await.unwrap(),
        quorum(urls(&masters)).await.unwrap(),
    );
    let mut fence = None;
    for _ in 0..20 {
        for locks in [&one, &other] {
            let guard = soon(locks.mutex("a").lock()).await.unwrap();
            assert!(Some(guard.fence()) > fence);
            fence = Some(guard.fence());
            let rival = if std::ptr::eq(locks, &one) { &other } else { &one };
            assert!(soon(rival.mutex("a").try_lock()).await.unwrap().is_none());
            soon(guard.release()).await.unwrap();
        }
    }
    let waiter = one.mutex("b");
    let held = soon(other.mutex("b").lock()).await.unwrap();
    let waits = tokio::spawn(waiter.lock());
    while one.waiter_count() == 0 {
        tokio::task::yield_now().await;
    }
    soon(held.release()).await.unwrap();
    soon(soon(waits).await.unwrap().unwrap().release()).await.unwrap();
    soon(one.shutdown()).await;
    soon(other.shutdown()).await;
    for master in &masters {
        let left = Eyes::on(master).left_behind();
        let left: Vec<_> = left.iter().filter(|key| !key.starts_with("tenure1:")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_of_the_masters_may_die() {
    let mut masters = masters(3).await;
    // A master that does not answer is not waited for.
    let builder = crate::help::builder().request_timeout(HOUR);
    let clients = urls(&masters).into_iter().map(redis::Client::open);
    let clients = clients.collect::<Result<_, _>>().unwrap();
    let locks = builder.quorum(clients, ms(10_000)).await.unwrap();
    let usual = quorum(urls(&masters)).await.unwrap();
    let held = soon(locks.mutex("held").lock()).await.unwrap();
    drop(masters.pop());
    let guard = soon(locks.mutex("a").lock()).await.unwrap();
    soon(guard.release()).await.unwrap();
    soon(held.renew()).await.unwrap();
    assert!(held.is_held());
    drop(masters.pop());
    let error = soon(usual.mutex("a").lock_timeout(ms(5_000))).await.unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
    tells(&error, &["2 of 3 masters have no vote"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_quorum_grants_nothing_until_earlier_leases_are_over() {
    let masters: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let locks = quorum(urls(&masters)).await.unwrap();
    let error = soon(locks.mutex("a").try_lock()).await.map(drop).unwrap_err();
    let Error::Store { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::Recovering));
    tells(&error, &["of 3 masters have no vote", "try again later"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_quorum_does_not_serve_is_refused_before_anything_is_sent() {
    let masters = masters(3).await;
    let locks = quorum(urls(&masters)).await.unwrap();
    let calls = || -> Vec<_> {
        let calls = masters.iter().map(|master| Eyes::on(master).calls());
        calls.map(|calls| calls["evalsha"]).collect()
    };
    let before = calls();
    let mut refused = vec![
        ("read locks", soon(locks.rw_lock("a").read()).await.map(drop)),
        (
            "semaphores",
            soon(locks.semaphore("a", 2).acquire()).await.map(drop),
        ),
        (
            "semaphores",
            soon(locks.semaphore("a", 2).try_acquire()).await.map(drop),
        ),
        ("fair locks", soon(locks.mutex("a").fair().lock()).await.map(drop)),
        ("elections", soon(locks.election("a").campaign()).await.map(drop)),
        ("elections", soon(locks.election("a").leader()).await.map(drop)),
        ("latches", soon(locks.latch("a").try_set_count(1)).await.map(drop)),
        ("latches", soon(locks.latch("a").wait()).await.map(drop)),
    ];
    // Nothing was sent.
    assert_eq!(calls(), before);
    let guard = soon(locks.mutex("b").lock()).await.unwrap();
    let write = guard.atomically().command("SET").key("balance").arg(1);
    let error = soon(write.query::<()>()).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    tells(
        &error,
        &["a quorum serves no writes under a lease", "use the fence"],
    );
    let error = Error::from(soon(guard.into_transfer(ms(1_000))).await.map(drop).unwrap_err());
    let Error::StillHeld { source, .. } = &error else {
        panic!("{error:?}");
    };
    refused.push(("transfers", Err((**source).clone())));
    for (what, result) in refused {
        let Err(Error::Store { key, source, .. }) = result else {
            panic!("{what}: {result:?}");
        };
        assert_eq!(source.kind(), &StoreErrorKind::Refused(StoreRefusal::Unsupported));
        assert!(key == "a".into() || key == "b".into(), "{key:?}");
        tells(
            &source,
            &[
                &format!("a quorum serves no {what}: "),
                "use `Locks` on one Redis",
            ],
        );
    }
}
