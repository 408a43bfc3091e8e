//! Leases that are kept without a holder: which are, which caller gets one, and when they are left.

use crate::protocol::claim::held_lease::LocalHolder;
use crate::protocol::claim::kept::MAX_KEPT;
use crate::protocol::claim::{Claim, RequestKind};
use crate::protocol::context::StepContext;
use crate::protocol::flaw::Flaw;
use crate::protocol::key::key_state::KeyState;
use crate::protocol::message::{ClaimId, ClaimNumber};
use crate::protocol::step::{Effect, KeyEvent, Outcome, Ticket};
use crate::protocol::time::Instant;

impl KeyState {
    /// Ends the last local holding of a lease: keeps the lease for the next local caller, or leaves it.
    pub(crate) fn keep_or_leave(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        release: Option<Ticket>,
    ) {
        let is_alone = || {
            let mut others = self.claims.iter().filter(|claim| claim.number() != number);
            self.solos.is_empty() && self.calls.is_none() && others.all(Claim::is_leaving)
        };
        let may_be_kept = cx.shard.kept < MAX_KEPT && !cx.shard.is_closed && is_alone();
        if !may_be_kept || !self.claims[number].keep(cx) {
            return self.leave(cx, number, release);
        }
        cx.shard.kept += 1;
        if let Some(ticket) = release {
            cx.released(ticket, Outcome::Held);
        }
    }

    /// Gives the kept lease to the first caller of the line, or leaves it if it does not suit. The caller is then claimed for
    /// as on a free key.
    pub(crate) fn use_kept(&mut self, cx: &mut StepContext<'_>) {
        let Some(claim) = self
            .claims
            .get_mut(self.last_held)
            .filter(|claim| claim.is_kept())
        else {
            return;
        };
        let (number, lease) = (claim.number(), claim.lease());
        let next = self
            .line
            .front()
            .filter(|next| self.solos.is_empty() && claim.suits(cx, &next.options));
        let Some(next) = next.copied() else {
            return self.leave(cx, number, None);
        };
        let local = LocalHolder::new(cx.now, next.ticket, &next.options, lease);
        let Some(fence) = claim.reuse(cx, local) else {
            return;
        };
        cx.shard.kept -= 1;
        self.line.pop();
        self.taken_at = Some(cx.now);
        cx.event(KeyEvent::Reused);
        cx.effects.push(Effect::Granted(next.ticket, fence));
        self.plan_renewal(cx, number);
    }

    /// Handles a push that says that another claim wants the key. The push may overtake the answer that grants the lease.
    pub(crate) fn recalled(&mut self, cx: &mut StepContext<'_>, claim_id: ClaimId) {
        let claim = self.claims.get_mut(claim_id.claim);
        let Some(claim) = claim.filter(|claim| claim.id() == claim_id && !claim.is_leaving()) else {
            return;
        };
        cx.event(KeyEvent::Recalled);
        let is_ignored = cx.shard.plant.is(Flaw::RecallIgnored)
            || claim.is_asked() && cx.shard.plant.is(Flaw::EarlyRecallForgotten);
        if !is_ignored {
            self.recall(cx, claim_id.claim);
        }
    }

    /// Keeps no lease of the key: a recall may be missed, or the lease is elsewhere.
    pub(crate) fn recall_all(&mut self, cx: &mut StepContext<'_>) {
        if cx.shard.plant.is(Flaw::KeptUnconfirmed) && !cx.shard.is_closed {
            return;
        }
        for number in self.claims.all() {
            self.recall(cx, number);
        }
    }

    /// Leaves the claim if it is kept, and does not keep it later.
    fn recall(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let claim = &mut self.claims[number];
        claim.forbid_keep();
        if claim.is_kept() && cx.shard.plant.is(Flaw::KeptUsedAfterLeave) && !cx.shard.is_closed {
            return self.ask(cx, number, RequestKind::Leave);
        }
        if claim.is_kept() {
            self.leave(cx, number, None);
        }
    }

    /// Returns the claim that is kept, when it is left, and the deadline of its lease.
    pub(crate) fn kept(&self) -> Option<(&Claim, Instant, Instant)> {
        let claim = self.claims.iter().find(|claim| claim.is_kept())?;
        Some((claim, claim.kept_until()?, claim.kept_lease()?.deadline()))
    }

    /// Leaves the kept lease, because this process wants no lease to be left.
    pub(crate) fn leave_kept(&mut self, cx: &mut StepContext<'_>) {
        self.expire_due(cx);
        self.recall_all(cx);
        self.end_step(cx);
    }
}
