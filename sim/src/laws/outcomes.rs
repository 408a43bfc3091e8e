//! Laws of answers: what a caller is told is true.

use tenure::error::{LostCause, StoreError, StoreErrorKind};
use tenure::protocol::message::Call;
use tenure::protocol::step::{AcquireError, Outcome, Ticket, WhyDenied};

use crate::coverage::Case;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::Caller;
use crate::world::transfer::TransferMessage;

impl World {
    /// Checks that a transferred lease is adopted once.
    pub(crate) fn watch_adopted(&mut self, slot: usize, caller: usize) {
        let Some(message) = self.nodes[slot].callers[caller].message else {
            return;
        };
        self.cover(Case::Adopted);
        let ticket = Ticket(caller as u64 + 1);
        let (key, of) = (
            self.transfer_messages[message].key,
            self.transfer_messages[message].of,
        );
        if let Some(other) = self.transfer_messages[message].adopted.replace(ticket) {
            self.report(Violation::AdoptedTwice, Some(key), || {
                format!("{of} was adopted as ticket {} and ticket {}", other.0, ticket.0)
            });
        }
    }

    /// Checks that without faults the first caller in time gets the transferred lease, unless others ask,
    /// too.
    pub(crate) fn watch_not_adopted(
        &mut self,
        slot: usize,
        caller: usize,
        owned: Option<bool>,
        is_gone: bool,
    ) {
        let Caller {
            key,
            call,
            message,
            in_time,
            ..
        } = self.nodes[slot].callers[caller];
        let Some(message) = message else { return };
        self.cover(match owned {
            Some(true) => Case::OwnerTold,
            Some(false) => Case::OwnerGone,
            None => Case::NotAdopted,
        });
        let TransferMessage { of, asked, .. } = self.transfer_messages[message];
        let own = u32::from(call != Some(Call::Extend { of }));
        // No node renews the lease while its slot is on its way.
        let is_promised = in_time && (!self.profile.cluster || self.is_calm());
        if is_promised && is_gone && asked == own && !self.is_exempt_claim(Some(of)) {
            self.report(Violation::WrongAnswer, Some(key), || {
                format!("{of} was gone in time, asked {call:?}")
            });
        }
    }

    /// Returns whether the error reports that the store did nothing.
    pub(crate) fn says_not_executed(error: &StoreError) -> bool {
        matches!(
            error.kind(),
            StoreErrorKind::Refused(_) | StoreErrorKind::Unreachable
        )
    }

    /// Checks that a call reported as not executed was not executed. The caller may repeat it.
    pub(crate) fn watch_refused_call(&mut self, slot: usize, caller: usize, denial: &WhyDenied) {
        let WhyDenied::Error(AcquireError::Store(error)) = denial else {
            return;
        };
        if Self::says_not_executed(error) && self.call_was_executed(slot, caller) {
            let key = self.nodes[slot].callers[caller].key;
            self.report(Violation::ExecutedCallReportedRefused, Some(key), || {
                format!("the call of ticket {} of node {slot}: {error}", caller + 1)
            });
        }
    }

    /// Checks that a release reported as not executed was not executed.
    pub(crate) fn watch_refused_release(&mut self, slot: usize, caller: usize, outcome: &Outcome) {
        let Outcome::Unconfirmed(error) = outcome else {
            return;
        };
        let Caller { key, claim, .. } = self.nodes[slot].callers[caller];
        if Self::says_not_executed(error) && claim.is_some_and(|claim| self.memory.ended.contains(&claim)) {
            self.report(Violation::ExecutedCallReportedRefused, Some(key), || {
                format!("the release of ticket {} of node {slot}: {error}", caller + 1)
            });
        }
    }

    /// Checks that a lease that is reported as gone was gone at the server that was asked. A failover may bring its record
    /// back meanwhile.
    pub(crate) fn watch_gone(&mut self, slot: usize, caller: usize, denial: &WhyDenied) {
        let Caller { key, before, .. } = self.nodes[slot].callers[caller];
        let Some(before) =
            before.filter(|_| matches!(denial, WhyDenied::Error(AcquireError::Lost(LostCause::Gone))))
        else {
            return;
        };
        let claim = self.nodes[slot].callers[before].claim;
        if !claim.is_some_and(|claim| self.memory.told_gone.contains(&claim)) {
            let owned = self.key_records(&self.keys[key]);
            self.report(Violation::ValidLeaseReportedGone, Some(key), || {
                format!("ticket {} of node {slot}: {owned:?}", caller + 1)
            });
        }
    }

    /// Checks that a lease that is reported as revoked was revoked.
    pub(crate) fn watch_revoked_loss(&mut self, slot: usize, ticket: Ticket, cause: LostCause) {
        let caller = ticket.0 as usize - 1;
        let of = &self.nodes[slot].callers[caller];
        let was_revoked = of.claim.is_some_and(|claim| self.memory.revoked.contains(&claim));
        if cause == LostCause::Revoked && !was_revoked {
            let key = of.key;
            self.report(Violation::ValidLeaseReportedGone, Some(key), || {
                format!(
                    "the lease of ticket {} of node {slot} was not revoked",
                    caller + 1
                )
            });
        }
    }
}
