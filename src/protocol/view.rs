//! What a store shows of its keys and nodes to an operator, read without changing it.
//!
//! A view has no nonce. The nonce of an owner is the secret of a transfer, and views end up in terminals and tickets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::StoreError;
use crate::key::Key;
use crate::protocol::ledger::JobRecord;
use crate::protocol::message::{ClaimNumber, Fence, GrantNumber, Mode, Name, NodeId, RunRecord};

/// The number of holders and of waiters that a view lists. The others are counted.
pub const MAX_LISTED: usize = 50;
/// About the number of names that one page has.
pub const PAGE: usize = 500;
/// The number of notes that a presence has.
pub const MAX_NOTES: usize = 16;
/// The size of a note, in bytes.
pub const MAX_NOTE: usize = 200;

/// What a store keeps of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyView {
    /// The name.
    pub name: Name,
    /// The record.
    pub record: RecordView,
    /// When the record ends, in milliseconds. `None`: it does not end, or there is none.
    pub left_ms: Option<u64>,
    /// The number of claims that wait. For a latch, the number of nodes that watch it.
    pub waiting: u64,
    /// The first waiters, in the order of the queue.
    pub waiters: Vec<WaiterView>,
}

/// The record of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordView {
    /// There is none. The name has waiters.
    Free,
    /// One claim owns the name.
    Owned(HolderView),
    /// Claims share the name.
    Shared {
        /// The number of claims.
        count: u64,
        /// The number of permits that they hold; 0 for readers.
        in_use: u64,
        /// The claims whose leases end first, in that order.
        holders: Vec<HolderView>,
    },
    /// A latch that is set.
    Latch {
        /// The number of count-downs that are left.
        left: u32,
    },
    /// Another client owns the name.
    Foreign {
        /// Identifies the value; `None` if it is no value of a lock.
        digest: Option<Arc<str>>,
        /// An operator revoked the record: it excludes others until it ends.
        is_revoked: bool,
    },
}

/// A claim that holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderView {
    /// The node of the claim.
    pub node: NodeId,
    /// The number of the claim.
    pub claim: ClaimNumber,
    /// How the lease is shared.
    pub mode: Mode,
    /// The number of the grant. `None`: the claim shared the key, and its lease is revoked.
    pub number: Option<GrantNumber>,
    /// When the lease ends, in milliseconds.
    pub left_ms: Option<u64>,
    /// An operator revoked the lease. It excludes others until it ends, or until its claim leaves.
    pub is_revoked: bool,
    /// The node may keep the lease without a holder.
    pub may_keep: bool,
}

/// A claim that waits, or a node that watches a latch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterView {
    /// The node of the claim.
    pub node: NodeId,
    /// The number of the claim. `None`: the node watches a latch.
    pub claim: Option<ClaimNumber>,
    /// How the lease would be shared.
    pub mode: Mode,
    /// The claim sent no heartbeat for a lease, and is removed when its turn comes.
    pub is_dead: bool,
}

/// What a node tells of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Presence {
    /// The name that its builder gave it, or empty.
    pub name: String,
    /// The name of its machine.
    pub host: String,
    /// The number of its process.
    pub pid: u32,
    /// When the node was built, in milliseconds since 1970 by the clock of its machine.
    pub started_ms: u64,
    /// The version of this crate.
    pub version: String,
    /// The name of the service, or empty.
    pub service: String,
    /// The prefix of its records.
    pub prefix: Vec<u8>,
    /// The number of keys with state: a lease, a waiter, or a request in flight.
    pub keys: u64,
    /// The number of callers that wait.
    pub waiting: u64,
    /// The notes of the leases that its callers have held for longest, at most [`MAX_NOTES`].
    pub notes: Vec<NoteView>,
}

/// What a holder says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteView {
    /// The claim by which it holds. A claim has one grant in its life, so the note can be of no later grant.
    pub claim: ClaimNumber,
    /// Its fence, which differs from those of the other local holders of the grant.
    pub fence: Fence,
    /// The text, at most [`MAX_NOTE`] bytes.
    pub text: Arc<str>,
}

/// What a store knows of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeView {
    /// What the node told of itself within the last minute.
    pub presence: Option<Presence>,
    /// The node is subscribed to its channel.
    pub listens: bool,
}

/// What one server shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerView {
    /// The name of the server.
    pub server: Arc<str>,
    /// The clock of the grant numbers, in microseconds.
    pub now_us: u64,
    /// The date by the clock of the server, in microseconds since 1970.
    pub date_us: u64,
    /// The names that it keeps.
    pub keys: Vec<KeyView>,
    /// The nodes of their holders and waiters, or all nodes that were asked for.
    pub nodes: BTreeMap<NodeId, NodeView>,
}

impl RecordView {
    /// Returns the holders that are listed.
    pub fn holders(&self) -> &[HolderView] {
        match self {
            RecordView::Owned(holder) => std::slice::from_ref(holder),
            RecordView::Shared { holders, .. } => holders,
            RecordView::Free | RecordView::Latch { .. } | RecordView::Foreign { .. } => &[],
        }
    }
}

/// Returns the nodes of the holders and waiters that are listed.
pub(crate) fn nodes_of(keys: &[KeyView]) -> BTreeSet<NodeId> {
    let holders = keys.iter().flat_map(|key| key.record.holders());
    let waiters = keys.iter().flat_map(|key| &key.waiters);
    let nodes = holders.map(|holder| holder.node);
    nodes.chain(waiters.map(|waiter| waiter.node)).collect()
}

/// What a store keeps of a job.
#[derive(Debug, Clone)]
pub struct JobView {
    /// The name of the job.
    pub key: Key,
    /// Its record.
    pub record: JobRecord,
    /// The grants that own the job, read before and after the record.
    pub owners: Vec<GrantNumber>,
    /// The date by the clock of the server, in milliseconds since 1970.
    pub now_ms: u64,
    /// The clock of the grant numbers, in microseconds.
    pub now_us: u64,
}

impl JobView {
    /// Returns the run that goes on.
    pub fn running(&self) -> Option<&RunRecord> {
        let latest = self.record.runs.back();
        latest.filter(|run| run.ending.is_none() && self.owners.contains(&run.number))
    }
}

/// Which jobs are asked for.
#[derive(Debug, Clone)]
pub enum JobQuery {
    /// One job.
    One(Key),
    /// A page of the jobs whose names begin with a prefix.
    Page(Box<[u8]>, Option<Position>),
}

/// The answer to a [`JobQuery`].
#[derive(Debug, Clone, Default)]
pub struct JobAnswer {
    /// The jobs that the store knows.
    pub jobs: Vec<JobView>,
    /// Where the next page begins. `None`: this page was the last.
    pub next: Option<Position>,
}

/// Where the next page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Position {
    /// After this name, among the names of a store in memory in their order.
    After(Name),
    /// At this cursor of SCAN, of the server with this id.
    Scan(u16, u64),
}

/// What is asked of a store.
#[derive(Debug, Clone)]
pub enum InspectQuery {
    /// A page of the names whose keys begin with a prefix, and what is kept of them.
    List(Box<[u8]>, Option<Position>),
    /// What is kept of a key, of each kind.
    Show(Key),
    /// A page of the nodes that told of themselves.
    Nodes(Option<Position>),
}

/// The answer to a [`InspectQuery`].
#[derive(Debug, Clone)]
pub struct InspectAnswer {
    /// What each server shows. Each master of a quorum has an answer of its own.
    pub views: Vec<ServerView>,
    /// Where the next page begins. `None`: this page was the last.
    pub next: Option<Position>,
    /// The masters of a quorum without an answer, and why.
    pub failures: Vec<(Arc<str>, StoreError)>,
}
