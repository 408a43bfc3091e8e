//! Asks again for requests that a server did not execute because it does not serve the key.

use crate::protocol::claim::RequestKind;
use crate::protocol::context::StepContext;
use crate::protocol::flaw::Flaw;
use crate::protocol::key::claims::Claimant;
use crate::protocol::key::key_state::{KeyState, Reclaim};
use crate::protocol::message::ClaimNumber;
use crate::protocol::redirects::AskAgain;

impl KeyState {
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
