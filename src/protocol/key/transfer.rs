//! A lease that changes its owner. A holder of this process gives it away by a transfer, a caller of this process
//! takes it over, or a writer becomes a reader.
//!
//! Each is a claim under a fresh number that asks for a [pass](crate::protocol::message::Verb::Pass) instead of a
//! grant. A pass is executed once. So it may be repeated, and a repeat finds what the first has done.
//!
//! # The way of a lease that is passed on
//!
//! A downgrade and a transfer both ask for a *pass*: the lease moves to a fresh claim number, with no free moment between.
//!
//! 1. A writer becomes a reader (`primitives/rw_lock.rs` `downgrade`, `protocol/key/transfer.rs` `downgrade`).
//! 2. A holder turns its guard into a transfer, and another process adopts the transfer (`primitives/transfer.rs` `into_transfer`,
//!    `adopt`, `protocol/key/transfer.rs` `transfer`, `adopt`).
//! 3. All of them create the fresh claim and ask for the pass (`protocol/key/transfer.rs` `take_over`, `protocol/ledger/transfer.rs`
//!    `pass`).
//! 4. A pass is executed once, so a failed request may be repeated (`protocol/key/failures.rs` `request_failed`).
//! 5. If the store certainly executed nothing, the holder continues under its old number (`protocol/key/transfer.rs` `continue_holding`).
//! 6. A lease that was granted for another process is forgotten in this process (`protocol/key/transfer.rs` `handed_out`).
//! 7. A process that has the transfer's text can extend or release the lease by calls (`protocol/ledger/transfer.rs` `lengthen`). On
//!    Redis: `store/redis/lua/pass.lua`, `store/redis/lua/extend.lua`.

use crate::error::{LostCause, StoreError};
use crate::protocol::claim::held_lease::{HeldLease, LocalHolder};
use crate::protocol::claim::{Claim, Pass, Passed, RequestKind};
use crate::protocol::context::StepContext;
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::key::claims::Claimant;
use crate::protocol::key::key_state::KeyState;
use crate::protocol::key::line::Caller;
use crate::protocol::message::{ClaimId, ClaimNumber, LeaseTimes, Mode};
use crate::protocol::step::{AcquireError, Effect, LockOptions, Outcome, Ticket, WhyDenied, ms};

impl KeyState {
    /// Returns whether other callers read by the lease of this holder. If not, no other caller is let in by it from
    /// now on.
    pub(crate) fn reads_with_others(&mut self, ticket: Ticket) -> bool {
        let Some(reader) = self.readers.get(ticket) else {
            return false;
        };
        let number = reader.claim;
        let others = self.readers.by_claim(number).nth(1).is_some();
        if !others {
            self.close_to_readers(number);
        }
        others
    }

    /// Gives the lease of a holder away. The number by which it was held is dead here from now on.
    pub(crate) fn transfer(
        &mut self,
        cx: &mut StepContext<'_>,
        ticket: Ticket,
        to: Ticket,
        term: LeaseTimes,
    ) {
        if self.readers.get(ticket).is_some() && self.reads_with_others(ticket) {
            // `into_transfer` refuses a lease that is read with others, so only a caller that did not ask first gets
            // here.
            self.leave_share(cx, ticket, Some(ticket));
            return cx.deny(to, AcquireError::Lost(LostCause::Released));
        }
        let Some(old) = self.end_holding(cx, ticket, to) else {
            self.drop_lost(cx, ticket, None);
            return cx.effects.extend(Self::passed_too_late(ticket, to));
        };
        let options = LockOptions {
            mode: old.terms().mode,
            fixed: true,
            ..LockOptions::new(term)
        };
        self.take_over(cx, to, options, Pass::of_local(old));
    }

    /// Makes a writer a reader. The number by which it wrote is dead here from now on.
    pub(crate) fn downgrade(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, to: Ticket) {
        let writes = self
            .held_by(ticket)
            .is_some_and(|(claim, ..)| claim.terms().mode == Mode::Exclusive);
        let Some(old) = writes.then(|| self.end_holding(cx, ticket, to)).flatten() else {
            self.drop_lost(cx, ticket, None);
            return cx.effects.extend(Self::passed_too_late(ticket, to));
        };
        // A fixed lease ends when it would have ended without the downgrade.
        let ends = old.held().map_or(cx.now, HeldLease::deadline);
        let left_ms = ends.since(cx.now).as_millis() as u64;
        let hold = old.held().and_then(HeldLease::local).map(|local| local.hold);
        let lease_ms = if old.terms().is_fixed {
            left_ms.max(1)
        } else {
            old.terms().times.lease_ms
        };
        let term = LeaseTimes {
            lease_ms,
            ..old.terms().times
        };
        let options = LockOptions {
            mode: Mode::Read,
            fixed: old.terms().is_fixed,
            max_hold: hold.and_then(|hold| hold.max),
            ..LockOptions::new(term)
        };
        self.take_over(cx, to, options, Pass::of_local(old));
    }

    /// Ends what a holder holds. Returns its claim and lease as they were, but held under the ticket of the caller
    /// that continues.
    fn end_holding(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, to: Ticket) -> Option<Claim> {
        let (claim, held, index) = self.held_by(ticket)?;
        let number = claim.number();
        let local = held.local().map(|local| local.hold);
        let reader = self.readers.remove(ticket).map(|reader| reader.local.hold);
        let local = LocalHolder {
            ticket: to,
            hold: local.or(reader)?.under_another_ticket(),
            unfetched: None,
            keep: Default::default(),
        };
        self.close_to_readers(number);
        let mut old = self.claims.remove(number)?.claim;
        cx.released(ticket, Outcome::Held);
        old.hold_for(local, index);
        Some(old)
    }

    pub(crate) fn passed_too_late(ticket: Ticket, to: Ticket) -> [Effect; 2] {
        let denied = AcquireError::Lost(LostCause::Deadline);
        [Self::released_too_late(ticket), Effect::Denied(to, denied.into())]
    }

    pub(crate) fn adopt(
        &mut self,
        cx: &mut StepContext<'_>,
        ticket: Ticket,
        options: LockOptions,
        from: ClaimId,
    ) {
        // A caller that adopts a lease waits through an outage.
        let options = LockOptions {
            wait: true,
            ..options
        };
        self.take_over(cx, ticket, options, Pass::of_transfer(from));
    }

    /// Claims a lease by a pass.
    fn take_over(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, options: LockOptions, pass: Pass) {
        // A holder that gives a lease up waits for the answer while its own lease lasts, and not while the lease is
        // kept for others.
        let term = match pass.local() {
            Some(local) if local.times().lease_ms < options.term.lease_ms => local.times(),
            _ => options.term,
        };
        let caller = Caller {
            ticket,
            options: LockOptions { term, ..options },
            entered: cx.now,
            behind: false,
            failed_claims: 0,
        };
        let ends = pass.local().and_then(Passed::deadline);
        let claim_id = cx.shard.next_claim_id();
        let claim = Claim::take_over(claim_id, options.terms(), cx.now, pass);
        self.claims.insert(claim, Claimant::Solo(caller));
        // Beside a former master no lease can be kept for longer than it lasts.
        if let Some(until) = cx.shard.beside_former_master(cx.now)
            && options.fixed
            && ends.is_some_and(|ends| cx.now + ms(options.term.lease_ms) > ends)
        {
            let error = StoreError::recovering(until.since(cx.now));
            let failure = FailedRequest::of_answer(cx.now, self.taken_at, error);
            if self.continue_holding(cx, claim_id.claim, &failure) {
                return;
            }
        }
        self.ask(cx, claim_id.claim, RequestKind::Pass);
    }

    /// Forgets a lease that was given away. No caller of this process renews it or gives it back.
    pub(crate) fn handed_out(&mut self, cx: &mut StepContext<'_>, ticket: Ticket) {
        if let Some((claim, ..)) = self.held_by(ticket) {
            let number = claim.number();
            self.claims.end(number);
            cx.released(ticket, Outcome::Held);
        } else {
            self.drop_lost(cx, ticket, None);
            cx.effects.push(Self::released_too_late(ticket));
        }
    }

    /// Continues the old lease after a pass that is given up, if the store surely did nothing and the lease still
    /// lasts. Returns whether the lease continues. A request without an answer proves nothing, and the old number
    /// then stays dead.
    pub(crate) fn continue_holding(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        failure: &FailedRequest,
    ) -> bool {
        let Claimant::Solo(caller) = self.claims.claimant(number) else {
            return false;
        };
        let failed_claims = caller.failed_claims + 1;
        if !failure.is_refused() && failure.keeps_waiting(caller.patience(), failed_claims, cx.now) {
            return false;
        }
        let Some(mut old) = self.claims[number].resume(cx) else {
            return false;
        };
        self.claims.end(number);
        // The line has a claim of its own since the pass was sent.
        let number = old.number();
        if let Some(fence) = old.hold_again(cx.now) {
            cx.deny(caller.ticket, WhyDenied::StillHeld(fence, failure.reported()));
        }
        let is_renewing = old.is_renewing();
        self.claims.insert(old, Claimant::Solo(caller));
        self.last_held = number;
        if !is_renewing {
            self.plan_renewal(cx, number);
        }
        true
    }

    /// Handles the answer that the lease to take over is gone.
    pub(crate) fn pass_gone(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let old = self.claims[number].take_passed();
        if let Claimant::Solo(caller) = self.end_number(cx, number) {
            cx.deny(caller.ticket, AcquireError::Lost(LostCause::Gone));
        }
        // The record may still be there: an operator revoked the lease.
        if let Some(old) = old {
            self.leave_passed(cx, old);
        }
    }

    /// Ends the number of a lease that was passed on, or is gone. If a renewal may still write its record again, the
    /// number is left.
    pub(crate) fn end_passed(&mut self, cx: &mut StepContext<'_>, old: Option<Passed>) {
        if let Some(old) = old
            && old.may_be_written(cx.now)
        {
            self.leave_passed(cx, old);
        }
    }

    /// Leaves the number of a lease whose pass may or may not have been executed.
    pub(crate) fn leave_passed(&mut self, cx: &mut StepContext<'_>, old: Passed) {
        let number = old.number();
        self.claims.insert(old.dead(), Claimant::Abandoned);
        self.leave(cx, number, None);
    }
}
