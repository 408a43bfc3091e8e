//! Everything that this crate tells: events through [`tracing`], and with the feature `metrics` numbers through the
//! `metrics` facade. Names, fields, levels and labels are here and nowhere else.
//!
//! # Events
//!
//! All events have the target `tenure` and a field `event` with one of the names in [`EVENTS`]. Keys are a field of
//! events about one key, and are no label of anything that is counted.
//!
//! | event | level | what happened |
//! |---|---|---|
//! | `granted` | trace | a caller holds the lock now |
//! | `denied` | debug | a caller gets no lock |
//! | `handed_on` | trace | a lease went to the next caller of this process |
//! | `taken_over` | trace | the lease came to this process from another one, after waiting in the store's queue |
//! | `renewed` | trace | a lease was renewed; `slack_ms` of it had been left |
//! | `renew_failed` | warn | a renewal failed and is tried again while something is left |
//! | `lost` | error | a lease ended while it was held; warn when nobody had taken it up for a whole lease |
//! | `released` | trace | a lock was given back |
//! | `release_failed` | warn | the store could not be told; the lease ends by itself |
//! | `wait_failed` | warn | a waiter's heartbeat failed and is tried again |
//! | `requeued` | debug | the store forgot a waiter, which stands at the end of the queue again |
//! | `asked_again` | debug | an answer got lost and is asked for |
//! | `late` | warn | the store refused a claim because it arrived late |
//! | `unknown_grant` | debug | a grant for a number that is over was left at once |
//! | `stale_grant` | debug | a grant that came too late was ignored |
//! | `forged_grant` | error | a grant with a wrong nonce arrived: somebody else publishes on our channel |
//! | `connected` | debug | a connection to the store is open |
//! | `connection_lost` | warn | a connection was given up |
//! | `inbox_open` | debug | grants are pushed to this node |
//! | `inbox_lost` | warn | grants are not pushed; waiting goes by timers until the inbox is open again |
//! | `server_warning` | warn | a server is set up in a way that endangers leases |
//! | `driver_failed` | error | the background thread panicked, a fault of this crate, and goes on |
//! | `events_dropped` | warn | the subscriber was too slow: `count` events of the background were not told |
//! | `refused` | debug | a request got no lock and was answered by the layer; warn and error when that is no fault of the client's |
//! | `lease_missing` | error | a handler asks for the lease on a route without a layer |
//! | `parameter_missing` | error | a layer locks a path parameter that its route does not have |
//! | `leave_failed` | warn | a dead claim could not be withdrawn; it ends by itself |
//! | `tick_starts` | debug | a tick of a job is run here |
//! | `tick` | info | a tick is over for this node; `outcome` says how. Debug when another node ran it |
//! | `tick_failed` | warn | a job failed or panicked; its tick has ended |
//! | `tick_waits` | warn | the store cannot be reached, so nobody runs the tick; trying again |
//! | `tick_untold` | warn | a tick has ended, and the store could not be told |
//! | `job_refused` | error | a job cannot be run as it is scheduled |
//!
//! What a caller sees (`granted`, `denied`, `released`, `release_failed`, and all of layers and jobs) is told on its own
//! thread, in its span. What happens in the background goes through a bounded queue to one thread of the process,
//! `tenure-events`: a subscriber that blocks or panics costs no lease and delays no caller. It is told to the subscriber
//! that was the default, scoped ones included, when the `Locks` were built; if there was none, to the global one of the
//! moment. A full queue drops what it has no room for and says how much (`events_dropped`); losses have room of their
//! own.
//!
//! # Metrics
//!
//! With `features = ["metrics"]`. Whatever recorder you install receives them; install it before `Locks` are built, so
//! that it also learns units and texts. What happens in the background is counted at once, and told to the global
//! recorder within a tenth of a second by the thread `tenure-events`; a recorder that is local to a thread sees what
//! the callers of that thread see. They are listed in [`METRICS`]. Counters end with `_total`, spans of time with
//! `_seconds`. The values of labels below are all that there are: neither keys nor nodes are among them.
//!
//! | metric | kind | unit | labels | what it says |
//! |---|---|---|---|---|
//! | `tenure_grants_total` | counter | callers | `kind`: `lock`, or `job` for the ticks of a job | callers that got a lock |
//! | `tenure_wait_seconds` | histogram | seconds | `kind`: `lock`, `job`. `outcome`: `granted`, `busy`, `queue_full`, `store`, `closed`, `invalid` (a key or an option), `not_due` (a tick that is over, or early), or `gave_up` | from asking for a lock to the answer; giving up is to drop the future, as a timeout does |
//! | `tenure_hold_seconds` | histogram | seconds | `kind`: `lock`, `job`. `outcome`: `released`, or `lost` when the guard had been told before that the lease was lost | from getting a lock to giving it back or dropping the guard |
//! | `tenure_handoffs_total` | counter | leases | `kind`: `lock`, `job`. `from`: `local`, a caller of this process; `remote`, the store's queue | leases that passed from one holder to the next who waited |
//! | `tenure_losses_total` | counter | leases | `kind`: `lock`, `job`. `cause`: `deadline` and `gone` are trouble; `unfetched` (nobody polled the future that it was granted to) is a fault of the program; `ended` (a fixed lease) and `shutdown` are neither | leases that ended before their guard did |
//! | `tenure_renewal_slack_seconds` | histogram | seconds | | what had been left of a lease when the answer to its renewal came. Two thirds of the lease are normal; near zero leases are about to be lost |
//! | `tenure_batch_requests` | histogram | requests | | requests that travelled to the store together |
//! | `tenure_store_errors_total` | counter | errors | `during`: `lock` (callers that were refused), `wait` and `renew` (tried again), `release` (a caller was told), `withdraw` (given up, it ends by itself), `connection`, `inbox`. `error`: `unreachable`, `timed_out`, `interrupted`, or why it refused: `wrong_type`, `out_of_memory`, `read_only`, `loading`, `busy`, `misconfigured`, `no_replicas`, `no_auth`, `wrong_password`, `no_permission`, `unsupported`, `other` | errors of the store |
//! | `tenure_ticks_total` | counter | ticks | `outcome`: `done`, `failed`, `panicked`, `elsewhere`, `skipped`, `missed`, `drained`, `refused` | ticks that are over for this process; the module `scheduler` says what the words mean. A run that loses its lease is a loss of a `job`; its tick is over when this process knows who ended it |

use std::time::Duration;

#[cfg(feature = "scheduler")]
use tracing::info;
use tracing::{debug, error, trace, warn};

#[cfg(feature = "scheduler")]
use crate::error::Error;
use crate::error::{LostCause, StoreError};
#[cfg(feature = "scheduler")]
use crate::key::Key;
#[cfg(feature = "scheduler")]
use crate::protocol::message::TickTime;
use crate::protocol::message::{Fence, Name, NodeId};

mod metrics;
mod shield;

pub(crate) use metrics::{Began, answered, describe, gave_up, held, kept};
pub use metrics::{METRICS, Metric, MetricKind};
pub(crate) use shield::shielded;

/// The value of the field `event`, for everything that is ever emitted.
pub const EVENTS: &[&str] = &[
    "granted",
    "denied",
    "handed_on",
    "taken_over",
    "renewed",
    "renew_failed",
    "lost",
    "released",
    "release_failed",
    "wait_failed",
    "requeued",
    "asked_again",
    "late",
    "unknown_grant",
    "stale_grant",
    "forged_grant",
    "connected",
    "connection_lost",
    "inbox_open",
    "inbox_lost",
    "server_warning",
    "refused",
    "lease_missing",
    "parameter_missing",
    "leave_failed",
    "tick_starts",
    "tick",
    "tick_failed",
    "tick_waits",
    "tick_untold",
    "job_refused",
    "driver_failed",
    "events_dropped",
];

pub(crate) fn granted(name: &Name, fence: Fence) {
    trace!(target: "tenure", event = "granted", key = %name.key, fence = fence.get(), "granted");
}

pub(crate) fn denied(name: &Name, why: &dyn std::fmt::Debug) {
    debug!(target: "tenure", event = "denied", key = %name.key, ?why, "denied");
}

pub(crate) fn denied_by_store(name: &Name, error: &StoreError) {
    metrics::store_failed("lock", error);
    debug!(target: "tenure", event = "denied", key = %name.key, %error, "denied");
}

pub(crate) fn handed_on(name: &Name) {
    trace!(target: "tenure", event = "handed_on", key = %name.key, "handed on within the process");
}

pub(crate) fn taken_over(name: &Name) {
    trace!(target: "tenure", event = "taken_over", key = %name.key, "handed over by another process");
}

pub(crate) fn renewed(name: &Name, slack: Duration) {
    let slack_ms = slack.as_millis() as u64;
    trace!(target: "tenure", event = "renewed", key = %name.key, slack_ms, "renewed");
}

pub(crate) fn renew_failed(name: &Name, left: Duration, error: &StoreError) {
    let left_ms = left.as_millis() as u64;
    warn!(target: "tenure", event = "renew_failed", key = %name.key, left_ms, %error, "renewal failed, trying again");
}

pub(crate) fn lost(name: &Name, cause: LostCause) {
    match cause {
        LostCause::Ended | LostCause::Shutdown | LostCause::Released => {
            debug!(target: "tenure", event = "lost", key = %name.key, %cause, "the lease is over");
        }
        LostCause::Unfetched => {
            warn!(target: "tenure", event = "lost", key = %name.key, %cause, "nobody took up the lease, it is given back");
        }
        LostCause::Deadline | LostCause::Gone => {
            error!(target: "tenure", event = "lost", key = %name.key, %cause, "the lease was lost while it was held");
        }
    }
}

pub(crate) fn released(name: &Name) {
    trace!(target: "tenure", event = "released", key = %name.key, "released");
}

pub(crate) fn release_failed(name: &Name, error: &StoreError) {
    metrics::store_failed("release", error);
    warn!(target: "tenure", event = "release_failed", key = %name.key, %error, "release failed, the lease ends by itself");
}

pub(crate) fn leave_failed(name: &Name, error: Option<&StoreError>) {
    let error = error.map(tracing::field::display);
    warn!(target: "tenure", event = "leave_failed", key = %name.key, error, "could not withdraw, the claim ends by itself");
}

pub(crate) fn wait_failed(name: &Name, error: &StoreError) {
    warn!(target: "tenure", event = "wait_failed", key = %name.key, %error, "a waiter's heartbeat failed, trying again");
}

pub(crate) fn requeued(name: &Name) {
    debug!(target: "tenure", event = "requeued", key = %name.key, "the store forgot our place, queueing again");
}

pub(crate) fn asked_again(name: &Name) {
    debug!(target: "tenure", event = "asked_again", key = %name.key, "an answer got lost, asking for it");
}

pub(crate) fn late(name: &Name) {
    warn!(target: "tenure", event = "late", key = %name.key, "the store refused a claim as late");
}

pub(crate) fn unknown_grant(name: &Name) {
    debug!(target: "tenure", event = "unknown_grant", key = %name.key, "granted to a claim that is over, leaving it");
}

pub(crate) fn stale_grant(name: &Name) {
    debug!(target: "tenure", event = "stale_grant", key = %name.key, "a grant came too late");
}

pub(crate) fn forged_grant(name: &Name) {
    error!(target: "tenure", event = "forged_grant", key = %name.key, "somebody else publishes on our channel");
}

pub(crate) fn connected(node: NodeId, took: Duration) {
    let took_ms = took.as_millis() as u64;
    debug!(target: "tenure", event = "connected", %node, took_ms, "connected to the store");
}

pub(crate) fn connection_lost(node: NodeId, error: &StoreError) {
    warn!(target: "tenure", event = "connection_lost", %node, %error, "a connection to the store was given up");
}

pub(crate) fn driver_failed(node: NodeId) {
    error!(target: "tenure", event = "driver_failed", %node, "the background thread panicked, a fault of this crate");
}

pub(crate) fn events_dropped(count: u64) {
    warn!(target: "tenure", event = "events_dropped", count, "the subscriber was too slow, events were not told");
}

pub(crate) fn inbox_open(node: NodeId) {
    debug!(target: "tenure", event = "inbox_open", %node, "grants are pushed to this node");
}

pub(crate) fn inbox_lost(node: NodeId, error: &StoreError) {
    warn!(target: "tenure", event = "inbox_lost", %node, %error, "grants are not pushed, waiting goes by timers");
}

pub(crate) fn server_warning(node: NodeId, text: &str) {
    warn!(target: "tenure", event = "server_warning", %node, "{text}");
}

/// A layer answers a request itself. `why` is the outcome's name; the client is told no more than that.
#[cfg(feature = "tower")]
pub(crate) fn refused(why: &dyn std::fmt::Debug, status: u16, error: Option<&crate::error::Error>) {
    use crate::error::Error;
    let text = error.map(tracing::field::display);
    match error {
        Some(Error::Store { .. } | Error::Connect { .. }) => {
            warn!(target: "tenure", event = "refused", ?why, status, error = text, "a request was refused");
        }
        Some(Error::Options(_)) => {
            error!(target: "tenure", event = "refused", ?why, status, error = text, "a request was refused");
        }
        _ => debug!(target: "tenure", event = "refused", ?why, status, error = text, "a request was refused"),
    }
}

#[cfg(feature = "axum")]
pub(crate) fn lease_missing(path: &str) {
    error!(target: "tenure", event = "lease_missing", path, "a handler asks for a lease, and no LockLayer took one");
}

#[cfg(feature = "scheduler")]
pub(crate) fn tick_starts(job: &Key, mark: TickTime, attempt: u32) {
    debug!(target: "tenure", event = "tick_starts", %job, tick_ms = mark.0, attempt, "running a tick");
}

#[cfg(feature = "scheduler")]
pub(crate) fn tick(job: &Key, mark: TickTime, outcome: &'static str) {
    metrics::ticked(outcome);
    if outcome == "elsewhere" {
        debug!(target: "tenure", event = "tick", %job, tick_ms = mark.0, outcome, "a tick is over");
    } else {
        info!(target: "tenure", event = "tick", %job, tick_ms = mark.0, outcome, "a tick is over");
    }
}

#[cfg(feature = "scheduler")]
pub(crate) fn tick_failed(job: &Key, mark: TickTime, why: &str) {
    warn!(target: "tenure", event = "tick_failed", %job, tick_ms = mark.0, why, "a job failed");
}

#[cfg(feature = "scheduler")]
pub(crate) fn tick_waits(job: &Key, mark: TickTime, error: &Error) {
    warn!(target: "tenure", event = "tick_waits", %job, tick_ms = mark.0, %error, "nobody runs the tick, trying again");
}

#[cfg(feature = "scheduler")]
pub(crate) fn tick_untold(job: &Key, mark: TickTime, error: &Error) {
    warn!(target: "tenure", event = "tick_untold", %job, tick_ms = mark.0, %error, "the store could not be told of the end");
}

/// Its tick is over with it, whichever that was.
#[cfg(feature = "scheduler")]
pub(crate) fn job_refused(job: &Key, why: &dyn std::fmt::Display) {
    metrics::ticked("refused");
    error!(target: "tenure", event = "job_refused", %job, %why, "the job cannot be run");
}

#[cfg(feature = "axum")]
pub(crate) fn parameter_missing(parameter: &str, path: &str) {
    error!(target: "tenure", event = "parameter_missing", parameter, path, "a LockLayer locks a path parameter that this route does not have");
}
