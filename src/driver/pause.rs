//! Notices that this process stood still: it was stopped or suspended, or got no processor for a while.
//!
//! The driver notes until when it will be awake again. A moment that is long over says that nothing ran. That is told
//! before what follows from it, whichever thread notices first, and what follows from it names no other cause.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::driver::node::Node;
use crate::driver::pulse::{BEAT, Pause};
use crate::driver::waiter::lock;
use crate::observe;
use crate::protocol::time::Instant;

impl Node {
    /// The driver is awake: notes a pause that ended just now.
    pub(crate) fn note_awake(&self, now: Instant) {
        self.look_for_pause(now);
        self.pulse.expect_awake(Some(now + BEAT));
    }

    /// The driver goes to sleep now, for `pause` at most. Returns after how long it wakes.
    pub(crate) fn note_asleep(&self, now: Instant, pause: Option<Duration>) -> Option<Duration> {
        let is_watched = || self.pulse.has_jobs.load(Ordering::Relaxed) || self.next_key_due().is_some();
        let beats = pause.is_none_or(|pause| pause > BEAT) && !self.clock.is_simulated() && is_watched();
        let pause = if beats { Some(BEAT) } else { pause };
        self.pulse.expect_awake(pause.map(|pause| now + pause));
        pause
    }

    /// The node has jobs, which would blame others for a pause.
    #[cfg(feature = "scheduler")]
    pub(crate) fn has_jobs(&self) {
        self.pulse.has_jobs.store(true, Ordering::Relaxed);
        self.alarm.ring();
    }

    /// Tells of a pause once, before anything that follows from it.
    fn look_for_pause(&self, now: Instant) {
        if self.pulse.overdue(now).is_none() || self.is_forked() {
            return;
        }
        let mut latest = lock(&self.pulse.latest);
        // Another thread may have told it meanwhile.
        let Some(by) = self.pulse.overdue(now) else { return };
        let lasted = now.since(by);
        self.events.push(observe::process_paused(lasted));
        *latest = Some(Pause {
            from: Instant::from_nanos(by.as_nanos().saturating_sub(BEAT.as_nanos() as u64)),
            to: now,
            lasted,
        });
        self.pulse.expect_awake(Some(now + BEAT));
    }

    /// The length of the pause that ended just now.
    pub(crate) fn pause_until_now(&self) -> Option<Duration> {
        let now = self.clock.now();
        self.look_for_pause(now);
        self.pulse.pause_at(now)
    }

    /// Whether this process stood still so long ago, or `slack` later.
    #[cfg(feature = "scheduler")]
    pub(crate) fn was_paused(&self, ago: Duration, slack: Duration) -> bool {
        let now = self.clock.now();
        self.look_for_pause(now);
        [ago, ago.saturating_sub(slack)].into_iter().any(|ago| {
            let at = now.as_nanos().saturating_sub(ago.as_nanos() as u64);
            self.pulse.pause_at(Instant::from_nanos(at)).is_some()
        })
    }

    /// For how long this process has run since then, counted from the end of the latest pause.
    #[cfg(feature = "scheduler")]
    pub(crate) fn ran_since(&self, since: Instant) -> Duration {
        let now = self.clock.now();
        self.look_for_pause(now);
        let latest = *lock(&self.pulse.latest);
        now.since(latest.map_or(since, |pause| since.max(pause.to)))
    }
}
