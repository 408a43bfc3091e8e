//! The table of events: for each its level, fields, text and counter, and what it means.
//!
//! To add an event, add a row, and call the function of its name where the event happens.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "scheduler")]
use crate::error::Error;
use crate::error::{LostCause, StoreError};
#[cfg(feature = "scheduler")]
use crate::key::Key;
use crate::observe::event::{Event, Label, emit, events, function, is_on, level};
use crate::observe::metrics::{self, pending};
#[cfg(feature = "scheduler")]
use crate::protocol::message::TickTime;
use crate::protocol::message::{Asking, Fence, Name, NodeId};
use crate::protocol::step::AcquireError;

events! {
node now {
    /// `Locks` were built. The fields are `node`, `node_name`, the `server` without its password, and the `prefix` of
    /// the records.
    INFO locks_built(server: &str, prefix: &[u8]): [server, prefix = %prefix.escape_ascii()] "locks are built";
}

(name: &Name) now {
    /// A caller holds the lock.
    TRACE granted(fence: Fence): [fence = fence.get()] "a caller holds the lock";

    /// An operator took a step of a steal in this process. `what` is `asked`, `revoked` or `handed_over`, and `number` names the
    /// grant.
    INFO stolen(what: &str, number: &str, by: &str, why: &str): [what, number, by, why] "an operator acted on a lease";

    /// A caller does not get the lock. The field `error` has an error of the store, `why` any other reason.
    DEBUG denied(why: &AcquireError):
        [why = other_reason(why).map(tracing::field::debug), error = store_error(why).map(tracing::field::display)]
        "a caller does not get the lock",
        counts store_error(why).into_iter().for_each(|error| metrics::store_failed("lock", error));
}

(name: &Name) later {
    /// A lease went to the next caller of this process.
    TRACE handed_on(): "a lease went to the next caller of this process", counts pending::handed(name, "local");

    /// A lease that this process had kept went to its next caller, without a request.
    TRACE reused(): "a kept lease went to the next caller of this process", counts pending::handed(name, "kept");

    /// Another process wants the key of a lease that may be kept. The lease goes back after the present holders.
    TRACE recalled(): "a lease that may be kept is wanted by another process", counts pending::recalled();

    /// The lease came to this process from another process, after a wait in the store's queue.
    TRACE taken_over(): "a lease came from another process", counts pending::handed(name, "remote");

    /// The lease came from another process whose owner had let it expire, as far as this process can know. That owner
    /// died, or could not reach the store. `from` is the node of that owner, if the owner held the lease alone.
    INFO inherited(from: Option<NodeId>): [from = from.map(tracing::field::display)]
        "a lease was granted because its owner let it expire";

    /// A lease was renewed. `slack_ms` of it were left.
    TRACE renewed(slack: Duration, lease: Duration):
        [slack_ms = ms(slack)] "a lease was renewed", counts pending::renewed(slack, lease);

    /// A renewal failed. The node retries while time is left.
    DEBUG renew_failed(left: Duration, error: StoreError): [left_ms = ms(left), %error] "a renewal failed; retrying",
        counts pending::store_failed("renew", &error);

    /// An operator asks the holder to give the lease back. After `grace_ms` the lease may be revoked.
    WARN asked(asking: Arc<Asking>):
        [grace_ms = asking.grace_ms, by = asking.by, why = asking.why]
        "an operator asks for a lease";

    /// An operator revoked the lease. The event `lost` follows.
    WARN revoked(): "an operator revoked a lease";

    /// A lock was held for as long as its `max_hold` allows. The lease is not renewed again, and is lost after `left_ms`.
    WARN overdue(held: Duration, left: Duration): [held_ms = ms(held), left_ms = ms(left)]
        "a lock was held for its max_hold; the lease is not renewed again";

    /// A lock has been held for longer than [`Builder::long_hold`](crate::locks::Builder::long_hold), `held_ms` so far.
    /// Emitted once for each holding, and never for jobs and leaders.
    WARN held_long(held: Duration): [held_ms = ms(held)] "a lock has been held for long, and its lease is still renewed";

    /// A semaphore has `ours` permits here and `theirs` in another process, as while a deployment changes the number.
    /// Emitted at most once a minute.
    WARN capacity_differs(ours: u32, theirs: u32): [ours, theirs]
        "another process uses this semaphore with another number of permits";

    /// A lease ended while it was held. WARN if its future was not polled for a whole lease, if its `max_hold` ended, or if an
    /// operator revoked it.
    /// DEBUG if a fixed lease or the node came to its end. With `paused_ms` if the deadline passed while the process
    /// stood still.
    ERROR
        (DEBUG if matches!(cause, LostCause::Ended | LostCause::Shutdown | LostCause::Released | LostCause::Forked))
        (WARN if matches!(cause, LostCause::Overdue | LostCause::Unfetched | LostCause::Revoked))
        lost(cause: LostCause, paused: Option<Duration>):
        [cause = %loss(cause, paused), paused_ms = paused.map(ms)] "a lease ended while it was held",
        counts pending::lost(name, cause);
}

(name: &Name) now {
    /// A lock was given back.
    TRACE released(): "a lock was given back";

    /// The release did not reach the store. The lease expires by itself.
    DEBUG release_failed(error: &StoreError): [%error] "a release failed; the lease expires by itself",
        counts metrics::store_failed("release", error);
}

(name: &Name) later {
    /// A waiter's heartbeat failed. The node retries.
    DEBUG wait_failed(error: StoreError): [%error] "a waiter's heartbeat failed; retrying",
        counts pending::store_failed("wait", &error);

    /// The store forgot a waiter. The waiter is at the end of the queue again.
    DEBUG requeued(): "the store forgot a waiter; queueing it again";

    /// An answer got lost. The node asks for it again.
    DEBUG asked_again(): "an answer got lost; asking again";

    /// The store refused a claim because the claim arrived late.
    DEBUG late(): "the store refused a claim that arrived late";

    /// The store granted a claim that is no longer wanted. The node released the lease at once.
    DEBUG unknown_grant(): "an abandoned claim was granted; releasing the lease";

    /// A grant arrived too late and was ignored.
    DEBUG stale_grant(): "a grant arrived too late and is ignored";

    /// A grant with a wrong nonce arrived: another program publishes on the channel of this node.
    ERROR forged_grant(): "another program publishes on the channel of this node";
}

node later {
    /// A server is unreachable, refuses, or does not answer in time. Emitted once for each node.
    WARN store_failing(server: Arc<str>, error: StoreError, is_built: bool): [server = &*server, %error]
        "the store fails{}" (if is_built { "; store_recovered will say what that cost" } else { "" });

    /// The server answers, and refuses requests until an operator corrects something: a right is missing (`NOPERM`), or it refuses in
    /// words that are unknown here. No outage begins. Emitted at most once a minute for each server.
    ERROR store_refuses(server: Arc<str>, error: StoreError): [server = &*server, %error]
        "the store refuses requests until something is corrected";

    /// The server and its inbox are back, after `away_ms`, with what the outage cost. `is_another` if another run of
    /// the server answers, after a restart or a failover. `has_left` if the cluster no longer names the server, and others serve
    /// its keys.
    WARN store_recovered(server: Arc<str>, recovery: StoreRecovery):
        [server = &*server, away_ms = ms(recovery.away), requests_failed = recovery.requests_failed,
         callers_refused = recovery.callers_refused, leases_lost = recovery.leases_lost, is_another = recovery.is_another,
         has_left = recovery.has_left]
        "{}" (if recovery.has_left { "the cluster no longer needs this server" } else { "the store is back" });

    /// Another run of the server answers at its address, and the node had noticed no failure.
    WARN server_changed(server: Arc<str>): [server = &*server]
        "another server answers at this address, or the server restarted: data that it did not keep is lost";

    /// The server may have lost leases, and grants none until the earlier ones have ended. `why` is `run` after a restart or a
    /// promotion, `epoch` if the Sentinels have promoted a server since, and `number` if a node has seen a grant that the server
    /// does not know.
    WARN server_recovering(server: Arc<str>, left: Duration, why: &'static str):
        [server = &*server, left_ms = ms(left), why]
        "the server may have lost leases: it grants none until the earlier ones have ended";

    /// A connection to the store is open.
    DEBUG connected(took: Duration): [took_ms = ms(took)] "connected to the store";

    /// A connection was given up, was found closed, or could not be opened.
    DEBUG connection_lost(error: StoreError): [%error] "a connection to the store was given up",
        counts pending::store_failed("connection", &error);

    /// Grants are pushed to this node. WARN with `away_ms` if a WARN said before that they were not.
    DEBUG (WARN if away.is_some()) inbox_open(away: Option<Duration>): [away_ms = away.map(ms)]
        "grants are pushed to this node";

    /// Again and again the subscription led to another server than the connection for commands. Waiters look often, and a
    /// subscription is tried every 10 s. Emitted once a minute.
    WARN inbox_elsewhere(server: Arc<str>): [server = &*server]
        "grants are not pushed: the name leads subscriptions to another server than commands";

    /// Grants are not pushed. Waiters use timers until the inbox is open again. Emitted when the connection for commands
    /// still answers. DEBUG if `store_failing` explains the loss, or if the loss was reported before.
    WARN (DEBUG if !is_news) inbox_lost(error: StoreError, is_news: bool): [%error]
        "grants are not pushed to this node; waiters use timers", counts pending::store_failed("inbox", &error);

    /// Pushes to this node were ignored, `count` since the previous such event: another release, another prefix, or a forgery. The
    /// first is reported at once, the following ones once a minute.
    WARN unknown_pushes(count: u64): [count]
        "pushes of an unknown format were ignored: another release, another prefix, or a forgery";

    /// The configuration of a server endangers leases.
    WARN server_warning(text: String): "{text}";
}

request now {
    /// The layer answered a request that got no lock, with this `status`, on this `route`. ERROR once a minute for
    /// each route of a layer with invalid options, and of a layer whose lock the store refuses until something is corrected.
    DEBUG (ERROR if refusal.is_news) refused(refusal: &Refusal<'_>, error: Option<&crate::error::Error>):
        [why = refusal.why, status = refusal.status, route = refusal.route, error = error.map(tracing::field::display)]
        "a request was refused{}" (match (refusal.is_news, refusal.label) {
            (false, _) => "",
            (true, "store_refused") => ": the store refuses its lock until something is corrected",
            (true, _) => ": the layer has invalid options",
        }),
        counts metrics::refused(refusal.label);

    /// A layer refused `count` requests since the previous such event, because their keys were busy or too many
    /// requests waited. `route` is the route of the latest one. The first refusal is reported at once, the following
    /// ones once a minute. WARN if some of them waited in vain, or found the queue full; requests that may not wait
    /// ([`skip`](crate::LockLayer::skip)) are refused on purpose.
    INFO (WARN if in_vain > 0) refused_busy(count: u64, in_vain: u64, route: Option<&str>): [count, in_vain, route]
        "requests were refused because their keys are busy";

    /// A layer let a request run without its lock, because the store failed.
    DEBUG unlocked(route: Option<&str>, error: Option<&crate::error::Error>):
        [route, error = error.map(tracing::field::display)]
        "a request runs without its lock", counts metrics::unlocked();

    /// A layer in a dry run let a request run that would have waited (`outcome` is `overlap`) or would have been
    /// refused (`refused`).
    INFO dry_run(outcome: &'static str, route: Option<&str>): [outcome, route]
        "the layer would have made a request wait, or would have refused it",
        counts metrics::dry_run(outcome, route), unless outcome == "alone";
}

route now {
    /// A handler extracts a lease that is not there; the text says what its layer did instead, and which extractor fits. An
    /// ERROR once a minute for each route, else DEBUG.
    DEBUG (ERROR if is_news) lease_missing(path: &str, why: &dyn std::fmt::Display, is_news: bool): [path]
        "a handler asks for a lease that is not there: {why}";

    /// A layer locks a path parameter that its route does not have. An ERROR once a minute for each route, else DEBUG.
    DEBUG (ERROR if is_news) parameter_missing(parameter: &str, path: &str, is_routed: bool, is_news: bool):
        [parameter, path]
        "a LockLayer locks a path parameter {}" (if is_routed { "that this route does not have" } else {
            "where no route is known: use `route_layer`, not `Router::layer`"
        });

    /// A layer locks a path parameter that its route has twice. An ERROR once a minute for each route, else DEBUG.
    DEBUG (ERROR if is_news) parameter_twice(parameter: &str, path: &str, is_news: bool): [parameter, path]
        "a LockLayer locks a path parameter that this route has twice; give them different names";
}

request now {
    /// The key of a layer needs an extension that the request does not have: the layers are in the wrong order. An ERROR
    /// once a minute for each route, else DEBUG.
    DEBUG (ERROR if is_news) extension_missing(extension: &str, path: &str, is_news: bool): [extension, path]
        "a LockLayer needs an extension that the request does not have; put the LockLayer inside of the layer that adds it";
}

(name: &Name) later {
    /// A dead claim could not be withdrawn. The claim expires by itself.
    DEBUG leave_failed(error: Option<StoreError>): [error = error.map(tracing::field::display)]
        "a claim could not be withdrawn; it expires by itself", counts pending::leave_failed(error.as_ref());
}

(job: &Key) now {
    /// A run of a tick starts here. With an `attempt` above 1, another node began the tick and did not end it.
    /// `triggered` is given if an operator triggered the run.
    INFO tick_starts(mark: TickTime, attempt: u32):
        [tick = date(mark), tick_ms = mark.nominal_ms(), attempt, triggered = mark.is_triggered().then_some(true)]
        "running a tick{}" (if attempt > 1 { " that another node began and did not end" } else { "" });

    /// A tick is over for this node. `outcome` says how; of a run here, `took_ms`, `attempt` and `fence` are given.
    /// DEBUG if another node ran the tick. WARN if the tick was `missed`: the store was asked again, and no node was
    /// granted it. The store knows the latest two ticks that were granted; an earlier tick counts as run elsewhere.
    INFO (DEBUG if outcome == "elsewhere") (WARN if outcome == "missed")
        tick(mark: TickTime, outcome: &'static str, ran: Option<Ran>):
        [tick = date(mark), tick_ms = mark.nominal_ms(), outcome, triggered = mark.is_triggered().then_some(true),
         took_ms = ran.map(|ran| ms(ran.took)),
         attempt = ran.map(|ran| ran.attempt), fence = ran.map(|ran| ran.fence.get())]
        "{}" (if outcome == "missed" { "a tick was missed: no node ran it to its end, and none will" }
            else { "a tick is over" }),
        counts metrics::jobs::ticked(job, outcome, ran.map(|ran| ran.took));

    /// A job failed, panicked or reached its timeout: "try 2 of 4, again in 3 s". INFO if the job is tried again after
    /// another failure than a timeout.
    WARN (INFO if failed.again.is_some() && !is_timeout)
        tick_failed(mark: TickTime, why: &str, failed: FailedTry, is_timeout: bool):
        [tick = date(mark), tick_ms = mark.nominal_ms(), why] "a job failed: {failed}";

    /// The store is unreachable, so no node runs the tick. The node retries.
    DEBUG tick_waits(mark: TickTime, error: &Error): [tick_ms = mark.nominal_ms(), %error] "no node runs the tick; retrying";

    /// A tick has ended, but the store could not be told.
    WARN tick_untold(mark: TickTime, error: &Error): [tick_ms = mark.nominal_ms(), %error]
        "a tick has ended, but the store could not be told";

    /// By the store's clock, the tick is due in `early_ms`.
    DEBUG tick_early(mark: TickTime, left: Duration): [tick_ms = mark.nominal_ms(), early_ms = ms(left)]
        "by the store's clock the tick is not due yet", counts metrics::alarmed("early");

    /// The next tick overtook a tick that had not ended, which never runs again. Not emitted if the next tick had
    /// waited for it (`Overlap::QueueOne`).
    WARN tick_overtaken(mark: TickTime): [tick_ms = mark.nominal_ms()]
        "a tick that had not ended was overtaken by the next tick, and never runs again",
        counts metrics::alarmed("overtaken");

    /// Ticks after `after_ms` and before `next_ms` were too old or too many to catch up on, and never run.
    WARN ticks_passed_over(after: TickTime, next: TickTime): [after_ms = after.0, next_ms = next.0]
        "ticks are too old or too many to catch up on, and never run", counts metrics::alarmed("passed_over");

    /// A tick was begun as often as allowed and never ended. The tick does not run again.
    WARN tick_given_up(mark: TickTime, attempts: u32): [tick_ms = mark.nominal_ms(), attempts]
        "a tick was begun as often as allowed and never ended; it does not run again",
        counts metrics::alarmed("given_up");

    /// Three or more ticks in a row were skipped, because a run of an earlier tick had not ended.
    ERROR job_skips(skips: u32): [skips] "a run does not end, and the ticks of its job are skipped",
        counts metrics::alarmed("skips");

    /// A run reached no await for a third of its lease: it blocks its runtime, and cannot be cancelled.
    WARN job_blocks(mark: TickTime, lasts: Duration): [tick_ms = mark.nominal_ms(), blocked_ms = ms(lasts)]
        "a job reaches no await: it blocks its runtime, and cannot be cancelled; its lease is renewed",
        counts metrics::alarmed("blocks");

    /// The store knows a tick ahead of its clock, and runs no earlier tick. Call `locks.jobs().reset(name)`.
    ERROR mark_ahead(ahead_ms: u64): [ahead_ms]
        "the store knows a tick ahead of its clock, and runs no earlier tick: call `locks.jobs().reset(name)`",
        counts metrics::alarmed("mark_ahead");

    /// The clock of this node and the clock of the store differ by more than a second.
    WARN clock_skewed(skew: Duration, is_ahead: bool): [skew_ms = ms(skew), is_ahead]
        "the clocks of this node and of the store differ", counts metrics::alarmed("skewed");

    /// The store came back with an older copy of its data. This node told it which ticks of the job are over.
    ERROR store_went_back(mark: TickTime): [tick_ms = mark.nominal_ms()]
        "the store lost acknowledged data: up to this tick, this node told it which ticks are over, so they do not run \
         again. Ticks that no living node knows may run again: check the server's persistence and failover",
        counts metrics::alarmed("went_back");

    /// Another service or another expression uses the name of the job.
    WARN job_differs():
        "another service or another expression uses the name of this job, and each runs the ticks of the other",
        counts metrics::alarmed("differs");

    /// An operator acted on a job in this process. `what` is `paused`, `resumed`, `resumed_to_catch_up`, `triggered` or
    /// `cancelled`.
    INFO job_acted(what: &str, by: &str, why: &str): [what, by, why] "an operator acted on a job";

    /// The function that a job has for the ends of its runs panicked, or was dropped because it took longer than 10 s.
    WARN on_end_failed(mark: TickTime, why: &str): [tick_ms = mark.nominal_ms(), why]
        "the function for the ends of a job's runs {}" (why);

    /// An operator has paused the job. Each node reports a pause once. `since_ms` is the store's time.
    WARN job_paused(by: &str, why: &str, since_ms: u64): [by, why, since_ms]
        "an operator has paused this job: no tick begins until it is resumed";

    /// The scheduler did not fire a tick within a second. The node starts the tick itself.
    WARN engine_missed(mark: TickTime): [tick_ms = mark.nominal_ms()]
        "the scheduler did not fire a tick; starting it without the scheduler",
        counts metrics::alarmed("engine_missed");

    /// The scheduler's storage has jobs of another process.
    ERROR storage_shared(foreign: uuid::Uuid): [%foreign]
        "the scheduler's storage has jobs of another process, and each process fires the jobs of the other",
        counts metrics::alarmed("storage_shared");

    /// Clock changes move ticks of the job on `days` days of the next two years: ticks come twice, not at all, or at
    /// another time. `first` is the first of these days.
    INFO job_odd_days(days: usize, first: &dyn std::fmt::Display): [days, %first]
        "because of clock changes in the job's zone, some ticks come twice, not at all, or at another time";
}

node later {
    /// The process stood still for at least `paused_ms`. It was stopped (SIGSTOP), the machine was suspended, or the
    /// background thread got no processor or was blocked by a waker. Comes first: what was lost in the pause says so,
    /// and no server or scheduler is blamed.
    WARN process_paused(lasted: Duration): [paused_ms = ms(lasted)]
        "this process stood still: it was stopped or suspended, or its background thread got no processor";

    /// The background thread panicked, which is a bug of this crate, and continues.
    ERROR driver_failed(): "the background thread panicked: a bug of this crate";
}

process now {
    /// The subscriber was too slow: `count` events of the background were dropped.
    WARN events_dropped(count: u64): [count] "the subscriber was too slow, and events were dropped";
}
}

/// What an outage cost, known when the outage is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StoreRecovery {
    /// How long the outage was.
    pub(crate) away: Duration,
    /// Another run of the server answers.
    pub(crate) is_another: bool,
    /// The map of the cluster no longer names the server.
    pub(crate) has_left: bool,
    pub(crate) requests_failed: u64,
    pub(crate) callers_refused: u64,
    pub(crate) leases_lost: u64,
}

/// A request that a layer answers itself.
#[cfg(feature = "tower")]
pub(crate) struct Refusal<'a> {
    /// The name of the outcome, which is all that the client learns.
    pub(crate) why: &'a str,
    /// The name of the outcome as a label.
    pub(crate) label: &'static str,
    /// The status of the response.
    pub(crate) status: u16,
    pub(crate) route: Option<&'a str>,
    /// The first refusal of its kind on this route within a minute, if the program or the configuration is at fault.
    pub(crate) is_news: bool,
}

/// A run that came to its end.
#[cfg(feature = "scheduler")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ran {
    pub(crate) attempt: u32,
    pub(crate) fence: Fence,
    pub(crate) took: Duration,
}

/// A failed try of a run: its number, the limit, and the pause before the next try, if there is one.
#[cfg(feature = "scheduler")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailedTry {
    pub(crate) number: u32,
    pub(crate) of: u32,
    pub(crate) again: Option<Duration>,
}

#[cfg(feature = "scheduler")]
impl std::fmt::Display for FailedTry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "try {} of {}", self.number, self.of)?;
        match self.again {
            Some(pause) => write!(f, ", again in {} s", pause.as_millis() as f64 / 1_000.0),
            None => Ok(()),
        }
    }
}

fn ms(span: Duration) -> u64 {
    span.as_millis() as u64
}

/// Returns the nominal time of a tick as RFC 3339.
#[cfg(feature = "scheduler")]
pub(super) fn date(mark: TickTime) -> impl tracing::Value {
    use chrono::{DateTime, Utc};
    let ms = i64::try_from(mark.nominal_ms()).unwrap_or(i64::MAX);
    tracing::field::debug(DateTime::from_timestamp_millis(ms).unwrap_or(DateTime::<Utc>::MAX_UTC))
}

/// Returns the error of the store that denied a lock.
fn store_error(why: &AcquireError) -> Option<&StoreError> {
    match why {
        AcquireError::Store(error) | AcquireError::Unanswered(error) => Some(error),
        _ => None,
    }
}

/// Returns the reason that denied a lock, if it is no error of the store.
fn other_reason(why: &AcquireError) -> Option<&dyn Debug> {
    store_error(why).is_none().then_some(why)
}

/// Returns the text of a loss. A pause of the process explains why the deadline passed.
fn loss(cause: LostCause, paused: Option<Duration>) -> String {
    match paused {
        Some(_) => "its deadline passed while this process stood still".to_owned(),
        None => cause.to_string(),
    }
}
