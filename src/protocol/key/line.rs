//! The local queue of a key: the callers of this process that wait, in the *line*.

use std::collections::VecDeque;
use std::time::Duration;

use crate::protocol::failed_request::Patience;
use crate::protocol::message::Mode;
use crate::protocol::step::{LockOptions, Ticket};
use crate::protocol::time::Instant;

/// The number of callers that an empty line keeps memory for.
const MAX_KEPT_CALLERS: usize = 8;

/// A caller that waits for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) ticket: Ticket,
    pub(crate) options: LockOptions,
    /// When the caller arrived. For a caller that rests, when its rest ends: nothing is claimed for it before. A
    /// caller that arrived before the store was last heard waits through an outage.
    pub(crate) entered: Instant,
    /// A claim of this node waited for the key or held it when the caller arrived.
    pub(crate) behind: bool,
    /// How many claims of the caller's own failed in a row.
    pub(crate) failed_claims: u32,
}

impl Caller {
    pub(crate) fn lease(&self) -> Duration {
        self.options.lease()
    }

    /// Returns whether the caller still waits at that time.
    pub(crate) fn waits_until(&self, time: Instant) -> bool {
        self.options.wait && self.options.until.is_none_or(|until| time <= until)
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

/// The local queue: the callers that share one claim of their node, in order of their tickets.
#[derive(Debug, Default)]
pub(crate) struct Line {
    callers: VecDeque<Caller>,
    /// The number of callers that do not wait. Kept up to date, so that an answer to a long line costs no walk along
    /// it.
    impatient: usize,
    /// The number of callers that want to read. Kept for the same reason.
    readers: usize,
}

impl Line {
    /// Frees memory, except for a few callers.
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

    /// Returns the callers from first to last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Caller> {
        self.callers.iter()
    }

    /// Returns whether a caller at the head waits. The head is all callers before the first one with another mode.
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

    /// Returns the mode that the first caller wants.
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

    /// Removes the callers for which `stays` returns false, and passes each of them to `leaves`.
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
