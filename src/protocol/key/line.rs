//! Who waits in this process: callers, and the line that they stand in.

use std::collections::VecDeque;
use std::time::Duration;

use crate::protocol::failed_request::Patience;
use crate::protocol::message::Mode;
use crate::protocol::step::{LockOptions, Ticket};
use crate::protocol::time::Instant;

/// For so many callers an empty line keeps room.
const MAX_KEPT_CALLERS: usize = 8;

/// Somebody who waits for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) ticket: Ticket,
    pub(crate) options: LockOptions,
    /// When it came; for a caller that rests, when that is over: nothing is claimed for it before. A caller that came before the
    /// store was last heard waits through an outage.
    pub(crate) entered: Instant,
    /// A claim of this node waited for the key or held it then.
    pub(crate) behind: bool,
    /// Failures in a row of a claim of its own.
    pub(crate) failed_claims: u32,
}

impl Caller {
    pub(crate) fn lease(&self) -> Duration {
        self.options.lease()
    }

    pub(crate) fn patience(&self) -> Patience {
        Patience {
            entered: self.entered,
            lease: self.lease(),
            waits: self.options.wait,
            behind: self.behind,
        }
    }
}

/// The callers that share the cohort's claim, in order of their tickets.
#[derive(Debug, Default)]
pub(crate) struct Line {
    callers: VecDeque<Caller>,
    /// How many of them would not wait. Kept, so that an answer to a long line costs no walk along it.
    impatient: usize,
    /// How many of them want to read. Kept for the same reason.
    readers: usize,
}

impl Line {
    /// Keeps room for a few.
    pub(crate) fn shrink(&mut self) {
        self.callers.shrink_to(MAX_KEPT_CALLERS);
    }

    pub(crate) fn len(&self) -> usize {
        self.callers.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    pub(crate) fn front(&self) -> Option<&Caller> {
        self.callers.front()
    }

    /// From the first to the last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Caller> {
        self.callers.iter()
    }

    /// Of those at its head who want the same, somebody would wait.
    pub(crate) fn has_patient(&self) -> bool {
        let (all, Some(head)) = (self.callers.len(), self.front()) else {
            return false;
        };
        if self.impatient == 0 || self.readers == 0 || self.readers == all {
            return self.impatient < all;
        }
        let mut alike = self
            .callers
            .iter()
            .take_while(|caller| caller.options.mode == head.options.mode);
        alike.any(|caller| caller.options.wait)
    }

    /// The mode that is wanted first.
    pub(crate) fn mode(&self) -> Option<Mode> {
        self.front().map(|head| head.options.mode)
    }

    fn count(&mut self, caller: &Caller) {
        self.impatient += usize::from(!caller.options.wait);
        self.readers += usize::from(caller.options.mode == Mode::Read);
    }

    fn uncount(&mut self, caller: &Caller) {
        self.impatient -= usize::from(!caller.options.wait);
        self.readers -= usize::from(caller.options.mode == Mode::Read);
    }

    pub(crate) fn has_impatient(&self) -> bool {
        self.impatient > 0
    }

    pub(crate) fn push(&mut self, caller: Caller) {
        self.count(&caller);
        self.callers.push_back(caller);
    }

    pub(crate) fn pop(&mut self) -> Option<Caller> {
        let caller = self.callers.pop_front()?;
        self.uncount(&caller);
        Some(caller)
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> bool {
        let at = self.callers.binary_search_by_key(&ticket, |caller| caller.ticket);
        let removed = at.ok().and_then(|at| self.callers.remove(at));
        removed.inspect(|caller| self.uncount(caller)).is_some()
    }

    /// Keeps whom `stays` says, and names everybody else to `leaves`.
    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&Caller) -> bool, mut leaves: impl FnMut(&Caller)) {
        let (mut impatient, mut readers) = (0, 0);
        self.callers.retain(|caller| {
            let stays = stays(caller);
            if !stays {
                leaves(caller);
            }
            impatient += usize::from(stays && !caller.options.wait);
            readers += usize::from(stays && caller.options.mode == Mode::Read);
            stays
        });
        (self.impatient, self.readers) = (impatient, readers);
    }
}
