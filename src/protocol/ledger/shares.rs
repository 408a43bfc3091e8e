//! A key that several have at once: who may share it, how many permits are left, and how a writer becomes a reader.

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::{QueueEntry, Search, SharedLease};
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{ClaimId, GrantNumber, Mode, Permits};

impl<P: Plant> Transaction<'_, P> {
    /// Nobody has it.
    pub(crate) fn is_free(&self) -> bool {
        self.is_free_for(Mode::Exclusive)
    }

    /// Nobody has it who excludes a holder of this mode.
    pub(crate) fn is_free_for(&self, mode: Mode) -> bool {
        self.state.record.is_none() && (self.state.shares.is_empty() || self.fits(mode))
    }

    /// Whether one more share may stand beside those that are there. A reader weighs one, and no capacity bounds it. A claim
    /// without a weight wants the key alone.
    fn fits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => false,
            Mode::Read => true,
            Mode::Permits(Permits { weight, capacity }) => {
                self.in_use() + u64::from(weight) <= u64::from(capacity)
            }
        }
    }

    /// How many permits are held. What has ended may still stand there, and counts no more.
    pub(crate) fn in_use(&self) -> u64 {
        let live = self
            .state
            .shares
            .iter()
            .filter(|share| self.now() <= share.expires);
        live.map(SharedLease::weight).sum()
    }

    /// Of how many permits somebody holds some who was told of another number. Of several the one whose lease ends first
    /// is asked.
    pub(crate) fn recorded_capacity(&self, mode: Mode) -> Option<u32> {
        let Mode::Permits(Permits { capacity, .. }) = mode else {
            return None;
        };
        // As a sorted set has them.
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

    /// Whether a claim is granted at once, after a search for who comes before it: whoever waits comes first, or readers
    /// would come and go for ever while a writer waits.
    pub(crate) fn may_join(&mut self, claim: &QueueEntry, search: Search) -> bool {
        let comes_next = self.comes_next(claim.mode, search);
        if self.is_free_for(claim.mode) && search != Search::LeftFree && !self.is_free() {
            self.branches.push(if comes_next {
                Branch::Joined
            } else {
                Branch::JoinRefused
            });
        }
        comes_next
    }

    /// The same, and nobody is told.
    pub(crate) fn comes_next(&self, mode: Mode, search: Search) -> bool {
        let is_behind = search == Search::Waits && !self.planted(Flaw::ReaderJoinsPastWriter);
        self.is_free_for(mode) && search != Search::LeftFree && !is_behind
    }

    /// One more of those who share it.
    pub(crate) fn add_share(&mut self, claim_id: ClaimId, mode: Mode, number: GrantNumber) {
        self.state.shares.push(SharedLease {
            claim_id,
            mode,
            number,
            expires: 0,
        });
    }

    pub(crate) fn share_of(&mut self, claim_id: ClaimId) -> Option<&mut SharedLease> {
        self.state
            .shares
            .iter_mut()
            .find(|share| share.claim_id == claim_id)
    }

    /// A node of before the read mode hands over to a reader as it does to a writer. The reader makes a share of it with its
    /// next renewal, and lets others in.
    pub(crate) fn share_alone(&mut self, claim: &QueueEntry) {
        if claim.mode == Mode::Read
            && let Some((owner, number)) = self.state.owner()
            && owner == claim.claim_id
        {
            self.state.record = None;
            self.add_share(owner, Mode::Read, number);
            self.extend(owner, claim.term);
            self.hand_over(None, false);
        }
    }
}
