//! The pulse of the driver: when it will be awake again, and when this process last stood still.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::driver::waiter::lock;
use crate::protocol::time::Instant;

/// In a process that runs, no timer fires later than this.
const MAX_TIMER_DELAY: Duration = Duration::from_secs(2);
/// How often the driver wakes while a key has a timer or the node has jobs. The length of a pause is this exact.
pub(super) const BEAT_INTERVAL: Duration = Duration::from_millis(500);
/// A failure this soon after a pause counts as a failure in the pause.
const PAUSE_EFFECT_TIME: Duration = Duration::from_secs(1);

/// When the driver will be awake again, and the latest pause.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// When the driver will be awake again, in nanoseconds; `u64::MAX` while nothing is planned.
    awake_by: AtomicU64,
    /// Set when the node has jobs.
    pub(super) has_jobs: AtomicBool,
    pub(super) latest: Mutex<Option<Pause>>,
}

/// A span of time in which this process stood still.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pause {
    /// The earliest time at which the pause can have begun.
    pub(super) from: Instant,
    pub(super) to: Instant,
    /// The pause lasted at least this long.
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
    /// Notes when the driver will be awake again.
    pub(super) fn expect_awake(&self, by: Option<Instant>) {
        let by = by.map_or(u64::MAX, Instant::as_nanos);
        self.awake_by.store(by, Ordering::SeqCst);
    }

    /// Returns the time at which the driver should have been awake, if that is too long ago for a process that runs.
    pub(super) fn overdue(&self, now: Instant) -> Option<Instant> {
        let by = Instant::from_nanos(self.awake_by.load(Ordering::SeqCst));
        (now.since(by) > MAX_TIMER_DELAY).then_some(by)
    }

    /// Returns the length of the pause in which `at` is, or which ended shortly before `at`.
    pub(super) fn pause_at(&self, at: Instant) -> Option<Duration> {
        let pause = (*lock(&self.latest))?;
        (pause.from <= at && at <= pause.to + PAUSE_EFFECT_TIME).then_some(pause.lasted)
    }
}
