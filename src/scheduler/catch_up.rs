//! Runs all ticks of a job, one after the other: none is passed over, whichever nodes live.
//!
//! The store grants a tick only after the one that its claim names has ended, so no two nodes can disagree on the order. What
//! comes next is for the nodes to say, which know the schedule: each walks from the latest tick that the store knows of to the
//! newest that it saw come, and stands by for what others run on the way.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::observe;
use crate::protocol::message::{TickTime, Turn};
use crate::scheduler::gate::{Gate, How};
use crate::scheduler::policy::{Misfire, TickOutcome};
use crate::scheduler::schedule::Schedule;
use crate::scheduler::work::Work;

/// What this node has seen come, and whether it walks towards it.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// In milliseconds.
    newest: AtomicU64,
    is_under_way: AtomicBool,
}

impl Walk {
    fn begin(&self) -> Option<Walking<'_>> {
        let was = self.is_under_way.swap(true, Ordering::SeqCst);
        // Only then: what is made and dropped at once would end the walk that is under way.
        (!was).then(|| Walking(self))
    }

    fn newest(&self) -> TickTime {
        TickTime(self.newest.load(Ordering::SeqCst))
    }
}

/// A walk that ends when this is dropped.
struct Walking<'a>(&'a Walk);

impl Drop for Walking<'_> {
    fn drop(&mut self) {
        self.0.is_under_way.store(false, Ordering::SeqCst);
    }
}

/// The ticks after `after` and up to `to` of which one is to be run next: the oldest that is young enough, and not one of too
/// many. And whether older ones are passed over.
fn next(
    schedule: &Schedule,
    misfire: Option<Misfire>,
    now: SystemTime,
    (after, to): (TickTime, TickTime),
) -> (TickTime, bool) {
    let (within, at_most) = match misfire {
        Some(Misfire::RunAll { within, at_most }) => (within, at_most),
        _ => (Duration::MAX, 1),
    };
    let age = |tick: TickTime| {
        let age = now.duration_since(UNIX_EPOCH + Duration::from_millis(tick.0));
        age.unwrap_or_default()
    };
    let (mut first, mut count) = (to, 1);
    while let Some(before) = before(schedule, first).filter(|before| *before > after) {
        if count >= at_most || age(before) > within {
            return (first, true);
        }
        (first, count) = (before, count + 1);
    }
    (first, false)
}

fn before(schedule: &Schedule, tick: TickTime) -> Option<TickTime> {
    let moment = UNIX_EPOCH + Duration::from_millis(tick.0.checked_sub(1_000)?);
    schedule.latest(moment).ok()
}

/// Nothing is run here any more.
fn is_end(outcome: TickOutcome) -> bool {
    matches!(
        outcome,
        TickOutcome::Drained | TickOutcome::Removed | TickOutcome::Refused
    )
}

/// What a job's ticks are run with.
pub(super) struct Runner<'a, F> {
    pub(super) gate: &'a Gate,
    pub(super) walk: &'a Walk,
    /// Nothing, until the job has fired here: then what comes next is not known, and what somebody began is run all the same.
    pub(super) schedule: &'a OnceLock<Schedule>,
    pub(super) work: &'a F,
}

impl<W: Work> Runner<'_, W> {
    /// Sees to it that every tick up to this one is run, unless that is being done here already. Says what became of the
    /// last.
    pub(super) async fn run_all(&self, mark: TickTime, is_catch_up: bool) -> TickOutcome {
        self.walk.newest.fetch_max(mark.0, Ordering::SeqCst);
        let (mut reached, mut outcome) = (TickTime(0), TickOutcome::Elsewhere);
        // Whoever came while this node walked left its tick to the walk, which looks again when it has ended.
        while self.walk.newest() > reached {
            let Some(_walking) = self.walk.begin() else {
                return outcome;
            };
            reached = self.walk.newest();
            outcome = self.walk_to(reached, is_catch_up).await;
            if is_end(outcome) {
                return outcome;
            }
        }
        outcome
    }

    /// What became of the last tick, or why nothing is run here any more.
    async fn walk_to(&self, to: TickTime, is_catch_up: bool) -> TickOutcome {
        let gate = self.gate;
        let (mut tick, mut named) = (to, None);
        let first = self.schedule.get().and_then(|schedule| before(schedule, to));
        let mut after = first.unwrap_or(TickTime(0));
        loop {
            let how = How::new(Turn::After(after), is_catch_up || tick < to);
            match gate.pursue(tick, how, self.work).await {
                Ok(outcome) if is_end(outcome) || tick >= to => return outcome,
                Ok(_) => after = tick,
                Err(behind) => {
                    if named.replace(behind) == Some(behind)
                        && let Some(why) = gate.pause_behind(behind.latest).await
                    {
                        return why;
                    }
                    if behind.is_open {
                        // It is run by somebody, or by nobody any more.
                        tick = behind.latest;
                        continue;
                    }
                    after = behind.latest;
                }
            }
            let Some(schedule) = self.schedule.get() else {
                return TickOutcome::Elsewhere;
            };
            let passes;
            (tick, passes) = next(schedule, gate.settings.misfire, gate.date(), (after, to));
            if passes {
                observe::ticks_passed_over(gate.label(), gate.name(), after, tick);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_during_a_walk_does_not_end_it() {
        let walk = Walk::default();
        let walking = walk.begin();
        assert!(walking.is_some());
        assert!(walk.begin().is_none() && walk.begin().is_none());
        drop(walking);
        assert!(walk.begin().is_some());
    }

    fn all(within: Duration, at_most: u32) -> Option<Misfire> {
        Some(Misfire::RunAll { within, at_most })
    }

    #[test]
    fn the_next_is_the_oldest_that_is_young_enough_and_not_one_of_too_many() {
        let minutes = Schedule::every(Duration::from_secs(60)).unwrap();
        #[allow(clippy::disallowed_methods, reason = "any time will do")]
        let now = SystemTime::now();
        let newest = minutes.latest(now).unwrap();
        let ago = |minutes: u64| TickTime(newest.0 - 60_000 * minutes);
        let (day, hour) = (Duration::from_secs(86_400), Duration::from_secs(3_600));
        let next = |misfire, after| next(&minutes, misfire, now, (after, newest));
        assert_eq!(next(all(day, 100), ago(1)), (newest, false));
        assert_eq!(next(all(day, 100), ago(10)), (ago(9), false));
        assert_eq!(next(all(day, 3), ago(10)), (ago(2), true));
        assert_eq!(next(all(day, 0), ago(10)), (newest, true));
        let (first, passes) = next(all(hour, 1_000), ago(600));
        assert!((ago(60)..=ago(59)).contains(&first) && passes, "{first:?}");
        // A mark of another schedule is between two ticks.
        assert_eq!(next(all(day, 100), TickTime(ago(2).0 + 1)), (ago(1), false));
        assert_eq!(next(all(Duration::ZERO, 9), ago(2)), (newest, true));
    }
}
