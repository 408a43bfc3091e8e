//! Waiters: how many may wait, and what happens to a grant that its waiter does not fetch.

use std::time::Duration;

use tenure::{Error, Guard, Locks, MemoryStore};

use crate::help::{ms, poll_once, soon, two};

const LIMIT: usize = 5;

/// Fills the node with callers that wait for "held" behind the guard, up to the limit.
async fn crowded() -> (Locks, Guard, Vec<impl Future>) {
    let locks = Locks::builder().max_waiters_per_node(LIMIT).memory().unwrap();
    let guard = soon(locks.mutex("held").lock()).await.unwrap();
    let mut waiting: Vec<_> = (0..LIMIT).map(|_| Box::pin(locks.mutex("held").lock())).collect();
    for waiting in &mut waiting {
        assert!(poll_once(waiting).await.is_none());
    }
    assert_eq!(locks.waiter_count(), LIMIT);
    (locks, guard, waiting)
}

/// The limit is for callers that must wait: a free key is locked, by every method.
#[tokio::test]
async fn a_free_key_is_locked_while_a_node_is_full_of_waiters() {
    let (locks, _guard, _waiting) = crowded().await;
    let free = soon(locks.mutex("free").lock()).await;
    assert!(free.is_ok(), "{free:?}");
    let patient = soon(locks.mutex("patient").lock_timeout(ms(10_000))).await;
    assert!(patient.is_ok(), "{patient:?}");
    let fixed = soon(locks.mutex("fixed").fixed(ms(10_000)).lock()).await;
    assert!(fixed.is_ok(), "{fixed:?}");
}

/// A caller that does not wait is told whether the key is free.
#[tokio::test]
async fn a_try_is_answered_while_a_node_is_full_of_waiters() {
    let (locks, _guard, _waiting) = crowded().await;
    let free = soon(locks.mutex("free").try_lock()).await;
    assert!(matches!(free, Ok(Some(_))), "{free:?}");
    let held = soon(locks.mutex("held").try_lock()).await;
    assert!(matches!(held, Ok(None)), "{held:?}");
    let held = soon(locks.mutex("held").lock_timeout(Duration::ZERO)).await;
    assert!(matches!(held, Err(Error::Busy { .. })), "{held:?}");
}

/// A caller that must wait is refused, and its error names no queue that does not exist.
#[tokio::test]
async fn the_error_of_a_full_node_names_no_queue_of_the_key() {
    let store = MemoryStore::new();
    let make = || Locks::builder().max_waiters_per_node(LIMIT);
    let (locks, other) = (
        make().memory_shared(&store).unwrap(),
        make().memory_shared(&store).unwrap(),
    );
    let _guards = [
        soon(other.mutex("line").lock()).await.unwrap(),
        soon(other.mutex("no line").lock()).await.unwrap(),
    ];
    let mut waiting: Vec<_> = (0..LIMIT).map(|_| Box::pin(locks.mutex("line").lock())).collect();
    for waiting in &mut waiting {
        assert!(poll_once(waiting).await.is_none());
    }
    let full = soon(locks.mutex("line").lock()).await.unwrap_err();
    assert!(matches!(full, Error::NodeFull { limit: LIMIT, .. }), "{full:?}");
    let full = soon(locks.mutex("no line").lock()).await.unwrap_err();
    assert!(matches!(full, Error::NodeFull { limit: LIMIT, .. }), "{full:?}");
    let text = full.to_string();
    assert!(
        !text.contains("5 callers already wait for `no line`"),
        "no caller waits for it: {text}"
    );
}

/// The limit of a lock replaces that of the node, for each kind of lock, whether it is smaller or larger.
#[tokio::test]
async fn a_limit_of_waiters_of_a_lock_replaces_that_of_the_node() {
    fn limit<T: std::fmt::Debug>(answer: Result<T, Error>) -> usize {
        match answer {
            Err(Error::QueueFull { limit, .. }) => limit,
            answer => panic!("{answer:?}"),
        }
    }
    let store = MemoryStore::new();
    let node = || {
        Locks::builder()
            .max_waiters_per_key(2)
            .memory_shared(&store)
            .unwrap()
    };
    let (locks, other) = (node(), node());
    let _held = [
        soon(other.mutex("a").lock()).await.unwrap(),
        soon(other.semaphore("a", 1).acquire()).await.unwrap(),
        soon(other.election("a").campaign()).await.unwrap(),
    ];
    let (mutex, semaphore, election) = (locks.mutex("a"), locks.semaphore("a", 1), locks.election("a"));
    let mut waiting: Vec<_> = (0..3)
        .map(|_| Box::pin(mutex.clone().max_waiters(3).lock()))
        .collect();
    waiting.extend((0..3).map(|_| Box::pin(semaphore.clone().max_waiters(3).acquire())));
    for waiting in &mut waiting {
        assert!(poll_once(waiting).await.is_none());
    }
    let candidates = election.clone().max_waiters(3);
    let mut candidates: Vec<_> = (0..3).map(|_| Box::pin(candidates.campaign())).collect();
    for candidate in &mut candidates {
        assert!(poll_once(candidate).await.is_none());
    }
    // Three callers wait for each, more than the node's default allows.
    assert_eq!(locks.waiter_count(), 9);
    let (rw_lock, multi) = (locks.rw_lock("a"), locks.multi(["a"]));
    for (of_lock, of_node) in [
        (
            limit(soon(mutex.clone().max_waiters(3).lock()).await),
            limit(soon(mutex.lock()).await),
        ),
        (
            limit(soon(rw_lock.clone().max_waiters(3).read()).await),
            limit(soon(rw_lock.read()).await),
        ),
        (
            limit(soon(rw_lock.clone().max_waiters(3).write()).await),
            limit(soon(rw_lock.write()).await),
        ),
        (
            limit(soon(semaphore.clone().max_waiters(3).acquire()).await),
            limit(soon(semaphore.acquire()).await),
        ),
        (
            limit(soon(multi.clone().max_waiters(3).lock()).await),
            limit(soon(multi.lock()).await),
        ),
        (
            limit(soon(election.clone().max_waiters(3).campaign()).await),
            limit(soon(election.campaign()).await),
        ),
    ] {
        assert_eq!((of_lock, of_node), (3, 2));
    }
    let mut fourth = Box::pin(mutex.clone().max_waiters(4).lock());
    assert!(poll_once(&mut fourth).await.is_none());
    assert_eq!(limit(soon(mutex.clone().max_waiters(1).lock()).await), 1);
}

/// A key counts once for each kind while this process has a lease, a waiter or a call for it.
#[tokio::test]
async fn keys_counts_keys_with_a_lease_a_waiter_or_a_call() {
    let (locks, other) = two(&MemoryStore::new());
    let latch = locks.latch("a");
    assert!(soon(latch.try_set_count(1)).await.unwrap());
    let mut observer = locks.election("a").observe();
    assert!(soon(observer.next()).await.unwrap().is_none());
    soon(locks.idle()).await;
    assert_eq!(locks.key_count(), 0, "a latch that is set has no state here");
    let mut waits = Box::pin(latch.wait());
    assert!(poll_once(&mut waits).await.is_none());
    assert_eq!(locks.key_count(), 1, "a waiter of a latch");
    let mut observes = Box::pin(observer.next());
    assert!(poll_once(&mut observes).await.is_none());
    assert_eq!(locks.key_count(), 2, "an observer");
    drop(observes);
    assert_eq!(locks.key_count(), 2, "an observer between two calls of `next`");
    drop((waits, observer));
    soon(locks.idle()).await;
    assert_eq!(locks.key_count(), 0);
    let guard = soon(locks.mutex("a").lock()).await.unwrap();
    let again = guard.again().unwrap();
    let mut next = Box::pin(locks.mutex("a").lock());
    assert!(poll_once(&mut next).await.is_none());
    assert_eq!(locks.key_count(), 1);
    let permit = soon(locks.semaphore("a", 1).acquire()).await.unwrap();
    let multi = soon(locks.multi(["b", "c"]).lock()).await.unwrap();
    assert_eq!(locks.key_count(), 4);
    let mut waiter = Box::pin(other.mutex("b").lock());
    assert!(poll_once(&mut waiter).await.is_none());
    assert_eq!(other.key_count(), 1);
    drop((waiter, next, guard, again, permit, multi));
    soon(async { tokio::join!(locks.idle(), other.idle()) }).await;
    assert_eq!((locks.key_count(), other.key_count()), (0, 0));
}

/// A lock was granted to a future that is not polled, such as one left in a `select!` loop. It goes to another node
/// after a lease.
#[tokio::test]
async fn a_grant_that_is_not_fetched_goes_to_another_node() {
    let store = MemoryStore::new();
    let make = || Locks::builder().lease(ms(1_000)).memory_shared(&store).unwrap();
    let (locks, other, third) = (make(), make(), make());
    let guard = soon(other.mutex("a").lock()).await.unwrap();
    let mut forgotten = Box::pin(locks.mutex("a").lock());
    assert!(poll_once(&mut forgotten).await.is_none());
    soon(guard.release()).await.unwrap();
    // Lease, margin, and a large reserve for a slow machine.
    let guard = third.mutex("a").lock_timeout(ms(15_000)).await;
    let guard = guard.expect("the grant is not used, so the key is free after a lease");
    // If it is polled after all, it holds nothing that belongs to another holder.
    if let Some(Ok(late)) = poll_once(&mut forgotten).await {
        assert!(!(late.is_held() && guard.is_held()), "two hold it");
    }
    drop(forgotten);
    soon(guard.release()).await.unwrap();
}

/// An unfetched grant goes to the next caller of the same node.
#[tokio::test]
async fn a_grant_that_is_not_fetched_goes_to_the_next_in_line() {
    let locks = Locks::builder().lease(ms(1_000)).memory().unwrap();
    let guard = soon(locks.mutex("a").lock()).await.unwrap();
    let mut forgotten = Box::pin(locks.mutex("a").lock());
    assert!(poll_once(&mut forgotten).await.is_none());
    let mut next = Box::pin(locks.mutex("a").lock());
    assert!(poll_once(&mut next).await.is_none());
    soon(guard.release()).await.unwrap();
    let next = tokio::time::timeout(ms(15_000), next).await;
    let guard = next
        .expect("the grant is not used, so the key is free after a lease")
        .unwrap();
    if let Some(Ok(late)) = poll_once(&mut forgotten).await {
        assert!(!(late.is_held() && guard.is_held()), "two hold it");
    }
    drop(forgotten);
    soon(guard.release()).await.unwrap();
    soon(locks.idle()).await;
}

/// Callers of two nodes come in turn, five each. Returns the order in which they are granted.
async fn order_of_grants(make: impl Fn(&Locks) -> tenure::Mutex) -> Vec<usize> {
    let store = MemoryStore::new();
    // A burst has no time limit here, however slow the machine.
    let node = || {
        Locks::builder()
            .burst(256, ms(60_000))
            .memory_shared(&store)
            .unwrap()
    };
    let nodes = [node(), node()];
    let first = soon(nodes[0].mutex("k").lock()).await.unwrap();
    let mut waiting = Vec::new();
    for caller in 0..10 {
        let mut lock = Box::pin(make(&nodes[caller % 2]).lock());
        assert!(poll_once(&mut lock).await.is_none());
        waiting.push((caller, lock));
    }
    drop(first);
    let in_order = async {
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let mut granted = None;
            for (at, (_, lock)) in waiting.iter_mut().enumerate() {
                granted = granted.or(poll_once(lock).await.map(|guard| (at, guard.unwrap())));
            }
            if let Some((at, guard)) = granted {
                order.push(waiting.remove(at).0);
                drop(guard);
            }
            tokio::task::yield_now().await;
        }
        order
    };
    soon(in_order).await
}

/// Fair: first come, first served, in any process. By default the lease stays in its process for a burst.
#[tokio::test]
async fn fair_callers_of_two_nodes_are_served_in_the_order_in_which_they_came() {
    let fair = order_of_grants(|locks| locks.mutex("k").fair()).await;
    assert_eq!(fair, Vec::from_iter(0..10));
    let shared = order_of_grants(|locks| locks.mutex("k")).await;
    assert_eq!(shared, [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]);
}
