//! The jobs of one node: their names, their runs, and how runs are ended.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
#[cfg(feature = "testing")]
use std::future::Future;
#[cfg(feature = "testing")]
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::driver::waiter::lock;
use crate::key::Key;
use crate::protocol::message::TickTime;

/// The state that the jobs of one node share.
#[derive(Debug, Default)]
pub(crate) struct NodeJobs {
    /// The names of the jobs, and their ids in the scheduler.
    pub(crate) names: Mutex<HashMap<Key, Option<Uuid>>>,
    /// Cancelled when the node starts no more ticks.
    pub(crate) closing: CancellationToken,
    /// Cancelled when the node cancels its runs.
    pub(crate) cancelling: CancellationToken,
    /// The runs by fence, with the means to end them.
    pub(crate) running: Mutex<HashMap<u64, RunEnd>>,
    /// The flag that the latest attached scheduler sets when it is shut down.
    pub(crate) engine: Mutex<Option<Arc<AtomicBool>>>,
    /// The time zones of jobs, for simulations of a scheduler that freezes offsets.
    #[cfg(feature = "testing")]
    pub(crate) zones: Mutex<HashMap<Uuid, chrono_tz::Tz>>,
    /// The jobs themselves, for tests that fire a job.
    #[cfg(feature = "testing")]
    pub(crate) fired: Fired,
    /// The latest tick of each job that this node knows to be over.
    pub(crate) over: Mutex<HashMap<Key, TickTime>>,
    /// The tasks that tell the store that this node has a job no more.
    pub(crate) withdrawals: TaskTracker,
    /// The tasks that claim and run ticks.
    pub(crate) pursuits: TaskTracker,
    /// The functions that programs have for the ends of runs. They keep no lease.
    pub(crate) ends: TaskTracker,
    /// The threads of runs that block. A thread may outlive the task of its run, and keeps the lease.
    pub(crate) threads: TaskTracker,
}

/// A job that a test can fire.
#[cfg(feature = "testing")]
pub(crate) trait Fire: Send + Sync {
    /// Fires the job as its scheduler does for that tick. Resolves with the outcome when the tick is over on this
    /// node.
    fn fire(self: Arc<Self>, mark: TickTime) -> Pin<Box<dyn Future<Output = &'static str> + Send>>;
}

/// The jobs that a test can fire, by name.
#[cfg(feature = "testing")]
#[derive(Default)]
pub(crate) struct Fired(pub(crate) Mutex<HashMap<Key, Weak<dyn Fire>>>);

#[cfg(feature = "testing")]
impl std::fmt::Debug for Fired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(lock(&self.0).keys()).finish()
    }
}

/// The jobs of a node that look at the store at once when an operator acted on them.
#[derive(Debug, Default)]
pub(crate) struct JobNews(Mutex<HashMap<Key, Weak<Notify>>>);

impl JobNews {
    /// Returns what is notified when an operator acted on the job, and while it is kept.
    pub(crate) fn subscribe(&self, job: &Key) -> Arc<Notify> {
        let news = Arc::new(Notify::new());
        let mut known = lock(&self.0);
        known.retain(|_, news| news.strong_count() > 0);
        known.insert(job.clone(), Arc::downgrade(&news));
        news
    }

    /// Tells the job that an operator acted on it.
    pub(crate) fn tell(&self, job: &Key) {
        let known = lock(&self.0).get(job).and_then(Weak::upgrade);
        known.iter().for_each(|news| news.notify_one());
    }
}

impl NodeJobs {
    /// Reserves the name. Returns whether no other job has it.
    pub(crate) fn reserve(&self, name: &Key) -> bool {
        match lock(&self.names).entry(name.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(None);
                true
            }
        }
    }

    /// Notes that the job of that name has this id in the scheduler.
    pub(crate) fn note_id(&self, name: &Key, id: Uuid) {
        if let Some(known) = lock(&self.names).get_mut(name) {
            *known = Some(id);
        }
    }

    /// Returns whether a job has this id.
    pub(crate) fn has_id(&self, id: Uuid) -> bool {
        lock(&self.names).values().any(|known| *known == Some(id))
    }

    /// Begins no further tick.
    pub(crate) fn close(&self) {
        self.closing.cancel();
        self.pursuits.close();
        self.threads.close();
        self.ends.close();
        self.withdrawals.close();
    }

    /// Resolves when no run goes on, after a [`close`](Self::close).
    pub(crate) async fn ended(&self) {
        self.pursuits.wait().await;
        self.threads.wait().await;
    }

    /// Returns whether a run goes on.
    pub(crate) fn has_runs(&self) -> bool {
        !(self.pursuits.is_empty() && self.threads.is_empty())
    }

    /// Cancels all runs. They are told from here, not from their own tasks, because a job may block its task while
    /// other tasks work for it.
    pub(crate) fn cancel(&self) {
        self.cancelling.cancel();
        let running: Vec<_> = lock(&self.running).values().cloned().collect();
        running.iter().for_each(RunEnd::drain);
    }
}

/// The end of a run, as the run and its helper tasks learn of it.
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

    /// Ends the run while its lease is still held, because the node drains. A run that ended before was not drained.
    pub(crate) fn drain(&self) {
        if self.token.is_cancelled() {
            return;
        }
        // Set before the token is cancelled, so that a woken task finds the reason.
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
    fn a_run_that_ended_before_the_drain_is_not_drained() {
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
