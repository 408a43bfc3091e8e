//! What goes into a session and what comes out of it.

use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;
use crate::protocol::message::{Batch, BatchReply, Failure, Name};
use crate::protocol::step::{InboxState, Input};
use crate::protocol::time::Instant;
use crate::protocol::write::Action;

/// The first pause before a closed connection or inbox is opened again.
pub(crate) const MIN_RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before a closed connection or inbox is opened again.
pub(crate) const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// How long a connection or an inbox may be silent before it is asked for a sign of life.
pub const MAX_SILENCE: Duration = Duration::from_secs(10);

/// An attempt to open a connection or an inbox, and what came of it. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// A batch under way. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// Somebody who wants to know whether the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probe(pub u64);

/// What does not change in the life of a session.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// How long a request, a connection's opening or a sign of life may take at most.
    pub request_timeout: Duration,
    /// The server, as errors name it.
    pub server: Arc<str>,
    /// It can vanish without a word, so it is asked for signs of life.
    pub remote: bool,
    /// It can fail, so that an answer is news. The memory store cannot.
    pub can_fail: bool,
    /// How long a lock that was handed on and on is left free for who only looks now and then; nothing for never.
    pub poll_gap: Duration,
    /// Parts the pauses of many nodes.
    pub seed: u64,
}

/// What happens to a session.
#[derive(Debug)]
pub enum SessionInput {
    /// A connection is open. The server's clock showed `time` (in µs) since the attempt began.
    Connected {
        /// Which attempt.
        attempt: Attempt,
        /// The server's clock.
        time: u64,
    },
    /// A connection could not be opened.
    ConnectFailed {
        /// Which attempt.
        attempt: Attempt,
        /// Why.
        error: StoreError,
    },
    /// A batch was answered, or never will be.
    Replied {
        /// Which batch.
        batch: BatchId,
        /// What was answered.
        reply: Result<BatchReply, Failure>,
    },
    /// Somebody wants a sign of life.
    Probed(Probe),
    /// Grants will be waited for.
    InboxWanted,
    /// The inbox is open: from now on grants are pushed.
    InboxOpened(Attempt),
    /// A caller is about to give up: the server has to give a sign of life, unless it was just heard.
    SignWanted,
    /// A grant was found whose push did not come.
    PushMissed,
    /// The inbox gave a sign of life.
    InboxHeard(Attempt),
    /// The inbox could not be opened, or broke.
    InboxFailed(Attempt, StoreError),
}

/// What is to be done.
#[derive(Debug)]
pub enum SessionEffect {
    /// Open a connection.
    Connect(Attempt),
    /// Close this connection, or give up opening it. Nothing that comes of it is wanted.
    Close(Attempt),
    /// Send this batch.
    Send {
        /// On which connection.
        connection: Attempt,
        /// Comes back with the reply.
        id: BatchId,
        /// What to send.
        batch: Batch,
    },
    /// Send this action, once.
    Act {
        /// On which connection.
        connection: Attempt,
        /// Comes back with the reply, which is one.
        id: BatchId,
        /// What the action is about.
        name: Name,
        /// What to send.
        action: Action,
    },
    /// Tell the key machine of this name.
    Tell(Name, Input),
    /// A connection opened: whatever waits to be told to the server can be told now.
    Reachable,
    /// Open an inbox, ask it for a sign of life, or close it.
    Inbox(InboxEffect),
    /// Whether grants are pushed has changed.
    InboxState(InboxState),
    /// The answer to a probe.
    Probed(Probe, Result<(), StoreError>),
    /// Something worth an event or a metric.
    Event(SessionEvent),
}

/// Something worth an event or a metric, or that the simulator counts.
#[derive(Debug, Clone)]
pub enum SessionEvent {
    /// A connection opened, after so long.
    Connected(Duration),
    /// A connection broke or was given up, or could not be opened.
    ConnectionLost {
        /// Why.
        error: StoreError,
        /// It was found closed when it was used again after a while: nothing was under way, and so far nothing says
        /// that the server is away.
        idle: bool,
    },
    /// Requests were asked for in vain before their connection was given up, and told so.
    TimedOut(usize),
    /// Requests were under way on a connection that was given up for others.
    Bystanders(usize),
    /// So many requests were not sent, as the server is down.
    Down(usize),
    /// A batch was answered. Those to a store at hand are not told.
    Answered {
        /// Something in it was refused.
        refused: bool,
        /// When it was sent.
        sent: Instant,
    },
    /// The inbox is open.
    InboxOpen,
    /// The inbox broke or could not be opened.
    InboxLost(StoreError),
}

/// What is to be done with an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboxEffect {
    /// Open it.
    Open(Attempt),
    /// Ask it for a sign of life.
    Ping(Attempt),
    /// Close it, or give up opening it.
    Close(Attempt),
}

/// One step of a session: the time, and where its effects go.
pub(crate) struct SessionContext<'a> {
    pub(crate) now: Instant,
    pub(crate) effects: &'a mut Vec<SessionEffect>,
}

impl SessionContext<'_> {
    pub(crate) fn event(&mut self, event: SessionEvent) {
        self.effects.push(SessionEffect::Event(event));
    }

    pub(crate) fn inbox(&mut self, effect: InboxEffect) {
        self.effects.push(SessionEffect::Inbox(effect));
    }
}

impl From<SessionEvent> for SessionEffect {
    fn from(event: SessionEvent) -> Self {
        SessionEffect::Event(event)
    }
}
