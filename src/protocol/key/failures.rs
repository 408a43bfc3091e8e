//! What becomes of requests that are not answered, or refused, and of those who wait for the answer.

use crate::error::StoreError;
use crate::protocol::failing::{Failing, LONGEST_RETRY};
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::key::claim::{Claimant, Phase, RequestKind};
use crate::protocol::key::context::StepContext;
use crate::protocol::key::key_state::{KeyState, Reclaim};
use crate::protocol::key::line::Caller;
use crate::protocol::message::{ClaimNumber, Reply, Unanswered};
use crate::protocol::step::{AcquireError, KeyEvent, Outcome, Tag};
use crate::protocol::time::Instant;

impl<P: Plant> KeyState<P> {
    /// A request of a claim came to nothing. If an earlier one has no answer, either, that is what is told: it may have been
    /// executed, whatever the store says of its repeat.
    fn failing(&mut self, number: ClaimNumber, mut failing: Failing) -> Failing {
        self.error = Some(failing.error.clone());
        let believes_all = self.plant.planted(Flaw::RefusalBelieved);
        failing.note_first(&mut self.claims[number].unanswered, believes_all);
        failing
    }

    pub(crate) fn failed(
        &mut self,
        cx: &mut StepContext<'_>,
        tag: Tag,
        late_after: Instant,
        failing: Failing,
    ) {
        let Some(asked) = self.take_asked(tag) else {
            return;
        };
        let failing = self.failing(tag.claim, failing);
        match asked {
            RequestKind::Claim { .. } | RequestKind::Yield => {
                self.claim_failed(cx, tag.claim, late_after, &failing);
            }
            RequestKind::Renew => self.renew_failed(cx, tag.claim, &failing),
            RequestKind::Leave => self.leave_failed(cx, tag.claim, &failing),
            RequestKind::Pass => self.pass_failed(cx, tag.claim, late_after, &failing),
        }
    }

    /// The store refused the request and did nothing. Only callers who know already that somebody has the key go on
    /// waiting.
    pub(crate) fn refused(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        asked: RequestKind,
        error: StoreError,
    ) {
        let failing = Failing::of_answer(self.taken, error);
        let failing = self.failing(number, failing);
        match asked {
            RequestKind::Claim { .. } => self.claim_undone(cx, number, &failing),
            RequestKind::Yield => {
                let refusal = Reply::NotThere;
                self.yield_undone(cx, number, &refusal);
            }
            RequestKind::Renew => self.renew_failed(cx, number, &failing),
            RequestKind::Leave => self.leave_failed(cx, number, &failing),
            RequestKind::Pass => self.pass_failed(cx, number, cx.now, &failing),
        }
    }

    /// Counts a failure for those for whom a claim is. Whoever does not go on is told. Says who is left, and how many
    /// failures in a row that was.
    fn count_failed_claim(
        &mut self,
        cx: &mut StepContext<'_>,
        claimant: Claimant,
        failing: &Failing,
    ) -> (Claimant, u32) {
        let now = cx.now;
        let deny = |caller: &Caller, cx: &mut StepContext<'_>| {
            cx.deny(caller.ticket, AcquireError::Store(failing.told.clone()));
        };
        match claimant {
            Claimant::Cohort => {
                self.failed_claims += 1;
                let failed_claims = self.failed_claims;
                let stays = |caller: &Caller| failing.keeps_waiting(caller.patience(), failed_claims, now);
                self.line.retain(stays, |caller| deny(caller, cx));
                if self.line.is_empty() {
                    self.failed_claims = 0;
                }
                (claimant, failed_claims)
            }
            Claimant::Solo(mut caller) => {
                caller.failed_claims += 1;
                if failing.keeps_waiting(caller.patience(), caller.failed_claims, now) {
                    (Claimant::Solo(caller), caller.failed_claims)
                } else {
                    deny(&caller, cx);
                    (Claimant::Abandoned, caller.failed_claims)
                }
            }
            Claimant::Ahead => {
                self.asks_for_one = true;
                (Claimant::Abandoned, 0)
            }
            Claimant::Abandoned => (claimant, 0),
        }
    }

    /// A claim is over and was for nothing: whoever goes on waiting is claimed for again, the first time at once.
    pub(crate) fn claim_again(&mut self, cx: &mut StepContext<'_>, claimant: Claimant, failing: &Failing) {
        let (claimant, failed_claims) = self.count_failed_claim(cx, claimant, failing);
        let lease = match claimant {
            Claimant::Solo(caller) => {
                self.solos.insert(caller.ticket, caller);
                caller.lease()
            }
            Claimant::Cohort if !self.line.is_empty() => {
                self.line.front().map_or(LONGEST_RETRY, Caller::lease)
            }
            _ => return,
        };
        if failing.is_repeated_at_once(failed_claims) {
            return;
        }
        let pause = (lease / 16).min(LONGEST_RETRY);
        let at = cx.now + cx.source.jittered(pause);
        let error = failing.error.clone();
        cx.event(KeyEvent::WaitFailed { error });
        self.reclaim.get_or_insert(Reclaim {
            at,
            after_failure: true,
        });
    }

    /// A first request was not executed: its number leaves nothing behind.
    fn claim_undone(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, failing: &Failing) {
        let claimant = self.claims[number].claimant;
        self.claims.end(number);
        self.claim_again(cx, claimant, failing);
    }

    /// Single use: the answer to a claim that got lost is asked for, the claim is never sent again.
    fn claim_failed(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        late_after: Instant,
        failing: &Failing,
    ) {
        // The older half of a yield is dead here since it was sent, and is left now whatever happened.
        if let Some(yielded) = self.claims[number].take_yielded() {
            cx.event(KeyEvent::LeaveRepeated);
            let claim = &self.claims[number];
            let (seq, unanswered) = (claim.seq, claim.unanswered.clone());
            self.leave_old_number(cx, yielded, seq, unanswered);
        }
        let claim = &mut self.claims[number];
        match claim.phase {
            Phase::Asked => {}
            // A push told us more than the answer could have.
            Phase::Held(_) => return self.schedule(cx, number),
            _ => return self.ask(cx, number, RequestKind::Renew),
        }
        if !failing.may_be_executed() {
            return self.claim_undone(cx, number, failing);
        }
        claim.may_execute_until = Some(late_after.max(cx.now));
        let is_wanted = match claim.claimant {
            Claimant::Cohort => !self.line.is_empty(),
            Claimant::Solo(_) => true,
            Claimant::Ahead | Claimant::Abandoned => false,
        };
        if !is_wanted {
            if claim.claimant == Claimant::Ahead {
                claim.claimant = Claimant::Abandoned;
                self.asks_for_one = true;
            }
            return;
        }
        cx.event(KeyEvent::Asking);
        self.ask_or_wait(cx, number, failing);
    }

    /// Asks what became of a claim, or the same again: at once for a bystander, and after the first failure.
    pub(crate) fn ask_or_wait(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, failing: &Failing) {
        let claim = &self.claims[number];
        if failing.is_bystander(cx.now, claim.lease()) {
            return self.ask(cx, number, RequestKind::Renew);
        }
        if self.keeps_holding(cx, number, failing) {
            return;
        }
        let claimant = self.claims[number].claimant;
        let (claimant, failed_claims) = self.count_failed_claim(cx, claimant, failing);
        let claim = &mut self.claims[number];
        claim.claimant = claimant;
        let is_first = failing.is_repeated_at_once(failed_claims);
        match claimant {
            // Nobody is left: it will be found unwanted.
            Claimant::Ahead | Claimant::Abandoned => {}
            Claimant::Cohort if self.line.is_empty() => {}
            _ if is_first && matches!(claim.phase, Phase::Asked) => {
                self.ask(cx, number, RequestKind::Renew);
            }
            _ => {
                let error = failing.error.clone();
                cx.event(KeyEvent::WaitFailed { error });
                self.schedule_retry(cx, number);
            }
        }
    }

    fn renew_failed(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, failing: &Failing) {
        let claim = &self.claims[number];
        match claim.phase {
            Phase::Leaving(_) => {}
            Phase::Held(_) if failing.is_bystander(cx.now, claim.lease()) => {
                if !self.is_overdue(cx, number) {
                    self.ask(cx, number, RequestKind::Renew);
                }
            }
            Phase::Held(held) => {
                let left = held.deadline.since(cx.now);
                let error = failing.error.clone();
                cx.event(KeyEvent::RenewFailed { left, error });
                self.schedule_retry(cx, number);
                // A fixed lease is renewed for its caller only, which is told of the failure.
                let claim = &mut self.claims[number];
                if claim.fixed && !self.plant.planted(Flaw::FixedLeaseRenewedAlone) {
                    (claim.act, claim.retries) = (None, false);
                }
            }
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                self.ask_or_wait(cx, number, failing);
            }
        }
    }

    /// Sends the leave again, until the lease has ended by itself.
    fn leave_failed(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, failing: &Failing) {
        let claim = &mut self.claims[number];
        let is_bystander = failing.is_bystander(cx.now, claim.lease());
        let Phase::Leaving(leaving) = &mut claim.phase else {
            return;
        };
        cx.event(KeyEvent::LeaveRepeated);
        let is_over = cx.now >= leaving.until;
        let immediate = is_bystander || (claim.failed_requests == 0 && failing.why != Unanswered::Down);
        if (is_over || !immediate)
            && let Some(ticket) = leaving.release.take()
        {
            cx.released(ticket, Outcome::Failed(failing.told.clone()));
        }
        if is_over {
            let error = Some(failing.error.clone());
            cx.event(KeyEvent::LeaveFailed { error });
            self.claims.end(number);
        } else if immediate {
            claim.failed_requests += u32::from(!is_bystander);
            self.ask(cx, number, RequestKind::Leave);
        } else {
            self.schedule_retry(cx, number);
        }
    }
}
