//! Locks under a paused tokio clock, as in tests of services: the memory store answers on the caller's thread.

use tenure::Locks;

use crate::help::ms;

/// A dropped lock is free when the drop returns, so a timeout of any length suffices.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_dropped_is_taken_at_once() {
    let locks = Locks::memory();
    for round in 0..40 {
        drop(locks.mutex("a").lock().await.unwrap());
        let guard = locks.mutex("a").lock_timeout(ms(100)).await;
        assert!(guard.is_ok(), "round {round}: {guard:?}");
    }
}

/// A dropped lock is free for a try, and leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_dropped_is_free() {
    let locks = Locks::memory();
    for round in 0..40 {
        drop(locks.mutex("a").lock().await.unwrap());
        // Even rounds lock at once after `idle`. In odd rounds the driver's thread may still be releasing.
        if round % 2 == 0 {
            locks.idle().await;
            assert_eq!(locks.key_count(), 0, "round {round}");
        }
        let guard = locks.mutex("a").try_lock().await.unwrap();
        assert!(guard.is_some(), "round {round}");
    }
}
