//! What the store says: answers, failures, pushed grants.
//!
//! The rules that safety hangs on are here; each was found by breaking the design without it. See DESIGN in the
//! README's "how it works", and the simulator's planted mistakes.

use std::time::Duration;

use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::protocol::context::StepContext;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::key_state::{KeyState, Owner, Phase, RequestKind, Yielded};
use crate::protocol::message::{Grant, GrantNumber, LeaseTimes, NO_TICK, Reply, Unanswered};
use crate::protocol::step::{AcquireError, Effect, KeyEvent, Outcome, Tag, ms};
use crate::protocol::time::Instant;

/// Failures in a row after which the callers of a line hear of it.
const PATIENCE: u32 = 2;

/// The first failure may be the connection's, and the next try finds another: the keeper's. A restarted server has
/// broken that one too, and nobody knows before it is used; the third try opens one.
fn is_worth_another(error: &StoreError, fails: u32) -> bool {
    fails == 0 || (fails == 1 && matches!(error.kind(), StoreErrorKind::Interrupted))
}

impl<P: Plant> KeyState<P> {
    pub(crate) fn answered(&mut self, cx: &mut StepContext<'_>, tag: Tag, sent: Instant, reply: Reply) {
        // A late answer of a number that is over here, or of a request that was given up: it decides nothing.
        let Some(at) = self.numbered(tag.claim) else {
            return;
        };
        let Some(asking) = self.claims[at].asking.filter(|asking| asking.seq == tag.seq) else {
            return;
        };
        self.claims[at].asking = None;
        match (asking.what, reply) {
            (RequestKind::Leave, reply) => self.left(cx, at, reply),
            (what, Reply::Granted(number)) => self.granted(cx, at, what, sent, number),
            (what, Reply::Won(number, attempt)) => {
                self.claims[at].attempt = attempt;
                self.granted(cx, at, what, sent, number);
            }
            (RequestKind::Claim { .. } | RequestKind::Renew, Reply::Over) => {
                self.refused_tick(cx, at, AcquireError::Over)
            }
            (RequestKind::Claim { .. } | RequestKind::Renew, Reply::Early(left)) => {
                self.refused_tick(cx, at, AcquireError::Early(ms(left)));
            }
            (what, Reply::Queued(left)) => self.queued(cx, at, what, sent, left),
            (RequestKind::Yield, reply) => self.yield_refused(cx, at, reply),
            (RequestKind::Claim { wait }, Reply::Busy(left)) => self.busy(cx, at, wait, left),
            (RequestKind::Claim { .. }, Reply::Refused(refusal)) => {
                let claim = self.claims.swap_remove(at);
                self.deny_all(cx, claim.owner, StoreError::refused(refusal));
            }
            (RequestKind::Claim { .. }, _) => {
                cx.effects.push(Effect::Event(KeyEvent::Late));
                let owner = self.claims[at].owner;
                self.fails += 1;
                self.claim_again(cx, at, owner);
            }
            (RequestKind::Renew, Reply::Refused(refusal)) => {
                self.renew_failed(cx, at, StoreError::refused(refusal));
            }
            (RequestKind::Renew, _) => self.gone(cx, at),
        }
    }

    /// "Granted" counts from the sending of the request that was answered, because claim and renew extend as the
    /// owner.
    fn granted(
        &mut self,
        cx: &mut StepContext<'_>,
        at: usize,
        what: RequestKind,
        sent: Instant,
        number: GrantNumber,
    ) {
        let late = self.plant.planted(Flaw::DeadlineFromReply);
        let claim = &mut self.claims[at];
        let counted_from = if late { cx.now } else { sent };
        let deadline = counted_from + claim.lease();
        let lease = claim.lease();
        if what == RequestKind::Yield
            && let Some(Yielded {
                release: Some(ticket),
                ..
            }) = claim.yielded.take()
        {
            cx.effects.push(Effect::Released(ticket, Outcome::Kept));
        }
        match &mut claim.phase {
            Phase::Held(held) if held.number == number => {
                // Past the deadline it was lost before we got here: nothing revives it.
                let slack = held.deadline.since(cx.now);
                held.deadline = held.deadline.max(deadline);
                claim.fails = 0;
                cx.effects.push(Effect::Event(KeyEvent::Renewed { slack }));
                self.schedule(cx, at);
            }
            Phase::Held(_) => self.lose(cx, at, LostCause::Gone),
            Phase::Leaving { .. } => {}
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming => {
                if matches!(claim.phase, Phase::Queued { .. }) {
                    cx.effects.push(Effect::Event(KeyEvent::FoundGranted));
                }
                claim.may_execute_until = None;
                if deadline.since(cx.now) < lease / 3 {
                    cx.effects.push(Effect::Event(KeyEvent::AnswerStale));
                    claim.phase = Phase::Confirming;
                    self.ask(cx, at, RequestKind::Renew);
                } else {
                    self.start(cx, at, number, deadline);
                }
            }
        }
    }

    fn queued(
        &mut self,
        cx: &mut StepContext<'_>,
        at: usize,
        what: RequestKind,
        sent: Instant,
        left: Option<u64>,
    ) {
        let claim = &mut self.claims[at];
        claim.fails = 0;
        claim.may_execute_until = None;
        if what == RequestKind::Yield
            && let Some(Yielded {
                release: Some(ticket),
                ..
            }) = claim.yielded.take()
        {
            cx.effects.push(Effect::Released(ticket, Outcome::Kept));
        }
        match claim.phase {
            Phase::Asked | Phase::Queued { .. } => {
                claim.phase = Phase::Queued { t0: sent };
                self.fails = 0;
                self.outage = None;
                self.schedule_wait(cx, at, left);
                self.deny_the_impatient(cx);
            }
            // Executed before the grant that was pushed meanwhile; it says only that t₀ could be younger.
            Phase::Confirming => self.ask(cx, at, RequestKind::Renew),
            Phase::Held(_) => self.schedule(cx, at),
            Phase::Leaving { .. } => {}
        }
    }

    /// The store will not have this tick run. For one that holds it means that its lease is over, as "gone" does.
    fn refused_tick(&mut self, cx: &mut StepContext<'_>, at: usize, denial: AcquireError) {
        self.fails = 0;
        match (&self.claims[at].phase, self.claims[at].owner) {
            (Phase::Held(_), _) => self.lose(cx, at, LostCause::Gone),
            (Phase::Leaving { .. }, _) => {}
            (_, owner) => {
                self.claims.swap_remove(at);
                if let Owner::Solo(ticket) = owner {
                    cx.effects.push(Effect::Denied(ticket, denial));
                }
            }
        }
    }

    fn busy(&mut self, cx: &mut StepContext<'_>, at: usize, waited: bool, left: Option<u64>) {
        let claim = self.claims.swap_remove(at);
        (self.fails, self.outage) = (0, None);
        match claim.owner {
            // A tick that comes while an earlier one runs is skipped, however patient. A store that cannot queue says
            // the same to whoever would stand by, so there it is asked again: a skipped tick is over by then.
            Owner::Solo(ticket) if claim.options.mark != NO_TICK && cx.source.rules.queues => {
                return cx.effects.push(Effect::Denied(ticket, AcquireError::Busy));
            }
            Owner::Solo(ticket) if waited => self.solos.push((ticket, claim.options)),
            Owner::Solo(ticket) => cx.effects.push(Effect::Denied(ticket, AcquireError::Busy)),
            Owner::Cohort => self.deny_the_impatient(cx),
            Owner::Nobody => {}
        }
        if waited {
            // Only a store that cannot queue says so to a claim that would wait.
            let third = ms(claim.term.lease_ms) / 3;
            let pause = left.map_or(third, |left| ms(left.max(1))).min(third);
            self.reclaim = Some(cx.now + cx.source.jittered(pause));
        }
    }

    /// The answer to a leave.
    fn left(&mut self, cx: &mut StepContext<'_>, at: usize, reply: Reply) {
        if let Reply::Refused(refusal) = reply {
            return self.leave_failed(cx, at, StoreError::refused(refusal));
        }
        let claim = &mut self.claims[at];
        let Phase::Leaving { release, .. } = &mut claim.phase else {
            // Only a number that outlives its leave, which is a planted mistake, comes here.
            self.claims.swap_remove(at);
            return;
        };
        if let Some(ticket) = release.take() {
            // "Not there" on a repeat may be our own first try: the lease was good when that was sent. Not so for a
            // tick: the store knows its latest winner after it has left, so another has it, or had it.
            let kept = reply == Reply::Done || (claim.fails > 0 && !claim.finished);
            let outcome = if kept {
                Outcome::Kept
            } else {
                Outcome::Lost(LostCause::Gone)
            };
            cx.effects.push(Effect::Released(ticket, outcome));
        }
        match claim.may_execute_until.take() {
            // The claim itself may still be executed. Left once more when it no longer can be.
            Some(until) if reply == Reply::NotThere => {
                cx.effects.push(Effect::Event(KeyEvent::GhostLeft));
                claim.fails = 1;
                claim.act = Some(until.max(cx.now));
            }
            _ => {
                self.claims.swap_remove(at);
            }
        }
    }

    /// A yield that was not done: the old number may still own, the new one never was.
    fn yield_refused(&mut self, cx: &mut StepContext<'_>, at: usize, reply: Reply) {
        let claim = self.claims.swap_remove(at);
        if let Some(mut yielded) = claim.yielded {
            // Or it is gone; what the leave finds would look like the work of a first try.
            if reply == Reply::Gone
                && let Some(ticket) = yielded.release.take()
            {
                let outcome = Outcome::Lost(LostCause::Gone);
                cx.effects.push(Effect::Released(ticket, outcome));
            }
            self.leave_old_number(cx, yielded);
        }
    }

    /// The store knows nothing of the claim, so its number is over.
    fn gone(&mut self, cx: &mut StepContext<'_>, at: usize) {
        let claim = &mut self.claims[at];
        match claim.phase {
            Phase::Held(_) => self.lose(cx, at, LostCause::Gone),
            Phase::Leaving { .. } => {}
            Phase::Asked | Phase::Queued { .. } if self.plant.planted(Flaw::NumberTwice) => {
                self.ask(cx, at, RequestKind::Claim { wait: true });
            }
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming => {
                cx.effects.push(Effect::Event(KeyEvent::Requeued));
                let owner = claim.owner;
                self.claim_again(cx, at, owner);
            }
        }
    }

    /// Ends a number for which somebody still waits; they are claimed for under the next.
    fn claim_again(&mut self, cx: &mut StepContext<'_>, at: usize, owner: Owner) {
        let claim = &mut self.claims[at];
        let options = claim.options;
        match claim.may_execute_until.take() {
            Some(until) => {
                cx.effects.push(Effect::Event(KeyEvent::GhostLeft));
                claim.owner = Owner::Nobody;
                claim.phase = Phase::Leaving {
                    release: None,
                    until: until.max(cx.now) + claim.hold(),
                };
                claim.fails = 1;
                claim.act = Some(until.max(cx.now));
            }
            None => {
                self.claims.swap_remove(at);
            }
        }
        if self.fails >= PATIENCE {
            let error = StoreError::new(StoreErrorKind::TimedOut, "claims reach the store too late");
            return self.deny_all(cx, owner, error);
        }
        if let Owner::Solo(ticket) = owner {
            self.solos.push((ticket, options));
        }
    }

    pub(crate) fn failed(
        &mut self,
        cx: &mut StepContext<'_>,
        tag: Tag,
        why: Unanswered,
        late_after: Instant,
        error: StoreError,
    ) {
        let Some(at) = self.numbered(tag.claim) else {
            return;
        };
        let Some(asking) = self.claims[at].asking.filter(|asking| asking.seq == tag.seq) else {
            return;
        };
        self.claims[at].asking = None;
        match asking.what {
            RequestKind::Claim { .. } | RequestKind::Yield => {
                self.claim_failed(cx, at, why, late_after, error)
            }
            RequestKind::Renew => self.renew_failed(cx, at, error),
            RequestKind::Leave => self.leave_failed(cx, at, error),
        }
    }

    /// Single use: the answer to a claim that got lost is asked for, the claim is never sent again.
    fn claim_failed(
        &mut self,
        cx: &mut StepContext<'_>,
        at: usize,
        why: Unanswered,
        late: Instant,
        error: StoreError,
    ) {
        self.fails += 1;
        let owner = self.claims[at].owner;
        // The older half of a yield is dead here since it was sent, and is left now whatever happened.
        if let Some(yielded) = self.claims[at].yielded.take() {
            cx.effects.push(Effect::Event(KeyEvent::LeaveRepeated));
            self.outage.get_or_insert(cx.now);
            self.leave_old_number(cx, yielded);
        }
        let claim = &mut self.claims[at];
        if !matches!(claim.phase, Phase::Asked) {
            // A push told us more than the answer could have.
            return if matches!(claim.phase, Phase::Held(_)) {
                self.schedule(cx, at)
            } else {
                self.schedule_retry(cx, at)
            };
        }
        match why {
            Unanswered::Unknown | Unanswered::Bystander => {
                claim.may_execute_until = Some(late);
                claim.fails = 1;
                if owner == Owner::Nobody || (owner == Owner::Cohort && self.line.is_empty()) {
                    return;
                }
                cx.effects.push(Effect::Event(KeyEvent::Asking));
                self.ask(cx, at, RequestKind::Renew);
            }
            Unanswered::No | Unanswered::Down => {
                let claim = self.claims.swap_remove(at);
                let again = matches!(error.kind(), StoreErrorKind::Interrupted) && self.fails < PATIENCE;
                match owner {
                    _ if !again => self.deny_or_wait(cx, owner, claim.lease(), error),
                    Owner::Solo(ticket) => self.solos.push((ticket, claim.options)),
                    // A line is claimed for anew by itself.
                    Owner::Cohort | Owner::Nobody => {}
                }
            }
        }
    }

    fn renew_failed(&mut self, cx: &mut StepContext<'_>, at: usize, error: StoreError) {
        let claim = &self.claims[at];
        let refused_for_good =
            matches!(error.kind(), StoreErrorKind::Refused(refusal) if !refusal.is_passing());
        match claim.phase {
            Phase::Held(held) => {
                let left = held.deadline.since(cx.now);
                cx.effects
                    .push(Effect::Event(KeyEvent::RenewFailed { left, error }));
                self.schedule_retry(cx, at);
            }
            // A waiter rides out an outage of up to its lease: so long its place may live.
            Phase::Queued { t0 } if !refused_for_good && cx.now.since(t0) < claim.lease() => {
                cx.effects.push(Effect::Event(KeyEvent::WaitFailed { error }));
                self.schedule_retry(cx, at);
            }
            Phase::Confirming if !refused_for_good && claim.fails < 8 => self.schedule_retry(cx, at),
            Phase::Leaving { .. } => {}
            Phase::Asked if is_worth_another(&error, claim.fails) => {
                self.claims[at].fails += 1;
                self.ask(cx, at, RequestKind::Renew);
            }
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming => {
                let (owner, lease) = (claim.owner, claim.lease());
                self.claims[at].owner = Owner::Nobody;
                self.leave(cx, at, None);
                self.claims[at].fails = 1;
                self.deny_or_wait(cx, owner, lease, error);
            }
        }
    }

    fn leave_failed(&mut self, cx: &mut StepContext<'_>, at: usize, error: StoreError) {
        let claim = &mut self.claims[at];
        let Phase::Leaving { release, until } = &mut claim.phase else {
            return;
        };
        cx.effects.push(Effect::Event(KeyEvent::LeaveRepeated));
        let another = cx.now < *until && is_worth_another(&error, claim.fails);
        if !another && let Some(ticket) = release.take() {
            cx.effects
                .push(Effect::Released(ticket, Outcome::Failed(error.clone())));
        }
        if cx.now >= *until {
            cx.effects
                .push(Effect::Event(KeyEvent::LeaveFailed { error: Some(error) }));
            self.claims.swap_remove(at);
        } else if another {
            claim.fails += 1;
            self.ask(cx, at, RequestKind::Leave);
        } else {
            self.schedule_retry(cx, at);
        }
    }

    /// A line owner lease was yielded had waited before the store went away, and waits through an outage of up to a
    /// lease as a queued claim does. Whoever comes to a store that is away hears of it at once.
    fn deny_or_wait(&mut self, cx: &mut StepContext<'_>, owner: Owner, lease: Duration, error: StoreError) {
        let rides_out = self.outage.is_some_and(|since| cx.now.since(since) < lease)
            && !matches!(error.kind(), StoreErrorKind::Refused(refusal) if !refusal.is_passing());
        if owner != Owner::Cohort || !rides_out {
            self.outage = None;
            return self.deny_all(cx, owner, error);
        }
        self.fails = 0;
        self.line.retain(|(ticket, options)| {
            if !options.wait {
                cx.effects
                    .push(Effect::Denied(*ticket, AcquireError::Store(error.clone())));
            }
            options.wait
        });
        self.reclaim = Some(cx.now + cx.source.jittered(lease / 16));
        cx.effects.push(Effect::Event(KeyEvent::WaitFailed { error }));
    }

    /// Everybody for whom the claim was hears of the error.
    fn deny_all(&mut self, cx: &mut StepContext<'_>, owner: Owner, error: StoreError) {
        match owner {
            Owner::Cohort => {
                self.fails = 0;
                for (ticket, _) in self.line.drain(..) {
                    cx.effects
                        .push(Effect::Denied(ticket, AcquireError::Store(error.clone())));
                }
            }
            Owner::Solo(ticket) => cx
                .effects
                .push(Effect::Denied(ticket, AcquireError::Store(error))),
            Owner::Nobody => {}
        }
    }

    /// A grant that was pushed while the claim waited. "Queued" was answered after t₀ and proves that this number
    /// had no grant before; so the grant came later and lasts at least until t₀ + lease. No clocks are compared.
    pub(crate) fn pushed(&mut self, cx: &mut StepContext<'_>, grant: &Grant) {
        let Some(at) = self.numbered(grant.holder.claim) else {
            // The number that a yield under way gives up is dead, but its yield sees to it.
            return if self.pursues(grant.holder) {
                cx.effects.push(Effect::Event(KeyEvent::PushStale));
            } else {
                self.unknown(cx, grant);
            };
        };
        let claim = &mut self.claims[at];
        if claim.holder != grant.holder {
            return cx.effects.push(Effect::Event(KeyEvent::PushForged));
        }
        let t0 = match claim.phase {
            Phase::Asked => claim.asked,
            Phase::Queued { t0 } => t0,
            Phase::Confirming | Phase::Held(_) => return,
            Phase::Leaving { .. } => return cx.effects.push(Effect::Event(KeyEvent::PushStale)),
        };
        claim.may_execute_until = None;
        claim.attempt = grant.attempt;
        // A push that overtakes the answer to a yield proves that the yield was done. Nobody may listen to that answer
        // any more, as when the number is left at once because nobody wants it.
        if let Some(Yielded {
            release: Some(ticket),
            ..
        }) = claim.yielded.take()
        {
            cx.effects.push(Effect::Released(ticket, Outcome::Kept));
        }
        let lease = claim.lease().min(ms(grant.lease_ms));
        let deadline = t0 + lease;
        // A fixed lease starts on an answer, so that its holder has it in full.
        let confirm = claim.options.fixed || !cx.source.rules.final_push;
        if confirm || deadline.since(cx.now) < lease / 3 {
            cx.effects.push(Effect::Event(KeyEvent::PushConfirming));
            claim.phase = Phase::Confirming;
            if claim.asking.is_none() {
                self.ask(cx, at, RequestKind::Renew);
            }
        } else {
            cx.effects.push(Effect::Event(KeyEvent::PushUsed));
            self.start(cx, at, grant.number, deadline);
        }
    }

    /// A number that this node does not know was granted: it is left at once, or its lease would stand in everybody's
    /// way until it ends.
    fn unknown(&mut self, cx: &mut StepContext<'_>, grant: &Grant) {
        if grant.holder.node != cx.source.node {
            return cx.effects.push(Effect::Event(KeyEvent::PushForged));
        }
        cx.effects.push(Effect::Event(KeyEvent::UnknownLeft));
        let term = LeaseTimes {
            lease_ms: grant.lease_ms,
            margin_ms: grant.lease_ms,
        };
        self.leave_old_number(
            cx,
            Yielded {
                from: grant.holder,
                term,
                release: None,
            },
        );
        if self.plant.planted(Flaw::UnknownKept) {
            let at = self.claims.len() - 1;
            self.claims[at].owner = Owner::Cohort;
            self.start(cx, at, grant.number, cx.now + ms(grant.lease_ms));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::protocol::context::Seed;
    use crate::protocol::message::{Name, NodeId};
    use crate::protocol::shard::Shard;
    use crate::protocol::step::{AcquireOptions, Input, Rules, Ticket};

    #[test]
    fn a_line_rides_out_an_outage_of_up_to_a_lease_at_a_yield() {
        let (mut now, mut effects) = (Instant::from_nanos(1), Vec::new());
        let rules = Rules {
            burst: 1,
            ..Rules::default()
        };
        let mut shard = Shard::new(NodeId::numbered(1), 0, 1, Seed::numbered(1), rules);
        let name = Name::lock(Key::from("a"));
        let term = LeaseTimes {
            lease_ms: 1000,
            margin_ms: 250,
        };
        let options = AcquireOptions {
            term,
            wait: true,
            fixed: false,
            mark: NO_TICK,
            limit: 10,
            node_is_full: false,
        };
        let tickets: Vec<Ticket> = (0..4).map(|_| shard.issue()).collect();
        for ticket in &tickets {
            shard.handle(now, &name, Input::Lock(*ticket, options), &mut effects);
        }
        let sent = |effects: &[Effect]| {
            let mut outgoing = effects.iter().rev().filter_map(|effect| match effect {
                Effect::Send(outgoing) if outgoing.request.verb != crate::protocol::message::Verb::Leave => {
                    Some(outgoing.tag)
                }
                _ => None,
            });
            outgoing.next().expect("a request")
        };
        let tag = sent(&effects);
        let reply = Reply::Granted(7);
        shard.handle(
            now,
            &name,
            Input::Answered {
                tag,
                sent: now,
                reply,
            },
            &mut effects,
        );
        // Once handed on, then yielded.
        shard.handle(now, &name, Input::Release(tickets[0]), &mut effects);
        shard.handle(now, &name, Input::Release(tickets[1]), &mut effects);
        let began = now;
        let mut denied_after = None;
        let mut tag = sent(&effects);
        while denied_after.is_none() {
            assert!(now.since(began) < ms(3000), "neither served nor denied");
            effects.clear();
            let error = StoreError::new(StoreErrorKind::Unreachable, "refused");
            let failed = Input::Failed {
                tag,
                why: Unanswered::No,
                late_after: now,
                heard: Some(now),
                error,
            };
            shard.handle(now, &name, failed, &mut effects);
            if effects
                .iter()
                .any(|effect| matches!(effect, Effect::Denied(_, AcquireError::Store(_))))
            {
                denied_after = Some(now.since(began));
                break;
            }
            // Until the line is claimed for again.
            effects.clear();
            while !effects
                .iter()
                .any(|e| matches!(e, Effect::Send(p) if matches!(p.request.verb, crate::protocol::message::Verb::Claim { .. })))
            {
                now = shard.next_due().expect("something is due").max(now + ms(1));
                let _ = shard.wake_next(now, &mut effects);
            }
            tag = sent(&effects);
        }
        assert!(
            denied_after.is_some_and(|after| after >= ms(1000)),
            "{denied_after:?}"
        );
    }
}
