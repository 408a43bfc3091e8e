//! The handle that users' values hold. When the last handle of a node is dropped, the driver finishes its work and
//! ends.

use std::fmt;
use std::sync::Arc;
#[cfg(feature = "scheduler")]
use std::time::Duration;

#[cfg(feature = "scheduler")]
use tokio::time::timeout;
#[cfg(feature = "tower")]
use tokio_util::task::TaskTracker;

#[cfg(feature = "scheduler")]
use crate::driver::jobs::NodeJobs;
use crate::driver::node::Node;
use crate::error::{ClosedCause, Error};
use crate::key::Key;
use crate::options::Options;

/// A handle of a node.
#[derive(Clone)]
pub(crate) struct Handle(Arc<HandleInner>);

struct HandleInner {
    node: Arc<Node>,
    #[cfg(feature = "scheduler")]
    jobs: Arc<NodeJobs>,
    /// Tasks that continue even if their caller leaves.
    #[cfg(feature = "tower")]
    tasks: TaskTracker,
}

impl Drop for HandleInner {
    fn drop(&mut self) {
        if !self.node.is_forked() {
            self.node.abandon();
        }
    }
}

impl Handle {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Handle(Arc::new(HandleInner {
            node,
            #[cfg(feature = "scheduler")]
            jobs: Arc::default(),
            #[cfg(feature = "tower")]
            tasks: TaskTracker::new(),
        }))
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    /// Refuses a call about `key` in a forked child, before any mutex is taken: the child may have inherited the
    /// mutex locked.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked child.
    #[inline]
    pub(crate) fn not_forked(&self, key: &Key) -> Result<(), Error> {
        if self.node().is_forked() {
            return Err(Error::Closed {
                key: key.clone(),
                why: ClosedCause::Forked,
            });
        }
        Ok(())
    }

    /// Gives up everything but the ticks of runs that go on.
    pub(crate) fn close(&self) {
        #[cfg(feature = "scheduler")]
        self.node().close(self.jobs().has_runs());
        #[cfg(not(feature = "scheduler"))]
        self.node().close(false);
    }

    /// Returns the jobs of this node.
    #[cfg(feature = "scheduler")]
    pub(crate) fn jobs(&self) -> &Arc<NodeJobs> {
        &self.0.jobs
    }

    /// Waits until the store was told that this node has no jobs, but no longer than that. Runs on the driver, which has timers: the
    /// caller's runtime may have none, or be blocked. A store without a driver is told at once.
    #[cfg(feature = "scheduler")]
    pub(crate) async fn jobs_withdrawn(&self, at_most: Duration) {
        let withdrawals = self.jobs().withdrawals.clone();
        if let Some(runtime) = self.node().runtime.get().filter(|_| !withdrawals.is_empty()) {
            let withdrawn = async move { timeout(at_most, withdrawals.wait()).await };
            let _ = runtime.spawn(withdrawn).await;
        }
    }

    /// Returns the tasks that continue even if their caller leaves.
    #[cfg(feature = "tower")]
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.node.options
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.node().id, f)
    }
}
