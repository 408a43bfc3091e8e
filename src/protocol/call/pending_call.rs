//! A call that waits for its answer.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::StoreError;
use crate::protocol::failed_request::Patience;
use crate::protocol::message::{ClaimId, ClaimNumber, LeaseTimes};
use crate::protocol::step::{CallOptions, Ticket, ms};
use crate::protocol::time::Instant;
use crate::protocol::write::Action;

/// A caller that waits for an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingCaller {
    /// When the caller arrived, or when its rest ended.
    pub(crate) entered: Instant,
    pub(crate) term: LeaseTimes,
}

/// A call that waits for its answer. A watch is a call that is repeated until there is news, for all callers of this
/// process with the same question.
#[derive(Debug)]
pub(crate) struct PendingCall {
    /// The question or action. The question of a watch contains the version that its callers know.
    pub(crate) options: CallOptions,
    pub(crate) callers: BTreeMap<Ticket, PendingCaller>,
    /// The id of the latest request. All requests of a call have one id; each request of a watch has its own.
    pub(crate) id: Option<ClaimId>,
    /// The number of requests under this id.
    pub(crate) seq: u32,
    /// A request is in flight.
    pub(crate) is_in_flight: bool,
    /// When the next request is sent. `None`: at once, if none is in flight.
    pub(crate) due: Option<Instant>,
    /// The next request repeats one that failed. It is sent at once when the store is back.
    pub(crate) is_retry: bool,
    /// There may be news that is younger than the question in flight: the call is sent again at once after the
    /// answer.
    pub(crate) recheck_on_answer: bool,
    /// The number of failures in a row.
    pub(crate) failures: u32,
    /// Why the first of the unanswered requests under this id has no answer.
    pub(crate) unanswered: Option<Box<StoreError>>,
}

/// An action that was left with the session.
#[derive(Debug)]
pub(crate) struct PendingAction {
    pub(crate) number: ClaimNumber,
    /// The number of requests. A further request follows only one that was not executed.
    pub(crate) seq: u32,
    /// The caller; `None` after it gives up.
    pub(crate) caller: Option<Ticket>,
    /// The lease. The action may take a quarter of it.
    pub(crate) lease: Duration,
    /// When the action is sent again; `None` while it is with the session.
    pub(crate) due: Option<Instant>,
    pub(crate) action: Action,
}

impl PendingCall {
    /// Returns a call without callers, which is sent at `due`.
    pub(crate) fn new(options: CallOptions, due: Option<Instant>) -> Self {
        PendingCall {
            options,
            callers: BTreeMap::new(),
            id: None,
            seq: 0,
            is_in_flight: false,
            due,
            is_retry: false,
            recheck_on_answer: false,
            failures: 0,
            unanswered: None,
        }
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.options.call.is_watched()
    }

    /// Sends the call as soon as no request is in flight.
    pub(crate) fn send_when_idle(&mut self) {
        self.due = None;
        self.recheck_on_answer = self.is_in_flight;
    }

    /// Sends the call no later than `latest`.
    pub(crate) fn send_by(&mut self, latest: Instant) {
        self.due = self.due.map(|due| due.min(latest));
    }

    /// Returns the lengths of the shortest lease of all callers.
    pub(crate) fn term(&self) -> LeaseTimes {
        let terms = self.callers.values().map(|caller| caller.term);
        terms
            .min_by_key(|term| term.lease_ms)
            .unwrap_or(self.options.term)
    }

    pub(crate) fn lease(&self) -> Duration {
        ms(self.term().lease_ms)
    }

    /// Removes and returns the callers that an answer is for: those that arrived before the request was sent, at
    /// `sent`, or all.
    pub(crate) fn take_callers(&mut self, sent: Instant, takes_all: bool) -> BTreeMap<Ticket, PendingCaller> {
        let all = std::mem::take(&mut self.callers).into_iter();
        let came_after = |(_, caller): &(Ticket, PendingCaller)| caller.entered > sent && !takes_all;
        let (later, callers) = all.partition(came_after);
        self.callers = later;
        callers
    }

    /// Returns how long a caller keeps waiting. A watch waits through an outage. Any other call is repeated once.
    pub(crate) fn patience(&self, caller: PendingCaller) -> Patience {
        Patience {
            entered: caller.entered,
            lease: ms(caller.term.lease_ms),
            waits: self.is_watch(),
            behind: false,
        }
    }
}
