//! Semaphores, on the memory store.

use tenure::{Locks, MemoryStore};

use crate::help::two;

async fn nodes() -> (Locks, Locks, MemoryStore) {
    let store = MemoryStore::new();
    let (one, other) = two(&store);
    (one, other, store)
}

fn is_empty(store: MemoryStore) {
    assert!(store.is_empty(), "{store:?}");
}

crate::laws_of_semaphores!(nodes, is_empty);
