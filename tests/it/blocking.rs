//! Locks for code that is not async: on its own threads, and inside a runtime, where it must not block.

use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tenure::{Error, Guard, Locks, MemoryStore, block_on};

use crate::help::{ms, soon, two};
use crate::support::alone::alone;

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
                    let guard = block_on(locks.mutex("k").lock()).unwrap();
                    add(total);
                    block_on(guard.release()).unwrap();
                }
            });
        }
    });
    assert_eq!(total.load(Ordering::Relaxed), THREADS * TIMES);
    assert_eq!(one.key_count() + other.key_count(), 0);
}

#[test]
fn a_blocking_try_and_a_blocking_wait_say_that_it_is_busy() {
    let locks = Locks::memory();
    let mutex = locks.mutex("k");
    let guard = block_on(mutex.lock()).unwrap();
    assert!(block_on(mutex.try_lock()).unwrap().is_none());
    let waited = block_on(mutex.lock_timeout(ms(5))).unwrap_err();
    assert!(matches!(waited, Error::Busy { .. }), "{waited}");
    drop(guard);
    let guard = block_on(mutex.lock_timeout(ms(5))).unwrap();
    drop(guard);
    assert!(block_on(mutex.try_lock()).unwrap().is_some());
}

/// A thread that drives tasks must not be blocked, whether or not the lock is free. The panic leaves nothing behind.
#[tokio::test]
async fn blocking_in_async_code_panics_and_leaves_nothing_behind() {
    let locks = Locks::memory();
    let blocked = catch_unwind(AssertUnwindSafe(|| block_on(locks.mutex("k").lock())));
    let panic = blocked.expect_err("it does not block");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    assert!(text.contains("from within a runtime"), "{text}");
    assert_eq!(locks.key_count(), 0);
    drop(soon(locks.mutex("k").lock()).await.unwrap());
}

/// The panic names the line of the caller.
#[test]
fn blocking_in_async_code_names_the_callers_line() {
    alone("blocking::blocking_in_async_code_names_the_callers_line", || {
        let place = Arc::new(Mutex::new(None));
        let of_hook = place.clone();
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let at = panic.location().map(|at| (at.file().to_owned(), at.line()));
            *of_hook.lock().unwrap() = at;
        }));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let locks = Locks::memory();
        let line = line!() + 1;
        let lock = || block_on(locks.mutex("k").lock());
        let blocked = runtime.block_on(async { catch_unwind(AssertUnwindSafe(lock)) });
        panic::set_hook(hook);
        assert!(blocked.is_err());
        assert_eq!(*place.lock().unwrap(), Some((file!().to_owned(), line)));
    });
}

/// Blocking calls work where tokio allows blocking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_of_a_runtime_that_may_block_may_lock() {
    let locks = Locks::memory();
    let guard = soon(locks.mutex("k").lock()).await.unwrap();
    let mutex = locks.mutex("k");
    let waits = tokio::task::spawn_blocking(move || block_on(mutex.lock()));
    while locks.waiter_count() == 0 {
        tokio::task::yield_now().await;
    }
    guard.release().await.unwrap();
    let guard = soon(waits).await.unwrap().unwrap();
    tokio::task::block_in_place(|| {
        drop(guard);
        let guard = block_on(locks.mutex("k").lock()).unwrap();
        block_on(guard.release()).unwrap();
    });
}

/// Each blocking form of readers and a writer: acquires, finds the lock busy, gives up after a wait.
#[test]
fn blocking_readers_share_and_exclude_a_blocking_writer() {
    let locks = Locks::memory();
    let prices = locks.rw_lock("prices");
    let is_busy = |answer: Result<Guard, Error>| matches!(answer, Err(Error::Busy { .. }));
    let readers = [
        block_on(prices.read()).unwrap(),
        block_on(prices.try_read()).unwrap().unwrap(),
        block_on(prices.read_timeout(ms(5))).unwrap(),
    ];
    assert!(block_on(prices.try_write()).unwrap().is_none());
    assert!(is_busy(block_on(prices.write_timeout(ms(5)))));
    for reader in readers {
        assert!(reader.is_held());
        block_on(reader.release()).unwrap();
    }
    let writer = block_on(prices.write_timeout(ms(5))).unwrap();
    block_on(writer.release()).unwrap();
    drop(block_on(prices.try_write()).unwrap().unwrap());
    let writer = block_on(prices.write()).unwrap();
    assert!(block_on(prices.try_read()).unwrap().is_none());
    assert!(is_busy(block_on(prices.read_timeout(ms(5)))));
    thread::scope(|threads| {
        let reads = threads.spawn(|| block_on(block_on(prices.read()).unwrap().release()));
        while locks.waiter_count() == 0 {
            thread::yield_now();
        }
        block_on(writer.release()).unwrap();
        reads.join().unwrap().unwrap();
    });
}

#[test]
fn blocking_callers_share_the_permits_of_a_semaphore() {
    let locks = Locks::memory();
    let calls = locks.semaphore("calls", 3);
    let one = block_on(calls.acquire()).unwrap();
    let two = block_on(calls.acquire_many(2)).unwrap();
    assert_eq!([&one, &two].map(|guard| guard.num_permits()), [1, 2]);
    assert!(block_on(calls.try_acquire()).unwrap().is_none());
    assert!(block_on(calls.try_acquire_many(2)).unwrap().is_none());
    for busy in [
        block_on(calls.acquire_timeout(ms(5))),
        block_on(calls.acquire_many_timeout(2, ms(5))),
    ] {
        assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    }
    thread::scope(|threads| {
        let all = threads.spawn(|| block_on(calls.acquire_many(3)).unwrap());
        while locks.waiter_count() == 0 {
            thread::yield_now();
        }
        block_on(one.release()).unwrap();
        block_on(two.release()).unwrap();
        assert_eq!(all.join().unwrap().num_permits(), 3);
    });
    let one = block_on(calls.acquire_timeout(ms(5))).unwrap();
    let two = block_on(calls.try_acquire_many(2)).unwrap().unwrap();
    drop((one, two));
    drop(block_on(calls.acquire_many_timeout(3, ms(5))).unwrap());
    assert!(block_on(calls.try_acquire()).unwrap().is_some());
}

#[test]
fn blocking_candidates_lead_one_after_the_other() {
    let store = MemoryStore::new();
    let (one, other) = two(&store);
    let (here, there) = (one.election("relay"), other.election("relay"));
    let first = block_on(here.campaign()).unwrap();
    assert!(here.is_leader() && block_on(there.try_campaign()).unwrap().is_none());
    let busy = block_on(there.campaign_timeout(ms(5)));
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    let fence = first.fence();
    thread::scope(|threads| {
        let leads = threads.spawn(|| block_on(there.campaign()).unwrap());
        while other.waiter_count() == 0 {
            thread::yield_now();
        }
        block_on(first.release()).unwrap();
        let next = leads.join().unwrap();
        assert!(there.is_leader() && next.fence() > fence);
        block_on(next.release()).unwrap();
    });
    drop(block_on(here.try_campaign()).unwrap().unwrap());
    drop(block_on(there.campaign_timeout(ms(5))).unwrap());
}
