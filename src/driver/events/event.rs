//! The events of the background: what is counted of them, how loud they are, and how they are told.

use std::sync::Arc;
use std::time::Duration;

use tracing::Level;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};

use crate::driver::outage::Cost;
use crate::error::{LostCause, StoreError};
use crate::observe::{self, Label, kept};
use crate::protocol::message::Name;
use crate::protocol::step::KeyEvent;

/// What happened in the background.
#[derive(Debug, Clone)]
pub(crate) enum DriverEvent {
    /// To a key.
    Key { name: Name, event: KeyEvent },
    /// A lease ended while it was held.
    Lost {
        name: Name,
        cause: LostCause,
        /// Its deadline passed while this process stood still, for so long.
        paused: Option<Duration>,
    },
    /// This process stood still, for so long at least.
    ProcessPaused { lasted: Duration },
    /// A connection to the store is open.
    Connected { took: Duration },
    /// A connection was given up, or could not be opened.
    ConnectionLost { error: StoreError },
    /// A server fails.
    StoreFailing { server: Arc<str>, error: StoreError },
    /// And is back.
    StoreRecovered {
        server: Arc<str>,
        away: Duration,
        cost: Cost,
        is_another: bool,
    },
    /// Another run of a server answers, and no outage tells of it.
    ServerChanged { server: Arc<str> },
    /// Grants are pushed to this node. `away`: for how long they were not, if that was told as a warning.
    InboxOpen { away: Option<Duration> },
    /// And are no more. `is_news`: nothing was told that explains it.
    InboxLost { error: StoreError, is_news: bool },
    /// A server is set up in a way that endangers leases.
    ServerWarning { text: String },
    /// The driver panicked.
    DriverFailed,
}

impl DriverEvent {
    /// Counts it, if there is anything to count.
    pub(super) fn count(&self) -> bool {
        match self {
            DriverEvent::Key { name, event } => return count_of_key(name, event),
            DriverEvent::Lost { name, cause, .. } => kept::lost(name, *cause),
            DriverEvent::ConnectionLost { error } => kept::store_failed("connection", error),
            DriverEvent::InboxLost { error, .. } => kept::store_failed("inbox", error),
            DriverEvent::Connected { .. }
            | DriverEvent::StoreFailing { .. }
            | DriverEvent::StoreRecovered { .. }
            | DriverEvent::ServerChanged { .. }
            | DriverEvent::ProcessPaused { .. }
            | DriverEvent::InboxOpen { .. }
            | DriverEvent::ServerWarning { .. }
            | DriverEvent::DriverFailed => return false,
        }
        true
    }

    /// Whether anybody may listen to it. It costs an atomic read: no subscriber is asked.
    pub(super) fn is_on(&self) -> bool {
        is_on(self.level())
    }

    /// A loss that is trouble is told also when nothing else can be.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self, DriverEvent::Lost { .. }) && self.level() == Some(Level::ERROR)
    }

    pub(super) fn level(&self) -> Option<Level> {
        Some(match self {
            DriverEvent::Key { event, .. } => return level_of_key(event),
            DriverEvent::Lost { cause, .. } => match cause {
                LostCause::Deadline | LostCause::Gone => Level::ERROR,
                LostCause::Unfetched | LostCause::Overdue => Level::WARN,
                LostCause::Ended | LostCause::Shutdown | LostCause::Released | LostCause::Forked => {
                    Level::DEBUG
                }
            },
            DriverEvent::Connected { .. }
            | DriverEvent::ConnectionLost { .. }
            | DriverEvent::InboxOpen { away: None }
            | DriverEvent::InboxLost { is_news: false, .. } => Level::DEBUG,
            // What is over is told as loudly as that it began.
            DriverEvent::StoreFailing { .. }
            | DriverEvent::StoreRecovered { .. }
            | DriverEvent::InboxOpen { .. }
            | DriverEvent::InboxLost { .. }
            | DriverEvent::ServerChanged { .. }
            | DriverEvent::ProcessPaused { .. }
            | DriverEvent::ServerWarning { .. } => Level::WARN,
            DriverEvent::DriverFailed => Level::ERROR,
        })
    }

    /// Runs the subscriber.
    pub(super) fn tell(&self, of: &Label) {
        match self {
            DriverEvent::Key { name, event } => tell_of_key(of, name, event),
            DriverEvent::Lost { name, cause, paused } => observe::lost(of, name, *cause, *paused),
            DriverEvent::ProcessPaused { lasted } => observe::process_paused(of, *lasted),
            DriverEvent::Connected { took } => observe::connected(of, *took),
            DriverEvent::ConnectionLost { error } => observe::connection_lost(of, error),
            DriverEvent::StoreFailing { server, error } => observe::store_failing(of, server, error),
            DriverEvent::StoreRecovered {
                server,
                away,
                cost,
                is_another,
            } => {
                let counts = [cost.requests_failed, cost.callers_refused, cost.leases_lost];
                observe::store_recovered(of, server, (*away, *is_another), counts);
            }
            DriverEvent::ServerChanged { server } => observe::server_changed(of, server),
            DriverEvent::InboxOpen { away } => observe::inbox_open(of, *away),
            DriverEvent::InboxLost { error, is_news } => observe::inbox_lost(of, error, *is_news),
            DriverEvent::ServerWarning { text } => observe::server_warning(of, text),
            DriverEvent::DriverFailed => observe::driver_failed(of),
        }
    }
}

/// As the macros of `tracing` do before they ask a subscriber.
pub(super) fn is_on(level: Option<Level>) -> bool {
    level.is_some_and(|level| level <= STATIC_MAX_LEVEL && level <= LevelFilter::current())
}

pub(super) fn count_of_key(name: &Name, event: &KeyEvent) -> bool {
    match event {
        KeyEvent::HandedOn => kept::handed(name, "local"),
        KeyEvent::PushUsed | KeyEvent::PushConfirming | KeyEvent::FoundGranted => {
            kept::handed(name, "remote");
        }
        KeyEvent::Renewed { slack } => kept::renewed(*slack),
        KeyEvent::RenewFailed { error, .. } => kept::store_failed("renew", error),
        KeyEvent::WaitFailed { error } => kept::store_failed("wait", error),
        KeyEvent::LeaveFailed { error } => kept::leave_failed(error.as_ref()),
        _ => return false,
    }
    true
}

/// `None` for what only the simulator counts.
pub(super) fn level_of_key(event: &KeyEvent) -> Option<Level> {
    match event {
        KeyEvent::HandedOn
        | KeyEvent::PushUsed
        | KeyEvent::PushConfirming
        | KeyEvent::FoundGranted
        | KeyEvent::Renewed { .. } => Some(Level::TRACE),
        // What fails is told once for its server, and for each key only to who looks closer.
        KeyEvent::Requeued
        | KeyEvent::Asking
        | KeyEvent::UnknownLeft
        | KeyEvent::PushStale
        | KeyEvent::RenewFailed { .. }
        | KeyEvent::WaitFailed { .. }
        | KeyEvent::LeaveFailed { .. }
        | KeyEvent::Late => Some(Level::DEBUG),
        KeyEvent::Inherited { .. } => Some(Level::INFO),
        KeyEvent::Overdue { .. } | KeyEvent::HeldLong { .. } | KeyEvent::UnlikeCapacity { .. } => {
            Some(Level::WARN)
        }
        KeyEvent::PushForged => Some(Level::ERROR),
        KeyEvent::TooShort
        | KeyEvent::GhostLeft
        | KeyEvent::Yielded
        | KeyEvent::LeaveRepeated
        | KeyEvent::AnswerStale => None,
    }
}

fn tell_of_key(of: &Label, name: &Name, event: &KeyEvent) {
    match event {
        KeyEvent::HandedOn => observe::handed_on(of, name),
        KeyEvent::PushUsed | KeyEvent::PushConfirming | KeyEvent::FoundGranted => {
            observe::taken_over(of, name)
        }
        KeyEvent::Renewed { slack } => observe::renewed(of, name, *slack),
        KeyEvent::RenewFailed { left, error } => observe::renew_failed(of, name, *left, error),
        KeyEvent::WaitFailed { error } => observe::wait_failed(of, name, error),
        KeyEvent::Inherited { from } => observe::inherited(of, name, *from),
        KeyEvent::Overdue { held, left } => observe::overdue(of, name, *held, *left),
        KeyEvent::HeldLong { held } => observe::held_long(of, name, *held),
        KeyEvent::UnlikeCapacity { ours, theirs } => observe::capacity_differs(of, name, *ours, *theirs),
        KeyEvent::Requeued => observe::requeued(of, name),
        KeyEvent::Asking => observe::asked_again(of, name),
        KeyEvent::Late => observe::late(of, name),
        KeyEvent::UnknownLeft => observe::unknown_grant(of, name),
        KeyEvent::PushStale => observe::stale_grant(of, name),
        KeyEvent::PushForged => observe::forged_grant(of, name),
        KeyEvent::LeaveFailed { error } => observe::leave_failed(of, name, error.as_ref()),
        KeyEvent::TooShort
        | KeyEvent::GhostLeft
        | KeyEvent::Yielded
        | KeyEvent::LeaveRepeated
        | KeyEvent::AnswerStale => {}
    }
}
