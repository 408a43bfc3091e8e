//! What `docs/operations.md` shows. A test compares the two.
use axum::Router;
use std::error::Error;
use std::future::IntoFuture;
use std::time::Duration;
use tenure::{CancellationToken, Locks};
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_cron_scheduler::JobScheduler;

/// Serves until the signal comes. Then requests, jobs and locks have `grace` to end.
pub(super) async fn serve(
    listener: TcpListener,
    app: Router,
    signal: impl Future,
    grace: Duration,
    locks: Locks,
    mut scheduler: JobScheduler,
) -> Result<(), Box<dyn Error>> {
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let serving = axum::serve(listener, app).with_graceful_shutdown(stopped);
    let serving = tokio::spawn(serving.into_future());
    signal.await;
    stop.cancel(); // no new requests; `drain` below begins no new ticks
    // One deadline for all; a tenth of the time is for the locks alone.
    let deadline = Instant::now() + grace;
    let most = grace * 9 / 10;
    // At the same time, so that no open stream delays the end of the jobs.
    let (drained, _) = tokio::join!(locks.drain(most), timeout(most, serving));
    if let Err(error) = drained {
        eprintln!("{error}");
    }
    // May fire once more, without effect.
    if let Err(error) = scheduler.shutdown().await {
        eprintln!("{error}");
    }
    // Waits for handlers that run to completion, and for runs that cannot be cancelled.
    let _ = timeout_at(deadline, locks.shutdown()).await;
    Ok(())
}
