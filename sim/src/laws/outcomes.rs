//! Laws of answers: what a caller is told is true.

use tenure::error::{LostCause, StoreError, StoreErrorKind};
use tenure::protocol::message::Call;
use tenure::protocol::step::{AcquireError, Outcome, Ticket};

use crate::coverage::Seen;
use crate::violation::Wrong;
use crate::world::World;
use crate::world::caller::Caller;
use crate::world::transfer::Letter;

impl World {
    /// Checks that a transferred lease is adopted once.
    pub(crate) fn watch_adopted(&mut self, slot: usize, caller: usize) {
        let Some(letter) = self.nodes[slot].callers[caller].letter else {
            return;
        };
        self.saw(Seen::Adopted);
        let ticket = Ticket(caller as u64 + 1);
        let (key, of) = (self.letters[letter].key, self.letters[letter].of);
        if let Some(other) = self.letters[letter].adopted.replace(ticket) {
            self.wrong(Wrong::AdoptedTwice, Some(key), || {
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
            asks,
            letter,
            in_time,
            ..
        } = self.nodes[slot].callers[caller];
        let Some(letter) = letter else { return };
        self.saw(match owned {
            Some(true) => Seen::OwnerTold,
            Some(false) => Seen::OwnerGone,
            None => Seen::NotAdopted,
        });
        let Letter { of, asked, .. } = self.letters[letter];
        let own = u32::from(asks != Some(Call::Extend { of }));
        if in_time && is_gone && asked == own && !self.is_tainted_claim(Some(of)) {
            self.wrong(Wrong::Outcome, Some(key), || {
                format!("{of} was gone in time, asked {asks:?}")
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
    pub(crate) fn watch_refused_call(&mut self, slot: usize, caller: usize, denial: &AcquireError) {
        let AcquireError::Store(error) = denial else {
            return;
        };
        if Self::says_not_executed(error) && self.call_was_executed(slot, caller) {
            let key = self.nodes[slot].callers[caller].key;
            self.wrong(Wrong::ToldRefused, Some(key), || {
                format!("the call of ticket {} of node {slot}: {error}", caller + 1)
            });
        }
    }

    /// Checks that a release reported as not executed was not executed.
    pub(crate) fn watch_refused_release(&mut self, slot: usize, caller: usize, outcome: &Outcome) {
        let Outcome::Failed(error) = outcome else { return };
        let Caller { key, claim, .. } = self.nodes[slot].callers[caller];
        if Self::says_not_executed(error) && claim.is_some_and(|claim| self.watch.ended.contains(&claim)) {
            self.wrong(Wrong::ToldRefused, Some(key), || {
                format!("the release of ticket {} of node {slot}: {error}", caller + 1)
            });
        }
    }

    /// Checks that a lease reported as gone is gone at the store.
    pub(crate) fn watch_given_up(&mut self, slot: usize, caller: usize, denial: &AcquireError) {
        let Caller { key, before, .. } = self.nodes[slot].callers[caller];
        let Some(before) = before.filter(|_| matches!(denial, AcquireError::Lost(LostCause::Gone))) else {
            return;
        };
        let claim = self.nodes[slot].callers[before].claim;
        let owned = self.owned(&self.keys[key]);
        let has = owned.grants().any(|(claim_id, _)| Some(claim_id) == claim);
        if has && !self.watch.stepped_back {
            self.wrong(Wrong::GivenUp, Some(key), || {
                format!("ticket {} of node {slot}: {owned:?}", caller + 1)
            });
        }
    }
}
