//! The timers of a claim: losses, renewals and retries.

use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::protocol::call::calls::Calls;
use crate::protocol::claim::RequestKind;
use crate::protocol::context::StepContext;
use crate::protocol::key::key_state::{KeyState, Renewal};
use crate::protocol::message::{CallAnswer, ClaimNumber};
use crate::protocol::step::{AcquireError, Effect, InboxState, Ticket};
use crate::protocol::time::Instant;

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
            if self.claims[number].is_request_due(cx.now) {
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
        if !self.claims[number].is_leaving() {
            return self.ask(cx, number, RequestKind::Renew);
        }
        let event = self.claims[number].repeat_leave(cx, self.error.as_ref());
        self.take_event(cx, number, event);
    }

    /// Returns whether the holder has reached its `max_hold`. The holder is then told once, and the lease is not
    /// renewed any more. The rest of the lease is the holder's time to finish. Also reports a holder that has held
    /// for long.
    pub(crate) fn check_overdue(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) -> bool {
        if matches!(self.claims[number].held(), Some(held) if held.local().is_none()) {
            self.note_long_readers(cx, number);
            return false;
        }
        self.claims[number].check_overdue(cx)
    }

    /// Renews the lease of a holder now. A renewal of the lease that is in flight serves this caller, too.
    pub(crate) fn renew(&mut self, cx: &mut StepContext<'_>, renewal: Renewal) {
        let Some((claim, ..)) = self.held_by(renewal.holder) else {
            return cx.effects.push(Self::renewed_too_late(renewal.caller));
        };
        let (number, is_asking) = (claim.number(), claim.is_in_flight(RequestKind::Renew));
        if self.check_overdue(cx, number) {
            return cx.deny(renewal.caller, AcquireError::Lost(LostCause::Overdue));
        }
        self.renewals.push(renewal);
        if !is_asking {
            self.ask(cx, number, RequestKind::Renew);
        }
    }

    pub(crate) fn renewed_too_late(caller: Ticket) -> Effect {
        Effect::Denied(caller, AcquireError::Lost(LostCause::Deadline).into())
    }

    /// Tells the callers that asked for a renewal of this claim that the store has extended the lease.
    pub(crate) fn answer_renewals(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let mut renewals = std::mem::take(&mut self.renewals);
        renewals.retain(|renewal| {
            let held = self.held_by(renewal.holder);
            let is_renewed = held.is_some_and(|(claim, ..)| claim.number() == number);
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
                Some((claim, ..)) if claim.is_in_flight(RequestKind::Renew) || claim.is_redirected() => {
                    return true;
                }
                Some((claim, ..)) => {
                    let first = claim.unanswered().or(self.error.as_ref());
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
        for number in self.claims.due(cx.now) {
            let event = self.claims[number].expire(cx);
            self.take_event(cx, number, event);
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
            let is_queued = claim.is_queued();
            match cx.shard.inbox {
                InboxState::Confirmed if claim.is_idle() && is_queued => {
                    self.ask(cx, number, RequestKind::Renew);
                }
                // The answer may say "queued" about a time before pushes started.
                InboxState::Confirmed => claim.ask_again_after_answer(),
                InboxState::Unconfirmed if is_queued => {
                    claim.expect_no_push(cx);
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
            let is_renewed = is_elsewhere && claim.held().is_some() && claim.is_idle();
            if claim.is_retry() || is_renewed {
                self.send_due_request(cx, number);
            }
        }
        self.reclaim = self.reclaim.filter(|reclaim| !reclaim.after_failure);
        self.end_step(cx);
    }

    /// Schedules the renewal of a lease, unless its holder is overdue.
    pub(crate) fn schedule_renewal(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        if !self.check_overdue(cx, number) {
            self.claims[number].schedule_renewal(cx.now);
        }
    }

    /// Schedules the renewal of a waiting claim, or asks again at once if the answer may be old.
    pub(crate) fn schedule_wait(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        left: Option<u64>,
        is_foreign: bool,
    ) {
        if self.claims[number].asks_again() {
            return self.ask(cx, number, RequestKind::Renew);
        }
        // The claims of a key take turns: any of them moves the queue on.
        let others = is_foreign.then(|| self.claims.len() as u32 - 1);
        self.claims[number].schedule_wait(cx, left, others);
    }
}
