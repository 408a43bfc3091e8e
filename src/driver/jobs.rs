//! The jobs of one node: their names, what runs, and how it is told to end.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
#[cfg(feature = "testing")]
use std::future::Future;
#[cfg(feature = "testing")]
use std::pin::Pin;
#[cfg(feature = "testing")]
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::driver::waiter::lock;
use crate::key::Key;
use crate::protocol::message::TickTime;

/// What the jobs of one node share.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// By their names; of those that know their schedule also what the scheduler calls them.
    pub(crate) names: Mutex<HashMap<Key, Option<Uuid>>>,
    /// No tick is pursued any more.
    pub(crate) closing: CancellationToken,
    /// What still runs is cancelled.
    pub(crate) cancelling: CancellationToken,
    /// What runs, by its fence, and how it is told.
    pub(crate) running: Mutex<HashMap<u64, RunEnd>>,
    /// The scheduler to which they were attached last: what it sets when it is shut down.
    pub(crate) engine: Mutex<Option<Arc<AtomicBool>>>,
    /// The zones of those that have one, for simulations of a scheduler that freezes offsets.
    #[cfg(feature = "testing")]
    pub(crate) zones: Mutex<HashMap<Uuid, chrono_tz::Tz>>,
    /// The jobs themselves, for tests that fire one.
    #[cfg(feature = "testing")]
    pub(crate) fired: Fired,
    /// The latest tick of each job that this node knows to be over.
    pub(crate) over: Mutex<HashMap<Key, TickTime>>,
    /// Every pursuit of a tick.
    pub(crate) pursuits: TaskTracker,
}

/// A job that a test can fire.
#[cfg(feature = "testing")]
pub(crate) trait Fire: Send + Sync {
    /// As if its scheduler had fired it for that tick. Resolves when it is over here, and says how.
    fn fire(self: Arc<Self>, mark: TickTime) -> Pin<Box<dyn Future<Output = &'static str> + Send>>;
}

/// Jobs that a test can fire, by their names.
#[cfg(feature = "testing")]
#[derive(Default)]
pub(crate) struct Fired(pub(crate) Mutex<HashMap<Key, Weak<dyn Fire>>>);

#[cfg(feature = "testing")]
impl std::fmt::Debug for Fired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(lock(&self.0).keys()).finish()
    }
}

impl Jobs {
    /// Takes the name, unless another job has it.
    pub(crate) fn take(&self, name: &Key) -> bool {
        match lock(&self.names).entry(name.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(None);
                true
            }
        }
    }

    /// The job of that name knows its schedule, and is `id` for the scheduler.
    pub(crate) fn knows_schedule(&self, name: &Key, id: Uuid) {
        if let Some(known) = lock(&self.names).get_mut(name) {
            *known = Some(id);
        }
    }

    pub(crate) fn has_schedule(&self, id: Uuid) -> bool {
        lock(&self.names).values().any(|known| *known == Some(id))
    }

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
