//! What the store says: answers and pushed grants.
//!
//! The rules that safety depends on are here; each was found by breaking the design without it. See "Six rules of safety"
//! in ARCHITECTURE.md, and the mistakes that the simulator plants.

use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::protocol::claims::{Leaving, Owner, Phase, RequestKind, Yielded};
use crate::protocol::context::StepContext;
use crate::protocol::failures::Failing;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::key_state::{KeyState, Reclaim};
use crate::protocol::line::Caller;
use crate::protocol::message::{ClaimNumber, Grant, GrantNumber, LeaseTimes, Reply, Unanswered};
use crate::protocol::step::{AcquireError, Effect, KeyEvent, Outcome, Tag, ms};
use crate::protocol::time::Instant;

/// So many answers in a row that are too old to be used, then the lease is left to others: it would be extended without
/// end, and never be used.
const STALE_ANSWERS: u32 = 3;

impl<P: Plant> KeyState<P> {
    /// What was asked, if the claim is not over and nothing was asked since.
    pub(crate) fn take_asked(&mut self, tag: Tag) -> Option<RequestKind> {
        let claim = self.claims.get_mut(tag.claim)?;
        let asking = claim.asking.filter(|asking| asking.seq == tag.seq)?;
        claim.asking = None;
        Some(asking.what)
    }

    pub(crate) fn answered(&mut self, cx: &mut StepContext<'_>, tag: Tag, sent: Instant, reply: Reply) {
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
            (_, Reply::Granted(grant)) => self.granted(cx, number, sent, grant),
            (_, Reply::Won(grant, attempt)) => {
                self.claims[number].attempt = attempt;
                self.granted(cx, number, sent, grant);
            }
            (_, Reply::Queued(left)) => self.queued(cx, number, sent, (left, false)),
            (_, Reply::QueuedBehindForeign(left)) => self.queued(cx, number, sent, (left, true)),
            (RequestKind::Yield, reply) => self.yield_undone(cx, number, &reply),
            (_, Reply::Over) => self.refused_tick(cx, number, AcquireError::Over),
            (_, Reply::Early(left)) => self.refused_tick(cx, number, AcquireError::Early(ms(left))),
            (RequestKind::Claim { wait }, Reply::Busy(left)) => self.busy(cx, number, wait, left),
            (RequestKind::Claim { .. }, _) => {
                cx.event(KeyEvent::Late);
                let owner = self.end_number(cx, number);
                self.in_vain(cx, owner, "claims reach the store too late");
            }
            (RequestKind::Renew, _) => self.gone(cx, number),
        }
    }

    /// A release that was a yield is answered as soon as the yield is known to be done.
    fn yield_is_done(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let yielded = self.claims[number].yielded.take();
        if let Some(ticket) = yielded.and_then(|yielded| yielded.release) {
            cx.effects.push(Effect::Released(ticket, Outcome::Kept));
        }
    }

    /// "Granted" counts from the sending of the request that was answered, because claim and renew extend as the
    /// owner.
    fn granted(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, sent: Instant, grant: GrantNumber) {
        self.yield_is_done(cx, number);
        let from_reply = self.plant.planted(Flaw::DeadlineFromReply);
        let claim = &mut self.claims[number];
        let (lease, hold) = (claim.lease(), claim.hold());
        let deadline = if from_reply { cx.now } else { sent } + lease;
        match &mut claim.phase {
            Phase::Held(held) if held.number == grant => {
                // Past the deadline it was lost before we got here: nothing revives it.
                let slack = held.deadline.since(cx.now);
                held.deadline = held.deadline.max(deadline);
                held.ends = cx.now + hold;
                claim.fails = 0;
                cx.event(KeyEvent::Renewed { slack });
                self.schedule(cx, number);
            }
            Phase::Held(_) => self.lose(cx, number, LostCause::Gone),
            Phase::Leaving(_) => {}
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                if matches!(claim.phase, Phase::Queued { .. }) {
                    cx.event(KeyEvent::FoundGranted);
                    self.note_inheritance(cx, number);
                }
                let claim = &mut self.claims[number];
                claim.may_execute_until = None;
                if deadline.since(cx.now) < lease / 3 {
                    self.stale(cx, number);
                } else {
                    self.start(cx, number, grant, deadline);
                }
            }
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
        if tries < STALE_ANSWERS {
            return self.schedule_confirmation(cx, number, tries);
        }
        let owner = std::mem::replace(&mut claim.owner, Owner::Nobody);
        self.in_vain(cx, owner, "answers come too late to be used");
    }

    /// `is_foreign`: the owner will not tell anybody of its release.
    fn queued(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        sent: Instant,
        (left, is_foreign): (Option<u64>, bool),
    ) {
        self.yield_is_done(cx, number);
        let claim = &mut self.claims[number];
        claim.may_execute_until = None;
        match claim.phase {
            // Executed before the grant that was pushed meanwhile: it says only that t₀ could be younger.
            Phase::Confirming { since, tries } if sent < since => {
                self.schedule_confirmation(cx, number, tries + 1);
            }
            // One that was asked for when the grant was known here: so there is none, whoever pushed it.
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                claim.phase = Phase::Queued { t0: sent };
                claim.fails = 0;
                match &mut claim.owner {
                    Owner::Cohort => self.strikes = 0,
                    Owner::Solo(caller) => caller.strikes = 0,
                    Owner::Nobody => {}
                }
                self.taken = Some(cx.now);
                self.owner_ends = left.map(|left| sent + ms(left));
                self.schedule_wait(cx, number, left, is_foreign);
                self.deny_the_impatient(cx);
            }
            Phase::Held(_) => self.schedule(cx, number),
            Phase::Leaving(_) => {}
        }
    }

    /// The store will not have this tick run. For one that holds it means that its lease is over, as "gone" does.
    fn refused_tick(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, denial: AcquireError) {
        let claim = &self.claims[number];
        match (&claim.phase, claim.owner) {
            (Phase::Held(_), _) => self.lose(cx, number, LostCause::Gone),
            (Phase::Leaving(_), _) => {}
            (_, owner) => {
                self.claims.remove(number);
                if let Owner::Solo(caller) = owner {
                    cx.effects.push(Effect::Denied(caller.ticket, denial));
                }
            }
        }
    }

    fn busy(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, waited: bool, left: Option<u64>) {
        let Some(claim) = self.claims.remove(number) else {
            return;
        };
        self.taken = Some(cx.now);
        match claim.owner {
            // A tick that comes while an earlier one runs is skipped, however patient. A store that cannot queue says
            // the same to whoever would stand by, so there it is asked again: a skipped tick is over by then.
            Owner::Solo(caller) if !waited || claim.is_tick() && cx.source.rules.queues => {
                return cx
                    .effects
                    .push(Effect::Denied(caller.ticket, caller.options.busy()));
            }
            Owner::Solo(caller) => {
                self.solos.insert(caller.ticket, Caller { strikes: 0, ..caller });
            }
            Owner::Cohort => {
                self.strikes = 0;
                self.deny_the_impatient(cx);
            }
            Owner::Nobody => {}
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

    /// The answer to a leave.
    fn left(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, reply: &Reply) {
        let claim = &mut self.claims[number];
        let Phase::Leaving(Leaving {
            release, repeated, ..
        }) = &mut claim.phase
        else {
            // Only a number that outlives its leave, which is a planted mistake, comes here.
            self.claims.remove(number);
            return;
        };
        if let Some(ticket) = release.take() {
            // "Not there" may be the work of our own first try: the lease was good when that was sent. Not so for a
            // tick: the store knows its latest winner after it has left, so another has it, or had it.
            let kept = *reply == Reply::Done || (*repeated && !claim.finished);
            let outcome = if kept {
                Outcome::Kept
            } else {
                Outcome::Lost(LostCause::Gone)
            };
            cx.effects.push(Effect::Released(ticket, outcome));
        }
        match claim.may_execute_until.take() {
            // The claim itself may still be executed. Left once more when it no longer can be.
            Some(until) if *reply == Reply::NotThere => {
                cx.event(KeyEvent::GhostLeft);
                claim.act = Some(until.max(cx.now));
            }
            _ => {
                self.claims.remove(number);
            }
        }
    }

    /// A yield that was not done: the old number may still own, the new one never was.
    pub(crate) fn yield_undone(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, reply: &Reply) {
        let claim = self.claims.remove(number);
        if let Some(mut yielded) = claim.and_then(|claim| claim.yielded) {
            // Or it is gone; what the leave finds would look like the work of a first try.
            if *reply == Reply::Gone
                && let Some(ticket) = yielded.release.take()
            {
                let outcome = Outcome::Lost(LostCause::Gone);
                cx.effects.push(Effect::Released(ticket, outcome));
            }
            self.leave_old_number(cx, yielded, false);
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
                if let Owner::Solo(caller) = self.end_number(cx, number) {
                    self.solos.insert(caller.ticket, caller);
                }
            }
        }
    }

    /// Ends a number that the store does not know, and says for whom it was.
    fn end_number(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) -> Owner {
        let claim = &mut self.claims[number];
        let owner = std::mem::replace(&mut claim.owner, Owner::Nobody);
        match claim.may_execute_until.take() {
            Some(until) => {
                cx.event(KeyEvent::GhostLeft);
                let until = until.max(cx.now);
                let ends = until + claim.hold();
                claim.phase = Phase::Leaving(Leaving {
                    release: None,
                    ends,
                    until: ends,
                    repeated: false,
                });
                claim.act = Some(until);
            }
            None => {
                self.claims.remove(number);
            }
        }
        owner
    }

    /// The store answers, and to no use. Whoever was told before that somebody has the key goes on.
    fn in_vain(&mut self, cx: &mut StepContext<'_>, owner: Owner, text: &str) {
        let failing = Failing {
            why: Unanswered::No,
            heard: self.taken,
            error: StoreError::new(StoreErrorKind::TimedOut, text),
        };
        self.claim_again(cx, owner, &failing);
    }

    /// A grant that was pushed while the claim waited. "Queued" was answered after t₀ and proves that this number
    /// had no grant before; so the grant came later and lasts at least until t₀ + lease. No clocks are compared.
    pub(crate) fn pushed(&mut self, cx: &mut StepContext<'_>, grant: &Grant) {
        let number = grant.holder.claim;
        let Some(claim) = self.claims.get_mut(number) else {
            // The number that a yield under way gives up is dead, but its yield sees to it.
            return if self.pursues(grant.holder) {
                cx.event(KeyEvent::PushStale);
            } else {
                self.unknown(cx, grant);
            };
        };
        if claim.holder != grant.holder {
            return cx.event(KeyEvent::PushForged);
        }
        let t0 = match claim.phase {
            Phase::Asked => claim.asked,
            Phase::Queued { t0 } => t0,
            Phase::Confirming { .. } | Phase::Held(_) => return,
            Phase::Leaving(_) => return cx.event(KeyEvent::PushStale),
        };
        claim.may_execute_until = None;
        claim.attempt = grant.attempt;
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
        if grant.holder.node != cx.source.node {
            return cx.event(KeyEvent::PushForged);
        }
        cx.event(KeyEvent::UnknownLeft);
        let term = LeaseTimes {
            lease_ms: grant.lease_ms,
            margin_ms: grant.lease_ms,
        };
        let yielded = Yielded {
            from: grant.holder,
            term,
            release: None,
        };
        self.leave_old_number(cx, yielded, false);
        if self.plant.planted(Flaw::UnknownKept) {
            let number = grant.holder.claim;
            self.claims[number].owner = Owner::Cohort;
            self.start(cx, number, grant.number, cx.now + ms(grant.lease_ms));
        }
    }
}
