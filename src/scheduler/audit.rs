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
use crate::scheduler::policy::TickOutcome;
use crate::scheduler::tick_runner::{TickRunner, remember};

/// The pause between two questions.
const QUERY_PAUSE: Duration = Duration::from_secs(2);

/// How many ticks in doubt are told of one by one at most. One more stands for all before it.
const MAX_UNRESOLVED: usize = 128;

impl TickRunner {
    /// Tells what became of a tick that was not run here, once the store says so. Returns at once if another pursuit asks
    /// already, which tells of this tick, too.
    pub(super) async fn resolve_missed(&self, tick: TickTime) -> TickOutcome {
        remember(&self.unresolved, tick, MAX_UNRESOLVED + 1);
        let mut outcome = TickOutcome::Missed;
        // A tick that is added while a task asks is left to that task, which looks again when it has ended.
        while !lock(&self.unresolved).is_empty() {
            let Ok(_asks) = self.audit_lock.try_lock() else {
                break;
            };
            outcome = self.resolve_all().await;
        }
        outcome
    }

    /// Asks the store until nothing is in doubt. Returns the latest outcome.
    async fn resolve_all(&self) -> TickOutcome {
        let (mut latest, mut asked) = (TickOutcome::Missed, 0);
        let mut news = self.clock().news();
        loop {
            news.heard();
            let mut unresolved = lock(&self.unresolved).clone();
            let report = tokio::select! {
                biased;
                why = self.ended() => return self.report_known(unresolved, |_| Some(why)).unwrap_or(why),
                report = self.fetch_report() => report,
            };
            if let Some(report) = report {
                asked += 1;
                self.report_dropped(&report, &mut unresolved);
                let told = self.report_known(unresolved, |tick| outcome(&report, tick, asked > 1));
                latest = told.unwrap_or(latest);
                if lock(&self.unresolved).is_empty() {
                    return latest;
                }
            }
            tokio::select! {
                biased;
                _ = self.ended() => {}
                () = async { sleep(QUERY_PAUSE).await; news.come().await } => {}
            }
        }
    }

    /// Tells of those ticks whose outcome is known. Returns that of the oldest.
    fn report_known(
        &self,
        ticks: BTreeSet<TickTime>,
        outcome: impl Fn(TickTime) -> Option<TickOutcome>,
    ) -> Option<TickOutcome> {
        let mut first = None;
        for tick in ticks {
            if let Some(outcome) = outcome(tick) {
                lock(&self.unresolved).remove(&tick);
                observe::tick(self.label(), &self.name, tick, outcome.word(), None);
                first = first.or(Some(outcome));
            }
        }
        first
    }

    /// The oldest of too many stands for those before it: they are told of together, up to the next.
    fn report_dropped(&self, report: &JobReport, unresolved: &mut BTreeSet<TickTime>) {
        if unresolved.len() <= MAX_UNRESOLVED {
            return;
        }
        if let Some(oldest) = unresolved.pop_first() {
            lock(&self.unresolved).remove(&oldest);
        }
        let next = unresolved
            .first()
            .filter(|next| report.was_granted(**next) == Some(false));
        if let Some(next) = next {
            let before = report.after.or(report.mark).unwrap_or_default();
            observe::ticks_passed_over(self.label(), &self.name, before, *next);
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
    use crate::locks::Locks;
    use crate::scheduler::policy::JobSettings;

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

    #[tokio::test(start_paused = true)]
    async fn ticks_in_doubt_are_bounded_and_one_task_asks() {
        let locks = Locks::memory();
        let (runner, _registration) =
            TickRunner::new(locks.handle().clone(), "job".into(), JobSettings::default()).unwrap();
        let asks = runner.audit_lock.try_lock().unwrap();
        for ms in 1..1_000 {
            assert_eq!(runner.resolve_missed(TickTime(ms)).await, TickOutcome::Missed);
        }
        assert_eq!(lock(&runner.unresolved).len(), MAX_UNRESOLVED + 1);
        assert_eq!(lock(&runner.unresolved).last(), Some(&TickTime(999)));
        drop(asks);
        runner.resolve_missed(TickTime(1_000)).await;
        assert!(lock(&runner.unresolved).is_empty());
    }
}
