//! The requests of one sender: a claim, a call or an action. At most one of them is in flight.
//!
//! The sender chooses the pauses, and decides who gives up after a failure.

use crate::error::StoreError;
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::time::Instant;

/// The requests of one sender. `K` tells its kinds of requests apart.
#[derive(Debug)]
pub(crate) struct Exchange<K> {
    /// The number of requests so far.
    seq: u32,
    in_flight: Option<K>,
    next: Option<NextRequest>,
    /// The number of failures in a row, as the sender counts them.
    failures: u32,
    /// Why the first of the unanswered requests has no answer. That request may have been executed, whatever the
    /// store says of its repeats.
    unanswered: Option<Box<StoreError>>,
    /// The answer to the request in flight may be older than what it is about.
    asks_again: bool,
}

/// The request after the one in flight.
#[derive(Debug, Clone, Copy)]
struct NextRequest {
    at: Instant,
    why: WhyNext,
}

/// Why there is a next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhyNext {
    Planned,
    /// It repeats one that failed. It is sent at once when the store is back.
    Retry,
    /// It repeats one that its server did not execute, because it does not serve the key now.
    Redirected,
}

impl<K> Default for Exchange<K> {
    fn default() -> Self {
        Exchange::after(0)
    }
}

impl<K> Exchange<K> {
    /// Returns an exchange whose first request has the number after `seq`. Answers to earlier requests of the same tag
    /// decide nothing.
    pub(crate) fn after(seq: u32) -> Self {
        Exchange {
            seq,
            in_flight: None,
            next: None,
            failures: 0,
            unanswered: None,
            asks_again: false,
        }
    }

    pub(crate) fn seq(&self) -> u32 {
        self.seq
    }

    pub(crate) fn in_flight(&self) -> Option<&K> {
        self.in_flight.as_ref()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_none()
    }

    /// Begins a request, and returns its number. The answer to an earlier request decides nothing from now on.
    pub(crate) fn begin(&mut self, kind: K) -> u32 {
        self.seq += 1;
        self.in_flight = Some(kind);
        self.next = None;
        self.asks_again = false;
        self.seq
    }

    /// Ends the request in flight if it has this number.
    pub(crate) fn take(&mut self, seq: u32) -> Option<K> {
        self.in_flight.take_if(|_| self.seq == seq)
    }

    /// Begins to count requests again, under another id.
    pub(crate) fn begin_id(&mut self) {
        (self.seq, self.unanswered) = (0, None);
    }

    /// Ends the request in flight without an answer.
    pub(crate) fn end(&mut self) {
        self.in_flight = None;
    }

    /// Ends the request in flight, which has an answer.
    pub(crate) fn note_answer(&mut self) {
        (self.in_flight, self.failures) = (None, 0);
    }

    // Failures.

    /// Notes a failure. If an earlier request has no answer either, the callers get the error of that one.
    pub(crate) fn note_failure(&mut self, failure: &mut FailedRequest, believes_all: bool) {
        failure.note_first(&mut self.unanswered, believes_all);
    }

    /// Notes that a request may have been executed, whatever the store says of its repeats.
    pub(crate) fn note_unanswered(&mut self, error: StoreError) {
        self.unanswered = Some(Box::new(error));
    }

    /// Notes an answer that tells what became of all requests.
    pub(crate) fn forget_unanswered(&mut self) {
        self.unanswered = None;
    }

    pub(crate) fn unanswered(&self) -> Option<&StoreError> {
        self.unanswered.as_deref()
    }

    /// Counts a failure. Returns the number of failures in a row.
    pub(crate) fn count_failure(&mut self) -> u32 {
        self.failures += 1;
        self.failures
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    pub(crate) fn forget_failures(&mut self) {
        self.failures = 0;
    }

    // The next request.

    /// Plans the next request.
    pub(crate) fn plan(&mut self, at: Instant) {
        self.set_next(at, WhyNext::Planned);
    }

    /// Plans the next request for the end of this step.
    pub(crate) fn plan_at_once(&mut self) {
        self.plan(Instant::default());
    }

    /// Plans the repeat of a request that failed.
    pub(crate) fn retry(&mut self, at: Instant) {
        self.set_next(at, WhyNext::Retry);
    }

    /// Plans the repeat of a request that its server did not execute, because it does not serve the key now.
    pub(crate) fn redirect(&mut self, at: Instant) {
        self.set_next(at, WhyNext::Redirected);
    }

    fn set_next(&mut self, at: Instant, why: WhyNext) {
        self.next = Some(NextRequest { at, why });
    }

    /// Moves the next request, if there is one, to `latest` at the latest.
    pub(crate) fn plan_by(&mut self, latest: Instant) {
        if let Some(next) = &mut self.next {
            next.at = next.at.min(latest);
        }
    }

    /// Plans no next request.
    pub(crate) fn rest(&mut self) {
        self.next = None;
    }

    /// Returns when the next request is due, if there is one.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.next.map(|next| next.at)
    }

    /// Returns whether the next request is sent at the end of this step.
    pub(crate) fn is_at_once(&self) -> bool {
        self.is_due(Instant::default())
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next.at <= now)
    }

    /// Returns whether the next request repeats one that failed or was redirected. It is sent when a connection opens.
    pub(crate) fn is_retry(&self) -> bool {
        self.next.is_some_and(|next| next.why != WhyNext::Planned)
    }

    pub(crate) fn is_redirected(&self) -> bool {
        self.next.is_some_and(|next| next.why == WhyNext::Redirected)
    }

    /// Notes that the answer to the request in flight, if there is one, may be older than what is known.
    pub(crate) fn ask_again_after_answer(&mut self) {
        self.asks_again = self.in_flight.is_some();
    }

    /// Returns whether the answer that just came may be older than what is known.
    pub(crate) fn asks_again(&self) -> bool {
        self.asks_again
    }
}
