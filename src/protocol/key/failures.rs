//! Handles requests without an answer, or with a refusal: retries them, or reports the error to the waiting callers.

use crate::error::StoreError;
use crate::protocol::claim::RequestKind;
use crate::protocol::claim::held_lease::HeldLease;
use crate::protocol::context::StepContext;
use crate::protocol::failed_request::{FailedRequest, MAX_RETRY_PAUSE};
use crate::protocol::flaw::Flaw;
use crate::protocol::key::claims::Claimant;
use crate::protocol::key::key_state::{KeyState, Reclaim};
use crate::protocol::key::line::Caller;
use crate::protocol::message::ClaimNumber;
use crate::protocol::step::{AcquireError, KeyEvent, Tag};

impl KeyState {
    /// Notes a failed request of a claim. If an earlier request has no answer either, the callers get that error. The
    /// earlier request may have been executed, whatever the store says of its repeat.
    fn note_failure(
        &mut self,
        cx: &StepContext<'_>,
        number: ClaimNumber,
        kind: RequestKind,
        mut failure: FailedRequest,
    ) -> FailedRequest {
        // No caller waits for the answer to a leave.
        if !matches!(kind, RequestKind::Leave) {
            self.error = Some(failure.error.clone());
        }
        self.claims[number].note_failure(cx, &mut failure);
        failure
    }

    pub(crate) fn failed(&mut self, cx: &mut StepContext<'_>, tag: Tag, failure: FailedRequest) {
        let claim = match self.claims.get_mut(tag.claim) {
            None => self.claims.passed_mut(tag.claim),
            claim => claim,
        };
        if let Some(claim) = claim {
            claim.note_late_renewal(cx.name.kind, tag.seq, &failure);
        }
        if let Some(claim) = self.claims.get_mut(tag.claim)
            && claim.is_overtaken(tag.seq)
            && !claim.has_next_request()
        {
            // The leave has its answer.
            self.end_number(cx, tag.claim);
            return;
        }
        let Some(kind) = self.take_in_flight(tag) else {
            return;
        };
        let lease = self.claims[tag.claim].lease();
        if let Some(when) = self.redirects.note(cx.now, lease, failure.executed) {
            return self.ask_elsewhere(cx, tag.claim, kind, when);
        }
        let failure = self.note_failure(cx, tag.claim, kind, failure);
        match kind {
            RequestKind::Claim { .. } | RequestKind::Yield => {
                self.claim_failed(cx, tag.claim, &failure);
            }
            RequestKind::Renew | RequestKind::Assert => self.renew_failed(cx, tag.claim, kind, &failure),
            RequestKind::Leave => self.leave_failed(cx, tag.claim, &failure),
            RequestKind::Pass => self.pass_failed(cx, tag.claim, &failure),
        }
    }

    /// Handles a refusal of the store, which did nothing. Only callers that know already that the key is taken keep
    /// waiting.
    pub(crate) fn refused(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        kind: RequestKind,
        error: StoreError,
    ) {
        let failure = FailedRequest::of_answer(cx.now, self.taken_at, error);
        let failure = self.note_failure(cx, number, kind, failure);
        match kind {
            RequestKind::Claim { .. } => self.claim_not_executed(cx, number, &failure),
            RequestKind::Yield => self.yield_not_executed(cx, number, false),
            RequestKind::Renew | RequestKind::Assert => self.renew_failed(cx, number, kind, &failure),
            RequestKind::Leave => self.leave_failed(cx, number, &failure),
            RequestKind::Pass => self.pass_failed(cx, number, &failure),
        }
    }

    /// Counts a failure for the callers of a claim, and denies those that do not keep waiting. Returns the callers
    /// that are left, and the number of failures in a row.
    fn count_failed_claim(
        &mut self,
        cx: &mut StepContext<'_>,
        claimant: Claimant,
        failure: &FailedRequest,
    ) -> (Claimant, u32) {
        let now = cx.now;
        let deny = |caller: &Caller, cx: &mut StepContext<'_>| {
            cx.deny(caller.ticket, AcquireError::Store(failure.reported()));
        };
        match claimant {
            Claimant::LineHead => {
                self.failed_claims += 1;
                let failed_claims = self.failed_claims;
                let stays = |caller: &Caller| failure.keeps_waiting(caller.patience(), failed_claims, now);
                self.line.retain(stays, |caller| deny(caller, cx));
                if self.line.is_empty() {
                    self.failed_claims = 0;
                }
                (claimant, failed_claims)
            }
            Claimant::Solo(mut caller) => {
                caller.failed_claims += 1;
                if failure.keeps_waiting(caller.patience(), caller.failed_claims, now) {
                    (Claimant::Solo(caller), caller.failed_claims)
                } else {
                    deny(&caller, cx);
                    (Claimant::Abandoned, caller.failed_claims)
                }
            }
            Claimant::LineFollower => {
                self.claims_head_only = true;
                (Claimant::Abandoned, 0)
            }
            Claimant::Abandoned => (claimant, 0),
        }
    }

    /// Handles the callers of a claim that is over without a grant. Callers that keep waiting are claimed for again:
    /// at once after the first failure, and else after a pause.
    pub(crate) fn claim_again(
        &mut self,
        cx: &mut StepContext<'_>,
        claimant: Claimant,
        failure: &FailedRequest,
    ) {
        let (claimant, failed_claims) = self.count_failed_claim(cx, claimant, failure);
        let lease = match claimant {
            Claimant::Solo(caller) => {
                self.solos.insert(caller.ticket, caller);
                caller.lease()
            }
            Claimant::LineHead if !self.line.is_empty() => {
                self.line.front().map_or(MAX_RETRY_PAUSE, Caller::lease)
            }
            _ => return,
        };
        if failure.is_repeated_at_once(failed_claims) {
            return;
        }
        let pause = (lease / 16).min(MAX_RETRY_PAUSE);
        let at = cx.now + cx.shard.jittered(pause);
        let error = failure.error.clone();
        cx.event(KeyEvent::WaitFailed { error });
        self.reclaim.get_or_insert(Reclaim {
            at,
            after_failure: true,
        });
    }

    /// Handles a first request that was not executed. Its number leaves nothing behind.
    fn claim_not_executed(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, failure: &FailedRequest) {
        let claimant = self.claims.claimant(number);
        self.claims.end(number);
        self.claim_again(cx, claimant, failure);
    }

    /// Handles a claim or yield without an answer. A number is claimed once: the node asks for the outcome, and never
    /// repeats the claim.
    fn claim_failed(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, failure: &FailedRequest) {
        // The old number of a yield is dead here since the yield was sent, and is left now in any case.
        if let Some(yielded) = self.claims[number].take_yielded() {
            cx.event(KeyEvent::LeaveRepeated);
            let claim = &self.claims[number];
            let (seq, unanswered) = (claim.seq(), claim.unanswered().cloned());
            let old = yielded.number();
            self.leave_old_number(cx, yielded, seq, unanswered);
            // A renewal of the old number may have been lost with the yield.
            if failure.may_be_executed() {
                self.claims[old].note_assertable(failure);
            }
        }
        let claim = &mut self.claims[number];
        if claim.held().is_some() {
            // A push said more than the answer could have said.
            return self.schedule_renewal(cx, number);
        } else if claim.is_leaving() {
            // It was granted by a push, and lost since. It is left when its guard is dropped, or at its deadline.
            return;
        } else if !claim.is_asked() {
            return self.ask(cx, number, RequestKind::Renew);
        }
        if !failure.may_be_executed() {
            return self.claim_not_executed(cx, number, failure);
        }
        claim.note_executable(cx.now, failure);
        let claimant = self.claims.claimant(number);
        let is_wanted = match claimant {
            Claimant::LineHead => !self.line.is_empty(),
            Claimant::Solo(_) => true,
            Claimant::LineFollower | Claimant::Abandoned => false,
        };
        if !is_wanted {
            if claimant == Claimant::LineFollower {
                self.claims.set_claimant(number, Claimant::Abandoned);
                self.claims_head_only = true;
            }
            return;
        }
        cx.event(KeyEvent::OutcomeQueried);
        self.ask_or_wait(cx, number, failure);
    }

    /// Asks for the outcome of a claim, or repeats a request: at once for a bystander and after the first failure,
    /// else after a pause.
    pub(crate) fn ask_or_wait(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        failure: &FailedRequest,
    ) {
        let claim = &self.claims[number];
        if failure.is_bystander(cx.now, claim.lease()) {
            return self.ask(cx, number, RequestKind::Renew);
        }
        if self.continue_holding(cx, number, failure) {
            return;
        }
        let claimant = self.claims.claimant(number);
        let (claimant, failed_claims) = self.count_failed_claim(cx, claimant, failure);
        self.claims.set_claimant(number, claimant);
        let claim = &self.claims[number];
        let is_first = failure.is_repeated_at_once(failed_claims);
        match claimant {
            // No caller is left: `claim_for_line` finds the claim unwanted.
            Claimant::LineFollower | Claimant::Abandoned => {}
            Claimant::LineHead if self.line.is_empty() => {}
            _ if is_first && claim.is_asked() => {
                self.ask(cx, number, RequestKind::Renew);
            }
            _ => {
                let error = failure.error.clone();
                cx.event(KeyEvent::WaitFailed { error });
                self.claims[number].schedule_retry(cx);
            }
        }
    }

    pub(crate) fn renew_failed(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        kind: RequestKind,
        failure: &FailedRequest,
    ) {
        let claim = &mut self.claims[number];
        if claim.is_waiting() {
            return self.ask_or_wait(cx, number, failure);
        }
        let Some(deadline) = claim.held().map(HeldLease::deadline) else {
            return;
        };
        if failure.is_bystander(cx.now, claim.lease()) {
            if !self.check_overdue(cx, number) {
                self.ask(cx, number, RequestKind::Renew);
            }
            return;
        }
        let left = deadline.since(cx.now);
        let error = failure.error.clone();
        cx.event(KeyEvent::RenewFailed { left, error });
        claim.schedule_retry(cx);
        // A fixed lease is renewed for its caller only, which is told of the failure. No caller waits for an assertion.
        if claim.terms().is_fixed
            && kind != RequestKind::Assert
            && !cx.shard.plant.is(Flaw::FixedLeaseRenewedAlone)
        {
            claim.rest();
        }
    }

    fn leave_failed(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, failure: &FailedRequest) {
        if self.claims[number].leave_failed(cx, failure) {
            self.claims.end(number);
        }
    }
}
