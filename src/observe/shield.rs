//! Where foreign code runs.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs what is foreign, a subscriber, a recorder or a waker, where its panic may not end us.
pub(crate) fn shielded(foreign: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(foreign)) else {
        return;
    };
    // What it panicked with is foreign, too.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}
