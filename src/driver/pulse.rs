//! When the driver will be awake again, and when this process last stood still.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::driver::waiter::lock;
use crate::protocol::time::Instant;

/// In a process that runs no timer fires later than this.
const LATE: Duration = Duration::from_secs(2);
/// The driver wakes this often while a key has a timer or the node has jobs: so exact is the length of a pause.
pub(super) const BEAT: Duration = Duration::from_millis(500);
/// What fails so soon after a pause failed in it.
const AFTERMATH: Duration = Duration::from_secs(1);

/// When the driver will be awake again, and the latest pause.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// In nanoseconds; the largest number while nothing is planned.
    awake_by: AtomicU64,
    /// The node has jobs.
    pub(super) has_jobs: AtomicBool,
    pub(super) latest: Mutex<Option<Pause>>,
}

/// A span of time in which this process stood still.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pause {
    /// It began at this moment or later.
    pub(super) from: Instant,
    pub(super) to: Instant,
    /// It lasted for so long at least.
    pub(super) lasted: Duration,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse {
            awake_by: AtomicU64::new(u64::MAX),
            has_jobs: AtomicBool::new(false),
            latest: Mutex::default(),
        }
    }
}

impl Pulse {
    /// The driver will be awake again at that moment.
    pub(super) fn expect_awake(&self, by: Option<Instant>) {
        let by = by.map_or(u64::MAX, Instant::as_nanos);
        self.awake_by.store(by, Ordering::SeqCst);
    }

    /// Since when the driver should be awake, if that is too long ago for a process that runs.
    pub(super) fn overdue(&self, now: Instant) -> Option<Instant> {
        let by = Instant::from_nanos(self.awake_by.load(Ordering::SeqCst));
        (now.since(by) > LATE).then_some(by)
    }

    /// The length of the pause in which something happened at `at`, or just after which.
    pub(super) fn pause_at(&self, at: Instant) -> Option<Duration> {
        let pause = (*lock(&self.latest))?;
        (pause.from <= at && at <= pause.to + AFTERMATH).then_some(pause.lasted)
    }
}
