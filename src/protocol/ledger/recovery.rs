//! A server that may have lost grants: it grants nothing until every earlier lease has ended, and meanwhile lets live
//! holders assert their leases.

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::QueueEntry;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{GrantNumber, Reply};

/// Returns how many milliseconds of a recovery are left at `now`. As a key of Redis, a recovery still lasts in the
/// millisecond in which it ends.
pub(crate) fn left(until: u64, now: u64) -> Option<u64> {
    (now <= until && until > 0).then(|| until - now)
}

/// Begins a recovery of `ms` milliseconds at `now`, unless a longer one is under way.
pub(crate) fn begin(until: &mut u64, now: u64, ms: u64, plant: impl Plant) {
    let ms = if plant.planted(Flaw::RecoveryTooShort) {
        ms / 8
    } else {
        ms
    };
    *until = (now + ms).max(*until);
}

impl<P: Plant> Transaction<'_, P> {
    /// Returns how many milliseconds of a recovery are left. Meanwhile nothing is granted.
    pub(crate) fn recovering(&self) -> Option<u64> {
        left(*self.recovering_until, self.now()).filter(|_| !self.planted(Flaw::RecoveringGrants))
    }

    /// Answers an owner's renewal under `number` if the server has no record of its lease. Returns `None` if this is
    /// no sign of a loss.
    ///
    /// A number above the server's clock shows that the server has lost the grant. A recovery then begins. While the
    /// server recovers, the owner's record is written again. No other claim can have been granted the key since.
    pub(crate) fn assert_lease(&mut self, claim: &QueueEntry, number: GrantNumber) -> Option<Reply> {
        let is_free = self.is_free_for(claim.mode)
            || self.planted(Flaw::AssertedOverOwner) && self.state.owner().is_some()
            || self.planted(Flaw::RevokedAsserted) && self.is_revoked(claim.claim_id);
        if !is_free {
            return None;
        }
        if number > *self.last && !self.planted(Flaw::EvidenceIgnored) {
            self.branches.push(Branch::RecoveryByOwner);
            let now = self.now();
            begin(self.recovering_until, now, self.recovery_ms, self.plant);
        }
        self.recovering()?;
        // The next run of a tick starts from the marks, and they may be lost, too.
        if self.job.is_some() {
            return None;
        }
        if self.is_after_bound && !self.planted(Flaw::AssertedLate) {
            self.branches.push(Branch::AssertionLate);
            return Some(Reply::Late);
        }
        self.branches.push(Branch::Asserted);
        if !self.planted(Flaw::AssertionStaysQueued) && !self.remove_waiter(claim.claim_id) {
            // The value of a candidate that was removed as dead is not proclaimed late.
            let claim_id = claim.claim_id;
            self.state.candidate_values.retain(|(of, _)| *of != claim_id);
        }
        *self.last = number.max(*self.last);
        self.write_lease(claim, number);
        Some(self.granted(number))
    }
}
