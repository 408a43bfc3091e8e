//! The timers of a claim: losses, renewals and retries.

use std::time::Duration;

use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::protocol::call::calls::Calls;
use crate::protocol::context::StepContext;
use crate::protocol::failed_request::MAX_RETRY_PAUSE;
use crate::protocol::flaw::Flaw;
use crate::protocol::key::claim::{Holders, Leaving, LocalHolder, Phase, RequestKind};
use crate::protocol::key::key_state::{KeyState, Renewal};
use crate::protocol::message::{ClaimNumber, Kind};
use crate::protocol::step::{AcquireError, CallAnswer, Effect, InboxState, KeyEvent, Outcome, Ticket, ms};
use crate::protocol::time::Instant;

/// The shortest pause before a failed request is repeated.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(10);
/// The shortest pause before a grant that was too old is confirmed again. The pause doubles.
const MIN_CONFIRMATION_PAUSE: Duration = Duration::from_millis(20);
/// The bounds of a waiter's pause while it is unknown whether grants are pushed.
const UNCONFIRMED_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(250));
/// How often a waiting claim asks while the owner does not know the queue, in the first [`FOREIGN_EARLY_WAIT`] of a wait.
/// Other libraries poll, too: redis-py every 100 ms.
const FOREIGN_EARLY_PERIOD: Duration = Duration::from_millis(30);
/// How often a waiting claim asks after that: a caller that has waited so long waits for a long holder.
const FOREIGN_LATE_PERIOD: Duration = Duration::from_millis(250);
/// How long a wait for a foreign owner counts as early.
const FOREIGN_EARLY_WAIT: Duration = Duration::from_secs(2);

impl KeyState {
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
            if self.claims[number].exchange.is_due(cx.now) {
                self.send_due_request(cx, number);
            }
        }
        self.end_step(cx);
    }

    /// Sends the request of a claim whose pause is over.
    pub(crate) fn send_due_request(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        if self.check_overdue(cx, number) {
            return;
        }
        match self.claims[number].phase {
            Phase::Held(_) | Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => {
                self.ask(cx, number, RequestKind::Renew);
            }
            Phase::Leaving(leaving) if cx.now >= leaving.until => self.give_leave_up(cx, number, leaving),
            Phase::Leaving(_) => self.ask(cx, number, RequestKind::Leave),
        }
    }

    /// Ends a leave that is no longer repeated. Its caller still waits if no request failed, because the key was on its way
    /// to another server.
    fn give_leave_up(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, leaving: Leaving) {
        cx.event(KeyEvent::LeaveFailed { error: None });
        let first = self.claims[number].exchange.unanswered().or(self.error.as_ref());
        if let Some(ticket) = leaving.release {
            let error = first.cloned().unwrap_or_else(|| {
                StoreError::new(
                    StoreErrorKind::Unreachable,
                    "the key moved between servers until its lease was over",
                )
            });
            cx.released(ticket, Outcome::Unconfirmed(error));
        }
        self.claims.end(number);
    }

    /// Returns whether the holder has reached its `max_hold`. The holder is then told once, and the lease is not
    /// renewed any more. The rest of the lease is the holder's time to finish. Also reports a holder that has held
    /// for long.
    pub(crate) fn check_overdue(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) -> bool {
        let renews_all = self.plant.is(Flaw::OverdueRenewed);
        let claim = &mut self.claims[number];
        let Phase::Held(held) = &mut claim.phase else {
            return false;
        };
        let left = held.deadline.since(cx.now);
        let Holders::One(LocalHolder { ticket, hold, .. }) = &mut held.holders else {
            self.note_long_readers(cx, number);
            return false;
        };
        let held_for = cx.now.since(hold.since);
        if hold.until().is_none_or(|until| cx.now < until) || renews_all {
            // The time of a job or of a leader has no usual length.
            let is_lock = !matches!(cx.name.kind, Kind::Job | Kind::Election);
            let is_long = held_for >= cx.shard.rules.long_hold && !hold.is_reported && is_lock;
            hold.is_reported |= is_long;
            if is_long {
                cx.event(KeyEvent::HeldLong { held: held_for });
            }
            return false;
        }
        claim.exchange.rest();
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
        let (number, is_asking) = (claim.claim_id.claim, claim.is_in_flight(RequestKind::Renew));
        if self.check_overdue(cx, number) {
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
                Some((claim, ..))
                    if claim.is_in_flight(RequestKind::Renew) || claim.exchange.is_redirected() =>
                {
                    return true;
                }
                Some((claim, ..)) => {
                    let first = claim.exchange.unanswered().or(self.error.as_ref());
                    AcquireError::Store(first.cloned().unwrap_or_else(|| match cx.shard.former.until {
                        Some(until) if cx.now < until => StoreError::recovering(until.since(cx.now)),
                        _ => {
                            StoreError::new(StoreErrorKind::Interrupted, "the store did not renew the lease")
                        }
                    }))
                }
                None => AcquireError::Lost(LostCause::Deadline),
            };
            cx.deny(renewal.caller, denial);
            false
        });
        self.renewals = renewals;
    }

    /// Ends the leases whose deadlines have passed. Every step checks the deadlines, not only their timers. A process
    /// that stood still loses its leases before it does anything else.
    #[inline]
    pub(crate) fn expire(&mut self, cx: &mut StepContext<'_>) {
        // The timer is the earliest time at which anything is due.
        if self.timer.is_none_or(|due| due > cx.now) {
            return;
        }
        let late_renewal_revives = self.plant.is(Flaw::LateRenewalRevives);
        for number in self.claims.due(cx.now) {
            let claim = &self.claims[number];
            let Phase::Held(held) = claim.phase else { continue };
            if cx.now >= held.deadline {
                if claim.is_in_flight(RequestKind::Renew) && late_renewal_revives {
                    continue;
                }
                let cause = if claim.terms.is_fixed {
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

    /// Handles a change of whether grants are pushed, or a new start of pushes, before which some may have been
    /// missed.
    pub(crate) fn inbox(&mut self, cx: &mut StepContext<'_>) {
        self.step_calls(cx, Calls::inbox);
        self.expire(cx);
        for number in self.claims.all() {
            let claim = &mut self.claims[number];
            let is_queued = matches!(claim.phase, Phase::Queued { .. });
            match cx.shard.inbox {
                InboxState::Confirmed if claim.exchange.is_idle() && is_queued => {
                    self.ask(cx, number, RequestKind::Renew);
                }
                // The answer may say "queued" about a time before pushes started.
                InboxState::Confirmed => claim.exchange.ask_again_after_answer(),
                InboxState::Unconfirmed if is_queued => {
                    let look = cx.now + cx.shard.between(UNCONFIRMED_PAUSES);
                    claim.exchange.plan_by(look);
                }
                InboxState::Unconfirmed | InboxState::Refused => {}
            }
        }
        self.end_step(cx);
    }

    /// Repeats the failed requests that wait, because a connection opened. `is_elsewhere`: the connection leads to
    /// another server, or to another run of the server, which may have lost grants. Then every lease is renewed.
    pub(crate) fn reachable(&mut self, cx: &mut StepContext<'_>, is_elsewhere: bool) {
        self.step_calls(cx, Calls::reachable);
        self.expire(cx);
        for number in self.claims.all() {
            let claim = &self.claims[number];
            let is_renewed = is_elsewhere && claim.held().is_some() && claim.exchange.is_idle();
            if claim.exchange.is_retry() || is_renewed {
                self.send_due_request(cx, number);
            }
        }
        self.reclaim = self.reclaim.filter(|reclaim| !reclaim.after_failure);
        self.end_step(cx);
    }

    /// Schedules the renewal of a lease, when a third of it is over. A fixed lease is not renewed.
    ///
    /// A late renewal does not delay the next ones. An outage of the store makes all leases due at once. If the next
    /// renewals counted from the late ones, all leases of every node would stay in step for ever.
    pub(crate) fn schedule_renewal(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        if self.check_overdue(cx, number) {
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
            match claim.terms.is_fixed {
                true => claim.exchange.rest(),
                false => claim.exchange.plan(next),
            }
        }
    }

    /// Schedules the first renewal that moves the deadline again, for the time when no former master can grant any more. A
    /// lease that ends before is lost.
    pub(crate) fn renew_after_former_master(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let (Some(held), Some(until)) = (self.claims[number].held(), cx.shard.former.until) else {
            return;
        };
        let spread = held.deadline.since(until.max(cx.now)) / 4;
        let overdue = held.local().and_then(|local| local.hold.until());
        let pause = cx.shard.between((Duration::ZERO, spread.min(MAX_RETRY_PAUSE)));
        let next = until.max(cx.now) + pause;
        let next = overdue.map_or(next, |overdue| next.min(overdue));
        self.schedule_request(cx, number, next.since(cx.now));
    }

    /// Schedules the renewal of a waiting claim, when the owner's record should be over. The pause is at most a third
    /// of the claim's own lease, whatever the store says of the record. So t₀ is never old, and a lost push is only a
    /// delay.
    pub(crate) fn schedule_wait(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        left: Option<u64>,
        is_foreign: bool,
    ) {
        if self.claims[number].exchange.asks_again() {
            return self.ask(cx, number, RequestKind::Renew);
        }
        let third = self.claims[number].lease() / 3;
        let owner = left.map_or(third, |left| ms(left.max(1)) + ms(2));
        let mut pause = if owner < third {
            owner
        } else {
            cx.shard.jittered(third)
        };
        if is_foreign {
            pause = pause.min(self.foreign_pause(cx, number));
        }
        if cx.shard.inbox == InboxState::Unconfirmed {
            pause = pause.min(cx.shard.between(UNCONFIRMED_PAUSES));
        }
        self.schedule_request(cx, number, pause);
    }

    /// Returns how long a claim waits before it checks whether a foreign owner has released. Such an owner does not
    /// announce its release.
    ///
    /// A node checks all its keys at the same moments, which differ from node to node. The checks of a node then
    /// travel in one batch, and the round trip is the cost. Any claim that checks moves the queue of its key on, so
    /// the claims take turns. Many fixed leases check no more often together than one claim does.
    fn foreign_pause(&self, cx: &mut StepContext<'_>, number: ClaimNumber) -> Duration {
        let is_new = cx.now.since(self.claims[number].created_at) < FOREIGN_EARLY_WAIT;
        let look = if is_new {
            FOREIGN_EARLY_PERIOD
        } else {
            FOREIGN_LATE_PERIOD
        };
        let period = look.as_nanos() as u64;
        let since_last = (cx.now.as_nanos() + cx.shard.node.phase(period)) % period;
        let others = self.claims.len() as u32 - 1;
        look * (1 + cx.shard.below(2 * others + 1)) - Duration::from_nanos(since_last)
    }

    /// Schedules another confirmation of a grant that was too old to be used.
    pub(crate) fn schedule_confirmation(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        tries: u32,
    ) {
        if let Phase::Confirming { tries: tried, .. } = &mut self.claims[number].phase {
            *tried = tries;
        }
        let pause = MIN_CONFIRMATION_PAUSE * (1 << tries.clamp(1, 6).saturating_sub(1));
        let pause = cx.shard.jittered(pause.min(MAX_RETRY_PAUSE));
        self.schedule_request(cx, number, pause);
    }

    /// Schedules the retry of a failed request: soon at first, and always while some of the lease is left.
    pub(crate) fn schedule_retry(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let claim = &mut self.claims[number];
        let failures = claim.exchange.count_failure();
        let step = (claim.lease() / 32 * (1 << failures.min(3))).min(MAX_RETRY_PAUSE);
        let pause = match &claim.phase {
            Phase::Held(held) => step.min(held.deadline.since(cx.now) / 4),
            _ => step,
        };
        let pause = cx.shard.jittered(pause).max(MIN_RETRY_PAUSE);
        claim.exchange.retry(cx.now + pause);
    }

    fn schedule_request(&mut self, cx: &StepContext<'_>, number: ClaimNumber, pause: Duration) {
        self.claims[number].exchange.plan(cx.now + pause);
    }
}
