//! The phases of a claim.

use crate::protocol::claim::held_lease::HeldLease;
use crate::protocol::claim::leaving::Leaving;
use crate::protocol::time::Instant;

/// The life of a claim: asked, queued, held, leaving. A claim never goes back to asked.
#[derive(Debug)]
pub(super) enum Phase {
    /// The store has not answered yet.
    Asked,
    /// In the store's queue. `t0` is when the latest request was sent that was answered "queued". `recovers_until`
    /// is set if the answer was that the server recovers, which says nothing of an owner.
    Queued {
        t0: Instant,
        recovers_until: Option<Instant>,
    },
    /// Granted at `since`, but too little of the lease may be left, so the lease is renewed before its use. `tries`
    /// counts the renewals that did not help.
    Confirming { since: Instant, tries: u32 },
    /// Held by a local caller.
    Held(HeldLease),
    /// Dead here; the store is being told.
    Leaving(Leaving),
}

impl Phase {
    /// Returns whether a caller waits for the claim.
    pub(super) fn is_waiting(&self) -> bool {
        match self {
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => true,
            Phase::Held(_) | Phase::Leaving(_) => false,
        }
    }
}
