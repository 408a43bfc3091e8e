//! What the store says of a claim: grants, in answers and by push, and places in the queue.

use std::time::Duration;

use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::protocol::claim::held_lease::{HeldLease, Holders};
use crate::protocol::claim::{Claim, Phase};
use crate::protocol::context::StepContext;
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::flaw::Flaw;
use crate::protocol::message::{Fence, Grant, GrantNumber, QueueOwner, TickRefusal};
use crate::protocol::step::{Effect, KeyEvent, Outcome, Ticket, ms};
use crate::protocol::time::Instant;

/// The number of stale answers in a row after which the lease is left to others. It would otherwise be extended
/// without end, and never used.
const MAX_STALE_ANSWERS: u32 = 3;

/// The age of a grant, in µs, at which its push must have arrived. A push is never that much slower than an answer.
const MIN_MISSED_PUSH_US: u64 = 100_000;

/// What a message of the store or a timer means for the callers of a claim, and for the other claims of its key.
#[derive(Debug)]
#[must_use]
pub(crate) enum ClaimEvent {
    /// The claim has the lease, and its callers may hold it.
    Granted(Granted),
    /// The claim must be renewed now: its grant is too old to be used, or a renewal was lost with its connection.
    RenewalDue,
    /// The claim waits in the store's queue.
    Queued(QueuePosition),
    /// The lease is renewed.
    Renewed,
    /// The first request has no answer. The claim asks for its outcome, if its callers still wait.
    Unanswered(Box<FailedRequest>),
    /// A later request of a waiting claim failed. It is repeated, if the callers keep waiting.
    Failed(Box<FailedRequest>),
    /// The claim is over, and no caller held its lease.
    Ended(Ending),
    /// The lease of the callers is over.
    Lost(Loss),
    /// The caller has not taken up its grant for a whole lease.
    Unfetched(Ticket),
    /// The lease has been kept for as long as it may be, and is left.
    KeepEnded,
    /// The number is over: the store was told, or will not be.
    Left,
}

/// Why a claim is over that no caller held.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The store does not know the claim.
    Gone,
    /// The store did not execute the first request, and never will.
    NotExecuted(Box<FailedRequest>),
    /// An operator revoked the lease.
    Revoked,
    /// The store refuses to run the tick.
    Tick(TickRefusal),
    /// The fixed lease ended while its grant was in flight.
    LeaseEnded,
    /// Too little was left of the lease, again and again.
    TooOld(StoreError),
}

/// The loss of a lease that callers hold. They are told before the claim goes.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) cause: LostCause,
    pub(crate) after: AfterLoss,
}

/// What becomes of a claim whose callers have lost its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterLoss {
    /// It is left.
    Leave,
    /// It ends here, because the store does not know it.
    End,
    /// It is left when its last guard is dropped.
    LeaveWhenDropped,
}

impl ClaimEvent {
    pub(super) fn lost(cause: LostCause, after: AfterLoss) -> Option<Self> {
        Some(ClaimEvent::Lost(Loss { cause, after }))
    }
}

/// A grant that callers may hold. Only an answer or a push makes one, and [`Claim::hold`] consumes it.
#[derive(Debug)]
pub(crate) struct Granted {
    number: GrantNumber,
    deadline: Instant,
}

impl Granted {
    /// Returns a grant that nothing proves, for a planted mistake.
    pub(crate) fn unproven(number: GrantNumber, deadline: Instant) -> Self {
        Granted { number, deadline }
    }
}

/// The place of a claim in the store's queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuePosition {
    /// When the request was sent that was answered "queued".
    pub(crate) sent: Instant,
    /// When the owner's record ends, or the recovery, in milliseconds.
    pub(crate) left: Option<u64>,
    /// What is known of the owner.
    pub(crate) owner: QueueOwner,
    /// The server recovers, and grants nothing.
    pub(crate) is_recovering: bool,
}

impl QueuePosition {
    /// Returns the place of a claim that waits for the end of a recovery.
    pub(crate) fn recovering(sent: Instant, left: u64) -> Self {
        QueuePosition {
            sent,
            left: Some(left),
            owner: QueueOwner::Shared,
            is_recovering: true,
        }
    }

    /// Returns how long the server recovers, if it does.
    pub(crate) fn recovery(&self) -> Option<Duration> {
        self.left.map(ms).filter(|_| self.is_recovering)
    }
}

impl Claim {
    /// Lets these callers hold the lease. Returns the fence of the first of them.
    pub(crate) fn hold(&mut self, now: Instant, granted: Granted, holders: Holders) -> Fence {
        let Granted { number, deadline } = granted;
        let (lease, lifetime) = (self.lease(), self.record_lifetime());
        let ends = now + lifetime;
        self.phase = Phase::Held(HeldLease::new(now, lease, ends, number, deadline, holders));
        Fence::new(number, 0)
    }

    /// Ends a yield that is known to be executed. If the yield was a release, its caller gets the outcome now.
    pub(crate) fn finish_yield(&mut self, cx: &mut StepContext<'_>) {
        if let Some(ticket) = self.take_yielded().and_then(|yielded| yielded.release) {
            cx.released(ticket, Outcome::Held);
        }
    }

    /// Handles a grant in an answer. The lease counts from the sending of the answered request, because claim and
    /// renew of an owner extend its lease.
    pub(crate) fn granted(
        &mut self,
        cx: &mut StepContext<'_>,
        sent: Instant,
        grant: GrantNumber,
    ) -> Option<ClaimEvent> {
        let moves = cx.shard.beside_former_master(sent).is_none()
            || cx.shard.plant.is(Flaw::RenewedBesideFormerMaster);
        let deadline = self.deadline_by_answer(cx, sent, moves);
        self.finish_yield(cx);
        self.exchange.forget_unanswered();
        let (lease, hold) = (self.lease(), self.record_lifetime());
        // A writer that becomes a reader beside a former master goes on with what is left.
        let writer_deadline = self.held_as_writer().map(HeldLease::deadline);
        let goes_on = !moves && writer_deadline.is_some();
        // A fixed lease does not start again when its writer becomes a reader.
        let ends = writer_deadline.filter(|_| self.terms.is_fixed);
        let deadline = ends.map_or(deadline, |ends| deadline.min(ends));
        match &mut self.phase {
            Phase::Held(held) if held.number() == grant => {
                // A lease past its deadline was lost before this step got here: nothing revives it.
                let slack = held.deadline().since(cx.now);
                held.note_renewed(cx.now + hold);
                self.exchange.forget_failures();
                if !moves {
                    self.schedule_renewal_after_former_master(cx);
                    return None;
                }
                held.extend(deadline);
                cx.event(KeyEvent::Renewed { slack, lease });
                Some(ClaimEvent::Renewed)
            }
            // The lease is another one. No caller holds it.
            Phase::Held(_) => ClaimEvent::lost(LostCause::Gone, AfterLoss::Leave),
            Phase::Kept { .. } | Phase::Leaving(_) => None,
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                self.forget_executable();
                if ends.is_some_and(|ends| cx.now >= ends) {
                    Some(ClaimEvent::Ended(Ending::LeaseEnded))
                } else if deadline.since(cx.now) < lease / 3 && ends.is_none() && !goes_on {
                    self.grant_too_old(cx)
                } else {
                    self.exchange.forget_failures();
                    let number = grant;
                    Some(ClaimEvent::Granted(Granted { number, deadline }))
                }
            }
        }
    }

    /// Returns the deadline of a lease that was granted to a request sent at `sent`. A lease that continues another one lasts no
    /// longer than that one, unless it surely lasted when no former master could grant the key any more. `moves`: there is none.
    fn deadline_by_answer(&self, cx: &StepContext<'_>, sent: Instant, moves: bool) -> Instant {
        let from_reply = cx.shard.plant.is(Flaw::DeadlineFromReply);
        let deadline = if from_reply { cx.now } else { sent } + self.lease();
        let is_certain =
            |until: Instant| moves && (cx.now < until || cx.shard.former.until <= Some(self.created_at));
        match self.continued_until() {
            Some(until) if !is_certain(until) => deadline.min(until),
            _ => deadline,
        }
    }

    /// Has the inbox checked for a sign of life if the grant is so old that its push must have arrived. The number of
    /// a grant is the server's clock at the grant, so both times are of one clock. A grant that was given to the
    /// renewal itself is not pushed; it is as young as its answer.
    pub(crate) fn note_missed_push(&self, cx: &mut StepContext<'_>, time: u64, grant: GrantNumber) {
        if time.saturating_sub(grant.0) >= MIN_MISSED_PUSH_US && !cx.shard.plant.is(Flaw::SilentInboxTrusted)
        {
            cx.effects.push(Effect::PushMissed);
        }
    }

    /// Handles a grant of which too little is left to start with: the lease is renewed first, or given up after
    /// several tries.
    fn grant_too_old(&mut self, cx: &mut StepContext<'_>) -> Option<ClaimEvent> {
        cx.event(KeyEvent::AnswerStale);
        let (since, tries) = match self.phase {
            Phase::Confirming { since, tries } => (since, tries + 1),
            _ => (cx.now, 1),
        };
        self.phase = Phase::Confirming { since, tries };
        // The claim was granted, whatever the store says of its repeats.
        let error = StoreError::new(StoreErrorKind::TimedOut, "the answer came too late to be used");
        self.exchange.note_unanswered(error.clone());
        if tries >= MAX_STALE_ANSWERS {
            return Some(ClaimEvent::Ended(Ending::TooOld(error)));
        }
        self.schedule_confirmation(cx, tries);
        None
    }

    /// Handles "queued".
    pub(crate) fn queued(&mut self, cx: &mut StepContext<'_>, position: QueuePosition) -> Option<ClaimEvent> {
        self.finish_yield(cx);
        self.forget_executable();
        self.exchange.forget_unanswered();
        self.forbid_keep_after_queue(cx);
        match self.phase {
            // The request was executed before the pushed grant. The answer only says that t₀ could be younger.
            Phase::Confirming { since, tries } if position.sent < since => {
                self.schedule_confirmation(cx, tries + 1);
                None
            }
            // In `Confirming`, the request was sent when the grant was known here. So there is no grant, though one
            // was pushed.
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                self.phase = Phase::Queued {
                    t0: position.sent,
                    recovers_until: position.recovery().map(|left| position.sent + left),
                };
                self.exchange.forget_failures();
                Some(ClaimEvent::Queued(position))
            }
            // The store has no record of the lease yet: another record is there until it expires.
            Phase::Held(_) => {
                self.schedule_retry(cx);
                None
            }
            Phase::Kept { .. } | Phase::Leaving(_) => None,
        }
    }

    /// Handles the answer that the store does not know the claim.
    pub(crate) fn gone(&self, cx: &mut StepContext<'_>) -> Option<ClaimEvent> {
        if self.is_waiting() {
            cx.event(KeyEvent::Requeued);
        }
        self.ended(LostCause::Gone, AfterLoss::End, Ending::Gone)
    }

    /// Handles the store's refusal to run the tick. A holder loses its lease, as after "gone".
    pub(crate) fn tick_refused(&self, refusal: TickRefusal) -> Option<ClaimEvent> {
        self.ended(LostCause::Gone, AfterLoss::End, Ending::Tick(refusal))
    }

    /// Handles a claim whose lease an operator revoked.
    pub(crate) fn revoked(&mut self, cx: &mut StepContext<'_>) -> Option<ClaimEvent> {
        if self.held().is_some() {
            cx.event(KeyEvent::Revoked);
        } else if self.is_waiting() {
            // The claim was granted before this node learned of it.
            self.finish_yield(cx);
            cx.event(KeyEvent::Requeued);
        }
        self.ended(LostCause::Revoked, AfterLoss::LeaveWhenDropped, Ending::Revoked)
    }

    /// Returns what the end of the claim means: the callers lose the lease, or have none to lose.
    fn ended(&self, cause: LostCause, after: AfterLoss, ending: Ending) -> Option<ClaimEvent> {
        if self.held().is_some() {
            return ClaimEvent::lost(cause, after);
        }
        self.is_waiting().then_some(ClaimEvent::Ended(ending))
    }

    /// Returns whether a pushed grant is for this claim, and says something new.
    pub(crate) fn takes_push(&mut self, cx: &mut StepContext<'_>, grant: &Grant) -> bool {
        if self.claim_id != grant.claim_id {
            cx.event(KeyEvent::PushForged);
            return false;
        }
        match self.phase {
            Phase::Asked | Phase::Queued { .. } => {}
            Phase::Confirming { .. } | Phase::Held(_) | Phase::Kept { .. } => return false,
            Phase::Leaving(_) => {
                cx.event(KeyEvent::PushStale);
                return false;
            }
        }
        self.forget_executable();
        self.forbid_keep_after_queue(cx);
        self.note_attempt(grant.attempt, None);
        // A push that overtakes the answer to a yield proves that the yield was executed. That answer may be ignored
        // later, as when the number is left at once because no caller wants it.
        self.finish_yield(cx);
        true
    }

    /// Handles a pushed grant. "Queued" was answered to a request that was sent at t₀, and proves that this number
    /// had no grant before t₀. So the grant came later, and lasts at least until t₀ + lease. No clocks are compared.
    pub(crate) fn pushed(&mut self, cx: &mut StepContext<'_>, grant: &Grant) -> Option<ClaimEvent> {
        let t0 = match self.phase {
            Phase::Queued { t0, .. } => t0,
            _ => self.created_at,
        };
        let lease = self.lease().min(ms(grant.lease_ms));
        let deadline = t0 + lease;
        // The successor of a master may have answered "queued" after the former master pushed a grant.
        let is_of_former =
            grant.number <= cx.shard.former.highest && !cx.shard.plant.is(Flaw::FormerPushUsed);
        // A fixed lease starts with an answer, so that its holder gets the full length.
        let confirms = self.terms.is_fixed || !cx.shard.rules.final_push || is_of_former;
        if confirms || deadline.since(cx.now) < lease / 3 {
            cx.event(KeyEvent::PushConfirming);
            self.phase = Phase::Confirming {
                since: cx.now,
                tries: 0,
            };
            return self.exchange.is_idle().then_some(ClaimEvent::RenewalDue);
        }
        cx.event(KeyEvent::PushUsed);
        self.exchange.forget_failures();
        let number = grant.number;
        Some(ClaimEvent::Granted(Granted { number, deadline }))
    }
}
