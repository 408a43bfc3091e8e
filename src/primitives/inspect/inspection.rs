//! What the store keeps, read for operators.
//!
//! # The way of one look
//!
//! 1. An operator's program asks for a page of keys, for one key, or for the nodes (`primitives/inspect/inspection.rs`
//!    `list`, `show`, `nodes`). The driver's thread does the input and output, so any runtime may ask
//!    (`driver/inspector.rs` `read`).
//! 2. On Redis the page is read on connections of its own, by plain commands with a bound. `SCAN` finds records and queues
//!    (`store/redis/inspector.rs` `list`, `scan`). Then pipelines read the types, the records and the first waiters
//!    (`store/redis/inspector/keys.rs` `outlines`, `fill`, `shares`, `waiters`). Nothing is settled or swept.
//! 3. One file reads the texts that the scripts write (`store/redis/format.rs` `owner`, `share`, `waiter`).
//! 4. The ledger shows the same (`protocol/ledger/view.rs` `view`), and the differential tests compare the two after each
//!    step.
//! 5. A view has no nonce: the nonce of an owner is the secret of a transfer (`protocol/view.rs`).
//! 6. A check asks each server what it tells of itself, and judges that (`store/redis/inspector/check.rs` `facts`, `judge`). A trial
//!    takes locks by two nodes of its own, on connections without contracts (`primitives/inspect/check.rs` `check_locks`,
//!    `hand_over`).
//! 7. A node tells of itself every 20 s, once it has asked for a lease (`driver/presence.rs` `keep`, `tell`). Its key
//!    expires after a minute, and a shutdown removes it (`driver/presence.rs` `end_presence`). Presence decides nothing.
//! 7. A caller notes what it does with a lease (`primitives/guard.rs` `note`, `driver/notes.rs` `write`). The presence has the
//!    notes of the leases that were held for longest, by claim (`driver/notes.rs` `told`). An entry shows a note under the holder
//!    with that claim (`primitives/inspect/note.rs` `notes_of`).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::driver::handle::Handle;
use crate::driver::inspector::Inspector;
use crate::error::{Error, StoreError};
use crate::key::Key;
#[cfg(feature = "serde")]
use crate::primitives::inspect::json;
use crate::primitives::inspect::note::{NoteEntry, notes_of};
use crate::protocol::message::{Fence, Name, NodeId};
use crate::protocol::view::{
    HolderView, InspectAnswer, InspectQuery, KeyView, NodeView, Position, RecordView, ServerView, WaiterView,
};

pub use crate::protocol::message::{Kind, Mode, Permits};

/// Reads what the store keeps, for operators. [`Locks::inspect`](crate::Locks::inspect) returns it.
///
/// On Redis [`list`](Self::list), [`show`](Self::show) and [`nodes`](Self::nodes) send plain reads with a bound: no script and no
/// claim. [`steal`](Self::steal) runs scripts that change the key. All use connections of their own. Keep an inspection for as
/// long as one listing takes: after a failover its connections lead to the old master.
///
/// Nothing in its answers is a secret: they contain no nonce. Two answers are two moments, and so may be the parts of one
/// answer: a key may change hands between a read of its record and a read of its queue.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let guard = locks.mutex("account:42").lock().await?;
/// let inspection = locks.inspect();
/// let entry = inspection.show("account:42").await?.entries.remove(0);
/// println!("{} by {} holders, {} wait", entry.state.word(), entry.holder_count, entry.waiter_count);
/// guard.release().await?;
/// assert!(inspection.show("account:42").await?.entries.is_empty());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Inspection {
    pub(super) handle: Handle,
    pub(super) inspector: Inspector,
}

impl Inspection {
    pub(crate) fn new(handle: &Handle) -> Self {
        Inspection {
            handle: handle.clone(),
            inspector: handle.node().inspector(),
        }
    }

    /// Returns a page of the keys that begin with `prefix` and are held, waited for or set: about 500, in no order. The page
    /// may be empty and not be the last. Ask again with [`next`](Page::next) until there is none.
    ///
    /// A key that is held from the first page to the last is listed, unless its slot of a cluster moves to another server meanwhile.
    /// One that comes or goes may be listed, and on Redis a key may be listed twice (`SCAN`). Memory lists keys in the order of their kinds and names.
    ///
    /// # Errors
    /// [`Error::Connect`] if the store is unavailable or refuses. [`Error::Closed`] in a forked child. A master of a quorum that
    /// does not answer is one of the [`failures`](Page::failures).
    pub async fn list(&self, prefix: impl AsRef<[u8]>, from: Option<Cursor>) -> Result<Page, Error> {
        let from = from.map(|Cursor(position)| position);
        self.read(InspectQuery::List(prefix.as_ref().into(), from)).await
    }

    /// Returns what is kept of a key: an entry for each kind that has this key, such as a lock and a semaphore.
    ///
    /// # Errors
    /// As [`list`](Self::list), and [`Error::Connect`] if no master of a quorum answers.
    #[doc(alias = "holders")]
    pub async fn show(&self, key: impl Into<Key>) -> Result<Page, Error> {
        self.read(InspectQuery::Show(key.into())).await
    }

    /// Returns the nodes that told of themselves within the last minute. A node does so once it asks for a lease, unless its
    /// [`presence`](crate::Builder::presence) is off.
    ///
    /// # Errors
    /// As [`show`](Self::show). A master of a quorum that does not answer is passed over.
    pub async fn nodes(&self) -> Result<Vec<NodeEntry>, Error> {
        let (mut found, mut from) = (BTreeMap::new(), None);
        let (mut has_answer, mut failures) = (false, Vec::new());
        loop {
            let page = self.ask(InspectQuery::Nodes(from)).await?;
            has_answer |= !page.views.is_empty();
            failures.extend(page.failures);
            for view in page.views {
                found.extend(
                    view.nodes
                        .into_iter()
                        .map(|(id, node)| (id, NodeEntry::new(id, &node))),
                );
            }
            from = page.next;
            if from.is_some() {
                continue;
            }
            // A node tells each master of a quorum, so one answer is enough.
            return match failures.into_iter().next() {
                Some((_, source)) if !has_answer => Err(self.inspector.unavailable(source)),
                _ => Ok(found.into_values().collect()),
            };
        }
    }

    /// Returns the servers that [recover](crate::Recovery), and for how long they grant nothing. Unlike
    /// [`Locks::recovering`](crate::Locks::recovering) this asks the servers. A server without an answer is left out, and so are
    /// those of a cluster, whose slots recover one by one.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked child.
    pub async fn recovering(&self) -> Result<Vec<(Arc<str>, Duration)>, Error> {
        self.handle.not_forked(&Key::from("inspect"))?;
        let recovering = self.inspector.recovering().await;
        let recovering = recovering
            .map_err(|source| self.inspector.unavailable(source))?
            .into_iter();
        let servers = recovering.map(|(server, left)| (server, Duration::from_millis(left)));
        Ok(servers.collect())
    }

    /// Returns whether the store is a quorum, each of whose masters has [entries](Page::entries) of its own.
    pub fn is_quorum(&self) -> bool {
        self.handle.node().servers.is_quorum()
    }

    async fn read(&self, query: InspectQuery) -> Result<Page, Error> {
        let page = self.ask(query).await?;
        Ok(Page {
            entries: page.views.iter().flat_map(entries).collect(),
            next: page.next.map(Cursor),
            failures: page.failures,
        })
    }

    async fn ask(&self, query: InspectQuery) -> Result<InspectAnswer, Error> {
        self.handle.not_forked(&Key::from("inspect"))?;
        let answer = self.inspector.read(query).await;
        answer.map_err(|source| self.inspector.unavailable(source))
    }
}

/// Where the next page of a listing begins. It belongs to the [`Inspection`] that returned it.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::inspect::Cursor;
///
/// let inspection = locks.inspect();
/// let mut from: Option<Cursor> = None;
/// loop {
///     let page = inspection.list("account:", from).await?;
///     page.entries.iter().for_each(|entry| println!("{} {}", entry.key, entry.state.word()));
///     from = page.next;
///     if from.is_none() {
///         break;
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(Position);

impl fmt::Display for Cursor {
    /// Writes a text for links, which [`parse`](str::parse) reads in any process that has the same store.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Position::Scan(server, cursor) => write!(f, "{server}-{cursor}"),
            Position::After(name) => {
                let key = percent_encode(name.key.as_bytes(), NON_ALPHANUMERIC);
                write!(f, "{}-{key}", name.kind.word())
            }
        }
    }
}

impl FromStr for Cursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let (first, second) = text.split_once('-').ok_or(NotACursor)?;
        if let (Ok(server), Ok(cursor)) = (first.parse(), second.parse()) {
            return Ok(Cursor(Position::Scan(server, cursor)));
        }
        let kind = first.parse().map_err(|_| NotACursor)?;
        let key: Vec<u8> = percent_decode_str(second).collect();
        Ok(Cursor(Position::After(Name::new(kind, Key::from(key)))))
    }
}

/// The text is not that of a [`Cursor`].
///
/// ```
/// use tenure::inspect::Cursor;
///
/// assert!("page 2".parse::<Cursor>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the text of a cursor")]
pub struct NotACursor;

/// A part of a listing.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let guard = locks.mutex("account:42").lock().await?;
/// let page = locks.inspect().list("account:", None).await?;
/// for (master, error) in &page.failures {
///     println!("{master} did not answer: {error}");
/// }
/// let more = if page.next.is_some() { " and more" } else { "" };
/// println!("{} keys{more}", page.entries.len());
/// # assert_eq!(page.entries.len(), 1); drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Page {
    /// The keys.
    pub entries: Vec<Entry>,
    /// Where the next page begins; `None` if this page is the last.
    pub next: Option<Cursor>,
    /// The masters of a quorum that did not answer, and why. Every other store that does not answer is an error.
    pub failures: Vec<(Arc<str>, StoreError)>,
}

/// What is kept of a key.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::inspect::{Kind, State};
///
/// let guard = locks.mutex("account:42").lock().await?;
/// let entry = locks.inspect().show("account:42").await?.entries.remove(0);
/// assert_eq!((entry.kind, entry.state), (Kind::Lock, State::Held));
/// println!("{} at {}, for {:?}", entry.key, entry.server, entry.remaining);
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Entry {
    /// The kind of primitive.
    pub kind: Kind,
    /// The key, without the prefix of the records.
    pub key: Key,
    /// What the key is used for now.
    pub state: State,
    /// The server that answered. Each master of a quorum has entries of its own.
    pub server: Arc<str>,
    /// The holders, at most 50: those whose leases end first.
    pub holders: Vec<HolderEntry>,
    /// The number of holders.
    pub holder_count: u64,
    /// The first 50 waiters, in the order in which they are served.
    pub waiters: Vec<WaiterEntry>,
    /// The number of claims that wait: one for each node, or for each fixed lease, tick and fair caller. The callers of one
    /// node that wait behind its claim are not known to the store. Of a latch, the number of nodes that wait for zero.
    pub waiter_count: u64,
    /// The permits of a semaphore.
    pub permits: Option<PermitCount>,
    /// How many count-downs of a latch are left.
    pub count: Option<u32>,
    /// When the record ends in the store if it is not extended: the latest of its leases with its margin, or the life of a
    /// latch. `None`: it has no end, or there is none.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::ms"))]
    pub remaining: Option<Duration>,
    /// 12 hexadecimal digits that identify the value of a foreign client. `None`: there is none, or it is no value of a lock.
    pub foreign: Option<Arc<str>>,
}

/// The permits of a semaphore.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let guard = locks.semaphore("bank", 10).acquire_many(3).await?;
/// let entry = locks.inspect().show("bank").await?.entries.remove(0);
/// let permits = entry.permits.expect("a semaphore has permits");
/// assert_eq!((permits.in_use, permits.capacity), (3, 10));
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PermitCount {
    /// How many permits are held.
    pub in_use: u64,
    /// How many there are.
    pub capacity: u32,
}

/// What a key is used for.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::inspect::State;
///
/// # let guard = locks.mutex("account:42").lock().await?;
/// for entry in locks.inspect().show("account:42").await?.entries {
///     match entry.state {
///         State::Held | State::Foreign => println!("{} is held", entry.key),
///         State::Revoked => println!("{} is free soon", entry.key),
///         state => println!("{}: {}", entry.key, state.word()),
///     }
/// }
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum State {
    /// One holder or several hold it.
    Held,
    /// Nothing holds it, and claims wait for it: a node will notice within a third of its lease.
    WaitedFor,
    /// An operator revoked every lease on it. It is free when the holder has left, or when the leases have ended.
    Revoked,
    /// A client of another library holds it.
    Foreign,
    /// A latch that is set.
    Set,
}

impl State {
    /// Returns the word for the state: `held`, `waited_for`, `revoked`, `foreign` or `set`.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// A holder of a lease.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let guard = locks.mutex("account:42").lock().await?;
/// let entry = locks.inspect().show("account:42").await?.entries.remove(0);
/// let holder = &entry.holders[0];
/// println!("{} holds it by grant {:?}, since {:?}", holder.node.id, holder.number, holder.since);
/// assert_eq!(holder.fence, Some(guard.fence()));
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct HolderEntry {
    /// The node that holds it. Its callers hand the lease on to each other without the store.
    pub node: NodeEntry,
    /// The number of the claim within its node.
    pub claim: u64,
    /// How the lease is shared.
    pub mode: Mode,
    /// The number of the grant, by which a [steal](Inspection::steal) names the holder. `None`: it shared the key, and its lease is
    /// revoked.
    pub number: Option<u64>,
    /// The fence of the first local holder of this grant. Later local holders have higher ones, below the next grant's.
    pub fence: Option<Fence>,
    /// When the lease was granted, by the clock of the server.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::optional_date"))]
    pub since: Option<SystemTime>,
    /// An operator revoked the lease: it is not renewed, and excludes others until the holder leaves or the lease ends.
    pub is_revoked: bool,
    /// The process may [keep](crate::Builder::keep) the lease after its last release, so it may have no holder now. Another claim for the
    /// key then gets it soon.
    pub may_keep: bool,
    /// When the record ends, if it is not extended: the lease with its margin. `None`: it has no end.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::ms"))]
    pub remaining: Option<Duration>,
    /// What its callers [noted](crate::Lease::note), by the node's latest presence. Readers of one node share a grant, so there may
    /// be several. If callers of the node hand the lease on to each other, a note may be that of the former one for about 2 s.
    pub notes: Vec<NoteEntry>,
}

/// A claim that waits for a lease, or a node that waits for a latch.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// # let guard = locks.mutex("account:42").lock().await?;
/// for entry in locks.inspect().show("account:42").await?.entries {
///     for waiter in entry.waiters.iter().filter(|waiter| !waiter.is_dead) {
///         println!("{} waits for {}", waiter.node.id, entry.key);
///     }
/// }
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WaiterEntry {
    /// The node of the claim.
    pub node: NodeEntry,
    /// The number of the claim within its node. `None` for a latch.
    pub claim: Option<u64>,
    /// How the lease would be shared.
    pub mode: Mode,
    /// The claim gave no sign of life for a lease. It is removed when its turn comes.
    pub is_dead: bool,
}

/// A node, as it told of itself.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// for node in locks.inspect().nodes().await? {
///     let name = node.presence.as_ref().map_or("?", |told| &told.name);
///     println!("{} ({name}) is {}", node.id, if node.is_alive { "alive" } else { "silent" });
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct NodeEntry {
    /// The id of the node.
    pub id: NodeId,
    /// The node told of itself within the last minute, or listens for grants. A node that is cut off from the store shows as
    /// alive for up to a minute.
    pub is_alive: bool,
    /// Pushes reach the node.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) listens: bool,
    /// What the node told of itself.
    pub presence: Option<PresenceEntry>,
}

/// What a node told of itself within the last minute.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// for told in locks.inspect().nodes().await?.into_iter().filter_map(|node| node.presence) {
///     println!("{} runs version {} as process {} on {}", told.name, told.version, told.pid, told.host);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PresenceEntry {
    /// The [name](crate::Builder::node_name) of the node, or empty.
    pub name: String,
    /// The name of its machine.
    pub host: String,
    /// The number of its process.
    pub pid: u32,
    /// When the node was built, by the clock of its machine.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::date"))]
    pub started: SystemTime,
    /// The version of this crate in its process.
    pub version: String,
    /// The name of the service that runs its jobs, or empty.
    pub service: String,
    /// The prefix of its records.
    pub prefix: Key,
    /// The number of keys with state in that process.
    pub key_count: u64,
    /// The number of callers that wait in that process.
    pub waiter_count: u64,
}

impl NodeEntry {
    fn new(id: NodeId, node: &NodeView) -> Self {
        let presence = node.presence.as_ref().map(|told| PresenceEntry {
            name: told.name.clone(),
            host: told.host.clone(),
            pid: told.pid,
            started: after_epoch(Duration::from_millis(told.started_ms)),
            version: told.version.clone(),
            service: told.service.clone(),
            prefix: Key::from(&told.prefix[..]),
            key_count: told.keys,
            waiter_count: told.waiting,
        });
        NodeEntry {
            id,
            is_alive: node.listens || presence.is_some(),
            listens: node.listens,
            presence,
        }
    }
}

/// Returns whether every lease of a record is revoked.
fn is_revoked(record: &RecordView) -> bool {
    let holders = record.holders();
    match record {
        RecordView::Foreign { is_revoked, .. } => *is_revoked,
        _ => !holders.is_empty() && holders.iter().all(|holder| holder.is_revoked),
    }
}

/// Returns the entries of what a server shows.
fn entries(server: &ServerView) -> impl Iterator<Item = Entry> {
    server.keys.iter().map(|key| entry(server, key))
}

fn entry(server: &ServerView, key: &KeyView) -> Entry {
    let holders = key.record.holders();
    let holder_count = match &key.record {
        RecordView::Shared { count, .. } => *count,
        _ => holders.len() as u64,
    };
    let capacity = holders.iter().find_map(|holder| match holder.mode {
        Mode::Permits(permits) => Some(permits.capacity),
        Mode::Exclusive | Mode::Read => None,
    });
    let in_use = match &key.record {
        RecordView::Shared { in_use, .. } => *in_use,
        _ => 0,
    };
    Entry {
        kind: key.name.kind,
        key: key.name.key.clone(),
        state: match &key.record {
            RecordView::Free => State::WaitedFor,
            _ if is_revoked(&key.record) => State::Revoked,
            RecordView::Owned(_) | RecordView::Shared { .. } => State::Held,
            RecordView::Latch { .. } => State::Set,
            RecordView::Foreign { .. } => State::Foreign,
        },
        server: server.server.clone(),
        holders: holders
            .iter()
            .map(|holder| holder_entry(server, holder))
            .collect(),
        holder_count,
        waiters: key
            .waiters
            .iter()
            .map(|waiter| waiter_entry(server, waiter))
            .collect(),
        waiter_count: key.waiting,
        permits: capacity.map(|capacity| PermitCount { in_use, capacity }),
        count: match key.record {
            RecordView::Latch { left } => Some(left),
            _ => None,
        },
        remaining: key.left_ms.map(Duration::from_millis),
        foreign: match &key.record {
            RecordView::Foreign { digest, .. } => digest.clone(),
            _ => None,
        },
    }
}

fn holder_entry(server: &ServerView, holder: &HolderView) -> HolderEntry {
    let since = holder
        .number
        .map(|number| number.date_us(server.now_us, server.date_us));
    HolderEntry {
        node: node_entry(server, holder.node),
        claim: holder.claim.0,
        mode: holder.mode,
        number: holder.number.map(|number| number.0),
        fence: holder.number.map(|number| Fence::new(number, 0)),
        since: since.map(|since| after_epoch(Duration::from_micros(since))),
        is_revoked: holder.is_revoked,
        may_keep: holder.may_keep,
        remaining: holder.left_ms.map(Duration::from_millis),
        notes: notes_of(server.nodes.get(&holder.node), holder.claim),
    }
}

fn waiter_entry(server: &ServerView, waiter: &WaiterView) -> WaiterEntry {
    WaiterEntry {
        node: node_entry(server, waiter.node),
        claim: waiter.claim.map(|claim| claim.0),
        mode: waiter.mode,
        is_dead: waiter.is_dead,
    }
}

fn node_entry(server: &ServerView, id: NodeId) -> NodeEntry {
    let unknown = NodeView::default();
    NodeEntry::new(id, server.nodes.get(&id).unwrap_or(&unknown))
}

/// A node may tell any date, also one that this platform does not have.
fn after_epoch(time: Duration) -> SystemTime {
    let epoch = SystemTime::UNIX_EPOCH;
    epoch.checked_add(time).unwrap_or(epoch)
}
