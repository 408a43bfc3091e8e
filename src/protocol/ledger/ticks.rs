//! The ticks of a job in the store: which may be run, which are over, and how one comes to its end.

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{ClaimId, Reply, TickTime, WhenBehind};

impl<P: Plant> Transaction<'_, P> {
    /// Whether the tick can be run at all, by the store's clock and the job's mark.
    pub(crate) fn refuse_tick(&mut self) -> Option<Reply> {
        let now = self.date_ms;
        let job = self.job.as_deref()?;
        if self.planted(Flaw::NoMark) {
            return None;
        }
        if !job.is_open(self.mark) {
            Some(self.refuse_over_tick(Branch::TickOver))
        } else if let Some(TickTime(due)) = self.mark
            && due > now
            && !self.planted(Flaw::EarlyTickGranted)
        {
            self.branches.push(Branch::TickEarly);
            Some(Reply::Early(due - now))
        } else {
            None
        }
    }

    /// What somebody is told whose tick is over.
    pub(crate) fn refuse_over_tick(&mut self, branch: Branch) -> Reply {
        let is_past = || self.job.as_deref().is_some_and(|job| self.mark < job.mark);
        let is_mistaken = self.planted(Flaw::RunTickCalledSkipped) && is_past();
        if is_mistaken || self.job.as_deref().is_some_and(|job| job.is_skipped(self.mark)) {
            self.branches.push(Branch::SkippedTold);
            return Reply::Skipped;
        }
        self.branches.push(branch);
        Reply::Over
    }

    /// Which tick is to be run before this one, where none is passed over.
    pub(crate) fn refuse_behind_earlier(&mut self, turn: WhenBehind) -> Option<Reply> {
        let WhenBehind::After(after) = turn else {
            return None;
        };
        let job = self.job.as_deref()?;
        let latest = if self.planted(Flaw::SkippedTickAwaited) {
            job.mark
        } else {
            job.latest()
        }?;
        let is_next = latest == after && job.done || self.planted(Flaw::EarlierTickPassedOver);
        if self.mark == job.mark || is_next {
            if is_next && job.mark < Some(latest) {
                self.branches.push(Branch::TickAfterSkipped);
            }
            return None;
        }
        let is_open = !job.done;
        self.branches.push(Branch::TickBehind);
        Some(Reply::EarlierTickDue { latest, is_open })
    }

    /// What becomes of a tick that cannot run now because another claim has the job. `None`: it waits, if it may wait at all.
    pub(crate) fn refuse_beside_run(&mut self, turn: WhenBehind, wait: bool) -> Option<Reply> {
        let skips =
            turn == WhenBehind::Skip || turn == WhenBehind::Queue && self.planted(Flaw::QueuedTickSkipped);
        let left = self.owner_left_ms();
        let job = self.job.as_deref_mut().filter(|job| self.mark > job.mark)?;
        if skips {
            // A slow job overlaps nothing, and what it made wait is not run late by another node either.
            job.skipped = self.mark;
            self.branches.push(Branch::TickSkipped);
            return Some(Reply::Busy(left));
        }
        // What comes after a tick that has ended waits for no run: another record is in the way.
        if turn != WhenBehind::Queue || !wait {
            return Some(Reply::Busy(left));
        }
        let before = TickTime(self.mark.map_or(0, |mark| mark.0.saturating_sub(1)));
        job.skipped = job.skipped.max(Some(before).filter(|before| before.0 > 0));
        self.branches.push(Branch::TickQueued);
        None
    }

    pub(crate) fn finish(&mut self, claim_id: ClaimId, well: bool) -> Reply {
        let is_owner = self.owned_by(claim_id).is_some();
        let by_node = self.planted(Flaw::JobByNode);
        let keeps = self.planted(Flaw::CheckpointOutlivesTick);
        let mut finished = false;
        if let Some(job) = &mut self.job {
            let is_winner = |winner: ClaimId| winner == claim_id || (by_node && winner.node == claim_id.node);
            if job.mark == self.mark && job.winner.is_some_and(is_winner) {
                job.done = true;
                if well {
                    job.well = job.mark;
                }
                if !keeps {
                    job.saved = None;
                }
                finished = true;
            } else {
                self.branches.push(Branch::TickFinishedByAnother);
            }
        }
        if finished && !is_owner {
            self.branches.push(Branch::TickFinishedLate);
        }
        match self.leave(claim_id) {
            Reply::NotThere if finished => Reply::Done,
            reply => reply,
        }
    }
}
