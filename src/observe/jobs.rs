//! What is told of jobs beside their ticks: what is wrong with them, and with the clocks that they go by.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tracing::{Level, debug, error, info, warn};

use crate::error::Error;
use crate::key::Key;
use crate::observe::event::{Label, event_at};
use crate::observe::metrics;
use crate::protocol::message::TickTime;

/// A run that came to its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ran {
    pub(crate) attempt: u32,
    pub(crate) fence: u64,
    pub(crate) took: Duration,
}

/// A try that failed: which, of how many, and after which pause the next follows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailedTry {
    pub(crate) number: u32,
    pub(crate) of: u32,
    pub(crate) again: Option<Duration>,
}

pub(crate) fn tick_early(of: &Label, job: &Key, mark: TickTime, left: Duration) {
    metrics::alarmed("early");
    let early_ms = left.as_millis() as u64;
    debug!(target: "tenure", event = "tick_early", node_name = of.name(), %job, tick_ms = mark.0, early_ms, "by the store's clock it is not time for the tick");
}

pub(crate) fn clock_skewed(of: &Label, job: &Key, skew: Duration, is_ahead: bool) {
    metrics::alarmed("skewed");
    let skew_ms = skew.as_millis() as u64;
    warn!(target: "tenure", event = "clock_skewed", node_name = of.name(), %job, skew_ms, is_ahead, "this node's clock and the store's differ");
}

pub(crate) fn tick_overtaken(of: &Label, job: &Key, mark: TickTime) {
    metrics::alarmed("overtaken");
    warn!(target: "tenure", event = "tick_overtaken", node_name = of.name(), %job, tick_ms = mark.0, "a tick that had not ended was overtaken by the next, and is never run again");
}

pub(crate) fn ticks_passed_over(of: &Label, job: &Key, after: TickTime, next: TickTime) {
    metrics::alarmed("passed_over");
    warn!(target: "tenure", event = "ticks_passed_over", node_name = of.name(), %job, after_ms = after.0, next_ms = next.0, "ticks that could not be begun in time are too old or too many to be made up for, and are never run");
}

pub(crate) fn tick_given_up(of: &Label, job: &Key, mark: TickTime, attempts: u32) {
    metrics::alarmed("given_up");
    warn!(target: "tenure", event = "tick_given_up", node_name = of.name(), %job, tick_ms = mark.0, attempts, "a tick was begun again and again and never ended, and is given up");
}

pub(crate) fn mark_ahead(of: &Label, job: &Key, ahead_ms: u64) {
    metrics::alarmed("mark_ahead");
    error!(target: "tenure", event = "mark_ahead", node_name = of.name(), %job, ahead_ms, "the store knows of a tick ahead of its clock, and runs none before: call `Locks::reset_job`");
}

pub(crate) fn store_went_back(of: &Label, job: &Key, mark: TickTime) {
    metrics::alarmed("went_back");
    error!(target: "tenure", event = "store_went_back", node_name = of.name(), %job, tick_ms = mark.0, "the store came back without what it had acknowledged, and would have run ticks again that were over, up to this one: it was told so, and does not. What no living node knows of may be run again: look at the server's persistence and failover");
}

pub(crate) fn job_differs(of: &Label, job: &Key) {
    metrics::alarmed("differs");
    warn!(target: "tenure", event = "job_differs", node_name = of.name(), %job, "another service, or another expression, uses the name of this job, and each runs the other's ticks");
}

pub(crate) fn job_skips(of: &Label, job: &Key, skips: u32) {
    metrics::alarmed("skips");
    error!(target: "tenure", event = "job_skips", node_name = of.name(), %job, skips, "a job runs on and on, and its ticks are skipped one after the other");
}

pub(crate) fn job_blocks(of: &Label, job: &Key, mark: TickTime, lasts: Duration) {
    metrics::alarmed("blocks");
    let blocked_ms = lasts.as_millis() as u64;
    warn!(target: "tenure", event = "job_blocks", node_name = of.name(), %job, tick_ms = mark.0, blocked_ms, "a job comes to no await: it blocks its runtime, and cannot be cancelled; its lease is renewed");
}

pub(crate) fn engine_missed(of: &Label, job: &Key, mark: TickTime) {
    metrics::alarmed("engine_missed");
    warn!(target: "tenure", event = "engine_missed", node_name = of.name(), %job, tick_ms = mark.0, "the scheduler did not fire a tick, which is started without it");
}

pub(crate) fn storage_shared(of: &Label, job: &Key, foreign: uuid::Uuid) {
    metrics::alarmed("storage_shared");
    error!(target: "tenure", event = "storage_shared", node_name = of.name(), %job, %foreign, "the scheduler's storage has jobs of another process, and each fires what is the other's");
}

pub(crate) fn job_odd_days(of: &Label, job: &Key, days: usize, first: &dyn std::fmt::Display) {
    info!(target: "tenure", event = "job_odd_days", node_name = of.name(), %job, days, %first, "as clocks change in the job's zone, some ticks come twice, not at all or at another time");
}

pub(crate) fn tick_starts(of: &Label, job: &Key, mark: TickTime, attempt: u32) {
    let text = if attempt > 1 {
        "running a tick that another one began and did not end"
    } else {
        "running a tick"
    };
    info!(target: "tenure", event = "tick_starts", node_name = of.name(), %job, tick = date(mark), tick_ms = mark.0, attempt, "{text}");
}

pub(crate) fn tick(of: &Label, job: &Key, mark: TickTime, outcome: &'static str, ran: Option<Ran>) {
    metrics::ticked(outcome);
    let (attempt, fence) = (ran.map(|ran| ran.attempt), ran.map(|ran| ran.fence));
    let took_ms = ran.map(|ran| ran.took.as_millis() as u64);
    let (level, text) = match outcome {
        "elsewhere" => (Level::DEBUG, "a tick is over"),
        "missed" => (
            Level::WARN,
            "a tick was missed: no node has run it to its end, and none will",
        ),
        _ => (Level::INFO, "a tick is over"),
    };
    event_at!(level: event = "tick", node_name = of.name(), %job, tick = date(mark), tick_ms = mark.0, outcome, took_ms, attempt, fence, "{text}");
}

/// The nominal time as RFC 3339.
fn date(mark: TickTime) -> impl tracing::Value {
    let ms = i64::try_from(mark.0).unwrap_or(i64::MAX);
    tracing::field::debug(DateTime::from_timestamp_millis(ms).unwrap_or(DateTime::<Utc>::MAX_UTC))
}

pub(crate) fn tick_failed(
    of: &Label,
    job: &Key,
    mark: TickTime,
    why: &str,
    failed: FailedTry,
    is_timeout: bool,
) {
    let next = failed.again.map_or_else(String::new, |pause| {
        format!(", again in {} s", pause.as_millis() as f64 / 1_000.0)
    });
    let is_final = failed.again.is_none() || is_timeout;
    let level = if is_final { Level::WARN } else { Level::INFO };
    event_at!(level: event = "tick_failed", node_name = of.name(), %job, tick = date(mark), tick_ms = mark.0, why, "a job failed: try {} of {}{next}", failed.number, failed.of);
}

pub(crate) fn tick_waits(of: &Label, job: &Key, mark: TickTime, error: &Error) {
    debug!(target: "tenure", event = "tick_waits", node_name = of.name(), %job, tick_ms = mark.0, %error, "nobody runs the tick, trying again");
}

pub(crate) fn tick_untold(of: &Label, job: &Key, mark: TickTime, error: &Error) {
    warn!(target: "tenure", event = "tick_untold", node_name = of.name(), %job, tick_ms = mark.0, %error, "the store could not be told of the end");
}

/// Its tick is over with it, whichever that was.
pub(crate) fn job_refused(of: &Label, job: &Key, why: &dyn std::fmt::Display) {
    metrics::ticked("refused");
    error!(target: "tenure", event = "job_refused", node_name = of.name(), %job, %why, "the job cannot be run");
}
