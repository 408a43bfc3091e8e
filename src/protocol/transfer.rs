//! A lease that a holder of this process gives to whoever is told of it, and one that a caller of this process takes over.
//!
//! Both are a claim under a fresh number that asks for a [pass](crate::protocol::message::Verb::Pass) instead of a grant. That is
//! done once, so it may be asked for again: a repeat finds what the first has done.

use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::protocol::claim::{Claim, ClaimKind, Claimant, Holders, Pass, RequestKind, Yielded};
use crate::protocol::context::StepContext;
use crate::protocol::failing::Failing;
use crate::protocol::flaw::Plant;
use crate::protocol::key_state::KeyState;
use crate::protocol::line::Caller;
use crate::protocol::message::{ClaimNumber, Holder, LeaseTimes, Question, Reply, Unanswered};
use crate::protocol::step::{AcquireError, AcquireOptions, Effect, Outcome, Ticket};
use crate::protocol::time::Instant;

impl<P: Plant> KeyState<P> {
    /// Others read by the lease of this holder. If not, nobody else is let in by it from now on.
    pub(crate) fn reads_with_others(&mut self, ticket: Ticket) -> bool {
        let Some(reader) = self.readers.get(ticket) else {
            return false;
        };
        let number = reader.claim;
        let others = self.readers.of(number).nth(1).is_some();
        if !others {
            self.close_to_readers(number);
        }
        others
    }

    /// From now on the number that it was held by is dead here.
    pub(crate) fn transfer(
        &mut self,
        cx: &mut StepContext<'_>,
        ticket: Ticket,
        to: Ticket,
        term: LeaseTimes,
    ) {
        let Some((claim, held, _)) = self.held_by(ticket) else {
            return cx.effects.extend(Self::passed_too_late(ticket, to));
        };
        let number = claim.holder.claim;
        if matches!(held.holders, Holders::Readers(count) if count > 1) {
            // Whoever asked before is refused.
            self.part(cx, ticket, Some(ticket));
            let denied = AcquireError::Lost(LostCause::Released);
            return cx.effects.push(Effect::Denied(to, denied));
        }
        if self.readers.remove(ticket).is_some() {
            self.close_to_readers(number);
        }
        let Some(old) = self.claims.remove(number) else {
            return;
        };
        cx.effects.push(Effect::Released(ticket, Outcome::Kept));
        let options = AcquireOptions {
            fixed: true,
            ..AcquireOptions::of_another(term, old.mode)
        };
        let ours = Some((old.term, old.seq));
        let from = old.holder;
        self.take_over(cx, to, options, Pass { from, ours });
    }

    pub(crate) fn adopt(
        &mut self,
        cx: &mut StepContext<'_>,
        ticket: Ticket,
        options: AcquireOptions,
        from: Holder,
    ) {
        // Through an outage, as whoever waits.
        let options = AcquireOptions {
            wait: true,
            ..options
        };
        self.take_over(cx, ticket, options, Pass { from, ours: None });
    }

    fn take_over(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, options: AcquireOptions, pass: Pass) {
        // Whoever gives a lease up waits for the answer as long as that lasts, and not as long as it is kept for others.
        let term = match pass.ours {
            Some((ours, _)) if ours.lease_ms < options.term.lease_ms => ours,
            _ => options.term,
        };
        let caller = Caller {
            ticket,
            options: AcquireOptions { term, ..options },
            entered: cx.now,
            behind: false,
            failed_claims: 0,
            was_writer: false,
        };
        let kind = ClaimKind {
            mode: options.mode,
            fixed: options.fixed,
            mark: None,
        };
        let holder = cx.source.holder();
        let mut claim = Claim::new(holder, Claimant::Solo(caller), options.term, kind, cx.now);
        claim.pass = Some(Box::new(pass));
        self.claims.insert(claim);
        self.ask(cx, holder.claim, RequestKind::Pass);
    }

    /// Nobody renews it here, or gives it back.
    pub(crate) fn handed_out(&mut self, cx: &mut StepContext<'_>, ticket: Ticket) {
        if let Some((claim, ..)) = self.held_by(ticket) {
            let number = claim.holder.claim;
            self.claims.end(number);
            cx.effects.push(Effect::Released(ticket, Outcome::Kept));
        }
    }

    /// The owner that a lease was to be taken over from has it no more, and nobody was given it here; or it was too late to.
    pub(crate) fn pass_undone(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, reply: &Reply) {
        if *reply == Reply::Late {
            let text = "what passes a lease on reaches the store too late";
            let failing = Failing {
                why: Unanswered::No,
                heard: self.taken,
                away: self.taken,
                error: StoreError::new(StoreErrorKind::TimedOut, text),
            };
            return self.ask_or_wait(cx, number, &failing);
        }
        let claim = self.claims.remove(number);
        if let Some(Claimant::Solo(caller)) = claim.map(|claim| claim.claimant) {
            let denied = AcquireError::Lost(LostCause::Gone);
            cx.effects.push(Effect::Denied(caller.ticket, denied));
        }
    }

    pub(crate) fn pass_failed(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        late_after: Instant,
        failing: &Failing,
    ) {
        if matches!(failing.why, Unanswered::Unknown | Unanswered::Bystander) {
            self.claims[number].may_execute_until = Some(late_after.max(cx.now));
        }
        self.ask_or_wait(cx, number, failing);
    }

    /// The number of ours that was to be passed on, and perhaps was.
    pub(crate) fn leave_passed(&mut self, cx: &mut StepContext<'_>, pass: &Pass) {
        if let Some((term, seq)) = pass.ours {
            let from = pass.from;
            let release = None;
            let yielded = Yielded { from, term, release };
            self.leave_old_number(cx, yielded, seq, true);
        }
    }

    /// The answer to who asked about another's lease.
    pub(crate) fn told_of_owner(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, reply: &Reply) {
        let claim = self.claims.remove(number);
        if let Some(Claimant::Solo(caller)) = claim.map(|claim| claim.claimant) {
            // "Not there" may be the work of our own first try.
            let repeats = matches!(
                caller.options.question,
                Some(Question::Release { repeats: true, .. })
            );
            let owned = *reply == Reply::Done || *reply == Reply::NotThere && repeats;
            cx.effects
                .push(Effect::Denied(caller.ticket, AcquireError::Owned(owned)));
        }
    }
}
