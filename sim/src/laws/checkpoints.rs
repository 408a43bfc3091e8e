//! Laws of checkpoints.

use tenure::protocol::ledger::{JobRecord, RecordOwner};
use tenure::protocol::message::{Call, JobReport, Request, Verb, WantedRun};

use crate::coverage::Case;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::Caller;
use crate::world::tick_memory::TickMemory;

impl World {
    /// Checks what a run is told about its checkpoints.
    pub(crate) fn watch_checkpoint(&mut self, slot: usize, caller: usize, report: &JobReport) {
        let Caller {
            key, options, call, ..
        } = self.nodes[slot].callers[caller];
        let Some(of) = call.and_then(Call::claim_id) else {
            return;
        };
        let tick = (key, options.mark);
        let now = self.now;
        let job = self.job(key);
        let TickMemory { saved, recalls, .. } = &mut self.memory.ticks;
        match call {
            Some(Call::Save { .. }) if report.owns => {
                // An answer may be slow: the tick may have ended meanwhile, or the job gone to another, which ends the checkpoint.
                let is_wanted = |wanted: &WantedRun| wanted.attempt > 0 && Some(wanted.tick) == options.mark;
                let is_wanted = job.wanted.as_deref().is_some_and(is_wanted);
                let goes_on = is_wanted || job.mark == options.mark && !job.done;
                if goes_on && job.winner == Some(of) {
                    saved.entry(tick).or_insert(now);
                }
                self.cover(Case::SavedTold);
            }
            Some(Call::Recall { .. }) if report.owns => {
                // An answer may be slow: it counts only if the save was confirmed before the recall was sent.
                let told = saved.get(&tick).zip(recalls.get(&of));
                let was_told = told.is_some_and(|(told, asked)| told < asked) && !self.memory.forgot;
                let Some(found) = &report.saved else {
                    if was_told {
                        self.report(Violation::CheckpointForgotten, Some(key), || {
                            format!("node {slot} is shown nothing of {:?}", options.mark)
                        });
                    }
                    return;
                };
                let text = String::from_utf8_lossy(&found.0).into_owned();
                if !text.ends_with(&format!(" {:?}", options.mark)) {
                    self.report(Violation::CheckpointOfAnotherTick, Some(key), || {
                        format!("node {slot} runs {:?} and is shown {text}", options.mark)
                    });
                }
                if !text.starts_with(&of.to_string()) {
                    self.cover(Case::ResumedByAnother);
                }
            }
            _ => {}
        }
    }

    /// Checks that the server keeps a checkpoint only of the run that owns the tick.
    pub(crate) fn watch_save(&mut self, key: usize, request: &Request, job: &JobRecord) {
        let before = self.memory.ticks.kept.insert(key, job.saved.clone()).flatten();
        let Verb::Call(Call::Save { of, .. }) = request.verb else {
            return;
        };
        let us = self.server_us();
        let is_owner = self
            .server
            .ledger
            .record(&request.name, us)
            .is_some_and(|record| matches!(record.owner, RecordOwner::Claim(owner, _) if owner == of));
        // The request may hand the job over first: the checkpoint of the tick before is then gone, and none is kept.
        let is_kept = job.saved.is_some() && before != job.saved;
        let saved = job.saved.as_ref().map(|saved| saved.tick);
        // The latest tick of the schedule may be marked as over meanwhile, by a node that knows its end from before a loss.
        let wanted = job.wanted.as_ref().map(|wanted| wanted.tick);
        let is_its_tick = saved == request.mark && (saved == job.mark || saved == wanted);
        if is_kept && !(is_owner && is_its_tick) {
            self.report(Violation::CheckpointOfNonOwner, Some(key), || {
                format!(
                    "{of} of {:?} saved a checkpoint, the job is {job:?}",
                    request.mark
                )
            });
        }
    }
}
