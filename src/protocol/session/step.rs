//! The inputs and effects of a session.

use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::message::{Batch, BatchReply, Failure, LinkReply, Name, RecoveryCause};
use crate::protocol::session::server_clock::ServerClock;
use crate::protocol::step::{FormerMaster, InboxState, Input, Tag};
use crate::protocol::time::Instant;
use crate::protocol::write::Action;

/// The first pause before a closed connection or inbox is opened again.
pub(crate) const MIN_RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before a closed connection or inbox is opened again.
pub const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// Longest silence of a connection or an inbox before the session pings it.
pub const MAX_SILENCE: Duration = Duration::from_secs(10);

/// The number of one attempt to open a connection or an inbox, and of what it opened. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// The number of a batch. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// The number of a caller's question whether the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probe(pub u64);

/// The options of a session, fixed for its life.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Longest time for a request, for opening a connection, and for the answer to a ping.
    pub request_timeout: Duration,
    /// The server's name in errors.
    pub server: Arc<str>,
    /// Set for a server behind a network, which can vanish silently. The session pings it.
    pub remote: bool,
    /// Set if the store can fail, so that its answers are reported. The memory store cannot fail.
    pub can_fail: bool,
    /// How long a lock is left free for clients that poll, after it was handed over for eight such gaps without being
    /// free. Zero: never.
    pub poll_gap: Duration,
    /// How long the server grants nothing after a sign that it has lost grants: the lease of the builder with its
    /// margin, or the length on which all nodes agreed.
    pub recovery: Duration,
    /// The part of a recovery in which a former master may still grant.
    pub lag: Duration,
    /// Seeds the random factor of the pauses, which spreads out many nodes.
    pub seed: u64,
    /// What the session is for.
    pub role: SessionRole,
}

/// What a session is for, among the sessions of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionRole {
    /// The only session of its node: it sends requests, and has the inbox.
    #[default]
    Only,
    /// One of several sessions that send requests. Another session has the inbox. The highest grant number is not sent:
    /// each slot has its own clock, and the number of another slot would drive this one ahead of its server's time.
    Member,
    /// The session that has the inbox of a node with several servers. It sends no requests.
    Inbox,
}

/// Where a connection leads: an address, and the identity of the server that answers there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The address, as errors name it. It contains no password.
    pub address: Arc<str>,
    /// The run of the server: its run id and replication id. Empty if unknown.
    pub run: Arc<str>,
    /// The epoch under which the Sentinels confirmed that the server is the master.
    pub epoch: Option<u64>,
    /// The node id of a server of a cluster. Empty if unknown, or if there is no cluster.
    pub node_id: Arc<str>,
}

impl Place {
    /// Returns whether this place is another server, run or reign than `last`. Only what both places know is compared. The
    /// address counts if they know nothing else: one server may have two names, and a name may move to another server.
    pub(crate) fn is_elsewhere(&self, last: &Place) -> bool {
        let differs = |own: &str, other: &str| {
            let are_known = !own.is_empty() && !other.is_empty();
            are_known.then(|| own != other)
        };
        let parts = [
            differs(&self.run, &last.run),
            differs(&self.node_id, &last.node_id),
            self.epoch.zip(last.epoch).map(|(own, other)| own != other),
        ];
        if parts.iter().all(Option::is_none) {
            return self.address != last.address;
        }
        parts.contains(&Some(true))
    }

    /// Replaces the last place, or adds to it what this place knows. What could not be read does not hide a later change.
    pub(super) fn replace(self, last: &mut Option<Place>, is_elsewhere: bool) {
        *last = Some(match last.take().filter(|_| !is_elsewhere) {
            Some(last) => Place {
                run: if self.run.is_empty() { last.run } else { self.run },
                epoch: self.epoch.or(last.epoch),
                node_id: if self.node_id.is_empty() {
                    last.node_id
                } else {
                    self.node_id
                },
                ..self
            },
            None => self,
        });
    }
}

/// A connection that is open.
#[derive(Debug, Clone, Default)]
pub struct Opened {
    /// The server's clock (in µs), read after the attempt began.
    pub time: u64,
    /// Where the connection leads.
    pub place: Place,
    /// What the server answered to the link.
    pub link: LinkReply,
    /// Set if too few Sentinels confirmed that the server is the master.
    pub is_unconfirmed: bool,
}

/// An input to a session.
#[derive(Debug)]
pub enum SessionInput {
    /// A connection is open.
    Connected {
        /// The attempt that opened it.
        attempt: Attempt,
        /// What it leads to.
        opened: Opened,
    },
    /// A connection could not be opened.
    ConnectFailed {
        /// The attempt that failed.
        attempt: Attempt,
        /// The reason.
        error: StoreError,
    },
    /// A connection ended by itself: its server is no longer the master.
    ConnectionEnded(Attempt),
    /// A batch has its reply, or will never have one.
    Replied {
        /// The number of the batch.
        batch: BatchId,
        /// The replies, or why there are none.
        reply: Result<BatchReply, Failure>,
    },
    /// A write was not sent, because leases at these places of it are over.
    LeasesOver(BatchId, Vec<usize>),
    /// A caller asks whether the server answers.
    Probed(Probe),
    /// A caller will wait for a grant, so the inbox is needed.
    InboxWanted,
    /// The inbox is open: from now on grants are pushed.
    InboxOpened {
        /// The attempt that opened it.
        attempt: Attempt,
        /// The address that it leads to.
        address: Arc<str>,
    },
    /// The server of the connection was asked for the subscription of the inbox.
    InboxSought {
        /// The attempt that opened the inbox.
        inbox: Attempt,
        /// The attempt that opened the connection.
        connection: Attempt,
        /// Whether the server has the subscription. `None` if that is not known: the user may not ask.
        is_there: Option<bool>,
    },
    /// A caller is about to give up: the session pings the server, unless it answered lately.
    SignWanted,
    /// The node owns a lease whose push did not arrive.
    PushMissed,
    /// Another session of the node gave up its connection, so the inbox must show a sign of life.
    InboxDoubted,
    /// Another session of the node opened a connection, so a closed inbox may open soon.
    InboxRetried,
    /// The inbox answered or delivered something.
    InboxHeard(Attempt),
    /// The inbox could not be opened, or it broke.
    InboxFailed(Attempt, StoreError),
}

/// An effect that the driver carries out for a session.
#[derive(Debug)]
pub enum SessionEffect {
    /// Open a connection.
    Connect(Attempt),
    /// Close this connection, or stop opening it. Its later results are ignored.
    Close(Attempt),
    /// Send this batch.
    Send {
        /// The connection to send it on.
        connection: Attempt,
        /// The number that returns with the reply.
        id: BatchId,
        /// The batch.
        batch: Batch,
    },
    /// Send this action, once.
    Act {
        /// The connection to send it on.
        connection: Attempt,
        /// The number that returns with the reply. An action has one reply.
        id: BatchId,
        /// The name that the action is about.
        name: Name,
        /// The action.
        action: Action,
    },
    /// Pass this input to the key machine of the name.
    Tell(Name, Input),
    /// A connection opened: requests that were held back can be sent now.
    Reachable {
        /// Set if the connection leads to another place than the last one did.
        is_elsewhere: bool,
        /// What a master before this one may still do.
        former: FormerMaster,
        /// The latest reading of the server's clock.
        clock: Option<ServerClock>,
    },
    /// Open, ping or close the inbox.
    Inbox(InboxEffect),
    /// Pass this input to the session that has the inbox.
    TellInbox(SessionInput),
    /// The reliability of pushes has changed.
    InboxState(InboxState),
    /// The answer to a probe.
    Probed(Probe, Result<(), StoreError>),
    /// A fact for an event or a metric.
    Event(SessionEvent),
}

impl SessionEffect {
    /// Tells the key machine of the name that its request failed.
    pub(crate) fn failed(name: Name, tag: Tag, failed: FailedRequest) -> Self {
        SessionEffect::Tell(name, Input::Failed { tag, failed })
    }
}

/// A fact for an event, a metric or the simulator's counters.
#[derive(Debug, Clone)]
pub enum SessionEvent {
    /// A connection opened after this time.
    Connected(Duration),
    /// A connection broke, was given up, or could not be opened.
    ConnectionLost {
        /// The reason.
        error: StoreError,
        /// Set if the connection was found closed after an idle time: no request was in flight, so the server may
        /// still be reachable.
        idle: bool,
    },
    /// Requests got no answer in time: how many.
    TimedOut(usize),
    /// Requests were in flight on a connection that was given up because of other requests: how many.
    Bystanders(usize),
    /// Requests were not sent, because the server is down: how many.
    Down(usize),
    /// A batch was answered. Not reported for a store that cannot fail.
    Answered {
        /// Set if a request of the batch was refused.
        refused: bool,
        /// When the batch was sent.
        sent: Instant,
    },
    /// The server grants nothing for this long, because it may have lost grants. Reported once per recovery.
    Recovering(Duration, RecoveryCause),
    /// Again and again the server of the connection did not have the subscription of the inbox. Reported once a minute.
    InboxElsewhere,
    /// The inbox is open.
    InboxOpen,
    /// The inbox broke or could not be opened.
    InboxLost(StoreError),
}

/// An effect on an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboxEffect {
    /// Open the inbox.
    Open(Attempt),
    /// Ping the inbox.
    Ping(Attempt),
    /// Ask the server of this connection whether it has the subscription of the inbox.
    Seek {
        /// The inbox.
        inbox: Attempt,
        /// The connection to ask on.
        connection: Attempt,
    },
    /// Close the inbox, or stop opening it.
    Close(Attempt),
}

/// The context of one step of a session: the time, and where its effects go.
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
