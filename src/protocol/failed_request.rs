//! A request that failed, and how long its callers keep waiting.
//!
//! A caller that already waits keeps waiting through an outage of one lease. The outage begins when the server was
//! last heard, or when the first request since then was sent that failed. While no request was sent, the server may
//! have been there. A caller that arrives during an outage is told of it: at once if the server is known to be down,
//! else after one more try.

use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::message::{Executed, Failure};
use crate::protocol::time::Instant;

/// The longest pause before a failed request is repeated. A waiting caller must not wait much longer than the outage
/// lasts, whatever the lease.
pub(crate) const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A request without a usable answer: the store's [`Failure`], and what only the session knows.
#[derive(Debug, Clone)]
pub struct FailedRequest {
    /// Whether the request may have been executed.
    pub executed: Executed,
    /// What happened.
    pub error: StoreError,
    /// The connection had worked, and broke or was given up because of another request. The request is retried at once, and
    /// does not count as a failed attempt.
    pub bystander: bool,
    /// The request was not sent, because the server is known to be down.
    pub down: bool,
    /// The store refuses the request as late from this time on.
    pub late_after: Instant,
    /// When the server was last heard; `None` if it never was.
    pub heard: Option<Instant>,
    /// When the outage began: when the server was last heard, or when the first request since then was sent that failed.
    pub away: Option<Instant>,
    /// The error of an earlier request of the same sender that has no answer either.
    pub(crate) first: Option<Box<StoreError>>,
}

/// How long one caller keeps waiting through an outage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// When the caller arrived. Only a caller that arrived before the store was last heard waits through an outage.
    pub(crate) entered: Instant,
    /// The longest outage that the caller waits through.
    pub(crate) lease: Duration,
    /// The caller waits for more than the first answer.
    pub(crate) waits: bool,
    /// A claim of this node waited for the key or held it when the caller arrived.
    pub(crate) behind: bool,
}

impl FailedRequest {
    /// Returns the failure of a request to a server that was never heard.
    pub fn new(failure: Failure, late_after: Instant) -> Self {
        FailedRequest {
            executed: failure.executed,
            error: failure.error,
            bystander: false,
            down: false,
            late_after,
            heard: None,
            away: None,
            first: None,
        }
    }

    /// Returns the failure of a request that the store answered without doing anything. Only callers that already had
    /// a useful answer keep waiting.
    pub(crate) fn of_answer(now: Instant, heard: Option<Instant>, error: StoreError) -> Self {
        let executed = Executed::No;
        FailedRequest {
            heard,
            away: heard,
            ..FailedRequest::new(Failure { executed, error }, now)
        }
    }

    /// Returns the failure of a request whose answer came too late to be used.
    pub(crate) fn of_late_answer(now: Instant, heard: Option<Instant>, text: &str) -> Self {
        FailedRequest::of_answer(now, heard, StoreError::new(StoreErrorKind::TimedOut, text))
    }

    /// Returns the error for the caller. It says that the request was not executed only if neither this request nor an
    /// earlier one of its sender can have been.
    pub(crate) fn reported(&self) -> StoreError {
        match &self.first {
            Some(first) => (**first).clone(),
            None if self.may_be_executed() => self.error.clone().of_unknown_outcome(),
            None => self.error.clone(),
        }
    }

    /// Reports the first unanswered request, `first`, to the caller instead of this one. The first may have been
    /// executed, whatever the store says of its repeats. If there was none, notes this request as the first if it may
    /// have been executed.
    pub(crate) fn note_first(&mut self, first: &mut Option<Box<StoreError>>, believes_all: bool) {
        match first {
            Some(_) if !believes_all => self.first.clone_from(first),
            Some(_) => {}
            None if self.may_be_executed() => *first = Some(Box::new(self.reported())),
            None => {}
        }
    }

    pub(crate) fn may_be_executed(&self) -> bool {
        self.executed == Executed::Unknown
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.error.kind(), StoreErrorKind::Refused(_))
    }

    /// Returns whether the connection that broke had worked before, so that the request is not to blame. Such a
    /// request is sent again at once and does not count as a failure. Connections that break one after the other,
    /// without an answer from the server, are an outage.
    pub(crate) fn is_bystander(&self, now: Instant, lease: Duration) -> bool {
        self.bystander && self.heard.is_some_and(|heard| now < heard + lease)
    }

    /// Returns whether the request is repeated at once after this number of failures in a row. Only the first failure
    /// is, and only if a repeat can help.
    pub(crate) fn is_repeated_at_once(&self, failures: u32) -> bool {
        failures <= 1 && !self.down && !self.is_refused()
    }

    /// Returns whether the store may still answer the caller in time, after this number of failures in a row.
    pub(crate) fn keeps_waiting(&self, patience: Patience, failures: u32, now: Instant) -> bool {
        let came_before = |since: Option<Instant>| since.is_some_and(|since| patience.entered <= since);
        // A caller behind a claim of this node waits too, though the store never heard of that caller.
        let waits = came_before(self.heard) || patience.behind && came_before(self.away);
        let rides_out = patience.waits && waits && self.away.is_some_and(|away| now < away + patience.lease);
        !self.error.trouble().is_permanent() && (rides_out || self.is_repeated_at_once(failures))
    }
}
