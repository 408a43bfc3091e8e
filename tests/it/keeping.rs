//! Leases that stay with their process after the last release, in memory.

use std::time::Duration;

use tenure::Locks;
use tenure::MemoryStore;
use tenure::protocol::message::Name;

use crate::help::soon;

async fn cycle(locks: &Locks, key: &str) {
    soon(soon(locks.mutex(key).lock()).await.unwrap().release())
        .await
        .unwrap();
}

/// Returns whether the store has a record for the key.
fn is_owned(store: &MemoryStore, key: &str) -> bool {
    store.with_ledger(|ledger, now| ledger.record(&Name::lock(key.into()), now).is_some())
}

#[tokio::test]
async fn a_kept_lease_goes_to_the_next_caller_or_to_another_node() {
    let store = MemoryStore::new();
    let keeps = || {
        Locks::builder()
            .keep(Duration::MAX)
            .memory_shared(&store)
            .unwrap()
    };
    let (one, other) = (keeps(), keeps());
    for _ in 0..600 {
        cycle(&one, "a").await;
        assert!(is_owned(&store, "a"));
    }
    cycle(&other, "a").await;
    assert!(!is_owned(&store, "a"));
    cycle(&one, "a").await;
    assert!(is_owned(&store, "a"));
    assert!(soon(other.mutex("a").try_lock()).await.unwrap().is_none());
    drop(
        soon(other.mutex("a").try_lock())
            .await
            .unwrap()
            .expect("it was recalled"),
    );
    cycle(&one, "a").await;
    soon(one.idle()).await;
    assert!(!is_owned(&store, "a"));
}
