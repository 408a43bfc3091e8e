//! A kept lease: a lease that stays with this node after its last local release, for the next local caller.
//!
//! A kept lease has no holder and no request in flight. One timer leaves it. It is never renewed or asserted. The record
//! has a mark, so that the store tells the node when another claim wants the key: it *recalls* the lease, as the callbacks
//! of Chubby (Burrows, 2006) and the delegations of NFSv4 (RFC 7530) do. A lease is kept only while such a push would
//! arrive, and if none can have been missed: the mark counts only until the claim sends another request.

use std::time::Duration;

use crate::protocol::claim::answers::ClaimEvent;
use crate::protocol::claim::held_lease::{HeldLease, LocalHolder};
use crate::protocol::claim::{Claim, Phase, RequestKind};
use crate::protocol::context::StepContext;
use crate::protocol::flaw::Flaw;
use crate::protocol::message::Fence;
use crate::protocol::step::{InboxState, LockOptions};
use crate::protocol::time::Instant;

/// The greatest number of leases that a shard keeps.
pub(crate) const MAX_KEPT: usize = 1_024;

impl Claim {
    /// Lets the lease be kept, if it is granted at once to a caller that wants that. A push must be sure to reach this node, and
    /// a claim that waits at the store must be there to cause one.
    pub(crate) fn let_keep(&mut self, cx: &StepContext<'_>, options: &LockOptions, wait: bool) {
        let is_told = cx.shard.inbox == InboxState::Confirmed || cx.shard.plant.is(Flaw::KeptUnconfirmed);
        let rules = &cx.shard.rules;
        self.may_keep =
            wait && !options.keep_of_lock().is_zero() && is_told && rules.queues && rules.masters == 0;
    }

    /// Notes that another claim may want the key.
    pub(crate) fn forbid_keep(&mut self) {
        self.may_keep = false;
    }

    /// Notes that the claim was queued, so that its record has no mark.
    pub(super) fn forbid_keep_after_queue(&mut self, cx: &StepContext<'_>) {
        self.may_keep &= cx.shard.plant.is(Flaw::KeptAfterPush);
    }

    pub(crate) fn may_keep(&self) -> bool {
        self.may_keep
    }

    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.phase, Phase::Kept { .. })
    }

    /// Keeps the lease after its last local release, if that is allowed. Returns whether it is kept.
    pub(crate) fn keep(&mut self, cx: &StepContext<'_>) -> bool {
        let Phase::Held(held) = &self.phase else {
            return false;
        };
        let keep = held.local().map_or(Duration::ZERO, |local| local.keep);
        let may_be_written = held.may_be_written() && !cx.shard.plant.is(Flaw::KeptUnanswered);
        let keeps = self.may_keep && !keep.is_zero() && !may_be_written && cx.now < held.due();
        if keeps {
            let latest = match cx.shard.plant.is(Flaw::KeptPastRenewal) {
                true => cx.now + keep,
                false => held.due().min(cx.now + keep),
            };
            let until = cx.shard.on_grid(latest, keep.min(self.lease() / 3));
            self.phase = Phase::Kept { held: *held, until };
            self.exchange.rest();
        }
        keeps
    }

    /// Returns whether the kept lease suits a caller with these options.
    pub(crate) fn suits(&self, cx: &StepContext<'_>, options: &LockOptions) -> bool {
        let Phase::Kept { held, .. } = &self.phase else {
            return false;
        };
        let lease = self.lease();
        options.lease() <= lease
            && options.mode == self.terms.mode
            && !options.together
            && held.is_kept_on(cx.now, &cx.shard.rules, lease)
    }

    /// Lets this caller hold the kept lease, and returns its fence.
    pub(crate) fn reuse(&mut self, cx: &StepContext<'_>, local: LocalHolder) -> Option<Fence> {
        let Phase::Kept { mut held, .. } = self.phase else {
            return None;
        };
        let index = held.index();
        let mut fence = held.hold_anew(cx.now, local);
        if cx.shard.plant.is(Flaw::KeptIndexTwice) {
            held = held.held_by(local, index);
            fence = Fence::new(held.number(), index);
        }
        self.phase = Phase::Held(held);
        Some(fence)
    }

    /// Returns the end of the keep, if it has come.
    pub(super) fn expire_kept(&self, cx: &StepContext<'_>) -> Option<ClaimEvent> {
        self.kept_until()
            .filter(|until| *until <= cx.now)
            .map(|_| ClaimEvent::KeepEnded)
    }

    /// Returns the lease that is kept.
    pub(crate) fn kept_lease(&self) -> Option<&HeldLease> {
        match &self.phase {
            Phase::Kept { held, .. } => Some(held),
            _ => None,
        }
    }

    /// Returns when the kept lease is left.
    #[inline]
    pub(crate) fn kept_until(&self) -> Option<Instant> {
        match self.phase {
            Phase::Kept { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Takes the mark for the request that is sent now. Only the first request has it, and each later one ends it.
    pub(super) fn take_mark(&mut self, kind: RequestKind) -> bool {
        self.may_keep &= matches!(kind, RequestKind::Claim { .. });
        self.may_keep
    }
}
