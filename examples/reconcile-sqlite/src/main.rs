//! A nightly reconciliation on SQLite. A kill and a deploy interrupt it, and it books each entry exactly once.
//!
//!     cargo run -p tenure-reconcile-sqlite                                  # starts a redis-server
//!     TENURE_URL=redis://127.0.0.1/ cargo run -p tenure-reconcile-sqlite    # on that Redis
//!
//! Three replicas, each a process, schedule the job. Each transaction stores a batch of bookings, the progress and the fence.
//! `stage.rs` has the replicas, the kill, the deploy and the table. `ledger.rs` is the database.
//!
//! The progress is in the database, not in a checkpoint of the tick (`Tick::checkpoint`). A run that dies between a booking and
//! its checkpoint would leave a checkpoint that does not match the bookings. The row is needed for the fence in any case. A
//! checkpoint suits work whose steps may run twice, or whose results are not in a database.

mod ledger;
mod stage;

use std::error::Error;
use std::time::Duration;

use ledger::Ledger;
use tenure::{Locks, Tick};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_cron_scheduler::JobScheduler;

type BoxError = Box<dyn Error + Send + Sync>;

/// Short, so that a takeover is quick to watch. The default of 30 s suits most jobs.
const LEASE: Duration = Duration::from_secs(2);
/// The time of other work per batch, such as a call to a partner.
const BATCH_TAKES: Duration = Duration::from_millis(150);

/// One run of the job: books all entries that no earlier run has booked. The stage reads what it prints.
async fn reconcile(tick: Tick, path: String) -> Result<(), BoxError> {
    let mut ledger = Ledger::open(&path)?;
    let from = ledger.resume(&tick)?;
    println!("begins {} {} {from}", tick.attempt(), tick.fence());
    while let Some(upto) = ledger.book_batch(&tick)? {
        println!("booked {} {upto}", tick.attempt());
        // If the lease is lost, or the node drains, the run ends at an await such as this one.
        sleep(BATCH_TAKES).await;
    }
    println!("ends");
    Ok(())
}

/// Runs one replica until SIGTERM.
async fn replica(url: &str, path: String, expression: &str) -> Result<(), BoxError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let locks = Locks::connect(url).await?;
    let scheduler = JobScheduler::new().await?;
    // In your service: `locks.cron("reconcile", "0 0 0 * * *").timezone("Europe/Berlin")`.
    let job = locks.cron("reconcile", expression).lease(LEASE);
    let job = job.run(move |tick| reconcile(tick, path.clone()))?;
    locks.add_job(&scheduler, job).await?;
    scheduler.start().await?;
    println!("ready");
    terminate.recv().await;
    locks.drain(Duration::from_secs(1)).await?;
    locks.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    stage::play().await
}
