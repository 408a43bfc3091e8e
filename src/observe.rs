//! Everything that this crate tells: events through [`tracing`], and with the feature `metrics` numbers through the
//! `metrics` facade. Names, fields, levels and labels are here and nowhere else.
//!
//! # Events
//!
//! Events of a tick have its nominal time as `tick_ms`, those of its runs and its end also as `tick`, by RFC 3339.
//!
//! All events have the target `tenure` and a field `event` with one of the names in [`EVENTS`]. Keys are a field of
//! events about one key, beside their `kind`: `lock`, `job`, `semaphore`, `election` or `latch`. They are no label of anything that is counted. What
//! happens to a node has its id as `node`, and everything but what layers tell has a `node_name`, if the
//! [builder](crate::locks::Builder::node_name) gave one.
//!
//! A server that fails is two events, however many leases and callers it concerns: `store_failing` when the first
//! connection is given up or the first request is refused or not answered in time, with the `server` and the `error`;
//! and `store_recovered` when it answers again and its inbox is open again, with `away_ms`, and what happened in between:
//! `requests_failed`, `callers_refused`, `leases_lost`. After refusals, and when it failed again within five seconds, it counts as back
//! when nothing failed for five seconds. What fails for one key, caller or request is told at the level of debugging,
//! and counted by the metrics one by one. A lost lease is always told for itself.
//!
//! | event | level | what happened |
//! |---|---|---|
//! | `locks_built` | info | `Locks` were built: `node`, `node_name`, the `server` without its password, the `prefix` of their records |
//! | `granted` | trace | a caller holds the lock now |
//! | `denied` | debug | a caller gets no lock |
//! | `handed_on` | trace | a lease went to the next caller of this process |
//! | `taken_over` | trace | the lease came to this process from another one, after waiting in the store's queue |
//! | `inherited` | info | the same, and the owner before had let it run out, as far as can be known here: it died, or lost sight of the store. `from` is the node of that owner, of a lease that one alone has |
//! | `renewed` | trace | a lease was renewed; `slack_ms` of it had been left |
//! | `renew_failed` | debug | a renewal failed and is tried again while something is left |
//! | `overdue` | warn | a lock was held for as long as its `max_hold` allows; it is renewed no more and lost after `left_ms` |
//! | `held_long` | warn | a lock has been held for longer than is usual ([`Builder::long_hold`](crate::locks::Builder::long_hold)), `held_ms` so far; told once for each holding, and never of jobs and leaders |
//! | `capacity_differs` | warn | a semaphore is used with `ours` permits here and `theirs` elsewhere, as while a deploy changes it; told once a minute |
//! | `lost` | error | a lease ended while it was held; warn when it was not taken up for a whole lease, or its `max_hold` was over; debug when a fixed lease or the node came to its end. With `paused_ms` when its deadline passed while this process stood still |
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
//! | `store_recovered` | warn | and is back, its inbox too, after `away_ms`, with what that cost; `is_another` when another run of it answers, after a restart or a failover |
//! | `server_changed` | warn | another run of the server answers at its address, and no failure was noticed |
//! | `connected` | debug | a connection to the store is open |
//! | `connection_lost` | debug | a connection was given up, was found closed, or could not be opened |
//! | `inbox_open` | debug | grants are pushed to this node; warn with `away_ms` after a warning that they were not |
//! | `inbox_lost` | warn | grants are not pushed; waiting goes by timers until the inbox is open again. Told when the connection for commands still answers. Debug when `store_failing` explains it, and when it is repeated |
//! | `server_warning` | warn | a server is set up in a way that endangers leases |
//! | `process_paused` | warn | this process stood still for `paused_ms` at least: it was stopped (SIGSTOP), the machine was suspended, or the background thread got no processor or was blocked by a waker. Comes first; what was lost in it says so, and no server or scheduler is blamed for it |
//! | `driver_failed` | error | the background thread panicked, a fault of this crate, and goes on |
//! | `events_dropped` | warn | the subscriber was too slow: `count` events of the background were not told |
//! | `refused` | debug | a request got no lock and was answered by the layer, with this `status`, on this `route`; error for the first one of a layer that is set up wrongly |
//! | `refused_busy` | warn | a layer refused `count` requests since it told this last, because their keys were busy or too many waited; `route` is that of the latest. The first is told at once, and what follows once a minute |
//! | `dry_run` | info | a layer in a dry run let a request run that would have waited (`outcome` is `overlap`) or would have been refused (`refused`) |
//! | `lease_missing` | error | a handler asks for the lease on a route without a layer |
//! | `parameter_missing` | error | a layer locks a path parameter that its route does not have; an error once a minute for each route, else debug |
//! | `parameter_twice` | error | a layer locks a path parameter that its route has twice; likewise |
//! | `extension_missing` | error | a layer's key is made of an extension that the request does not have: layers are in the wrong order; likewise |
//! | `leave_failed` | debug | a dead claim could not be withdrawn; it ends by itself |
//! | `tick_starts` | info | a tick of a job is run here; with an `attempt` above 1 another node began it and did not end it |
//! | `tick` | info | a tick is over for this node; `outcome` says how, and of a run here `took_ms`, `attempt` and `fence` do. Debug when another node ran it. Warn when it was `missed`: the store was asked again, and no node was granted it. The store knows the latest two ticks that were granted; a tick before these counts as run elsewhere |
//! | `tick_failed` | warn | a job failed, panicked or ran into its timeout: "try 2 of 4, again in 3 s". Info when it is tried again and it was no timeout |
//! | `tick_waits` | debug | the store cannot be reached, so nobody runs the tick; trying again |
//! | `tick_untold` | warn | a tick has ended, and the store could not be told |
//! | `job_refused` | error | a job cannot be run as it is scheduled |
//! | `tick_early` | debug | by the store's clock it is not time for a tick, by `early_ms` |
//! | `tick_overtaken` | warn | a tick that had not ended was overtaken by the next, and is never run again; not told when the next had been waiting for it (`Overlap::QueueOne`) |
//! | `ticks_passed_over` | warn | ticks after `after_ms` and before `next_ms` were too old or too many to be made up for, and are never run |
//! | `tick_given_up` | warn | a tick was begun as often as it may be and never ended; it is not run again |
//! | `job_skips` | error | three ticks in a row, or more, were skipped, as an earlier one was still being run |
//! | `job_blocks` | warn | a run came to no await for a third of its lease: it blocks its runtime, and cannot be cancelled |
//! | `mark_ahead` | error | the store knows of a tick ahead of its clock, and runs none before; `Locks::reset_job` mends it |
//! | `clock_skewed` | warn | this node's clock and the store's differ by more than a second |
//! | `store_went_back` | error | the store came back with an older copy of what it had acknowledged, and was told which ticks of a job are over |
//! | `job_differs` | warn | another service or another expression uses the name of a job |
//! | `engine_missed` | warn | the scheduler did not fire a tick within a second, and it is started without it |
//! | `storage_shared` | error | the scheduler's storage has jobs of another process |
//! | `job_odd_days` | info | on so many `days` of the next two years a job's ticks come twice, not at all or at another time, as clocks change; `first` is the first of them |
//!
//! What a caller sees (`granted`, `denied`, `released`, `release_failed`, and all of layers and jobs) is told on its own
//! thread, in its span: a subscriber that blocks stops that thread, as it does for events of your own. Who writes to a pipe
//! that may be full writes by a thread of its own, such as `tracing_appender::non_blocking`. What happens in the background goes through a bounded queue to one thread of the process,
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
//! | `tenure_grants_total` | counter | callers | `kind`: `lock`, `job` for the ticks of a job, `semaphore`, or `election` | callers that got a lock |
//! | `tenure_wait_seconds` | histogram | seconds | `kind`: `lock`, `job`, `semaphore`, `election`. `outcome`: `granted`, `busy`, `queue_full`, `store`, `closed`, `invalid` (a key, an option, or a wait for oneself), `not_due` (a tick that is over, or early), or `gave_up` | from asking for a lock to the answer; giving up is to drop the future, as a timeout does |
//! | `tenure_hold_seconds` | histogram | seconds | `kind`: `lock`, `job`, `semaphore`, `election`. `outcome`: `released`, or `lost` when the guard had been told before that the lease was lost | from getting a lock to giving it back or dropping the guard |
//! | `tenure_handoffs_total` | counter | leases | `kind`: `lock`, `job`, `semaphore`, `election`. `from`: `local`, a caller of this process; `remote`, the store's queue | leases that passed from one holder to the next who waited |
//! | `tenure_losses_total` | counter | leases | `kind`: `lock`, `job`, `semaphore`, `election`. `cause`: `deadline` and `gone` are trouble; `overdue` (held for longer than it may be) and `unfetched` (nobody polled the future that it was granted to) are faults of the program; `ended` (a fixed lease) and `shutdown` are neither | leases that ended before their guard did |
//! | `tenure_renewal_slack_seconds` | histogram | seconds | | what had been left of a lease when the answer to its renewal came. Two thirds of the lease are normal; near zero leases are about to be lost |
//! | `tenure_batch_requests` | histogram | requests | | requests that travelled to the store together |
//! | `tenure_store_errors_total` | counter | errors | `during`: `lock` (callers that were refused), `wait` and `renew` (tried again), `release` (a caller was told), `withdraw` (given up, it ends by itself), `connection`, `inbox`. `error`: `unreachable`, `timed_out`, `interrupted`, or why it refused: `wrong_type`, `out_of_memory`, `read_only`, `loading`, `busy`, `misconfigured`, `no_replicas`, `no_auth`, `wrong_password`, `no_permission`, `unsupported`, `other` | errors of the store |
//! | `tenure_ticks_total` | counter | ticks | `outcome`: `done`, `failed`, `panicked`, `timed_out`, `given_up`, `elsewhere`, `skipped`, `missed`, `drained`, `removed`, `refused` | ticks that are over for this process; the module `scheduler` says what the words mean. A run that loses its lease is a loss of a `job`; its tick is over when this process knows who ended it |
//! | `tenure_job_alarms_total` | counter | alarms | `alarm`: `early`, `skewed`, `overtaken`, `given_up`, `mark_ahead`, `went_back`, `differs`, `skips`, `blocks`, `engine_missed`, `storage_shared`, `passed_over` | what is wrong with jobs and clocks, by the events of like names |
//! | `tenure_refused_total` | counter | requests | `why`: `busy`, `in_flight`, `waited_too_long`, `queue_full`, `store_failed`, `closed`, `lost`, `outcome_unknown`, `bad_key`, `no_key`, `bad_options` | requests that a layer answered itself |
//! | `tenure_dry_run_total` | counter | requests | `outcome`: `alone`, `overlap`, `refused`. `route`: of yours, as axum knows it, else empty | requests behind a layer in a dry run |

use tracing::{debug, info, trace};

use crate::error::StoreError;
use crate::protocol::message::{Fence, Name};

pub(crate) mod background;
pub(crate) mod event;
#[cfg(feature = "scheduler")]
mod jobs;
mod metrics;
#[cfg(feature = "tower")]
pub(crate) mod requests;
mod shield;

pub(crate) use event::Label;
#[cfg(feature = "scheduler")]
pub(crate) use jobs::*;
pub(crate) use metrics::{Began, answered, describe, gave_up, held, kept};
pub use metrics::{METRICS, Metric, MetricKind};
#[cfg(feature = "tower")]
pub(crate) use requests::*;
pub(crate) use shield::shielded;

/// The value of the field `event`, for everything that is ever emitted.
pub const EVENTS: &[&str] = &[
    "locks_built",
    "granted",
    "denied",
    "handed_on",
    "taken_over",
    "inherited",
    "renewed",
    "renew_failed",
    "overdue",
    "held_long",
    "capacity_differs",
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
    "server_changed",
    "connected",
    "connection_lost",
    "inbox_open",
    "inbox_lost",
    "server_warning",
    "refused",
    "refused_busy",
    "dry_run",
    "lease_missing",
    "parameter_missing",
    "parameter_twice",
    "extension_missing",
    "leave_failed",
    "tick_starts",
    "tick",
    "tick_failed",
    "tick_waits",
    "tick_untold",
    "job_refused",
    "tick_early",
    "tick_overtaken",
    "ticks_passed_over",
    "tick_given_up",
    "job_skips",
    "job_blocks",
    "mark_ahead",
    "clock_skewed",
    "store_went_back",
    "job_differs",
    "engine_missed",
    "storage_shared",
    "job_odd_days",
    "process_paused",
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

pub(crate) fn released(of: &Label, name: &Name) {
    trace!(target: "tenure", event = "released", node_name = of.name(), kind = name.kind.word(), key = %name.key, "released");
}

pub(crate) fn release_failed(of: &Label, name: &Name, error: &StoreError) {
    metrics::store_failed("release", error);
    debug!(target: "tenure", event = "release_failed", node_name = of.name(), kind = name.kind.word(), key = %name.key, %error, "release failed, the lease ends by itself");
}

/// `Locks` were built.
pub(crate) fn locks_built(of: &Label, server: &str, prefix: &[u8]) {
    info!(target: "tenure", event = "locks_built", node = %of.node, node_name = of.name(), server, prefix = %prefix.escape_ascii(), "locks are built");
}
