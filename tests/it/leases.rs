//! The length of a lease is what its caller asked for, and long enough to be renewed.

use std::time::Duration;

use tenure::{Error, Locks, MemoryStore};

use crate::help::{ms, poll_once, soon};

/// A caller that asks for a minute gets a minute, even if a caller of the same process held for a second before.
#[tokio::test]
async fn a_long_lease_is_not_the_rest_of_a_short_one() {
    let locks = Locks::memory();
    let short = soon(locks.mutex("a").lease(ms(1_000)).lock()).await.unwrap();
    let mut long = Box::pin(locks.mutex("a").lease(ms(60_000)).lock());
    assert!(poll_once(&mut long).await.is_none());
    soon(short.release()).await.unwrap();
    let guard = soon(long).await.unwrap();
    assert!(guard.remaining() > ms(30_000), "{guard:?}");
    soon(guard.release()).await.unwrap();
    soon(locks.idle()).await;
}

/// A lease is not the length that a departed caller asked for.
#[tokio::test]
async fn a_long_lease_is_not_what_a_short_caller_queued_for() {
    let store = MemoryStore::new();
    let make = || Locks::builder().memory_shared(&store).unwrap();
    let (locks, other) = (make(), make());
    let guard = soon(other.mutex("a").lock()).await.unwrap();
    let mut short = Box::pin(locks.mutex("a").lease(ms(1_000)).lock());
    assert!(poll_once(&mut short).await.is_none());
    let mut long = Box::pin(locks.mutex("a").lease(ms(60_000)).lock());
    assert!(poll_once(&mut long).await.is_none());
    drop(short);
    soon(guard.release()).await.unwrap();
    let guard = soon(long).await.unwrap();
    assert!(guard.remaining() > ms(30_000), "{guard:?}");
    soon(guard.release()).await.unwrap();
    soon(other.idle()).await;
    soon(locks.idle()).await;
    assert!(store.is_empty());
}

/// A lease without room for a round trip and a renewal is refused, and the refusal names the bound.
#[tokio::test]
async fn leases_below_400_ms_are_refused() {
    let names_it = |text: &str| text.contains("400ms") || text.contains("400 ms");
    for lease in [ms(50), ms(100), ms(399)] {
        let refused = Locks::builder().lease(lease).memory();
        let refused = refused.expect_err("too short to be kept").to_string();
        assert!(names_it(&refused), "{refused}");
        match soon(Locks::memory().mutex("a").lease(lease).lock()).await {
            Err(Error::Options(refused)) => assert!(names_it(&refused.to_string()), "{refused}"),
            other => panic!("{lease:?}: {other:?}"),
        }
    }
    let locks = Locks::builder().lease(ms(400)).memory().unwrap();
    drop(soon(locks.mutex("a").lock()).await.unwrap());
}

#[tokio::test]
async fn a_max_hold_of_zero_is_refused() {
    let (locks, none) = (Locks::memory(), Duration::ZERO);
    let refused = [
        soon(locks.mutex("a").max_hold(none).lock()).await,
        soon(locks.rw_lock("a").max_hold(none).read()).await,
        soon(locks.semaphore("a", 2).max_hold(none).acquire()).await,
        soon(locks.election("a").max_hold(none).campaign()).await,
        soon(locks.multi(["a", "b"]).max_hold(none).lock())
            .await
            .map(|_| unreachable!("it is not held")),
    ];
    for refused in refused {
        assert!(
            matches!(&refused, Err(Error::Options(why)) if why.to_string().contains("max_hold")),
            "{refused:?}"
        );
    }
}
