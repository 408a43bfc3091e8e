//! Read-write locks, on the memory store.

use tenure::protocol::message::Name;
use tenure::{Key, Locks, MemoryStore};

use crate::help::two;

pub async fn nodes() -> (Locks, Locks, MemoryStore) {
    let store = MemoryStore::new();
    let (one, other) = two(&store);
    (one, other, store)
}

pub fn is_empty(store: MemoryStore) {
    assert!(store.is_empty(), "{store:?}");
}

fn queued(store: &MemoryStore, key: &str) -> usize {
    let name = Name::lock(Key::from(key));
    store.with_ledger(|ledger, _| ledger.waiters(&name).len())
}

crate::laws_of_read_write_locks!(nodes, is_empty, queued);
