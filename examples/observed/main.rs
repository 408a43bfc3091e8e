//! A service that can be watched: metrics for Prometheus, a route behind a `LockLayer`, and a cron job.
//!
//!     cargo run --example observed --features metrics    # in memory: some load, and the figures of its own scrape
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example observed --features metrics -- --listen 9102
//!
//! With `--listen` it is one replica under load until SIGTERM or Ctrl-C. `--cron <expression>` sets the ticks of its job, and with
//! `--fail` each run fails. `ops/check` runs three replicas beside a Prometheus. `stage.rs` has the load and the options.

mod stage;

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tenure::middleware::keys;
use tenure::observe::METRICS;
use tenure::{Lease, LockLayer, Locks};
use tokio::time::sleep;
use tokio_cron_scheduler::JobScheduler;

type BoxError = Box<dyn Error + Send + Sync>;

/// Installs the recorder. Call this before `Locks` are built, so that the recorder gets each metric at 0, with its text.
fn install_recorder() -> Result<PrometheusHandle, BoxError> {
    let mut builder = PrometheusBuilder::new();
    // Without bounds the exporter makes summaries, which cannot be added up over replicas.
    for metric in METRICS.iter().filter(|metric| !metric.bounds.is_empty()) {
        builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), metric.bounds)?;
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    Ok(handle)
}

/// Returns the service of one replica.
fn service(locks: &Locks, scrape: PrometheusHandle) -> Router {
    let one_at_a_time = LockLayer::new(locks, keys::path_param::<u64>("id").named("account"));
    Router::new()
        .route("/accounts/{id}/withdraw", post(withdraw))
        .route_layer(one_at_a_time.wait(Duration::from_millis(20)))
        // The layer does not apply to routes that are added after it.
        .route("/metrics", get(async move || scrape.render()))
}

async fn withdraw(lease: Lease) -> String {
    sleep(Duration::from_millis(5)).await;
    format!("fence {}\n", lease.fence())
}

/// Starts the scheduler of a replica, with the job.
async fn schedule(locks: &Locks, cron: &str, fails: bool) -> Result<JobScheduler, BoxError> {
    let scheduler = JobScheduler::new().await?;
    let job = locks.cron("reconcile", cron);
    let job = job.run(move |_| stage::reconcile(fails))?;
    locks.add_job(&scheduler, job).await?;
    scheduler.start().await?;
    Ok(scheduler)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    stage::play().await
}
