//! Keys with several holders at once: whether a claim may share a key, and how many permits are in use.

use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::{QueueEntry, Search, SharedLease};
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{ClaimId, GrantNumber, Mode, Permits};

impl Transaction<'_> {
    /// Returns whether the key has no holder.
    pub(crate) fn is_free(&self) -> bool {
        self.is_free_for(Mode::Exclusive)
    }

    /// Returns whether no present holder excludes a claim of this mode.
    pub(crate) fn is_free_for(&self, mode: Mode) -> bool {
        self.state.record.is_none() && (self.state.shares.is_empty() || self.can_share(mode))
    }

    /// Returns whether a claim of this mode can share the key with the present holders. The number of readers has no
    /// limit. An exclusive claim cannot share.
    fn can_share(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => false,
            Mode::Read => true,
            Mode::Permits(Permits { weight, capacity }) => {
                self.in_use() + u64::from(weight) <= u64::from(capacity)
            }
        }
    }

    /// Returns how many permits are held. Expired shares may still be stored, and do not count.
    pub(crate) fn in_use(&self) -> u64 {
        let live = self
            .state
            .shares
            .iter()
            .filter(|share| self.now() <= share.expires);
        live.map(|share| share.mode.weight()).sum()
    }

    /// Returns the capacity recorded by a current holder if it differs from the claim's. With several holders, the
    /// one whose lease ends first decides.
    pub(crate) fn recorded_capacity(&self, mode: Mode) -> Option<u32> {
        let Mode::Permits(Permits { capacity, .. }) = mode else {
            return None;
        };
        // Equal expiry times are ordered by text, as a sorted set of Redis orders them.
        let text = |share: &SharedLease| match share.mode {
            Mode::Permits(Permits { weight, capacity }) => format!("{}:{weight}/{capacity}", share.claim_id),
            Mode::Exclusive | Mode::Read => String::new(),
        };
        let first = self.state.shares.iter().min_by(|one, other| {
            let ends = one.expires.cmp(&other.expires);
            ends.then_with(|| text(one).cmp(&text(other)))
        });
        match first?.mode {
            Mode::Permits(of) if of.capacity != capacity => Some(of.capacity),
            _ => None,
        }
    }

    /// Returns whether the claim is granted without queueing. Live waiters come first: otherwise readers could come
    /// and go for ever while a writer waits.
    pub(crate) fn may_join(&mut self, claim: &QueueEntry, search: Search) -> bool {
        let is_next = self.is_next(claim.mode, search);
        if self.is_free_for(claim.mode) && search != Search::LeftFree && !self.is_free() {
            self.branches.note(if is_next {
                Branch::Joined
            } else {
                Branch::JoinRefused
            });
        }
        is_next
    }

    /// Returns what [`may_join`](Self::may_join) returns, without recording a branch.
    pub(crate) fn is_next(&self, mode: Mode, search: Search) -> bool {
        let is_behind = search == Search::Waits && !self.plant.is(Flaw::ReaderJoinsPastWriter);
        self.is_free_for(mode) && search != Search::LeftFree && !is_behind
    }

    /// Adds a lease that shares the key.
    pub(crate) fn add_share(&mut self, claim_id: ClaimId, mode: Mode, number: GrantNumber) {
        self.state.shares.retain(|share| share.claim_id != claim_id);
        self.state.shares.push(SharedLease {
            claim_id,
            mode,
            number,
            expires: 0,
            is_revoked: false,
        });
    }

    /// Returns the claim's share of the key.
    pub(crate) fn share_of(&mut self, claim_id: ClaimId) -> Option<&mut SharedLease> {
        self.state
            .shares
            .iter_mut()
            .find(|share| share.claim_id == claim_id)
    }
}
