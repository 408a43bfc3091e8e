//! The callers of this process that hold as readers, found by ticket.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::claim::held_lease::LocalHolder;
use crate::protocol::message::ClaimNumber;
use crate::protocol::step::Ticket;
use crate::protocol::time::Instant;

/// One caller that reads, beside others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader {
    /// The claim by which the caller reads.
    pub(crate) claim: ClaimNumber,
    /// The caller's place among the local holders of the grant.
    pub(crate) index: u64,
    pub(crate) local: LocalHolder,
}

impl Reader {
    /// Returns whether the caller has taken the grant up, so that there is a guard.
    pub(crate) fn is_taken_up(&self) -> bool {
        self.local.unfetched.is_none()
    }
}

/// All readers of a key.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    by_ticket: BTreeMap<Ticket, Reader>,
    /// The readers that have not taken up their grant, with the time at which it is given back.
    pub(crate) unfetched: BTreeSet<(Instant, Ticket)>,
}

impl Readers {
    /// Lets a caller read by this claim, at this place among the local holders of the grant.
    pub(crate) fn add(&mut self, local: LocalHolder, claim: ClaimNumber, index: u64) {
        self.unfetched
            .extend(local.unfetched.map(|at| (at, local.ticket)));
        self.by_ticket
            .insert(local.ticket, Reader { claim, index, local });
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<&Reader> {
        self.by_ticket.get(&ticket)
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Reader> {
        let reader = self.by_ticket.remove(&ticket)?;
        if let Some(at) = reader.local.unfetched {
            self.unfetched.remove(&(at, ticket));
        }
        Some(reader)
    }

    /// Returns all readers of this claim, in order of their tickets.
    pub(crate) fn by_claim(&self, claim: ClaimNumber) -> impl Iterator<Item = (Ticket, &Reader)> {
        let readers = self.by_ticket.iter().map(|(ticket, reader)| (*ticket, reader));
        readers.filter(move |(_, reader)| reader.claim == claim)
    }

    /// Returns all readers of this claim, to be changed.
    pub(crate) fn by_claim_mut(&mut self, claim: ClaimNumber) -> impl Iterator<Item = &mut Reader> {
        let readers = self.by_ticket.values_mut();
        readers.filter(move |reader| reader.claim == claim)
    }

    /// Notes that the caller has its guard from now on.
    pub(crate) fn take_up(&mut self, ticket: Ticket) {
        let reader = self.by_ticket.get_mut(&ticket);
        if let Some(at) = reader.and_then(|reader| reader.local.unfetched.take()) {
            self.unfetched.remove(&(at, ticket));
        }
    }

    /// Returns a reader whose grant must be given back by `now`.
    pub(crate) fn overdue(&self, now: Instant) -> Option<Ticket> {
        let (at, ticket) = self.unfetched.first()?;
        (*at <= now).then_some(*ticket)
    }
}
