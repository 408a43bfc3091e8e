//! Requests without an answer, or with a refusal: they are repeated, asked for at another server, or reported to the waiting
//! callers.
//!
//! `protocol/claim/failures.rs` decides what a failure means for the claim. Here: `request_failed` tells the claim of it, `ask_outcome`
//! finds out what became of a claim without an answer, and `ask_elsewhere` repeats a request that was not executed.

use crate::error::{LostCause, StoreError};
use crate::protocol::claim::RequestKind;
use crate::protocol::context::StepContext;
use crate::protocol::failed_request::{FailedRequest, MAX_RETRY_PAUSE};
use crate::protocol::flaw::Flaw;
use crate::protocol::key::claims::Claimant;
use crate::protocol::key::key_state::{KeyState, Reclaim};
use crate::protocol::key::line::Caller;
use crate::protocol::message::ClaimNumber;
use crate::protocol::redirects::AskAgain;
use crate::protocol::step::{AcquireError, KeyEvent, Tag};

impl KeyState {
    pub(crate) fn failed(&mut self, cx: &mut StepContext<'_>, tag: Tag, failure: FailedRequest) {
        if let Some(claim) = self.claims.get_mut(tag.claim) {
            claim.note_late_renewal(cx.name.kind, tag.seq, &failure);
        } else if let Some(passed) = self.claims.passed_mut(tag.claim) {
            passed.note_late_renewal(cx.name.kind, tag.seq, &failure);
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
        self.request_failed(cx, tag.claim, kind, failure);
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
        if kind == RequestKind::Yield {
            self.error = Some(error);
            return self.yield_not_executed(cx, number, false);
        }
        let failure = FailedRequest::of_answer(cx.now, self.taken_at, error);
        self.request_failed(cx, number, kind, failure);
    }

    fn request_failed(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        kind: RequestKind,
        failure: FailedRequest,
    ) {
        // No caller waits for the answer to a leave.
        if kind != RequestKind::Leave {
            self.error = Some(failure.error.clone());
        }
        let late_after = failure.may_be_executed().then_some(failure.late_after);
        let event = self.claims[number].failed(cx, kind, failure);
        // The old number of a yield is dead here since the yield was sent, and is left now in any case.
        if kind == RequestKind::Yield
            && let Some(yielded) = self.claims[number].take_yielded()
        {
            cx.event(KeyEvent::LeaveRepeated);
            let claim = &self.claims[number];
            let (seq, unanswered) = (claim.seq(), claim.unanswered().cloned());
            let old = yielded.number();
            self.leave_old_number(cx, yielded, seq, unanswered);
            // A renewal of the old number may have been lost with the yield.
            if let Some(late_after) = late_after {
                self.claims[old].note_assertable(late_after);
            }
        }
        if kind == RequestKind::Pass
            && late_after.is_some()
            && cx.shard.plant.is(Flaw::DowngradeGivesUp)
            && self.claims[number].held_as_writer().is_some()
            && let Claimant::Solo(caller) = self.claims.take_claimant(number)
        {
            return cx.deny(caller.ticket, AcquireError::Lost(LostCause::Gone));
        }
        self.take_event(cx, number, event);
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

    /// Asks for the outcome of a claim or yield without an answer, if its callers still wait. A number is claimed once: the node
    /// never repeats the claim.
    pub(crate) fn ask_outcome(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        failure: &FailedRequest,
    ) {
        match self.claims.claimant(number) {
            Claimant::LineFollower => {
                self.claims.set_claimant(number, Claimant::Abandoned);
                self.claims_head_only = true;
            }
            Claimant::LineHead if self.line.is_empty() => {}
            Claimant::Abandoned => {}
            Claimant::LineHead | Claimant::Solo(_) => {
                cx.event(KeyEvent::OutcomeQueried);
                self.ask_or_wait(cx, number, failure);
            }
        }
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

    /// Asks again for a request that was not executed. The store is then asked again which server serves the key. A
    /// claim is asked for under a fresh number, because each number is claimed once.
    pub(crate) fn ask_elsewhere(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        kind: RequestKind,
        when: AskAgain,
    ) {
        if cx.shard.plant.is(Flaw::RedirectTakenForGone) && kind == RequestKind::Renew {
            return self.gone(cx, number);
        }
        let is_asked = self.claims[number].is_asked();
        // A renewal of a revoked lease is not repeated, and its claim is left when the guard is dropped.
        if self.claims[number].is_leaving() && kind != RequestKind::Leave {
            return;
        }
        match kind {
            RequestKind::Claim { .. } | RequestKind::Yield if is_asked => {
                self.claim_elsewhere(cx, number, when);
            }
            _ => match when {
                AskAgain::AtOnce => self.send_due_request(cx, number),
                AskAgain::AfterPause(pauses) => {
                    let pause = cx.shard.between(pauses);
                    self.claims[number].redirect(cx.now + pause);
                }
            },
        }
    }

    /// Ends a claim or a yield that was not executed, and lets its callers be claimed for again. The old number of a
    /// yield is dead here, and is left.
    fn claim_elsewhere(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, when: AskAgain) {
        if let Some(yielded) = self.claims[number].take_yielded() {
            let seq = self.claims[number].seq();
            self.leave_old_number(cx, yielded, seq, None);
        }
        let claimant = self.claims.claimant(number);
        self.claims.end(number);
        if let Claimant::Solo(caller) = claimant {
            self.solos.insert(caller.ticket, caller);
        }
        if let AskAgain::AfterPause(pauses) = when {
            let at = cx.now + cx.shard.between(pauses);
            self.reclaim.get_or_insert(Reclaim {
                at,
                after_failure: true,
            });
        }
    }
}
