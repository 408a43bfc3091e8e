//! What happened to the job at the weekend? On Monday an operator reads it, and runs the job for the tick that failed.
//!
//!     cargo run -p tenure-monday    # starts a redis-server of its own, because it stops it
//!
//! Three replicas, each a process, schedule the job. `stage.rs` has the weekend: a crash, a failure, a run that is too long, a
//! pause, and an outage of Redis. Then it prints what `tenure jobs` says.

mod stage;

use std::error::Error;
use std::time::Duration;

use tenure::scheduler::{EndedRun, RunOutcome};
use tenure::{Locks, Tick};
use tokio_cron_scheduler::JobScheduler;

type BoxError = Box<dyn Error + Send + Sync>;

/// One run of the job. It goes by the nominal time, so a run that is triggered for an earlier tick does the work of that tick.
async fn reconcile(tick: Tick) -> Result<(), String> {
    if let Some(act) = tick.triggered() {
        println!(
            "{} wants the work of {}: {}",
            act.by,
            tick.nominal_unix(),
            act.why
        );
    }
    stage::book(tick.nominal_unix()).await
}

/// Called on the node of a run, after the store was told. For the absence of a run this is no alarm: `tenure jobs check` is one.
async fn tell(end: EndedRun) {
    if end.outcome != RunOutcome::Done {
        println!(
            "{}: {} on attempt {}: {}",
            end.job,
            end.outcome.word(),
            end.attempt,
            end.text
        );
    }
}

/// Runs one replica until it is killed.
async fn replica(url: &str, name: &str) -> Result<(), BoxError> {
    let locks = Locks::builder().node_name(name).connect(url).await?;
    let scheduler = JobScheduler::new().await?;
    // In your service: `locks.cron("reconcile", "0 0 0 * * *").timezone("Europe/Berlin")`, and the lease of 30 s.
    let job = locks.every("reconcile", Duration::from_secs(2));
    let job = job.lease(Duration::from_secs(1)).on_end(tell);
    locks.add_job(&scheduler, job.run(reconcile)?).await?;
    scheduler.start().await?;
    std::future::pending().await
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    stage::play().await
}
