//! The lease that a claim continues.

use crate::protocol::claim::Claim;
use crate::protocol::claim::held_lease::HeldLease;
use crate::protocol::message::{ClaimId, Mode};
use crate::protocol::step::{LeaseTerms, Ticket};
use crate::protocol::time::Instant;

/// The lease that a claim continues, instead of claiming a new one.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A lease of this node, which is given up for a place at the end of the queue.
    Yield(Yielded),
    /// A lease that is taken over from another owner.
    Pass(Box<Pass>),
}

impl Origin {
    /// Returns what the holder held as a writer, if this claim makes it a reader.
    pub(crate) fn held_as_writer(&self, mode: Mode) -> Option<&HeldLease> {
        let Origin::Pass(pass) = self else { return None };
        pass.local.as_ref().filter(|old| old.terms.mode != mode)?.held()
    }
}

/// A lease that is taken over from its owner.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) from: ClaimId,
    /// The claim of the previous owner as it was held, if that owner is in this key machine. Its number is dead since
    /// the pass was sent. If the pass fails, the number is left; if the store surely did nothing, the claim goes on.
    /// `None` for an owner in another machine, which is left alone.
    pub(crate) local: Option<Claim>,
}

#[derive(Debug)]
pub(crate) struct Yielded {
    pub(crate) from: ClaimId,
    pub(crate) terms: LeaseTerms,
    /// Until when the lease surely lasts that was given up.
    pub(crate) deadline: Instant,
    pub(crate) release: Option<Ticket>,
}
