//! The jobs of one node: their names, what runs, and how it is told to end.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

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
    pub(crate) running: Mutex<HashMap<u64, CancellationToken>>,
    /// Every pursuit of a tick.
    pub(crate) pursuits: TaskTracker,
}

impl Jobs {
    /// Cancels what runs. Each run is told from here, not from its own task, which a job may be blocking while others
    /// work for it.
    pub(crate) fn cancel(&self) {
        self.cancelling.cancel();
        let running: Vec<_> = lock(&self.running).values().cloned().collect();
        running.iter().for_each(CancellationToken::cancel);
    }
}
