//! Latches, on the memory store.

use tenure::{Error, Locks, MemoryStore};

use crate::help::{ms, poll_once, soon, two, until};

async fn nodes() -> (Locks, Locks, MemoryStore) {
    let store = MemoryStore::new();
    let make = || Locks::builder().lease(ms(1_500)).memory_shared(&store).unwrap();
    (make(), make(), store)
}

crate::laws_of_latches!(nodes);

/// As many may wait as for a lock, of one latch and of all.
#[tokio::test]
async fn too_many_who_wait_are_refused() {
    let locks = Locks::builder()
        .waiters_per_key(2)
        .waiters_per_node(3)
        .memory()
        .unwrap();
    for name in ["a", "b"] {
        assert!(locks.latch(name).try_set_count(1).await.unwrap());
    }
    let (a, b) = (locks.latch("a"), locks.latch("b"));
    let mut waiting = [a.wait(), a.wait(), b.wait()].map(Box::pin);
    for waiting in &mut waiting {
        assert!(poll_once(waiting).await.is_none());
    }
    let (of_key, of_node) = (soon(a.wait()).await, soon(b.wait()).await);
    assert!(matches!(of_key, Err(Error::QueueFull { .. })), "{of_key:?}");
    assert!(matches!(of_node, Err(Error::NodeFull { .. })), "{of_node:?}");
    // Who does not wait is not refused.
    assert_eq!(a.count_down().await.unwrap(), 0);
    let [one, other, _] = waiting;
    soon(one).await.unwrap();
    soon(other).await.unwrap();
}

#[tokio::test]
async fn a_node_that_shuts_down_tells_who_waits() {
    let (one, other) = two(&MemoryStore::new());
    assert!(one.latch("a").try_set_count(1).await.unwrap());
    let waiting = tokio::spawn({
        let latch = other.latch("a");
        async move { latch.wait().await }
    });
    until("it waits", || other.waiting() == 1).await;
    soon(other.shutdown()).await;
    let closed = soon(waiting).await.unwrap();
    assert!(matches!(closed, Err(Error::Closed { .. })), "{closed:?}");
    let closed = soon(other.latch("a").count_down()).await;
    assert!(matches!(closed, Err(Error::Closed { .. })), "{closed:?}");
    assert_eq!(one.latch("a").count().await.unwrap(), 1);
}
