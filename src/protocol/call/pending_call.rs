//! A call that waits for its answer.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::protocol::exchange::Exchange;
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
    /// The requests under this id.
    pub(crate) exchange: Exchange<()>,
    /// A repeat was put off since the last answer. The call is repeated when a connection opens.
    pub(crate) was_put_off: bool,
}

/// An action that was left with the session.
#[derive(Debug)]
pub(crate) struct PendingAction {
    pub(crate) number: ClaimNumber,
    /// A further request follows only one that was not executed.
    pub(crate) exchange: Exchange<()>,
    /// The caller; `None` after it gives up.
    pub(crate) caller: Option<Ticket>,
    /// The lease. The action may take a quarter of it.
    pub(crate) lease: Duration,
    pub(crate) action: Action,
}

impl PendingCall {
    /// Returns a call without callers, which is sent at `due`, or at the end of this step.
    pub(crate) fn new(options: CallOptions, due: Option<Instant>) -> Self {
        let mut exchange = Exchange::default();
        match due {
            Some(due) => exchange.plan(due),
            None => exchange.plan_at_once(),
        }
        PendingCall {
            options,
            callers: BTreeMap::new(),
            id: None,
            exchange,
            was_put_off: false,
        }
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.options.call.is_watched()
    }

    /// Sends the call in this step, or after the answer to the request in flight.
    pub(crate) fn send_when_idle(&mut self) {
        match self.exchange.is_idle() {
            true => self.exchange.plan_at_once(),
            false => self.exchange.ask_again_after_answer(),
        }
    }

    /// Sends the call again at `at`, or when a connection opens.
    pub(crate) fn put_off(&mut self, at: Instant) {
        self.exchange.retry(at);
        self.was_put_off = true;
    }

    /// Notes an answer.
    pub(crate) fn note_answer(&mut self) {
        self.exchange.note_answer();
        self.was_put_off = false;
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
