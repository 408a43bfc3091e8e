//! Laws of the history of a job.

use tenure::protocol::ledger::JobRecord;
use tenure::protocol::message::{Call, GrantNumber, JobReport, Reply, Request, RunOutcome, RunRecord, Verb};

use crate::violation::Violation;
use crate::world::World;

impl World {
    /// Checks that each grant begins one run, and that only the winner of a run ends it, once, with what it said.
    pub(crate) fn watch_history(
        &mut self,
        key: usize,
        (request, reply): (&Request, &Reply),
        job: &JobRecord,
    ) {
        let before = self
            .memory
            .ticks
            .history
            .insert(key, job.clone())
            .unwrap_or_default();
        let is_known = before.run_count > 0 || job.run_count <= 1;
        if self.memory.forgot || !is_known {
            return;
        }
        let was = |run: &RunRecord| before.runs.iter().find(|known| known.number == run.number);
        let began: Vec<&RunRecord> = job.runs.iter().filter(|run| was(run).is_none()).collect();
        let is_counted = job.run_count == before.run_count + began.len() as u64;
        let is_latest = |run: &RunRecord| match (run.tick.is_triggered(), &job.wanted) {
            (true, Some(wanted)) => (run.tick, run.attempt) == (wanted.tick, wanted.attempt),
            // A reset settles the key first, as every request does. The run that begins then has the former mark.
            (is_triggered, _) => {
                let has_mark = Some(run.tick) == job.mark || request.verb == Verb::Call(Call::Reset);
                !is_triggered && has_mark && run.attempt == job.attempt
            }
        };
        let is_grant = match *began {
            [] => true,
            [run] => is_latest(run) && run.ending.is_none() && job.runs.back() == Some(run),
            _ => false,
        };
        let is_right = |run: &RunRecord| match (was(run).map(|was| &was.ending), &run.ending) {
            (Some(Some(was)), ending) => ending.as_ref() == Some(was),
            (_, None) => true,
            (Some(None), Some(ending)) => {
                matches!(request.verb, Verb::Finish { result } if result == ending.result)
                    && before.winner == Some(request.claim_id)
                    && before
                        .runs
                        .back()
                        .is_some_and(|latest| latest.number == run.number)
            }
            (None, Some(_)) => false,
        };
        self.watch_trigger(key, (request, reply), &before, (began.first().copied(), job));
        if let Some(run) = began.first() {
            let passed_over = self.memory.ticks.passed_over.get(&key).copied();
            let is_passed_over =
                passed_over.is_some_and(|(from, to)| Some(run.tick) > from && run.tick <= to);
            let is_of_schedule = !run.tick.is_triggered();
            if before.paused.is_some() && is_of_schedule || is_passed_over && !self.memory.ticks.reset {
                self.report(Violation::PausedTickGranted, Some(key), || {
                    format!(
                        "{run:?} began: the pause was {:?}, passed over are {passed_over:?}",
                        before.paused
                    )
                });
            }
        }
        if !is_counted || !is_grant || !job.runs.iter().all(is_right) {
            self.report(Violation::HistoryWrong, Some(key), || {
                format!(
                    "after {:?} of {} the runs are {:?} of {}, before {:?} of {}",
                    request.verb, request.claim_id, job.runs, job.run_count, before.runs, before.run_count
                )
            });
        }
    }

    /// Checks that a node is told of each run that an operator cancelled, and of no other.
    pub(crate) fn watch_ending(&mut self, key: usize, number: GrantNumber, report: &JobReport) {
        let job = &self.memory.ticks.history[&key];
        let run = job.runs.iter().find(|run| run.number == number);
        let ending = run.and_then(|run| run.ending.as_ref());
        let is_cancelled = ending.is_some_and(|ending| ending.result.outcome == RunOutcome::Cancelled);
        if is_cancelled != report.is_cancelled {
            self.report(Violation::HistoryWrong, Some(key), || {
                format!("of run {number:?} it is told {}", report.is_cancelled)
            });
        }
    }
}
