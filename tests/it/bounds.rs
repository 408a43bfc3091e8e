//! The bounds of public types and futures: `Send`, `Sync`, `'static`, and their sizes.

use std::time::Duration;

use tenure::error::{LostCause, OptionsError, StoreError, StoreRefusal};
use tenure::protocol::message::ClaimId;
use tenure::{
    Acquire, Builder, Election, Error, Fence, Guard, Key, Latch, Lease, Locks, MemoryStore, MultiGuard,
    MultiLease, MultiLock, Mutex, NodeId, RwLock, Semaphore, Transfer, TransferError,
};

fn shared<T: Send + Sync + Unpin + 'static>() {}
fn cheap<T: Clone>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}
fn sent<T: Send>(value: T) -> T {
    value
}
fn owned<T: Send + 'static>(value: T) -> T {
    value
}

#[test]
fn types_are_send_and_sync() {
    shared::<Locks>();
    shared::<Builder>();
    shared::<Mutex>();
    shared::<RwLock>();
    shared::<Semaphore>();
    shared::<Latch>();
    shared::<Election>();
    shared::<MultiLock>();
    shared::<MultiGuard>();
    shared::<MultiLease>();
    shared::<Transfer>();
    shared::<Acquire>();
    shared::<Guard>();
    shared::<Lease>();
    shared::<Key>();
    shared::<Fence>();
    shared::<NodeId>();
    shared::<ClaimId>();
    shared::<MemoryStore>();
    shared::<Error>();
    shared::<LostCause>();
    shared::<StoreRefusal>();
    cheap::<Locks>();
    cheap::<Mutex>();
    cheap::<Lease>();
    cheap::<Key>();
    cheap::<Error>();
    error::<Error>();
    error::<TransferError>();
    error::<StoreError>();
    error::<OptionsError>();
    #[cfg(feature = "redis")]
    {
        error::<tenure::Error>();
    }
}

#[tokio::test]
async fn futures_are_send_and_static() {
    let locks = Locks::memory();
    let mutex = locks.mutex("a");
    // The future is spawned without a clone, and from a lock that was dropped.
    let guard = tokio::spawn(locks.mutex("a").lock()).await.unwrap().unwrap();
    let lost = owned(guard.lost());
    assert!(sent(mutex.try_lock()).await.unwrap().is_none());
    assert!(sent(mutex.lock_timeout(Duration::ZERO)).await.is_err());
    assert!(sent(guard.run(async { 1 })).await.is_ok());
    owned(guard.release()).await.unwrap();
    assert_eq!(lost.await, LostCause::Released);
    let done = sent(mutex.with(|lease| async move { lease.is_held() })).await;
    assert!(done.unwrap());
    let (rw_lock, semaphore, election) = (locks.rw_lock("a"), locks.semaphore("a", 1), locks.election("a"));
    assert!(
        sent(rw_lock.read_with(async |lease| lease.is_held()))
            .await
            .unwrap()
    );
    assert!(
        sent(rw_lock.write_with(async |lease| lease.is_held()))
            .await
            .unwrap()
    );
    assert!(
        sent(semaphore.acquire_with(async |lease| lease.is_held()))
            .await
            .unwrap()
    );
    let leader = sent(election.try_campaign())
        .await
        .unwrap()
        .expect("no other candidate");
    drop(owned(leader.overdue()));
    drop(leader);
    let latch: Latch = locks.latch("a");
    assert!(sent(latch.try_set_count(1)).await.unwrap());
    sent(locks.ping()).await.unwrap();
    // Memory has no servers.
    let inspection = locks.inspect();
    assert!(sent(inspection.check()).await.unwrap().is_empty());
    assert!(sent(inspection.check_locks()).await.unwrap().is_empty());
    sent(locks.idle()).await;
    sent(locks.shutdown()).await;
    #[cfg(feature = "redis")]
    drop(sent(Locks::connect("redis://127.0.0.1/")));
}

/// Guards and futures are moved often: a task that locks is at least as large as its future.
#[test]
fn futures_are_small() {
    assert!(size_of::<Guard>() <= 16, "{}", size_of::<Guard>());
    assert!(size_of::<Acquire>() <= 256, "{}", size_of::<Acquire>());
    assert!(size_of::<Error>() <= 128, "{}", size_of::<Error>());
}
