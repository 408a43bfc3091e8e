//! Counters and histograms: their names, labels and texts, and what they are fed with. Without the feature `metrics`
//! everything here does nothing.

use std::time::{Duration, Instant};

use crate::claim::Name;
use crate::error::{Error, LostCause, Refusal, StoreError, StoreErrorKind};

/// Something that is counted or measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// Begins with `tenure_`. Ends with `_seconds` for spans of time, and with `_total` for counters.
    pub name: &'static str,
    /// How it is told.
    pub kind: MetricKind,
    /// The names of its labels. None of them ever has a key or a node for its value.
    pub labels: &'static [&'static str],
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
pub const METRICS: &[Metric] = &[GRANTS, WAIT, HOLD, HANDOFFS, LOSSES, SLACK, BATCH, ERRORS, TICKS];

const GRANTS: Metric = Metric {
    name: "tenure_grants_total",
    kind: MetricKind::Counter,
    labels: &["kind"],
    text: "Callers that got a lock",
};
const WAIT: Metric = Metric {
    name: "tenure_wait_seconds",
    kind: MetricKind::Histogram,
    labels: &["kind", "outcome"],
    text: "From asking for a lock to the answer",
};
const HOLD: Metric = Metric {
    name: "tenure_hold_seconds",
    kind: MetricKind::Histogram,
    labels: &["kind", "outcome"],
    text: "From getting a lock to giving it back",
};
const HANDOFFS: Metric = Metric {
    name: "tenure_handoffs_total",
    kind: MetricKind::Counter,
    labels: &["kind", "from"],
    text: "Leases that passed from one holder to the next who waited",
};
const LOSSES: Metric = Metric {
    name: "tenure_losses_total",
    kind: MetricKind::Counter,
    labels: &["kind", "cause"],
    text: "Leases that ended before their guard did",
};
const SLACK: Metric = Metric {
    name: "tenure_renewal_slack_seconds",
    kind: MetricKind::Histogram,
    labels: &[],
    text: "What had been left of a lease when it was renewed",
};
const BATCH: Metric = Metric {
    name: "tenure_batch_requests",
    kind: MetricKind::Histogram,
    labels: &[],
    text: "Requests that travelled to the store together",
};
const ERRORS: Metric = Metric {
    name: "tenure_store_errors_total",
    kind: MetricKind::Counter,
    labels: &["during", "error"],
    text: "Errors of the store",
};
const TICKS: Metric = Metric {
    name: "tenure_ticks_total",
    kind: MetricKind::Counter,
    labels: &["outcome"],
    text: "Ticks of jobs that are over for this process",
};

type Labels<'a> = &'a [(&'static str, &'static str)];

#[cfg(feature = "metrics")]
fn count(metric: &Metric, labels: Labels<'_>) {
    ::metrics::counter!(metric.name, labels).increment(1);
}

#[cfg(feature = "metrics")]
fn record(metric: &Metric, labels: Labels<'_>, value: impl FnOnce() -> f64) {
    ::metrics::histogram!(metric.name, labels).record(value());
}

#[cfg(not(feature = "metrics"))]
fn count(_: &Metric, _: Labels<'_>) {}

#[cfg(not(feature = "metrics"))]
fn record(_: &Metric, _: Labels<'_>, _: impl FnOnce() -> f64) {}

/// Gives the recorder units and texts. Whatever is installed later does without.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    for Metric { name, kind, text, .. } in METRICS {
        let unit = match name.ends_with("_seconds") {
            true => ::metrics::Unit::Seconds,
            false => ::metrics::Unit::Count,
        };
        match kind {
            MetricKind::Counter => ::metrics::describe_counter!(*name, unit, *text),
            MetricKind::Histogram => ::metrics::describe_histogram!(*name, unit, *text),
        }
    }
}

/// When a holding began. Nothing at all without the feature, and then no clock is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Began(#[cfg(feature = "metrics")] u64);

impl Began {
    /// `now` reads the node's clock, in nanoseconds.
    pub(crate) fn at(now: impl FnOnce() -> u64) -> Self {
        #[cfg(not(feature = "metrics"))]
        let _ = now;
        Began(
            #[cfg(feature = "metrics")]
            now(),
        )
    }

    #[cfg(feature = "metrics")]
    fn span(self, now: u64) -> Duration {
        Duration::from_nanos(now.saturating_sub(self.0))
    }

    #[cfg(not(feature = "metrics"))]
    fn span(self, _: u64) -> Duration {
        Duration::ZERO
    }
}

fn kind(name: &Name) -> (&'static str, &'static str) {
    ("kind", name.kind.word())
}

/// A caller that asked for a lock has its answer. A tick that is not due is refused without an error.
pub(crate) fn answered(name: &Name, waited: Duration, answer: Result<(), Option<&Error>>) {
    let outcome = match answer {
        Ok(()) => "granted",
        Err(None) => "not_due",
        Err(Some(Error::Busy { .. })) => "busy",
        Err(Some(Error::QueueFull { .. })) => "queue_full",
        Err(Some(Error::Store { .. })) => "store",
        Err(Some(Error::Closed { .. })) => "closed",
        Err(Some(Error::Key { .. } | Error::Options(_) | Error::Lost { .. })) => "invalid",
    };
    record(&WAIT, &[kind(name), ("outcome", outcome)], || {
        waited.as_secs_f64()
    });
    if answer.is_ok() {
        count(&GRANTS, &[kind(name)]);
    }
}

/// A caller that asked for a lock waits no more.
pub(crate) fn gave_up(name: &Name, since: Option<Instant>) {
    record(&WAIT, &[kind(name), ("outcome", "gave_up")], || {
        since.map_or(0.0, |since| since.elapsed().as_secs_f64())
    });
}

/// A guard gives its lock back. `now` is as for [`Began::at`], and `over` tells whether it had been lost.
pub(crate) fn held(
    name: &Name,
    began: Began,
    now: impl FnOnce() -> u64,
    over: impl FnOnce() -> Option<LostCause>,
) {
    if cfg!(feature = "metrics") {
        let outcome = if over().is_some() { "lost" } else { "released" };
        record(&HOLD, &[kind(name), ("outcome", outcome)], || {
            began.span(now()).as_secs_f64()
        });
    }
}

/// A lease passed to the next holder, within the process or from another one.
pub(super) fn handed(name: &Name, from: &'static str) {
    count(&HANDOFFS, &[kind(name), ("from", from)]);
}

pub(super) fn lost(name: &Name, cause: LostCause) {
    let cause = match cause {
        LostCause::Deadline => "deadline",
        LostCause::Gone => "gone",
        LostCause::Ended => "ended",
        LostCause::Shutdown => "shutdown",
        LostCause::Released => "released",
    };
    count(&LOSSES, &[kind(name), ("cause", cause)]);
}

pub(super) fn renewed(slack: Duration) {
    record(&SLACK, &[], || slack.as_secs_f64());
}

/// So many requests leave for the store in one batch.
pub(crate) fn departed(requests: usize) {
    record(&BATCH, &[], || requests as f64);
}

pub(super) fn store_failed(during: &'static str, error: &StoreError) {
    count(&ERRORS, &[("during", during), ("error", word(error.kind()))]);
}

/// A dead claim could not be withdrawn before it ended by itself. Without an error the last try got no answer.
pub(super) fn leave_failed(error: Option<&StoreError>) {
    let error = word(error.map_or(&StoreErrorKind::TimedOut, StoreError::kind));
    count(&ERRORS, &[("during", "withdraw"), ("error", error)]);
}

fn word(kind: &StoreErrorKind) -> &'static str {
    match kind {
        StoreErrorKind::Unreachable => "unreachable",
        StoreErrorKind::TimedOut => "timed_out",
        StoreErrorKind::Interrupted => "interrupted",
        StoreErrorKind::Refused(refusal) => match refusal {
            Refusal::WrongType => "wrong_type",
            Refusal::OutOfMemory => "out_of_memory",
            Refusal::ReadOnly => "read_only",
            Refusal::Loading => "loading",
            Refusal::Busy => "busy",
            Refusal::Misconfigured => "misconfigured",
            Refusal::NoReplicas => "no_replicas",
            Refusal::NoAuth => "no_auth",
            Refusal::WrongPassword => "wrong_password",
            Refusal::NoPermission => "no_permission",
            Refusal::Unsupported => "unsupported",
            Refusal::Other(_) => "other",
        },
    }
}

#[cfg_attr(not(feature = "scheduler"), allow(dead_code, reason = "only jobs have ticks"))]
pub(super) fn ticked(outcome: &'static str) {
    count(&TICKS, &[("outcome", outcome)]);
}
