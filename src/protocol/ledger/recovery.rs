//! A server that may have lost grants: it grants nothing until every earlier lease has ended, and meanwhile lets live
//! holders assert their leases.

use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::Ledger;
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::QueueEntry;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{GrantNumber, LinkReply, LinkRequest, RecoveryCause, Reply};

/// How long a claim is held back that came on an unconfirmed link, in milliseconds. Then it asks again.
const UNCONFIRMED_PAUSE_MS: u64 = 1_000;

impl Ledger {
    /// Compares what a node knows when its link opens, and begins a recovery if the server is in another run or reign than
    /// the recorded one, or has lost grants.
    ///
    /// A recovery that begins here raises the clock above every number of an earlier reign: above its own end, which is later
    /// than any grant of a former master. So the clock hands on that this reign is known, a node that was linked elsewhere is
    /// evidence of a later reign, and a late node begins no second recovery.
    pub fn link(&mut self, now_us: u64, link: &LinkRequest<'_>) -> LinkReply {
        let ms = link.recovery_ms;
        let recorded = &self.recovery;
        let is_behind = link.number.is_some_and(|number| number > self.last);
        let cause = if recorded.run.as_deref() != Some(link.run) {
            Some(RecoveryCause::Run)
        } else if link.epoch.is_some_and(|epoch| recorded.epoch != Some(epoch))
            && !self.plant.is(Flaw::EpochNotCompared)
        {
            Some(RecoveryCause::Epoch)
        } else {
            is_behind.then_some(RecoveryCause::Number)
        };
        if let Some(cause) = cause {
            self.recovery.begin(now_us / 1000, ms, cause, self.plant);
            if let Some(number) = link.number
                && !self.plant.is(Flaw::ClockNotRaised)
            {
                let above = self.last.max(number).0 + 1;
                self.last = GrantNumber(above.max(now_us + 1000 * ms));
            }
            self.recovery.run = Some(link.run.into());
            self.recovery.epoch = link.epoch.or(self.recovery.epoch);
        }
        let left = self.recovery.left(now_us / 1000);
        LinkReply {
            clock: self.last,
            recovering: left.map(|left| (left, self.recovery.cause)),
        }
    }
}

impl Transaction<'_> {
    /// Returns how many milliseconds of a recovery are left. Meanwhile nothing is granted.
    pub(crate) fn recovering(&self) -> Option<u64> {
        self.recovery
            .left(self.now())
            .filter(|_| !self.plant.is(Flaw::RecoveringGrants))
    }

    /// Returns for how many milliseconds a claim is held back: the rest of a recovery, or a pause if the Sentinels have not
    /// confirmed the link. Meanwhile nothing is granted on this link.
    pub(crate) fn held_back(&self) -> Option<u64> {
        let is_unconfirmed = self.is_unconfirmed && !self.plant.is(Flaw::UnconfirmedGrants);
        self.recovering()
            .or(is_unconfirmed.then_some(UNCONFIRMED_PAUSE_MS))
    }

    /// Answers an owner's renewal under `number` if the server has no record of its lease. Returns `None` if this is
    /// no sign of a loss.
    ///
    /// A number above the server's clock shows that the server has lost the grant. A recovery then begins. While the
    /// server recovers, the owner's record is written again. No other claim can have been granted the key since.
    pub(crate) fn assert_lease(&mut self, claim: &QueueEntry, number: GrantNumber) -> Option<Reply> {
        let is_free = self.is_free_for(claim.mode)
            || self.plant.is(Flaw::AssertedOverOwner) && self.state.owner().is_some()
            || self.plant.is(Flaw::RevokedAsserted) && self.is_revoked(claim.claim_id);
        if !is_free {
            return None;
        }
        if number > *self.last && !self.plant.is(Flaw::EvidenceIgnored) {
            self.branches.note(Branch::RecoveryByOwner);
            let now = self.now();
            self.recovery
                .begin(now, self.recovery_ms, RecoveryCause::Number, self.plant);
        }
        self.recovering()?;
        // The next run of a tick starts from the marks, and they may be lost, too.
        if self.job.is_some() {
            return None;
        }
        if self.is_after_bound && !self.plant.is(Flaw::AssertedLate) {
            self.branches.note(Branch::AssertionLate);
            return Some(Reply::Late);
        }
        self.branches.note(Branch::Asserted);
        if !self.plant.is(Flaw::AssertionStaysQueued) && !self.remove_waiter(claim.claim_id) {
            // The value of a candidate that was removed as dead is not proclaimed late.
            let claim_id = claim.claim_id;
            self.state.candidate_values.retain(|(of, _)| *of != claim_id);
        }
        *self.last = number.max(*self.last);
        self.write_lease(claim, number);
        Some(self.granted(number).into())
    }
}
