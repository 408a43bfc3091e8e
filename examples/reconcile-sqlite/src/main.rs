//! A nightly reconciliation on SQLite. A kill and a deploy interrupt it, and it books each entry exactly once.
//!
//!     cargo run -p tenure-reconcile-sqlite
//!
//! Three replicas, each a process, schedule the job. The job books the day's entries in batches. Each transaction stores a
//! batch, the progress and the fence. The first replica to run the job is killed, and another one continues. Then a new
//! release replaces the replicas one by one, and the new release finishes the job. At the end a table shows the runs, and the
//! program checks that each entry was booked once.
//!
//! The progress is in the database, not in a checkpoint of the tick (`Tick::checkpoint`). A run that dies between a booking and
//! its checkpoint would leave a checkpoint that does not match the bookings. The row is needed for the fence in any case. A
//! checkpoint suits work whose steps may run twice, or whose results are not in a database.
//!
//! The program starts its own redis-server, or uses the one that `TENURE_URL` names.

#![allow(
    clippy::disallowed_methods,
    reason = "a program reads the clock, and the demonstration waits"
)]
#![allow(
    unreachable_pub,
    reason = "a program exports nothing, and `server` is included elsewhere"
)]

mod ledger;
#[path = "../../../tests/live/server.rs"]
mod server;
mod show;

use std::error::Error;
use std::time::Duration;

use tenure::{Locks, Tick};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use tokio_cron_scheduler::JobScheduler;

use crate::ledger::Ledger;

/// Short, so that a takeover is quick to watch. The default of 30 s suits most jobs.
const LEASE: Duration = Duration::from_secs(2);
/// The time of other work per batch, such as a call to a partner.
const BATCH_TAKES: Duration = Duration::from_millis(150);

/// One run of the job: books all entries that no earlier run has booked.
async fn reconcile(tick: Tick, path: String) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut ledger = Ledger::open(&path)?;
    let from = ledger.resume(&tick)?;
    println!("begins {} {} {from}", tick.attempt(), tick.fence());
    while let Some((upto, count)) = ledger.book_batch(&tick)? {
        println!("booked {} {count} {upto}", tick.attempt());
        // If the lease is lost, or the node drains, the run ends at an await such as this one.
        sleep(BATCH_TAKES).await;
    }
    println!("ends {} {}", tick.attempt(), tick.fence());
    Ok(())
}

/// Runs one replica until SIGTERM.
async fn replica(url: &str, path: String, expression: &str) -> Result<(), Box<dyn Error>> {
    let mut told = signal(SignalKind::terminate())?;
    let locks = Locks::connect(url).await?;
    let scheduler = JobScheduler::new().await?;
    // In your service: `locks.cron("reconcile", "0 0 0 * * *").timezone("Europe/Berlin")`.
    let job = locks.cron("reconcile", expression).lease(LEASE);
    let job = job.run(move |tick| reconcile(tick, path.clone()))?;
    locks.add_job(&scheduler, job).await?;
    scheduler.start().await?;
    println!("ready");
    told.recv().await;
    locks.drain(Duration::from_secs(1)).await?;
    locks.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => show::run().await,
        ["replica", url, path, expression] => replica(url, (*path).to_owned(), expression).await,
        _ => Err("usage: cargo run -p tenure-reconcile-sqlite".into()),
    }
}
