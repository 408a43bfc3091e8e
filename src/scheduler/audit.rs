//! Finds the outcome of ticks that this node could not run in time.
//!
//! A node that lost the store does not know what other nodes did meanwhile. So a tick counts as missed only if the
//! store was asked again, and knows that no node was granted the tick.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::sleep;

use crate::driver::waiter::lock;
use crate::observe;
use crate::protocol::message::{JobReport, TickTime};
use crate::scheduler::policy::TickOutcome;
use crate::scheduler::tick_runner::{TickRunner, remember};

/// The pause between two queries.
const QUERY_PAUSE: Duration = Duration::from_secs(2);

/// The maximum number of unresolved ticks that are reported one by one. One more stands for all earlier ticks.
const MAX_UNRESOLVED: usize = 128;

impl TickRunner {
    /// Reports the outcome of a tick that was not run here, when the store knows it. Returns at once if another task
    /// already queries the store: that task reports this tick too.
    pub(super) async fn resolve_missed(&self, tick: TickTime) -> TickOutcome {
        remember(&self.unresolved, tick, MAX_UNRESOLVED + 1);
        let mut outcome = TickOutcome::Missed;
        // A tick that is added during a query is left to the task that queries. That task checks again when it ends.
        while !lock(&self.unresolved).is_empty() {
            let Ok(_query_lock) = self.audit_lock.try_lock() else {
                break;
            };
            outcome = self.resolve_all().await;
        }
        outcome
    }

    /// Queries the store until no tick is unresolved. Returns the latest outcome.
    async fn resolve_all(&self) -> TickOutcome {
        let (mut latest, mut queries) = (TickOutcome::Missed, 0);
        let mut news = self.clock().news();
        loop {
            news.mark_seen();
            let mut unresolved = lock(&self.unresolved).clone();
            let report = tokio::select! {
                biased;
                why = self.ended() => return self.report_known(unresolved, |_| Some(why)).unwrap_or(why),
                report = self.fetch_report() => report,
            };
            if let Some(report) = report {
                queries += 1;
                self.report_dropped(&report, &mut unresolved);
                let reported = self.report_known(unresolved, |tick| outcome(&report, tick, queries > 1));
                latest = reported.unwrap_or(latest);
                if lock(&self.unresolved).is_empty() {
                    return latest;
                }
            }
            tokio::select! {
                biased;
                _ = self.ended() => {}
                () = async { sleep(QUERY_PAUSE).await; news.changed().await } => {}
            }
        }
    }

    /// Reports the ticks whose outcome is known. Returns the outcome of the oldest one.
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

    /// If there are too many ticks, the oldest one stands for all before it. They are reported together, up to the
    /// next tick.
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

/// Returns the outcome of a tick as far as the store knows it. `is_final` says that no node can still begin the tick.
fn outcome(report: &JobReport, tick: TickTime, is_final: bool) -> Option<TickOutcome> {
    if report
        .paused
        .as_ref()
        .is_some_and(|pause| tick.0 >= pause.since_ms)
    {
        return Some(TickOutcome::Paused);
    }
    match report.was_granted(tick) {
        // The store knows only the latest two grants.
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
    use crate::scheduler::schedule::Schedule;

    fn report(mark: u64, after: u64) -> JobReport {
        let tick = |ms: u64| (ms > 0).then_some(TickTime(ms));
        JobReport {
            mark: tick(mark),
            after: tick(after),
            ..JobReport::default()
        }
    }

    #[test]
    fn a_tick_is_missed_if_the_store_granted_its_neighbours_but_not_it() {
        use TickOutcome::{Elsewhere, Missed};
        for (mark, after, tick, expected) in [
            (9, 3, 9, Some(Elsewhere)),
            (9, 3, 3, Some(Elsewhere)),
            (9, 3, 5, Some(Missed)),
            (9, 3, 2, Some(Elsewhere)),
            (9, 0, 5, Some(Elsewhere)),
            // Another node can still begin it.
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
    async fn unresolved_ticks_are_bounded_and_one_task_queries() {
        let locks = Locks::memory();
        let schedule = Schedule::every(Duration::from_secs(1)).unwrap();
        let (runner, _registration) = TickRunner::new(
            locks.handle().clone(),
            "job".into(),
            schedule,
            JobSettings::default(),
        )
        .unwrap();
        let query_lock = runner.audit_lock.try_lock().unwrap();
        for ms in 1..1_000 {
            assert_eq!(runner.resolve_missed(TickTime(ms)).await, TickOutcome::Missed);
        }
        assert_eq!(lock(&runner.unresolved).len(), MAX_UNRESOLVED + 1);
        assert_eq!(lock(&runner.unresolved).last(), Some(&TickTime(999)));
        drop(query_lock);
        runner.resolve_missed(TickTime(1_000)).await;
        assert!(lock(&runner.unresolved).is_empty());
    }
}
