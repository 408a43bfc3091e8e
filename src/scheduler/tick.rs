//! What a job is given: which tick it runs, and what proves that it may.

use std::fmt;
use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_util::sync::CancellationToken;

use crate::driver::jobs::RunEnd;
use crate::error::LostCause;
use crate::key::Key;
use crate::primitives::guard::Lease;
use crate::protocol::message::{Fence, TickTime};

/// One run of one tick of a job. Cheap to clone.
#[derive(Clone)]
pub struct Tick {
    pub(crate) lease: Lease,
    pub(crate) mark: TickTime,
    pub(crate) attempt: u32,
    pub(crate) end: RunEnd,
}

impl Tick {
    /// The job's name.
    pub fn job(&self) -> &Key {
        self.lease.key()
    }

    /// The nominal fire time, by the job's own cron expression: the same on every node, however late it fired. Use it
    /// instead of "now" for everything that the run is about.
    pub fn nominal(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.mark.0)
    }

    /// The nominal fire time in seconds since the Unix epoch.
    pub fn nominal_unix(&self) -> u64 {
        self.mark.0 / 1000
    }

    /// Larger than that of every run of this job before it. Send it with each write and let the resource refuse
    /// smaller ones.
    pub fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// 1, or more when an earlier winner of this tick died or was cancelled before its end. A job must be able to be
    /// run again from the beginning.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The run still is the only one.
    pub fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    /// Waits until the run is to end: its lease is lost, the node drains and the timeout is over
    /// ([`LostCause::Shutdown`]), or the job is done ([`LostCause::Released`]). In the first two cases the job's future
    /// is dropped at its next await, so this is for what the job has spawned elsewhere: that is told even while the job
    /// blocks its own task.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + Sync + 'static {
        let (end, lease) = (self.end.clone(), self.lease.clone());
        async move {
            end.token().cancelled().await;
            match lease.over() {
                // A drain gives the lease back when the job's future is gone, so that comes after it or not yet.
                None | Some(LostCause::Released) if end.is_drained() => LostCause::Shutdown,
                over => over.unwrap_or(LostCause::Released),
            }
        }
    }

    /// The same as a token: cancelled when the run is to end. Each call makes one of its own, so that whoever cancels theirs
    /// tells nobody else.
    pub fn lost_token(&self) -> CancellationToken {
        self.end.token().child_token()
    }

    /// The lease behind it.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick")
            .field("job", self.job())
            .field("nominal_unix", &self.nominal_unix())
            .field("attempt", &self.attempt)
            .field("fence", &self.fence().get())
            .finish()
    }
}
