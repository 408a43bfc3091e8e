//! Under a clock of tokio's that stands still, as tests of services have it: memory answers in the caller's own thread.

use tenure::Locks;

use crate::help::ms;

/// What was dropped is free when the drop returns, so patience that ends at once suffices.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_dropped_is_taken_at_once() {
    let locks = Locks::memory();
    for round in 0..40 {
        drop(locks.mutex("a").lock().await.unwrap());
        let guard = locks.mutex("a").lock_timeout(ms(100)).await;
        assert!(guard.is_ok(), "round {round}: {guard:?}");
    }
}

/// Nor does it take any patience at all, or leave anything behind.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_dropped_is_free() {
    let locks = Locks::memory();
    for round in 0..40 {
        drop(locks.mutex("a").lock().await.unwrap());
        // At once in each other round. In between what is left of it: the driver's thread may be about to give it back.
        if round % 2 == 0 {
            locks.idle().await;
            assert_eq!(locks.keys(), 0, "round {round}");
        }
        let guard = locks.mutex("a").try_lock().await.unwrap();
        assert!(guard.is_some(), "round {round}");
    }
}
