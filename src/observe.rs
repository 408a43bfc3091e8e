//! Everything that this crate tells: events through [`tracing`], and with the feature `metrics` numbers through the
//! `metrics` facade. Names, fields, levels and labels are here and nowhere else.
//!
//! # Events
//!
//! All events have the target `tenure` and a field `event` with one of the names in [`EVENTS`]. Keys are a field of
//! events about one key, beside their `kind`: `lock` or `job`. They are no label of anything that is counted. What
//! happens to a node has its id as `node`, and everything but what layers tell has a `node_name`, if the
//! [builder](crate::locks::Builder::node_name) gave one.
//!
//! A server that fails is two events, however many leases and callers it concerns: `store_failing` when the first
//! connection is given up or the first request is refused or not answered in time, with the `server` and the `error`;
//! and `store_recovered` when it answers again, with `away_ms`, and what happened in between: `requests_failed`,
//! `callers_refused`, `leases_lost`. After refusals, and when it failed again within five seconds, it counts as back
//! when nothing failed for five seconds. What fails for one key, caller or request is told at the level of debugging,
//! and counted by the metrics one by one. A lost lease is always told for itself.
//!
//! | event | level | what happened |
//! |---|---|---|
//! | `granted` | trace | a caller holds the lock now |
//! | `denied` | debug | a caller gets no lock |
//! | `handed_on` | trace | a lease went to the next caller of this process |
//! | `taken_over` | trace | the lease came to this process from another one, after waiting in the store's queue |
//! | `inherited` | info | the same, and the owner before had let it run out, as far as can be known here: it died, or lost sight of the store |
//! | `renewed` | trace | a lease was renewed; `slack_ms` of it had been left |
//! | `renew_failed` | debug | a renewal failed and is tried again while something is left |
//! | `lost` | error | a lease ended while it was held; warn when nobody had taken it up for a whole lease |
//! | `released` | trace | a lock was given back |
//! | `release_failed` | debug | the store could not be told; the lease ends by itself |
//! | `wait_failed` | debug | a waiter's heartbeat failed and is tried again |
//! | `requeued` | debug | the store forgot a waiter, which stands at the end of the queue again |
//! | `asked_again` | debug | an answer got lost and is asked for |
//! | `late` | debug | the store refused a claim because it arrived late |
//! | `unknown_grant` | debug | a grant for a number that is over was left at once |
//! | `stale_grant` | debug | a grant that came too late was ignored |
//! | `forged_grant` | error | a grant with a wrong nonce arrived: somebody else publishes on our channel |
//! | `store_failing` | warn | a server cannot be reached, does not answer in time, or refuses; told once for each node |
//! | `store_recovered` | warn | and is back, after `away_ms`, with what that cost |
//! | `connected` | debug | a connection to the store is open |
//! | `connection_lost` | debug | a connection was given up, was found closed, or could not be opened |
//! | `inbox_open` | debug | grants are pushed to this node; warn with `away_ms` after a warning that they were not |
//! | `inbox_lost` | warn | grants are not pushed; waiting goes by timers until the inbox is open again. Debug when `store_failing` explains it, and when it is repeated |
//! | `server_warning` | warn | a server is set up in a way that endangers leases |
//! | `driver_failed` | error | the background thread panicked, a fault of this crate, and goes on |
//! | `events_dropped` | warn | the subscriber was too slow: `count` events of the background were not told |
//! | `refused` | debug | a request got no lock and was answered by the layer; error when an option of the layer makes no sense |
//! | `lease_missing` | error | a handler asks for the lease on a route without a layer |
//! | `parameter_missing` | error | a layer locks a path parameter that its route does not have |
//! | `leave_failed` | debug | a dead claim could not be withdrawn; it ends by itself |
//! | `tick_starts` | debug | a tick of a job is run here; info when another node began it and did not end it (`attempt`) |
//! | `tick` | info | a tick is over for this node; `outcome` says how. Debug when another node ran it |
//! | `tick_failed` | warn | a job failed or panicked; its tick has ended |
//! | `tick_waits` | debug | the store cannot be reached, so nobody runs the tick; trying again |
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

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, error, info, trace, warn};

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

/// Whose events they are.
#[derive(Debug, Clone)]
pub(crate) struct Label {
    pub(crate) node: NodeId,
    /// What people call it.
    name: Option<Arc<str>>,
}

impl Label {
    pub(crate) fn new(node: NodeId, name: Option<&str>) -> Label {
        let name = name.map(Arc::from);
        Label { node, name }
    }

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// The value of the field `event`, for everything that is ever emitted.
pub const EVENTS: &[&str] = &[
    "granted",
    "denied",
    "handed_on",
    "taken_over",
    "inherited",
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
    "store_failing",
    "store_recovered",
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

pub(crate) fn granted(of: &Label, name: &Name, fence: Fence) {
    trace!(target: "tenure", event = "granted", node_name = of.name(), kind = name.kind.word(), key = %name.key, fence = fence.get(), "granted");
}

pub(crate) fn denied(of: &Label, name: &Name, why: &dyn std::fmt::Debug) {
    debug!(target: "tenure", event = "denied", node_name = of.name(), kind = name.kind.word(), key = %name.key, ?why, "denied");
}

pub(crate) fn denied_by_store(of: &Label, name: &Name, error: &StoreError) {
    metrics::store_failed("lock", error);
    debug!(target: "tenure", event = "denied", node_name = of.name(), kind = name.kind.word(), key = %name.key, %error, "denied");
}

pub(crate) fn handed_on(of: &Label, name: &Name) {
    trace!(target: "tenure", event = "handed_on", node_name = of.name(), kind = name.kind.word(), key = %name.key, "handed on within the process");
}

pub(crate) fn taken_over(of: &Label, name: &Name) {
    trace!(target: "tenure", event = "taken_over", node_name = of.name(), kind = name.kind.word(), key = %name.key, "handed over by another process");
}

pub(crate) fn inherited(of: &Label, name: &Name) {
    info!(target: "tenure", event = "inherited", node_name = of.name(), kind = name.kind.word(), key = %name.key, "granted because its owner let the lease run out");
}

pub(crate) fn renewed(of: &Label, name: &Name, slack: Duration) {
    let slack_ms = slack.as_millis() as u64;
    trace!(target: "tenure", event = "renewed", node_name = of.name(), kind = name.kind.word(), key = %name.key, slack_ms, "renewed");
}

pub(crate) fn renew_failed(of: &Label, name: &Name, left: Duration, error: &StoreError) {
    let left_ms = left.as_millis() as u64;
    debug!(target: "tenure", event = "renew_failed", node_name = of.name(), kind = name.kind.word(), key = %name.key, left_ms, %error, "renewal failed, trying again");
}

pub(crate) fn lost(of: &Label, name: &Name, cause: LostCause) {
    match cause {
        LostCause::Ended | LostCause::Shutdown | LostCause::Released => {
            debug!(target: "tenure", event = "lost", node_name = of.name(), kind = name.kind.word(), key = %name.key, %cause, "the lease is over");
        }
        LostCause::Unfetched => {
            warn!(target: "tenure", event = "lost", node_name = of.name(), kind = name.kind.word(), key = %name.key, %cause, "nobody took up the lease, it is given back");
        }
        LostCause::Deadline | LostCause::Gone => {
            error!(target: "tenure", event = "lost", node_name = of.name(), kind = name.kind.word(), key = %name.key, %cause, "the lease was lost while it was held");
        }
    }
}

pub(crate) fn released(of: &Label, name: &Name) {
    trace!(target: "tenure", event = "released", node_name = of.name(), kind = name.kind.word(), key = %name.key, "released");
}

pub(crate) fn release_failed(of: &Label, name: &Name, error: &StoreError) {
    metrics::store_failed("release", error);
    debug!(target: "tenure", event = "release_failed", node_name = of.name(), kind = name.kind.word(), key = %name.key, %error, "release failed, the lease ends by itself");
}

pub(crate) fn leave_failed(of: &Label, name: &Name, error: Option<&StoreError>) {
    let error = error.map(tracing::field::display);
    debug!(target: "tenure", event = "leave_failed", node_name = of.name(), kind = name.kind.word(), key = %name.key, error, "could not withdraw, the claim ends by itself");
}

pub(crate) fn wait_failed(of: &Label, name: &Name, error: &StoreError) {
    debug!(target: "tenure", event = "wait_failed", node_name = of.name(), kind = name.kind.word(), key = %name.key, %error, "a waiter's heartbeat failed, trying again");
}

pub(crate) fn requeued(of: &Label, name: &Name) {
    debug!(target: "tenure", event = "requeued", node_name = of.name(), kind = name.kind.word(), key = %name.key, "the store forgot our place, queueing again");
}

pub(crate) fn asked_again(of: &Label, name: &Name) {
    debug!(target: "tenure", event = "asked_again", node_name = of.name(), kind = name.kind.word(), key = %name.key, "an answer got lost, asking for it");
}

pub(crate) fn late(of: &Label, name: &Name) {
    debug!(target: "tenure", event = "late", node_name = of.name(), kind = name.kind.word(), key = %name.key, "the store refused a claim as late");
}

pub(crate) fn unknown_grant(of: &Label, name: &Name) {
    debug!(target: "tenure", event = "unknown_grant", node_name = of.name(), kind = name.kind.word(), key = %name.key, "granted to a claim that is over, leaving it");
}

pub(crate) fn stale_grant(of: &Label, name: &Name) {
    debug!(target: "tenure", event = "stale_grant", node_name = of.name(), kind = name.kind.word(), key = %name.key, "a grant came too late");
}

pub(crate) fn forged_grant(of: &Label, name: &Name) {
    error!(target: "tenure", event = "forged_grant", node_name = of.name(), kind = name.kind.word(), key = %name.key, "somebody else publishes on our channel");
}

pub(crate) fn connected(of: &Label, took: Duration) {
    let took_ms = took.as_millis() as u64;
    debug!(target: "tenure", event = "connected", node = %of.node, node_name = of.name(), took_ms, "connected to the store");
}

pub(crate) fn connection_lost(of: &Label, error: &StoreError) {
    debug!(target: "tenure", event = "connection_lost", node = %of.node, node_name = of.name(), %error, "a connection to the store was given up");
}

pub(crate) fn driver_failed(of: &Label) {
    error!(target: "tenure", event = "driver_failed", node = %of.node, node_name = of.name(), "the background thread panicked, a fault of this crate");
}

pub(crate) fn events_dropped(count: u64) {
    warn!(target: "tenure", event = "events_dropped", count, "the subscriber was too slow, events were not told");
}

/// `away`: for how long grants were not pushed, if that was told as a warning.
pub(crate) fn inbox_open(of: &Label, away: Option<Duration>) {
    if let Some(away) = away {
        let away_ms = away.as_millis() as u64;
        warn!(target: "tenure", event = "inbox_open", node = %of.node, node_name = of.name(), away_ms, "grants are pushed to this node again");
    } else {
        debug!(target: "tenure", event = "inbox_open", node = %of.node, node_name = of.name(), "grants are pushed to this node");
    }
}

/// `is_news`: nothing was told that explains it.
pub(crate) fn inbox_lost(of: &Label, error: &StoreError, is_news: bool) {
    if is_news {
        warn!(target: "tenure", event = "inbox_lost", node = %of.node, node_name = of.name(), %error, "grants are not pushed, waiting goes by timers");
    } else {
        debug!(target: "tenure", event = "inbox_lost", node = %of.node, node_name = of.name(), %error, "grants are still not pushed");
    }
}

pub(crate) fn store_failing(of: &Label, server: &str, error: &StoreError) {
    warn!(target: "tenure", event = "store_failing", node = %of.node, node_name = of.name(), server, %error, "the store fails; what that costs is counted until it is back");
}

pub(crate) fn store_recovered(
    of: &Label,
    server: &str,
    away: Duration,
    [requests_failed, callers_refused, leases_lost]: [u64; 3],
) {
    let away_ms = away.as_millis() as u64;
    warn!(target: "tenure", event = "store_recovered", node = %of.node, node_name = of.name(), server, away_ms, requests_failed, callers_refused, leases_lost, "the store is back");
}

pub(crate) fn server_warning(of: &Label, text: &str) {
    warn!(target: "tenure", event = "server_warning", node = %of.node, node_name = of.name(), "{text}");
}

/// A layer answers a request itself. `why` is the outcome's name; the client is told no more than that.
#[cfg(feature = "tower")]
pub(crate) fn refused(why: &dyn std::fmt::Debug, status: u16, error: Option<&crate::error::Error>) {
    use crate::error::Error;
    let text = error.map(tracing::field::display);
    match error {
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
pub(crate) fn tick_starts(of: &Label, job: &Key, mark: TickTime, attempt: u32) {
    if attempt > 1 {
        info!(target: "tenure", event = "tick_starts", node_name = of.name(), %job, tick_ms = mark.0, attempt, "running a tick that another one began and did not end");
    } else {
        debug!(target: "tenure", event = "tick_starts", node_name = of.name(), %job, tick_ms = mark.0, attempt, "running a tick");
    }
}

#[cfg(feature = "scheduler")]
pub(crate) fn tick(of: &Label, job: &Key, mark: TickTime, outcome: &'static str) {
    metrics::ticked(outcome);
    if outcome == "elsewhere" {
        debug!(target: "tenure", event = "tick", node_name = of.name(), %job, tick_ms = mark.0, outcome, "a tick is over");
    } else {
        info!(target: "tenure", event = "tick", node_name = of.name(), %job, tick_ms = mark.0, outcome, "a tick is over");
    }
}

#[cfg(feature = "scheduler")]
pub(crate) fn tick_failed(of: &Label, job: &Key, mark: TickTime, why: &str) {
    warn!(target: "tenure", event = "tick_failed", node_name = of.name(), %job, tick_ms = mark.0, why, "a job failed");
}

#[cfg(feature = "scheduler")]
pub(crate) fn tick_waits(of: &Label, job: &Key, mark: TickTime, error: &Error) {
    debug!(target: "tenure", event = "tick_waits", node_name = of.name(), %job, tick_ms = mark.0, %error, "nobody runs the tick, trying again");
}

#[cfg(feature = "scheduler")]
pub(crate) fn tick_untold(of: &Label, job: &Key, mark: TickTime, error: &Error) {
    warn!(target: "tenure", event = "tick_untold", node_name = of.name(), %job, tick_ms = mark.0, %error, "the store could not be told of the end");
}

/// Its tick is over with it, whichever that was.
#[cfg(feature = "scheduler")]
pub(crate) fn job_refused(of: &Label, job: &Key, why: &dyn std::fmt::Display) {
    metrics::ticked("refused");
    error!(target: "tenure", event = "job_refused", node_name = of.name(), %job, %why, "the job cannot be run");
}

#[cfg(feature = "axum")]
pub(crate) fn parameter_missing(parameter: &str, path: &str) {
    error!(target: "tenure", event = "parameter_missing", parameter, path, "a LockLayer locks a path parameter that this route does not have");
}
