//! Calls about a job or a semaphore, and how a store answers them.
//!
//! A call makes no claim, and its answer may be outdated when it arrives. What the caller then does needs a claim,
//! which the store checks again.

use std::sync::Arc;

use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::{CheckpointRecord, Expression};
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{
    Call, CallAnswer, JobNode, JobReport, LookData, MIN_POLL_MS, NodeId, Payload, Request,
};

impl Transaction<'_> {
    /// Answers a call about a job or a semaphore.
    pub(crate) fn answer_call(&mut self, call: Call, request: &Request) -> CallAnswer {
        let (lease_ms, data, sender) = (
            request.term.lease_ms,
            request.data.as_ref(),
            request.claim_id.node,
        );
        let lost = self.mend_lost_mark(call);
        // Every verb settles the key first. A call has no claim, so the key is never granted to its sender.
        self.settle(None);
        let (now, mark) = (self.date_ms, self.mark);
        let owned = call.claim_id().is_some_and(|of| self.owned_by(of).is_some());
        let Some(job) = self.job.as_deref_mut() else {
            // A foreign owner of the key holds all permits.
            let is_ours = self.state.record.is_none();
            return CallAnswer::InUse(is_ours.then(|| self.in_use()));
        };
        let mut report = JobReport {
            ahead_ms: job.ahead_ms(now),
            now_ms: now,
            owns: owned && (job.mark == mark || job.wanted_run(mark).is_some()),
            mark: job.mark,
            well: job.well,
            after: job.after(),
            lost,
            ..JobReport::default()
        };
        match call {
            Call::Open { fingerprint, .. } => {
                self.report_open_tick(&mut report);
                self.note_expression(&mut report, fingerprint, lease_ms);
                self.note_look(now + 2 * lease_ms.max(MIN_POLL_MS), sender, LookData::read(data));
            }
            Call::Withdraw => drop(job.nodes.remove(&sender)),
            Call::Ending { number } => {
                report.is_cancelled = job.was_cancelled(number);
                self.branches.note(Branch::EndingTold);
            }
            Call::Reset if report.ahead_ms > 0 => {
                job.reset(now);
                self.branches.note(Branch::MarkReset);
            }
            Call::Reset
            | Call::InUse
            | Call::Extend { .. }
            | Call::Release { .. }
            | Call::SetCount { .. }
            | Call::CountDown { .. }
            | Call::Count
            | Call::Zero { .. }
            | Call::Leader { .. }
            | Call::Proclaim { .. } => {}
            Call::Verify { .. } if !report.owns => self.branches.note(Branch::NotOwner),
            Call::Verify { .. } => {}
            Call::Recall { .. } => self.report_checkpoint(&mut report),
            Call::Save { seq, .. } => self.save_checkpoint(&report, seq, data),
        }
        CallAnswer::Report(Box::new(report))
    }

    /// Reports a tick whose winner and waiters may all be gone: only the store knows of it. Also reports what operators did.
    fn report_open_tick(&mut self, report: &mut JobReport) {
        let (now, untold) = (report.now_ms, self.plant.is(Flaw::OpenTickUntold));
        let Some(job) = self.job.as_deref_mut() else {
            return;
        };
        report.paused = job.paused.clone();
        report.resumed_ms = job.resumed_ms;
        report.wanted = job.wanted.clone().filter(|wanted| wanted.is_open(now));
        report.open = job.unfinished(now).filter(|_| !untold);
        if report.open.is_some() {
            self.branches.note(Branch::OpenTold);
        }
    }

    /// Notes the caller's expression, and reports since when the store knows it.
    ///
    /// During a deploy two expressions are in use, and each node asks once a lease. So an expression that comes back
    /// soon after it was replaced was never out of use. One that comes back later is new: no node scheduled its ticks
    /// in between.
    fn note_expression(&mut self, report: &mut JobReport, fingerprint: u64, lease_ms: u64) {
        let now = report.now_ms;
        let is_renewed = self.plant.is(Flaw::FirstSeenRenewed);
        let Some(job) = self.job.as_deref_mut().filter(|_| fingerprint > 0) else {
            return;
        };
        // A time in the future came from a wrong clock.
        let is_known = |known: &Expression| known.fingerprint == fingerprint && known.since_ms <= now;
        let known = job.expression.filter(|known| is_known(known) && !is_renewed);
        let in_use = 2 * lease_ms.max(MIN_POLL_MS);
        let former = job
            .former
            .filter(|(former, until)| is_known(former) && now <= until + in_use);
        let expression = known.or(former.map(|(former, _)| former)).unwrap_or(Expression {
            fingerprint,
            since_ms: now,
        });
        report.since_ms = expression.since_ms;
        let other = job.expression.replace(expression);
        if let Some(other) = other.filter(|other| other.fingerprint != fingerprint) {
            job.former = Some((other, now));
            report.differs = true;
            self.branches.note(Branch::OtherFingerprint);
            if former.is_some() {
                self.branches.note(Branch::ExpressionReturned);
            }
        }
    }

    /// Notes that the node has the job, and what it told. The first look of a node removes the nodes that are gone.
    fn note_look(&mut self, until_ms: u64, node: NodeId, look: LookData<'_>) {
        let now = self.date_ms;
        let Some(job) = self.job.as_deref_mut() else {
            return;
        };
        if !job.nodes.contains_key(&node) {
            let known = job.nodes.len();
            job.nodes.retain(|_, node| now <= node.until_ms);
            if job.nodes.len() < known {
                self.branches.note(Branch::GoneNodeForgotten);
            }
        }
        let name = look.name.into();
        job.nodes.insert(node, JobNode { name, until_ms });
        job.plan = Some(look.plan).filter(|plan| !plan.is_empty()).map(Arc::from);
    }

    /// Reports the checkpoint of the tick, to its owner only.
    fn report_checkpoint(&mut self, report: &mut JobReport) {
        if !report.owns {
            return self.branches.note(Branch::NotOwner);
        }
        let outlives = self.plant.is(Flaw::CheckpointOutlivesTick);
        let saved = self.job.as_deref().and_then(|job| job.saved.as_ref());
        let saved = saved.filter(|saved| Some(saved.tick) == self.mark || outlives);
        report.saved = saved.map(|saved| saved.data.clone());
        if report.saved.is_some() {
            self.branches.note(Branch::Resumed);
        }
    }

    /// Saves a checkpoint if the run still owns the tick. Both happen in one step, so a run that lost the job leaves
    /// nothing.
    fn save_checkpoint(&mut self, report: &JobReport, seq: u64, data: Option<&Payload>) {
        let by_anyone = self.plant.is(Flaw::CheckpointOfLoser);
        let (Some(job), Some(tick), Some(data)) = (self.job.as_deref_mut(), self.mark, data) else {
            return;
        };
        if !report.owns && !by_anyone {
            return self.branches.note(Branch::NotOwner);
        }
        if self.plant.is(Flaw::CheckpointNotKept) {
            return;
        }
        let attempt = job.attempt_at(self.mark);
        let is_later =
            |saved: &CheckpointRecord| (saved.tick, saved.attempt) == (tick, attempt) && saved.seq >= seq;
        if job.saved.as_ref().is_some_and(is_later) {
            // The request was slow, and a later checkpoint was saved before it.
            return self.branches.note(Branch::SavedBefore);
        }
        let data = data.clone();
        job.saved = Some(CheckpointRecord {
            tick,
            attempt,
            seq,
            data,
        });
        self.branches.note(Branch::Saved);
    }

    /// Repairs a job record that went back to an older copy, and returns whether that was so.
    ///
    /// A caller that learned that a tick is over relies on it for ever. If the store knows the job and would still
    /// grant that tick, it has lost state that it had acknowledged. It then marks the tick as over before any claim
    /// can be granted such a tick. A store that knows nothing of the job may have been told to forget it.
    fn mend_lost_mark(&mut self, call: Call) -> bool {
        let Call::Open { over, .. } = call else {
            return false;
        };
        let now = self.date_ms;
        // A tick in the future was reported by a wrong clock, and may have been reset since.
        let over = over.filter(|over| over.0 <= now && !self.plant.is(Flaw::LossBelieved));
        let Some(job) = self.job.as_deref_mut() else {
            return false;
        };
        let lost = over.is_some() && job.mark.is_some() && job.is_open(over, now, self.plant);
        if lost {
            (job.mark, job.done) = (over, true);
            self.branches.note(Branch::LossMended);
        }
        lost
    }
}
