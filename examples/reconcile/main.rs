//! Three replicas schedule the same cron job. One of them runs each tick, and a table shows which.
//!
//!     cargo run --example reconcile                                  # three schedulers in this process, for 12 s
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example reconcile    # three processes on a Redis
//!
//! With `-- --kill-winner` the replica that runs the fourth tick is killed in the middle of it. Another replica runs that tick
//! again, as attempt 2 with a larger fence. In memory the replica is shut down, and gives its lease back.
//!
//! `stage.rs` has the replicas, the kill and the table.

mod stage;

use std::error::Error;
use std::time::Duration;

use tenure::{Locks, Tick};
use tokio::time::sleep;
use tokio_cron_scheduler::JobScheduler;

type BoxError = Box<dyn Error + Send + Sync>;

/// Short, so that a takeover is quick to watch. The default of 30 s suits most jobs.
const LEASE: Duration = Duration::from_secs(2);

/// One run of the job, which reports its start and its end.
async fn reconcile(tick: Tick, report: impl Fn(&str, &Tick)) {
    report("start", &tick);
    // The work. If the lease is lost, the run ends at an await such as this one.
    sleep(Duration::from_millis(300)).await;
    report("end", &tick);
}

/// Starts the scheduler of a replica, with the job.
async fn start(
    locks: &Locks,
    report: impl Fn(&str, &Tick) + Clone + Send + Sync + 'static,
) -> Result<JobScheduler, BoxError> {
    let scheduler = JobScheduler::new().await?;
    let job = locks.cron("reconcile", "* * * * * *").lease(LEASE);
    let job = job.run(move |tick| reconcile(tick, report.clone()))?;
    locks.add_job(&scheduler, job).await?;
    scheduler.start().await?;
    Ok(scheduler)
}

/// Ends a replica, in the order in which a service must end: first the jobs, then the scheduler.
async fn end(locks: &Locks, mut scheduler: JobScheduler) -> Result<(), BoxError> {
    locks.drain(Duration::from_secs(1)).await?;
    scheduler.shutdown().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    stage::play().await
}
