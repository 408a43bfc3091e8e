//! Leases that go from one process to another, on the memory store.

use tenure::{Error, Locks, MemoryStore};

use crate::help::{ms, soon, two};

async fn nodes() -> (Locks, Locks, MemoryStore) {
    let store = MemoryStore::new();
    let (one, other) = two(&store);
    (one, other, store)
}

fn is_empty(store: MemoryStore) {
    assert!(store.is_empty(), "{store:?}");
}

crate::laws_of_transfers!(nodes, is_empty);

#[tokio::test]
async fn one_of_another_prefix_is_refused() {
    let locks = Locks::memory();
    let others = Locks::builder().prefix("other:").memory().unwrap();
    let guard = soon(others.mutex("order").lock()).await.unwrap();
    let transfer = guard.into_transfer(ms(60_000)).await.unwrap();
    let refused = [
        locks.adopt(&transfer).await.map(drop),
        transfer.extend(&locks, ms(60_000)).await,
        transfer.release(&locks).await,
    ];
    for answer in refused {
        let Err(Error::Options(why)) = answer else {
            panic!("{answer:?}")
        };
        let why = why.to_string();
        assert!(why.contains("`other:`") && why.contains("`lock:`"), "{why}");
    }
    transfer.release(&others).await.unwrap();
}
