//! What our own tests are made of. No part of the crate's promises: it changes without notice.

use crate::error::{StoreError, StoreErrorKind};

/// Waits until everything that happened in the background so far was told to subscriber and recorder.
pub fn flush_events() {
    crate::driver::events::flush();
}

/// What a batch without an answer ends with.
pub fn timed_out() -> StoreError {
    StoreError::new(StoreErrorKind::TimedOut, "no answer in time")
}
