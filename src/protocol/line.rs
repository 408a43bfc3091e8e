//! Who waits in this process: callers, and the line that they stand in.

use std::collections::VecDeque;
use std::time::Duration;

use crate::protocol::step::{AcquireOptions, Ticket, ms};
use crate::protocol::time::Instant;

/// Somebody who waits for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) ticket: Ticket,
    pub(crate) options: AcquireOptions,
    /// When it came. Whoever came before the store was last heard waits through an outage.
    pub(crate) entered: Instant,
    /// Failures in a row of a claim of its own.
    pub(crate) strikes: u32,
}

impl Caller {
    pub(crate) fn lease(&self) -> Duration {
        ms(self.options.term.lease_ms)
    }
}

/// The callers that share the cohort's claim, in order of their tickets.
#[derive(Debug, Default)]
pub(crate) struct Line {
    callers: VecDeque<Caller>,
    /// How many of them would not wait. Kept, so that an answer to a long line costs no walk along it.
    impatient: usize,
}

impl Line {
    pub(crate) fn len(&self) -> usize {
        self.callers.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    pub(crate) fn front(&self) -> Option<&Caller> {
        self.callers.front()
    }

    /// Somebody in it would wait.
    pub(crate) fn has_patient(&self) -> bool {
        self.impatient < self.callers.len()
    }

    pub(crate) fn has_impatient(&self) -> bool {
        self.impatient > 0
    }

    pub(crate) fn push(&mut self, caller: Caller) {
        self.impatient += usize::from(!caller.options.wait);
        self.callers.push_back(caller);
    }

    pub(crate) fn pop(&mut self) -> Option<Caller> {
        let caller = self.callers.pop_front()?;
        self.impatient -= usize::from(!caller.options.wait);
        Some(caller)
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> bool {
        let at = self.callers.binary_search_by_key(&ticket, |caller| caller.ticket);
        let removed = at.ok().and_then(|at| self.callers.remove(at));
        self.impatient -= usize::from(removed.is_some_and(|caller| !caller.options.wait));
        removed.is_some()
    }

    /// Keeps whom `stays` says, and names everybody else to `leaves`.
    pub(crate) fn retain(&mut self, stays: impl Fn(&Caller) -> bool, mut leaves: impl FnMut(&Caller)) {
        let mut impatient = 0;
        self.callers.retain(|caller| {
            let stays = stays(caller);
            if !stays {
                leaves(caller);
            }
            impatient += usize::from(stays && !caller.options.wait);
            stays
        });
        self.impatient = impatient;
    }
}
