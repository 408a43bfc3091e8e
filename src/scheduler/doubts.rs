//! Ticks of which it is not known whether another node ran them.

use std::collections::BTreeSet;

use crate::protocol::message::TickTime;

/// So many ticks are in doubt at most. The oldest beyond that are told of together.
const MOST: usize = 128;

/// Ticks of one job that this node has not run, while nothing is known of other nodes.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    pub(super) ticks: BTreeSet<TickTime>,
    /// A task asks the store about them.
    pub(super) is_asked: bool,
    /// There were more, before the oldest of them.
    pub(super) is_cut: bool,
}

impl Doubts {
    /// Adds a tick. True when its caller has to ask.
    pub(super) fn add(&mut self, tick: TickTime) -> bool {
        self.ticks.insert(tick);
        if self.ticks.len() > MOST {
            self.ticks.pop_first();
            self.is_cut = true;
        }
        !std::mem::replace(&mut self.is_asked, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_in_doubt_are_bounded_and_one_task_asks() {
        let mut doubts = Doubts::default();
        assert!(doubts.add(TickTime(1)));
        for ms in 2..1_000 {
            assert!(!doubts.add(TickTime(ms)));
        }
        assert!(doubts.is_cut && doubts.ticks.len() == MOST);
        assert_eq!(doubts.ticks.last(), Some(&TickTime(999)));
    }
}
