//! Finds out what became of ticks that this node could not run in time.
//!
//! A node that lost sight of the store knows nothing of what others did meanwhile. So a tick counts as missed only after
//! the store was asked again, and knows that no node was granted it.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::sleep;

use crate::driver::waiter::lock;
use crate::observe;
use crate::protocol::message::{JobReport, TickTime};
use crate::scheduler::doubts::Doubts;
use crate::scheduler::gate::Gate;
use crate::scheduler::policy::TickOutcome;

/// The pause between two questions.
const AGAIN: Duration = Duration::from_secs(2);

/// The task that asks is at work. Another may take its place when it is dropped.
struct Asking<'a>(&'a Gate);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        *lock(&self.0.doubts) = Doubts::default();
    }
}

impl Gate {
    /// Tells what became of a tick that was not run here, once the store says so. Returns at once if another pursuit
    /// asks already, which tells of this tick, too.
    pub(super) async fn account_for(&self, tick: TickTime) -> TickOutcome {
        if !lock(&self.doubts).add(tick) {
            return TickOutcome::Missed;
        }
        let asking = Asking(self);
        let (mut own, mut asked) = (TickOutcome::Missed, 0);
        let mut news = self.clock().news();
        loop {
            news.heard();
            let in_doubt = lock(&self.doubts).ticks.clone();
            let report = tokio::select! {
                biased;
                why = self.ended() => return self.tell_of(in_doubt, |_| Some(why)).unwrap_or(why),
                report = self.asked() => report,
            };
            if let Some(report) = report {
                asked += 1;
                let outcome = |tick| outcome(&report, tick, asked > 1);
                self.tell_of_more(&report, in_doubt.first().copied());
                own = self.tell_of(in_doubt, outcome).unwrap_or(own);
                let mut doubts = lock(&self.doubts);
                if doubts.ticks.is_empty() {
                    // In one step with the look: a tick that comes now finds that no task asks.
                    doubts.is_asked = false;
                    std::mem::forget(asking);
                    return own;
                }
            }
            tokio::select! {
                biased;
                _ = self.ended() => {}
                () = async { sleep(AGAIN).await; news.come().await } => {}
            }
        }
    }

    /// Tells of those ticks whose outcome is known. Returns that of the oldest.
    fn tell_of(
        &self,
        ticks: BTreeSet<TickTime>,
        outcome: impl Fn(TickTime) -> Option<TickOutcome>,
    ) -> Option<TickOutcome> {
        let mut first = None;
        for tick in ticks {
            if let Some(outcome) = outcome(tick) {
                lock(&self.doubts).ticks.remove(&tick);
                observe::tick(self.label(), &self.name, tick, outcome.word(), None);
                first = first.or(Some(outcome));
            }
        }
        first
    }

    /// There were too many to tell of each.
    fn tell_of_more(&self, report: &JobReport, oldest: Option<TickTime>) {
        let is_cut = std::mem::take(&mut lock(&self.doubts).is_cut);
        let oldest = oldest.filter(|oldest| is_cut && report.was_granted(*oldest) == Some(false));
        if let Some(oldest) = oldest {
            let before = report.after.or(report.mark).unwrap_or_default();
            observe::ticks_passed_over(self.label(), &self.name, before, oldest);
        }
    }
}

/// What became of a tick, as far as the store knows. `is_final`: no node is about to begin it any more.
fn outcome(report: &JobReport, tick: TickTime, is_final: bool) -> Option<TickOutcome> {
    match report.was_granted(tick) {
        // Of what came before the latest two grants nothing is known.
        Some(true) | None => Some(TickOutcome::Elsewhere),
        Some(false) if is_final || report.mark > Some(tick) => Some(TickOutcome::Missed),
        Some(false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(mark: u64, after: u64) -> JobReport {
        let tick = |ms: u64| (ms > 0).then_some(TickTime(ms));
        JobReport {
            mark: tick(mark),
            after: tick(after),
            ..JobReport::default()
        }
    }

    #[test]
    fn a_tick_is_missed_if_the_store_granted_those_around_it_and_not_it() {
        use TickOutcome::{Elsewhere, Missed};
        for (mark, after, tick, expected) in [
            (9, 3, 9, Some(Elsewhere)),
            (9, 3, 3, Some(Elsewhere)),
            (9, 3, 5, Some(Missed)),
            (9, 3, 2, Some(Elsewhere)),
            (9, 0, 5, Some(Elsewhere)),
            // Another node may be about to begin it.
            (9, 3, 12, None),
            (0, 0, 12, None),
        ] {
            let report = report(mark, after);
            assert_eq!(outcome(&report, TickTime(tick), false), expected, "{report:?}");
        }
        assert_eq!(outcome(&report(9, 3), TickTime(12), true), Some(Missed));
        assert_eq!(outcome(&report(0, 0), TickTime(12), true), Some(Missed));
    }
}
