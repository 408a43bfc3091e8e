//! The store's answers to a key.
//!
//! What an answer means for its claim is decided in [`claim`](crate::protocol::claim); what it means for the callers is
//! decided here.

use std::time::Duration;

use crate::error::{LostCause, StoreError};
use crate::protocol::claim::RequestKind;
use crate::protocol::claim::answers::{ClaimEvent, Ending, QueuePosition};
use crate::protocol::context::StepContext;
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::flaw::Flaw;
use crate::protocol::key::claims::{Claimant, ListedClaim};
use crate::protocol::key::key_state::{KeyState, Reclaim};
use crate::protocol::key::line::Caller;
use crate::protocol::message::{ClaimNumber, ClaimReply, GrantReply, Mode, QueueOwner, Reply, TickRefusal};
use crate::protocol::step::{AcquireError, AnswerTimes, Effect, KeyEvent, Outcome, Tag, WhyDenied, ms};
use crate::protocol::time::Instant;

/// The first and the longest pause before a busy key of a store without a queue is claimed again.
pub(crate) const POLL_PAUSES: (Duration, Duration) = (ms(30), ms(250));

/// The shortest time between two reports that the capacity of a semaphore differs, for all semaphores of a shard.
const CAPACITY_REPORT_PERIOD: Duration = Duration::from_secs(60);

impl KeyState {
    /// Removes and returns the request in flight that the tag names. Returns `None` if its claim is over, or sent a later
    /// request.
    pub(crate) fn take_in_flight(&mut self, tag: Tag) -> Option<RequestKind> {
        let Some(claim) = self.claims.get_mut(tag.claim) else {
            // The pass decides what happens to the lease.
            let passed = self.claims.passed_mut(tag.claim)?;
            passed.take_in_flight(tag.seq);
            return None;
        };
        claim.take_in_flight(tag.seq)
    }

    /// Handles an answer.
    pub(crate) fn answered(&mut self, cx: &mut StepContext<'_>, tag: Tag, times: AnswerTimes, reply: Reply) {
        self.overtakable_answered(cx, tag);
        // A late answer, to a number that is over here or to a request that was given up, decides nothing.
        let Some(kind) = self.take_in_flight(tag) else {
            return;
        };
        let number = tag.claim;
        self.redirects.end();
        if !matches!(reply, Reply::Refused(_)) {
            self.error = None;
        }
        match (reply, kind) {
            (Reply::Claim(reply), kind) => self.claim_answered(cx, number, kind, times, reply),
            (Reply::Leave(reply), _) => {
                let event = self.claims[number].leave_answered(cx, reply);
                self.take_event(cx, number, event);
            }
            (Reply::Refused(refusal), kind) => {
                self.refused(cx, number, kind, StoreError::refused(refusal));
            }
            (Reply::Late, RequestKind::Renew | RequestKind::Assert) => self.asserted_late(cx, number, kind),
            (Reply::Late, RequestKind::Yield) => self.yield_not_executed(cx, number, false),
            (Reply::Late, _) => self.came_late(cx, number),
            // Calls take their replies before, and a session makes a failed request of a failure.
            (Reply::Call(_) | Reply::Failed(_), _) => {}
        }
    }

    /// Handles the reply to any request but a leave.
    fn claim_answered(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        kind: RequestKind,
        times: AnswerTimes,
        reply: ClaimReply,
    ) {
        match (kind, reply) {
            // A fixed lease ends when it would have ended.
            (RequestKind::Assert, ClaimReply::Granted(grant))
                if self.claims[number].holds_under(grant.number) =>
            {
                self.plan_renewal(cx, number);
            }
            (_, ClaimReply::Granted(grant)) => self.granted(cx, number, times, grant),
            (_, ClaimReply::Recovering(left)) => {
                let position = QueuePosition::recovering(times.sent, left);
                self.recovering(cx, number, kind, position);
            }
            (_, ClaimReply::Queued(left, owner)) => {
                let position = QueuePosition {
                    sent: times.sent,
                    left,
                    owner,
                    is_recovering: false,
                };
                self.queued(cx, number, position);
            }
            (RequestKind::Yield, reply) => self.yield_not_executed(cx, number, reply == ClaimReply::Gone),
            (RequestKind::Pass, _) => self.pass_gone(cx, number),
            (_, ClaimReply::Revoked) => self.revoked(cx, number),
            (_, ClaimReply::Tick(refusal)) => self.refuse_tick(cx, number, refusal),
            (RequestKind::Claim { wait }, ClaimReply::Busy(left)) => self.busy(cx, number, wait, left),
            (RequestKind::Claim { .. }, ClaimReply::GroupRefused) => self.group_refused(cx, number),
            _ => self.gone(cx, number),
        }
    }

    /// Handles an assertion that reached the store too late. The lease may still be asserted.
    fn asserted_late(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, kind: RequestKind) {
        let failure =
            FailedRequest::of_late_answer(cx.now, self.taken_at, "the renewal reached the store too late");
        let event = self.claims[number].failed(cx, kind, failure);
        self.take_event(cx, number, event);
    }

    /// Handles a request that reached the store too late. The store did nothing.
    fn came_late(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        if self.claims[number].pass().is_some() {
            let failure = FailedRequest::of_late_answer(
                cx.now,
                self.taken_at,
                "the request reached the store too late",
            );
            return self.ask_or_wait(cx, number, &failure);
        }
        cx.event(KeyEvent::Late);
        let claimant = self.end_number(cx, number);
        let failure =
            FailedRequest::of_late_answer(cx.now, self.taken_at, "the claim reached the store too late");
        self.claim_again(cx, claimant, &failure);
    }

    /// Reports that a current holder recorded another capacity. A deploy that changes the capacity is reported, but
    /// not for each permit.
    fn report_capacity(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, recorded: u32) {
        let is_old = |reported: Instant| cx.now.since(reported) >= CAPACITY_REPORT_PERIOD;
        if let Mode::Permits(permits) = self.claims[number].terms().mode
            && cx.shard.capacity_reported.is_none_or(is_old)
        {
            cx.shard.capacity_reported = Some(cx.now);
            let local = permits.capacity;
            cx.event(KeyEvent::CapacityDiffers { local, recorded });
        }
    }

    /// Handles a grant in an answer.
    fn granted(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        times: AnswerTimes,
        grant: GrantReply,
    ) {
        if let Some(recorded) = grant.other_capacity {
            self.report_capacity(cx, number, recorded);
        }
        if grant.attempt > 0 {
            self.claims[number].note_attempt(grant.attempt, grant.overtook);
        }
        let grant = grant.number;
        if self.claims[number].is_queued() {
            cx.event(KeyEvent::FoundGranted);
            self.note_inheritance(cx, number);
            self.claims[number].note_missed_push(cx, times.time, grant);
        }
        let event = self.claims[number].granted(cx, times.sent, grant);
        self.take_event(cx, number, event);
    }

    /// Handles "queued".
    fn queued(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, position: QueuePosition) {
        let event = self.claims[number].queued(cx, position);
        self.take_event(cx, number, event);
    }

    /// Does for the callers of a claim, and for the other claims of the key, what the store's message about the claim means.
    pub(crate) fn take_event(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        event: Option<ClaimEvent>,
    ) {
        match event {
            None => {}
            Some(ClaimEvent::Granted(granted)) => self.start(cx, number, granted),
            Some(ClaimEvent::RenewalDue) => self.send_due_request(cx, number),
            Some(ClaimEvent::Queued(position)) => self.note_queued(cx, number, position),
            Some(ClaimEvent::Renewed) => {
                self.plan_renewal(cx, number);
                if !self.renewals.is_empty() {
                    self.answer_renewals(cx, number);
                }
            }
            Some(ClaimEvent::Unanswered(failure)) => self.ask_outcome(cx, number, &failure),
            Some(ClaimEvent::Failed(failure)) => self.ask_or_wait(cx, number, &failure),
            Some(ClaimEvent::KeepEnded) => self.leave(cx, number, None),
            Some(ClaimEvent::Left) => self.claims.end(number),
            Some(ClaimEvent::Ended(ending)) => self.ended(cx, number, ending),
            Some(ClaimEvent::Lost(loss)) => self.lost(cx, number, &loss),
            Some(ClaimEvent::Unfetched(ticket)) => {
                cx.effects.push(Effect::Lost(ticket, LostCause::Unfetched));
                self.give_back(cx, number, None);
            }
        }
    }

    /// Denies the callers of a claim that is over without a lease, or lets them be claimed for under a new number.
    fn ended(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, ending: Ending) {
        match ending {
            Ending::Gone => {
                if let Claimant::Solo(caller) = self.end_number(cx, number)
                    && !cx.shard.plant.is(Flaw::EndedForgotten)
                {
                    self.solos.insert(caller.ticket, caller);
                }
            }
            Ending::NotExecuted(failure) => {
                let claimant = self.claims.claimant(number);
                self.claims.end(number);
                self.claim_again(cx, claimant, &failure);
            }
            Ending::Revoked => self.leave_ungranted(cx, number),
            Ending::Tick(refusal) => self.end_denied(cx, number, WhyDenied::Tick(refusal)),
            Ending::LeaseEnded => {
                if let Claimant::Solo(caller) = self.claims.take_claimant(number) {
                    cx.deny(caller.ticket, AcquireError::Lost(LostCause::Ended));
                }
                self.leave(cx, number, None);
            }
            Ending::TooOld(error) => self.give_up_old_grant(cx, number, error),
        }
    }

    /// Gives a lease up of which too little was left, again and again. The callers are claimed for under a new number.
    fn give_up_old_grant(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, error: StoreError) {
        let failure = FailedRequest::of_answer(cx.now, self.taken_at, error);
        let is_pass = self.claims[number].pass().is_some();
        match self.claims.take_claimant(number) {
            // A lease that is taken over is not claimed again: another owner may have had it meanwhile.
            Claimant::Solo(caller) if is_pass => {
                cx.deny(caller.ticket, AcquireError::Store(failure.reported()));
            }
            claimant => self.claim_again(cx, claimant, &failure),
        }
    }

    /// Notes for the callers that a claim is queued, and denies those that do not wait so long.
    fn note_queued(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, position: QueuePosition) {
        let mode = self.claims[number].terms().mode;
        self.claims_head_only = matches!(mode, Mode::Permits(_));
        match self.claims.claimant(number) {
            Claimant::LineHead => self.failed_claims = 0,
            Claimant::Solo(caller) => {
                let caller = Caller {
                    failed_claims: 0,
                    ..caller
                };
                self.claims.set_claimant(number, Claimant::Solo(caller));
            }
            Claimant::LineFollower | Claimant::Abandoned => {}
        }
        self.plan_wait(cx, number, position.left, position.owner == QueueOwner::Foreign);
        if let Some(left) = position.recovery() {
            return self.deny_recovering(cx, left);
        }
        self.taken_at = Some(cx.now);
        self.owner_ends = position.left.map(|left| position.sent + ms(left));
        self.owner = match position.owner {
            QueueOwner::Node(node) => Some(node),
            QueueOwner::Shared | QueueOwner::Foreign => None,
        };
        self.deny_behind(cx, mode);
    }

    /// Denies the callers that give up before the server has recovered.
    fn deny_recovering(&mut self, cx: &mut StepContext<'_>, left: Duration) {
        let (error, end) = (StoreError::recovering(left), cx.now + left);
        let waits = |caller: &Caller| caller.waits_until(end);
        self.line.retain(waits, |caller| {
            cx.deny(caller.ticket, AcquireError::Store(error.clone()));
        });
    }

    /// Handles the answer of a server that recovers. A claim that waits is queued meanwhile.
    fn recovering(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        kind: RequestKind,
        position: QueuePosition,
    ) {
        let left = position.recovery().unwrap_or_default();
        match kind {
            RequestKind::Claim { wait: false } | RequestKind::Pass => {
                self.refused(cx, number, kind, StoreError::recovering(left));
            }
            RequestKind::Claim { .. } | RequestKind::Renew
                if self
                    .claims
                    .listed(number)
                    .is_some_and(|of| of.is_held_back(cx.now + left))
                    && !(self.claims[number].terms().tick.is_some()
                        && cx.shard.plant.is(Flaw::TickWaitsForRecovery)) =>
            {
                self.hold_back(cx, number, kind, left);
            }
            _ => self.queued(cx, number, position),
        }
    }

    /// Ends a claim that a recovering server holds back for longer than its caller waits, and denies the caller.
    fn hold_back(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        kind: RequestKind,
        left: Duration,
    ) {
        let denial = AcquireError::Store(StoreError::recovering(left));
        let claim = &self.claims[number];
        let is_first = claim.is_asked() && matches!(kind, RequestKind::Claim { .. });
        if is_first && claim.terms().tick.is_some() {
            // The server neither grants nor queues a tick.
            return self.end_denied(cx, number, denial);
        }
        if let Claimant::Solo(caller) = self.claims.take_claimant(number) {
            cx.deny(caller.ticket, denial);
        }
        self.leave(cx, number, None);
    }

    /// Ends a claim, and denies its caller.
    fn end_denied(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, denial: impl Into<WhyDenied>) {
        let listed = self.claims.remove(number);
        if let Some(Claimant::Solo(caller)) = listed.map(|listed| listed.claimant) {
            cx.deny(caller.ticket, denial);
        }
    }

    fn refuse_tick(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, refusal: TickRefusal) {
        let event = self.claims[number].tick_refused(refusal);
        self.take_event(cx, number, event);
    }

    fn busy(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, waited: bool, left: Option<u64>) {
        let Some(ListedClaim { claim, claimant }) = self.claims.remove(number) else {
            return;
        };
        self.claims_head_only = matches!(claim.terms().mode, Mode::Permits(_));
        self.taken_at = Some(cx.now);
        match claimant {
            // A tick that comes while an earlier one runs is skipped, even if its caller waits. A store without a
            // queue gives the same answer to a standby, so there the tick is claimed again: a skipped tick is over by
            // then.
            Claimant::Solo(caller) if !waited || claim.terms().tick.is_some() && cx.shard.rules.queues => {
                return cx.deny(caller.ticket, caller.options.busy());
            }
            Claimant::Solo(mut caller) => {
                caller.failed_claims = 0;
                self.solos.insert(caller.ticket, caller);
            }
            Claimant::LineHead => {
                self.failed_claims = 0;
                self.deny_behind(cx, claim.terms().mode);
            }
            Claimant::LineFollower | Claimant::Abandoned => {}
        }
        if waited {
            // Only a store without a queue gives this answer to a claim that waits.
            let pause = POLL_PAUSES.0 * 2u32.pow(self.busy_claims.min(4));
            self.busy_claims += 1;
            let ends = left.map_or(POLL_PAUSES.1, |left| ms(left.max(1)));
            let longest = POLL_PAUSES.1.min(claim.lease() / 3);
            self.poll_after(cx, pause.min(longest).min(ends));
        }
    }

    /// Claims again after a pause, in a store without a queue.
    pub(crate) fn poll_after(&mut self, cx: &mut StepContext<'_>, pause: Duration) {
        let at = cx.now + cx.shard.between((pause / 2, pause));
        self.reclaim = Some(Reclaim {
            at,
            after_failure: false,
        });
    }

    /// Handles a claim that was refused because another key of its group is not free. Callers that want this key
    /// alone are claimed for again.
    fn group_refused(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let listed = self.claims.remove(number);
        match listed.map_or(Claimant::Abandoned, |listed| listed.claimant) {
            Claimant::Solo(caller) => cx.deny(caller.ticket, AcquireError::Busy),
            Claimant::LineHead => self.line.retain(
                |caller| !caller.options.together,
                |caller| cx.deny(caller.ticket, AcquireError::Busy),
            ),
            Claimant::LineFollower | Claimant::Abandoned => {}
        }
    }

    /// Handles the answer to a renewal after which a leave was sent. If the leave was answered first, it may have been
    /// executed first, and is repeated.
    fn overtakable_answered(&mut self, cx: &mut StepContext<'_>, tag: Tag) {
        let Some(claim) = self.claims.get_mut(tag.claim) else {
            return;
        };
        if claim.is_overtaken(tag.seq) {
            self.ask(cx, tag.claim, RequestKind::Leave);
        }
    }

    /// Handles a yield that was not executed: the old number may still own the lease, and the new one never did. `is_gone`:
    /// the store does not know the old number.
    pub(crate) fn yield_not_executed(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        is_gone: bool,
    ) {
        let Some(ListedClaim { mut claim, .. }) = self.claims.remove(number) else {
            return;
        };
        if let Some(mut yielded) = claim.take_yielded() {
            // The old number may be gone. The leave that follows cannot tell that from its own first try.
            if is_gone && let Some(ticket) = yielded.take_release() {
                cx.released(ticket, Outcome::Lost(LostCause::Gone));
            }
            self.leave_old_number(cx, yielded, claim.seq(), None);
        }
    }

    /// Handles a claim that the store does not know. Its number is over.
    pub(crate) fn gone(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let claim = &self.claims[number];
        if cx.shard.plant.is(Flaw::NumberTwice) && (claim.is_asked() || claim.is_queued()) {
            return self.ask(cx, number, RequestKind::Claim { wait: true });
        }
        let event = claim.gone(cx);
        self.take_event(cx, number, event);
    }

    /// Ends a number that the store does not know, and returns its callers. If an unanswered request of the number may
    /// still be executed, the number is left when it no longer can be.
    pub(crate) fn end_number(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) -> Claimant {
        let claimant = self.claims.take_claimant(number);
        let event = self.claims[number].end(cx);
        self.take_event(cx, number, event);
        claimant
    }
}
