//! The lock as callers see it, on the memory store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::error::LostCause;
use tenure::{Clock, Error, Locks, MemoryStore};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Fails loudly instead of hanging for ever.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("did not happen in time")
}

fn two(store: &MemoryStore) -> (Locks, Locks) {
    let make = || Locks::builder().lease(ms(2000)).memory_shared(store).unwrap();
    (make(), make())
}

#[tokio::test]
async fn takes_and_gives_back() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let guard = locks.mutex("a").lock().await.unwrap();
    assert!(guard.is_held());
    assert!(guard.remaining() > ms(1000));
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    assert!(other.mutex("a").try_lock().await.unwrap().is_none());
    let first = guard.fence();
    guard.release().await.unwrap();
    let guard = other.mutex("a").try_lock().await.unwrap().expect("it is free");
    assert!(guard.fence() > first);
    drop(guard);
    soon(other.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_is_not_atomic_is_exact() {
    let store = MemoryStore::new();
    let (one, other) = two(&store);
    let counter = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..40)
        .map(|i| {
            let (locks, counter) = (
                if i % 2 == 0 { one.clone() } else { other.clone() },
                counter.clone(),
            );
            tokio::spawn(async move {
                for _ in 0..50 {
                    let guard = locks.mutex("counter").lock().await.unwrap();
                    let seen = counter.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, Ordering::Relaxed);
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 2000);
    soon(one.idle()).await;
    soon(other.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn waits_no_longer_than_told() {
    let locks = Locks::memory();
    let guard = locks.mutex("a").lock().await.unwrap();
    let refused = locks.mutex("a").lock_timeout(ms(20)).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    guard.release().await.unwrap();
    locks
        .mutex("a")
        .lock_timeout(ms(20))
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn renews_while_held() {
    let store = MemoryStore::new();
    let locks = Locks::builder().lease(ms(150)).memory_shared(&store).unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    tokio::time::sleep(ms(900)).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_fixed_lease_ends() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let guard = locks.mutex("a").fixed(ms(100)).lock().await.unwrap();
    assert_eq!(soon(guard.lost()).await, LostCause::Ended);
    assert!(!guard.is_held());
    soon(other.mutex("a").lock())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert!(matches!(
        guard.release().await,
        Err(Error::Lost {
            cause: LostCause::Ended,
            ..
        })
    ));
}

#[tokio::test]
async fn a_process_that_slept_is_told_before_anything_else() {
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

#[tokio::test]
async fn dropping_a_waiter_leaves_nothing_behind() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let guard = locks.mutex("a").lock().await.unwrap();
    {
        let waiting = other.mutex("a").lock();
        assert!(tokio::time::timeout(ms(20), waiting).await.is_err());
    }
    soon(other.idle()).await;
    guard.release().await.unwrap();
    soon(locks.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn shutdown_gives_everything_back() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let guard = locks.mutex("a").lock().await.unwrap();
    let waiter = tokio::spawn(locks.mutex("a").lock());
    tokio::task::yield_now().await;
    soon(locks.shutdown()).await;
    assert!(!guard.is_held());
    assert!(matches!(soon(waiter).await.unwrap(), Err(Error::Closed { .. })));
    assert!(matches!(locks.mutex("a").lock().await, Err(Error::Closed { .. })));
    drop(other.mutex("a").try_lock().await.unwrap().expect("it is free"));
}
