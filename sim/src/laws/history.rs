//! Laws of the history of a job.

use tenure::protocol::ledger::JobRecord;
use tenure::protocol::message::{Request, RunRecord, Verb};

use crate::violation::Violation;
use crate::world::World;

impl World {
    /// Checks that each grant begins one run, and that only the winner of a run ends it, once, with what it said.
    pub(crate) fn watch_history(&mut self, key: usize, request: &Request, job: &JobRecord) {
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
        let is_latest = |run: &RunRecord| (Some(run.tick), run.attempt) == (job.mark, job.attempt);
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
        if let Some(run) = began.first() {
            let passed_over = self.memory.ticks.passed_over.get(&key).copied();
            let is_passed_over =
                passed_over.is_some_and(|(from, to)| Some(run.tick) > from && run.tick <= to);
            if before.paused.is_some() || is_passed_over && !self.memory.ticks.reset {
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
}
