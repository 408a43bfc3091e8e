//! The clock that leases are judged by.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::protocol::time::Instant;

/// `CLOCK_BOOTTIME` counts the time in which the machine was suspended; Rust's `Instant` stands still in it
/// (rust-lang/rust#87906), and a laptop that slept for a minute would believe in its lease beside the next holder.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
const CLOCK: ClockId = ClockId::Boottime;
/// The nearest that there is elsewhere. On macOS and the BSDs it may stand still in suspend: fence your writes.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "fuchsia")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Tells the time of a node. Clones tell the same time.
#[derive(Debug, Clone, Default)]
#[allow(
    unreachable_pub,
    reason = "tests of ours are given it by the feature `testing`"
)]
pub struct Clock {
    /// Added to the machine's clock, so that a test can let a machine sleep.
    ahead: Arc<AtomicU64>,
}

#[allow(unreachable_pub, reason = "as above")]
impl Clock {
    /// The machine's own clock.
    pub fn new() -> Self {
        Clock::default()
    }

    /// Now.
    pub fn now(&self) -> Instant {
        let time = clock_gettime(CLOCK);
        let nanos = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        Instant::from_nanos(nanos + self.ahead.load(Ordering::Relaxed))
    }

    /// What waking up from a suspend of that length looks like. Timers do not move.
    #[cfg(any(test, feature = "testing"))]
    pub fn jump(&self, span: std::time::Duration) {
        self.ahead.fetch_add(span.as_nanos() as u64, Ordering::Relaxed);
    }
}
