//! The lease that a claim continues.

use crate::error::StoreError;
use crate::protocol::claim::held_lease::HeldLease;
use crate::protocol::claim::{Claim, Leaving, Origin, Pass, Passed, Phase, Yielded};
use crate::protocol::context::StepContext;
use crate::protocol::exchange::Exchange;
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::flaw::Flaw;
use crate::protocol::message::{ClaimId, ClaimNumber, Kind, LeaseTimes};
use crate::protocol::step::{LeaseTerms, Ticket, ms};
use crate::protocol::time::Instant;

impl Claim {
    /// Gives the lease up for a place at the end of the queue, under a new number and on new terms. The old number is dead from
    /// now on.
    pub(crate) fn yield_to(
        self,
        claim_id: ClaimId,
        terms: LeaseTerms,
        now: Instant,
        release: Option<Ticket>,
    ) -> Claim {
        let yielded = Yielded {
            from: self.claim_id,
            terms: self.terms,
            deadline: self.held().map_or(now, |held| held.deadline()),
            release,
        };
        Claim {
            exchange: Exchange::after(self.exchange.seq()),
            origin: Some(Origin::Yield(yielded)),
            ..Claim::new(claim_id, terms, now)
        }
    }

    /// Takes over a lease under a new number.
    pub(crate) fn take_over(claim_id: ClaimId, terms: LeaseTerms, now: Instant, pass: Pass) -> Claim {
        Claim {
            origin: Some(Origin::Pass(Box::new(pass))),
            ..Claim::new(claim_id, terms, now)
        }
    }

    /// Returns a claim that only leaves its number, which is dead here: the old number of a yield, or an unknown one. `unanswered`
    /// is the error of the yield, which may have been executed. `seq` is the number of requests so far: a late answer to one of
    /// them must not count for the leave.
    pub(crate) fn dead(yielded: Yielded, now: Instant, seq: u32, unanswered: Option<StoreError>) -> Claim {
        let ends = now + ms(yielded.terms.times.hold_ms());
        let mut exchange = Exchange::after(seq);
        if let Some(unanswered) = unanswered {
            exchange.note_unanswered(unanswered);
        }
        Claim {
            phase: Phase::Leaving(Leaving::new(yielded.release, ends)),
            exchange,
            ..Claim::new(yielded.from, yielded.terms, now)
        }
    }

    /// Returns what the holder held as a writer, if this claim makes it a reader.
    pub(crate) fn held_as_writer(&self) -> Option<&HeldLease> {
        let Passed(old) = self.pass()?.local.as_ref()?;
        old.held().filter(|_| old.terms.mode != self.terms.mode)
    }

    /// Returns whether the claim is this one, or goes on with its lease.
    pub(crate) fn goes_on_with(&self, claim_id: ClaimId) -> bool {
        let is_old = match &self.origin {
            Some(Origin::Yield(yielded)) => yielded.from == claim_id,
            Some(Origin::Pass(pass)) => pass.local.is_some() && pass.from == claim_id,
            None => false,
        };
        is_old || self.claim_id == claim_id
    }

    /// Returns the claim whose lease was to be passed on, if its lease still lasts, and the store surely did nothing. A request
    /// without an answer proves nothing, and the old number then stays dead.
    pub(crate) fn resume(&mut self, cx: &StepContext<'_>) -> Option<Claim> {
        if self.exchange.unanswered().is_some() && !cx.shard.plant.is(Flaw::ResumedUnanswered) {
            return None;
        }
        let Some(Origin::Pass(pass)) = &mut self.origin else {
            return None;
        };
        pass.local
            .take_if(|passed| passed.deadline().is_some_and(|deadline| cx.now < deadline))
            .map(|passed| passed.0)
    }

    /// Returns the pass that the claim waits for, until the store has answered.
    pub(crate) fn pass(&self) -> Option<&Pass> {
        match &self.origin {
            Some(Origin::Pass(pass)) => Some(pass),
            Some(Origin::Yield(_)) | None => None,
        }
    }

    /// Returns until when the lease surely lasts that this claim continues, as far as its yield or pass knows.
    pub(crate) fn continued_until(&self) -> Option<Instant> {
        match self.origin.as_ref()? {
            Origin::Yield(yielded) => Some(yielded.deadline),
            Origin::Pass(pass) => match &pass.local {
                Some(passed) => passed.deadline(),
                // An executed adoption came after the claim was made.
                None => Some(self.created_at + self.lease()),
            },
        }
    }

    /// Returns the local claim whose lease is being passed on.
    pub(crate) fn passed_mut(&mut self) -> Option<&mut Passed> {
        match &mut self.origin {
            Some(Origin::Pass(pass)) => pass.local.as_mut(),
            Some(Origin::Yield(_)) | None => None,
        }
    }

    /// Ends a pass. Returns the local claim whose lease was passed on.
    pub(crate) fn take_passed(&mut self) -> Option<Passed> {
        match self.origin.take_if(|origin| matches!(origin, Origin::Pass(_))) {
            Some(Origin::Pass(pass)) => pass.local,
            _ => None,
        }
    }

    /// Ends a yield. Returns what was yielded.
    pub(crate) fn take_yielded(&mut self) -> Option<Yielded> {
        match self.origin.take_if(|origin| matches!(origin, Origin::Yield(_))) {
            Some(Origin::Yield(yielded)) => Some(yielded),
            _ => None,
        }
    }
}

impl Pass {
    /// Passes the lease of a claim of this process on. Its number is dead from now on.
    pub(crate) fn of_local(old: Claim) -> Self {
        Pass {
            from: old.claim_id,
            local: Some(Passed(old)),
        }
    }

    /// Takes over the lease of an owner in another process.
    pub(crate) fn of_transfer(from: ClaimId) -> Self {
        Pass { from, local: None }
    }

    /// Returns the previous owner, if it is in this key machine.
    pub(crate) fn local(&self) -> Option<&Passed> {
        self.local.as_ref()
    }
}

impl Passed {
    pub(crate) fn number(&self) -> ClaimNumber {
        self.0.number()
    }

    pub(crate) fn times(&self) -> LeaseTimes {
        self.0.terms.times
    }

    /// Returns until when the lease was surely held.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.held().map(HeldLease::deadline)
    }

    /// Ends the renewal in flight if it has this number.
    pub(crate) fn take_in_flight(&mut self, seq: u32) {
        self.0.take_in_flight(seq);
    }

    /// Notes a renewal of the lease that failed.
    pub(crate) fn note_late_renewal(&mut self, of: Kind, seq: u32, failure: &FailedRequest) {
        self.0.note_late_renewal(of, seq, failure);
    }

    /// Returns whether a renewal may still write the record again.
    pub(crate) fn may_be_written(&self, now: Instant) -> bool {
        self.0.is_renewing() || self.0.is_assertable(now)
    }

    /// Returns the claim, which must be left.
    pub(crate) fn dead(self) -> Claim {
        self.0
    }
}
