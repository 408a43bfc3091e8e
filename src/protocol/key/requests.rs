//! The claims that the callers of a key need, and when each claim sends a request.

use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::protocol::call::calls::Calls;
use crate::protocol::claim::{Claim, RequestKind, Yielded};
use crate::protocol::context::StepContext;
use crate::protocol::flaw::Flaw;
use crate::protocol::key::claims::{Claimant, ListedClaim};
use crate::protocol::key::key_state::{KeyState, Renewal};
use crate::protocol::key::line::Caller;
use crate::protocol::key::replies::POLL_PAUSES;
use crate::protocol::message::{CallAnswer, ClaimNumber, Mode};
use crate::protocol::step::{AcquireError, Effect, InboxState, KeyEvent, LockOptions, Ticket};
use crate::protocol::time::Instant;

/// The greatest number of callers of a line with claims at one time, while there are permits.
const MAX_LINE_CLAIMS: usize = 16;

impl KeyState {
    /// Reports a grant that came because the previous owner did not renew, as far as this node can know. Fixed leases
    /// run out as they should.
    pub(crate) fn note_inheritance(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let (owner_ends, from) = (self.owner_ends.take(), self.owner.take());
        let ran_out = owner_ends.is_some_and(|ends| ends <= cx.now);
        if ran_out && !self.claims[number].terms().is_fixed {
            cx.event(KeyEvent::Inherited { from });
        }
    }

    /// Claims for the callers that have no claim, and leaves the claims that no caller wants.
    pub(crate) fn claim_for_line(&mut self, cx: &mut StepContext<'_>) {
        if self.open_claim.is_some() {
            self.let_readers_in(cx);
        }
        if cx.shard.kept > 0 && !(self.line.is_empty() && self.solos.is_empty()) {
            self.use_kept(cx);
        }
        for number in self.claims.unsettled() {
            let Some(ListedClaim { claim, claimant }) = self.claims.listed(number) else {
                continue;
            };
            let wanted = match claimant {
                Claimant::LineHead => {
                    let is_had = claim.held().is_some() || claim.is_kept();
                    is_had || self.line.mode() == Some(claim.terms().mode)
                }
                Claimant::Solo(_) | Claimant::LineFollower => true,
                Claimant::Abandoned => false,
            };
            // The answer to the request in flight decides.
            let is_undecided = claim.is_asked() && !claim.is_idle();
            if wanted || is_undecided || claim.is_leaving() || claim.is_in_flight(RequestKind::Leave) {
                continue;
            }
            if cx.shard.plant.is(Flaw::CancelledForgotten) {
                self.claims.end(number);
            } else {
                self.leave(cx, number, None);
            }
        }
        // A pause that is over is removed at once, because its timer would fire without end.
        self.reclaim = self.reclaim.filter(|reclaim| cx.now < reclaim.at);
        if self.reclaim.is_some() {
            return;
        }
        if !self.solos.is_empty() {
            self.claim_for_solos(cx);
        }
        let Some(head) = self.line.front() else {
            return;
        };
        let options = head.options;
        if self.claims.head_claim().is_none() {
            self.claim(cx, Claimant::LineHead, &options, self.line.has_patient());
        }
        if matches!(options.mode, Mode::Permits(_)) {
            self.claim_for_followers(cx);
        }
    }

    /// Claims for the callers that want a claim of their own, except those that rest.
    fn claim_for_solos(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.now;
        let is_due = |(_, caller): &(&Ticket, &Caller)| caller.entered <= now;
        while let Some(ticket) = self.solos.iter().find(is_due).map(|(ticket, _)| *ticket)
            && let Some(caller) = self.solos.remove(&ticket)
        {
            let claimant = Claimant::Solo(caller);
            self.claim(cx, claimant, &caller.options, caller.options.wait);
        }
    }

    /// Claims for callers behind the first of the line in the same round trip, while there are permits. Only the
    /// claim of the first may wait in the store.
    fn claim_for_followers(&mut self, cx: &mut StepContext<'_>) {
        let head_claim = self
            .claims
            .head_claim()
            .and_then(|number| self.claims.get(number));
        let is_new = head_claim.is_some_and(|claim| claim.is_asked());
        if self.claims_head_only || !is_new {
            return;
        }
        let behind = 1 + self.claims.follower_claims();
        let next = self.line.iter().take(MAX_LINE_CLAIMS).skip(behind);
        let options: Vec<_> = next.map(|caller| caller.options).collect();
        for options in options {
            self.claim(cx, Claimant::LineFollower, &options, false);
        }
    }

    pub(crate) fn claim(
        &mut self,
        cx: &mut StepContext<'_>,
        claimant: Claimant,
        options: &LockOptions,
        wait: bool,
    ) {
        let claim_id = cx.shard.next_claim_id();
        let mut claim = Claim::new(claim_id, options.terms(), cx.now);
        if !options.keep.is_zero() {
            claim.let_keep(cx, options, wait);
        }
        self.claims.insert(claim, claimant);
        self.ask(cx, claim_id.claim, RequestKind::Claim { wait });
    }

    /// Leaves a claim. Its number is dead here from now on, whatever the store answers.
    pub(crate) fn leave(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, release: Option<Ticket>) {
        let claim = &mut self.claims[number];
        cx.shard.kept -= usize::from(claim.is_kept());
        claim.begin_leave(cx, release);
        let passed = claim.take_passed();
        if !self.claims[number].is_leaving() {
            self.claims.set_claimant(number, Claimant::LineHead);
        }
        self.ask(cx, number, RequestKind::Leave);
        if let Some(old) = passed {
            self.leave_passed(cx, old);
        }
    }

    /// Yields the lease to other nodes, and claims again at the end of the queue for the first caller of the line.
    pub(crate) fn yield_(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, release: Option<Ticket>) {
        // Without a local caller there is nothing to claim again.
        let Some(options) = self.line.front().map(|head| head.options) else {
            return self.leave(cx, number, release);
        };
        if !cx.shard.rules.queues {
            // Other nodes claim meanwhile.
            self.poll_after(cx, POLL_PAUSES.0);
            return self.leave(cx, number, release);
        }
        // The yield would not undo a late assertion of the old number. A leave is repeated.
        let old = &self.claims[number];
        if old.is_in_flight(RequestKind::Renew) || old.is_assertable(cx.now) {
            return self.leave(cx, number, release);
        }
        let Some(ListedClaim { claim: old, .. }) = self.claims.remove(number) else {
            return;
        };
        let mut claim_id = cx.shard.next_claim_id();
        if cx.shard.plant.is(Flaw::YieldKeepsNumber) {
            claim_id = old.id();
        }
        let claim = old.yield_to(claim_id, options.terms(), cx.now, release);
        self.claims.insert(claim, Claimant::LineHead);
        cx.event(KeyEvent::Yielded);
        self.ask(cx, claim_id.claim, RequestKind::Yield);
    }

    /// Leaves a number that is dead here: the old number of a yield or pass, or an unknown one. `unanswered` is the
    /// error of the yield, which may have been executed. `seq` is the number of requests so far.
    pub(crate) fn leave_old_number(
        &mut self,
        cx: &mut StepContext<'_>,
        yielded: Yielded,
        seq: u32,
        unanswered: Option<StoreError>,
    ) {
        let number = yielded.number();
        let claim = Claim::dead(yielded, cx.now, seq, unanswered);
        self.claims.insert(claim, Claimant::Abandoned);
        self.ask(cx, number, RequestKind::Leave);
    }

    /// Sends a request of the claim. An answer to an earlier request is ignored from now on.
    pub(crate) fn ask(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, kind: RequestKind) {
        let is_its = |renewal: &Renewal| {
            let held = self.held_by(renewal.holder);
            held.is_some_and(|(claim, ..)| claim.number() == number)
        };
        let is_asked_for =
            self.renewals.iter().any(is_its) || cx.shard.plant.is(Flaw::FixedLeaseRenewedAlone);
        let listed = self.claims.listed(number).filter(|_| !self.values.is_empty());
        let data = listed.and_then(ListedClaim::ticket).and_then(|ticket| {
            let value = self.values.iter().find(|(of, _)| *of == ticket);
            value.map(|(_, value)| value.clone())
        });
        self.claims[number].ask(cx, kind, is_asked_for, data);
    }

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
        self.expire_due(cx);
        for number in self.claims.due(cx.now) {
            if self.claims[number].is_request_due(cx.now) {
                self.send_due_request(cx, number);
            }
        }
        self.end_step(cx);
    }

    /// Sends the request of a claim whose pause is over.
    pub(crate) fn send_due_request(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        if self.stops_renewing(cx, number) {
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
    pub(crate) fn stops_renewing(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) -> bool {
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
        if self.stops_renewing(cx, number) {
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
    pub(crate) fn expire_due(&mut self, cx: &mut StepContext<'_>) {
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
        self.expire_due(cx);
        // A recall may have been missed, also before a new start of pushes.
        self.recall_all(cx);
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
        self.expire_due(cx);
        if is_elsewhere {
            self.recall_all(cx);
        }
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
    pub(crate) fn plan_renewal(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        if !self.stops_renewing(cx, number) {
            self.claims[number].schedule_renewal(cx);
        }
    }

    /// Schedules the renewal of a waiting claim, or asks again at once if the answer may be old.
    pub(crate) fn plan_wait(
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
