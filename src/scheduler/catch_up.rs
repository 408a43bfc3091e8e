//! Runs all ticks of a job one after the other. No tick is passed over, whichever nodes live.
//!
//! The store grants a tick only after the tick that its claim names has ended. So two nodes cannot disagree on the
//! order. The nodes know the schedule and choose the next tick: each goes from the latest tick that the store knows
//! to the newest tick that the node saw. It stands by while other nodes run ticks.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::driver::waiter::lock;
use crate::observe;
use crate::protocol::message::{TickTime, WhenBehind};
use crate::scheduler::policy::{Misfire, TickOutcome};
use crate::scheduler::schedule::{Schedule, age, time};
use crate::scheduler::tick_runner::{TickAttempt, TickRunner};
use crate::scheduler::work::Work;

/// Returns the tick after `after`, and up to `to`, that runs next: the oldest one that was scheduled and is within the
/// limits of age and number. Also returns whether older ticks are passed over.
fn next_tick(
    schedule: &Schedule,
    misfire: Option<Misfire>,
    now: SystemTime,
    was_scheduled: impl Fn(TickTime) -> bool,
    (after, to): (TickTime, TickTime),
) -> (TickTime, bool) {
    let (within, at_most) = match misfire {
        Some(Misfire::RunAll { within, at_most }) => (within, at_most),
        _ => (Duration::MAX, 1),
    };
    let (mut first, mut count) = (to, 1);
    let earlier =
        |tick| tick_before(schedule, tick).filter(|before| *before > after && was_scheduled(*before));
    while let Some(before) = earlier(first) {
        if count >= at_most || age(before, now) > within {
            return (first, true);
        }
        (first, count) = (before, count + 1);
    }
    (first, false)
}

fn tick_before(schedule: &Schedule, tick: TickTime) -> Option<TickTime> {
    let earlier = TickTime(tick.0.checked_sub(1_000)?);
    schedule.latest(time(earlier)).ok()
}

/// Returns whether this node runs no further tick.
fn is_end(outcome: TickOutcome) -> bool {
    matches!(outcome, TickOutcome::Drained | TickOutcome::Removed)
}

impl TickRunner {
    /// Returns whether the store refused this tick because the job is paused.
    pub(super) fn is_paused(&self, tick: TickTime) -> bool {
        lock(&self.paused).contains(&tick)
    }

    /// Runs every tick up to this one, unless another task of this node does so. Returns the outcome of the last
    /// tick.
    pub(super) async fn run_all(&self, mark: TickTime, is_catch_up: bool, work: &impl Work) -> TickOutcome {
        self.note_newest(mark);
        let (mut reached, mut outcome) = (TickTime(0), TickOutcome::Elsewhere);
        // A tick that comes during a walk is left to the walk, which checks again when it ends.
        while *self.newest.borrow() > reached {
            let Ok(_walking) = self.run_all_lock.try_lock() else {
                return outcome;
            };
            reached = *self.newest.borrow();
            outcome = self.run_up_to(reached, is_catch_up, work).await;
            let is_passed_over = matches!(outcome, TickOutcome::Skipped | TickOutcome::Paused);
            if is_passed_over && mark < reached && !self.is_paused(reached) {
                // The newest tick came in a pause that is over. An earlier one may be open.
                outcome = self.run_up_to(mark, is_catch_up, work).await;
            }
            if is_end(outcome) {
                return outcome;
            }
        }
        outcome
    }

    /// Returns the outcome of the last tick, or why this node runs no further tick.
    async fn run_up_to(&self, to: TickTime, is_catch_up: bool, work: &impl Work) -> TickOutcome {
        let (mut tick, mut blocked_by) = (to, None);
        let first = tick_before(&self.schedule, to);
        let mut after = first.unwrap_or(TickTime(0));
        loop {
            let tick_attempt = TickAttempt::new(WhenBehind::After(after), is_catch_up || tick < to);
            match self.run_if_won(tick, tick_attempt, work).await {
                Ok(outcome) if is_end(outcome) || tick >= to => return outcome,
                Ok(TickOutcome::Paused) if self.is_paused(tick) => return TickOutcome::Paused,
                Ok(_) => after = tick,
                Err(behind) => {
                    if blocked_by.replace(behind) == Some(behind)
                        && let Some(why) = self.wait_before_earlier_tick(behind.latest).await
                    {
                        return why;
                    }
                    if behind.is_open {
                        // A live node runs it, or the nodes that began it are gone.
                        tick = behind.latest;
                        continue;
                    }
                    after = behind.latest;
                }
            }
            if self.since_ms.load(Ordering::Relaxed) == 0 {
                // Only the store knows since when this expression is in use. If it does not answer, it grants no tick.
                self.fetch_report().await;
            }
            let passes_over;
            (tick, passes_over) = next_tick(
                &self.schedule,
                self.settings.misfire,
                self.store_or_local_time(),
                |tick| self.was_scheduled(tick),
                (after, to),
            );
            if passes_over {
                observe::ticks_passed_over(self.label(), &self.name, after, tick);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::locks::Locks;
    use crate::scheduler::policy::JobSettings;
    use crate::scheduler::tick::Tick;

    #[tokio::test]
    async fn a_tick_that_comes_during_a_walk_does_not_end_it() {
        let locks = Locks::memory();
        let settings = JobSettings {
            misfire: all(Duration::MAX, 9),
            ..JobSettings::default()
        };
        let schedule = Schedule::every(Duration::from_secs(1)).unwrap();
        let (runner, _registration) =
            TickRunner::new(locks.handle().clone(), "job".into(), schedule, settings).unwrap();
        let is_done = CancellationToken::new();
        let done = is_done.clone();
        let work = move |_: Tick| done.clone().cancelled_owned();
        let mark = TickTime(1_000);
        let mut walk = pin!(runner.run_all(mark, false, &work));
        assert!(poll_fn(|cx| Poll::Ready(walk.as_mut().poll(cx).is_pending())).await);
        for _ in 0..2 {
            assert_eq!(runner.run_all(mark, false, &work).await, TickOutcome::Elsewhere);
            assert!(runner.run_all_lock.try_lock().is_err());
        }
        is_done.cancel();
        assert_eq!(walk.await, TickOutcome::Done);
        assert!(runner.run_all_lock.try_lock().is_ok());
    }

    fn all(within: Duration, at_most: u32) -> Option<Misfire> {
        Some(Misfire::RunAll { within, at_most })
    }

    #[test]
    fn the_next_tick_is_the_oldest_within_the_limits_of_age_and_number() {
        let minutes = Schedule::every(Duration::from_secs(60)).unwrap();
        #[allow(clippy::disallowed_methods, reason = "the test works at any time")]
        let now = SystemTime::now();
        let newest = minutes.latest(now).unwrap();
        let ago = |minutes: u64| TickTime(newest.0 - 60_000 * minutes);
        let (day, hour) = (Duration::from_secs(86_400), Duration::from_secs(3_600));
        let next_tick = |misfire, after| next_tick(&minutes, misfire, now, |_| true, (after, newest));
        assert_eq!(next_tick(all(day, 100), ago(1)), (newest, false));
        assert_eq!(next_tick(all(day, 100), ago(10)), (ago(9), false));
        assert_eq!(next_tick(all(day, 3), ago(10)), (ago(2), true));
        assert_eq!(next_tick(all(day, 0), ago(10)), (newest, true));
        let (first, passes_over) = next_tick(all(hour, 1_000), ago(600));
        assert!((ago(60)..=ago(59)).contains(&first) && passes_over, "{first:?}");
        // Ticks from before the expression was known are not passed over: they were never scheduled.
        let since = |tick| tick >= ago(3);
        let first = super::next_tick(&minutes, all(day, 100), now, since, (ago(10), newest));
        assert_eq!(first, (ago(3), false));
        // A mark from another schedule lies between two ticks.
        assert_eq!(next_tick(all(day, 100), TickTime(ago(2).0 + 1)), (ago(1), false));
        assert_eq!(next_tick(all(Duration::ZERO, 9), ago(2)), (newest, true));
    }
}
