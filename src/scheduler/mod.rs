//! Cron jobs that run once per tick, on the node that wins the lease.
//!
//! Every replica schedules the job; one runs each tick. A plain lock does not give that: replicas fire at different
//! moments, and who comes when the first has released runs the tick again. Here every run has an identity, its nominal
//! fire time, and the store lets each be won once, by its own clock and a mark that only grows.
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::{Locks, Tick};
//! use tokio_cron_scheduler::{Job, JobScheduler};
//!
//! async fn reconcile(tick: Tick) {
//!     println!("{} attempt {} fence {}", tick.nominal_unix(), tick.attempt(), tick.fence());
//! }
//!
//! let locks = Locks::memory(); // or Locks::redis("redis://127.0.0.1/").await?
//! let scheduler = JobScheduler::new().await?;
//! scheduler.add(Job::new_async("0 0 0 * * *", locks.job("reconcile", reconcile)?)?).await?;
//! scheduler.start().await?;
//! # Ok(()) }
//! ```
//!
//! # What happens
//!
//! | | |
//! |---|---|
//! | several nodes fire | one wins the tick and runs it; the others stand by until the run has ended |
//! | the winner dies, stops, or loses its lease | a standby runs the tick again, as the next attempt with a larger fence, within a lease, the margin and a timer |
//! | a node's clock is ahead | it is told how early it is, and waits |
//! | a node's clock is behind, or it comes late | the tick is over, and it runs nothing |
//! | the job is still running when the next tick comes | that tick is skipped, and an event says so |
//! | the job fails or panics | the tick has ended, and the next one comes as usual |
//! | the store is away | nobody runs until it is back; then each node pursues the newest tick that it has seen, which is run once |
//! | the node drains | it claims nothing; what runs is cancelled after the timeout, and handed to a standby |
//!
//! A run that lost its lease is told, and its future dropped. A job must bear being run again from its beginning, and
//! should [fence](crate::Tick::fence) what it writes.
//!
//! The expression is read in UTC. A job with another offset is refused, with an event; a zone whose offset happens to be
//! zero when the job is made cannot be told from UTC.
//!
//! # Outcomes
//!
//! How a tick ended for a node, as the event `tick` and the metric `tenure_ticks_total` call it:
//!
//! | outcome | |
//! |---|---|
//! | `done` | run here, to its end |
//! | `failed`, `panicked` | run here, and it said so, or panicked, when it was dropped included. It is not run again |
//! | `elsewhere` | another node ran it, or this one does already |
//! | `skipped` | an earlier tick was still running, here or elsewhere, so this one is never run |
//! | `missed` | the store could not be reached before the next tick came |
//! | `drained` | this node drains. What it ran was cancelled for another node to take over |
//! | `refused` | the job cannot be run as it is; an event says why |
//!
//! # What tokio-cron-scheduler does
//!
//! Version 0.15.1, and what a leased job makes of it:
//!
//! | it | |
//! |---|---|
//! | looks every 500 ms, at a phase of its own in each process | which replica comes first or last makes no difference |
//! | tells a job no nominal time | [`Tick::nominal`](crate::Tick::nominal) |
//! | starts the next run beside one that has not ended | that tick is skipped |
//! | fires once, late, for all the ticks that a stopped process slept through | the newest is run, unless another replica has done so |
//! | fires again and again when its own storage cannot be written, and after a restart with an older clock | the tick is over |
//! | never runs a job again whose closure panicked | jobs are called elsewhere, and a panic ends its tick |
//! | loses what fires when more than 256 jobs do so at once on a current-thread runtime | another replica runs those; none loses any with [`JobScheduler::new_with_channel_size`] of twice the number of jobs |
//! | fires up to 500 ms after its `shutdown` | [`drain`](Locks::drain) first, and it fires in vain |
//! | makes the first tick of a [`JobBuilder`](tokio_cron_scheduler::JobBuilder) with both a day of the month and a day of the week where one matches, all others where both do | it is the tick before, by the rule of all others, and over if it was run: make such jobs with `Job::new_async` |
//! | freezes the offset of a zone, and stops repeated jobs for good after a delay | both are refused, with an event |

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio_cron_scheduler::JobScheduler;
use uuid::Uuid;

use crate::error::OptionsError;
use crate::key::Key;
use crate::locks::Locks;
use crate::scheduler::gate::Gate;
use crate::scheduler::job::JobFuture;
use crate::scheduler::policy::JobOutput;
use crate::scheduler::tick::Tick;

mod gate;
mod job;
pub mod policy;
pub mod tick;

/// What a cancelled job has to come to an await and be given back, however short the timeout of a drain.
const GRACE: Duration = Duration::from_secs(1);

/// The lease of a job that says nothing of it. Renewed while the job runs, so it is not a limit on its length.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

impl Locks {
    /// Makes of `work` what [`Job::new_async`](tokio_cron_scheduler::Job::new_async) takes: it is called on the node
    /// that wins the tick, and nowhere else. The name is the job's identity in the store; all replicas use the same. The
    /// lease lasts 30 s ([`DEFAULT_LEASE`]), whatever the [`Builder`](crate::Builder::lease) says, and is renewed while
    /// the job runs.
    ///
    /// # Errors
    /// [`JobError`] when the name is taken in this process or unfit.
    pub fn job<F, Fut>(
        &self,
        name: impl Into<Key>,
        work: F,
    ) -> Result<impl FnMut(Uuid, JobScheduler) -> JobFuture + Send + Sync + 'static, JobError>
    where
        F: Fn(Tick) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: JobOutput + Send,
    {
        self.job_with(name, DEFAULT_LEASE, work)
    }

    /// The same with a lease of its own. A shorter one lets a standby take over sooner when the winner dies.
    ///
    /// # Errors
    /// As [`job`](Self::job), and when the lease makes no sense.
    pub fn job_with<F, Fut>(
        &self,
        name: impl Into<Key>,
        lease: Duration,
        work: F,
    ) -> Result<impl FnMut(Uuid, JobScheduler) -> JobFuture + Send + Sync + 'static, JobError>
    where
        F: Fn(Tick) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: JobOutput + Send,
    {
        let (name, options) = (name.into(), self.handle().options());
        let length = name.as_bytes().len();
        if length == 0 || length > options.max_key {
            return Err(JobError::Name {
                length,
                limit: options.max_key,
                name,
            });
        }
        options.term(lease)?;
        let gate =
            Gate::new(self.handle().clone(), name.clone(), lease).ok_or(JobError::Duplicate { name })?;
        Ok(job::closure(gate, work))
    }

    /// Ends the jobs of this node: claims no tick from now on, waits up to `timeout` for what runs, cancels the rest,
    /// and gives each tick back when its job's future has ended. Call it before the scheduler's own shutdown, after
    /// which that may fire once more.
    ///
    /// # Errors
    /// [`StillRunning`] when a cancelled job has not come to an await within `timeout` once more, or a second if that is
    /// longer. It keeps its lease.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn drain(&self, timeout: Duration) -> Result<(), StillRunning> {
        let jobs = self.handle().jobs().clone();
        jobs.closing.cancel();
        jobs.pursuits.close();
        if tokio::time::timeout(timeout, jobs.pursuits.wait()).await.is_ok() {
            return Ok(());
        }
        jobs.cancel();
        let ended = tokio::time::timeout(timeout.max(GRACE), jobs.pursuits.wait()).await;
        match jobs.pursuits.len() {
            jobs if ended.is_err() && jobs > 0 => Err(StillRunning { jobs }),
            _ => Ok(()),
        }
    }
}

/// Jobs did not end when they were told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{jobs} jobs were cancelled but have not come to an await: they keep their leases until they do")]
#[non_exhaustive]
pub struct StillRunning {
    /// How many.
    pub jobs: usize,
}

/// Why a job cannot be leased.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// This process has a job of that name. Each needs a name of its own, or they would run each other's ticks.
    #[error("this process has a job called `{name}` already: give each job a name of its own")]
    #[non_exhaustive]
    Duplicate {
        /// The name.
        name: Key,
    },
    /// The name is empty or too long.
    #[error("a job's name has 1 to {limit} bytes, this one has {length}: `{name}`")]
    #[non_exhaustive]
    Name {
        /// The name.
        name: Key,
        /// Its length in bytes.
        length: usize,
        /// The longest that is allowed.
        limit: usize,
    },
    /// The lease makes no sense.
    #[error(transparent)]
    Options(#[from] OptionsError),
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("name", self.name())
            .finish_non_exhaustive()
    }
}
