//! What the store pushes to a key: grants, and a lease that an operator asks for or revokes. A holder learns of that before
//! another holder can have the lease.

use std::sync::Arc;

use crate::error::LostCause;
use crate::protocol::claim::answers::Granted;
use crate::protocol::claim::held_lease::HeldLease;
use crate::protocol::claim::{Claim, RequestKind, Yielded};
use crate::protocol::context::StepContext;
use crate::protocol::flaw::Flaw;
use crate::protocol::key::claims::Claimant;
use crate::protocol::key::key_state::KeyState;
use crate::protocol::message::{Asking, ClaimId, ClaimNumber, Grant, LeaseTimes, Mode, RunEnding};
use crate::protocol::step::{AcquireError, Effect, KeyEvent, LeaseTerms, Ticket, ms};

/// The request number of a claim that is not known here, which may have sent many requests. No claim sends so many.
const UNKNOWN_CLAIM_SEQ: u32 = 1 << 31;

/// The lease of a claim that this node does not know, such as one that it transferred. A leave is repeated for so long.
const UNKNOWN_LEASE_MS: u64 = 10_000;

/// Returns the terms of a lease of which no more is known.
fn unknown_terms(lease_ms: u64, mode: Mode) -> LeaseTerms {
    let times = LeaseTimes {
        lease_ms,
        margin_ms: lease_ms,
    };
    LeaseTerms::of_lock(times, mode)
}

impl KeyState {
    /// Handles a pushed grant.
    pub(crate) fn pushed(&mut self, cx: &mut StepContext<'_>, grant: &Grant) {
        let number = grant.claim_id.claim;
        let Some(claim) = self.claims.get_mut(number) else {
            // The number that a yield or a pass gives up is dead, and the outcome of that request decides what to do
            // with it.
            return if self.knows_claim(grant.claim_id) {
                cx.event(KeyEvent::PushStale);
            } else {
                // The push does not name the mode. A share of permits stays until it ends.
                self.leave_unknown(cx, grant.claim_id, unknown_terms(grant.lease_ms, Mode::Exclusive));
                if cx.shard.plant.is(Flaw::UnknownKept) {
                    self.claims.set_claimant(number, Claimant::LineHead);
                    let granted = Granted::unproven(grant.number, cx.now + ms(grant.lease_ms));
                    self.start(cx, number, granted);
                }
            };
        };
        if claim.takes_push(cx, grant) {
            self.note_inheritance(cx, number);
            let event = self.claims[number].pushed(cx, grant);
            self.take_event(cx, number, event);
        }
    }

    /// Leaves a number that this node does not know, and that has a lease. The lease would otherwise block all others until
    /// it ends.
    pub(crate) fn leave_unknown(&mut self, cx: &mut StepContext<'_>, claim_id: ClaimId, terms: LeaseTerms) {
        if claim_id.node != cx.shard.node {
            return cx.event(KeyEvent::PushForged);
        }
        cx.event(KeyEvent::UnknownLeft);
        let yielded = Yielded::unknown(claim_id, terms, cx.now);
        self.leave_old_number(cx, yielded, UNKNOWN_CLAIM_SEQ, None);
    }

    /// Tells the holders of a lease that an operator asks for it. The next release then goes to the store, and not to the
    /// next caller of this process.
    pub(crate) fn asked(&mut self, cx: &mut StepContext<'_>, claim_id: ClaimId, asking: &Arc<Asking>) {
        let number = claim_id.claim;
        let claim = self.claims.get_mut(number);
        let Some(claim) = claim.filter(|claim| claim.id() == claim_id) else {
            return;
        };
        claim.forbid_keep();
        if claim.is_kept() {
            cx.event(KeyEvent::Asked(asking.clone()));
            return self.leave(cx, number, None);
        }
        let Some(is_new) = claim.note_asked() else {
            return;
        };
        if is_new {
            cx.event(KeyEvent::Asked(asking.clone()));
        }
        self.close_to_readers(number);
        let until = cx.now + ms(asking.grace_ms);
        let told = self.holders_of(number).into_iter();
        cx.effects
            .extend(told.map(|ticket| Effect::Asked(ticket, asking.clone(), until)));
    }

    /// Returns the callers that hold by a claim and have taken up their grant.
    fn holders_of(&self, number: ClaimNumber) -> Vec<Ticket> {
        let Some(held) = self.claims.get(number).and_then(Claim::held) else {
            return Vec::new();
        };
        let alone = held.local().filter(|local| local.unfetched.is_none());
        let readers = self
            .readers
            .by_claim(number)
            .filter(|(_, reader)| reader.is_taken_up());
        let readers = readers.map(|(ticket, _)| ticket);
        alone
            .map(|local| local.ticket)
            .into_iter()
            .chain(readers)
            .collect()
    }

    /// Handles a push that says that a claim was revoked.
    pub(crate) fn pushed_revoked(&mut self, cx: &mut StepContext<'_>, claim_id: ClaimId, mode: Mode) {
        match self.claims.get(claim_id.claim) {
            Some(claim) if claim.id() == claim_id => self.revoked(cx, claim_id.claim),
            Some(_) => cx.event(KeyEvent::PushForged),
            // The outcome of the yield or of the pass decides.
            None if self.knows_claim(claim_id) => cx.event(KeyEvent::PushStale),
            None => self.leave_unknown(cx, claim_id, unknown_terms(UNKNOWN_LEASE_MS, mode)),
        }
    }

    /// Handles a claim whose lease is revoked. A holder loses it at once.
    pub(crate) fn revoked(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        if self.claims[number].is_kept() {
            return self.leave(cx, number, None);
        }
        let event = self.claims[number].revoked(cx);
        self.take_event(cx, number, event);
    }

    /// Ends a holding whose record may still be there. The claim is left when its last guard is dropped, or at the old
    /// deadline: until then the holder's code may still run.
    pub(crate) fn lose_until_dropped(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        cause: LostCause,
    ) {
        let Some(deadline) = self.claims[number].held().map(HeldLease::deadline) else {
            return;
        };
        let holders = self.holders_of(number);
        self.report_lost(cx, number, cause);
        if holders.is_empty() {
            return self.leave(cx, number, None);
        }
        let claim = &mut self.claims[number];
        claim.leave_at(deadline, cx.now + claim.record_lifetime());
        self.claims.set_claimant(number, Claimant::Abandoned);
        self.undropped
            .extend(holders.into_iter().map(|ticket| (ticket, number)));
    }

    /// Leaves a revoked claim by which no caller holds. Its callers are claimed for under a new number, except one that was
    /// to take over a lease.
    pub(crate) fn leave_ungranted(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let is_pass = self.claims[number].pass().is_some();
        let claimant = self.claims.take_claimant(number);
        self.leave(cx, number, None);
        match claimant {
            Claimant::Solo(caller) if is_pass => {
                cx.deny(caller.ticket, AcquireError::Lost(LostCause::Revoked));
            }
            Claimant::Solo(caller) => {
                self.solos.insert(caller.ticket, caller);
            }
            Claimant::LineHead | Claimant::LineFollower | Claimant::Abandoned => {}
        }
    }

    /// Handles the end of a guard whose lease was [lost before](Self::lose_until_dropped). The last guard of a claim lets the
    /// claim leave. `ending`: how the run of a tick ended.
    pub(crate) fn drop_lost(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, ending: Option<RunEnding>) {
        let Some(at) = self.undropped.iter().position(|(of, _)| *of == ticket) else {
            return;
        };
        let (_, number) = self.undropped.swap_remove(at);
        let Some(claim) = self.claims.get_mut(number) else {
            return;
        };
        // A lost run was not handed over.
        claim.note_ending(ending.filter(|ending| ending.result.outcome.ends_tick()));
        let is_left = claim.is_in_flight(RequestKind::Leave);
        if !is_left && self.undropped.iter().all(|(_, of)| *of != number) {
            self.ask(cx, number, RequestKind::Leave);
        }
    }
}
