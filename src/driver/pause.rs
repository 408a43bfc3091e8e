//! Detects that this process stood still: it was stopped or suspended, or got no processor for a while.
//!
//! The driver notes until when it will wake again. If that time is long over, nothing ran. The thread that notices
//! first reports the pause, before the effects of the pause. These effects name no other cause.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::driver::node::Node;
use crate::driver::pulse::{BEAT_INTERVAL, Pause};
use crate::driver::waiter::lock;
use crate::observe;
use crate::protocol::time::Instant;

impl Node {
    /// Notes that the driver is awake, and reports a pause that ended just now.
    pub(crate) fn note_awake(&self, now: Instant) {
        self.look_for_pause(now);
        self.pulse.expect_awake(Some(now + BEAT_INTERVAL));
    }

    /// Notes that the driver goes to sleep, for `pause` at most. Returns after which time it must wake.
    pub(crate) fn note_asleep(&self, now: Instant, pause: Option<Duration>) -> Option<Duration> {
        let is_watched = || self.pulse.has_jobs.load(Ordering::Relaxed) || self.next_key_due().is_some();
        let beats =
            pause.is_none_or(|pause| pause > BEAT_INTERVAL) && !self.clock.is_simulated() && is_watched();
        let pause = if beats { Some(BEAT_INTERVAL) } else { pause };
        self.pulse.expect_awake(pause.map(|pause| now + pause));
        pause
    }

    /// Notes that the node has jobs, whose ticks must not blame other causes for a pause.
    #[cfg(feature = "scheduler")]
    pub(crate) fn note_jobs(&self) {
        self.pulse.has_jobs.store(true, Ordering::Relaxed);
        self.alarm.ring();
    }

    /// Reports a pause once, before its effects.
    fn look_for_pause(&self, now: Instant) {
        if self.pulse.overdue(now).is_none() || self.is_forked() {
            return;
        }
        let mut latest = lock(&self.pulse.latest);
        // Another thread may have reported the pause meanwhile.
        let Some(by) = self.pulse.overdue(now) else { return };
        let lasted = now.since(by);
        self.events.push(observe::process_paused(lasted));
        *latest = Some(Pause {
            from: Instant::from_nanos(by.as_nanos().saturating_sub(BEAT_INTERVAL.as_nanos() as u64)),
            to: now,
            lasted,
        });
        self.pulse.expect_awake(Some(now + BEAT_INTERVAL));
    }

    /// Returns the length of a pause that ended just now.
    pub(crate) fn pause_until_now(&self) -> Option<Duration> {
        let now = self.clock.now();
        self.look_for_pause(now);
        self.pulse.pause_at(now)
    }

    /// Returns whether this process stood still at the time `ago` before now, or `slack` after that time.
    #[cfg(feature = "scheduler")]
    pub(crate) fn was_paused(&self, ago: Duration, slack: Duration) -> bool {
        let now = self.clock.now();
        self.look_for_pause(now);
        [ago, ago.saturating_sub(slack)].into_iter().any(|ago| {
            let at = now.as_nanos().saturating_sub(ago.as_nanos() as u64);
            self.pulse.pause_at(Instant::from_nanos(at)).is_some()
        })
    }

    /// Returns for how long this process has run since `since`, counted from the end of the latest pause.
    #[cfg(feature = "scheduler")]
    pub(crate) fn ran_since(&self, since: Instant) -> Duration {
        let now = self.clock.now();
        self.look_for_pause(now);
        let latest = *lock(&self.pulse.latest);
        now.since(latest.map_or(since, |pause| since.max(pause.to)))
    }
}
