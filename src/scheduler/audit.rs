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
use crate::scheduler::gate::{Gate, remember};
use crate::scheduler::policy::TickOutcome;

/// The pause between two questions.
const PAUSE: Duration = Duration::from_secs(2);

/// How many ticks in doubt are told of one by one at most. One more stands for all before it.
const MAX_DOUBTS: usize = 128;

impl Gate {
    /// Tells what became of a tick that was not run here, once the store says so. Returns at once if another pursuit asks
    /// already, which tells of this tick, too.
    pub(super) async fn account_for(&self, tick: TickTime) -> TickOutcome {
        remember(&self.doubts, tick, MAX_DOUBTS + 1);
        let mut outcome = TickOutcome::Missed;
        // A tick that is added while a task asks is left to that task, which looks again when it has ended.
        while !lock(&self.doubts).is_empty() {
            let Ok(_asks) = self.audit.try_lock() else { break };
            outcome = self.resolve_doubts().await;
        }
        outcome
    }

    /// Asks the store until nothing is in doubt. Returns the latest outcome.
    async fn resolve_doubts(&self) -> TickOutcome {
        let (mut latest, mut asked) = (TickOutcome::Missed, 0);
        let mut news = self.clock().news();
        loop {
            news.mark_seen();
            let mut in_doubt = lock(&self.doubts).clone();
            let report = tokio::select! {
                biased;
                why = self.ended() => return self.tell_of(in_doubt, |_| Some(why)).unwrap_or(why),
                report = self.asked() => report,
            };
            if let Some(report) = report {
                asked += 1;
                self.tell_of_the_oldest(&report, &mut in_doubt);
                let told = self.tell_of(in_doubt, |tick| outcome(&report, tick, asked > 1));
                latest = told.unwrap_or(latest);
                if lock(&self.doubts).is_empty() {
                    return latest;
                }
            }
            tokio::select! {
                biased;
                _ = self.ended() => {}
                () = async { sleep(PAUSE).await; news.changed().await } => {}
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
                lock(&self.doubts).remove(&tick);
                observe::tick(self.label(), &self.name, tick, outcome.word(), None);
                first = first.or(Some(outcome));
            }
        }
        first
    }

    /// The oldest of too many stands for those before it: they are told of together, up to the next.
    fn tell_of_the_oldest(&self, report: &JobReport, in_doubt: &mut BTreeSet<TickTime>) {
        if in_doubt.len() <= MAX_DOUBTS {
            return;
        }
        if let Some(oldest) = in_doubt.pop_first() {
            lock(&self.doubts).remove(&oldest);
        }
        let next = in_doubt
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
    use crate::scheduler::policy::Settings;

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
        let (gate, _life) = Gate::new(locks.handle().clone(), "job".into(), Settings::default()).unwrap();
        let asks = gate.audit.try_lock().unwrap();
        for ms in 1..1_000 {
            assert_eq!(gate.account_for(TickTime(ms)).await, TickOutcome::Missed);
        }
        assert_eq!(lock(&gate.doubts).len(), MAX_DOUBTS + 1);
        assert_eq!(lock(&gate.doubts).last(), Some(&TickTime(999)));
        drop(asks);
        gate.account_for(TickTime(1_000)).await;
        assert!(lock(&gate.doubts).is_empty());
    }
}
