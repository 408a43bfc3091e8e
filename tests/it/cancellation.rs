//! Callers that leave at any point leave nothing behind, on the memory store.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use proptest::prelude::*;
use tenure::{Guard, Locks, MemoryStore};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future)
        .await
        .expect("did not happen in time")
}

fn node(store: &MemoryStore) -> Locks {
    Locks::builder()
        .lease(Duration::from_secs(600))
        .max_waiters_per_key(20_000)
        .memory_shared(store)
        .unwrap()
}

async fn step<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(ready) => Some(ready),
            Poll::Pending => None,
        })
    })
    .await
}

/// Polls the future `times` times, a little apart, then drops it.
async fn polled<T>(future: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..times {
        if let Some(ready) = step(future.as_mut()).await {
            return Some(ready);
        }
        tokio::task::yield_now().await;
    }
    None
}

async fn nothing_left(store: &MemoryStore, nodes: &[&Locks]) {
    for node in nodes {
        soon(async {
            loop {
                // Read the waiters first: a counted waiter joins the queue only afterwards. A late push also has a
                // key for the moment in which it is thrown away.
                let waiting = node.waiter_count();
                node.idle().await;
                if (node.key_count(), waiting) == (0, 0) {
                    break;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    assert!(store.is_empty(), "{store:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_future_dropped_after_any_number_of_polls_leaves_nothing() {
    let store = MemoryStore::new();
    let (one, other) = (node(&store), node(&store));
    for _ in 0..30 {
        for times in 0..=6 {
            for held_by in [None, Some(&other), Some(&one)] {
                let mutex = one.mutex("a");
                let blocker: Option<Guard> = match held_by {
                    Some(node) => Some(soon(node.mutex("a").lock()).await.unwrap()),
                    None => None,
                };
                drop(polled(mutex.lock(), times).await);
                drop(polled(mutex.try_lock(), times).await);
                drop(polled(mutex.lock_timeout(ms(5000)), times).await);
                drop(polled(mutex.with(|_| tokio::task::yield_now()), times).await);
                drop(polled(mutex.clone().fixed(Duration::from_secs(600)).lock(), times).await);
                if let Some(guard) = blocker {
                    assert!(guard.is_held());
                    drop(polled(guard.release(), times).await);
                }
                nothing_left(&store, &[&one, &other]).await;
                let guard = one.mutex("a").try_lock().await.unwrap().expect("free again");
                drop(polled(guard.release(), times).await);
                soon(one.idle()).await;
            }
        }
    }
}

/// A cancelled future of readers, of writers that become readers, or of several keys leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_future_of_readers_or_several_dropped_after_any_number_of_polls_leaves_nothing() {
    let store = MemoryStore::new();
    let (one, other) = (node(&store), node(&store));
    for times in (0..=6).cycle().take(70) {
        for (held_by, reads) in [
            (None, false),
            (Some(&other), false),
            (Some(&other), true),
            (Some(&one), false),
            (Some(&one), true),
        ] {
            let (lock, multi) = (one.rw_lock("b"), one.multi(["a", "b", "c"]));
            let blocker: Option<Guard> = match held_by {
                Some(node) if reads => Some(soon(node.rw_lock("b").read()).await.unwrap()),
                Some(node) => Some(soon(node.mutex("b").lock()).await.unwrap()),
                None => None,
            };
            drop(polled(lock.read(), times).await);
            drop(polled(multi.lock(), times).await);
            drop(polled(lock.write(), times).await);
            drop(polled(lock.try_read(), times).await);
            drop(polled(multi.try_lock(), times).await);
            drop(polled(lock.read_timeout(ms(5000)), times).await);
            drop(polled(multi.lock_timeout(ms(5000)), times).await);
            drop(polled(lock.clone().fixed(Duration::from_secs(600)).read(), times).await);
            drop(polled(multi.clone().fixed(Duration::from_secs(600)).lock(), times).await);
            drop(polled(multi.with(|_| tokio::task::yield_now()), times).await);
            if let Some(guard) = blocker {
                assert!(guard.is_held());
                drop(polled(guard.release(), times).await);
            }
            nothing_left(&store, &[&one, &other]).await;
            let guard = one.multi(["a", "b", "c"]).try_lock().await.unwrap();
            drop(polled(guard.expect("free again").release(), times).await);
            soon(one.idle()).await;
        }
        // A caller that waits for a released or downgraded lease gets it.
        for reads in [false, true] {
            let guard = soon(one.mutex("b").lock()).await.unwrap();
            let lock = other.rw_lock("b");
            let mut waits = pin!(if reads { lock.read() } else { lock.write() });
            assert!(step(waits.as_mut()).await.is_none());
            drop(polled(guard.downgrade(), times).await);
            drop(soon(waits).await.unwrap());
            nothing_left(&store, &[&one, &other]).await;
        }
    }
}

/// A cancelled future of permits leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_future_of_permits_dropped_after_any_number_of_polls_leaves_nothing() {
    let store = MemoryStore::new();
    let (one, other) = (node(&store), node(&store));
    for times in (0..=6).cycle().take(70) {
        for (held_by, many) in [(None, 0), (Some(&other), 1), (Some(&other), 3), (Some(&one), 2)] {
            let calls = one.semaphore("calls", 3);
            let blocker: Option<Guard> = match held_by {
                Some(node) => Some(soon(node.semaphore("calls", 3).acquire_many(many)).await.unwrap()),
                None => None,
            };
            drop(polled(calls.acquire(), times).await);
            drop(polled(calls.acquire_many(3), times).await);
            drop(polled(calls.try_acquire(), times).await);
            drop(polled(calls.try_acquire_many(2), times).await);
            drop(polled(calls.acquire_timeout(ms(5000)), times).await);
            drop(polled(calls.clone().fixed(Duration::from_secs(600)).acquire(), times).await);
            drop(polled(calls.available_permits(), times).await);
            if let Some(guard) = blocker {
                assert!(guard.is_held());
                drop(polled(guard.release(), times).await);
            }
            nothing_left(&store, &[&one, &other]).await;
            let guard = one.semaphore("calls", 3).try_acquire_many(3).await.unwrap();
            drop(polled(guard.expect("free again").release(), times).await);
            soon(one.idle()).await;
        }
    }
}

/// A cancelled future of a candidate, a leader, a proclamation or an observer leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_future_of_an_election_dropped_after_any_number_of_polls_leaves_nothing() {
    let store = MemoryStore::new();
    let (one, other) = (node(&store), node(&store));
    for times in (0..=6).cycle().take(70) {
        for led_by in [None, Some(&other), Some(&one)] {
            let election = one.election("relay");
            let leader: Option<Guard> = match led_by {
                Some(node) => Some(soon(node.election("relay").campaign()).await.unwrap()),
                None => None,
            };
            drop(polled(election.campaign(), times).await);
            drop(polled(election.campaign_timeout(ms(5000)), times).await);
            drop(polled(election.lead(async |_| tokio::task::yield_now().await), times).await);
            drop(polled(election.proclaim("here"), times).await);
            drop(polled(election.leader(), times).await);
            // An observer's first answer is the present leader, and watches nothing.
            drop(polled(election.observe().next(), times).await);
            if let Some(guard) = leader {
                assert!(guard.is_held());
                drop(polled(guard.release(), times).await);
            }
            nothing_left(&store, &[&one, &other]).await;
            let guard = soon(election.campaign_timeout(ms(5000))).await.unwrap();
            drop(polled(guard.release(), times).await);
            soon(one.idle()).await;
        }
    }
}

/// A cancelled future of a transfer leaves nothing. A lease that was given up before its future was dropped is free
/// for others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_future_of_a_transfer_dropped_after_any_number_of_polls_leaves_nothing() {
    let store = MemoryStore::new();
    let (one, other) = (node(&store), node(&store));
    let keep = Duration::from_secs(600);
    for times in (0..=6).cycle().take(70) {
        for permits in [false, true] {
            let take = async || match permits {
                true => soon(one.semaphore("a", 1).acquire()).await.unwrap(),
                false => soon(one.mutex("a").lock()).await.unwrap(),
            };
            if let Some(made) = polled(take().await.into_transfer(keep), times).await {
                drop(
                    polled(other.release_transfer(&made.unwrap()), 9)
                        .await
                        .expect("memory answers"),
                );
            }
            nothing_left(&store, &[&one, &other]).await;
            let made = soon(take().await.into_transfer(keep)).await.unwrap();
            drop(polled(other.extend_transfer(&made, keep), times).await);
            drop(polled(other.adopt(&made), times).await);
            let _ = soon(one.release_transfer(&made)).await;
            nothing_left(&store, &[&one, &other]).await;
            let made = soon(take().await.into_transfer(keep)).await.unwrap();
            drop(polled(other.release_transfer(&made), times).await);
            let _ = soon(other.release_transfer(&made)).await;
            nothing_left(&store, &[&one, &other]).await;
            if let Some(made) = polled(one.semaphore("b", 1).acquire_transfer(keep), times).await {
                soon(other.release_transfer(&made.unwrap())).await.unwrap();
            }
            nothing_left(&store, &[&one, &other]).await;
        }
    }
}

/// What one caller of a crowd does.
#[derive(Debug, Clone)]
struct Caller {
    node: bool,
    key: u8,
    kind: u8,
    /// How many polls the caller makes before it leaves, both as a waiter and as a holder.
    polls: u8,
    /// The step at which the caller comes.
    turn: u8,
}

fn callers() -> impl Strategy<Value = Vec<Caller>> {
    let caller = (any::<bool>(), 0..3u8, 0..11u8, 0..8u8, any::<u8>());
    let caller = caller.prop_map(|(node, key, kind, polls, turn)| Caller {
        node,
        key,
        kind,
        polls,
        turn,
    });
    proptest::collection::vec(caller, 1..40)
}

async fn play(locks: &Locks, caller: &Caller) {
    let (mutex, lock) = (
        locks.mutex(format!("{}", caller.key)),
        locks.rw_lock(format!("{}", caller.key)),
    );
    let multi = locks.multi([0, caller.key]);
    match caller.kind {
        0 => drop(mutex.lock().await),
        1 => drop(mutex.lock().await.unwrap().release().await),
        2 => drop(mutex.try_lock().await),
        3 => drop(mutex.with(|_| tokio::task::yield_now()).await),
        4 => drop(mutex.lock_timeout(Duration::from_secs(60)).await),
        5 => drop(lock.read().await),
        6 => drop(lock.try_read().await),
        7 => drop(lock.write().await.unwrap().downgrade().await),
        8 => drop(multi.lock().await),
        9 => drop(multi.lock().await.unwrap().release().await),
        _ => drop(mutex.fixed(Duration::from_secs(600)).lock().await),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_crowd_that_leaves_at_any_point(callers in callers()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = MemoryStore::new();
            let (one, other) = (node(&store), node(&store));
            let mut crowd: Vec<_> = callers
                .iter()
                .map(|caller| {
                    let locks = if caller.node { &one } else { &other };
                    (Box::pin(play(locks, caller)), caller.polls, u32::from(caller.turn) + 1)
                })
                .collect();
            // Eager callers are polled more often; each leaves after its polls, granted or not.
            let mut clock = 0u32;
            while !crowd.is_empty() {
                clock += 1;
                let mut at = 0;
                while at < crowd.len() {
                    let (future, left, turn) = &mut crowd[at];
                    if !clock.is_multiple_of(*turn % 7 + 1) {
                        at += 1;
                    } else if *left == 0 || step(future.as_mut()).await.is_some() {
                        drop(crowd.swap_remove(at));
                    } else {
                        *left -= 1;
                        at += 1;
                    }
                }
                if clock.is_multiple_of(3) {
                    tokio::task::yield_now().await;
                }
            }
            nothing_left(&store, &[&one, &other]).await;
            for key in 0..3 {
                let guard = other.mutex(key.to_string()).try_lock().await.unwrap();
                prop_assert!(guard.is_some());
            }
            Ok(())
        })?;
    }
}

/// The tasks are aborted, panic, or lose their runtime.
#[test]
fn tasks_that_are_aborted_or_panic_leave_nothing() {
    let store = MemoryStore::new();
    let (one, other) = (node(&store), node(&store));
    for _ in 0..50 {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let guard = runtime.block_on(one.mutex("a").lock()).unwrap();
        let waits =
            [one.mutex("a"), other.mutex("a")].map(|mutex| runtime.spawn(async move { mutex.lock().await }));
        let mutex = other.mutex("b");
        let panics = runtime.spawn(async move {
            let _guard = mutex.lock().await.unwrap();
            std::panic::resume_unwind(Box::new("while holding"));
        });
        assert!(runtime.block_on(panics).unwrap_err().is_panic());
        // Both were polled, so that neither begins to wait after the counting.
        runtime.block_on(async {
            while one.waiter_count() + other.waiter_count() < 2 {
                tokio::task::yield_now().await;
            }
        });
        waits[1].abort();
        runtime.shutdown_background();
        drop(guard);
        // A poll that was running all the while may still succeed; its guard then belongs to the handle.
        drop(waits);
        let quiet = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        quiet.block_on(nothing_left(&store, &[&one, &other]));
    }
}

/// Half of a long queue leaves: the rest is served in order, and the memory is freed.
#[tokio::test]
async fn when_half_of_ten_thousand_waiters_leave_the_rest_is_served_in_order() {
    let store = MemoryStore::new();
    let locks = node(&store);
    let mutex = locks.mutex("a");
    let guard = mutex.lock().await.unwrap();
    let mut line: Vec<_> = (0..10_000).map(|n| (n, Box::pin(mutex.lock()))).collect();
    for (_, waiting) in &mut line {
        assert!(step(waiting.as_mut()).await.is_none());
    }
    assert_eq!(locks.waiter_count(), 10_000);
    // The callers that leave are spread over the queue.
    let mut rng = fastrand::Rng::with_seed(7);
    rng.shuffle(&mut line);
    line.truncate(5_000);
    assert_eq!(locks.waiter_count(), 5_000);
    line.sort_by_key(|(n, _)| *n);
    guard.release().await.unwrap();
    let mut fence = None;
    for (n, (_, waiting)) in line.into_iter().enumerate() {
        // Only the first of the remaining waiters is ready.
        let guard = soon(waiting).await.unwrap();
        assert!(Some(guard.fence()) > fence, "at {n}");
        fence = Some(guard.fence());
        assert_eq!(locks.waiter_count(), 5_000 - n - 1);
        drop(guard);
    }
    nothing_left(&store, &[&locks]).await;
}

/// A key that is no longer used leaves nothing, neither in the process nor in the store. Runs in its own process, for
/// its own memory.
#[test]
fn keys_that_are_used_once_leave_nothing() {
    const CHILD: &str = "TENURE_KEYS_CHILD";
    if let Ok(keys) = std::env::var(CHILD) {
        return tokio::runtime::Runtime::new()
            .unwrap()
            .block_on(used_once(keys.parse().expect("a number of keys")));
    }
    let keys = std::env::var("TENURE_KEYS").unwrap_or("300000".into());
    let done = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "cancellation::keys_that_are_used_once_leave_nothing",
            "--nocapture",
        ])
        .env(CHILD, keys)
        .output()
        .expect("this binary once more");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

async fn used_once(keys: u32) {
    /// The memory of the process at this count is its baseline.
    const FIRST: u32 = 100_000;
    let store = MemoryStore::new();
    let locks = node(&store);
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells what is resident");
        statm
            .split(' ')
            .nth(1)
            .and_then(|pages| pages.parse::<usize>().ok())
            .expect("a number of pages")
            * 4096
    };
    let mut before = 0;
    for n in 0..keys {
        let guard = locks.mutex(&n.to_be_bytes()[..]).lock().await.unwrap();
        if n % 2 == 0 {
            guard.release().await.unwrap();
        } else {
            drop(guard);
            if n % 1024 == 1 {
                soon(locks.idle()).await;
            }
        }
        if n == FIRST {
            before = resident();
        }
    }
    nothing_left(&store, &[&locks]).await;
    let grown = resident().saturating_sub(before);
    // For 1,000,000 keys, 900,000 come after the baseline, and the bound is 8 MiB.
    let bound = ((8 << 20) as f64 * f64::from(keys.saturating_sub(FIRST)) / 900_000.0) as usize;
    assert!(
        grown < bound,
        "{} kB more than after the first {FIRST} keys",
        grown >> 10
    );
}
