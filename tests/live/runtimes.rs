//! The driver keeps held leases, independent of the user's runtimes.

use std::sync::mpsc;
use std::sync::{Arc, Barrier, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tenure::{Locks, block_on};
use tokio::runtime::{Builder, Runtime};

use crate::contest::Contest;
use crate::help::{Eyes, held, locks, ms, now, patient, soon};
use crate::server::RedisServer;
use crate::support::events::Watch;

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Polls until the condition holds, outside of any runtime.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = now();
    while !so() {
        assert!(
            now() - start < crate::help::PATIENCE,
            "timed out waiting for: {what}"
        );
        thread::sleep(ms(2));
    }
}

/// Runs a future as executors other than tokio do.
fn run_elsewhere<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let start = now();
    loop {
        if let Poll::Ready(ready) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return ready;
        }
        thread::park_timeout(crate::help::PATIENCE);
        assert!(now() - start < crate::help::PATIENCE, "never woken");
    }
}

/// A node with an idle job tells the store of its end. Its runtime may be blocked meanwhile, or be of another kind than that of the
/// caller.
#[test]
fn a_shutdown_waits_for_no_runtime_of_an_idle_job() {
    let server = RedisServer::start();
    let idle = |runtime: &Runtime| {
        runtime.block_on(async {
            let locks = locks(&server.url(), ms(10_000)).await;
            let job = locks.cron("idle", "0 0 0 1 1 *").run(|_| async {}).unwrap();
            (locks, job)
        })
    };
    let blocked = one_thread();
    let (locks, _job) = idle(&blocked);
    let entered = blocked.enter();
    run_elsewhere(locks.shutdown());
    drop(entered);

    let (locks, _job) = idle(&blocked);
    let without_time = Builder::new_current_thread().build().unwrap();
    without_time.block_on(locks.shutdown());
}

/// A caller learns at once, without a round trip, that its own process holds the key. A loop of such calls must let the
/// holder run.
#[test]
fn a_loop_of_try_lock_lets_the_holder_of_its_thread_release() {
    let server = RedisServer::start();
    one_thread().block_on(async {
        let locks = locks(&server.url(), ms(10_000)).await;
        let guard = held(&locks, "a").await;
        let claim_id = tokio::spawn(async move { guard.release().await });
        let (mutex, start) = (locks.mutex("a"), now());
        let next = loop {
            if let Some(next) = mutex.try_lock().await.unwrap() {
                break next;
            }
            assert!(now() - start < crate::help::PATIENCE, "the holder is starved");
        };
        next.release().await.unwrap();
        claim_id.await.unwrap().unwrap();
    });
}

#[test]
fn blocked_workers_do_not_lose_the_lease() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let lease = ms(3_000);
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let (locks, guard) = runtime.block_on(async {
        let locks = locks(&server.url(), lease).await;
        let guard = tokio::spawn(locks.mutex("a").lock()).await.unwrap().unwrap();
        (locks, guard)
    });
    let blocked = Arc::new(Barrier::new(3));
    let go = Arc::new(Barrier::new(3));
    for _ in 0..2 {
        let (blocked, go) = (blocked.clone(), go.clone());
        runtime.spawn(async move {
            blocked.wait();
            go.wait();
        });
    }
    blocked.wait();
    let since = now();
    let owner = eyes.owner("a");
    // Every increase of the remaining time is a renewal. Without five of them the record would be gone.
    let (mut renewals, mut before) = (0, 0);
    until("five renewals", || {
        let left = eyes.pttl("a");
        assert!(left > 0, "the record expired after {renewals} renewals");
        renewals += u32::from(before > 0 && left > before + 50);
        before = left;
        renewals >= 5
    });
    assert!(now() - since > lease * 11 / 10);
    assert!(guard.is_held());
    assert_eq!(eyes.owner("a"), owner);
    go.wait();
    runtime.block_on(guard.release()).unwrap();
    runtime.block_on(soon(locks.idle()));
    assert!(eyes.left_behind().is_empty());
}

/// The runtime that created the locks is blocked. Hand-overs on other runtimes continue.
#[test]
fn a_blocked_runtime_slows_no_other() {
    let server = RedisServer::start();
    let (blocked, free) = (
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap(),
        Runtime::new().unwrap(),
    );
    let nodes = [
        blocked.block_on(blocked.spawn({
            let url = server.url();
            async move { locks(&url, ms(10_000)).await }
        })),
        free.block_on(free.spawn({
            let url = server.url();
            async move { locks(&url, ms(10_000)).await }
        })),
    ]
    .map(Result::unwrap);
    let (stands, go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    blocked.spawn({
        let (stands, go) = (stands.clone(), go.clone());
        async move {
            stands.wait();
            go.wait();
        }
    });
    stands.wait();
    let key = "a".to_owned();
    let contest = free.block_on(async { Contest::start([(key.clone(), &nodes[..])], ms(10)) });
    let began = now();
    thread::sleep(ms(4_000));
    let handed_over = contest.handed_over(&key, began, now());
    go.wait();
    drop(contest);
    free.block_on(soon(nodes[0].idle()));
    free.block_on(soon(nodes[1].idle()));
    assert!(
        handed_over >= 30,
        "{handed_over} hand-overs in four seconds beside a blocked runtime"
    );
}

#[test]
fn a_guard_outlives_its_runtime_and_is_released_without_one() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let runtime = Runtime::new().unwrap();
    let (locks, guard, long) = runtime.block_on(async {
        let locks = locks(&server.url(), ms(3_000)).await;
        let guard = held(&locks, "a").await;
        let long = soon(locks.mutex("long").lease(ms(60_000)).lock()).await;
        (locks, guard, long.unwrap())
    });
    drop(runtime);
    let (mut renewals, mut before) = (0, 0);
    until("two renewals", || {
        let left = eyes.pttl("a");
        assert!(left > 0, "the record expired after {renewals} renewals");
        renewals += u32::from(before > 0 && left > before + 50);
        before = left;
        renewals >= 2
    });
    assert!(guard.is_held());
    drop((guard, long));
    // Without a removal, the record with the long lease would outlast the timeout of this test.
    until("both keys are free", || {
        eyes.owner("a").is_none() && eyes.owner("long").is_none()
    });
    assert!(eyes.left_behind().is_empty());
    // The answer of the server may still be in flight.
    until("nothing is left here", || locks.key_count() == 0);
}

#[test]
fn a_runtime_that_ends_under_guards_and_waiters_leaves_nothing() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    for round in 0..6 {
        let runtime = if round % 2 == 0 {
            one_thread()
        } else {
            Runtime::new().unwrap()
        };
        let locks = runtime.block_on(locks(&server.url(), ms(60_000)));
        let guard = runtime.block_on(held(&locks, "a"));
        let (inside, waiting, other) = (locks.mutex("b"), locks.mutex("a"), locks.mutex("b"));
        let (told, holds) = mpsc::channel();
        runtime.spawn(async move {
            let _guard = inside.lock().await.unwrap();
            told.send(()).unwrap();
            // One guard is held and callers wait when the runtime ends.
            let _ = waiting.lock().await;
        });
        runtime.spawn(async move { drop(other.lock().await) });
        runtime.block_on(async {
            while holds.try_recv().is_err() {
                tokio::time::sleep(ms(1)).await;
            }
            tokio::task::yield_now().await;
        });
        match round {
            0 | 1 => drop(runtime),
            2 | 3 => runtime.shutdown_background(),
            _ => runtime.shutdown_timeout(Duration::from_secs(5)),
        }
        assert!(guard.is_held());
        until("the key of the tasks is free", || eyes.owner("b").is_none());
        drop(guard);
        until("all keys are free", || eyes.left_behind().is_empty());
        until("nothing is left here", || {
            locks.key_count() == 0 && locks.waiter_count() == 0
        });
    }
}

#[test]
fn several_runtimes_in_a_row_share_one_static() {
    static LOCKS: OnceLock<Locks> = OnceLock::new();
    let server = RedisServer::start();
    for round in 0..6 {
        let runtime = if round % 2 == 0 {
            one_thread()
        } else {
            Runtime::new().unwrap()
        };
        runtime.block_on(async {
            if LOCKS.get().is_none() {
                // No caller waits for the deadline of a request on the connection of an ended runtime.
                LOCKS.set(patient(&server.url()).await).unwrap();
            }
            let locks = LOCKS.get().unwrap();
            let guard = held(locks, "a").await;
            assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
            guard.release().await.unwrap();
            let guard = held(locks, format!("of round {round}")).await;
            drop(guard);
            soon(locks.idle()).await;
        });
    }
    assert!(Eyes::on(&server).left_behind().is_empty());
}

#[test]
fn two_runtimes_at_once_take_turns() {
    let server = RedisServer::start();
    let (first, second) = (Runtime::new().unwrap(), one_thread());
    let locks = first.block_on(locks(&server.url(), ms(10_000)));
    let counter = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let work = |locks: Locks| {
        let counter = counter.clone();
        async move {
            for _ in 0..200 {
                let guard = held(&locks, "a").await;
                let seen = counter.load(std::sync::atomic::Ordering::Relaxed);
                tokio::task::yield_now().await;
                counter.store(seen + 1, std::sync::atomic::Ordering::Relaxed);
                guard.release().await.unwrap();
            }
        }
    };
    let on_first = first.spawn(work(locks.clone()));
    second.block_on(work(locks.clone()));
    first.block_on(on_first).unwrap();
    assert_eq!(counter.load(std::sync::atomic::Ordering::Relaxed), 400);
    first.block_on(soon(locks.idle()));
    assert!(Eyes::on(&server).left_behind().is_empty());
}

/// The runtime that created the locks exists but does not run: no connection depends on it.
#[test]
fn a_runtime_that_does_not_run_delays_no_caller() {
    let server = RedisServer::start();
    let (asleep, awake) = (one_thread(), one_thread());
    let locks = asleep.block_on(async {
        let locks = locks(&server.url(), ms(8_000)).await;
        held(&locks, "asleep").await.release().await.unwrap();
        locks
    });
    let (node, key) = (Watch::of(locks.node_id().to_string()), Watch::of("key=asleep "));
    awake.block_on(async {
        held(&locks, "asleep").await.release().await.unwrap();
        soon(locks.idle()).await;
    });
    assert_eq!((node.count("connection_lost"), key.count("asked_again")), (0, 0));
    assert!(Eyes::on(&server).left_behind().is_empty());
}

#[test]
fn works_without_a_runtime_once_it_is_connected() {
    let server = RedisServer::start();
    let runtime = one_thread();
    let locks = runtime.block_on(locks(&server.url(), ms(10_000)));
    drop(runtime);
    let guard = run_elsewhere(locks.mutex("a").lock()).unwrap();
    assert!(run_elsewhere(locks.mutex("a").try_lock()).unwrap().is_none());
    let other = locks.mutex("a");
    let waiter = thread::spawn(move || run_elsewhere(other.lock()).unwrap());
    until("it waits", || locks.waiter_count() == 1);
    run_elsewhere(guard.release()).unwrap();
    drop(waiter.join().unwrap());
    run_elsewhere(locks.idle());
    assert!(Eyes::on(&server).left_behind().is_empty());
}

/// A future sends the batch for all queued callers, and is then neither polled nor dropped.
#[tokio::test]
async fn a_batch_leader_that_is_not_polled_again_delays_no_caller() {
    let server = RedisServer::start();
    // The deadline of the leader's request is an hour away.
    let locks = patient(&server.url()).await;
    let mut leader = std::pin::pin!(locks.mutex("led").lock());
    // The first caller sends a request of its own, and its future is then not polled.
    std::future::poll_fn(|cx| {
        assert!(leader.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    held(&locks, "other").await.release().await.unwrap();
    // The lock was granted, but not taken up. When the future is polled again, it holds the lock or learns that it does not.
    let guard = soon(&mut leader).await.unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
    soon(locks.idle()).await;
    assert!(Eyes::on(&server).left_behind().is_empty());
}

/// Callers in a batch whose leader is not polled do not wait for the batch's deadline, which is an hour away.
#[tokio::test]
async fn callers_in_the_batch_of_an_unpolled_leader_do_not_wait_for_its_deadline() {
    let server = RedisServer::start();
    let locks = patient(&server.url()).await;
    let mut futures: Vec<_> = (0..64)
        .map(|n| Box::pin(locks.mutex(format!("{n}")).lock()))
        .collect();
    std::future::poll_fn(|cx| {
        for future in &mut futures {
            assert!(future.as_mut().poll(cx).is_pending());
        }
        Poll::Ready(())
    })
    .await;
    // The first sixteen lead batches and are not polled again. The others are in batches of such leaders.
    let passengers = futures.split_off(16);
    let mut guards = Vec::new();
    for passenger in passengers {
        guards.push(soon(passenger).await.unwrap());
    }
    drop(guards);
    drop(futures);
    soon(locks.idle()).await;
    assert!(Eyes::on(&server).left_behind().is_empty());
}

/// A thread without a runtime connects, acquires a lock, waits for the lock of another process, and releases.
#[test]
fn a_thread_without_a_runtime_locks_and_waits() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let [one, other] = [(); 2].map(|()| block_on(crate::help::connect(&server.url())).unwrap());
    let guard = block_on(one.mutex("k").lock()).unwrap();
    assert!(block_on(other.mutex("k").try_lock()).unwrap().is_none());
    let fence = guard.fence();
    let waits = thread::spawn(move || {
        let guard = block_on(other.mutex("k").lock()).unwrap();
        let fence = guard.fence();
        block_on(guard.release()).unwrap();
        fence
    });
    until("the caller waits in the queue", || eyes.queue("k") == 1);
    block_on(guard.release()).unwrap();
    assert!(waits.join().unwrap() > fence);
    until("nothing is left", || eyes.left_behind().is_empty());
}
