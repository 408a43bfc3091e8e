//! Several guards of one lease, and work that runs under one.

use tenure::error::LostCause;
use tenure::{Error, Locks, MemoryStore};

use crate::help::{ms, poll_once, soon, two};

#[tokio::test]
async fn a_lease_ends_with_the_last_of_its_guards() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let first = locks.mutex("a").lock().await.unwrap();
    let (second, third) = (first.again().unwrap(), first.lease().again().unwrap());
    assert_eq!(first.fence(), third.fence());
    first.release().await.unwrap();
    drop(second);
    assert!(third.is_held());
    assert!(other.mutex("a").try_lock().await.unwrap().is_none());
    let lease = third.lease();
    third.release().await.unwrap();
    assert!(other.mutex("a").try_lock().await.unwrap().is_some());
    let gone = lease.again().unwrap_err();
    assert!(
        matches!(
            gone,
            Error::Lost {
                cause: LostCause::Released,
                ..
            }
        ),
        "{gone}"
    );
}

#[tokio::test]
async fn a_loss_is_one_for_all_guards() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let first = locks.mutex("a").lease(ms(3_000)).lock().await.unwrap();
    let second = first.again().unwrap();
    store.with_ledger(|ledger, _| ledger.clear());
    assert_eq!(soon(second.lost()).await, LostCause::Gone);
    assert!(!first.is_held() && !second.is_held());
    let lost = |error: Error| {
        matches!(
            error,
            Error::Lost {
                cause: LostCause::Gone,
                ..
            }
        )
    };
    assert!(lost(first.again().unwrap_err()));
    assert!(lost(first.release().await.unwrap_err()));
    assert!(lost(second.release().await.unwrap_err()));
}

#[tokio::test]
async fn a_downgrade_after_the_end_reports_the_same_cause() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let guard = locks.mutex("a").lease(ms(3_000)).lock().await.unwrap();
    store.with_ledger(|ledger, _| ledger.clear());
    assert_eq!(soon(guard.lost()).await, LostCause::Gone);
    let error = Error::from(guard.downgrade().await.unwrap_err());
    assert!(
        matches!(
            error,
            Error::Lost {
                cause: LostCause::Gone,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_holder_does_not_wait_for_its_own_key() {
    let locks = Locks::memory();
    let mutex = locks.mutex("a");
    let guard = mutex.lock().await.unwrap();
    let would_wait = guard.scope(mutex.lock()).await.unwrap_err();
    assert!(matches!(would_wait, Error::WouldDeadlock { .. }), "{would_wait}");
    assert!(would_wait.to_string().contains("`a`"), "{would_wait}");
    let fixed = guard.scope(mutex.clone().fixed(ms(1_000)).lock()).await;
    assert!(matches!(fixed, Err(Error::WouldDeadlock { .. })));
    let run = guard.run(mutex.lock()).await.unwrap();
    assert!(matches!(run, Err(Error::WouldDeadlock { .. })));
    // Another key, another node, or a scope that has ended are allowed.
    drop(guard.scope(locks.mutex("b").lock()).await.unwrap());
    let stranger = Locks::memory();
    drop(guard.scope(stranger.mutex("a").lock()).await.unwrap());
    let lease = guard.lease();
    guard.release().await.unwrap();
    drop(soon(lease.scope(mutex.lock())).await.unwrap());
    let within = mutex.with(|_| mutex.lock()).await.unwrap();
    assert!(matches!(within, Err(Error::WouldDeadlock { .. })));
}

/// Each `with` form holds its lease while the work runs, and releases it after.
#[tokio::test]
async fn work_of_readers_writers_and_permits_runs_under_their_lease() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let (prices, theirs) = (locks.rw_lock("prices"), other.rw_lock("prices"));
    let read = prices.read_with(async |lease| {
        assert!(lease.is_held() && prices.is_held_here());
        assert!(theirs.try_read().await.unwrap().is_some());
        theirs.try_write().await.unwrap().is_none()
    });
    assert!(soon(read).await.unwrap());
    let written = prices.write_with(async |lease| {
        assert!(lease.is_held() && prices.is_write_held_here());
        theirs.try_read().await.unwrap().is_none()
    });
    assert!(soon(written).await.unwrap());
    let (calls, busy) = (locks.semaphore("calls", 1), other.semaphore("calls", 1));
    let acquired = calls.acquire_with(async |lease| {
        assert!(lease.is_held());
        busy.try_acquire().await.unwrap().is_none()
    });
    assert!(soon(acquired).await.unwrap());
    soon(locks.idle()).await;
    assert!(theirs.try_write().await.unwrap().is_some());
    assert!(busy.try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn work_of_a_reader_and_of_a_permit_is_dropped_when_the_lease_is_lost() {
    let store = MemoryStore::new();
    let locks = Locks::builder().lease(ms(3_000)).memory_shared(&store).unwrap();
    let lose = || store.with_ledger(|ledger, _| ledger.clear());
    let is_lost = |answer: Result<(), Error>| matches!(answer, Err(Error::Lost { .. }));
    let (prices, calls) = (locks.rw_lock("prices"), locks.semaphore("calls", 1));
    let hangs = async |_| {
        lose();
        std::future::pending().await
    };
    assert!(is_lost(soon(prices.read_with(hangs)).await));
    assert!(is_lost(soon(prices.write_with(hangs)).await));
    assert!(is_lost(soon(calls.acquire_with(hangs)).await));
}

/// The check is true where code is polled in the scope of a lease on the lock, and nowhere else.
#[tokio::test]
async fn code_knows_whether_it_runs_under_a_lock() {
    let locks = Locks::memory();
    let (mutex, rw_lock) = (locks.mutex("a"), locks.rw_lock("a"));
    let held = {
        let (mutex, rw_lock) = (mutex.clone(), rw_lock.clone());
        move || {
            [
                mutex.is_held_here(),
                rw_lock.is_held_here(),
                rw_lock.is_write_held_here(),
            ]
        }
    };
    let (nothing, reads, writes) = ([false; 3], [false, true, false], [true; 3]);
    assert_eq!(held(), nothing);
    assert_eq!(mutex.with(async |_| held()).await.unwrap(), writes);
    assert_eq!(rw_lock.write_with(async |_| held()).await.unwrap(), writes);
    assert_eq!(rw_lock.read_with(async |_| held()).await.unwrap(), reads);
    let writer = locks.multi(["a", "b"]);
    let reader = locks.multi([tenure::MultiKey::read("a"), "b".into()]);
    let both = || [writer.is_held_here(), reader.is_held_here()];
    assert_eq!(
        writer.with(async |_| (held(), both())).await.unwrap(),
        (writes, [true, true])
    );
    assert_eq!(
        reader.with(async |_| (held(), both())).await.unwrap(),
        (reads, [false, true])
    );
    // Each key may be held by a lock of its own.
    let other = locks.mutex("b");
    let under_one = mutex.with(async |_| both());
    assert_eq!(under_one.await.unwrap(), [false, false]);
    let under_two = mutex.with(async |_| other.with(async |_| both()).await.unwrap());
    assert_eq!(under_two.await.unwrap(), [true, true]);
    assert_eq!(both(), [false, false]);
    // Another kind of lease, another key and another node do not count.
    assert_eq!(
        locks
            .semaphore("a", 1)
            .acquire_with(async |_| held())
            .await
            .unwrap(),
        nothing
    );
    assert_eq!(locks.election("a").lead(async |_| held()).await.unwrap(), nothing);
    assert_eq!(locks.mutex("b").with(async |_| held()).await.unwrap(), nothing);
    assert_eq!(
        Locks::memory().mutex("a").with(async |_| held()).await.unwrap(),
        nothing
    );

    let guard = mutex.lock().await.unwrap();
    assert_eq!(held(), nothing, "a guard alone is no scope");
    assert_eq!(guard.scope(async { held() }).await, writes);
    assert_eq!(guard.lease().run(async { held() }).await.unwrap(), writes);
    let spawned = {
        let held = held.clone();
        guard.scope(async { tokio::spawn(async move { held() }).await.unwrap() })
    };
    assert_eq!(spawned.await, nothing, "a spawned task is out of the scope");
    // Between two polls the check is false: other tasks run on the thread.
    let mut waits = Box::pin(guard.scope(async {
        tokio::task::yield_now().await;
        held()
    }));
    assert!(poll_once(&mut waits).await.is_none());
    assert_eq!(held(), nothing);
    assert_eq!(waits.await, writes);
    let lease = guard.lease();
    guard.release().await.unwrap();
    assert_eq!(lease.scope(async { held() }).await, nothing, "the lease is over");
    let reader = mutex.lock().await.unwrap().downgrade().await.unwrap();
    assert_eq!(reader.scope(async { held() }).await, reads);
}

/// By `Deref` alone a clone of a guard would be a view, which holds nothing.
#[tokio::test]
async fn a_clone_of_a_guard_holds_the_lock_after_the_guard_is_dropped() {
    let locks = Locks::memory();
    let guard = soon(locks.mutex("a").lock()).await.unwrap();
    let (clone, view) = (guard.clone(), guard.lease());
    drop(guard);
    assert!(clone.is_held() && view.is_held() && clone.fence() == view.fence());
    assert!(soon(locks.mutex("a").try_lock()).await.unwrap().is_none());
    soon(clone.release()).await.unwrap();
    assert!(!view.is_held());
    assert!(soon(locks.mutex("a").try_lock()).await.unwrap().is_some());

    let several = soon(locks.multi(["a", "b"]).lock()).await.unwrap();
    let (clone, view) = (several.clone(), several.lease());
    drop(several);
    soon(clone.renew()).await.unwrap();
    assert!(clone.is_held() && soon(locks.mutex("b").try_lock()).await.unwrap().is_none());
    let again = view.again().unwrap();
    drop(clone);
    assert!(again.is_held());
    drop(again);
    assert!(view.again().is_err() && view.renew().await.is_err());
    assert!(soon(locks.mutex("b").try_lock()).await.unwrap().is_some());
}

/// The layer may have ended a guard whose lease a task keeps: its clone holds nothing, and releases nothing.
#[tokio::test]
async fn a_clone_of_a_lost_guard_is_lost() {
    let locks = Locks::memory();
    let guard = soon(locks.mutex("a").fixed(ms(1_000)).lock()).await.unwrap();
    soon(guard.lost()).await;
    let next = soon(locks.mutex("a").lock()).await.unwrap();
    let clone = guard.clone();
    assert!(!clone.is_held());
    drop(guard);
    drop(clone);
    assert!(next.is_held());
}
