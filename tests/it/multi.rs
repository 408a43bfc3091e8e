//! Multi-locks: all keys or none, in an order that allows no deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tenure::error::LostCause;
use tenure::{Error, Key, Locks, MemoryStore, MultiKey, MultiLock, block_on};

use crate::help::{ms, poll_once, soon, two, until};

fn keys(multi: &MultiLock) -> Vec<String> {
    multi.keys().map(Key::to_string).collect()
}

#[tokio::test]
async fn all_are_held_each_with_a_fence_and_all_are_given_back() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let multi = locks.multi(["b", "a", "c", "a"]);
    assert_eq!(keys(&multi), ["a", "b", "c"], "in order, each once");
    let guard = soon(multi.lock()).await.unwrap();
    assert!(guard.is_held() && guard.remaining() > ms(1_000));
    for key in ["a", "b", "c"] {
        assert!(
            soon(other.mutex(key).try_lock()).await.unwrap().is_none(),
            "{key}"
        );
        assert!(
            soon(locks.mutex(key).try_lock()).await.unwrap().is_none(),
            "{key}"
        );
    }
    let first = guard.fence("b").unwrap();
    assert_eq!(guard.fences().count(), 3);
    assert_eq!(guard.fence("d"), None);
    let lease = guard.lease();
    soon(guard.release()).await.unwrap();
    assert!(!lease.is_held() && lease.remaining().is_zero());
    assert_eq!(soon(lease.lost()).await, LostCause::Released);
    let guard = soon(other.multi(["b"]).lock()).await.unwrap();
    assert!(guard.fence("b").unwrap() > first);
    drop(guard);
    soon(other.idle()).await;
    assert!(store.is_empty());
    assert_eq!(locks.key_count() + other.key_count(), 0);
}

/// A try does not take a free key if another key is not free.
#[tokio::test]
async fn a_try_takes_all_or_nothing() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    for claim_id in [&locks, &other] {
        let guard = soon(claim_id.mutex("b").lock()).await.unwrap();
        let multi = locks.multi(["a", "b", "c"]);
        assert!(soon(multi.try_lock()).await.unwrap().is_none());
        let waited = soon(multi.lock_timeout(ms(1))).await.unwrap_err();
        assert!(
            matches!(&waited, Error::Busy { key, .. } if *key == Key::from("b")),
            "{waited}"
        );
        let now = soon(multi.lock_timeout(ms(0))).await.unwrap_err();
        assert!(now.is_busy(), "{now}");
        assert_eq!(store.len(), 1, "nothing but the one that is held");
        drop(guard);
        let all = soon(multi.try_lock()).await.unwrap().expect("all are free");
        soon(all.release()).await.unwrap();
    }
    assert!(store.is_empty());
}

/// A waiter holds the keys before the one it waits for, and no later key.
#[tokio::test]
async fn a_waiter_holds_only_smaller_keys() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let b = soon(other.mutex("b").lock()).await.unwrap();
    let mut waits = Box::pin(locks.multi(["c", "b", "a"]).lock());
    // On a busy machine the background thread may answer the requests after the poll.
    soon(async {
        loop {
            assert!(poll_once(&mut waits).await.is_none());
            if other.mutex("a").try_lock().await.unwrap().is_none() {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let c = soon(other.mutex("c").try_lock())
        .await
        .unwrap()
        .expect("it is free");
    soon(b.release()).await.unwrap();
    assert!(poll_once(&mut waits).await.is_none(), "it waits for c");
    soon(c.release()).await.unwrap();
    let guard = soon(waits).await.unwrap();
    assert_eq!(guard.fences().count(), 3);
}

#[tokio::test]
async fn a_waiter_that_is_dropped_leaves_nothing_behind() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let b = soon(other.mutex("b").lock()).await.unwrap();
    let mut waits = Box::pin(locks.multi(["a", "b", "c"]).lock());
    assert!(poll_once(&mut waits).await.is_none());
    assert_eq!(locks.waiter_count(), 1);
    drop(waits);
    assert_eq!((locks.waiter_count(), locks.key_count()), (0, 0));
    soon(b.release()).await.unwrap();
    assert!(store.is_empty());
}

/// Callers lock crossing sets of keys, within a process and across two. Every caller gets all its keys, alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crossing_sets_exclude_each_other_and_do_not_deadlock() {
    const KEYS: usize = 6;
    let store = MemoryStore::new();
    let nodes = <[Locks; 2]>::from(two(&store));
    let held: Arc<[AtomicBool; KEYS]> = Arc::default();
    let done = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for task in 0..8_u64 {
        let (locks, held, done) = (nodes[task as usize % 2].clone(), held.clone(), done.clone());
        tasks.push(tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(task);
            for _ in 0..100 {
                let wanted: Vec<usize> = (0..rng.usize(1..=4)).map(|_| rng.usize(..KEYS)).collect();
                let multi = locks.multi(wanted.iter().copied());
                let multi = if task % 4 == 3 { multi.fair() } else { multi };
                let guard = multi.lock().await.unwrap();
                let mine: Vec<usize> = multi.keys().map(|key| key.to_string().parse().unwrap()).collect();
                for &key in &mine {
                    assert!(!held[key].swap(true, Ordering::SeqCst), "{key} is held twice");
                }
                tokio::task::yield_now().await;
                for &key in &mine {
                    held[key].store(false, Ordering::SeqCst);
                }
                if rng.bool() {
                    guard.release().await.unwrap();
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(done.load(Ordering::Relaxed), 800);
    for locks in &nodes {
        soon(locks.idle()).await;
    }
    assert!(store.is_empty());
}

/// A multi-lock of one key and a mutex are the same lock, in one queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_multi_lock_of_one_key_is_a_mutex() {
    let store = MemoryStore::new();
    let (one, other) = two(&store);
    let total = Arc::new(AtomicU64::new(0));
    let tasks = (0..4).map(|task| {
        let (locks, total) = (if task < 2 { &one } else { &other }.clone(), total.clone());
        tokio::spawn(async move {
            for _ in 0..200 {
                let read_and_write = async {
                    let read = total.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    total.store(read + 1, Ordering::Relaxed);
                };
                if task % 2 == 0 {
                    locks.multi(["k"]).with(|_| read_and_write).await.unwrap();
                } else {
                    locks.mutex("k").with(|_| read_and_write).await.unwrap();
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        soon(task).await.unwrap();
    }
    assert_eq!(total.load(Ordering::Relaxed), 800);
}

/// One of the leases is lost: work ends, and every watcher of the guard is told.
#[tokio::test]
async fn one_lost_lease_ends_all() {
    let store = MemoryStore::new();
    let locks = Locks::builder().lease(ms(3_000)).memory_shared(&store).unwrap();
    let guard = soon(locks.multi(["a", "b"]).lock()).await.unwrap();
    let (token, early, lease) = (guard.lost_token(), guard.lost(), guard.lease());
    let name = tenure::protocol::message::Name::lock(Key::from("b"));
    store.with_ledger(|ledger, _| ledger.overwrite(&name, None));
    let ran = soon(guard.run(std::future::pending::<()>())).await.unwrap_err();
    assert!(
        matches!(&ran, Error::Lost { key, cause: LostCause::Gone, .. } if *key == Key::from("b")),
        "{ran}"
    );
    soon(token.cancelled()).await;
    assert_eq!(soon(early).await, LostCause::Gone);
    assert_eq!(soon(lease.lost()).await, LostCause::Gone);
    assert!(lease.lost_token().is_cancelled() && !guard.is_held());
    assert!(guard.again().is_err());
    let released = soon(guard.release()).await.unwrap_err();
    assert!(released.is_lost(), "{released}");
    assert!(store.is_empty(), "the other is given back");
}

/// Fixed leases are never renewed: all of them end, whether they were taken together or one by one.
#[tokio::test]
async fn fixed_leases_end() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    for in_turn in [false, true] {
        let multi = locks.multi(["a", "b"]).fixed(ms(1_000));
        let take = async || {
            if !in_turn {
                return multi.lock().await;
            }
            let b = other.mutex("b").lock().await?;
            let mut waits = Box::pin(multi.lock());
            assert!(poll_once(&mut waits).await.is_none());
            b.release().await?;
            waits.await
        };
        // On a machine that stalls, the first lease may end before the last one is granted.
        let guard = soon(async {
            loop {
                match take().await {
                    Err(error) if error.is_lost() => {}
                    taken => return taken.unwrap(),
                }
            }
        })
        .await;
        assert!(guard.remaining() <= ms(1_000));
        let overdue = guard.lease().overdue();
        assert_eq!(soon(guard.lost()).await, LostCause::Ended);
        soon(overdue).await;
        let released = soon(guard.release()).await.unwrap_err();
        assert!(
            matches!(
                released,
                Error::Lost {
                    cause: LostCause::Ended,
                    ..
                }
            ),
            "{released}"
        );
        let next = soon(other.multi(["a", "b"]).lock()).await.unwrap();
        next.release().await.unwrap();
    }
    // The last setting counts.
    let renewed = locks.multi(["a", "b"]).fixed(ms(400)).lease(ms(3_000));
    let guard = soon(renewed.lock()).await.unwrap();
    let mut left = guard.remaining();
    until("both are renewed", || {
        let before = std::mem::replace(&mut left, guard.remaining());
        left > before
    })
    .await;
    let bad = soon(locks.multi(["a"]).fixed(ms(1)).try_lock())
        .await
        .unwrap_err();
    assert!(matches!(bad, Error::Options(_)), "{bad}");
    drop(guard);
    soon(locks.idle()).await;
    assert!(store.is_empty());
}

/// The holder is told, then loses the leases, and another caller gets them. If they are released in time, `overdue`
/// completes, too.
#[tokio::test]
async fn leases_are_renewed_for_no_longer_than_max_hold() {
    let store = MemoryStore::new();
    let (locks, other) = two(&store);
    let multi = locks.multi(["a", "b"]).lease(ms(1_500)).max_hold(ms(600));
    let guard = soon(multi.lock()).await.unwrap();
    let lease = guard.lease();
    soon(lease.overdue()).await;
    // The guard still holds, unless the machine stalled meanwhile.
    assert!(guard.is_held() || soon(lease.lost()).await == LostCause::Overdue);
    let next = tokio::spawn(other.multi(["b", "a"]).lock());
    assert_eq!(soon(guard.lost()).await, LostCause::Overdue);
    soon(next).await.unwrap().unwrap().release().await.unwrap();
    drop(guard);

    let guard = soon(multi.lock()).await.unwrap();
    let overdue = guard.lease().overdue();
    soon(guard.release()).await.unwrap();
    soon(overdue).await;
    soon(locks.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn another_guard_keeps_all_leases() {
    let locks = Locks::memory();
    let guard = soon(locks.multi(["a", "b"]).lock()).await.unwrap();
    let again = guard.again().unwrap();
    soon(guard.release()).await.unwrap();
    assert!(again.is_held());
    assert!(soon(locks.multi(["b", "c"]).try_lock()).await.unwrap().is_none());
    drop(again);
    soon(locks.idle()).await;
    assert_eq!(locks.key_count(), 0);
}

#[tokio::test]
async fn bad_input_is_refused_before_any_request() {
    let locks = Locks::memory();
    let none: [&str; 0] = [];
    let empty = soon(locks.multi(none).lock()).await.unwrap_err();
    assert!(
        matches!(&empty, Error::Options(error) if error.to_string().contains("1 to 64 keys, not 0")),
        "{empty}"
    );
    let many = soon(locks.multi(0..65).try_lock()).await.unwrap_err();
    assert!(
        matches!(&many, Error::Options(error) if error.to_string().contains("1 to 64 keys, not 65")),
        "{many}"
    );
    let most = soon(locks.multi((0..64).chain(0..64)).lock()).await.unwrap();
    assert_eq!(most.fences().count(), 64);
    drop(most);
    soon(locks.idle()).await;
    let bad = soon(locks.multi(["a", ""]).lock()).await.unwrap_err();
    assert!(matches!(bad, Error::Key { .. }), "{bad}");
    assert_eq!(locks.key_count(), 0);
}

/// The caller is inside of a held multi-lock.
#[tokio::test]
async fn a_holder_that_waits_for_its_own_lease_is_refused() {
    let locks = Locks::memory();
    let guard = soon(locks.multi(["a", "b"]).lock()).await.unwrap();
    let inner = guard
        .run(async {
            let mutex = locks.mutex("b").lock().await.unwrap_err();
            let multi = locks.multi(["c", "a"]).lock().await.unwrap_err();
            drop(locks.mutex("c").lock().await.unwrap());
            (mutex, multi)
        })
        .await
        .unwrap();
    assert!(matches!(inner.0, Error::WouldDeadlock { .. }), "{}", inner.0);
    assert!(matches!(inner.1, Error::WouldDeadlock { .. }), "{}", inner.1);
    soon(guard.release()).await.unwrap();
}

/// Locks over several stores are taken in the order given; the keys of one `Locks` form one group.
#[tokio::test]
async fn locks_of_several_stores_are_taken_in_the_order_given() {
    let (one, other) = (Locks::memory(), Locks::memory());
    let multi = one
        .multi(["z"])
        .and(other.multi(["b", "a"]))
        .and(one.multi(["y"]));
    assert_eq!(keys(&multi), ["y", "z", "a", "b"]);
    let busy = soon(other.mutex("a").lock()).await.unwrap();
    let mut waits = Box::pin(multi.lock());
    assert!(poll_once(&mut waits).await.is_none());
    assert!(soon(one.mutex("z").try_lock()).await.unwrap().is_none());
    drop(busy);
    let guard = soon(waits).await.unwrap();
    assert_eq!(guard.fences().count(), 4);
    soon(guard.release()).await.unwrap();
    assert_eq!(one.key_count() + other.key_count(), 0);
    let many = one.multi(0..40).and(other.multi(0..40));
    assert!(matches!(soon(many.lock()).await, Err(Error::Options(_))));
}

#[test]
fn blocking_code_locks_several_keys() {
    let locks = Locks::memory();
    let multi = locks.multi([MultiKey::from("a"), MultiKey::from(("account", 7))]);
    let guard = block_on(multi.lock()).unwrap();
    assert!(block_on(multi.try_lock()).unwrap().is_none());
    assert!(block_on(multi.lock_timeout(ms(1))).unwrap_err().is_busy());
    block_on(guard.release()).unwrap();
    assert_eq!(locks.key_count(), 0);
}
