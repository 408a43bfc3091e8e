//! A request that came to nothing, as its key sees it: whether to blame it, and how long callers wait on.

use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::key::line::Caller;
use crate::protocol::message::Unanswered;
use crate::protocol::time::Instant;

/// A request that came to nothing.
#[derive(Debug)]
pub(crate) struct Failing {
    pub(crate) why: Unanswered,
    /// When its server was last heard.
    pub(crate) heard: Option<Instant>,
    /// Since when it is away.
    pub(crate) away: Option<Instant>,
    pub(crate) error: StoreError,
    /// What a caller is told: that the request was not executed only if neither it nor an earlier one of it can have been.
    pub(crate) told: StoreError,
}

impl Failing {
    /// Nothing was asked before, or nothing that counts.
    pub(crate) fn new(
        why: Unanswered,
        heard: Option<Instant>,
        away: Option<Instant>,
        error: StoreError,
    ) -> Self {
        let mut failing = Failing {
            why,
            heard,
            away,
            told: error.clone(),
            error,
        };
        if failing.may_be_executed() {
            failing.told = failing.told.of_unknown_outcome();
        }
        failing
    }

    pub(crate) fn may_be_executed(&self) -> bool {
        matches!(self.why, Unanswered::Unknown | Unanswered::Bystander)
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.error.kind(), StoreErrorKind::Refused(_))
    }

    fn is_for_good(&self) -> bool {
        matches!(self.error.kind(), StoreErrorKind::Refused(refusal) if !refusal.is_passing())
    }

    /// Whether the connection that broke had worked before, so that the request is not to blame: it is sent again at once
    /// and counts as no failure. Connections that break one after the other without a word from the server are an outage.
    pub(crate) fn is_bystander(&self, now: Instant, lease: Duration) -> bool {
        self.why == Unanswered::Bystander && self.heard.is_some_and(|heard| now < heard + lease)
    }

    /// Whether the same is asked again at once: after the first failure, unless the store is known to refuse.
    pub(crate) fn is_tried_at_once(&self, failed_claims: u32) -> bool {
        failed_claims <= 1 && self.why != Unanswered::Down && !self.is_refused()
    }

    /// Whether the store may still answer that caller in time, after so many failures in a row.
    pub(crate) fn keeps_waiting(&self, caller: &Caller, failed_claims: u32, now: Instant) -> bool {
        let came_before = |since: Option<Instant>| since.is_some_and(|since| caller.entered <= since);
        // Behind a claim of this node it waits, too, though the store never heard of it.
        let waits = came_before(self.heard) || caller.behind && came_before(self.away);
        let rides_out =
            caller.options.wait && waits && self.away.is_some_and(|away| now < away + caller.lease());
        !self.is_for_good() && (rides_out || self.is_tried_at_once(failed_claims))
    }
}
