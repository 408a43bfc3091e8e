//! What time does to a claim: losses, renewals, repeats.

use std::time::Duration;

use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::protocol::call::calls::Calls;
use crate::protocol::failing::LONGEST_RETRY;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::key::claim::{Holders, Local, Phase, RequestKind};
use crate::protocol::key::context::StepContext;
use crate::protocol::key::key_state::{KeyState, Renewal};
use crate::protocol::message::{ClaimNumber, Kind};
use crate::protocol::step::{AcquireError, CallAnswer, Effect, InboxState, KeyEvent, Ticket, ms};
use crate::protocol::time::Instant;

/// The shortest pause before a failed request is repeated.
const SHORTEST_RETRY: Duration = Duration::from_millis(10);
/// The pause before a grant that was too old is asked about again; it doubles.
const CONFIRMATION: Duration = Duration::from_millis(20);
/// How often a waiter looks while nobody knows whether grants are pushed.
const LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(250));
/// How often a key is looked at while its owner does not know the queue, in the first [`SOON`] of a wait. Other
/// libraries poll, too: redis-py every 100 ms.
const FOREIGN_SOON: Duration = Duration::from_millis(30);
/// How often after that: whoever waits so long waits for something long.
const FOREIGN_LATER: Duration = Duration::from_millis(250);
const SOON: Duration = Duration::from_secs(2);

impl<P: Plant> KeyState<P> {
    #[inline]
    pub(crate) fn next_due(&mut self) -> Option<Instant> {
        let mut due = self.claims.next_due();
        let mut add = |other: Option<Instant>| due = due.into_iter().chain(other).min();
        if let Some(calls) = &self.calls {
            add(calls.next_due());
        }
        add(self.readers.unfetched.first().map(|(at, _)| *at));
        if !self.line.is_empty() || !self.solos.is_empty() {
            // Without a pause all callers have claims, except those that rest.
            let rested = || self.solos.values().map(|caller| caller.entered).min();
            add(self.reclaim.map(|reclaim| reclaim.at).or_else(rested));
        }
        due
    }

    pub(crate) fn wake(&mut self, cx: &mut StepContext<'_>) {
        self.step_calls(cx, Calls::wake);
        self.expire(cx);
        for number in self.claims.due(cx.now) {
            if self.claims[number].act.is_some_and(|act| act <= cx.now) {
                self.act(cx, number);
            }
        }
        self.end_step(cx);
    }

    /// Its pause is over.
    fn act(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        if self.is_overdue(cx, number) {
            return;
        }
        match self.claims[number].phase {
            Phase::Held(_) | Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                self.ask(cx, number, RequestKind::Renew);
            }
            Phase::Leaving(leaving) if cx.now >= leaving.until => {
                cx.event(KeyEvent::LeaveFailed { error: None });
                self.claims.end(number);
            }
            Phase::Leaving(_) => self.ask(cx, number, RequestKind::Leave),
        }
    }

    /// The holder has held it for as long as it may: it is told so, and the lease is renewed no more. What is left of it
    /// is its time to come to an end.
    pub(crate) fn is_overdue(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) -> bool {
        let renews_all = self.plant.planted(Flaw::OverdueRenewed);
        let claim = &mut self.claims[number];
        let Phase::Held(held) = &mut claim.phase else {
            return false;
        };
        let left = held.deadline.since(cx.now);
        let Holders::One(Local { ticket, hold, .. }) = &mut held.holders else {
            self.note_long_readers(cx, number);
            return false;
        };
        let held_for = cx.now.since(hold.since);
        if hold.until().is_none_or(|until| cx.now < until) || renews_all {
            // A job takes as long as it takes, and a leader leads for as long as it lives.
            let is_lock = !matches!(cx.name.kind, Kind::Job | Kind::Election);
            let is_long = held_for >= cx.source.rules.long_hold && !hold.is_told && is_lock;
            hold.is_told |= is_long;
            if is_long {
                cx.event(KeyEvent::HeldLong { held: held_for });
            }
            return false;
        }
        claim.act = None;
        claim.retries = false;
        if !hold.is_overdue {
            hold.is_overdue = true;
            cx.effects.push(Effect::Overdue(*ticket));
            cx.event(KeyEvent::Overdue { held: held_for, left });
        }
        true
    }

    /// Renews the lease of a holder now. A renewal of the lease that is in flight serves this caller, too.
    pub(crate) fn renew(&mut self, cx: &mut StepContext<'_>, renewal: Renewal) {
        let Some((claim, ..)) = self.held_by(renewal.holder) else {
            return cx.effects.push(Self::renewed_too_late(renewal.caller));
        };
        let (number, is_asking) = (claim.claim_id.claim, claim.is_asking(RequestKind::Renew));
        if self.is_overdue(cx, number) {
            return cx.deny(renewal.caller, AcquireError::Lost(LostCause::Overdue));
        }
        self.renewals.push(renewal);
        if !is_asking {
            self.ask(cx, number, RequestKind::Renew);
        }
    }

    pub(crate) fn renewed_too_late(caller: Ticket) -> Effect {
        Effect::Denied(caller, AcquireError::Lost(LostCause::Deadline))
    }

    /// Tells the callers that asked for a renewal of this claim that the store has extended the lease.
    pub(crate) fn answer_renewals(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let mut renewals = std::mem::take(&mut self.renewals);
        renewals.retain(|renewal| {
            let held = self.held_by(renewal.holder);
            let is_renewed = held.is_some_and(|(claim, ..)| claim.claim_id.claim == number);
            if is_renewed {
                let answer = CallAnswer::Owned(true);
                cx.effects.push(Effect::Answered(renewal.caller, answer));
            }
            !is_renewed
        });
        self.renewals = renewals;
    }

    /// Tells the callers whose renewal has no request in flight any more that it failed, or that the lease is lost.
    pub(crate) fn deny_failed_renewals(&mut self, cx: &mut StepContext<'_>) {
        let mut renewals = std::mem::take(&mut self.renewals);
        renewals.retain(|renewal| {
            let denial = match self.held_by(renewal.holder) {
                Some((claim, ..)) if claim.is_asking(RequestKind::Renew) => return true,
                Some((claim, ..)) => {
                    let first = claim.unanswered.as_deref().or(self.error.as_ref());
                    AcquireError::Store(first.cloned().unwrap_or_else(|| {
                        StoreError::new(StoreErrorKind::Interrupted, "the store did not renew the lease")
                    }))
                }
                None => AcquireError::Lost(LostCause::Deadline),
            };
            cx.deny(renewal.caller, denial);
            false
        });
        self.renewals = renewals;
    }

    /// The deadline is checked on every step, not by its timer alone: a process that stood still and woke up is
    /// lost before it does anything else.
    #[inline]
    pub(crate) fn expire(&mut self, cx: &mut StepContext<'_>) {
        // Its timer is that of whatever is due first. Without one nothing is.
        if self.due.is_none_or(|due| due > cx.now) {
            return;
        }
        let late_renewal_revives = self.plant.planted(Flaw::LateRenewalRevives);
        for number in self.claims.due(cx.now) {
            let claim = &self.claims[number];
            let Phase::Held(held) = claim.phase else { continue };
            if cx.now >= held.deadline {
                if claim.is_asking(RequestKind::Renew) && late_renewal_revives {
                    continue;
                }
                let cause = if claim.fixed {
                    LostCause::Ended
                } else if held.local().is_some_and(|local| local.hold.is_overdue) {
                    LostCause::Overdue
                } else {
                    LostCause::Deadline
                };
                self.lose(cx, number, cause);
            } else if let Some(local) = held.local()
                && local.unfetched.is_some_and(|until| until <= cx.now)
            {
                cx.effects.push(Effect::Lost(local.ticket, LostCause::Unfetched));
                self.give_back(cx, number, None);
            }
        }
        if !self.readers.unfetched.is_empty() {
            self.give_back_unfetched(cx);
        }
    }

    /// Whether grants are pushed has changed, or they are again and some may have been missed.
    pub(crate) fn inbox(&mut self, cx: &mut StepContext<'_>) {
        self.step_calls(cx, Calls::inbox);
        self.expire(cx);
        for number in self.claims.all() {
            let claim = &mut self.claims[number];
            let is_queued = matches!(claim.phase, Phase::Queued { .. });
            match cx.source.inbox {
                InboxState::Confirmed if claim.asking.is_none() && is_queued => {
                    self.ask(cx, number, RequestKind::Renew);
                }
                // The answer may say "queued" of a time before that.
                InboxState::Confirmed => claim.look_again = claim.asking.is_some(),
                InboxState::Unconfirmed if is_queued => {
                    let look = cx.now + cx.source.between(LOOK);
                    claim.act = claim.act.map(|act| act.min(look));
                }
                InboxState::Unconfirmed | InboxState::Refused => {}
            }
        }
        self.end_step(cx);
    }

    /// A connection opened: what failed and waits to be repeated is repeated now.
    pub(crate) fn reachable(&mut self, cx: &mut StepContext<'_>) {
        self.step_calls(cx, Calls::reachable);
        self.expire(cx);
        for number in self.claims.all() {
            if self.claims[number].retries {
                self.act(cx, number);
            }
        }
        self.reclaim = self.reclaim.filter(|reclaim| !reclaim.after_failure);
        self.end_step(cx);
    }

    /// A lease is renewed when a third of it is over. A lease of fixed length is not.
    ///
    /// A late renewal does not put off those after it. An outage of the store makes all leases due at once, and counted
    /// from when they were renewed at last, they would stay in step for ever, on every node that saw it.
    pub(crate) fn schedule(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        if self.is_overdue(cx, number) {
            return;
        }
        let claim = &mut self.claims[number];
        let third = claim.lease() / 3;
        if let Phase::Held(held) = &mut claim.phase {
            let left = held.deadline.since(cx.now);
            let latest = cx.now + left.saturating_sub(2 * third);
            while held.due <= cx.now {
                held.due = held.due + third;
            }
            let next = held.due.min(latest);
            let until = held.local().and_then(|local| local.hold.until());
            let next = until.map_or(next, |until| next.min(until));
            claim.act = (!claim.fixed).then_some(next);
            claim.retries = false;
        }
    }

    /// A waiting claim is renewed when the owner's record should be over, but after a third of its own lease at
    /// the latest, whatever the store says of the record: t₀ must never be old, and a lost push only a delay.
    pub(crate) fn schedule_wait(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        left: Option<u64>,
        is_foreign: bool,
    ) {
        if self.claims[number].look_again {
            return self.ask(cx, number, RequestKind::Renew);
        }
        let third = self.claims[number].lease() / 3;
        let owner = left.map_or(third, |left| ms(left.max(1)) + ms(2));
        let mut pause = if owner < third {
            owner
        } else {
            cx.source.jittered(third)
        };
        if is_foreign {
            pause = pause.min(self.look_at_foreign(cx, number));
        }
        if cx.source.inbox == InboxState::Unconfirmed {
            pause = pause.min(cx.source.between(LOOK));
        }
        self.pause(cx, number, pause);
    }

    /// How long until a claim looks whether an owner that tells nobody has released.
    ///
    /// All keys of a node are looked at in the same moments, which are a node's own: so they travel in one batch, and it is
    /// the trip that costs. Whichever claim of a key looks moves its queue on, so they take turns: many fixed leases look
    /// no more often together than one claim does.
    fn look_at_foreign(&self, cx: &mut StepContext<'_>, number: ClaimNumber) -> Duration {
        let is_new = cx.now.since(self.claims[number].asked) < SOON;
        let look = if is_new { FOREIGN_SOON } else { FOREIGN_LATER };
        let period = look.as_nanos() as u64;
        let since_last = (cx.now.as_nanos() + cx.source.node.phase(period)) % period;
        let others = self.claims.len() as u32 - 1;
        look * (1 + cx.source.below(2 * others + 1)) - Duration::from_nanos(since_last)
    }

    /// When a grant that was too old to be used is asked about again.
    pub(crate) fn schedule_confirmation(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        tries: u32,
    ) {
        if let Phase::Confirming { tries: tried, .. } = &mut self.claims[number].phase {
            *tried = tries;
        }
        let pause = CONFIRMATION * (1 << tries.clamp(1, 6).saturating_sub(1));
        let pause = cx.source.jittered(pause.min(LONGEST_RETRY));
        self.pause(cx, number, pause);
    }

    /// When a failed request is repeated: soon at first, and always while something is left.
    pub(crate) fn schedule_retry(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let claim = &mut self.claims[number];
        claim.failed_requests += 1;
        let step = (claim.lease() / 32 * (1 << claim.failed_requests.min(3))).min(LONGEST_RETRY);
        let pause = match &claim.phase {
            Phase::Held(held) => step.min(held.deadline.since(cx.now) / 4),
            _ => step,
        };
        let pause = cx.source.jittered(pause).max(SHORTEST_RETRY);
        self.pause(cx, number, pause);
        self.claims[number].retries = true;
    }

    fn pause(&mut self, cx: &StepContext<'_>, number: ClaimNumber, pause: Duration) {
        let claim = &mut self.claims[number];
        claim.act = Some(cx.now + pause);
        claim.retries = false;
    }
}
