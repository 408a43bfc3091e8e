//! Callers that leave at any point leave nothing behind, on a real server.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tenure::{Guard, Locks, MultiLock};
use tokio::sync::oneshot;

use crate::help::{Eyes, held, locks, ms, soon, until};
use crate::server::RedisServer;

/// Polls it so many times, a little apart, then drops it.
async fn polled<T>(future: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut future = pin!(future);
    for n in 0..times {
        let step = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(ready) = step {
            return Some(ready);
        }
        match n % 3 {
            0 => tokio::task::yield_now().await,
            1 => (0..20).for_each(|_| std::hint::spin_loop()),
            _ => tokio::time::sleep(Duration::from_micros(300)).await,
        }
    }
    None
}

/// What is in the store of two nodes.
pub trait Contents {
    /// Returns all keys except for clocks.
    fn left_behind(&mut self) -> Vec<String>;

    /// Returns the number of waiters in the key's queue.
    fn queue(&mut self, key: &str) -> usize;
}

impl Contents for Eyes {
    fn left_behind(&mut self) -> Vec<String> {
        Eyes::left_behind(self)
    }

    fn queue(&mut self, key: &str) -> usize {
        Eyes::queue(self, key)
    }
}

async fn nothing_left(eyes: &mut impl Contents, nodes: [&Locks; 2]) {
    for node in nodes {
        soon(node.idle()).await;
        until("nothing is left here", || {
            (node.key_count(), node.waiter_count()) == (0, 0)
        })
        .await;
    }
    let left = eyes.left_behind();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_future_dropped_after_any_number_of_polls_leaves_nothing() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        locks(&server.url(), ms(60_000)).await,
        locks(&server.url(), ms(60_000)).await,
    );
    dropped_futures_leave_nothing(&one, &other, &mut eyes).await;
}

pub async fn dropped_futures_leave_nothing(one: &Locks, other: &Locks, eyes: &mut impl Contents) {
    for round in 0..3 {
        for times in 0..=9 {
            // Free; held by another node; held here; queued here behind another node.
            for held_by in [None, Some(other), Some(one)] {
                let mutex = one.mutex("a");
                let blocker = match held_by {
                    Some(node) => Some(held(node, "a").await),
                    None => None,
                };
                drop(polled(mutex.lock(), times).await);
                drop(polled(mutex.try_lock(), times).await);
                drop(polled(mutex.lock_timeout(ms(5000)), times).await);
                drop(polled(mutex.with(async |_| tokio::time::sleep(ms(1)).await), times).await);
                drop(polled(mutex.clone().fixed(ms(60_000)).lock(), times).await);
                if let Some(guard) = blocker {
                    assert!(guard.is_held());
                    drop(polled(guard.release(), times).await);
                }
                if round == 0 {
                    nothing_left(eyes, [one, other]).await;
                }
                // Free again for whoever comes.
                let guard: Guard = held(other, "a").await;
                drop(polled(guard.release(), times).await);
            }
        }
    }
    nothing_left(eyes, [one, other]).await;
}

/// The same for readers, writers that become readers, and several keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_future_of_readers_or_several_dropped_after_any_number_of_polls_leaves_nothing() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        locks(&server.url(), ms(60_000)).await,
        locks(&server.url(), ms(60_000)).await,
    );
    dropped_futures_of_readers_or_several_leave_nothing(&one, &other, &mut eyes).await;
}

pub async fn dropped_futures_of_readers_or_several_leave_nothing(
    one: &Locks,
    other: &Locks,
    eyes: &mut impl Contents,
) {
    for times in 0..=9 {
        // Free; written or read by another node, or here.
        for (held_by, reads) in [
            (None, false),
            (Some(other), false),
            (Some(other), true),
            (Some(one), false),
            (Some(one), true),
        ] {
            let (lock, multi) = (one.rw_lock("b"), one.multi(["a", "b", "c"]));
            let blocker = match held_by {
                Some(node) if reads => Some(soon(node.rw_lock("b").read()).await.unwrap()),
                Some(node) => Some(held(node, "b").await),
                None => None,
            };
            drop(polled(lock.read(), times).await);
            drop(polled(lock.write(), times).await);
            drop(polled(lock.try_read(), times).await);
            drop(polled(lock.read_timeout(ms(5000)), times).await);
            drop(polled(lock.clone().fixed(ms(60_000)).read(), times).await);
            drop_futures_of(&multi, times).await;
            nothing_left_of_several(blocker, times, eyes, [one, other]).await;
        }
        // Whoever waits for what it is given up by gets it.
        for reads in [false, true] {
            let guard = held(one, "b").await;
            let lock = other.rw_lock("b");
            let waits = tokio::spawn(async move {
                if reads {
                    lock.read().await
                } else {
                    lock.write().await
                }
            });
            until("it waits", || eyes.queue("b") == 1).await;
            drop(polled(guard.downgrade(), times).await);
            let next = soon(waits).await.unwrap().unwrap();
            next.release().await.unwrap();
            nothing_left(eyes, [one, other]).await;
        }
    }
}

/// Drops each kind of future that locks several keys.
async fn drop_futures_of(multi: &MultiLock, times: usize) {
    drop(polled(multi.lock(), times).await);
    drop(polled(multi.try_lock(), times).await);
    drop(polled(multi.lock_timeout(ms(5000)), times).await);
    drop(polled(multi.clone().fixed(ms(60_000)).lock(), times).await);
    drop(polled(multi.with(async |_| tokio::time::sleep(ms(1)).await), times).await);
}

/// Releases the key that was held meanwhile, and checks that the keys can be locked and nothing else is left.
async fn nothing_left_of_several(
    blocker: Option<Guard>,
    times: usize,
    eyes: &mut impl Contents,
    [one, other]: [&Locks; 2],
) {
    if let Some(guard) = blocker {
        assert!(guard.is_held());
        drop(polled(guard.release(), times).await);
    }
    nothing_left(eyes, [one, other]).await;
    let guard = soon(other.multi(["a", "b", "c"]).lock()).await.unwrap();
    drop(polled(guard.release(), times).await);
}

/// The same for several keys, on a store without read locks.
pub async fn dropped_futures_of_several_leave_nothing(one: &Locks, other: &Locks, eyes: &mut impl Contents) {
    for times in 0..=9 {
        // Free; one of the keys is held by another node, or here.
        for held_by in [None, Some(other), Some(one)] {
            let multi = one.multi(["a", "b", "c"]);
            let blocker = match held_by {
                Some(node) => Some(held(node, "b").await),
                None => None,
            };
            drop_futures_of(&multi, times).await;
            nothing_left_of_several(blocker, times, eyes, [one, other]).await;
        }
    }
    nothing_left(eyes, [one, other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_are_aborted_or_panic_leave_nothing() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        locks(&server.url(), ms(60_000)).await,
        locks(&server.url(), ms(60_000)).await,
    );
    aborted_tasks_leave_nothing(&one, &other, &mut eyes).await;
}

pub async fn aborted_tasks_leave_nothing(one: &Locks, other: &Locks, eyes: &mut impl Contents) {
    for _ in 0..5 {
        // Aborted while holding.
        let (told, holds) = oneshot::channel();
        let mutex = one.mutex("a");
        let task = tokio::spawn(async move {
            let _guard = mutex.lock().await.unwrap();
            told.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        soon(holds).await.unwrap();
        // Aborted while waiting.
        let waiting = tokio::spawn(other.mutex("a").lock());
        until("it waits", || eyes.queue("a") == 1).await;
        waiting.abort();
        let _ = waiting.await;
        until("it left", || eyes.queue("a") == 0).await;
        task.abort();
        let _ = task.await;
        // Sooner than by the end of its lease: nobody waits for so long here.
        drop(held(other, "a").await);
        nothing_left(eyes, [one, other]).await;
        // A panic under the lock, and one in a task that waits.
        let mutex = one.mutex("a");
        let task = tokio::spawn(async move {
            let _guard = mutex.lock().await.unwrap();
            std::panic::resume_unwind(Box::new("while holding"));
        });
        assert!(soon(task).await.unwrap_err().is_panic());
        let mutex = other.mutex("a");
        let guard = held(one, "a").await;
        let task = tokio::spawn(async move {
            let mut waiting = pin!(mutex.lock());
            let first = polled(&mut waiting, 4).await;
            assert!(first.is_none());
            std::panic::resume_unwind(Box::new("while waiting"));
        });
        assert!(soon(task).await.unwrap_err().is_panic());
        guard.release().await.unwrap();
        nothing_left(eyes, [one, other]).await;
    }
}

/// The last clone goes, with a guard and a waiter: the background thread gives back, and ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_last_clone_gives_everything_back() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let clients = |eyes: &mut Eyes| eyes.text::<String>("CLIENT LIST").lines().count();
    let before = clients(&mut eyes);
    for _ in 0..3 {
        let (one, other) = (
            locks(&server.url(), ms(60_000)).await,
            locks(&server.url(), ms(60_000)).await,
        );
        let guard = held(&one, "a").await;
        let waiting = tokio::spawn(other.mutex("a").lock());
        until("it waits", || eyes.queue("a") == 1).await;
        waiting.abort();
        let _ = waiting.await;
        drop(other);
        drop(one);
        assert!(guard.is_held(), "a guard keeps what it needs");
        drop(guard);
        until("all is free and every connection closed", || {
            eyes.left_behind().is_empty() && clients(&mut eyes) == before
        })
        .await;
    }
    // Shut down with both.
    let (one, other) = (
        locks(&server.url(), ms(60_000)).await,
        locks(&server.url(), ms(60_000)).await,
    );
    let guard = held(&one, "a").await;
    let waiting = tokio::spawn(other.mutex("a").lock());
    until("it waits", || eyes.queue("a") == 1).await;
    soon(other.shutdown()).await;
    assert!(soon(waiting).await.unwrap().is_err());
    assert_eq!(eyes.queue("a"), 0);
    soon(one.shutdown()).await;
    assert!(!guard.is_held());
    nothing_left(&mut eyes, [&one, &other]).await;
}

/// The same for leases that travel. What was given up before its future was dropped is for others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_future_of_a_transfer_dropped_after_any_number_of_polls_leaves_nothing() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let (one, other) = (
        locks(&server.url(), ms(60_000)).await,
        locks(&server.url(), ms(60_000)).await,
    );
    dropped_futures_of_transfers_leave_nothing(&one, &other, &mut eyes).await;
}

pub async fn dropped_futures_of_transfers_leave_nothing(
    one: &Locks,
    other: &Locks,
    eyes: &mut impl Contents,
) {
    let keep = ms(60_000);
    for times in 0..=9 {
        if let Some(made) = polled(held(one, "a").await.into_transfer(keep), times).await {
            soon(other.release_transfer(&made.unwrap())).await.unwrap();
        }
        nothing_left(eyes, [one, other]).await;
        let made = soon(held(one, "a").await.into_transfer(keep)).await.unwrap();
        drop(polled(other.extend_transfer(&made, keep), times).await);
        drop(polled(other.adopt(&made), times).await);
        let _ = soon(one.release_transfer(&made)).await;
        nothing_left(eyes, [one, other]).await;
        if let Some(made) = polled(one.semaphore("b", 1).acquire_transfer(keep), times).await {
            soon(other.release_transfer(&made.unwrap())).await.unwrap();
        }
        nothing_left(eyes, [one, other]).await;
    }
}
