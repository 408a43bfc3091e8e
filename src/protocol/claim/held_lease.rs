//! A held lease, and the callers that hold by it.

use std::time::Duration;

use crate::protocol::claim::Claim;
use crate::protocol::message::{ClaimId, Fence, GrantNumber, TickTime};
use crate::protocol::step::Ticket;
use crate::protocol::time::Instant;

#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldLease {
    pub(crate) number: GrantNumber,
    pub(crate) deadline: Instant,
    pub(crate) holders: Holders,
    /// The place of the latest holder among the local holders of this grant.
    pub(crate) index: u64,
    /// When the burst began.
    pub(crate) since: Instant,
    /// When the lease is renewed next.
    pub(crate) due: Instant,
    /// The record in the store has ended by this time if no request extends it.
    pub(crate) ends: Instant,
    /// An operator asked for the lease: it is not handed on in this process.
    pub(crate) is_asked_for: bool,
    /// The number of writes under this lease that were sent and not answered. A write that is never answered counts
    /// to the end: it may be executed late, and would then pass for a write of the next holder.
    pub(crate) writes: u32,
}

/// What a caller holds at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Holding {
    /// The claim by which the caller holds.
    pub claim: ClaimId,
    /// The fence of the caller.
    pub fence: Fence,
    /// When the lease ends if it is not renewed.
    pub deadline: Instant,
    /// The time until the deadline; `None` if the deadline has passed.
    pub remaining: Option<Duration>,
    /// The number of the attempt at the holder's tick.
    pub attempt: u32,
    /// The previous tick, if it had not ended when this one was granted. That tick never runs again.
    pub overtook: Option<TickTime>,
}

impl Holding {
    /// Returns what the caller holds that has the place `index` among the local holders of a claim.
    pub(crate) fn new(now: Instant, claim: &Claim, held: &HeldLease, index: u64) -> Self {
        Holding {
            claim: claim.claim_id,
            fence: Fence::new(held.number, index),
            deadline: held.deadline,
            remaining: (now < held.deadline).then(|| held.deadline.since(now)),
            attempt: claim.attempt.number,
            overtook: claim.attempt.overtook,
        }
    }

    /// Returns whether the deadline has not passed.
    pub fn is_held(&self) -> bool {
        self.remaining.is_some()
    }
}

/// The callers that hold by a claim.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Holders {
    /// One caller, followed by the next of the line.
    One(LocalHolder),
    /// The number of readers that hold at once. `readers` finds them by ticket.
    Readers(u32),
}

/// One caller that holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalHolder {
    pub(crate) ticket: Ticket,
    /// How long the caller may hold, and what was reported of that.
    pub(crate) hold: HoldTime,
    /// When the lease is given back if the caller has not taken it up; `None` once a guard exists.
    pub(crate) unfetched: Option<Instant>,
}

impl LocalHolder {
    /// Returns a holder that is granted now, by a claim with this lease length.
    pub(crate) fn new(now: Instant, ticket: Ticket, max_hold: Option<Duration>, lease: Duration) -> Self {
        LocalHolder {
            ticket,
            hold: HoldTime::new(now, max_hold),
            unfetched: Some(now + lease),
        }
    }
}

impl HeldLease {
    /// Returns a lease that a claim is granted now.
    pub(super) fn new(
        now: Instant,
        claim: &Claim,
        number: GrantNumber,
        deadline: Instant,
        holders: Holders,
    ) -> Self {
        HeldLease {
            number,
            deadline,
            holders,
            index: 0,
            since: now,
            due: now + deadline.since(now).saturating_sub(claim.lease() / 3 * 2),
            ends: now + claim.record_lifetime(),
            is_asked_for: false,
            writes: 0,
        }
    }

    /// Returns the one caller that holds by the claim; `None` for readers.
    pub(crate) fn local(&self) -> Option<&LocalHolder> {
        match &self.holders {
            Holders::One(local) => Some(local),
            Holders::Readers(_) => None,
        }
    }
}

/// How long one caller has held, and may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldTime {
    pub(crate) since: Instant,
    pub(crate) max: Option<Duration>,
    /// The caller was told that its time is over.
    pub(crate) is_overdue: bool,
    /// [`HeldLong`](crate::protocol::step::KeyEvent::HeldLong) was reported.
    pub(crate) is_reported: bool,
}

impl HoldTime {
    fn new(now: Instant, max: Option<Duration>) -> Self {
        HoldTime {
            since: now,
            max,
            is_overdue: false,
            is_reported: false,
        }
    }

    /// Returns the same hold time for another ticket, which was not told yet that the time is over.
    pub(crate) fn under_another_ticket(self) -> HoldTime {
        HoldTime {
            is_overdue: false,
            ..self
        }
    }

    /// Returns when renewals stop; `None` without a limit.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.max.map(|max| self.since + max)
    }
}
