//! What happens in the background: each event with its level, fields and text, and what is counted of it.

use std::sync::Arc;
use std::time::Duration;

use tracing::{Level, warn};

use crate::error::{LostCause, StoreError};
use crate::observe::event::{Event, is_on, key_event, node_event};
use crate::observe::metrics::kept;
use crate::protocol::message::Name;
use crate::protocol::step::KeyEvent;

/// What is told of an outage when it is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// How long the outage was.
    pub(crate) away: Duration,
    /// Another run of the server answers.
    pub(crate) is_another: bool,
    pub(crate) requests_failed: u64,
    pub(crate) callers_refused: u64,
    pub(crate) leases_lost: u64,
}

fn count(name: &Name, event: &KeyEvent) {
    match event {
        KeyEvent::HandedOn => kept::handed(name, "local"),
        KeyEvent::PushUsed | KeyEvent::PushConfirming | KeyEvent::FoundGranted => {
            kept::handed(name, "remote");
        }
        KeyEvent::Renewed { slack } => kept::renewed(*slack),
        KeyEvent::RenewFailed { error, .. } => kept::store_failed("renew", error),
        KeyEvent::WaitFailed { error } => kept::store_failed("wait", error),
        KeyEvent::LeaveFailed { error } => kept::leave_failed(error.as_ref()),
        _ => {}
    }
}

/// Counts an event of a key, and returns what is told of it. What only the simulator counts is not told.
///
/// A failure is told loudly once for its server, and for each key at the level of debugging.
pub(crate) fn of_key(name: &Name, event: &KeyEvent) -> Option<Event> {
    count(name, event);
    match event.clone() {
        KeyEvent::HandedOn => key_event!(name, TRACE: event = "handed_on", "handed on within the process"),
        KeyEvent::PushUsed | KeyEvent::PushConfirming | KeyEvent::FoundGranted => {
            key_event!(name, TRACE: event = "taken_over", "handed over by another process")
        }
        KeyEvent::Renewed { slack } => {
            key_event!(name, TRACE: event = "renewed", slack_ms = ms(slack), "renewed")
        }
        KeyEvent::RenewFailed { left, error } => {
            key_event!(name, DEBUG: event = "renew_failed", left_ms = ms(left), %error, "renewal failed, trying again")
        }
        KeyEvent::WaitFailed { error } => {
            key_event!(name, DEBUG: event = "wait_failed", %error, "a waiter's heartbeat failed, trying again")
        }
        KeyEvent::LeaveFailed { error } => {
            let error = error.map(tracing::field::display);
            key_event!(name, DEBUG: event = "leave_failed", error, "could not withdraw, the claim ends by itself")
        }
        KeyEvent::Requeued => {
            key_event!(name, DEBUG: event = "requeued", "the store forgot our place, queueing again")
        }
        KeyEvent::OutcomeQueried => {
            key_event!(name, DEBUG: event = "asked_again", "an answer got lost, asking for it")
        }
        KeyEvent::Late => key_event!(name, DEBUG: event = "late", "the store refused a claim as late"),
        KeyEvent::UnknownLeft => {
            key_event!(name, DEBUG: event = "unknown_grant", "granted to a claim that is over, leaving it")
        }
        KeyEvent::PushStale => key_event!(name, DEBUG: event = "stale_grant", "a grant came too late"),
        KeyEvent::PushForged => {
            key_event!(name, ERROR: event = "forged_grant", "somebody else publishes on our channel")
        }
        KeyEvent::Inherited { from } => {
            let from = from.map(tracing::field::display);
            key_event!(name, INFO: event = "inherited", from, "granted because its owner let the lease run out")
        }
        KeyEvent::Overdue { held, left } => {
            key_event!(name, WARN: event = "overdue", held_ms = ms(held), left_ms = ms(left), "held for as long as it may be: it is renewed no more")
        }
        KeyEvent::HeldLong { held } => {
            key_event!(name, WARN: event = "held_long", held_ms = ms(held), "held for long, and still renewed")
        }
        KeyEvent::CapacityDiffers {
            local: ours,
            recorded: theirs,
        } => {
            key_event!(name, WARN: event = "capacity_differs", ours, theirs, "a semaphore is used with another number of permits elsewhere")
        }
        KeyEvent::GrantUnsuitable
        | KeyEvent::GhostLeft
        | KeyEvent::Yielded
        | KeyEvent::LeaveRepeated
        | KeyEvent::AnswerStale => None,
    }
}

/// A lease ended while it was held. `paused`: its deadline passed while this process stood still, for so long.
pub(crate) fn lost(name: &Name, cause: LostCause, paused: Option<Duration>) -> Option<Event> {
    kept::lost(name, cause);
    if let Some(paused) = paused {
        return key_event!(name, ERROR: event = "lost", cause = "its deadline passed while this process stood still", paused_ms = ms(paused), "the lease was lost while it was held, as this process stood still")
            .map(Event::loss);
    }
    match cause {
        LostCause::Ended | LostCause::Shutdown | LostCause::Released | LostCause::Forked => {
            key_event!(name, DEBUG: event = "lost", %cause, "the lease is over")
        }
        LostCause::Overdue => {
            key_event!(name, WARN: event = "lost", %cause, "the lease was lost while it was held, as it was renewed no more")
        }
        LostCause::Unfetched => {
            key_event!(name, WARN: event = "lost", %cause, "nobody took up the lease, it is given back")
        }
        LostCause::Deadline | LostCause::Gone => {
            key_event!(name, ERROR: event = "lost", %cause, "the lease was lost while it was held")
                .map(Event::loss)
        }
    }
}

/// A connection to the store is open.
pub(crate) fn connected(took: Duration) -> Option<Event> {
    node_event!(DEBUG: event = "connected", took_ms = ms(took), "connected to the store")
}

/// A connection was given up, or could not be opened.
pub(crate) fn connection_lost(error: StoreError) -> Option<Event> {
    kept::store_failed("connection", &error);
    node_event!(DEBUG: event = "connection_lost", %error, "a connection to the store was given up")
}

/// This process stood still, for so long at least.
pub(crate) fn process_paused(lasted: Duration) -> Option<Event> {
    node_event!(WARN: event = "process_paused", paused_ms = ms(lasted), "this process stood still: it was stopped or suspended, or its background thread got no processor")
}

pub(crate) fn driver_failed() -> Option<Event> {
    node_event!(ERROR: event = "driver_failed", "the background thread panicked, a fault of this crate")
}

/// Grants are pushed to this node. `away`: for how long they were not, if that was told as a warning.
pub(crate) fn inbox_open(away: Option<Duration>) -> Option<Event> {
    match away {
        Some(away) => {
            node_event!(WARN: event = "inbox_open", away_ms = ms(away), "grants are pushed to this node again")
        }
        None => node_event!(DEBUG: event = "inbox_open", "grants are pushed to this node"),
    }
}

/// Grants are not pushed any more. `is_news`: nothing was told that explains it.
pub(crate) fn inbox_lost(error: StoreError, is_news: bool) -> Option<Event> {
    kept::store_failed("inbox", &error);
    if is_news {
        node_event!(WARN: event = "inbox_lost", %error, "grants are not pushed, waiting goes by timers")
    } else {
        node_event!(DEBUG: event = "inbox_lost", %error, "grants are still not pushed")
    }
}

pub(crate) fn store_failing(server: Arc<str>, error: StoreError) -> Option<Event> {
    node_event!(WARN: event = "store_failing", server = &*server, %error, "the store fails; what that costs is counted until it is back")
}

/// A server answers again.
pub(crate) fn store_recovered(server: Arc<str>, recovery: Recovery) -> Option<Event> {
    let Recovery {
        away,
        is_another,
        requests_failed,
        callers_refused,
        leases_lost,
    } = recovery;
    node_event!(WARN: event = "store_recovered", server = &*server, away_ms = ms(away), requests_failed, callers_refused, leases_lost, is_another, "the store is back")
}

/// Another run of a server answers, and no outage tells of it.
pub(crate) fn server_changed(server: Arc<str>) -> Option<Event> {
    node_event!(WARN: event = "server_changed", server = &*server, "another server answers at this address, or the same one after a restart: what it did not keep is forgotten")
}

/// A server is set up in a way that endangers leases.
pub(crate) fn server_warning(text: String) -> Option<Event> {
    node_event!(WARN: event = "server_warning", "{text}")
}

/// The queue had no room for so many events.
pub(crate) fn events_dropped(count: u64) {
    warn!(target: "tenure", event = "events_dropped", count, "the subscriber was too slow, events were not told");
}

fn ms(span: Duration) -> u64 {
    span.as_millis() as u64
}
