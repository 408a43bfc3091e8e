//! Counters and histograms: their names, labels and texts, and what they are fed with. Without the feature `metrics`
//! everything here does nothing.
//!
//! A recorder is foreign code. What a caller sees is told to it on the caller's thread. What happens in the background
//! or under a lock is only [`kept`], until the event thread tells it.

use std::time::Duration;

use crate::error::{Error, LostCause, StoreError, StoreErrorKind, StoreRefusal};
use crate::observe::shield::shielded;
use crate::protocol::message::Name;

pub(crate) mod kept;

/// Something that is counted or measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// Begins with `tenure_`. Ends with `_seconds` for spans of time, and with `_total` for counters.
    pub name: &'static str,
    /// How it is told.
    pub kind: MetricKind,
    /// What one of it is. A recorder is told of seconds; all else are counts to it.
    pub unit: &'static str,
    /// Its labels, each with every value that it can have; with none where the values are routes of the service. Keys and
    /// nodes are none of them.
    pub labels: &'static [(&'static str, &'static [&'static str])],
    /// What it says.
    pub text: &'static str,
}

/// How a metric is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// It only grows.
    Counter,
    /// Each value is recorded.
    Histogram,
}

/// Every metric of this crate.
pub static METRICS: &[&Metric] = &[
    &GRANTS.metric,
    &WAIT.metric,
    &HOLD.metric,
    &HANDOFFS.metric,
    &LOSSES.metric,
    &SLACK.metric,
    &BATCH.metric,
    &ERRORS.metric,
    &TICKS.metric,
    &ALARMS.metric,
    &REFUSED.metric,
    &DRY_RUN.metric,
];

const KINDS: (&str, &[&str]) = ("kind", &["lock", "job", "semaphore", "election"]);

static GRANTS: Series = Series::of(Metric {
    name: "tenure_grants_total",
    kind: MetricKind::Counter,
    unit: "callers",
    labels: &[KINDS],
    text: "Callers that got a lock",
});
static WAIT: Series = Series::of(Metric {
    name: "tenure_wait_seconds",
    kind: MetricKind::Histogram,
    unit: "seconds",
    labels: &[
        KINDS,
        (
            "outcome",
            &[
                "granted",
                "busy",
                "queue_full",
                "store",
                "closed",
                "invalid",
                "not_due",
                "gave_up",
            ],
        ),
    ],
    text: "From asking for a lock to the answer",
});
static HOLD: Series = Series::of(Metric {
    name: "tenure_hold_seconds",
    kind: MetricKind::Histogram,
    unit: "seconds",
    labels: &[KINDS, ("outcome", &["released", "lost"])],
    text: "From getting a lock to giving it back",
});
static HANDOFFS: Series = Series::of(Metric {
    name: "tenure_handoffs_total",
    kind: MetricKind::Counter,
    unit: "leases",
    labels: &[KINDS, ("from", &["local", "remote"])],
    text: "Leases that passed from one holder to the next who waited",
});
static LOSSES: Series = Series::of(Metric {
    name: "tenure_losses_total",
    kind: MetricKind::Counter,
    unit: "leases",
    labels: &[
        KINDS,
        (
            "cause",
            &["deadline", "gone", "overdue", "unfetched", "ended", "shutdown"],
        ),
    ],
    text: "Leases that ended before their guard did",
});
static SLACK: Series = Series::of(Metric {
    name: "tenure_renewal_slack_seconds",
    kind: MetricKind::Histogram,
    unit: "seconds",
    labels: &[],
    text: "What had been left of a lease when it was renewed",
});
static BATCH: Series = Series::of(Metric {
    name: "tenure_batch_requests",
    kind: MetricKind::Histogram,
    unit: "requests",
    labels: &[],
    text: "Requests that travelled to the store together",
});
static ERRORS: Series = Series::of(Metric {
    name: "tenure_store_errors_total",
    kind: MetricKind::Counter,
    unit: "errors",
    labels: &[
        (
            "during",
            &[
                "lock",
                "wait",
                "renew",
                "release",
                "withdraw",
                "connection",
                "inbox",
            ],
        ),
        (
            "error",
            &[
                "unreachable",
                "timed_out",
                "interrupted",
                "wrong_type",
                "out_of_memory",
                "read_only",
                "loading",
                "busy",
                "misconfigured",
                "no_replicas",
                "no_auth",
                "wrong_password",
                "no_permission",
                "unsupported",
                "other",
            ],
        ),
    ],
    text: "Errors of the store",
});
static TICKS: Series = Series::of(Metric {
    name: "tenure_ticks_total",
    kind: MetricKind::Counter,
    unit: "ticks",
    labels: &[(
        "outcome",
        &[
            "done",
            "failed",
            "panicked",
            "timed_out",
            "given_up",
            "elsewhere",
            "skipped",
            "missed",
            "drained",
            "removed",
            "refused",
        ],
    )],
    text: "Ticks of jobs that are over for this process",
});

static ALARMS: Series = Series::of(Metric {
    name: "tenure_job_alarms_total",
    kind: MetricKind::Counter,
    unit: "alarms",
    labels: &[(
        "alarm",
        &[
            "early",
            "skewed",
            "overtaken",
            "given_up",
            "mark_ahead",
            "went_back",
            "differs",
            "skips",
            "blocks",
            "engine_missed",
            "storage_shared",
            "passed_over",
        ],
    )],
    text: "What is wrong with jobs, and with the clocks that they go by",
});
static REFUSED: Series = Series::of(Metric {
    name: "tenure_refused_total",
    kind: MetricKind::Counter,
    unit: "requests",
    labels: &[(
        "why",
        &[
            "busy",
            "in_flight",
            "waited_too_long",
            "queue_full",
            "store_failed",
            "closed",
            "lost",
            "outcome_unknown",
            "bad_key",
            "no_key",
            "bad_options",
        ],
    )],
    text: "Requests that a layer answered itself",
});
static DRY_RUN: Series = Series::of(Metric {
    name: "tenure_dry_run_total",
    kind: MetricKind::Counter,
    unit: "requests",
    labels: &[("outcome", &["alone", "overlap", "refused"]), ("route", &[])],
    text: "Requests behind a layer in a dry run",
});

/// A metric, and what its events are recorded under.
struct Series {
    metric: Metric,
    /// One for each combination of its labels' values. Made once, so that no event allocates one.
    #[cfg(feature = "metrics")]
    rows: std::sync::OnceLock<Box<[Row]>>,
}

/// A metric with its labels.
#[cfg(feature = "metrics")]
struct Row {
    key: ::metrics::Key,
    /// Counted, and not yet told to the recorder.
    kept: std::sync::atomic::AtomicU64,
}

impl Series {
    const fn of(metric: Metric) -> Series {
        Series {
            metric,
            #[cfg(feature = "metrics")]
            rows: std::sync::OnceLock::new(),
        }
    }

    /// `values` has one for each label, in order.
    #[cfg(feature = "metrics")]
    fn row(&self, values: &[&str]) -> Option<&Row> {
        let rows = self.rows.get_or_init(|| self.metric.rows());
        let at = self
            .metric
            .labels
            .iter()
            .zip(values)
            .try_fold(0, |at, ((_, all), value)| {
                let of_this = all.iter().position(|one| one == value)?;
                Some(at * all.len() + of_this)
            });
        debug_assert!(at.is_some(), "{values:?} of {}", self.metric.name);
        rows.get(at?)
    }
}

#[cfg(feature = "metrics")]
impl Metric {
    fn rows(&self) -> Box<[Row]> {
        use ::metrics::{Key, Label};
        let mut rows: Vec<Vec<Label>> = vec![Vec::new()];
        for (label, values) in self.labels {
            let longer = |row: &Vec<Label>, value| {
                let label = Label::from_static_parts(label, value);
                row.iter().cloned().chain([label]).collect()
            };
            let longer = |row| values.iter().map(move |value| longer(row, value));
            rows = rows.iter().flat_map(longer).collect();
        }
        // They live as long as the program, so a recorder that clones the key allocates nothing either.
        let rows = rows.into_iter().map(|row| Row {
            key: Key::from_static_labels(self.name, row.leak()),
            kept: Default::default(),
        });
        rows.collect()
    }
}

#[cfg(feature = "metrics")]
static METADATA: ::metrics::Metadata<'static> =
    ::metrics::Metadata::new("tenure", ::metrics::Level::INFO, Some(module_path!()));

#[cfg(feature = "metrics")]
fn increment(row: &Row, by: u64) {
    ::metrics::with_recorder(|to| to.register_counter(&row.key, &METADATA).increment(by));
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

/// Gives the recorder units and texts. Whatever is installed later does without.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    for Metric {
        name,
        kind,
        unit,
        text,
        ..
    } in METRICS
    {
        let unit = match *unit {
            "seconds" => ::metrics::Unit::Seconds,
            _ => ::metrics::Unit::Count,
        };
        match kind {
            MetricKind::Counter => ::metrics::describe_counter!(*name, unit, *text),
            MetricKind::Histogram => ::metrics::describe_histogram!(*name, unit, *text),
        }
    }
}

/// When a holding began, in nanoseconds of the node's clock. Zero without the feature, and then no clock is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Began(u64);

impl Began {
    /// `now` reads the node's clock, in nanoseconds.
    pub(crate) fn at(now: impl FnOnce() -> u64) -> Self {
        Began(if cfg!(feature = "metrics") { now() } else { 0 })
    }
}

fn kind(name: &Name) -> &'static str {
    name.kind.word()
}

/// A caller that asked for a lock has its answer. A tick that is not due is refused without an error.
pub(crate) fn answered(name: &Name, waited: impl FnOnce() -> Duration, answer: Result<(), Option<&Error>>) {
    let outcome = match answer {
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
            | Error::WouldDeadlock { .. }
            // Of writes, and no answers to who asked for a lock.
            | Error::Unanswered { .. }
            | Error::Failed { .. }
            | Error::Reply { .. }
            | Error::Unsupported { .. }
            | Error::StillHeld { .. }
            | Error::Unset { .. }
            | Error::Uncertain { .. },
        )) => "invalid",
    };
    record(&WAIT, &[kind(name), outcome], || waited().as_secs_f64());
    if answer.is_ok() {
        count(&GRANTS, &[kind(name)]);
    }
}

/// A caller that asked for a lock waits no more.
pub(crate) fn gave_up(name: &Name, waited: impl FnOnce() -> Duration) {
    shielded(|| record(&WAIT, &[kind(name), "gave_up"], || waited().as_secs_f64()));
}

/// A guard gives its lock back, perhaps while it unwinds: a recorder that panics then would end the process. `now` is as
/// for [`Began::at`], and `over` tells whether it had been lost.
pub(crate) fn held(
    name: &Name,
    began: Began,
    now: impl FnOnce() -> u64,
    over: impl FnOnce() -> Option<LostCause>,
) {
    if cfg!(feature = "metrics") {
        let outcome = if over().is_some() { "lost" } else { "released" };
        let span = || Duration::from_nanos(now().saturating_sub(began.0)).as_secs_f64();
        shielded(|| record(&HOLD, &[kind(name), outcome], span));
    }
}

/// A caller was told of an error of the store.
pub(super) fn store_failed(during: &'static str, error: &StoreError) {
    count(&ERRORS, &[during, word(error.kind())]);
}

/// The word for a loss. What was released was not lost.
fn loss(cause: LostCause) -> Option<&'static str> {
    match cause {
        LostCause::Deadline => Some("deadline"),
        LostCause::Gone => Some("gone"),
        LostCause::Ended => Some("ended"),
        LostCause::Overdue => Some("overdue"),
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
            StoreRefusal::Unsupported => "unsupported",
            StoreRefusal::Other(_) => "other",
        },
    }
}

#[cfg(feature = "scheduler")]
pub(super) fn ticked(outcome: &'static str) {
    count(&TICKS, &[outcome]);
}

#[cfg(feature = "scheduler")]
pub(super) fn alarmed(alarm: &'static str) {
    count(&ALARMS, &[alarm]);
}

#[cfg(feature = "tower")]
pub(super) fn refused(why: &'static str) {
    count(&REFUSED, &[why]);
}

/// Its route is a label that only the service knows, so its key is made each time.
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
