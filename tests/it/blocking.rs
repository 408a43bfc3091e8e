//! Locks for code that is not async: on its own threads, and inside a runtime, where it must not block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tenure::{Error, Guard, Locks, MemoryStore};

use crate::help::{ms, soon, two};

/// Reads, pauses, writes: the total is exact only if no other thread is inside.
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

/// A thread that drives tasks must not be blocked, whether or not the lock is free. The panic leaves nothing behind.
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

/// Blocking calls work where tokio allows blocking.
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

/// Each blocking form of readers and a writer: acquires, finds the lock busy, gives up after a wait.
#[test]
fn blocking_readers_share_and_exclude_a_blocking_writer() {
    let locks = Locks::memory();
    let prices = locks.rw_lock("prices");
    let is_busy = |answer: Result<Guard, Error>| matches!(answer, Err(Error::Busy { .. }));
    let readers = [
        prices.blocking_read().unwrap(),
        prices.blocking_try_read().unwrap().unwrap(),
        prices.blocking_read_timeout(ms(5)).unwrap(),
    ];
    assert!(prices.blocking_try_write().unwrap().is_none());
    assert!(is_busy(prices.blocking_write_timeout(ms(5))));
    for reader in readers {
        assert!(reader.is_held());
        reader.blocking_release().unwrap();
    }
    prices
        .blocking_write_timeout(ms(5))
        .unwrap()
        .blocking_release()
        .unwrap();
    drop(prices.blocking_try_write().unwrap().unwrap());
    let writer = prices.blocking_write().unwrap();
    assert!(prices.blocking_try_read().unwrap().is_none());
    assert!(is_busy(prices.blocking_read_timeout(ms(5))));
    thread::scope(|threads| {
        let reads = threads.spawn(|| prices.blocking_read().unwrap().blocking_release());
        while locks.waiting() == 0 {
            thread::yield_now();
        }
        writer.blocking_release().unwrap();
        reads.join().unwrap().unwrap();
    });
}

#[test]
fn blocking_callers_share_the_permits_of_a_semaphore() {
    let locks = Locks::memory();
    let calls = locks.semaphore("calls", 3);
    let one = calls.blocking_acquire().unwrap();
    let two = calls.blocking_acquire_many(2).unwrap();
    assert_eq!([&one, &two].map(Guard::num_permits), [1, 2]);
    assert!(calls.blocking_try_acquire().unwrap().is_none());
    assert!(calls.blocking_try_acquire_many(2).unwrap().is_none());
    for busy in [
        calls.blocking_acquire_timeout(ms(5)),
        calls.blocking_acquire_many_timeout(2, ms(5)),
    ] {
        assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    }
    thread::scope(|threads| {
        let all = threads.spawn(|| calls.blocking_acquire_many(3).unwrap());
        while locks.waiting() == 0 {
            thread::yield_now();
        }
        one.blocking_release().unwrap();
        two.blocking_release().unwrap();
        assert_eq!(all.join().unwrap().num_permits(), 3);
    });
    let one = calls.blocking_acquire_timeout(ms(5)).unwrap();
    let two = calls.blocking_try_acquire_many(2).unwrap().unwrap();
    drop((one, two));
    drop(calls.blocking_acquire_many_timeout(3, ms(5)).unwrap());
    assert!(calls.blocking_try_acquire().unwrap().is_some());
}

#[test]
fn blocking_candidates_lead_one_after_the_other() {
    let store = MemoryStore::new();
    let (one, other) = two(&store);
    let (here, there) = (one.election("relay"), other.election("relay"));
    let first = here.blocking_campaign().unwrap();
    assert!(here.is_leader() && there.blocking_try_campaign().unwrap().is_none());
    let busy = there.blocking_campaign_timeout(ms(5));
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    let fence = first.fence();
    thread::scope(|threads| {
        let leads = threads.spawn(|| there.blocking_campaign().unwrap());
        while other.waiting() == 0 {
            thread::yield_now();
        }
        first.blocking_release().unwrap();
        let next = leads.join().unwrap();
        assert!(there.is_leader() && next.fence() > fence);
        next.blocking_release().unwrap();
    });
    drop(here.blocking_try_campaign().unwrap().unwrap());
    drop(there.blocking_campaign_timeout(ms(5)).unwrap());
}
