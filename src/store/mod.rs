//! The contract of a store, and the stores that implement it.
//!
//! A store applies batches of requests and pushes grants. A store has no policy: it never waits, never retries and sets no
//! deadline. The ledger (`protocol/ledger/mod.rs`) defines the effect of each verb. Every store gives the ledger's replies.

use std::fmt::Debug;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use crate::error::StoreError;
use crate::key::Key;
use crate::protocol::finding::Finding;
use crate::protocol::job_act::{JobActReply, JobActRequest};
use crate::protocol::message::{Batch, BatchReply, Failure, GrantNumber, InboxEvent, Name, NodeId, Reply};
use crate::protocol::primitive::Primitive;
use crate::protocol::session::step::Opened;
use crate::protocol::steal::{AuditEntry, StealReply, StealRequest};
use crate::protocol::view::{InspectAnswer, InspectQuery, JobAnswer, JobQuery, Presence};
use crate::protocol::write::Action;

pub mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

/// The Redis store is private: no public function takes it.
///
/// ```compile_fail,E0603
/// use tenure::store::redis::RedisStore;
/// ```
#[cfg(all(doctest, feature = "redis"))]
struct RedisStoreIsPrivate;

/// A boxed future. It lets callers use a store behind a pointer.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A function that is called after each change of the map of names and servers. It must not block.
pub type MapSink = Arc<dyn Fn() + Send + Sync>;

/// A function that takes what is pushed to a node. It must not block.
pub type Sink = Arc<dyn Fn(InboxEvent) + Send + Sync>;

pub use crate::protocol::cluster::ServerId;

/// A function that reports a warning for operators. It must not block.
pub type WarnSink = Arc<dyn Fn(String) + Send + Sync>;

/// The abilities of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// Whether the store keeps waiters in a queue.
    ///
    /// A store without a queue answers a waiting claim "busy", and the node claims again. The claim of a tick is repeated until
    /// it is granted or the tick is over. Such a store cannot tell a run of an earlier tick from a standby of the same tick. So
    /// it reports a tick that was skipped for an earlier run as over.
    pub queues: bool,
    /// Whether a pushed grant may be used at once. If not, the node renews it before use.
    pub final_push: bool,
    /// Whether the store can become unreachable without notice, so that the driver pings it.
    pub remote: bool,
}

impl Abilities {
    /// The abilities of a store that is the ledger itself, in this process.
    pub(crate) const OF_THE_LEDGER: Abilities = Abilities {
        queues: true,
        final_push: true,
        remote: false,
    };
}

/// What the primitives depend on in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
pub(crate) enum StoreKind {
    /// The ledger, in this process.
    #[strum(to_string = "the store in memory")]
    Memory,
    /// One Redis, a master behind Sentinels, or a cluster.
    #[strum(to_string = "Redis")]
    Redis,
    /// A quorum of Redis masters.
    #[strum(to_string = "a quorum")]
    Quorum,
}

const SERVED: Option<&str> = None;
const ONE_REDIS: Option<&str> =
    Some("`Locks` on one Redis for this, with `Recovery::Always` if it may lose writes");
const FENCE: Option<&str> = Some("the fence: send it with the write");
const REDIS_OR_FENCE: Option<&str> = Some("`Locks` on Redis, or send the fence with the write");
const PATIENCE: Option<&str> = Some("patience: the lease ends when its holder ends, or at its deadline");

/// What each store serves: in memory, on Redis, on a quorum. The other cells say what to use instead. With two permits and
/// three masters of a quorum, for example, three claims could each have a majority.
const PRIMITIVES: [(Primitive, [Option<&str>; 3]); 10] = [
    (Primitive::Mutex, [SERVED, SERVED, SERVED]),
    (Primitive::FairLock, [SERVED, SERVED, ONE_REDIS]),
    (Primitive::ReadLock, [SERVED, SERVED, ONE_REDIS]),
    (Primitive::Semaphore, [SERVED, SERVED, ONE_REDIS]),
    (Primitive::Latch, [SERVED, SERVED, ONE_REDIS]),
    (Primitive::Election, [SERVED, SERVED, ONE_REDIS]),
    (Primitive::Transfer, [SERVED, SERVED, ONE_REDIS]),
    (Primitive::Job, [SERVED, SERVED, ONE_REDIS]),
    (Primitive::Write, [REDIS_OR_FENCE, SERVED, FENCE]),
    (Primitive::Steal, [SERVED, SERVED, PATIENCE]),
];

impl StoreKind {
    /// Returns the kind of a store.
    pub(crate) fn of(store: &dyn Store) -> StoreKind {
        match store.abilities().remote {
            false => StoreKind::Memory,
            true if store.masters() == 0 => StoreKind::Redis,
            true => StoreKind::Quorum,
        }
    }

    /// Returns the refusal of a primitive that stores of this kind do not serve: store, primitive, and what to use.
    pub(crate) fn refusal(self, primitive: Primitive) -> Option<StoreError> {
        let (_, cells) = PRIMITIVES[primitive as usize];
        let instead = cells[self as usize]?;
        Some(StoreError::unsupported(format_args!(
            "{self} serves no {primitive}: use {instead}"
        )))
    }
}

/// The contract of a store. It is sealed: each topology has changed it, and an open contract would fix the requests of
/// [`protocol`](crate::protocol) as well.
pub trait Store: sealed::Sealed + Debug + Send + Sync + 'static {
    /// Returns the abilities of the store.
    fn abilities(&self) -> Abilities;

    /// Returns the server that answers for `name`. The driver asks each time it sends a request.
    fn server(&self, name: &Name) -> ServerId;

    /// Returns the slot of `name`. Names of one slot have one server, and one step of the store may be about several of
    /// them.
    fn slot(&self, _: &Name) -> u16 {
        0
    }

    /// Returns the slot of a key of the caller, which a write under a lease is about.
    fn slot_of_key(&self, _: &[u8]) -> u16 {
        0
    }

    /// Returns the servers that answer for names, as far as the store knows.
    fn servers(&self) -> Vec<ServerId> {
        vec![ServerId(0)]
    }

    /// Returns the number of masters of a quorum, each of which has every name. Their ids begin with 0. Zero for every other store.
    fn masters(&self) -> u16 {
        0
    }

    /// Returns the server of the inbox. A cluster has an id of its own for it, and opens each inbox at one of its servers.
    /// `None`: nothing is pushed.
    fn inbox_server(&self) -> Option<ServerId> {
        Some(ServerId(0))
    }

    /// Keeps the map of names and servers up to date, and calls `changed` after each change. `None`: names never move.
    fn watch_map(&self, _changed: MapSink) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// Returns a server's name for error texts. The name contains no password.
    fn describe(&self, server: ServerId) -> String;

    /// Returns the store itself if it answers without input and output.
    fn immediate(&self) -> Option<&dyn Immediate> {
        None
    }

    /// Returns what reads for operators; `None` if the store has none.
    fn inspector(&self) -> Option<Arc<dyn Inspect>> {
        None
    }

    /// Returns the same store for a trial of locks under keys that no other process has. Its connections compare no run, begin no
    /// recovery and leave no contract. `None`: a trial shows nothing, because the store has no servers.
    fn for_trial(&self) -> Option<Arc<dyn Store>> {
        None
    }

    /// Opens a new connection to a server, on the current runtime, and checks that the server can be trusted.
    ///
    /// There is no deadline. The future may be dropped at any time. `highest`: the highest grant number that the node has seen,
    /// if the server has one clock.
    fn connect(
        &self,
        server: ServerId,
        highest: Option<GrantNumber>,
    ) -> BoxFuture<'static, Result<Arc<dyn Link>, StoreError>>;

    /// Opens the inbox of `node` at a server, on the current runtime. From then on each grant is passed to `sink`.
    ///
    /// There is no deadline. The future may be dropped at any time.
    fn inbox(
        &self,
        server: ServerId,
        node: NodeId,
        sink: Sink,
    ) -> BoxFuture<'static, Result<Inbox, StoreError>>;
}

/// A store that answers at once, such as a store in memory. The caller's own thread calls it.
pub trait Immediate {
    /// Applies a batch. Grants for other nodes are pushed to their inboxes. `replies` is empty and has room for the replies.
    fn apply(&self, batch: &Batch, replies: Vec<Reply>) -> BatchReply;

    /// Executes an action about `name`.
    fn act(&self, name: &Name, action: &Action) -> Reply;

    /// Returns the time of the store's clock in microseconds.
    fn time(&self) -> u64;

    /// Tells operators of a node, or removes what was told.
    fn tell(&self, node: NodeId, presence: Option<Presence>);

    /// Opens the inbox of `node`, or closes it if `sink` is `None`.
    fn listen(&self, node: NodeId, sink: Option<Sink>);
}

/// Reads what a store keeps, for operators, and takes leases from their holders.
pub trait Inspect: Debug + Send + Sync + 'static {
    /// Answers a question, within the timeouts of the store. A store that needs input and output is asked on the current runtime.
    fn read(&self, query: InspectQuery) -> BoxFuture<'static, Result<InspectAnswer, StoreError>>;

    /// Returns what is kept of jobs.
    fn jobs(&self, query: JobQuery) -> BoxFuture<'static, Result<JobAnswer, StoreError>>;

    /// Returns the servers that recover, and for how many milliseconds. A server without an answer is left out, and so are those of a
    /// cluster, whose slots recover one by one.
    fn recovering(&self) -> BoxFuture<'static, Vec<(Arc<str>, u64)>>;

    /// Checks each server by plain reads. A server without an answer is a finding.
    ///
    /// # Errors
    /// Returns an error if no server answers.
    fn check(&self) -> BoxFuture<'static, Result<Vec<Finding>, StoreError>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    /// Subscribes to a channel of a node that does not exist, and publishes to it at the server of `key`. Returns why pushes do not
    /// arrive.
    fn try_push(&self, _key: Key) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }

    /// Sends the commands of the scripts, as far as they change nothing of `key`, which does not exist. Returns the right that is
    /// missing. A quorum is not asked: its script has other commands.
    fn try_rights(&self, _key: Key) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }

    /// Removes all that the server keeps of a key, which no process uses any more. A quorum keeps nothing of such a key.
    fn remove(&self, _key: Key) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }

    /// Executes a step of a steal, and returns the server's date in microseconds since 1970, too.
    fn steal(&self, steal: StealRequest) -> BoxFuture<'static, Result<(StealReply, u64), StoreError>>;

    /// Executes an act of an operator about a job, and returns the server's date in microseconds, too.
    fn act_on_job(
        &self,
        request: JobActRequest,
    ) -> BoxFuture<'static, Result<(JobActReply, u64), StoreError>>;

    /// Appends to the audit list.
    fn note(&self, entry: AuditEntry) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Returns the audit list, the latest entry first.
    fn audit(&self) -> BoxFuture<'static, Result<Vec<AuditEntry>, StoreError>>;
}

/// A connection to a server. It closes when the last handle and every future made from it are dropped.
pub trait Link: Debug + Send + Sync + 'static {
    /// Sends the batch and waits for the answer, without a deadline.
    ///
    /// Batches are sent in the order in which their futures are first polled. Dropping the future does not undo the batch.
    fn apply(&self, batch: Batch) -> BoxFuture<'static, Result<BatchReply, Failure>>;

    /// Sends an action about `name` and waits for the answer, without a deadline.
    ///
    /// The action is sent once. It is sent again only if the server said that it did not execute it. Dropping the future does
    /// not undo the action.
    fn act(&self, name: Name, action: Action) -> BoxFuture<'static, Result<Reply, Failure>>;

    /// Tells operators of a node for a minute, or removes what was told.
    fn tell(&self, _: NodeId, _: Option<Presence>) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Asks whether the server has a subscriber of this channel. `None` if it cannot be asked.
    fn has_subscriber(&self, _channel: Arc<str>) -> BoxFuture<'static, Option<bool>> {
        Box::pin(std::future::ready(None))
    }

    /// Returns the id of the server's current run, if the server reports one. The id changes at each restart.
    fn run_id(&self) -> Option<&str> {
        None
    }

    /// Returns what was learned when the connection was opened. A store with one server that never moves has one place for all
    /// connections.
    fn opened(&self) -> Opened;

    /// Resolves when the connection must no longer be used, because its server is no longer the one that answers for
    /// the store. By default never. Until then it may warn.
    fn ended(&self, _warn: WarnSink) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Returns warnings for the operator of the server, found when the connection was opened.
    fn warnings(&self) -> &[String] {
        &[]
    }
}

/// An open inbox. Dropping it closes it.
#[non_exhaustive]
pub struct Inbox {
    /// The address that the inbox leads to, equal to that of a [`Place`](crate::protocol::session::step::Place).
    pub address: Arc<str>,
    /// A channel to which no other connection is subscribed, if the store has channels. It tells which server the inbox leads to.
    pub own_channel: Option<Arc<str>>,
    /// Pings the inbox's connection.
    pub pings: Box<dyn Ping>,
    /// Receives pushes, and resolves when the connection breaks.
    pub ended: BoxFuture<'static, StoreError>,
}

/// A way to ping a connection.
pub trait Ping: Send {
    /// Resolves when the server has answered, without a deadline.
    fn ping(&mut self) -> BoxFuture<'_, Result<(), StoreError>>;
}

impl Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

pub(crate) mod sealed {
    /// Keeps other crates from implementing the contract.
    pub trait Sealed {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table is indexed by its primitives.
    #[test]
    fn each_primitive_has_the_row_of_its_number() {
        for (row, (primitive, _)) in PRIMITIVES.iter().enumerate() {
            assert_eq!(*primitive as usize, row, "{primitive}");
        }
    }

    #[test]
    fn the_guide_shows_what_each_store_serves() {
        let guide = include_str!("../../docs/choosing.md");
        let cell = |served: &Option<&str>| if served.is_none() { "yes" } else { "no" };
        for (primitive, [memory, redis, quorum]) in &PRIMITIVES {
            let row = format!(
                "| {primitive} | {} | {} | {} |",
                cell(memory),
                cell(redis),
                cell(quorum)
            );
            assert!(guide.contains(&row), "docs/choosing.md lacks `{row}`");
        }
    }
}
