//! The store's messages to a key: answers and pushed grants.
//!
//! The rules that safety depends on are here. Each was found by breaking the design without it. See "Six rules of
//! safety" in ARCHITECTURE.md, and the mistakes that the simulator plants.

use std::time::Duration;

use crate::error::{LostCause, StoreError};
use crate::protocol::claim::RequestKind;
use crate::protocol::claim::origin::{Origin, Yielded};
use crate::protocol::claim::phase::Phase;
use crate::protocol::context::StepContext;
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::flaw::Flaw;
use crate::protocol::key::claims::{Claimant, ListedClaim};
use crate::protocol::key::key_state::{KeyState, Reclaim};
use crate::protocol::key::line::Caller;
use crate::protocol::message::{
    ClaimId, ClaimNumber, Grant, GrantNumber, LeaseTimes, Mode, NodeId, Reply, TickTime,
};
use crate::protocol::step::{AcquireError, Effect, KeyEvent, LeaseTerms, Outcome, Tag, TickRefusal, ms};
use crate::protocol::time::Instant;

/// The number of stale answers in a row after which the lease is left to others. It would otherwise be extended
/// without end, and never used.
const MAX_STALE_ANSWERS: u32 = 3;

/// The age of a grant, in µs, at which its push must have arrived. A push is never that much slower than an answer.
const MIN_MISSED_PUSH_US: u64 = 100_000;

/// The first and the longest pause before a busy key of a store without a queue is claimed again.
pub(crate) const POLL_PAUSES: (Duration, Duration) = (ms(30), ms(250));

/// The request number of a claim that is not known here, which may have sent many requests. No claim sends so many.
const UNKNOWN_CLAIM_SEQ: u32 = 1 << 31;

/// The shortest time between two reports that the capacity of a semaphore differs, for all semaphores of a shard.
const CAPACITY_REPORT_PERIOD: Duration = Duration::from_secs(60);

/// What the store says of a claim that it queued.
#[derive(Debug, Clone, Copy)]
struct Queued {
    /// When the owner's record ends, or the recovery, in milliseconds.
    left: Option<u64>,
    /// The owner does not announce its release.
    is_foreign: bool,
    /// The server recovers, and grants nothing.
    is_recovering: bool,
    /// The owner's node, if it is known.
    owner: Option<NodeId>,
}

impl Queued {
    /// Reads a reply that says "queued".
    fn of(reply: &Reply) -> Self {
        let (left, owner) = match *reply {
            Reply::QueuedBehind(left, node) => (left, Some(node)),
            Reply::Queued(left) | Reply::QueuedBehindForeign(left) => (left, None),
            Reply::Recovering(left) => (Some(left), None),
            _ => (None, None),
        };
        Queued {
            left,
            is_foreign: matches!(reply, Reply::QueuedBehindForeign(_)),
            is_recovering: matches!(reply, Reply::Recovering(_)),
            owner,
        }
    }
}

impl KeyState {
    /// Removes and returns the request in flight that the tag names. Returns `None` if its claim is over, or sent a later
    /// request.
    pub(crate) fn take_in_flight(&mut self, tag: Tag) -> Option<RequestKind> {
        let Some(claim) = self.claims.get_mut(tag.claim) else {
            // The pass decides what happens to the lease.
            let passed = self.claims.passed_mut(tag.claim)?;
            passed.exchange.take(tag.seq);
            return None;
        };
        claim.exchange.take(tag.seq)
    }

    /// Handles an answer. `sent` is when the request was sent, and `time` is the server's clock when it was executed.
    pub(crate) fn answered(
        &mut self,
        cx: &mut StepContext<'_>,
        tag: Tag,
        (sent, time): (Instant, u64),
        reply: Reply,
    ) {
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
        match (kind, reply) {
            (_, Reply::Refused(refusal)) => {
                self.refused(cx, number, kind, StoreError::refused(refusal));
            }
            (RequestKind::Leave, reply) => self.leave_answered(cx, number, &reply),
            // A fixed lease ends when it would have ended.
            (RequestKind::Assert, Reply::Granted(grant))
                if self.claims[number]
                    .held()
                    .is_some_and(|held| held.number == grant) =>
            {
                self.schedule_renewal(cx, number);
            }
            (_, Reply::Granted(grant)) => self.granted(cx, number, (sent, time), grant),
            (_, Reply::CapacityDiffers(grant, recorded)) => {
                self.report_capacity(cx, number, recorded);
                self.granted(cx, number, (sent, time), grant);
            }
            (_, Reply::Won(grant, attempt)) => {
                self.note_attempt(number, attempt, None);
                self.granted(cx, number, (sent, time), grant);
            }
            (_, Reply::Overtook(grant, tick)) => {
                self.note_attempt(number, 1, Some(tick));
                self.granted(cx, number, (sent, time), grant);
            }
            (_, Reply::Recovering(left)) => self.recovering(cx, number, kind, (sent, left)),
            (_, reply @ (Reply::Queued(_) | Reply::QueuedBehind(..) | Reply::QueuedBehindForeign(_))) => {
                self.queued(cx, number, sent, Queued::of(&reply));
            }
            (RequestKind::Renew | RequestKind::Assert, Reply::Late) => self.asserted_late(cx, number, kind),
            (RequestKind::Yield, reply) => self.yield_not_executed(cx, number, &reply),
            (RequestKind::Pass, Reply::Late) => self.came_late(cx, number),
            (RequestKind::Pass, _) => self.pass_gone(cx, number),
            (_, Reply::Revoked) => self.revoked(cx, number),
            (_, Reply::Over) => self.refuse_tick(cx, number, TickRefusal::Over),
            (_, Reply::Skipped) => self.refuse_tick(cx, number, TickRefusal::Skipped),
            (_, Reply::Early(left)) => self.refuse_tick(cx, number, TickRefusal::Early(ms(left))),
            (_, Reply::EarlierTickDue { latest, is_open }) => {
                self.refuse_tick(cx, number, TickRefusal::EarlierTickDue { latest, is_open });
            }
            (RequestKind::Claim { wait }, Reply::Busy(left)) => self.busy(cx, number, wait, left),
            (RequestKind::Claim { .. }, Reply::GroupRefused) => self.group_refused(cx, number),
            (RequestKind::Claim { .. }, _) => self.came_late(cx, number),
            (RequestKind::Renew | RequestKind::Assert, _) => self.gone(cx, number),
        }
    }

    /// Handles an assertion that reached the store too late. The lease may still be asserted.
    fn asserted_late(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, kind: RequestKind) {
        let failure =
            FailedRequest::of_late_answer(cx.now, self.taken_at, "the renewal reached the store too late");
        self.renew_failed(cx, number, kind, &failure);
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

    /// Ends a yield that is known to be executed. If the yield was a release, its caller gets the outcome now.
    pub(crate) fn finish_yield(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let yielded = self.claims[number].take_yielded();
        if let Some(ticket) = yielded.and_then(|yielded| yielded.release) {
            cx.released(ticket, Outcome::Kept);
        }
    }

    /// Handles a grant in an answer. The lease counts from the sending of the answered request, because claim and
    /// renew of an owner extend its lease.
    fn granted(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        (sent, time): (Instant, u64),
        grant: GrantNumber,
    ) {
        let moves = cx.shard.beside_former_master(sent).is_none()
            || cx.shard.plant.is(Flaw::RenewedBesideFormerMaster);
        let deadline = self.deadline_by_answer(cx, number, (sent, moves));
        self.finish_yield(cx, number);
        let claim = &mut self.claims[number];
        let (lease, hold) = (claim.lease(), claim.record_lifetime());
        claim.exchange.forget_unanswered();
        // A fixed lease does not start again when its writer becomes a reader.
        // A writer that becomes a reader beside a former master goes on with what is left.
        let is_downgrade = |origin: &Origin| origin.held_as_writer(claim.terms().mode).is_some();
        let goes_on = !moves && claim.origin.as_ref().is_some_and(is_downgrade);
        let origin = claim.origin.as_ref().filter(|_| claim.terms().is_fixed);
        let ends = origin.and_then(|origin| Some(origin.held_as_writer(claim.terms().mode)?.deadline));
        let deadline = ends.map_or(deadline, |ends| deadline.min(ends));
        match &mut claim.phase {
            Phase::Held(held) if held.number == grant => {
                // A lease past its deadline was lost before this step got here: nothing revives it.
                let slack = held.deadline.since(cx.now);
                held.ends = cx.now + hold;
                claim.exchange.forget_failures();
                if !moves {
                    return claim.schedule_renewal_after_former_master(cx);
                }
                held.deadline = held.deadline.max(deadline);
                cx.event(KeyEvent::Renewed { slack });
                self.schedule_renewal(cx, number);
                if !self.renewals.is_empty() {
                    self.answer_renewals(cx, number);
                }
            }
            // The lease is another one. No caller holds it.
            Phase::Held(_) => {
                self.report_lost(cx, number, LostCause::Gone);
                self.leave(cx, number, None);
            }
            Phase::Leaving(_) => {}
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                if matches!(claim.phase, Phase::Queued { .. }) {
                    cx.event(KeyEvent::FoundGranted);
                    self.note_inheritance(cx, number);
                    self.note_missed_push(cx, time, grant);
                }
                let claim = &mut self.claims[number];
                claim.forget_executable();
                if let Some(ends) = ends
                    && cx.now >= ends
                {
                    // The fixed lease ended while the answer was in flight.
                    if let Claimant::Solo(caller) = self.claims.take_claimant(number) {
                        cx.deny(caller.ticket, AcquireError::Lost(LostCause::Ended));
                    }
                    self.leave(cx, number, None);
                } else if deadline.since(cx.now) < lease / 3 && ends.is_none() && !goes_on {
                    self.grant_too_old(cx, number);
                } else {
                    self.start(cx, number, grant, deadline);
                }
            }
        }
    }

    /// Returns the deadline of a lease that was granted to a request sent at `sent`. A lease that continues another one lasts no
    /// longer than that one, unless it surely lasted when no former master could grant the key any more.
    fn deadline_by_answer(
        &self,
        cx: &StepContext<'_>,
        number: ClaimNumber,
        (sent, moves): (Instant, bool),
    ) -> Instant {
        let from_reply = cx.shard.plant.is(Flaw::DeadlineFromReply);
        let claim = &self.claims[number];
        let deadline = if from_reply { cx.now } else { sent } + claim.lease();
        let is_certain =
            |until: Instant| moves && (cx.now < until || cx.shard.former.until <= Some(claim.created_at()));
        match claim.continued_until() {
            Some(until) if !is_certain(until) => deadline.min(until),
            _ => deadline,
        }
    }

    /// Has the inbox checked for a sign of life if the grant is so old that its push must have arrived. The number of
    /// a grant is the server's clock at the grant, so both times are of one clock. A grant that was given to the
    /// renewal itself is not pushed; it is as young as its answer.
    fn note_missed_push(&mut self, cx: &mut StepContext<'_>, time: u64, grant: GrantNumber) {
        if time.saturating_sub(grant.0) >= MIN_MISSED_PUSH_US && !cx.shard.plant.is(Flaw::SilentInboxTrusted)
        {
            cx.effects.push(Effect::PushMissed);
        }
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

    /// Handles a grant of which too little is left to start with: the lease is renewed first, or given up after
    /// several tries.
    fn grant_too_old(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        cx.event(KeyEvent::AnswerStale);
        let claim = &mut self.claims[number];
        let (since, tries) = match claim.phase {
            Phase::Confirming { since, tries } => (since, tries + 1),
            _ => (cx.now, 1),
        };
        claim.phase = Phase::Confirming { since, tries };
        // The claim was granted, whatever the store says of its repeats.
        let failure =
            FailedRequest::of_late_answer(cx.now, self.taken_at, "the answer came too late to be used");
        claim.exchange.note_unanswered(failure.reported());
        if tries < MAX_STALE_ANSWERS {
            return self.claims[number].schedule_confirmation(cx, tries);
        }
        let is_pass = claim.pass().is_some();
        match self.claims.take_claimant(number) {
            // A lease that is taken over is not claimed again: another owner may have had it meanwhile.
            Claimant::Solo(caller) if is_pass => {
                cx.deny(caller.ticket, AcquireError::Store(failure.reported()));
            }
            claimant => self.claim_again(cx, claimant, &failure),
        }
    }

    /// Handles "queued".
    fn queued(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, sent: Instant, queued: Queued) {
        self.finish_yield(cx, number);
        let claim = &mut self.claims[number];
        claim.forget_executable();
        claim.exchange.forget_unanswered();
        match claim.phase {
            // The request was executed before the pushed grant. The answer only says that t₀ could be younger.
            Phase::Confirming { since, tries } if sent < since => {
                self.claims[number].schedule_confirmation(cx, tries + 1);
            }
            // In `Confirming`, the request was sent when the grant was known here. So there is no grant, though one
            // was pushed.
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                let recovery = queued.left.map(ms).filter(|_| queued.is_recovering);
                claim.phase = Phase::Queued {
                    t0: sent,
                    recovers_until: recovery.map(|left| sent + left),
                };
                claim.exchange.forget_failures();
                let mode = claim.terms().mode;
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
                self.schedule_wait(cx, number, queued.left, queued.is_foreign);
                if let Some(left) = recovery {
                    return self.deny_recovering(cx, left);
                }
                self.taken_at = Some(cx.now);
                (self.owner_ends, self.owner) = (queued.left.map(|left| sent + ms(left)), queued.owner);
                self.deny_behind(cx, mode);
            }
            // The store has no record of the lease yet: another record is there until it expires.
            Phase::Held(_) => self.claims[number].schedule_retry(cx),
            Phase::Leaving(_) => {}
        }
    }

    /// Denies the callers that give up before the server has recovered.
    fn deny_recovering(&mut self, cx: &mut StepContext<'_>, left: Duration) {
        let (error, end) = (StoreError::recovering(left), cx.now + left);
        let waits = |caller: &Caller| caller.waits_until(end);
        self.line.retain(waits, |caller| {
            cx.deny(caller.ticket, AcquireError::Store(error.clone()));
        });
    }

    /// Handles the answer of a server that recovers for so many milliseconds. A claim that waits is queued meanwhile.
    fn recovering(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        kind: RequestKind,
        (sent, left): (Instant, u64),
    ) {
        match kind {
            RequestKind::Claim { wait: false } | RequestKind::Pass => {
                self.refused(cx, number, kind, StoreError::recovering(ms(left)));
            }
            RequestKind::Claim { .. } | RequestKind::Renew
                if self
                    .claims
                    .listed(number)
                    .is_some_and(|of| of.is_held_back(cx.now + ms(left)))
                    && !(self.claims[number].terms().tick.is_some()
                        && cx.shard.plant.is(Flaw::TickWaitsForRecovery)) =>
            {
                self.hold_back(cx, number, kind, ms(left));
            }
            _ => self.queued(cx, number, sent, Queued::of(&Reply::Recovering(left))),
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
        let is_first = matches!(claim.phase, Phase::Asked) && matches!(kind, RequestKind::Claim { .. });
        if is_first && claim.terms().tick.is_some() {
            // The server neither grants nor queues a tick.
            return self.end_denied(cx, number, denial);
        }
        if let Claimant::Solo(caller) = self.claims.take_claimant(number) {
            cx.deny(caller.ticket, denial);
        }
        self.leave(cx, number, None);
    }

    /// Handles the store's refusal to run a tick, which ends the claim. A holder loses its lease, as after "gone".
    fn denied(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, denial: AcquireError) {
        match self.claims[number].phase {
            Phase::Held(_) => self.lose(cx, number, LostCause::Gone),
            Phase::Leaving(_) => {}
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                self.end_denied(cx, number, denial);
            }
        }
    }

    /// Ends a claim, and denies its caller.
    fn end_denied(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, denial: AcquireError) {
        let listed = self.claims.remove(number);
        if let Some(Claimant::Solo(caller)) = listed.map(|listed| listed.claimant) {
            cx.deny(caller.ticket, denial);
        }
    }

    /// Notes the number of the attempt. `overtook` is the previous tick, if it had not ended well.
    fn note_attempt(&mut self, number: ClaimNumber, attempt: u32, overtook: Option<TickTime>) {
        self.claims[number].note_attempt(attempt, overtook);
    }

    fn refuse_tick(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, refusal: TickRefusal) {
        self.denied(cx, number, AcquireError::Tick(refusal));
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

    /// Handles the answer to a leave.
    fn leave_answered(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, reply: &Reply) {
        let claim = &mut self.claims[number];
        if !claim.leave_answered(cx, reply) {
            return;
        }
        if claim.is_leaving() {
            self.end_number(cx, number);
        } else {
            self.claims.end(number);
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

    /// Handles a yield that was not executed: the old number may still own the lease, and the new one never did.
    pub(crate) fn yield_not_executed(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        reply: &Reply,
    ) {
        let Some(ListedClaim { mut claim, .. }) = self.claims.remove(number) else {
            return;
        };
        if let Some(mut yielded) = claim.take_yielded() {
            // The old number may be gone. The leave that follows cannot tell that from its own first try.
            if *reply == Reply::Gone
                && let Some(ticket) = yielded.release.take()
            {
                cx.released(ticket, Outcome::Lost(LostCause::Gone));
            }
            self.leave_old_number(cx, yielded, claim.exchange.seq(), None);
        }
    }

    /// Handles a claim that the store does not know. Its number is over.
    pub(crate) fn gone(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let number_twice = cx.shard.plant.is(Flaw::NumberTwice);
        match self.claims[number].phase {
            Phase::Held(_) => self.lose(cx, number, LostCause::Gone),
            Phase::Leaving(_) => {}
            Phase::Asked | Phase::Queued { .. } if number_twice => {
                self.ask(cx, number, RequestKind::Claim { wait: true });
            }
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                cx.event(KeyEvent::Requeued);
                // Waiting callers are claimed for under a new number.
                if let Claimant::Solo(caller) = self.end_number(cx, number) {
                    self.solos.insert(caller.ticket, caller);
                }
            }
        }
    }

    /// Ends a number that the store does not know, and returns its callers. If an unanswered request of the number may
    /// still be executed, the number is left when it no longer can be.
    pub(crate) fn end_number(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) -> Claimant {
        let claimant = self.claims.take_claimant(number);
        if self.claims[number].end(cx) {
            self.claims.end(number);
        }
        claimant
    }

    /// Handles a pushed grant. "Queued" was answered to a request that was sent at t₀, and proves that this number
    /// had no grant before t₀. So the grant came later, and lasts at least until t₀ + lease. No clocks are compared.
    pub(crate) fn pushed(&mut self, cx: &mut StepContext<'_>, grant: &Grant) {
        let number = grant.claim_id.claim;
        let Some(claim) = self.claims.get_mut(number) else {
            // The number that a yield or a pass gives up is dead, and the outcome of that request decides what to do
            // with it.
            return if self.knows_claim(grant.claim_id) {
                cx.event(KeyEvent::PushStale);
            } else {
                // The push does not name the mode. A share of permits stays until it ends.
                self.leave_unknown(cx, grant.claim_id, (grant.lease_ms, Mode::Exclusive));
                if cx.shard.plant.is(Flaw::UnknownKept) {
                    self.claims.set_claimant(number, Claimant::LineHead);
                    self.start(cx, number, grant.number, cx.now + ms(grant.lease_ms));
                }
            };
        };
        if claim.id() != grant.claim_id {
            return cx.event(KeyEvent::PushForged);
        }
        let t0 = match claim.phase {
            Phase::Asked => claim.created_at(),
            Phase::Queued { t0, .. } => t0,
            Phase::Confirming { .. } | Phase::Held(_) => return,
            Phase::Leaving(_) => return cx.event(KeyEvent::PushStale),
        };
        claim.forget_executable();
        claim.note_attempt(grant.attempt, None);
        // A push that overtakes the answer to a yield proves that the yield was executed. That answer may be ignored
        // later, as when the number is left at once because no caller wants it.
        self.finish_yield(cx, number);
        self.note_inheritance(cx, number);
        let claim = &mut self.claims[number];
        let lease = claim.lease().min(ms(grant.lease_ms));
        let deadline = t0 + lease;
        // The successor of a master may have answered "queued" after the former master pushed a grant.
        let is_of_former =
            grant.number <= cx.shard.former.highest && !cx.shard.plant.is(Flaw::FormerPushUsed);
        // A fixed lease starts with an answer, so that its holder gets the full length.
        let confirm = claim.terms().is_fixed || !cx.shard.rules.final_push || is_of_former;
        if confirm || deadline.since(cx.now) < lease / 3 {
            cx.event(KeyEvent::PushConfirming);
            claim.phase = Phase::Confirming {
                since: cx.now,
                tries: 0,
            };
            if claim.exchange.is_idle() {
                self.ask(cx, number, RequestKind::Renew);
            }
        } else {
            cx.event(KeyEvent::PushUsed);
            self.start(cx, number, grant.number, deadline);
        }
    }

    /// Leaves a number that this node does not know, and that has a lease. The lease would otherwise block all others until
    /// it ends.
    pub(crate) fn leave_unknown(
        &mut self,
        cx: &mut StepContext<'_>,
        claim_id: ClaimId,
        (lease_ms, mode): (u64, Mode),
    ) {
        if claim_id.node != cx.shard.node {
            return cx.event(KeyEvent::PushForged);
        }
        cx.event(KeyEvent::UnknownLeft);
        let times = LeaseTimes {
            lease_ms,
            margin_ms: lease_ms,
        };
        let yielded = Yielded {
            from: claim_id,
            terms: LeaseTerms::of_lock(times, mode),
            deadline: cx.now,
            release: None,
        };
        self.leave_old_number(cx, yielded, UNKNOWN_CLAIM_SEQ, None);
    }
}
