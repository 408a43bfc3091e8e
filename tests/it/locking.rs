//! The lock as callers see it, on the memory store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::error::LostCause;
use tenure::{Error, Key, Locks, MemoryStore};

use crate::help::{ms, soon, two};

#[tokio::test]
async fn a_lock_is_taken_and_given_back() {
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
async fn lock_timeout_waits_no_longer_than_told() {
    let locks = Locks::memory();
    let guard = locks.mutex("a").lock().await.unwrap();
    let refused = locks.mutex("a").lock_timeout(ms(20)).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    guard.release().await.unwrap();
    locks
        .mutex("a")
        .lock_timeout(ms(5_000))
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_fixed_lease_ends() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let guard = locks.mutex("a").fixed(ms(400)).lock().await.unwrap();
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
    assert!(
        matches!(locks.ping().await, Err(Error::Closed { .. })),
        "it serves no caller"
    );
    drop(other.mutex("a").try_lock().await.unwrap().expect("it is free"));
    other.ping().await.unwrap();
}

/// Keys of two prefixes are two keys, as on Redis: a service whose prefix is wrong fails its tests in memory, too.
#[tokio::test]
async fn prefixes_are_apart() {
    let store = MemoryStore::new();
    let on = |prefix: &str| {
        let builder = Locks::builder().prefix(prefix);
        builder.memory_shared(&store).unwrap()
    };
    let (plain, shop, same) = (two(&store).0, on("shop:"), on("shop:"));
    let guard = shop.mutex("a").lock().await.unwrap();
    let permit = plain.semaphore("a", 1).acquire().await.unwrap();
    assert!(same.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(store.len(), 2);
    // A look shows the nodes of all prefixes, as on a Redis server. A node tells of itself soon after its first request.
    let has_told = async |prefix: &str| {
        let nodes = shop.inspect().nodes().await.unwrap();
        let mut told = nodes.iter().filter_map(|node| node.presence.as_ref());
        told.any(|told| told.prefix == Key::from(prefix))
    };
    for prefix in ["lock:", "shop:"] {
        soon(async {
            while !has_told(prefix).await {
                tokio::task::yield_now().await
            }
        })
        .await;
    }
    drop(plain.mutex("a").try_lock().await.unwrap().expect("another key"));
    let other = shop.semaphore("a", 1).try_acquire().await.unwrap();
    drop((guard, permit, other.expect("another key")));
    for locks in [plain, shop, same] {
        soon(locks.shutdown()).await;
    }
    assert!(store.is_empty());
}

/// A caller takes its place in the queue at its first poll, and keeps it.
#[tokio::test]
async fn a_line_is_served_in_order() {
    let store = MemoryStore::new();
    let (locks, _) = two(&store);
    let guard = locks.mutex("a").lock().await.unwrap();
    let mut line: Vec<_> = (0..200).map(|_| Box::pin(locks.mutex("a").lock())).collect();
    for waiting in &mut line {
        assert!(poll_once(waiting).await.is_none());
    }
    drop(guard);
    let mut fence = 0;
    while !line.is_empty() {
        let behind = line.split_off(1);
        let first = line.pop().unwrap();
        let guard = soon(first).await.unwrap();
        assert!(guard.fence().get() > fence);
        fence = guard.fence().get();
        line = behind;
        for waiting in &mut line {
            assert!(poll_once(waiting).await.is_none(), "a later caller overtook");
        }
        guard.release().await.unwrap();
    }
    soon(locks.idle()).await;
    assert!(store.is_empty());
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(cx) {
            std::task::Poll::Ready(ready) => Some(ready),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

/// A process with a long queue gives the lock away after its burst.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_ends_and_others_get_their_turn() {
    let store = MemoryStore::new();
    let make = |burst| {
        Locks::builder()
            .burst(burst, Duration::from_secs(600))
            .memory_shared(&store)
            .unwrap()
    };
    let (crowded, other) = (make(5), make(5));
    // The node's inbox is open from now on: a waiter that cannot be pushed to is passed over.
    let guard = crowded.mutex("a").lock().await.unwrap();
    let mutex = other.mutex("a");
    let mut waiting = Box::pin(mutex.lock());
    assert!(poll_once(&mut waiting).await.is_none());
    guard.release().await.unwrap();
    soon(waiting).await.unwrap().release().await.unwrap();
    let served = Arc::new(AtomicU64::new(0));
    let guard = crowded.mutex("a").lock().await.unwrap();
    let line: Vec<_> = (0..100)
        .map(|_| {
            let (mutex, served) = (crowded.mutex("a"), served.clone());
            tokio::spawn(async move {
                let guard = mutex.lock().await.unwrap();
                served.fetch_add(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            })
        })
        .collect();
    while crowded.waiter_count() < 100 {
        tokio::task::yield_now().await;
    }
    // The waiter is in the store's queue, not only in that of its process.
    let mutex = other.mutex("a");
    let mut waiting = Box::pin(mutex.lock());
    assert!(poll_once(&mut waiting).await.is_none());
    guard.release().await.unwrap();
    let guard = soon(waiting).await.unwrap();
    let before = served.load(Ordering::SeqCst);
    assert!(before <= 5, "{before} were served before the other node");
    guard.release().await.unwrap();
    for task in line {
        soon(task).await.unwrap();
    }
    soon(crowded.idle()).await;
    soon(other.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn waiters_over_a_limit_are_refused() {
    let locks = Locks::builder()
        .max_waiters_per_key(3)
        .max_waiters_per_node(5)
        .memory()
        .unwrap();
    let (a, b) = (
        locks.mutex("a").lock().await.unwrap(),
        locks.mutex("b").lock().await.unwrap(),
    );
    let mut line: Vec<_> = ["a", "a", "a", "b", "b"]
        .map(|key| Box::pin(locks.mutex(key).lock()))
        .into();
    for (n, waiting) in line.iter_mut().enumerate() {
        assert!(poll_once(waiting).await.is_none());
        if n == 2 {
            let refused = locks.mutex("a").lock().await.unwrap_err();
            assert!(
                matches!(
                    refused,
                    Error::QueueFull {
                        waiting: 3,
                        limit: 3,
                        ..
                    }
                ),
                "{refused:?}"
            );
            let refused = locks.mutex("b").max_waiters(0).lock().await.unwrap_err();
            assert!(
                matches!(
                    refused,
                    Error::QueueFull {
                        waiting: 0,
                        limit: 0,
                        ..
                    }
                ),
                "{refused:?}"
            );
        }
    }
    // This process has as many waiters as it may. Only callers that must wait are refused.
    let refused = locks.mutex("b").lock().await.unwrap_err();
    assert!(
        refused.is_busy()
            && matches!(
                refused,
                Error::NodeFull {
                    waiting: 5,
                    limit: 5,
                    ..
                }
            ),
        "{refused:?}"
    );
    assert!(!refused.to_string().contains("wait for"), "{refused}");
    drop(soon(locks.mutex("c").lock()).await.unwrap());
    assert!(soon(locks.mutex("d").try_lock()).await.unwrap().is_some());
    assert!(soon(locks.mutex("a").try_lock()).await.unwrap().is_none());
    // A waiter that leaves makes room.
    line.truncate(4);
    let room = Box::pin(locks.mutex("b").lock());
    line.push(room);
    assert!(poll_once(&mut line[4]).await.is_none());
    drop((a, b));
    for waiting in line {
        drop(soon(waiting).await.unwrap());
    }
    soon(locks.idle()).await;
    assert_eq!((locks.key_count(), locks.waiter_count()), (0, 0));
}

/// Without tokio, as on other executors.
#[test]
fn works_under_any_executor() {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    fn block_on<F: Future>(future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
                std::task::Poll::Ready(ready) => return ready,
                std::task::Poll::Pending => std::thread::park(),
            }
        }
    }
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let counter = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..8)
        .map(|n| {
            let mutex = if n % 2 == 0 { &locks } else { &other }.mutex("a");
            let counter = counter.clone();
            std::thread::spawn(move || {
                for _ in 0..100 {
                    let guard = block_on(mutex.lock()).unwrap();
                    let seen = counter.load(Ordering::Relaxed);
                    std::thread::yield_now();
                    counter.store(seen + 1, Ordering::Relaxed);
                    if seen.is_multiple_of(2) {
                        block_on(guard.release()).unwrap();
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 800);
    block_on(locks.idle());
    block_on(other.idle());
    assert!(store.is_empty());
}
