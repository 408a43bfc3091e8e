//! The jobs of one node: their names, what runs, and how it is told to end.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::driver::waiter::lock;
use crate::key::Key;

/// What the jobs of one node share.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub(crate) names: Mutex<HashSet<Key>>,
    /// No tick is pursued any more.
    pub(crate) closing: CancellationToken,
    /// What still runs is cancelled.
    pub(crate) cancelling: CancellationToken,
    /// What runs, by its fence, and how it is told.
    pub(crate) running: Mutex<HashMap<u64, RunEnd>>,
    /// Every pursuit of a tick.
    pub(crate) pursuits: TaskTracker,
}

impl Jobs {
    /// Cancels what runs. Each run is told from here, not from its own task, which a job may be blocking while others
    /// work for it.
    pub(crate) fn cancel(&self) {
        self.cancelling.cancel();
        let running: Vec<_> = lock(&self.running).values().cloned().collect();
        running.iter().for_each(RunEnd::drain);
    }
}

/// How a run, and what works for it, is told of its end.
#[derive(Debug, Clone)]
pub(crate) struct RunEnd {
    token: CancellationToken,
    drained: Arc<AtomicBool>,
}

#[cfg_attr(not(feature = "scheduler"), allow(dead_code))]
impl RunEnd {
    /// `token` is cancelled with the lease.
    pub(crate) fn new(token: CancellationToken) -> Self {
        RunEnd {
            token,
            drained: Arc::default(),
        }
    }

    /// The node drains: the run ends while its lease is still held. One that has ended before was not drained.
    pub(crate) fn drain(&self) {
        if self.token.is_cancelled() {
            return;
        }
        // Before the token, so that whoever it wakes finds the reason.
        self.drained.store(true, Ordering::Release);
        self.token.cancel();
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Acquire)
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_ended_before_the_drain_was_not_drained() {
        let (ended, runs) = (
            RunEnd::new(CancellationToken::new()),
            RunEnd::new(CancellationToken::new()),
        );
        ended.token().cancel();
        ended.drain();
        runs.drain();
        assert!(!ended.is_drained());
        assert!(runs.is_drained() && runs.token().is_cancelled());
    }
}
