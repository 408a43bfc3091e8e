//! The state of one connection.

use std::collections::VecDeque;

use tenure::error::{StoreError, StoreErrorKind};
use tenure::protocol::message::LinkReply;
use tenure::protocol::sentinels::Reign;
use tenure::protocol::session::step::{Attempt, BatchId};

/// A connection: an ordered pipe in each direction.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) slot: usize,
    pub(crate) life: u32,
    /// The session of the node that opened it.
    pub(crate) session: usize,
    /// The server that it leads to.
    pub(crate) to: usize,
    /// The run of the server that accepted it.
    pub(crate) run: u64,
    /// In which reign the Sentinels confirmed it.
    pub(crate) reign: Reign,
    /// What the server answered to the link.
    pub(crate) link: LinkReply,
    /// Whether a server of another cluster accepted it.
    pub(crate) stranger: bool,
    /// Whether its server closed it. Copies of batches in its pipe are lost, too.
    pub(crate) killed: bool,
    /// The session's name for it.
    pub(crate) attempt: Attempt,
    /// Whether the client reads it.
    pub(crate) client: bool,
    /// Whether the session was told that it is open.
    pub(crate) opened: bool,
    /// Whether the server reads it, which may go on long after the client gave it up.
    pub(crate) server: bool,
    /// Nothing moves until this time.
    pub(crate) stall: u64,
    /// Until when the question for an inbox is held, or its answer. The stall that holds it may end earlier, with the faults.
    pub(crate) seeks_until: u64,
    /// Whether answers get lost.
    pub(crate) mute: bool,
    /// Since when nothing gets through without an error, as after a firewall dropped it.
    pub(crate) silent: Option<u64>,
    /// Whether the client's end is broken. The next write then fails.
    pub(crate) broken: bool,
    /// When the last message arrives at the server.
    pub(crate) up: u64,
    /// When the last message arrives at the node.
    pub(crate) down: u64,
    /// The batches in flight, and whether the server executed each.
    pub(crate) flights: VecDeque<(BatchId, bool)>,
}

/// Returns a simulated error.
pub(crate) fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "simulated")
}
