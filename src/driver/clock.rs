//! The clocks of a node: the one that leases are judged by, and the one that jobs are due by.

use std::fmt::Debug;
#[cfg(feature = "scheduler")]
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "scheduler")]
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

#[cfg(all(feature = "scheduler", feature = "testing"))]
use crate::driver::process::Process;
use crate::protocol::time::Instant;
#[cfg(feature = "scheduler")]
use crate::store::BoxFuture;

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
    /// Whose clock it is, if that is simulated.
    #[cfg(all(feature = "scheduler", feature = "testing"))]
    process: Option<Arc<Process>>,
}

#[allow(unreachable_pub, reason = "as above")]
impl Clock {
    /// The machine's own clock.
    pub fn new() -> Self {
        Clock::default()
    }

    /// Now.
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

    /// It is that of a process that is simulated.
    pub(crate) fn is_simulated(&self) -> bool {
        #[cfg(all(feature = "scheduler", feature = "testing"))]
        return self.process.is_some();
        #[cfg(not(all(feature = "scheduler", feature = "testing")))]
        false
    }

    /// What waking up from a suspend of that length looks like. Timers do not move.
    #[cfg(any(test, feature = "testing"))]
    pub fn jump(&self, span: std::time::Duration) {
        self.ahead.fetch_add(span.as_nanos() as u64, Ordering::Relaxed);
    }
}

#[cfg(feature = "scheduler")]
impl Clock {
    /// What the wall clock shows, which may step. Jobs are due by it; what becomes of a tick is judged by the store's clock,
    /// and leases by another.
    #[allow(clippy::disallowed_methods, reason = "this is where jobs get it from")]
    pub(crate) fn wall(&self) -> SystemTime {
        #[cfg(feature = "testing")]
        if let Some(process) = &self.process {
            return process.wall();
        }
        SystemTime::now()
    }

    /// Sleeps until the wall clock should show that it is time: for `longest` at most, as it may be set meanwhile.
    pub(crate) async fn nap(&self, pause: Duration, longest: Duration) {
        #[cfg(feature = "testing")]
        if let Some(process) = &self.process {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = process.clock_set() => {}
            }
            return;
        }
        tokio::time::sleep(pause.min(longest)).await;
    }

    /// Whether the store may answer otherwise than it did; only a simulation knows.
    pub(crate) fn news(&self) -> News {
        News {
            #[cfg(feature = "testing")]
            told: self.process.as_ref().map(|process| process.news()),
        }
    }

    /// A task of this node's process, which stops and ends with it, where that is simulated.
    pub(crate) fn task(&self, of: impl Future<Output = ()> + Send + 'static) -> BoxFuture<'static, ()> {
        #[cfg(feature = "testing")]
        if let Some(process) = &self.process {
            return Box::pin(process.task(of));
        }
        Box::pin(of)
    }
}

/// See [`Clock::news`].
#[cfg(feature = "scheduler")]
pub(crate) struct News {
    #[cfg(feature = "testing")]
    told: Option<tokio::sync::watch::Receiver<()>>,
}

#[cfg(feature = "scheduler")]
impl News {
    /// What happened up to now is known.
    pub(crate) fn heard(&mut self) {
        #[cfg(feature = "testing")]
        self.told.iter_mut().for_each(|told| told.mark_unchanged());
    }

    /// Resolves when something has happened since then.
    #[allow(clippy::unused_async, reason = "it waits in a simulation")]
    pub(crate) async fn come(&mut self) {
        #[cfg(feature = "testing")]
        if let Some(told) = &mut self.told {
            let _ = told.changed().await;
        }
    }
}

#[cfg(all(feature = "scheduler", feature = "testing"))]
impl Clock {
    /// The clocks of a process that is simulated.
    pub(crate) fn of(process: Arc<Process>) -> Clock {
        Clock {
            process: Some(process),
            ..Clock::default()
        }
    }

    pub(crate) fn process(&self) -> Option<&Arc<Process>> {
        self.process.as_ref()
    }
}
