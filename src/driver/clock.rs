//! The clocks of a node: the clock that judges leases, and the clock that starts jobs.

use std::fmt::Debug;
#[cfg(feature = "scheduler")]
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "scheduler")]
use std::time::Duration;
use std::time::SystemTime;

use rustix::time::{ClockId, clock_gettime};

#[cfg(all(feature = "scheduler", feature = "testing"))]
use crate::driver::process::Process;
use crate::protocol::time::Instant;
#[cfg(feature = "scheduler")]
use crate::store::BoxFuture;

/// `CLOCK_BOOTTIME` counts the time in which the machine was suspended. Rust's `Instant` stands still in that time
/// (rust-lang/rust#87906): after a minute of sleep, a laptop would believe in its lease beside the next holder.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "fuchsia"))]
const CLOCK: ClockId = ClockId::Boottime;
/// The nearest clock on other systems. On macOS and the BSDs it may stand still in suspend: fence your writes.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "fuchsia")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The clock of a node. Clones show the same time.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # #[cfg(feature = "testing")] {
/// use std::time::Duration;
/// use tenure::{Locks, testing::Clock};
///
/// let clock = Clock::new();
/// let locks = Locks::builder().clock(clock.clone()).memory()?;
/// let guard = locks.mutex("import").fixed(Duration::from_secs(60)).lock().await?;
/// clock.jump(Duration::from_secs(50));
/// assert!(guard.is_held() && guard.remaining() <= Duration::from_secs(10));
/// clock.jump(Duration::from_secs(10));
/// assert!(!guard.is_held());
/// # }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
#[allow(
    unreachable_pub,
    reason = "the tests of this crate get it through the feature `testing`"
)]
pub struct Clock {
    /// Is added to the machine's clock, so that a test can simulate a suspend.
    ahead: Arc<AtomicU64>,
    /// The process that owns the clock, in a simulation.
    #[cfg(all(feature = "scheduler", feature = "testing"))]
    process: Option<Arc<Process>>,
}

#[allow(unreachable_pub, reason = "as above")]
impl Clock {
    /// Returns the machine's own clock.
    pub fn new() -> Self {
        Clock::default()
    }

    /// Returns the current time.
    #[allow(clippy::disallowed_methods, reason = "this is where leases get it from")]
    pub fn now(&self) -> Instant {
        #[cfg(all(feature = "scheduler", feature = "testing"))]
        if let Some(process) = &self.process {
            return process.now();
        }
        let time = clock_gettime(CLOCK);
        let nanos = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        Instant::from_nanos(nanos + self.ahead.load(Ordering::Relaxed))
    }

    /// Returns whether the clock belongs to a simulated process.
    pub(crate) fn is_simulated(&self) -> bool {
        #[cfg(all(feature = "scheduler", feature = "testing"))]
        return self.process.is_some();
        #[cfg(not(all(feature = "scheduler", feature = "testing")))]
        false
    }

    /// Simulates that the machine wakes from a suspend of length `span`. Timers do not move.
    #[cfg(any(test, feature = "testing"))]
    pub fn jump(&self, span: std::time::Duration) {
        self.ahead.fetch_add(span.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock {
    /// Returns the time of the wall clock, which may step. Jobs are started by it, and operators read it. The store's clock decides what
    /// becomes of a tick; a monotonic clock judges leases.
    #[allow(clippy::disallowed_methods, reason = "this is where the others get it from")]
    pub(crate) fn wall(&self) -> SystemTime {
        #[cfg(all(feature = "scheduler", feature = "testing"))]
        if let Some(process) = &self.process {
            return process.wall();
        }
        SystemTime::now()
    }
}

#[cfg(feature = "scheduler")]
impl Clock {
    /// Sleeps for `pause`, until the wall clock is expected to show the right time, but for at most `max_sleep`: the
    /// clock may be set meanwhile.
    pub(crate) async fn sleep(&self, pause: Duration, max_sleep: Duration) {
        #[cfg(feature = "testing")]
        if let Some(process) = &self.process {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = process.clock_set() => {}
            }
            return;
        }
        tokio::time::sleep(pause.min(max_sleep)).await;
    }

    /// Returns a watch on changes of the store's answers. Only a simulation knows of such changes.
    pub(crate) fn news(&self) -> StoreNews {
        StoreNews {
            #[cfg(feature = "testing")]
            changes: self.process.as_ref().map(|process| process.news()),
        }
    }

    /// Returns a task of this node's process. In a simulation, the task stops and ends with the process.
    pub(crate) fn task(&self, future: impl Future<Output = ()> + Send + 'static) -> BoxFuture<'static, ()> {
        #[cfg(feature = "testing")]
        if let Some(process) = &self.process {
            return Box::pin(process.task(future));
        }
        Box::pin(future)
    }
}

/// A watch on changes of the store's answers; see [`Clock::news`].
#[cfg(feature = "scheduler")]
pub(crate) struct StoreNews {
    #[cfg(feature = "testing")]
    changes: Option<tokio::sync::watch::Receiver<()>>,
}

#[cfg(feature = "scheduler")]
impl StoreNews {
    /// Marks all changes up to now as seen.
    pub(crate) fn mark_seen(&mut self) {
        #[cfg(feature = "testing")]
        self.changes
            .iter_mut()
            .for_each(|changes| changes.mark_unchanged());
    }

    /// Resolves when something has changed since [`mark_seen`](Self::mark_seen).
    #[allow(clippy::unused_async, reason = "it waits in a simulation")]
    pub(crate) async fn changed(&mut self) {
        #[cfg(feature = "testing")]
        if let Some(changes) = &mut self.changes {
            let _ = changes.changed().await;
        }
    }
}

#[cfg(all(feature = "scheduler", feature = "testing"))]
impl Clock {
    /// Returns the clock of a simulated process.
    pub(crate) fn of_process(process: Arc<Process>) -> Clock {
        Clock {
            process: Some(process),
            ..Clock::default()
        }
    }

    pub(crate) fn process(&self) -> Option<&Arc<Process>> {
        self.process.as_ref()
    }
}
