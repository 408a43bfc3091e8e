//! Observability: events and spans through [`tracing`], and with the feature `metrics` counters, gauges and histograms through
//! the `metrics` facade. Two tables define them: that of [`EVENTS`] and that of [`METRICS`].
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
//! use tracing::{Event, Level, Subscriber};
//! use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
//!
//! /// Prints what an operator must know.
//! struct Pager;
//!
//! impl<S: Subscriber> Layer<S> for Pager {
//!     fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
//!         if event.metadata().target() == "tenure" && *event.metadata().level() <= Level::WARN {
//!             eprintln!("{event:?}");
//!         }
//!     }
//! }
//!
//! let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(Pager));
//! let locks = tenure::Locks::memory(); // built after the subscriber is set
//! locks.mutex("account:42").lock().await?.release().await?;
//! # Ok(()) }
//! ```
//!
//! # Events
//!
//! [`EVENTS`] lists all events, with their levels. All events have the target `tenure` and a field `event` with their
//! name. Events about a key have the fields `key` and `kind`: `lock`, `job`, `semaphore`, `election` or `latch`. Keys are
//! never labels of metrics. Events about a node have its id as `node`. If the
//! [builder](crate::locks::Builder::node_name) gave the node a name, all events but those of layers have the name as
//! `node_name`. Events of a tick have its nominal time as `tick_ms`; when a run begins, fails or ends, also as `tick`, by RFC 3339.
//!
//! A server that fails causes two events, however many leases and callers it concerns. `store_failing` is emitted when the
//! first connection is given up, or when the first request is refused or not answered in time; its fields are `server` and
//! `error`. `store_recovered` is emitted when the server answers again and its inbox is open again. Its fields are
//! `away_ms`, `requests_failed`, `callers_refused` and `leases_lost`. A server that refused requests, or failed again within
//! five seconds of its return, counts as back when nothing failed for five seconds. Two refusals are no outage: of a key that has
//! a value of another kind, and of requests until something is corrected, such as a missing right (`store_refuses`). The failures of single keys, callers
//! and requests have level DEBUG, and each is counted by the metrics. A lost lease always has an event of its own.
//!
//! Events that a caller sees (`granted`, `denied`, `released`, `release_failed`, and all events of layers and jobs) are
//! emitted on its own thread, in its span. A subscriber that blocks stops that thread, as for events of your own. If you
//! write to a pipe that may be full, use a writer with its own thread, such as `tracing_appender::non_blocking`.
//!
//! Events of the background go through a bounded queue to one thread of the process, `tenure-events`. A subscriber that
//! blocks or panics there costs no lease and delays no caller. These events go to the subscriber that was the default when
//! the `Locks` were built, which may be a scoped one; if there was none, to the current global subscriber. If the queue is
//! full, events are dropped, and `events_dropped` says how many. Losses have extra room in the queue.
//!
//! # Spans
//!
//! | span | level | fields | from, to |
//! |---|---|---|---|
//! | `tick` | INFO | `job`, `tick` by RFC 3339, `attempt`, `retry`, `fence` | around each try of a run: each line of the job is within it, also with [`run_blocking`](crate::scheduler::LeasedJob::run_blocking). Tasks that the job spawns are not, as usual |
//! | `lock` | DEBUG | `kind`, `key`, `outcome` as in `tenure_wait_seconds` | from the first poll that waits for a lock to the answer. A child of the caller's span. A lock that is granted at once has none |
//!
//! # Alerts
//!
//! Each event of level ERROR needs a person. These are worth an alert of their own:
//!
//! | event | what happened | what to do |
//! |---|---|---|
//! | `lost`, level ERROR | a holder lost its lease while it worked | its `cause` says why; check the writes that have no fence |
//! | `store_failing`, without `store_recovered` within your longest lease | that server grants nothing, and its leases have ended; a quorum goes on with a majority | look at the server that it names |
//! | `server_recovering` | for the time that it says nothing is granted | expected after a restart and a failover; otherwise its `why` says which writes were lost |
//! | `store_refuses` | requests are refused until something is corrected, such as a right | the error names it |
//! | `tick` with the outcome `missed`, `tick_given_up`, `job_skips` | a tick of a job did not run, or a run does not end | run the work by hand, or look at the run |
//! | `job_differs` | two services, or two expressions for long, use one job's name | give the job another name, or end the old release |
//! | `process_paused` | the process stood still for long, and its leases may have ended | more CPU, or no suspend |
//!
//! The same as metrics: `tenure_losses_total` with the cause `deadline` or `gone`, `tenure_store_failing`, `tenure_ticks_total` with
//! the outcome `missed`, `tenure_job_alarms_total`, `tenure_unlocked_total`, and as the only early warning
//! `tenure_renewal_slack_ratio` below a third. That a job has had no success since it was due: `time()` minus
//! `tenure_job_success_due_timestamp_seconds`. The folder `ops` has rules for Prometheus and a dashboard for Grafana, which were
//! tried; the guide on [alerts](crate::guide::alerts) says what to do.
//!
//! # Metrics
//!
//! [`METRICS`] lists all metrics, with all values of their labels. Neither the keys of locks nor nodes are labels. The metrics need
//! `features = ["metrics"]`, and go to any recorder that you install. Install it before you build `Locks`, so that it also
//! gets the units and the texts, and each counter and gauge exists at 0 from the start. What happens in the background is counted
//! at once, and the thread `tenure-events` passes it to the global recorder within a tenth of a second. A recorder that is local to
//! a thread gets what the callers of that thread see. On all threads but `tenure-events`, a recorder that blocks or panics stops
//! the caller or the job that it counts.
//!
//! An exporter for Prometheus makes a summary of a histogram whose buckets it does not know, and summaries of replicas cannot be
//! added up:
//!
//! ```
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//!
//! let mut builder = PrometheusBuilder::new();
//! for metric in tenure::observe::METRICS.iter().filter(|metric| !metric.bounds.is_empty()) {
//!     builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.into()), metric.bounds)?;
//! }
//! // let handle = builder.install_recorder()?; and serve `handle.render()` at /metrics
//! # Ok::<(), metrics_exporter_prometheus::BuildError>(())
//! ```
//!
//! A gauge is that of the process: several `Locks` add up. Of one job in two `Locks` the timestamps are those of the latest answer.

mod event;
mod events;
mod foreign_code;
mod metrics;
mod spans;

pub(crate) use event::{Event, Label};
pub use events::EVENTS;
pub(crate) use events::*;
pub(crate) use foreign_code::catch_foreign_panic;
#[cfg(feature = "scheduler")]
pub(crate) use metrics::jobs::{JobGauge, JobSeries};
pub(crate) use metrics::start::describe;
pub(crate) use metrics::{Began, answered, gave_up, held, outcome, pending};
pub use metrics::{METRICS, Metric, MetricKind};
pub(crate) use spans::*;
