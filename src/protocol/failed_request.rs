//! A request that came to nothing: whether to blame it, and how long callers wait on.
//!
//! A caller that waits already rides out an outage of one lease. The outage counts from when the server was last heard, or
//! from the sending of the first request since then that came to nothing: while nothing was asked it may have been there. A
//! caller that comes to a store that is away hears of it: at once when it is known to be down, else after one more try.

use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::message::Unanswered;
use crate::protocol::time::Instant;

/// The longest pause before a failed request is repeated. What waits for the store must not wait much longer than the store is
/// away, whatever the lease.
pub(crate) const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A request that came to nothing.
#[derive(Debug)]
pub(crate) struct FailedRequest {
    pub(crate) why: Unanswered,
    /// When its server was last heard.
    pub(crate) heard: Option<Instant>,
    /// Since when it is away.
    pub(crate) away: Option<Instant>,
    pub(crate) error: StoreError,
    /// What a caller is told: that the request was not executed only if neither it nor an earlier one of it can have been.
    pub(crate) reported: StoreError,
}

/// How long one caller waits on through an outage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// When the caller came. A caller that came before the store was last heard waits through an outage.
    pub(crate) entered: Instant,
    /// The length of the outage that it waits through.
    pub(crate) lease: Duration,
    /// The caller waits for more than the first answer.
    pub(crate) waits: bool,
    /// A claim of this node waited for the key or held it when the caller came.
    pub(crate) behind: bool,
}

impl FailedRequest {
    /// Nothing was asked before, or nothing that counts.
    pub(crate) fn new(
        why: Unanswered,
        heard: Option<Instant>,
        away: Option<Instant>,
        error: StoreError,
    ) -> Self {
        let mut failure = FailedRequest {
            why,
            heard,
            away,
            reported: error.clone(),
            error,
        };
        if failure.may_be_executed() {
            failure.reported = failure.reported.of_unknown_outcome();
        }
        failure
    }

    /// The store answered and did nothing, for this reason. Only callers that it answered usefully before go on.
    pub(crate) fn of_answer(heard: Option<Instant>, error: StoreError) -> Self {
        FailedRequest::new(Unanswered::No, heard, heard, error)
    }

    /// The same of an answer that comes too late to be used.
    pub(crate) fn of_late_answer(heard: Option<Instant>, text: &str) -> Self {
        FailedRequest::of_answer(heard, StoreError::new(StoreErrorKind::TimedOut, text))
    }

    /// Has the caller told of the first request without an answer, `first`: that one may have been executed, whatever the store
    /// says of its repeats. Notes this one as the first if there was none.
    pub(crate) fn note_first(&mut self, first: &mut Option<Box<StoreError>>, believes_all: bool) {
        match first {
            Some(first) if !believes_all => self.reported = (**first).clone(),
            Some(_) => {}
            None if self.may_be_executed() => *first = Some(Box::new(self.reported.clone())),
            None => {}
        }
    }

    pub(crate) fn may_be_executed(&self) -> bool {
        matches!(self.why, Unanswered::Unknown | Unanswered::Bystander)
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.error.kind(), StoreErrorKind::Refused(_))
    }

    fn is_permanent(&self) -> bool {
        matches!(self.error.kind(), StoreErrorKind::Refused(refusal) if !refusal.is_passing())
    }

    /// Whether the connection that broke had worked before, so that the request is not to blame: it is sent again at once
    /// and counts as no failure. Connections that break one after the other without a word from the server are an outage.
    pub(crate) fn is_bystander(&self, now: Instant, lease: Duration) -> bool {
        self.why == Unanswered::Bystander && self.heard.is_some_and(|heard| now < heard + lease)
    }

    /// Whether the request is repeated at once, after so many failures in a row: the first time, unless there is no use in that.
    pub(crate) fn is_repeated_at_once(&self, failures: u32) -> bool {
        failures <= 1 && self.why != Unanswered::Down && !self.is_refused()
    }

    /// Whether the store may still answer that caller in time, after so many failures in a row.
    pub(crate) fn keeps_waiting(&self, patience: Patience, failures: u32, now: Instant) -> bool {
        let came_before = |since: Option<Instant>| since.is_some_and(|since| patience.entered <= since);
        // Behind a claim of this node it waits, too, though the store never heard of it.
        let waits = came_before(self.heard) || patience.behind && came_before(self.away);
        let rides_out = patience.waits && waits && self.away.is_some_and(|away| now < away + patience.lease);
        !self.is_permanent() && (rides_out || self.is_repeated_at_once(failures))
    }
}
