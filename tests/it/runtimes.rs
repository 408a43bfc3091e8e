//! Locks beside other tasks on one thread: calls that are ready at once let other tasks run. Also locks without
//! tokio.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::{Error, Locks};
use tokio::task::coop;

#[cfg(target_os = "linux")]
use crate::support::alone::alone;

/// More steps than a task may take before tokio stops it: the limit is 128.
const CYCLES: usize = 1_000;

/// Repeats a cycle that is ready each time, and asserts that another task runs meanwhile.
async fn shares_its_thread(what: &str, cycle: impl AsyncFn()) {
    let ran = Arc::new(AtomicBool::new(false));
    let other = {
        let ran = ran.clone();
        tokio::spawn(async move { ran.store(true, Ordering::Relaxed) })
    };
    for _ in 0..CYCLES {
        cycle().await;
    }
    assert!(ran.load(Ordering::Relaxed), "{what} kept the thread");
    other.await.unwrap();
}

#[tokio::test]
async fn a_loop_of_ready_calls_lets_other_tasks_run() {
    let locks = Locks::memory();
    let (mutex, held) = (locks.mutex("a"), locks.mutex("held").lock().await.unwrap());
    shares_its_thread("lock", async || {
        mutex.lock().await.unwrap().release().await.unwrap()
    })
    .await;
    shares_its_thread("lock and drop", async || drop(mutex.lock().await.unwrap())).await;
    let minute = Duration::from_secs(60);
    shares_its_thread("lock_timeout", async || {
        drop(mutex.lock_timeout(minute).await.unwrap());
    })
    .await;
    shares_its_thread("try_lock", async || {
        drop(mutex.try_lock().await.unwrap().unwrap())
    })
    .await;
    let busy = locks.mutex("held");
    shares_its_thread("a failed try_lock", async || {
        assert!(busy.try_lock().await.unwrap().is_none());
    })
    .await;
    let (readers, permits) = (locks.rw_lock("read"), locks.semaphore("permits", 3));
    shares_its_thread("read", async || drop(readers.read().await.unwrap())).await;
    shares_its_thread("acquire", async || drop(permits.acquire().await.unwrap())).await;
    shares_its_thread("available_permits", async || {
        assert_eq!(permits.available_permits().await.unwrap(), 3);
    })
    .await;
    let several = locks.multi(["b", "c"]);
    shares_its_thread("multi", async || drop(several.lock().await.unwrap())).await;
    let (latch, election) = (locks.latch("latch"), locks.election("leader"));
    shares_its_thread("count", async || {
        assert!(matches!(latch.count().await, Err(Error::Unset { .. })));
    })
    .await;
    shares_its_thread("leader", async || {
        assert_eq!(election.leader().await.unwrap(), None)
    })
    .await;
    let unfit = locks.mutex("");
    shares_its_thread("a refusal", async || drop(unfit.lock().await.unwrap_err())).await;
    assert!(held.is_held());
}

/// A caller without budget is queued once, at its first poll, and is served when its task runs again.
#[tokio::test]
async fn a_caller_without_budget_enters_once_and_keeps_its_place() {
    let locks = Locks::memory();
    let spent = async {
        while coop::has_budget_remaining() {
            coop::consume_budget().await;
        }
    };
    spent.await;
    let first = locks.mutex("a");
    let mut waits = pin!(first.lock());
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert_eq!((locks.waiter_count(), locks.key_count()), (1, 1));
    }
    // Another caller comes later, with any budget.
    let second = coop::unconstrained(first.try_lock()).await.unwrap();
    assert!(second.is_none(), "it passed the first caller");
    let guard = waits.await.unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert_eq!((locks.waiter_count(), locks.key_count()), (0, 0));
    // A caller that is dropped while it has no budget leaves nothing behind.
    while coop::has_budget_remaining() {
        coop::consume_budget().await;
    }
    {
        let mut dropped = pin!(first.lock());
        assert!(dropped.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!((locks.waiter_count(), locks.key_count()), (0, 0));
}

/// An immediate grant needs no timer. A task without budget needs none either: it only lets other tasks run.
///
/// The driver may execute a request just before its caller does, most of all while it starts. The caller then waits for a wake-up,
/// and needs a timer. So of several tries one must need none.
#[test]
fn a_free_lock_needs_no_timers_of_the_runtime() {
    const TRIES: usize = 20;
    let is_done_without = |_| {
        let Err(panic) = std::panic::catch_unwind(free_locks_without_timers) else {
            return true;
        };
        let text = panic.downcast_ref::<String>().map_or("", |text| text);
        let text = panic.downcast_ref::<&str>().copied().unwrap_or(text);
        assert!(text.contains("timers are disabled"), "{text}");
        false
    };
    assert!(
        (0..TRIES).any(is_done_without),
        "each of {TRIES} tries needed a timer"
    );
}

fn free_locks_without_timers() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (locks, minute) = (Locks::memory(), Duration::from_secs(60));
        let (mutex, several) = (locks.mutex("a"), locks.multi(["b", "c"]));
        let (latch, election) = (locks.latch("latch"), locks.election("leader"));
        for _ in 0..CYCLES {
            drop(mutex.lock_timeout(minute).await.unwrap());
            drop(several.lock_timeout(minute).await.unwrap());
            drop(election.campaign_timeout(minute).await.unwrap());
            let unset = latch.wait_timeout(minute).await;
            assert!(matches!(unset, Err(Error::Unset { .. })), "{unset:?}");
        }
    });
}

/// Another executor has no budget: a call that is ready is ready at the first poll, however often it is repeated. Only the
/// driver can come first, with its own timers; it executes the request then, and wakes the caller.
#[test]
fn without_tokio_ready_calls_are_ready_at_the_first_poll() {
    let locks = Locks::memory();
    let mutex = locks.mutex("a");
    let mut by_driver = 0;
    for _ in 0..CYCLES {
        let guard = at_the_first_poll(mutex.lock(), &mut by_driver);
        at_the_first_poll(guard.unwrap().release(), &mut by_driver).unwrap();
    }
    // With a budget, nearly all of them would have to wait.
    assert!(by_driver < CYCLES / 10, "{by_driver} calls were not ready");
}

/// Returns the output of a future, and counts the future if it was not ready at once.
fn at_the_first_poll<T>(future: impl Future<Output = T>, later: &mut usize) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    let mut polls = 0;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            *later += usize::from(polls > 0);
            return output;
        }
        polls += 1;
        std::thread::park();
    }
}

/// A process that may start no thread gets an error, in async code, too. There, tokio forbids to drop a runtime.
#[cfg(target_os = "linux")]
#[test]
fn without_a_thread_locks_are_refused_with_an_error() {
    alone(
        "runtimes::without_a_thread_locks_are_refused_with_an_error",
        || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells the size");
                let pages: u64 = statm
                    .split(' ')
                    .next()
                    .unwrap()
                    .parse()
                    .expect("a number of pages");
                let before = getrlimit(Resource::As);
                // Room for small allocations, and not for the stack of a thread.
                let current = Some(pages * 4096 + (1 << 20));
                setrlimit(Resource::As, Rlimit { current, ..before }).expect("a lower limit");
                let made = Locks::builder().memory();
                setrlimit(Resource::As, before).expect("the limit as it was");
                let text = made.map(drop).expect_err("no thread starts").to_string();
                assert!(text.contains("cannot start the driver's thread"), "{text}");
            });
        },
    );
}
