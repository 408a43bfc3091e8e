//! A held lease, and the callers that hold by it.

use std::time::Duration;

use crate::protocol::message::{ClaimId, Fence, GrantNumber, TickTime};
use crate::protocol::step::{LockOptions, Rules, Ticket};
use crate::protocol::time::Instant;

/// A lease that callers of this process hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldLease {
    number: GrantNumber,
    deadline: Instant,
    holders: Holders,
    /// The place of the latest holder among the local holders of this grant.
    index: u64,
    /// When the burst began.
    since: Instant,
    /// When the lease is renewed next.
    due: Instant,
    /// The record in the store has ended by this time if no request extends it.
    ends: Instant,
    /// An operator asked for the lease: it is not handed on in this process.
    is_asked_for: bool,
    /// The number of writes under this lease that were sent and not answered. A write that is never answered counts
    /// to the end: it may be executed late, and would then pass for a write of the next holder.
    writes: u32,
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
    /// How long the lease is kept after the release.
    pub(crate) keep: Duration,
}

impl LocalHolder {
    /// Returns a holder that is granted now, by a claim with this lease length.
    pub(crate) fn new(now: Instant, ticket: Ticket, options: &LockOptions, lease: Duration) -> Self {
        LocalHolder {
            ticket,
            hold: HoldTime::new(now, options.max_hold),
            unfetched: Some(now + lease),
            keep: options.keep_of_lock(),
        }
    }
}

impl HeldLease {
    /// Returns a lease that a claim is granted now.
    pub(super) fn new(
        now: Instant,
        lease: Duration,
        ends: Instant,
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
            due: now + deadline.since(now).saturating_sub(lease / 3 * 2),
            ends,
            is_asked_for: false,
            writes: 0,
        }
    }

    pub(crate) fn number(&self) -> GrantNumber {
        self.number
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(crate) fn ends(&self) -> Instant {
        self.ends
    }

    /// Returns when the lease is renewed next.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Returns the place of the latest holder among the local holders of this grant.
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    /// Returns the one caller that holds by the claim; `None` for readers.
    pub(crate) fn local(&self) -> Option<&LocalHolder> {
        match &self.holders {
            Holders::One(local) => Some(local),
            Holders::Readers(_) => None,
        }
    }

    pub(super) fn local_mut(&mut self) -> Option<&mut LocalHolder> {
        match &mut self.holders {
            Holders::One(local) => Some(local),
            Holders::Readers(_) => None,
        }
    }

    /// Returns whether the lease is handed on in this process, to a caller with leases of this length at most. With less than a
    /// third of the lease left, the renewals are failing, and the next caller should not inherit that.
    pub(crate) fn is_handed_on(&self, now: Instant, rules: &Rules, lease: Duration) -> bool {
        now.since(self.since) < rules.burst_time && self.is_kept_on(now, rules, lease)
    }

    /// The same of a lease that was kept: the time of the burst starts again, and its count goes on.
    pub(super) fn is_kept_on(&self, now: Instant, rules: &Rules, lease: Duration) -> bool {
        self.index < u64::from(rules.burst) && self.deadline.since(now) >= lease / 3
    }

    /// Returns whether a write without an answer may still be executed under this lease.
    pub(crate) fn may_be_written(&self) -> bool {
        self.writes > 0
    }

    pub(crate) fn is_asked_for(&self) -> bool {
        self.is_asked_for
    }

    /// Hands the lease on to this caller, and returns its fence.
    pub(super) fn hand_on(&mut self, local: LocalHolder) -> Fence {
        self.holders = Holders::One(local);
        self.index += 1;
        Fence::new(self.number, self.index)
    }

    /// Hands the lease on after it had no holder, in a burst that begins now. Returns the fence of this caller.
    pub(super) fn hold_anew(&mut self, now: Instant, local: LocalHolder) -> Fence {
        self.since = now;
        self.hand_on(local)
    }

    /// Lets one more reader in, and returns its place among the local holders of the grant. `None` if one caller holds alone.
    pub(super) fn let_reader_in(&mut self) -> Option<u64> {
        let Holders::Readers(count) = &mut self.holders else {
            return None;
        };
        *count += 1;
        self.index += 1;
        Some(self.index)
    }

    /// Ends the holding of one reader, and returns how many are left.
    pub(super) fn let_reader_out(&mut self) -> Option<u32> {
        let Holders::Readers(count) = &mut self.holders else {
            return None;
        };
        *count -= 1;
        Some(*count)
    }

    /// Notes that an operator asks for the lease. Returns whether this is new.
    pub(super) fn note_asked(&mut self) -> bool {
        !std::mem::replace(&mut self.is_asked_for, true)
    }

    pub(super) fn begin_write(&mut self) {
        self.writes += 1;
    }

    pub(super) fn end_write(&mut self) {
        self.writes = self.writes.saturating_sub(1);
    }

    /// Notes a renewal: the record ends at `ends`.
    pub(super) fn note_renewed(&mut self, ends: Instant) {
        self.ends = ends;
    }

    /// Moves the deadline, never back.
    pub(super) fn extend(&mut self, deadline: Instant) {
        self.deadline = self.deadline.max(deadline);
    }

    /// Returns when the next renewal is due: when a third of the lease is over.
    ///
    /// A late renewal does not delay the next ones. An outage of the store makes all leases due at once. If the next
    /// renewals counted from the late ones, all leases of every node would stay in step for ever.
    ///
    /// `grid` moves a time back to a moment at which the node sends other renewals, too. The stored time lies there, so a
    /// renewal that came a little early is not due again at once.
    pub(super) fn next_renewal(
        &mut self,
        now: Instant,
        third: Duration,
        grid: impl Fn(Instant) -> Instant,
    ) -> Instant {
        let latest = now + self.deadline.since(now).saturating_sub(2 * third);
        self.due = grid(self.due);
        while self.due <= now {
            self.due = grid(self.due + third);
        }
        let next = self.due.min(latest);
        let until = self.local().and_then(|local| local.hold.until());
        until.map_or(next, |until| next.min(until))
    }

    /// Returns the same lease, held by this caller alone at this place among the local holders.
    pub(super) fn held_by(self, local: LocalHolder, index: u64) -> Self {
        HeldLease {
            index,
            holders: Holders::One(local),
            ..self
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
