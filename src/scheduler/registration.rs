//! The name of a job in this process, from its creation until the scheduler removes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

use crate::driver::jobs::NodeJobs;
use crate::driver::waiter::lock;
use crate::key::Key;

/// Lives as long as the scheduler knows the job. When it ends, the job's name is free, and the standbys of this node
/// stop.
pub(crate) struct JobRegistration {
    jobs: Arc<NodeJobs>,
    name: Key,
    is_over: AtomicBool,
    token: CancellationToken,
}

impl JobRegistration {
    /// Registers the name for a job. Returns `None` if another job of this process has the name.
    pub(super) fn new(jobs: Arc<NodeJobs>, name: Key) -> Option<JobRegistration> {
        let is_new = jobs.reserve(&name);
        is_new.then(|| JobRegistration {
            jobs,
            name,
            is_over: AtomicBool::new(false),
            token: CancellationToken::new(),
        })
    }

    /// Returns the token that is cancelled when the job is removed.
    pub(super) fn removal_token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Ends the registration, once: later the name may belong to another job.
    pub(crate) fn end(&self) {
        if !self.is_over.swap(true, Ordering::SeqCst) {
            lock(&self.jobs.names).remove(&self.name);
            self.token.cancel();
        }
    }
}

impl Drop for JobRegistration {
    fn drop(&mut self) {
        self.end();
    }
}
