//! A nightly reconciliation on SQLite that is killed, deployed in the middle, and loses and doubles nothing.
//!
//!     cargo run -p tenure-reconcile-sqlite
//!
//! Three replicas, processes of their own, schedule the job. It goes through the day's entries in batches, and notes with
//! each, in the same transaction, how far it came and under which fence. Whoever runs it first is killed; a replica that
//! stood by goes on from there. Then all are replaced by a new release, one by one, and that finishes. At the end it is
//! shown who did what, and counted that each entry was booked once.
//!
//! How far a run came stands beside what it booked, and not in a checkpoint of the tick (`Tick::checkpoint`): a run that dies
//! between the two would leave a cursor that is behind, or ahead of, its bookings, and the row is needed all the same, for its
//! fence. A checkpoint is for work whose steps may be done twice, or whose results are kept where no row can be.
//!
//! It starts a redis-server of its own, or takes the one that `REDIS_URL` names.

#![allow(
    clippy::disallowed_methods,
    reason = "a program reads the clock, and the show waits"
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

/// Short, so that a takeover can be watched. The default of thirty seconds is right for most jobs.
const LEASE: Duration = Duration::from_secs(2);
/// What else a batch costs: a report that is fetched, a partner that is asked.
const BATCH_TAKES: Duration = Duration::from_millis(150);

/// What a run does: everything of its day that no run before it has done.
async fn reconcile(tick: Tick, path: String) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut ledger = Ledger::open(&path)?;
    let from = ledger.resume(&tick)?;
    println!("begins {} {} {from}", tick.attempt(), tick.fence());
    while let Some((upto, count)) = ledger.book_batch(&tick)? {
        println!("booked {} {count} {upto}", tick.attempt());
        // Here it is told when its lease is lost, or the node drains: at an await.
        sleep(BATCH_TAKES).await;
    }
    println!("ends {} {}", tick.attempt(), tick.fence());
    Ok(())
}

/// One replica, until it is told to end.
async fn replica(url: &str, path: String, expression: &str) -> Result<(), Box<dyn Error>> {
    let mut told = signal(SignalKind::terminate())?;
    let locks = Locks::redis(url).await?;
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
