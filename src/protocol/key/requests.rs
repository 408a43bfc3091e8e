//! The claims that the callers of a key need, and the requests of each claim.

use crate::error::StoreError;
use crate::protocol::claim::Yielded;
use crate::protocol::claim::{Claim, RequestKind};
use crate::protocol::context::StepContext;
use crate::protocol::flaw::Flaw;
use crate::protocol::key::claims::{Claimant, ListedClaim};
use crate::protocol::key::key_state::{KeyState, Renewal};
use crate::protocol::key::line::Caller;
use crate::protocol::key::replies::POLL_PAUSES;
use crate::protocol::message::{ClaimNumber, Mode};
use crate::protocol::step::{KeyEvent, LockOptions, Ticket};

/// The greatest number of callers of a line with claims at one time, while there are permits.
const MAX_LINE_CLAIMS: usize = 16;

impl KeyState {
    /// Reports a grant that came because the previous owner did not renew, as far as this node can know. Fixed leases
    /// run out as they should.
    pub(crate) fn note_inheritance(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let (owner_ends, from) = (self.owner_ends.take(), self.owner.take());
        let ran_out = owner_ends.is_some_and(|ends| ends <= cx.now);
        if ran_out && !self.claims[number].terms().is_fixed {
            cx.event(KeyEvent::Inherited { from });
        }
    }

    /// Claims for the callers that have no claim, and leaves the claims that no caller wants.
    pub(crate) fn claim_for_line(&mut self, cx: &mut StepContext<'_>) {
        if self.open_claim.is_some() {
            self.let_readers_in(cx);
        }
        for number in self.claims.unsettled() {
            let Some(ListedClaim { claim, claimant }) = self.claims.listed(number) else {
                continue;
            };
            let wanted = match claimant {
                Claimant::LineHead => claim.held().is_some() || self.line.mode() == Some(claim.terms().mode),
                Claimant::Solo(_) | Claimant::LineFollower => true,
                Claimant::Abandoned => false,
            };
            // The answer to the request in flight decides.
            let is_undecided = claim.is_asked() && !claim.is_idle();
            if wanted || is_undecided || claim.is_leaving() || claim.is_in_flight(RequestKind::Leave) {
                continue;
            }
            if cx.shard.plant.is(Flaw::CancelledForgotten) {
                self.claims.end(number);
            } else {
                self.leave(cx, number, None);
            }
        }
        // A pause that is over is removed at once, because its timer would fire without end.
        self.reclaim = self.reclaim.filter(|reclaim| cx.now < reclaim.at);
        if self.reclaim.is_some() {
            return;
        }
        if !self.solos.is_empty() {
            self.claim_for_solos(cx);
        }
        let Some(head) = self.line.front() else {
            return;
        };
        let options = head.options;
        if self.claims.head_claim().is_none() {
            self.claim(cx, Claimant::LineHead, &options, self.line.has_patient());
        }
        if matches!(options.mode, Mode::Permits(_)) {
            self.claim_for_followers(cx);
        }
    }

    /// Claims for the callers that want a claim of their own, except those that rest.
    fn claim_for_solos(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.now;
        let is_due = |(_, caller): &(&Ticket, &Caller)| caller.entered <= now;
        while let Some(ticket) = self.solos.iter().find(is_due).map(|(ticket, _)| *ticket)
            && let Some(caller) = self.solos.remove(&ticket)
        {
            let claimant = Claimant::Solo(caller);
            self.claim(cx, claimant, &caller.options, caller.options.wait);
        }
    }

    /// Claims for callers behind the first of the line in the same round trip, while there are permits. Only the
    /// claim of the first may wait in the store.
    fn claim_for_followers(&mut self, cx: &mut StepContext<'_>) {
        let head_claim = self
            .claims
            .head_claim()
            .and_then(|number| self.claims.get(number));
        let is_new = head_claim.is_some_and(|claim| claim.is_asked());
        if self.claims_head_only || !is_new {
            return;
        }
        let behind = 1 + self.claims.follower_claims();
        let next = self.line.iter().take(MAX_LINE_CLAIMS).skip(behind);
        let options: Vec<_> = next.map(|caller| caller.options).collect();
        for options in options {
            self.claim(cx, Claimant::LineFollower, &options, false);
        }
    }

    pub(crate) fn claim(
        &mut self,
        cx: &mut StepContext<'_>,
        claimant: Claimant,
        options: &LockOptions,
        wait: bool,
    ) {
        let claim_id = cx.shard.next_claim_id();
        let claim = Claim::new(claim_id, options.terms(), cx.now);
        self.claims.insert(claim, claimant);
        self.ask(cx, claim_id.claim, RequestKind::Claim { wait });
    }

    /// Leaves a claim. Its number is dead here from now on, whatever the store answers.
    pub(crate) fn leave(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, release: Option<Ticket>) {
        let claim = &mut self.claims[number];
        claim.begin_leave(cx, release);
        let passed = claim.take_passed();
        if !self.claims[number].is_leaving() {
            self.claims.set_claimant(number, Claimant::LineHead);
        }
        self.ask(cx, number, RequestKind::Leave);
        if let Some(old) = passed {
            self.leave_passed(cx, old);
        }
    }

    /// Yields the lease to other nodes, and claims again at the end of the queue for the first caller of the line.
    pub(crate) fn yield_(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, release: Option<Ticket>) {
        // Without a local caller there is nothing to claim again.
        let Some(options) = self.line.front().map(|head| head.options) else {
            return self.leave(cx, number, release);
        };
        if !cx.shard.rules.queues {
            // Other nodes claim meanwhile.
            self.poll_after(cx, POLL_PAUSES.0);
            return self.leave(cx, number, release);
        }
        // The yield would not undo a late assertion of the old number. A leave is repeated.
        let old = &self.claims[number];
        if old.is_in_flight(RequestKind::Renew) || old.is_assertable(cx.now) {
            return self.leave(cx, number, release);
        }
        let Some(ListedClaim { claim: old, .. }) = self.claims.remove(number) else {
            return;
        };
        let mut claim_id = cx.shard.next_claim_id();
        if cx.shard.plant.is(Flaw::YieldKeepsNumber) {
            claim_id = old.id();
        }
        let claim = old.yield_to(claim_id, options.terms(), cx.now, release);
        self.claims.insert(claim, Claimant::LineHead);
        cx.event(KeyEvent::Yielded);
        self.ask(cx, claim_id.claim, RequestKind::Yield);
    }

    /// Leaves a number that is dead here: the old number of a yield or pass, or an unknown one. `unanswered` is the
    /// error of the yield, which may have been executed. `seq` is the number of requests so far.
    pub(crate) fn leave_old_number(
        &mut self,
        cx: &mut StepContext<'_>,
        yielded: Yielded,
        seq: u32,
        unanswered: Option<StoreError>,
    ) {
        let number = yielded.number();
        let claim = Claim::dead(yielded, cx.now, seq, unanswered);
        self.claims.insert(claim, Claimant::Abandoned);
        self.ask(cx, number, RequestKind::Leave);
    }

    /// Sends a request of the claim. An answer to an earlier request is ignored from now on.
    pub(crate) fn ask(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, kind: RequestKind) {
        let is_its = |renewal: &Renewal| {
            let held = self.held_by(renewal.holder);
            held.is_some_and(|(claim, ..)| claim.number() == number)
        };
        let is_asked_for =
            self.renewals.iter().any(is_its) || cx.shard.plant.is(Flaw::FixedLeaseRenewedAlone);
        let listed = self.claims.listed(number).filter(|_| !self.values.is_empty());
        let data = listed.and_then(ListedClaim::ticket).and_then(|ticket| {
            let value = self.values.iter().find(|(of, _)| *of == ticket);
            value.map(|(_, value)| value.clone())
        });
        self.claims[number].ask(cx, kind, is_asked_for, data);
    }
}
