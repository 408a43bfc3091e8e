//! What a master of a quorum does: it gives its vote to one claim at a time, and none while it may have lost records.

use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::QueueEntry;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{ClaimReply, GrantNumber, Mode, Reply};

impl Transaction<'_> {
    /// Grants a free key under the proposed number, or under the next number of this master if that is higher.
    ///
    /// The master's time is not compared with the proposal: the masters' clocks may be apart, and a majority that gives one
    /// number needs no second trip.
    pub(crate) fn propose(&mut self, claim: &QueueEntry, number: GrantNumber) -> ClaimReply {
        if let Some(left) = self.without_vote() {
            return ClaimReply::Recovering(left);
        }
        if !self.is_free_for(Mode::Exclusive) {
            return ClaimReply::Busy(self.owner_left_ms());
        }
        if number == GrantNumber::default() {
            self.next_number();
        } else {
            *self.last = GrantNumber(number.0.max(self.last.0 + 1));
        }
        self.write_lease(claim, *self.last);
        ClaimReply::granted(*self.last)
    }

    /// Extends an owner's record, or writes it again. No number of this master is lower from now on.
    pub(crate) fn restore(&mut self, claim: &QueueEntry, number: GrantNumber) -> Reply {
        if let Some(left) = self.without_vote() {
            return ClaimReply::Recovering(left).into();
        }
        *self.last = number.max(*self.last);
        if self.owned_by(claim.claim_id).is_some() {
            self.extend(claim.claim_id, claim.term);
            return ClaimReply::granted(number).into();
        }
        if !self.is_free_for(Mode::Exclusive) {
            return ClaimReply::Busy(self.owner_left_ms()).into();
        }
        if self.is_after_bound {
            self.branches.note(Branch::RestoredLate);
            return Reply::Late;
        }
        self.branches.note(Branch::Restored);
        self.write_lease(claim, number);
        ClaimReply::granted(number).into()
    }

    /// Returns how long the master has no vote, in milliseconds.
    fn without_vote(&mut self) -> Option<u64> {
        let left = self.recovering()?;
        if self.plant.is(Flaw::RecoveringVotes) {
            return None;
        }
        self.branches.note(Branch::VoteHeldBack);
        Some(left)
    }
}
