//! Passes a lease from one owner to the next in one step: a writer becomes a reader, or another process adopts a
//! transfer.

use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::{QueueEntry, RecordOwner};
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{CallAnswer, ClaimId, ClaimReply, LeaseTimes, Mode};

impl Transaction<'_> {
    /// Makes `to` the owner in place of `claim_id`. The old number never owns the lease again, so a repeated pass
    /// finds `to` as owner, or refuses. `adopts`: the sender adopts a transfer.
    pub(crate) fn pass(&mut self, claim_id: ClaimId, adopts: bool, to: QueueEntry) -> ClaimReply {
        if let Some(number) = self.owned_by(to.claim_id) {
            self.branches.note(Branch::PassRepeated);
            self.extend(to.claim_id, to.term);
            return ClaimReply::granted(number);
        }
        let is_adopted = self.plant.is(Flaw::RevokedAdopted) && self.is_revoked(claim_id);
        if !self.owns_in_mode(claim_id, to.mode) && !is_adopted {
            self.branches.note(Branch::PassRefused);
            return ClaimReply::Gone;
        }
        // An adoption is a grant: the lost state may include another adoption of the same lease.
        if let Some(left) = self.held_back()
            && adopts
            && !self.plant.is(Flaw::AdoptedWhileRecovering)
        {
            self.branches.note(Branch::AdoptionHeldBack);
            return ClaimReply::Recovering(left);
        }
        let (was_alone, before) = (self.state.record.is_some(), self.owned_by(claim_id));
        self.state.end(claim_id);
        if self.plant.is(Flaw::DowngradeLetsGo) && to.mode == Mode::Read {
            self.hand_over(None, true);
            if !self.is_free_for(Mode::Read) {
                return ClaimReply::Gone;
            }
        }
        let is_downgrade = was_alone && to.mode == Mode::Read;
        self.branches.note(if is_downgrade {
            Branch::Downgraded
        } else {
            Branch::Passed
        });
        let mut number = self.grant(&to);
        if self.plant.is(Flaw::AdoptKeepsNumber)
            && let (Some(record), Some(before)) = (&mut self.state.record, before)
        {
            (record.owner, number) = (RecordOwner::Claim(to.claim_id, before), before);
        }
        if is_downgrade {
            self.hand_over(None, false);
        }
        ClaimReply::granted(number)
    }

    /// Returns whether the claim owns the lease in this mode or in a stronger one.
    fn owns_in_mode(&self, claim_id: ClaimId, mode: Mode) -> bool {
        let mut shares = self.state.shares.iter();
        let by_anyone = self.plant.is(Flaw::AdoptedTwice) && self.state.record.is_some();
        (self.owned_by(claim_id).is_some() || by_anyone)
            && match mode {
                Mode::Exclusive => self.state.record.is_some(),
                Mode::Read if self.state.record.is_some() => true,
                Mode::Read | Mode::Permits(_) => {
                    shares.any(|share| share.claim_id == claim_id && share.mode == mode)
                }
            }
    }

    /// Extends a lease to last for `term` from now on. Never shortens the lease.
    pub(crate) fn lengthen(&mut self, of: ClaimId, mode: Mode, term: LeaseTimes) -> CallAnswer {
        let is_there = self.owns_in_mode(of, mode);
        self.settle(None);
        if !is_there {
            return CallAnswer::Owned(false);
        }
        let until = self.now() + term.hold_ms();
        let never_shorter = !self.plant.is(Flaw::ExtendShortens);
        let longer = |ends: u64| if never_shorter { ends.max(until) } else { until };
        if let Some(record) = &mut self.state.record {
            record.expires = record.expires.map(longer);
        }
        if let Some(share) = self.share_of(of) {
            share.expires = longer(share.expires);
        }
        self.branches.note(Branch::Lengthened);
        CallAnswer::Owned(true)
    }
}
