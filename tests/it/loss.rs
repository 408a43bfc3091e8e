//! Lost leases on the memory store: which holders are told, how soon, and what happens to the work under the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::error::LostCause;
use tenure::testing::Clock;
use tenure::{Error, Locks, MemoryStore};

use crate::help::{ms, poll_once, soon, two};
use crate::support::events::Watch;
use crate::support::slow_callers;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_is_not_taken_up_in_time_is_no_guard() {
    let (one, other) = two(&MemoryStore::new());
    slow_callers::a_grant_that_is_not_taken_up_in_time_is_no_guard(&one, &other, ms(400)).await;
}

/// The deadline alone counts: no timer had to fire.
#[tokio::test]
async fn a_grant_whose_deadline_passed_before_it_was_taken_up_is_no_guard() {
    let store = MemoryStore::new();
    let clock = Clock::new();
    let builder = Locks::builder().lease(ms(60_000)).clock(clock.clone());
    let locks = builder.memory_shared(&store).unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let mutex = locks.mutex("a");
    let mut next = Box::pin(mutex.lock());
    assert!(poll_once(&mut next).await.is_none());
    drop(guard);
    clock.jump(ms(60_001));
    let late = soon(next).await.map(|guard| guard.is_held());
    #[cfg(feature = "tower")]
    if let Err(error) = &late {
        use tenure::middleware::Refused;
        assert_eq!(
            Refused::from(error),
            Refused::Lost,
            "nothing was done for the request"
        );
    }
    assert!(
        matches!(
            late,
            Err(Error::Lost {
                cause: LostCause::Unfetched,
                ..
            })
        ),
        "{late:?}"
    );
    soon(locks.mutex("a").lock())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// The caller never held the lease: the error reports only that the node is closed.
#[tokio::test]
async fn a_grant_that_is_not_taken_up_before_a_shutdown_is_closed() {
    let locks = Locks::memory();
    let (mutex, multi) = (locks.mutex("a"), locks.multi(["b"]));
    let guard = mutex.lock().await.unwrap();
    let others = multi.lock().await.unwrap();
    let mut next = Box::pin(mutex.lock());
    let mut several = Box::pin(multi.lock());
    assert!(poll_once(&mut next).await.is_none());
    assert!(poll_once(&mut several).await.is_none());
    drop((guard, others));
    soon(locks.shutdown()).await;
    let late = soon(next).await.map(drop);
    assert!(matches!(late, Err(Error::Closed { .. })), "{late:?}");
    let late = soon(several).await.map(drop);
    assert!(matches!(late, Err(Error::Closed { .. })), "{late:?}");
}

#[tokio::test]
async fn a_process_that_slept_is_told_of_the_loss_first() {
    let store = MemoryStore::new();
    let clock = Clock::new();
    let locks = Locks::builder()
        .lease(ms(2000))
        .clock(clock.clone())
        .memory_shared(&store)
        .unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    clock.jump(ms(2001));
    assert!(!guard.is_held());
    let worked = guard.run(async { 1 }).await;
    assert!(worked.is_err(), "{worked:?}");
    assert!(guard.release().await.unwrap_err().is_lost());
}

/// Holds however close the end comes to the call, and also for one lease of several.
#[tokio::test]
async fn a_release_after_the_end_tells_the_same_cause() {
    let store = MemoryStore::new();
    let clock = Clock::new();
    let locks = Locks::builder()
        .clock(clock.clone())
        .memory_shared(&store)
        .unwrap();
    for (fixed, cause) in [(true, LostCause::Ended), (false, LostCause::Deadline)] {
        let mutex = locks.mutex("a").lease(ms(60_000));
        let multi = locks.multi(["b", "c"]).lease(ms(60_000));
        let (mutex, multi) = match fixed {
            true => (mutex.fixed(ms(60_000)), multi.fixed(ms(60_000))),
            false => (mutex, multi),
        };
        let (guard, guards) = (mutex.lock().await.unwrap(), multi.lock().await.unwrap());
        clock.jump(ms(60_001));
        for released in [guard.release().await, guards.release().await] {
            assert!(
                matches!(&released, Err(Error::Lost { cause: of, .. }) if *of == cause),
                "{released:?}"
            );
        }
        soon(locks.idle()).await;
    }
}

#[tokio::test]
async fn work_under_a_lock_ends_with_it() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let mutex = locks.mutex("a");
    let fence = mutex.with(|lease| async move { lease.fence() }).await.unwrap();
    assert!(other.mutex("a").try_lock().await.unwrap().unwrap().fence() > fence);
    soon(other.idle()).await;
    // The lease is deleted under the work, which is dropped in the middle.
    struct Dropped(Arc<AtomicU64>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicU64::new(0));
    let short = locks.mutex("a").fixed(ms(2_000));
    let guard_work = Dropped(dropped.clone());
    let worked = soon(short.with(|_| async move {
        let _dropped = guard_work;
        std::future::pending::<()>().await;
    }))
    .await;
    assert!(
        matches!(
            worked,
            Err(Error::Lost {
                cause: LostCause::Ended,
                ..
            })
        ),
        "{worked:?}"
    );
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    // A view outlives its guard, and reports the end.
    let guard = mutex.lock().await.unwrap();
    let lease = guard.lease();
    assert!(lease.run(async { 7 }).await.is_ok_and(|seven| seven == 7));
    guard.release().await.unwrap();
    assert!(!lease.is_held());
    assert_eq!(lease.remaining(), Duration::ZERO);
    let late = lease.run(async { panic!("polled without the lock") }).await;
    assert!(
        matches!(
            late,
            Err(Error::Lost {
                cause: LostCause::Released,
                ..
            })
        ),
        "{late:?}"
    );
    assert_eq!(soon(lease.lost()).await, LostCause::Released);
    let token: tenure::CancellationToken = lease.lost_token();
    assert!(token.is_cancelled());
}

/// The lease was removed without a message. The holder learns it from its release at the latest, and so does the
/// operator.
#[tokio::test]
async fn a_loss_found_by_a_release_is_reported_once() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let watch = Watch::of("key=taken away ");
    let guard = locks.mutex("taken away").lock().await.unwrap();
    store.with_ledger(|ledger, _| ledger.clear());
    assert!(guard.release().await.unwrap_err().is_lost());
    watch.until("lost").await;
    assert_eq!(watch.count("lost"), 1);
    assert_eq!(watch.count("released"), 0);
}

/// A holder that wakes after the deadline and releases at once has lost the lease: watchers of the lease are told.
#[tokio::test]
async fn a_guard_that_is_dropped_after_its_deadline_was_lost() {
    let clock = Clock::new();
    let locks = Locks::builder()
        .lease(ms(2000))
        .clock(clock.clone())
        .memory()
        .unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let lease = guard.lease();
    clock.jump(ms(2001));
    drop(guard);
    assert_eq!(soon(lease.lost()).await, LostCause::Deadline);
}

/// A token may be given to code that cancels it.
#[tokio::test]
async fn cancelling_a_lost_token_affects_no_other_token() {
    let locks = Locks::memory();
    let guard = locks.mutex("a").lock().await.unwrap();
    let (one, other) = (guard.lost_token(), guard.lost_token());
    one.cancel();
    assert!(!other.is_cancelled() && !guard.lease().lost_token().is_cancelled());
    assert_eq!(soon(guard.run(async { 7 })).await.unwrap(), 7);
    guard.release().await.unwrap();
    assert!(other.is_cancelled());
}
