//! Calls of foreign code: a subscriber, a recorder or a waker.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs foreign code, and catches its panic.
pub(crate) fn catch_foreign_panic(foreign: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(foreign)) else {
        return;
    };
    // The payload of the panic is foreign, too: its drop may panic again.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}
