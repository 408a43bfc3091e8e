//! The ticks of a job in the store: which tick may run, which ticks are over, and how a tick ends.
//!
//! | question | function |
//! |---|---|
//! | is the tick over, skipped, early or paused? | `refuse_tick`, `refuse_over_tick` |
//! | must an earlier tick run first? | `refuse_behind_earlier` |
//! | what happens to a tick that comes during a run? | `refuse_beside_run` |
//! | which runs does the history show? | `note_run`, `note_ending` |
//! | when is a tick over? | `finish`, `finish_tick` |

use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::{QueueEntry, Record};
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{
    ClaimId, ClaimReply, LeaveReply, Payload, RunEnding, RunOutcome, RunRecord, RunResult, TickRefusal,
    TickTime, WhenBehind,
};
use crate::protocol::step::ms;

impl Transaction<'_> {
    /// Returns the refusal of a tick that is over, was skipped, is early, or is paused, by the job's mark and the store's clock.
    pub(crate) fn refuse_tick(&mut self) -> Option<TickRefusal> {
        let now = self.date_ms;
        let job = self.job.as_deref()?;
        if self.plant.is(Flaw::NoMark) {
            return None;
        }
        if !job.is_open(self.mark, now, self.plant) {
            Some(self.refuse_over_tick(Branch::TickOver))
        } else if let Some(TickTime(due)) = self.mark.filter(|mark| !mark.is_triggered())
            && due > now
            && !self.plant.is(Flaw::EarlyTickGranted)
        {
            self.branches.note(Branch::TickEarly);
            Some(TickRefusal::Early(ms(due - now)))
        } else if self.is_paused(self.mark) {
            self.branches.note(Branch::TickPaused);
            Some(TickRefusal::Paused)
        } else {
            None
        }
    }

    /// Returns whether the tick is one of a job, and is over.
    pub(crate) fn is_over(&self, mark: Option<TickTime>) -> bool {
        let job = self.job.as_deref();
        job.is_some_and(|job| !job.is_open(mark, self.date_ms, self.plant))
    }

    /// Returns whether an operator has paused the job, and so the tick.
    pub(crate) fn is_paused(&self, mark: Option<TickTime>) -> bool {
        let is_triggered = mark.is_some_and(TickTime::is_triggered);
        !is_triggered && self.job.as_deref().is_some_and(|job| job.paused.is_some())
    }

    /// Returns whether the tick is triggered, and waits for the end of the latest tick of the schedule.
    pub(crate) fn is_behind_tick(&mut self, mark: Option<TickTime>) -> bool {
        let is_behind = self.job.as_deref().is_some_and(|job| job.is_behind_tick(mark));
        if is_behind {
            self.branches.note(Branch::TriggerBehindTick);
        }
        is_behind
    }

    /// Returns why a tick is refused that is over.
    pub(crate) fn refuse_over_tick(&mut self, branch: Branch) -> TickRefusal {
        let is_past = || self.job.as_deref().is_some_and(|job| self.mark < job.mark);
        let is_mistaken = self.plant.is(Flaw::RunTickCalledSkipped) && is_past();
        if is_mistaken || self.job.as_deref().is_some_and(|job| job.is_skipped(self.mark)) {
            self.branches.note(Branch::SkippedTold);
            return TickRefusal::Skipped;
        }
        self.branches.note(branch);
        TickRefusal::Over
    }

    /// Returns [`TickRefusal::EarlierTickDue`] if another tick must run first. Only for a claim that runs every tick in
    /// order ([`WhenBehind::After`]).
    pub(crate) fn refuse_behind_earlier(&mut self, when_behind: WhenBehind) -> Option<TickRefusal> {
        let WhenBehind::After(after) = when_behind else {
            return None;
        };
        let is_of_schedule = !self.mark.is_some_and(TickTime::is_triggered);
        let job = self.job.as_deref().filter(|_| is_of_schedule)?;
        let latest = if self.plant.is(Flaw::SkippedTickAwaited) {
            job.mark
        } else {
            job.latest()
        }?;
        let is_next = latest == after && job.done || self.plant.is(Flaw::EarlierTickPassedOver);
        if self.mark == job.mark || is_next {
            if is_next && job.mark < Some(latest) {
                self.branches.note(Branch::TickAfterSkipped);
            }
            return None;
        }
        let is_open = !job.done;
        self.branches.note(Branch::TickBehind);
        Some(TickRefusal::EarlierTickDue { latest, is_open })
    }

    /// Returns the refusal of a later tick that cannot run now because another claim has the job, or `None` if the
    /// claim may queue. [`WhenBehind::Skip`] records this tick as skipped; [`WhenBehind::Queue`] records the earlier
    /// ticks that were not granted. A tick that comes during a triggered run waits for it, whatever it does behind a tick.
    pub(crate) fn refuse_beside_run(&mut self, when_behind: WhenBehind, wait: bool) -> Option<ClaimReply> {
        let skips = when_behind == WhenBehind::Skip
            || when_behind == WhenBehind::Queue && self.plant.is(Flaw::QueuedTickSkipped);
        let left = self.owner_left_ms();
        let owner = self.state.record.as_ref().and_then(Record::number);
        let plant = self.plant;
        let is_of_schedule = !self.mark.is_some_and(TickTime::is_triggered);
        let job = self.job.as_deref_mut();
        let job = job.filter(|job| is_of_schedule && self.mark > job.mark)?;
        let is_beside_trigger = owner.is_some_and(|owner| job.is_triggered_run(owner));
        if is_beside_trigger && !plant.is(Flaw::TickSkippedForTrigger) {
            self.branches.note(Branch::TickBehindTrigger);
            if wait && !matches!(when_behind, WhenBehind::After(_)) {
                job.pass_over_before(self.mark);
            }
            return None;
        }
        if skips {
            // Runs must not overlap. A tick that is skipped here must not be run later by another node either.
            job.skipped = self.mark;
            self.branches.note(Branch::TickSkipped);
            return Some(ClaimReply::Busy(left));
        }
        // A tick with `After` gets here only when its predecessor has ended. Another record blocks the job, so there
        // is no run to wait for.
        if when_behind != WhenBehind::Queue || !wait {
            return Some(ClaimReply::Busy(left));
        }
        job.pass_over_before(self.mark);
        self.branches.note(Branch::TickQueued);
        None
    }

    /// Adds the run that a grant begins to the job's history.
    pub(crate) fn note_run(&mut self, claim: &QueueEntry) {
        let number = *self.last;
        let (Some(job), Some(tick)) = (self.job.as_deref_mut(), claim.mark) else {
            return;
        };
        let node = claim.claim_id.node;
        let name = job
            .nodes
            .get(&node)
            .map_or_else(|| "".into(), |node| node.name.clone());
        let attempt = job.attempt_at(claim.mark);
        job.begin_run(RunRecord {
            tick,
            attempt,
            number,
            node,
            name,
            ending: None,
        });
    }

    /// Ends the latest tick for its winner, so that it never runs again, writes how its run ended, and releases the job. An
    /// owner that hands the tick over writes only that.
    pub(crate) fn finish(
        &mut self,
        claim_id: ClaimId,
        result: RunResult,
        text: Option<&Payload>,
    ) -> LeaveReply {
        let is_owner = self.owned_by(claim_id).is_some();
        let ends_tick = result.outcome.ends_tick();
        let finished = ends_tick && self.finish_tick(claim_id, result.outcome);
        if ends_tick || is_owner {
            self.note_ending(claim_id, result, text);
        }
        if finished && !is_owner {
            self.branches.note(Branch::TickFinishedLate);
        }
        match self.leave(claim_id) {
            LeaveReply::NotThere if finished => LeaveReply::Left,
            reply => reply,
        }
    }

    /// Marks the latest tick as over, if the claim is its winner. Returns whether it is.
    fn finish_tick(&mut self, claim_id: ClaimId, outcome: RunOutcome) -> bool {
        let by_node = self.plant.is(Flaw::JobByNode);
        let keeps = self.plant.is(Flaw::CheckpointOutlivesTick);
        let Some(job) = &mut self.job else {
            return false;
        };
        let is_winner = |winner: ClaimId| winner == claim_id || (by_node && winner.node == claim_id.node);
        // A trigger that was not granted yet is a later one, for the same nominal time.
        let is_wanted = job.wanted_run(self.mark).is_some_and(|wanted| wanted.attempt > 0);
        if job.mark != self.mark && !is_wanted || !job.winner.is_some_and(is_winner) {
            self.branches.note(Branch::TickFinishedByAnother);
            return false;
        }
        if !is_wanted {
            job.done = true;
        } else if !self.plant.is(Flaw::TriggerOutlivesRun) {
            self.branches.note(Branch::TriggerFinished);
            job.wanted = None;
        }
        let nominal = self.mark.map(|mark| TickTime(mark.nominal_ms()));
        if outcome == RunOutcome::Done {
            job.well = job.well.max(nominal);
        }
        if !keeps {
            job.saved = None;
        }
        true
    }

    /// Writes how the latest run of the tick ended. Only its winner writes that, and once. After a reset the job has another
    /// mark, and the run is the same.
    fn note_ending(&mut self, claim_id: ClaimId, result: RunResult, text: Option<&Payload>) {
        let by_another = self.plant.is(Flaw::RunEndedByAnother);
        let twice = self.plant.is(Flaw::RunEndedTwice);
        let mark = self.mark;
        let Some(job) = self
            .job
            .as_deref_mut()
            .filter(|job| job.winner == Some(claim_id) || by_another)
        else {
            return;
        };
        let was_reset = job.mark != mark && !mark.is_some_and(TickTime::is_triggered);
        if twice && let Some(run) = job.runs.back().filter(|run| run.ending.is_some()).cloned() {
            job.begin_run(RunRecord { ending: None, ..run });
        }
        let Some(run) = job.open_run(mark) else {
            return self.branches.note(Branch::RunEndedBefore);
        };
        let text = String::from_utf8_lossy(text.map_or(&[], |text| &text.0));
        run.ending = Some(RunEnding {
            result,
            text: text.into(),
        });
        if was_reset {
            self.branches.note(Branch::ResetRunEnded);
        }
        if !result.outcome.ends_tick() {
            self.branches.note(Branch::TickHandedOver);
        }
    }
}
