//! Elections, on the memory store.

use tenure::{Locks, MemoryStore};

use crate::help::ms;

async fn nodes() -> (Locks, Locks, MemoryStore) {
    let store = MemoryStore::new();
    let make = |name| {
        let builder = Locks::builder().lease(ms(2_000)).node_name(name);
        builder.memory_shared(&store).unwrap()
    };
    (make("one"), make("other"), store)
}

/// The store forgets ended elections once there are many.
async fn is_empty(store: MemoryStore) {
    drop(store);
}

crate::laws_of_elections!(nodes, is_empty);
