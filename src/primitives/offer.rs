//! Which of a layer, its handler and the tasks of handlers has the guard that a layer acquired.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The guard of a layer, as one number. The layer has the guard, and so do tasks that [keep](Self::keep) it; the last of them
/// releases it. A handler [takes](Self::take) the guard from all of them, once.
#[derive(Debug, Default)]
pub(crate) struct Offer(AtomicUsize);

impl Offer {
    /// The layer has the guard.
    const LAYER: usize = 1;
    /// A handler has taken the guard.
    const TAKEN: usize = 2;
    /// One task keeps the guard; the number of tasks is counted in this unit.
    const TASK: usize = 4;

    /// Gives the guard to the layer.
    pub(crate) fn open(&self) {
        self.0.store(Self::LAYER, Ordering::Release);
    }

    /// Adds a task that keeps the guard. Returns false, and adds nothing, if neither a layer nor a task has the guard.
    pub(crate) fn keep(&self) -> bool {
        self.update(|state| (state > 0).then_some(state + Self::TASK))
            .is_some()
    }

    /// Takes the guard from the layer and the tasks, and returns whether one of them had it.
    pub(crate) fn take(&self) -> bool {
        self.update(|state| (state > 0).then_some(Self::TAKEN)).is_some()
    }

    /// Returns whether a handler has taken the guard.
    pub(crate) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::TAKEN
    }

    /// Ends the part of the layer. Returns whether the layer must release the guard: no handler has taken it, and no task keeps it.
    pub(crate) fn close(&self) -> bool {
        let before = self.update(|state| Some(state & !Self::LAYER));
        before.is_some_and(|before| before < Self::TASK)
    }

    /// Ends the part of one task. Returns whether the task must release the guard: it was the last to have it.
    pub(crate) fn leave(&self) -> bool {
        self.update(|state| Some(state - Self::TASK)) == Some(Self::TASK)
    }

    /// Changes the state, unless the guard is taken or `change` returns `None`. Returns the state before.
    fn update(&self, change: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        let change = |state| if state == Self::TAKEN { None } else { change(state) };
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        before.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Offer {
        let offer = Offer::default();
        offer.open();
        offer
    }

    #[test]
    fn the_last_of_layer_and_tasks_releases_the_guard() {
        let offer = open();
        assert!(offer.close());
        let offer = open();
        assert!(offer.keep() && offer.keep());
        assert!(!offer.leave() && !offer.close());
        assert!(offer.keep(), "a task has the guard");
        assert!(!offer.leave() && offer.leave());
        let offer = open();
        assert!(offer.keep() && !offer.leave() && offer.close());
    }

    #[test]
    fn a_guard_that_is_taken_is_released_by_its_taker_only() {
        for layer_ends_first in [false, true] {
            let offer = open();
            assert!(offer.keep());
            if layer_ends_first {
                assert!(!offer.close());
            }
            assert!(offer.take() && offer.is_taken() && !offer.take());
            assert!(!offer.keep() && !offer.close() && !offer.leave() && offer.is_taken());
        }
    }

    #[test]
    fn a_guard_that_no_layer_has_is_neither_kept_nor_taken() {
        let offer = Offer::default();
        assert!(!offer.keep() && !offer.take() && !offer.is_taken());
        let offer = open();
        assert!(offer.close() && !offer.keep() && !offer.take());
        let offer = open();
        assert!(offer.keep() && !offer.close() && offer.leave());
        assert!(!offer.keep() && !offer.take());
    }
}
