//! What a server knows of its recoveries.

use std::sync::Arc;

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::RecoveryCause;

/// The latest recovery of a server, and the reign that it has recovered in.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecoveryState {
    /// The last millisecond of the recovery.
    until: u64,
    /// Why the recovery began.
    pub(crate) cause: RecoveryCause,
    /// The run that was compared last.
    pub(crate) run: Option<Arc<str>>,
    /// The Sentinels' epoch that was compared last.
    pub(crate) epoch: Option<u64>,
}

impl RecoveryState {
    /// Returns how many milliseconds of a recovery are left at `now`. As a key of Redis, a recovery still lasts in the
    /// millisecond in which it ends.
    pub(crate) fn left(&self, now: u64) -> Option<u64> {
        (now <= self.until && self.until > 0).then(|| self.until - now)
    }

    /// Begins a recovery of `ms` milliseconds at `now`, unless a longer one is under way.
    pub(crate) fn begin(&mut self, now: u64, ms: u64, cause: RecoveryCause, plant: Plant) {
        let ms = if plant.is(Flaw::RecoveryTooShort) {
            ms / 8
        } else {
            ms
        };
        if now + ms > self.until {
            (self.until, self.cause) = (now + ms, cause);
        }
    }

    /// Ends a recovery.
    pub(crate) fn end(&mut self) {
        self.until = 0;
    }
}
