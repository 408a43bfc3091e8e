//! What a request without an answer, or a refusal of the store, means for a claim.

use crate::protocol::claim::answers::{ClaimEvent, Ending};
use crate::protocol::claim::{Claim, RequestKind};
use crate::protocol::context::StepContext;
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::flaw::Flaw;
use crate::protocol::step::KeyEvent;

impl Claim {
    /// Handles a request that failed. If an earlier request has no answer either, the callers get the error of that one.
    pub(crate) fn failed(
        &mut self,
        cx: &mut StepContext<'_>,
        kind: RequestKind,
        mut failure: FailedRequest,
    ) -> Option<ClaimEvent> {
        let believes_all = cx.shard.plant.is(Flaw::RefusalBelieved);
        self.exchange.note_failure(&mut failure, believes_all);
        let creates = matches!(
            kind,
            RequestKind::Claim { .. } | RequestKind::Yield | RequestKind::Pass
        );
        match kind {
            RequestKind::Leave => return self.leave_failed(cx, &failure),
            // The claim was granted by a push, and lost since. It is left when its guard is dropped, or at its deadline.
            _ if self.is_leaving() => return None,
            // A push said more than the answer could have said.
            _ if creates && self.held().is_some() => return None,
            RequestKind::Renew | RequestKind::Assert if self.held().is_some() => {
                return self.holder_not_renewed(cx, kind, &failure);
            }
            RequestKind::Claim { .. } | RequestKind::Yield if !self.is_asked() => {
                return Some(ClaimEvent::RenewalDue);
            }
            _ => {}
        }
        if creates && failure.may_be_executed() {
            self.late.note_executable(failure.late_after.max(cx.now));
        }
        let failure = Box::new(failure);
        Some(match kind {
            RequestKind::Claim { .. } | RequestKind::Yield if failure.may_be_executed() => {
                ClaimEvent::Unanswered(failure)
            }
            RequestKind::Claim { .. } | RequestKind::Yield => ClaimEvent::Ended(Ending::NotExecuted(failure)),
            _ => ClaimEvent::Failed(failure),
        })
    }

    /// Repeats the renewal of a held lease: at once for a bystander, and else after a pause.
    fn holder_not_renewed(
        &mut self,
        cx: &mut StepContext<'_>,
        kind: RequestKind,
        failure: &FailedRequest,
    ) -> Option<ClaimEvent> {
        if failure.is_bystander(cx.now, self.lease()) {
            return Some(ClaimEvent::RenewalDue);
        }
        let left = self.held()?.deadline().since(cx.now);
        let error = failure.error.clone();
        cx.event(KeyEvent::RenewFailed { left, error });
        self.schedule_retry(cx);
        // A fixed lease is renewed for its caller only, which is told of the failure. No caller waits for an assertion.
        if self.terms.is_fixed
            && kind != RequestKind::Assert
            && !cx.shard.plant.is(Flaw::FixedLeaseRenewedAlone)
        {
            self.exchange.rest();
        }
        None
    }
}
