//! Why a job is refused, and why a drain fails.

use tokio_cron_scheduler::JobSchedulerError;
use uuid::Uuid;

use crate::error::OptionsError;
use crate::key::Key;

/// The error of a drain: jobs did not end in time.
///
/// ```
/// # #[tokio::main] async fn main() {
/// # use std::time::Duration;
/// # let locks = tenure::Locks::memory();
/// use tenure::scheduler::StillRunning;
///
/// if let Err(StillRunning { jobs, .. }) = locks.drain(Duration::from_secs(20)).await {
///     eprintln!("{jobs} jobs reach no await: the process ends, and their leases end with it");
/// }
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "runs that were cancelled and have reached no await: {jobs}. A lease that was not revoked is kept until its run ends"
)]
#[non_exhaustive]
pub struct StillRunning {
    /// The number of these jobs.
    pub jobs: usize,
}

/// Why a job cannot be leased.
///
/// ```
/// # let locks = tenure::Locks::memory();
/// use tenure::scheduler::JobError;
///
/// let first = locks.cron("reconcile", "0 0 0 * * *").run(|_| async {});
/// match locks.cron("reconcile", "0 0 1 * * *").run(|_| async {}) {
///     Err(JobError::Duplicate { name, .. }) => println!("another job is called {name}"),
///     Err(JobError::Unfit { why, .. }) => println!("correct the expression or the zone: {why}"),
///     job => drop(job.expect("it is a job")),
/// }
/// # drop(first);
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// This process already has a job with that name. If two jobs shared a name, each would run the other's ticks.
    #[error("this process already has a job called `{name}`: give each job its own name")]
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
        /// The maximum length in bytes.
        limit: usize,
    },
    /// The lease is out of range.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The expression, the zone or the period cannot be used, or the store serves no jobs.
    #[error("the job{} cannot be leased: {why}", of(name))]
    #[non_exhaustive]
    Unfit {
        /// The job's name; `None` from [`explain`](super::explain).
        name: Option<Key>,
        /// The reason.
        why: String,
    },
    /// The job is not leased: neither `cron` nor `every` of these `Locks` made it.
    #[error(
        "the job {id} is not leased, and would run on every node: make it by `Locks::cron` or `Locks::every` of the same `Locks`, or add it by `JobScheduler::add` if every node must run it"
    )]
    #[non_exhaustive]
    NotLeased {
        /// The job.
        id: Uuid,
    },
    /// The scheduler's storage has jobs of other processes. Each scheduler would fire jobs that it has no code for.
    #[error(
        "the scheduler's storage is shared with other processes: it has the job {foreign}, and this process has no code \
         for it. Of several processes only one fires what all have: give each scheduler a storage of its own"
    )]
    #[non_exhaustive]
    SharedStorage {
        /// A job of another process.
        foreign: Uuid,
    },
    /// The scheduler did not take the job.
    #[error("tokio-cron-scheduler did not take the job: {0}")]
    Scheduler(#[source] JobSchedulerError),
}

impl JobError {
    pub(crate) fn unfit(name: &Key, why: String) -> Self {
        JobError::Unfit {
            name: Some(name.clone()),
            why,
        }
    }
}

fn of(name: &Option<Key>) -> String {
    name.as_ref().map(|name| format!(" `{name}`")).unwrap_or_default()
}
