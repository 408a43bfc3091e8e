//! Locks for code that is not async: on threads of its own, and inside of a runtime, where it must not block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tenure::{Error, Locks, MemoryStore};

use crate::help::{ms, soon, two};

/// Read, pause, write: exact only if nobody else is inside.
fn add(total: &AtomicU64) {
    let read = total.load(Ordering::Relaxed);
    thread::yield_now();
    total.store(read + 1, Ordering::Relaxed);
}

#[test]
fn threads_exclude_each_other() {
    const THREADS: u64 = 4;
    const TIMES: u64 = 200;
    let store = MemoryStore::new();
    let (one, other) = two(&store);
    let total = AtomicU64::new(0);
    thread::scope(|threads| {
        for n in 0..THREADS {
            let locks = if n % 2 == 0 { &one } else { &other };
            let total = &total;
            threads.spawn(move || {
                for _ in 0..TIMES {
                    let guard = locks.mutex("k").blocking_lock().unwrap();
                    add(total);
                    guard.blocking_release().unwrap();
                }
            });
        }
    });
    assert_eq!(total.load(Ordering::Relaxed), THREADS * TIMES);
    assert_eq!(one.keys() + other.keys(), 0);
}

#[test]
fn a_blocking_try_and_a_blocking_wait_say_that_it_is_busy() {
    let locks = Locks::memory();
    let mutex = locks.mutex("k");
    let guard = mutex.blocking_lock().unwrap();
    assert!(mutex.blocking_try_lock().unwrap().is_none());
    let waited = mutex.blocking_lock_timeout(ms(5)).unwrap_err();
    assert!(matches!(waited, Error::Busy { .. }), "{waited}");
    drop(guard);
    let guard = mutex.blocking_lock_timeout(ms(5)).unwrap();
    drop(guard);
    assert!(mutex.blocking_try_lock().unwrap().is_some());
}

/// A thread that drives tasks must not be blocked, whether or not the lock is free; and a panic leaves nothing behind.
#[tokio::test]
async fn blocking_in_async_code_panics_and_leaves_nothing_behind() {
    let locks = Locks::memory();
    let blocked = catch_unwind(AssertUnwindSafe(|| locks.mutex("k").blocking_lock()));
    let panic = blocked.expect_err("it does not block");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(text.contains("from within a runtime"), "{text}");
    assert_eq!(locks.keys(), 0);
    drop(soon(locks.mutex("k").lock()).await.unwrap());
}

/// Where tokio allows to block.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_of_a_runtime_that_may_block_may_lock() {
    let locks = Locks::memory();
    let guard = soon(locks.mutex("k").lock()).await.unwrap();
    let mutex = locks.mutex("k");
    let waits = tokio::task::spawn_blocking(move || mutex.blocking_lock());
    while locks.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    guard.release().await.unwrap();
    let guard = soon(waits).await.unwrap().unwrap();
    tokio::task::block_in_place(|| {
        drop(guard);
        locks
            .mutex("k")
            .blocking_lock()
            .unwrap()
            .blocking_release()
            .unwrap();
    });
}
