//! A lease that an operator takes from its holder: it is revoked, and its record keeps its end.

use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::Ledger;
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::RecordOwner;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{ClaimId, GrantNumber, Push};
use crate::protocol::steal::{StealAct, StealReply, StealRequest, StealTarget};

impl Ledger {
    /// Executes a step of a steal at `now_us`. Appends the pushes for the holder and for observers to `pushes`.
    pub fn steal(&mut self, now_us: u64, steal: &StealRequest, pushes: &mut Vec<Push>) -> StealReply {
        self.branches.begin_step();
        let batch = steal.leave(None);
        let request = &batch.requests[0];
        self.transact(now_us, &batch, request, pushes, |transaction| {
            transaction.steal(steal)
        })
    }
}

impl Transaction<'_> {
    fn steal(&mut self, steal: &StealRequest) -> StealReply {
        let hands_over = matches!(steal.act, StealAct::HandOver);
        if self.is_of_wrong_type() {
            return StealReply::Changed;
        }
        if hands_over && let Some(left) = self.held_back() {
            return StealReply::Recovering(left);
        }
        let Some(found) = self.stolen_claim(&steal.target) else {
            return StealReply::Changed;
        };
        let is_endless = self
            .state
            .record
            .as_ref()
            .is_some_and(|record| record.expires.is_none());
        if is_endless && !hands_over {
            return StealReply::Endless;
        }
        if let StealAct::Ask(asking) = &steal.act {
            let told = found.filter(|_| steal.tells);
            self.pushes
                .extend(told.map(|claim| Push::Asked(self.name.clone(), claim, asking.clone())));
            return StealReply::Done(found);
        }
        self.branches.note(Branch::Revoked);
        let led = self.current_leader();
        match (&mut self.state.record, found) {
            // A foreign client holds no lease of ours, and no push reaches it.
            (Some(_), None) if hands_over => self.state.record = None,
            (Some(record), _) => record.owner.revoke(),
            (None, Some(claim)) => self.revoke_share(claim),
            (None, None) => {}
        }
        if self.plant.is(Flaw::RevokedFreed) {
            self.state.record = None;
        }
        if let Some(claim) = found.filter(|_| steal.tells) {
            let push = Push::Revoked(self.name.clone(), claim, steal.target.mode());
            self.pushes.push(push);
        }
        if self.current_leader() != led {
            self.leader_changed();
        }
        StealReply::Done(found)
    }

    /// Returns the claim of the lease, or `Some(None)` for the record of a foreign client. `None`: the lease is over. A
    /// revoked share has no number any more.
    fn stolen_claim(&self, target: &StealTarget) -> Option<Option<ClaimId>> {
        let owner = self.state.record.as_ref().map(|record| &record.owner);
        match (target, owner) {
            (StealTarget::Foreign(_), Some(RecordOwner::Foreign | RecordOwner::RevokedForeign)) => Some(None),
            (
                StealTarget::Grant(number, _),
                Some(RecordOwner::Claim(claim, of) | RecordOwner::Revoked(claim, of)),
            ) => (number == of).then_some(Some(*claim)),
            (StealTarget::Grant(number, mode), None) => {
                let mut shares = self.state.shares.iter().filter(|share| !share.is_revoked);
                let share = shares.find(|share| (share.number, share.mode) == (*number, *mode));
                share.map(|share| Some(share.claim_id))
            }
            (StealTarget::RevokedShare(node, claim, _), None) => {
                let mut shares = self.state.shares.iter().filter(|share| share.is_revoked);
                let share =
                    shares.find(|share| (share.claim_id.node, share.claim_id.claim) == (*node, *claim));
                share.map(|share| Some(share.claim_id))
            }
            _ => None,
        }
    }

    fn revoke_share(&mut self, claim: ClaimId) {
        let frees = self.plant.is(Flaw::RevokedFreed);
        if let Some(share) = self.share_of(claim) {
            share.is_revoked = true;
        }
        if frees {
            self.state.shares.retain(|share| share.claim_id != claim);
        }
    }

    /// Returns whether an operator revoked the claim's lease, and its record is still there.
    pub(crate) fn is_revoked(&self, claim_id: ClaimId) -> bool {
        self.revoked_number(claim_id).is_some()
    }

    /// Returns the number of the claim's lease, if an operator revoked the lease and its record is still there.
    pub(crate) fn revoked_number(&self, claim_id: ClaimId) -> Option<GrantNumber> {
        match self.state.record.as_ref().map(|record| &record.owner) {
            Some(RecordOwner::Revoked(claim, number)) if *claim == claim_id => Some(*number),
            Some(_) => None,
            None => {
                let mut shares = self.state.shares.iter();
                let share = shares.find(|share| share.is_revoked && share.claim_id == claim_id)?;
                Some(share.number)
            }
        }
    }

    /// Returns whether an operator revoked the lease of the exclusive owner.
    pub(crate) fn is_owner_revoked(&self) -> bool {
        let owner = self.state.record.as_ref().map(|record| &record.owner);
        matches!(owner, Some(RecordOwner::Revoked(..)))
    }
}
