//! Where leases are kept: the contract, and the stores that keep it.
//!
//! A store applies batches of requests and pushes grants. It has no policy: it waits for nothing, retries nothing
//! and sets no deadline. What the verbs do is written down in executable form, `protocol/ledger/mod.rs`; every store gives
//! the replies that the ledger gives.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::StoreError;
use crate::protocol::message::{Batch, BatchReply, Failure, InboxEvent, Name, NodeId, Reply};
use crate::protocol::write::Action;

pub mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

/// A boxed future, so that a store can stand behind a pointer.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Takes what is pushed to a node. Must not block.
pub type Sink = Arc<dyn Fn(InboxEvent) + Send + Sync>;

/// Which of a store's servers answers for a name. A single server has one route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u16);

/// What a store can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// It keeps waiters in a queue. Where it does not, a waiting claim is answered busy and is claimed again. So is the
    /// claim of a tick, until it is granted or the tick is over; that an earlier one was running when it came, and that
    /// it was skipped for that, cannot be told from a busy standby there, and is heard of as over, too.
    pub queues: bool,
    /// A pushed grant may be used at once. Where not, it is renewed before use.
    pub final_push: bool,
    /// It can vanish without a word, so it is asked for signs of life.
    pub remote: bool,
}

impl Abilities {
    /// Of a store that is the ledger itself, in this process.
    pub(crate) const OF_THE_LEDGER: Abilities = Abilities {
        queues: true,
        final_push: true,
        remote: false,
    };
}

/// The contract. Sealed until more than one kind of store has lived in it.
pub trait Store: sealed::Sealed + Debug + Send + Sync + 'static {
    /// What it can do.
    fn abilities(&self) -> Abilities;

    /// Which server answers for `name`; asked each time a request is sent.
    fn server(&self, name: &Name) -> ServerId;

    /// A server's name, for errors. No password is in it.
    fn describe(&self, server: ServerId) -> String;

    /// The store itself, if it answers at once.
    fn immediate(&self) -> Option<&dyn Immediate> {
        None
    }

    /// Opens a connection of its own to a server, on the runtime that this is called on. Checks what must be checked of a
    /// server before it is trusted. Without a deadline; the future may be dropped at any time.
    fn connect(&self, server: ServerId) -> BoxFuture<'static, Result<Arc<dyn Link>, StoreError>>;

    /// Opens the inbox of `node` at a server, on the runtime that this is called on: from then on `sink` is called with
    /// each grant. Without a deadline; the future may be dropped at any time.
    fn inbox(
        &self,
        server: ServerId,
        node: NodeId,
        sink: Sink,
    ) -> BoxFuture<'static, Result<Inbox, StoreError>>;
}

/// A store that answers at once, as one in memory does. It is asked by the thread that wants to know.
pub trait Immediate {
    /// Applies a batch. Grants for others are pushed to their inboxes. `replies` is empty and has room for them.
    fn apply(&self, batch: &Batch, replies: Vec<Reply>) -> BatchReply;

    /// Does an action about `name`.
    fn act(&self, name: &Name, action: &Action) -> Reply;

    /// The store's clock in microseconds.
    fn time(&self) -> u64;

    /// Opens the inbox of `node`, or closes it.
    fn listen(&self, node: NodeId, sink: Option<Sink>);
}

/// One connection. Dropping the last handle, and the futures that came from it, closes it.
pub trait Link: Debug + Send + Sync + 'static {
    /// Sends the batch and waits for its answer, without a deadline. Batches are sent in the order of the first
    /// polls. Dropping the future does not undo what was sent.
    fn apply(&self, batch: Batch) -> BoxFuture<'static, Result<BatchReply, Failure>>;

    /// Sends an action about `name` and waits for its answer, without a deadline. It is sent once: again only where the server
    /// said that it did not do it. Dropping the future does not undo what was sent.
    fn act(&self, name: Name, action: Action) -> BoxFuture<'static, Result<Reply, Failure>>;

    /// The server's clock in microseconds, read when the connection was opened.
    fn time(&self) -> u64;

    /// Which run of the server this is, where it says so: it is another after a restart.
    fn run_id(&self) -> Option<&str> {
        None
    }

    /// What the server's operator should know, found when the connection was opened.
    fn warnings(&self) -> &[String] {
        &[]
    }
}

/// An inbox that is open. Dropping it closes it.
#[non_exhaustive]
pub struct Inbox {
    /// Asks it for a sign of life.
    pub pings: Box<dyn Ping>,
    /// Serves it, and ends when it breaks.
    pub ended: BoxFuture<'static, StoreError>,
}

/// Asks for a sign of life.
pub trait Ping: Send {
    /// Resolves when there is one, without a deadline.
    fn ping(&mut self) -> BoxFuture<'_, Result<(), StoreError>>;
}

impl Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

pub(crate) mod sealed {
    /// Keeps the contract ours until quorum and cluster have lived in it.
    pub trait Sealed {}
}
