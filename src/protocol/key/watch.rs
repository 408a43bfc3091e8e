//! Those of one process who wait for the same news of a key, and when they look.

use std::collections::BTreeMap;

use crate::protocol::key::line::Caller;
use crate::protocol::message::{ClaimNumber, LeaseTimes, Question};
use crate::protocol::step::Ticket;
use crate::protocol::time::Instant;

/// Those of this process who ask the same.
#[derive(Debug)]
pub(crate) struct Watch {
    /// With what they know of it.
    pub(crate) question: Question,
    pub(crate) callers: BTreeMap<Ticket, Caller>,
    /// The claim that asks, while an answer is waited for.
    pub(crate) asking: Option<ClaimNumber>,
    /// When it is asked next; `None`: now, unless it is being asked.
    pub(crate) due: Option<Instant>,
    /// `due` repeats what failed: it need not be waited for when the store is back.
    pub(crate) retries: bool,
    /// There may be news that came after the question under way.
    pub(crate) look_again: bool,
    /// Failures in a row.
    pub(crate) failed_looks: u32,
}

impl Watch {
    /// Nobody, asleep until then.
    pub(crate) fn new(question: Question, due: Option<Instant>) -> Self {
        Watch {
            question,
            callers: BTreeMap::new(),
            asking: None,
            due,
            retries: false,
            look_again: false,
            failed_looks: 0,
        }
    }

    /// As soon as nothing is under way.
    pub(crate) fn look_now(&mut self) {
        self.due = None;
        self.look_again = self.asking.is_some();
    }

    /// No later than then.
    pub(crate) fn look_by(&mut self, latest: Instant) {
        self.due = self.due.map(|due| due.min(latest));
    }

    /// The shortest of all their leases.
    pub(crate) fn term(&self) -> Option<LeaseTimes> {
        let terms = self.callers.values().map(|caller| caller.options.term);
        terms.min_by_key(|term| term.lease_ms)
    }
}
