//! The length of a lease is what its caller asked for, and long enough to be renewed.

use std::time::Duration;

use tenure::error::LostCause;
use tenure::{Error, Locks, MemoryStore};
use tracing::Level;

use crate::help::{ms, poll_once, soon, two, until};
use crate::support::events::Watch;

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

/// Work that hangs does not keep a lock for ever: it is told, then loses the lease, and another caller gets it.
#[tokio::test]
async fn a_lease_is_renewed_for_no_longer_than_max_hold() {
    let watch = Watch::of("key=hangs");
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let mutex = locks.mutex("hangs").lease(ms(600)).max_hold(ms(700));
    let guard = soon(mutex.lock()).await.unwrap();
    let lease = guard.lease();
    soon(lease.overdue()).await;
    // The guard still holds, unless the machine stalled meanwhile.
    assert!(guard.is_held() || lease.lost().await == LostCause::Overdue);
    let next = tokio::spawn(async move { other.mutex("hangs").lock().await.unwrap().release().await });
    assert_eq!(soon(guard.lost()).await, LostCause::Overdue);
    soon(next).await.unwrap().unwrap();
    assert_eq!(watch.until("overdue").await.level, Level::WARN);
    assert_eq!(watch.until("lost").await.level, Level::WARN);
    drop(guard);

    // A holder that ends in time is not told, and its `overdue` future completes.
    let guard = soon(mutex.lock()).await.unwrap();
    let overdue = guard.lease().overdue();
    guard.release().await.unwrap();
    soon(overdue).await;
    assert_eq!(watch.count("overdue"), 1);
}

/// A guard reports what its lease reports, and a guard of several locks reports the first of them.
#[tokio::test]
async fn a_guard_reports_that_it_is_overdue() {
    let locks = Locks::memory();
    let mutex = locks.mutex("a").lease(ms(1_500)).max_hold(ms(600));
    let guard = soon(mutex.lock()).await.unwrap();
    assert!(poll_once(&mut Box::pin(guard.overdue())).await.is_none());
    soon(guard.overdue()).await;
    // The loss comes after the limit, and not with the release.
    assert!(soon(guard.lost()).await == LostCause::Overdue);
    drop(guard);
    let multi = locks.multi(["a", "b"]).lease(ms(1_500)).max_hold(ms(600));
    let guard = soon(multi.lock()).await.unwrap();
    assert!(poll_once(&mut Box::pin(guard.overdue())).await.is_none());
    soon(guard.overdue()).await;
    assert!(soon(guard.lost()).await == LostCause::Overdue);
}

/// A leader with a `max_hold` is overdue, then lost, and the next candidate leads. `lead` drops the work and campaigns again.
#[tokio::test]
async fn a_leader_leads_for_no_longer_than_max_hold() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let election = locks.election("relay").lease(ms(1_000)).max_hold(ms(500));
    let first = soon(election.campaign()).await.unwrap();
    let candidate = other.election("relay");
    let next = tokio::spawn(async move { candidate.campaign().await });
    soon(first.overdue()).await;
    assert_eq!(soon(first.lost()).await, LostCause::Overdue);
    let next = soon(next).await.unwrap().unwrap();
    assert!(next.fence() > first.fence() && !election.is_leader());
    soon(next.release()).await.unwrap();

    let mut terms = 0;
    let done = election.lead(|lease| {
        terms += 1;
        let is_first = terms == 1;
        async move {
            if is_first {
                soon(lease.lost()).await;
                std::future::pending::<()>().await;
            }
            lease.is_held()
        }
    });
    assert!(soon(done).await.unwrap());
    assert_eq!(terms, 2);
}

#[tokio::test]
async fn a_long_hold_is_reported_once() {
    let watch = Watch::of("key=lingers");
    let locks = Locks::builder()
        .lease(ms(400))
        .long_hold(ms(300))
        .memory()
        .unwrap();
    let guard = soon(locks.mutex("lingers").lock()).await.unwrap();
    assert_eq!(watch.until("held_long").await.level, Level::WARN);
    // Long enough for another event, which a further renewal may emit.
    tokio::time::sleep(ms(500)).await;
    assert!(guard.is_held());
    assert_eq!(watch.count("held_long"), 1);
}

/// A leader leads for as long as it lives. Its renewals go on beyond `long_hold`.
#[tokio::test]
async fn a_leader_that_leads_for_long_is_no_warning() {
    let watch = Watch::of("key=leads for long");
    let builder = Locks::builder().lease(ms(2_000)).long_hold(ms(300));
    let locks = builder.memory().unwrap();
    let _leadership = soon(locks.election("leads for long").campaign()).await.unwrap();
    // The first renewal comes after 667 ms.
    until("it is renewed", || watch.count("renewed") >= 2).await;
    assert_eq!(watch.count("held_long"), 0, "{:#?}", watch.told());
}
