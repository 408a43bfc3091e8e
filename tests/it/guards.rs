//! Several guards of one lease, and what runs under one.

use tenure::error::LostCause;
use tenure::{Error, Locks, MemoryStore};

use crate::help::{ms, soon, two};

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
    store.with_ledger(|ledger, _| ledger.forget());
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
async fn a_downgrade_after_the_end_tells_the_cause_that_was_told() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let guard = locks.mutex("a").lease(ms(3_000)).lock().await.unwrap();
    store.with_ledger(|ledger, _| ledger.forget());
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
async fn who_holds_a_key_does_not_wait_for_it() {
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
    // Another key, another node, and a scope that is over, are no reason.
    drop(guard.scope(locks.mutex("b").lock()).await.unwrap());
    let stranger = Locks::memory();
    drop(guard.scope(stranger.mutex("a").lock()).await.unwrap());
    let lease = guard.lease();
    guard.release().await.unwrap();
    drop(soon(lease.scope(mutex.lock())).await.unwrap());
    let within = mutex.with(|_| mutex.lock()).await.unwrap();
    assert!(matches!(within, Err(Error::WouldDeadlock { .. })));
}
