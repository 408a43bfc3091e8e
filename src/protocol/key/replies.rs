//! What the store says: answers and pushed grants.
//!
//! The rules that safety depends on are here; each was found by breaking the design without it. See "Six rules of safety"
//! in ARCHITECTURE.md, and the mistakes that the simulator plants.

use std::time::Duration;

use crate::error::{LostCause, StoreError};
use crate::protocol::failing::Failing;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::key::claim::{Claimant, Leaving, Phase, RequestKind, Yielded};
use crate::protocol::key::context::StepContext;
use crate::protocol::key::key_state::{KeyState, Reclaim};
use crate::protocol::message::{ClaimNumber, Grant, GrantNumber, LeaseTimes, Mode, NodeId, Reply, TickTime};
use crate::protocol::step::{AcquireError, Effect, KeyEvent, Outcome, Tag, TickRefusal, ms};
use crate::protocol::time::Instant;

/// So many answers in a row that are too old to be used, then the lease is left to others: it would be extended without
/// end, and never be used.
const STALE_ANSWERS: u32 = 3;

/// A grant of this age, in µs, has been pushed. Far more than a push takes longer than an answer.
const PUSH_MISSED_US: u64 = 100_000;

/// A number that is not known here may have asked for anything. Nobody asks so often.
const UNKNOWN_SEQ: u32 = 1 << 31;

/// How often it is told that the number of permits differs, of all semaphores of a shard.
const UNLIKE_TOLD_EACH: Duration = Duration::from_secs(60);

impl<P: Plant> KeyState<P> {
    /// What was asked, if the claim is not over and nothing was asked since.
    pub(crate) fn take_asked(&mut self, tag: Tag) -> Option<RequestKind> {
        let claim = self.claims.get_mut(tag.claim)?;
        claim.asking.take_if(|_| claim.seq == tag.seq)
    }

    /// `sent`: when the request was, and `time`: the server's clock when it was executed.
    pub(crate) fn answered(
        &mut self,
        cx: &mut StepContext<'_>,
        tag: Tag,
        (sent, time): (Instant, u64),
        reply: Reply,
    ) {
        // A late answer of a number that is over here, or of a request that was given up: it decides nothing.
        let Some(asked) = self.take_asked(tag) else {
            return;
        };
        let number = tag.claim;
        if !matches!(reply, Reply::Refused(_)) {
            self.error = None;
        }
        match (asked, reply) {
            (_, Reply::Refused(refusal)) => {
                self.refused(cx, number, asked, StoreError::refused(refusal));
            }
            (RequestKind::Leave, reply) => self.left(cx, number, &reply),
            (_, Reply::Granted(grant)) => self.granted(cx, number, (sent, time), grant),
            (_, Reply::CapacityDiffers(grant, theirs)) => {
                self.note_unlike(cx, number, theirs);
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
            (_, Reply::Queued(left)) => self.queued(cx, number, sent, (left, false, None)),
            (_, Reply::QueuedBehind(left, node)) => {
                self.queued(cx, number, sent, (left, false, Some(node)));
            }
            (_, Reply::QueuedBehindForeign(left)) => self.queued(cx, number, sent, (left, true, None)),
            (RequestKind::Yield, reply) => self.yield_undone(cx, number, &reply),
            (RequestKind::Pass, Reply::Late) => self.came_late(cx, number),
            (RequestKind::Pass, _) => self.end_denied(cx, number, AcquireError::Lost(LostCause::Gone)),
            (_, Reply::Over) => self.refuse_tick(cx, number, TickRefusal::Over),
            (_, Reply::Skipped) => self.refuse_tick(cx, number, TickRefusal::Skipped),
            (_, Reply::Early(left)) => self.refuse_tick(cx, number, TickRefusal::Early(ms(left))),
            (_, Reply::EarlierTickDue { latest, is_open }) => {
                self.refuse_tick(cx, number, TickRefusal::EarlierTickDue { latest, is_open });
            }
            (RequestKind::Claim { wait }, Reply::Busy(left)) => self.busy(cx, number, wait, left),
            (RequestKind::Claim { .. }, Reply::GroupRefused) => self.apart(cx, number),
            (RequestKind::Claim { .. }, _) => self.came_late(cx, number),
            (RequestKind::Renew, _) => self.gone(cx, number),
        }
    }

    /// What was asked reached the store too late, and nothing was done.
    fn came_late(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        if self.claims[number].pass().is_some() {
            let failing = Failing::of_late_answer(self.taken, "what is asked reaches the store too late");
            return self.ask_or_wait(cx, number, &failing);
        }
        cx.event(KeyEvent::Late);
        let claimant = self.end_number(cx, number);
        let failing = Failing::of_late_answer(self.taken, "claims reach the store too late");
        self.claim_again(cx, claimant, &failing);
    }

    /// A release that was a yield is answered as soon as the yield is known to be done.
    fn yield_is_done(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let yielded = self.claims[number].take_yielded();
        if let Some(ticket) = yielded.and_then(|yielded| yielded.release) {
            cx.released(ticket, Outcome::Kept);
        }
    }

    /// "Granted" counts from the sending of the request that was answered, because claim and renew extend as the
    /// owner.
    fn granted(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        (sent, time): (Instant, u64),
        grant: GrantNumber,
    ) {
        self.yield_is_done(cx, number);
        let from_reply = self.plant.planted(Flaw::DeadlineFromReply);
        let claim = &mut self.claims[number];
        let (lease, hold) = (claim.lease(), claim.hold());
        let deadline = if from_reply { cx.now } else { sent } + lease;
        claim.unanswered = None;
        // A fixed lease does not start again when its writer becomes a reader.
        let origin = claim.origin.as_ref().filter(|_| claim.fixed);
        let ends = origin.and_then(|origin| Some(origin.held_to_write(claim.mode)?.deadline));
        let deadline = ends.map_or(deadline, |ends| deadline.min(ends));
        match &mut claim.phase {
            Phase::Held(held) if held.number == grant => {
                // Past the deadline it was lost before we got here: nothing revives it.
                let slack = held.deadline.since(cx.now);
                held.deadline = held.deadline.max(deadline);
                held.ends = cx.now + hold;
                claim.failed_requests = 0;
                cx.event(KeyEvent::Renewed { slack });
                self.schedule(cx, number);
                if !self.renewals.is_empty() {
                    self.answer_renewals(cx, number);
                }
            }
            Phase::Held(_) => self.lose(cx, number, LostCause::Gone),
            Phase::Leaving(_) => {}
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                if matches!(claim.phase, Phase::Queued { .. }) {
                    cx.event(KeyEvent::FoundGranted);
                    self.note_inheritance(cx, number);
                    self.note_missed_push(cx, time, grant);
                }
                let claim = &mut self.claims[number];
                claim.may_execute_until = None;
                if let Some(ends) = ends
                    && cx.now >= ends
                {
                    // The fixed lease ended while the answer was under way.
                    let claimant = std::mem::replace(&mut claim.claimant, Claimant::Abandoned);
                    if let Claimant::Solo(caller) = claimant {
                        cx.deny(caller.ticket, AcquireError::Lost(LostCause::Ended));
                    }
                    self.leave(cx, number, None);
                } else if deadline.since(cx.now) < lease / 3 && ends.is_none() {
                    self.stale(cx, number);
                } else {
                    self.start(cx, number, grant, deadline);
                }
            }
        }
    }

    /// Has the inbox asked for a sign of life if the grant is so old that its push must have come. The number of a grant is the
    /// server's clock when it was given, so both times are of one clock. A grant that was given to the renewal itself is not
    /// pushed; it is as young as its answer.
    fn note_missed_push(&mut self, cx: &mut StepContext<'_>, time: u64, grant: GrantNumber) {
        if time.saturating_sub(grant.0) >= PUSH_MISSED_US && !self.plant.planted(Flaw::SilentInboxTrusted) {
            cx.effects.push(Effect::PushMissed);
        }
    }

    /// Somebody believes in another number of permits. A deploy that changes it is told of, and not for each permit.
    fn note_unlike(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, theirs: u32) {
        let is_old = |told: Instant| cx.now.since(told) >= UNLIKE_TOLD_EACH;
        if let Mode::Permits(permits) = self.claims[number].mode
            && cx.source.unlike_told.is_none_or(is_old)
        {
            cx.source.unlike_told = Some(cx.now);
            let ours = permits.capacity;
            cx.event(KeyEvent::UnlikeCapacity { ours, theirs });
        }
    }

    /// The lease is ours, and what is left of it is too little to begin with.
    fn stale(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        cx.event(KeyEvent::AnswerStale);
        let claim = &mut self.claims[number];
        let (since, tries) = match claim.phase {
            Phase::Confirming { since, tries } => (since, tries + 1),
            _ => (cx.now, 1),
        };
        claim.phase = Phase::Confirming { since, tries };
        // It was granted, whatever is said of its repeats.
        let failing = Failing::of_late_answer(self.taken, "answers come too late to be used");
        claim.unanswered = Some(Box::new(failing.told.clone()));
        if tries < STALE_ANSWERS {
            return self.schedule_confirmation(cx, number, tries);
        }
        let claimant = std::mem::replace(&mut claim.claimant, Claimant::Abandoned);
        let is_pass = claim.pass().is_some();
        match claimant {
            // What is taken over is not claimed: others may have had it meanwhile.
            Claimant::Solo(caller) if is_pass => {
                cx.deny(caller.ticket, AcquireError::Store(failing.told));
            }
            claimant => self.claim_again(cx, claimant, &failing),
        }
    }

    /// `is_foreign`: the owner does not tell of its release. `owner`: its node, if that is known.
    fn queued(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        sent: Instant,
        (left, is_foreign, owner): (Option<u64>, bool, Option<NodeId>),
    ) {
        self.yield_is_done(cx, number);
        let claim = &mut self.claims[number];
        claim.may_execute_until = None;
        claim.unanswered = None;
        match claim.phase {
            // Executed before the grant that was pushed meanwhile: it says only that t₀ could be younger.
            Phase::Confirming { since, tries } if sent < since => {
                self.schedule_confirmation(cx, number, tries + 1);
            }
            // One that was asked for when the grant was known here: so there is none, whoever pushed it.
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                claim.phase = Phase::Queued { t0: sent };
                claim.failed_requests = 0;
                match &mut claim.claimant {
                    Claimant::Cohort => self.failed_claims = 0,
                    Claimant::Solo(caller) => caller.failed_claims = 0,
                    Claimant::Ahead | Claimant::Abandoned => {}
                }
                self.asks_for_one = matches!(claim.mode, Mode::Permits(_));
                self.taken = Some(cx.now);
                (self.owner_ends, self.owner) = (left.map(|left| sent + ms(left)), owner);
                let mode = claim.mode;
                self.schedule_wait(cx, number, left, is_foreign);
                self.deny_behind(cx, mode);
            }
            Phase::Held(_) => self.schedule(cx, number),
            Phase::Leaving(_) => {}
        }
    }

    /// The store will not have its tick run: the claim is over with that. For one that holds it means
    /// that its lease is over, as "gone" does.
    fn denied(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, denial: AcquireError) {
        match self.claims[number].phase {
            Phase::Held(_) => self.lose(cx, number, LostCause::Gone),
            Phase::Leaving(_) => {}
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                self.end_denied(cx, number, denial);
            }
        }
    }

    /// Ends a claim, and denies the caller that it is for.
    pub(crate) fn end_denied(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, denial: AcquireError) {
        let claim = self.claims.remove(number);
        if let Some(Claimant::Solo(caller)) = claim.map(|claim| claim.claimant) {
            cx.deny(caller.ticket, denial);
        }
    }

    /// `overtook`: the tick before, which had not ended well.
    fn note_attempt(&mut self, number: ClaimNumber, attempt: u32, overtook: Option<TickTime>) {
        if let Some(tick) = &mut self.claims[number].tick {
            (tick.attempt, tick.overtook) = (attempt, overtook.or(tick.overtook));
        }
    }

    fn refuse_tick(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, refusal: TickRefusal) {
        self.denied(cx, number, AcquireError::Tick(refusal));
    }

    fn busy(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, waited: bool, left: Option<u64>) {
        let Some(claim) = self.claims.remove(number) else {
            return;
        };
        self.asks_for_one = matches!(claim.mode, Mode::Permits(_));
        self.taken = Some(cx.now);
        match claim.claimant {
            // A tick that comes while an earlier one runs is skipped, however patient. A store that cannot queue says
            // the same to whoever would stand by, so there it is asked again: a skipped tick is over by then.
            Claimant::Solo(caller) if !waited || claim.tick.is_some() && cx.source.rules.queues => {
                return cx.deny(caller.ticket, caller.options.busy());
            }
            Claimant::Solo(mut caller) => {
                caller.failed_claims = 0;
                self.solos.insert(caller.ticket, caller);
            }
            Claimant::Cohort => {
                self.failed_claims = 0;
                self.deny_behind(cx, claim.mode);
            }
            Claimant::Ahead | Claimant::Abandoned => {}
        }
        if waited {
            // Only a store that cannot queue says so to a claim that would wait.
            let third = claim.lease() / 3;
            let pause = left.map_or(third, |left| ms(left.max(1))).min(third);
            let at = cx.now + cx.source.jittered(pause);
            self.reclaim = Some(Reclaim {
                at,
                after_failure: false,
            });
        }
    }

    /// Its key is free, and another of those that go with it is not. Whoever came for this key alone is claimed for again.
    fn apart(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let claim = self.claims.remove(number);
        match claim.map_or(Claimant::Abandoned, |claim| claim.claimant) {
            Claimant::Solo(caller) => cx.deny(caller.ticket, AcquireError::Busy),
            Claimant::Cohort => self.line.retain(
                |caller| !caller.options.together,
                |caller| cx.deny(caller.ticket, AcquireError::Busy),
            ),
            Claimant::Ahead | Claimant::Abandoned => {}
        }
    }

    /// The answer to a leave.
    fn left(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, reply: &Reply) {
        let claim = &mut self.claims[number];
        let Phase::Leaving(Leaving { release, .. }) = &mut claim.phase else {
            // Only a number that outlives its leave, which is a planted mistake, comes here.
            self.claims.end(number);
            return;
        };
        if let Some(ticket) = release.take() {
            // "Not there" may be the work of our own first try: the lease was good when that was sent. Not so for a
            // tick: the store knows its latest winner after it has left, so another has it, or had it.
            let is_finished = claim.tick.as_ref().is_some_and(|tick| tick.finished.is_some());
            let kept = *reply == Reply::Done || (claim.unanswered.is_some() && !is_finished);
            let outcome = if kept {
                Outcome::Kept
            } else {
                Outcome::Lost(LostCause::Gone)
            };
            cx.released(ticket, outcome);
        }
        match claim.may_execute_until.take() {
            // The claim itself may still be executed. Left once more when it no longer can be.
            Some(until) if *reply == Reply::NotThere => {
                cx.event(KeyEvent::GhostLeft);
                claim.act = Some(until.max(cx.now));
            }
            _ => {
                self.claims.end(number);
            }
        }
    }

    /// A yield that was not done: the old number may still own, the new one never was.
    pub(crate) fn yield_undone(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, reply: &Reply) {
        let Some(mut claim) = self.claims.remove(number) else {
            return;
        };
        if let Some(mut yielded) = claim.take_yielded() {
            // Or it is gone; what the leave finds would look like the work of a first try.
            if *reply == Reply::Gone
                && let Some(ticket) = yielded.release.take()
            {
                cx.released(ticket, Outcome::Lost(LostCause::Gone));
            }
            self.leave_old_number(cx, yielded, claim.seq, None);
        }
    }

    /// The store knows nothing of the claim, so its number is over.
    fn gone(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let number_twice = self.plant.planted(Flaw::NumberTwice);
        match self.claims[number].phase {
            Phase::Held(_) => self.lose(cx, number, LostCause::Gone),
            Phase::Leaving(_) => {}
            Phase::Asked | Phase::Queued { .. } if number_twice => {
                self.ask(cx, number, RequestKind::Claim { wait: true });
            }
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                cx.event(KeyEvent::Requeued);
                // Whoever waits is claimed for under the next.
                if let Claimant::Solo(caller) = self.end_number(cx, number) {
                    self.solos.insert(caller.ticket, caller);
                }
            }
        }
    }

    /// Ends a number that the store does not know, and says for whom it was.
    fn end_number(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) -> Claimant {
        let claim = &mut self.claims[number];
        let claimant = std::mem::replace(&mut claim.claimant, Claimant::Abandoned);
        match claim.may_execute_until.take() {
            Some(until) => {
                cx.event(KeyEvent::GhostLeft);
                let until = until.max(cx.now);
                let ends = until + claim.hold();
                claim.phase = Phase::Leaving(Leaving {
                    release: None,
                    ends,
                    until: ends,
                });
                claim.act = Some(until);
            }
            None => {
                self.claims.end(number);
            }
        }
        claimant
    }

    /// A grant that was pushed while the claim waited. "Queued" was answered after t₀ and proves that this number
    /// had no grant before; so the grant came later and lasts at least until t₀ + lease. No clocks are compared.
    pub(crate) fn pushed(&mut self, cx: &mut StepContext<'_>, grant: &Grant) {
        let number = grant.claim_id.claim;
        let Some(claim) = self.claims.get_mut(number) else {
            // The number that a yield under way gives up is dead, but its yield sees to it.
            return if self.pursues(grant.claim_id) {
                cx.event(KeyEvent::PushStale);
            } else {
                self.unknown(cx, grant);
            };
        };
        if claim.claim_id != grant.claim_id {
            return cx.event(KeyEvent::PushForged);
        }
        let t0 = match claim.phase {
            Phase::Asked => claim.asked,
            Phase::Queued { t0 } => t0,
            Phase::Confirming { .. } | Phase::Held(_) => return,
            Phase::Leaving(_) => return cx.event(KeyEvent::PushStale),
        };
        claim.may_execute_until = None;
        if let Some(tick) = &mut claim.tick {
            tick.attempt = grant.attempt;
        }
        // A push that overtakes the answer to a yield proves that the yield was done. Nobody may listen to that answer
        // any more, as when the number is left at once because nobody wants it.
        self.yield_is_done(cx, number);
        self.note_inheritance(cx, number);
        let claim = &mut self.claims[number];
        let lease = claim.lease().min(ms(grant.lease_ms));
        let deadline = t0 + lease;
        // A fixed lease starts on an answer, so that its holder has it in full.
        let confirm = claim.fixed || !cx.source.rules.final_push;
        if confirm || deadline.since(cx.now) < lease / 3 {
            cx.event(KeyEvent::PushConfirming);
            claim.phase = Phase::Confirming {
                since: cx.now,
                tries: 0,
            };
            if claim.asking.is_none() {
                self.ask(cx, number, RequestKind::Renew);
            }
        } else {
            cx.event(KeyEvent::PushUsed);
            self.start(cx, number, grant.number, deadline);
        }
    }

    /// A number that this node does not know was granted: it is left at once, or its lease would stand in everybody's
    /// way until it ends.
    fn unknown(&mut self, cx: &mut StepContext<'_>, grant: &Grant) {
        if grant.claim_id.node != cx.source.node {
            return cx.event(KeyEvent::PushForged);
        }
        cx.event(KeyEvent::UnknownLeft);
        let term = LeaseTimes {
            lease_ms: grant.lease_ms,
            margin_ms: grant.lease_ms,
        };
        let yielded = Yielded {
            from: grant.claim_id,
            term,
            release: None,
        };
        self.leave_old_number(cx, yielded, UNKNOWN_SEQ, None);
        if self.plant.planted(Flaw::UnknownKept) {
            let number = grant.claim_id.claim;
            self.claims[number].claimant = Claimant::Cohort;
            self.start(cx, number, grant.number, cx.now + ms(grant.lease_ms));
        }
    }
}
