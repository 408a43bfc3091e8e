//! What callers do with a held lease.

use crate::protocol::claim::held_lease::{HeldLease, Holding, LocalHolder};
use crate::protocol::claim::{Claim, Phase};
use crate::protocol::message::{Fence, GrantNumber};
use crate::protocol::time::Instant;

impl Claim {
    pub(crate) fn held(&self) -> Option<&HeldLease> {
        match &self.phase {
            Phase::Held(held) => Some(held),
            _ => None,
        }
    }

    /// Returns what the caller holds that has the place `index` among the local holders.
    pub(crate) fn holding(&self, now: Instant, index: u64) -> Option<Holding> {
        let held = self.held()?;
        let deadline = held.deadline();
        Some(Holding {
            claim: self.claim_id,
            fence: Fence::new(held.number(), index),
            deadline,
            remaining: (now < deadline).then(|| deadline.since(now)),
            attempt: self.attempt.number,
            overtook: self.attempt.overtook,
        })
    }

    fn change_held<T>(&mut self, change: impl FnOnce(&mut HeldLease) -> T) -> Option<T> {
        match &mut self.phase {
            Phase::Held(held) => Some(change(held)),
            _ => None,
        }
    }

    /// Returns whether the claim holds a lease under this grant. A claim whose lease was passed on has another number.
    pub(crate) fn holds_under(&self, number: GrantNumber) -> bool {
        self.held().is_some_and(|held| held.number() == number)
    }

    /// Notes that the one caller that holds has taken up its grant, so that there is a guard.
    pub(crate) fn take_up(&mut self) {
        self.change_held(|held| {
            if let Some(local) = held.local_mut() {
                local.unfetched = None;
            }
        });
    }

    /// Hands the lease on to this caller, and returns its fence.
    pub(crate) fn hand_on(&mut self, local: LocalHolder) -> Option<Fence> {
        self.change_held(|held| held.hand_on(local))
    }

    /// Lets one more reader in. Returns its place among the local holders of the grant, and its fence.
    pub(crate) fn let_reader_in(&mut self) -> Option<(u64, Fence)> {
        self.change_held(|held| {
            let index = held.let_reader_in()?;
            Some((index, Fence::new(held.number(), index)))
        })?
    }

    /// Ends the holding of one reader. Returns how many are left.
    pub(crate) fn let_reader_out(&mut self) -> Option<u32> {
        self.change_held(HeldLease::let_reader_out)?
    }

    /// Notes that an operator asks for the lease. Returns whether this is new.
    pub(crate) fn note_asked(&mut self) -> Option<bool> {
        self.change_held(HeldLease::note_asked)
    }

    /// Counts a write under the lease.
    pub(crate) fn begin_write(&mut self) {
        self.change_held(HeldLease::begin_write);
    }

    /// Counts a write no more that was answered, or will never be sent.
    pub(crate) fn end_write(&mut self) {
        self.change_held(HeldLease::end_write);
    }

    /// Ends what the holder holds under its ticket. The lease is held by this caller from now on, at this place among the local
    /// holders, and is not renewed.
    pub(crate) fn hold_for(&mut self, local: LocalHolder, index: u64) {
        self.change_held(|held| *held = held.held_by(local, index));
        self.exchange.rest();
    }

    /// Lets the one caller go on that holds. Returns its fence. The caller has a lease to take this up.
    pub(crate) fn hold_again(&mut self, now: Instant) -> Option<Fence> {
        let lease = self.lease();
        self.change_held(|held| {
            held.local_mut()?.unfetched = Some(now + lease);
            Some(Fence::new(held.number(), held.index()))
        })?
    }
}
