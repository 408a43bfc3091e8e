//! Counters, gauges and histograms: the table of metrics, and the functions that feed them. Without the feature `metrics`
//! these functions do nothing.
//!
//! A recorder is foreign code. What a caller sees goes to the recorder on the caller's thread. What happens in the
//! background or under a lock is [`pending`] until the event thread passes it on.

use std::time::Duration;

use crate::error::{Error, LostCause, StoreError, StoreErrorKind, StoreRefusal};
use crate::observe::foreign_code::catch_foreign_panic;
use crate::protocol::message::Name;

#[cfg(feature = "scheduler")]
pub(super) mod jobs;
#[cfg(feature = "metrics")]
mod named;
pub(crate) mod pending;
pub(super) mod start;

/// A counter, a gauge or a histogram.
///
/// ```
/// use tenure::observe::{METRICS, Metric};
///
/// let losses: &Metric = METRICS.iter().find(|metric| metric.name == "tenure_losses_total").expect("it is in the table");
/// let (label, causes) = losses.labels[1];
/// assert!(label == "cause" && causes.contains(&"deadline"));
/// println!("{}, in {}: {}", losses.name, losses.unit, losses.text);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Metric {
    /// The name, which begins with `tenure_`. Counters end with `_total`, spans of time with `_seconds`.
    pub name: &'static str,
    /// How values are recorded.
    pub kind: MetricKind,
    /// What one unit is. Recorders know seconds; all other units are counts.
    pub unit: &'static str,
    /// The labels, each with all its values. The list is empty for `route` (the routes of the service), `server`, `job_name`
    /// and `version`. Of servers the first 64 have series of their own, and of jobs the first 100; later ones share `other`.
    /// The keys of locks and nodes are never labels.
    pub labels: &'static [(&'static str, &'static [&'static str])],
    /// The upper bounds of the buckets of a histogram; empty for counters and gauges. A recorder that has no buckets for a
    /// histogram may make a summary of it, whose quantiles cannot be added up over replicas.
    pub bounds: &'static [f64],
    /// What the metric measures.
    pub text: &'static str,
}

/// How the values of a metric are recorded.
///
/// ```
/// use tenure::observe::{METRICS, MetricKind};
///
/// for metric in METRICS {
///     let query = match metric.kind {
///         MetricKind::Counter => format!("rate({}[5m])", metric.name),
///         MetricKind::Gauge => format!("sum({})", metric.name),
///         MetricKind::Histogram => format!("histogram_quantile(0.99, rate({}_bucket[5m]))", metric.name),
///         _ => continue, // kinds of later versions
///     };
///     println!("{query}");
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A sum that only grows.
    Counter,
    /// A value that goes up and down. It is that of the process: several `Locks` add up.
    Gauge,
    /// A distribution of values.
    Histogram,
}

/// Makes from a table of metrics their statics, the list `METRICS`, and its documentation. A row has this form:
///
/// ```text
/// /// What the metric says, and what the values of its labels mean.
/// STATIC: Kind "name", "unit", {label: values; label: values} "text for the recorder", BOUNDS;
/// ```
///
/// Only a histogram has bounds. A label without values has those of the process.
macro_rules! metrics {
    ($(
        $(#[doc = $doc:literal])+
        $series:ident: $kind:ident $name:literal, $unit:literal, {$($label:ident: $($value:ident)*);*} $text:literal
            $(, $bounds:ident)?;
    )+) => {
        /// Every metric of this crate.
        ///
        /// | metric | kind | unit | labels | what it says |
        /// |---|---|---|---|---|
        $(#[doc = concat!(
            "| `", $name, "` | ", stringify!($kind), " | ", $unit, " | ",
            $("`", stringify!($label), "`:", $(" `", stringify!($value), "`",)* ". ",)* "|", $($doc,)+ " |"
        )])+
        pub static METRICS: &[&Metric] = &[$(&$series.metric),+];

        #[cfg(feature = "metrics")]
        static SERIES: &[&Series] = &[$(&$series),+];

        $(static $series: Series = Series::of(Metric {
            name: $name,
            kind: MetricKind::$kind,
            unit: $unit,
            labels: &[$((stringify!($label), &[$(stringify!($value)),*])),*],
            bounds: metrics!(@ $($bounds)?),
            text: $text,
        });)+
    };
    (@) => { &[] };
    (@ $bounds:ident) => { $bounds };
}

/// Bounds in seconds, from the answer of a near server to the longest wait of a request.
const WAITS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

/// Bounds in seconds of what may last for hours.
const RUNS: &[f64] = &[
    0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0,
];

/// Bounds of a part of a lease. A third is worth a warning, two thirds are normal.
const PARTS: &[f64] = &[
    0.0, 0.05, 0.1, 0.2, 0.3, 0.333, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0,
];

/// Bounds in requests. A batch has at most 128.
const SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

metrics! {
    /// Callers that got a lock. Of kind `job`: ticks.
    GRANTS: Counter "tenure_grants_total", "callers", {kind: lock job semaphore election} "Callers that got a lock";

    /// The time from the request for a lock to the answer. `invalid`: a key, an option, or a wait for the caller itself.
    /// `not_due`: the tick is over, or early. `gave_up`: the caller dropped the future, as a timeout does.
    WAIT: Histogram "tenure_wait_seconds", "seconds", {
        kind: lock job semaphore election;
        outcome: granted busy queue_full store closed invalid not_due gave_up
    } "From asking for a lock to the answer", WAITS;

    /// The time from the grant of a lock to its release, or to the drop of the guard. `lost`: the guard had learned before
    /// that the lease was lost.
    HOLD: Histogram "tenure_hold_seconds", "seconds", {kind: lock job semaphore election; outcome: released lost}
        "From getting a lock to giving it back", RUNS;

    /// Leases that callers hold now: from where `tenure_hold_seconds` begins to where it ends. Of kind `job`: runs of ticks.
    HELD: Gauge "tenure_held", "leases", {kind: lock job semaphore election} "Leases that callers hold now";

    /// Callers that wait for a lock now, and were not answered at once. Of kind `job`: standbys.
    WAITING: Gauge "tenure_waiting", "callers", {kind: lock job semaphore election} "Callers that wait for a lock now";

    /// Leases that passed from a holder to the next waiter. `local`: to a caller of the same process. `remote`: from
    /// another process, through the store's queue. `kept`: to a caller of the process that had kept it.
    HANDOFFS: Counter "tenure_handoffs_total", "leases", {kind: lock job semaphore election; from: local remote kept}
        "Leases that passed from a holder to the next waiter";

    /// Leases that may be kept and that another process wanted. A process with many of them gains nothing by its keep.
    RECALLS: Counter "tenure_recalls_total", "leases", {} "Kept leases that another process wanted";

    /// Leases that ended before their guard did. `deadline` and `gone` are trouble. `overdue` (held for longer than
    /// `max_hold`) and `unfetched` (granted, but its future was not polled) are faults of the program. `ended` (a fixed
    /// lease), `shutdown` and `revoked` (by an operator) are expected.
    LOSSES: Counter "tenure_losses_total", "leases", {
        kind: lock job semaphore election;
        cause: deadline gone revoked overdue unfetched ended shutdown
    } "Leases that ended before their guard did";

    /// The part of a lease that was left when the answer to its renewal came. Two thirds are normal. If the value is near
    /// zero, leases will be lost soon.
    SLACK: Histogram "tenure_renewal_slack_ratio", "parts", {} "The part of a lease that was left when it was renewed", PARTS;

    /// The time from sending requests to the store until their answer.
    ANSWER: Histogram "tenure_store_seconds", "seconds", {} "From sending requests to the store to their answer", WAITS;

    /// The `Locks` of this process for which the server fails now: between the events `store_failing` and `store_recovered`.
    FAILING: Gauge "tenure_store_failing", "locks", {server:} "Locks of this process for which a server fails now";

    /// The inboxes of this process that are lost now: between the events `inbox_lost` and `inbox_open`. Meanwhile waiters use
    /// timers.
    INBOX_LOST: Gauge "tenure_inbox_lost", "inboxes", {} "Inboxes of this process that are lost now";

    /// 1, with the version of this crate.
    VERSION: Gauge "tenure_build_info", "builds", {version:} "The version of tenure";

    /// Requests that travelled to the store together.
    BATCH: Histogram "tenure_batch_requests", "requests", {} "Requests that travelled to the store together", SIZES;

    /// Errors of the store. `lock` and `release`: a caller got the error. `wait` and `renew`: the node retries. `withdraw`:
    /// the node gave up, and the claim expires by itself. The errors after `interrupted` are refusals of the store.
    ERRORS: Counter "tenure_store_errors_total", "errors", {
        during: lock wait renew release withdraw connection inbox;
        error: unreachable timed_out interrupted wrong_type out_of_memory read_only loading busy misconfigured no_replicas recovering unready
            no_auth wrong_password no_permission unsupported other
    } "Errors of the store";

    /// Ticks that are over for this process. The module `scheduler` explains the outcomes. If a run loses its lease, that
    /// is a loss of a `job`. Its tick is over when this process knows which node ended it. Each replica counts `missed` and
    /// `skipped` ticks: a sum over replicas is too high.
    TICKS: Counter "tenure_ticks_total", "ticks", {
        job_name:;
        outcome: done failed panicked timed_out given_up elsewhere skipped missed drained paused cancelled removed
    } "Ticks of jobs that are over for this process";

    /// The nominal time of the latest tick that was run with success, on any node; 0 without one. In seconds since 1970. It is there
    /// after the first answer of the store, and NaN once this process has the job no more.
    JOB_SUCCESS: Gauge "tenure_job_last_success_timestamp_seconds", "seconds", {job_name:}
        "The nominal time of the latest tick that was run with success";

    /// The first tick after the latest of these: the latest success, the end of the latest pause, and when the store first saw the
    /// schedule. `time()` minus this value is for how long a success is overdue. In seconds since 1970. It is there after the first
    /// answer of the store, and NaN without a further tick, or once this process has the job no more.
    JOB_DUE: Gauge "tenure_job_success_due_timestamp_seconds", "seconds", {job_name:} "Since when a success of the job is due";

    /// 1 while an operator has paused the job.
    JOB_PAUSED: Gauge "tenure_job_paused", "pauses", {job_name:} "Whether an operator has paused the job";

    /// Runs of the job in this process now.
    JOB_RUNNING: Gauge "tenure_job_running", "runs", {job_name:} "Runs of the job in this process now";

    /// How long the runs of the job lasted that ended in this process, with all their tries.
    JOB_RUN: Histogram "tenure_job_run_seconds", "seconds", {job_name:} "How long runs of the job lasted", RUNS;

    /// Problems of jobs and clocks. Each has an event with a similar name.
    ALARMS: Counter "tenure_job_alarms_total", "alarms", {
        alarm: early skewed overtaken given_up mark_ahead went_back differs skips blocks engine_missed storage_shared
            passed_over
    } "Problems of jobs and clocks";

    /// Requests that a layer answered itself.
    REFUSED: Counter "tenure_refused_total", "requests", {
        why: busy in_flight waited_too_long queue_full store_failed recovering store_refused closed lost outcome_unknown bad_key no_key bad_options
    } "Requests that a layer answered itself";

    /// Requests that ran without their lock, because the store failed and the layer has `StoreFailure::RunUnlocked`.
    UNLOCKED: Counter "tenure_unlocked_total", "requests", {} "Requests that ran without their lock, because the store failed";

    /// Requests behind a layer in a dry run. `route` is a route of the service, as axum knows it, or empty.
    DRY_RUN: Counter "tenure_dry_run_total", "requests", {outcome: alone overlap refused; route:}
        "Requests behind a layer in a dry run";
}

/// A metric, and its recorder keys.
struct Series {
    metric: Metric,
    /// One row for each combination of label values. They are made once, so that no event allocates.
    #[cfg(feature = "metrics")]
    rows: std::sync::OnceLock<Box<[Row]>>,
}

/// A metric with the values of its labels.
#[cfg(feature = "metrics")]
struct Row {
    key: ::metrics::Key,
    /// The count that the recorder did not get yet. Of a gauge: above 0 if the recorder did not get the latest value.
    pending: std::sync::atomic::AtomicU64,
    /// The value of a gauge.
    value: std::sync::atomic::AtomicI64,
}

impl Series {
    const fn of(metric: Metric) -> Series {
        Series {
            metric,
            #[cfg(feature = "metrics")]
            rows: std::sync::OnceLock::new(),
        }
    }

    /// Returns the row of these values, one for each label, in order.
    #[cfg(feature = "metrics")]
    fn row(&self, values: &[&str]) -> Option<&Row> {
        self.metric
            .row(self.rows.get_or_init(|| self.metric.rows(None)), values)
    }
}

#[cfg(feature = "metrics")]
impl Metric {
    /// Makes the rows of all combinations of values. A label without values has the given one; without it there are no rows.
    fn rows(&self, open: Option<&str>) -> Box<[Row]> {
        use ::metrics::{Key, Label};
        let mut rows: Vec<Vec<Label>> = vec![Vec::new()];
        for (label, values) in self.labels {
            let known = values.iter().map(|value| Label::from_static_parts(label, value));
            let given = open.filter(|_| values.is_empty());
            let given = given.map(|value| Label::new(*label, value.to_owned()));
            let labels: Vec<_> = known.chain(given).collect();
            let longer = |row: &Vec<Label>, label: &Label| row.iter().chain([label]).cloned().collect();
            let longer = |row| labels.iter().map(move |label| longer(row, label));
            rows = rows.iter().flat_map(longer).collect();
        }
        // The labels live as long as the program, so a recorder that clones the key does not allocate.
        let rows = rows.into_iter().map(|row| Row {
            key: Key::from_static_labels(self.name, row.leak()),
            pending: Default::default(),
            value: Default::default(),
        });
        rows.collect()
    }

    /// Returns the row of these values, one for each label that has values, in order.
    fn row<'a>(&self, rows: &'a [Row], values: &[&str]) -> Option<&'a Row> {
        let labels = self.labels.iter().filter(|(_, all)| !all.is_empty());
        let at = labels.zip(values).try_fold(0, |at, ((_, all), value)| {
            let of_this = all.iter().position(|one| one == value)?;
            Some(at * all.len() + of_this)
        });
        debug_assert!(at.is_some(), "{values:?} of {}", self.name);
        rows.get(at?)
    }
}

#[cfg(feature = "metrics")]
static METADATA: ::metrics::Metadata<'static> =
    ::metrics::Metadata::new("tenure", ::metrics::Level::INFO, Some(module_path!()));

#[cfg(feature = "metrics")]
fn increment(row: &Row, by: u64) {
    ::metrics::with_recorder(|to| to.register_counter(&row.key, &METADATA).increment(by));
}

/// The value of a timestamp that is not known any more.
#[cfg(feature = "metrics")]
const UNKNOWN: i64 = i64::MIN;

/// Tells the recorder the value of a gauge. Some recorders have no increment.
#[cfg(feature = "metrics")]
fn set(series: &Series, row: &Row) {
    let value = match row.value.load(std::sync::atomic::Ordering::SeqCst) {
        UNKNOWN => f64::NAN,
        ms if series.metric.unit == "seconds" => ms as f64 / 1_000.0,
        count => count as f64,
    };
    ::metrics::with_recorder(|to| to.register_gauge(&row.key, &METADATA).set(value));
}

/// Makes each counter and gauge exist at zero, so that a rate sees the first event.
#[cfg(feature = "metrics")]
fn exist(series: &Series, row: &Row) {
    match series.metric.kind {
        MetricKind::Counter => increment(row, 0),
        MetricKind::Gauge => {
            ::metrics::with_recorder(|to| drop(to.register_gauge(&row.key, &METADATA)));
            // The event thread sets the value.
            row.pending.store(1, std::sync::atomic::Ordering::SeqCst);
        }
        MetricKind::Histogram => {}
    }
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
fn count(series: &Series, values: &[&str]) {
    #[cfg(feature = "metrics")]
    if let Some(row) = series.row(values) {
        increment(row, 1);
    }
}

fn record(series: &Series, values: &[&str], value: impl FnOnce() -> f64) {
    record_many(series, values, 1, value);
}

#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
fn record_many(series: &Series, values: &[&str], times: usize, value: impl FnOnce() -> f64) {
    #[cfg(feature = "metrics")]
    if let Some(row) = series.row(values) {
        ::metrics::with_recorder(|to| {
            to.register_histogram(&row.key, &METADATA)
                .record_many(value(), times)
        });
    }
}

/// When a holding began, in nanoseconds of the node's clock. Without the feature `metrics`, no clock is read, and the
/// value is 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Began(u64);

impl Began {
    /// Returns the current time. `now` reads the node's clock, in nanoseconds.
    pub(crate) fn at(now: impl FnOnce() -> u64) -> Self {
        Began(if cfg!(feature = "metrics") { now() } else { 0 })
    }
}

fn kind(name: &Name) -> &'static str {
    name.kind.word()
}

/// Returns the word for the answer to a caller that asked for a lock. `Err(None)`: the tick is not due.
pub(crate) fn outcome(answer: Result<(), Option<&Error>>) -> &'static str {
    match answer {
        Ok(()) => "granted",
        Err(None) => "not_due",
        Err(Some(Error::Busy { .. })) => "busy",
        Err(Some(Error::QueueFull { .. } | Error::NodeFull { .. })) => "queue_full",
        Err(Some(Error::Store { .. } | Error::Connect { .. })) => "store",
        Err(Some(Error::Closed { .. })) => "closed",
        Err(Some(
            Error::Key { .. }
            | Error::Options(_)
            | Error::Lost { .. }
            | Error::Gone { .. }
            | Error::InUse { .. }
            | Error::WouldDeadlock { .. }
            // Errors of writes, which are never the answer to a claim.
            | Error::Unanswered { .. }
            | Error::Failed { .. }
            | Error::Reply { .. }
            | Error::Unsupported { .. }
            | Error::StillHeld { .. }
            | Error::Unset { .. }
            | Error::Uncertain { .. },
        )) => "invalid",
    }
}

/// Counts the answer to a caller that asked for a lock, as for [`outcome`].
pub(crate) fn answered(name: &Name, waited: impl FnOnce() -> Duration, answer: Result<(), Option<&Error>>) {
    record(&WAIT, &[kind(name), outcome(answer)], || waited().as_secs_f64());
    if answer.is_ok() {
        count(&GRANTS, &[kind(name)]);
    }
}

/// Counts a caller that stopped waiting for a lock.
pub(crate) fn gave_up(name: &Name, waited: impl FnOnce() -> Duration) {
    catch_foreign_panic(|| record(&WAIT, &[kind(name), "gave_up"], || waited().as_secs_f64()));
}

/// Records how long a guard was held. The guard may be dropped while its thread unwinds, where a second panic would
/// abort the process: a panic of the recorder is caught. `now` reads the node's clock, as for [`Began::at`]. `over`
/// returns the cause if the lease was lost.
pub(crate) fn held(
    name: &Name,
    began: Began,
    now: impl FnOnce() -> u64,
    over: impl FnOnce() -> Option<LostCause>,
) {
    if cfg!(feature = "metrics") {
        let outcome = if over().is_some() { "lost" } else { "released" };
        let span = || Duration::from_nanos(now().saturating_sub(began.0)).as_secs_f64();
        catch_foreign_panic(|| record(&HOLD, &[kind(name), outcome], span));
    }
}

/// Counts an error of the store that a caller got.
pub(super) fn store_failed(during: &'static str, error: &StoreError) {
    count(&ERRORS, &[during, word(error.kind())]);
}

/// Returns the label of a loss; `None` for a release, which is no loss.
fn loss(cause: LostCause) -> Option<&'static str> {
    match cause {
        LostCause::Deadline => Some("deadline"),
        LostCause::Gone => Some("gone"),
        LostCause::Ended => Some("ended"),
        LostCause::Overdue => Some("overdue"),
        LostCause::Revoked => Some("revoked"),
        LostCause::Shutdown => Some("shutdown"),
        LostCause::Unfetched => Some("unfetched"),
        LostCause::Released | LostCause::Forked => None,
    }
}

fn word(kind: &StoreErrorKind) -> &'static str {
    match kind {
        StoreErrorKind::Unreachable => "unreachable",
        StoreErrorKind::TimedOut => "timed_out",
        StoreErrorKind::Interrupted => "interrupted",
        StoreErrorKind::Refused(refusal) => match refusal {
            StoreRefusal::WrongType => "wrong_type",
            StoreRefusal::OutOfMemory => "out_of_memory",
            StoreRefusal::ReadOnly => "read_only",
            StoreRefusal::Loading => "loading",
            StoreRefusal::Busy => "busy",
            StoreRefusal::Misconfigured => "misconfigured",
            StoreRefusal::NoReplicas => "no_replicas",
            StoreRefusal::NoAuth => "no_auth",
            StoreRefusal::WrongPassword => "wrong_password",
            StoreRefusal::NoPermission => "no_permission",
            StoreRefusal::Recovering => "recovering",
            StoreRefusal::Unsupported => "unsupported",
            StoreRefusal::Unready(_) => "unready",
            StoreRefusal::Other(_) => "other",
        },
    }
}

#[cfg(feature = "scheduler")]
pub(super) fn alarmed(alarm: &'static str) {
    count(&ALARMS, &[alarm]);
}

#[cfg(feature = "tower")]
pub(super) fn refused(why: &'static str) {
    count(&REFUSED, &[why]);
}

#[cfg(feature = "tower")]
pub(super) fn unlocked() {
    count(&UNLOCKED, &[]);
}

/// Counts a request behind a layer in a dry run. The route is a label that only the service knows, so the key
/// is made each time.
#[cfg(feature = "tower")]
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(super) fn dry_run(outcome: &'static str, route: Option<&str>) {
    #[cfg(feature = "metrics")]
    {
        use ::metrics::{Key, Label};
        let route = Label::new("route", route.unwrap_or_default().to_owned());
        let labels = vec![Label::from_static_parts("outcome", outcome), route];
        let key = Key::from_parts(DRY_RUN.metric.name, labels);
        ::metrics::with_recorder(|to| to.register_counter(&key, &METADATA).increment(1));
    }
}
