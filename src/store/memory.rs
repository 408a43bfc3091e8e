//! A store in this process's memory: the ledger of `protocol/` behind a mutex.
//!
//! The store excludes all users of one handle and its clones, and no other process. It is the default for tests, examples and
//! services with one process.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::future::ready;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::error::{StoreError, StoreErrorKind};
use crate::options::DEFAULT_PREFIX;
use crate::protocol::job_act::{JobActReply, JobActRequest};
use crate::protocol::ledger::Ledger;
use crate::protocol::ledger::view::page_of;
use crate::protocol::message::{Batch, BatchReply, GrantNumber, InboxEvent, Kind, Name, NodeId, Push, Reply};
use crate::protocol::steal::{AuditEntry, MAX_AUDIT, StealAct, StealReply, StealRequest};
use crate::protocol::view::{
    InspectAnswer, InspectQuery, JobAnswer, JobQuery, NodeView, Presence, ServerView, nodes_of,
};
use crate::protocol::write::Action;
use crate::store::{Abilities, BoxFuture, Immediate, Inbox, Inspect, Link, ServerId, Sink, Store, sealed};

/// A store in memory. Clones share their state, so several [`Locks`](crate::locks::Locks) can be nodes of one store:
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// use tenure::{Locks, MemoryStore};
///
/// let store = MemoryStore::new();
/// let (one, other) = (Locks::builder().memory_shared(&store)?, Locks::builder().memory_shared(&store)?);
/// let guard = one.mutex("stock:7").lock().await?;
/// assert!(other.mutex("stock:7").try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    server: Arc<Mutex<MemoryServer>>,
    /// Which of its `parts` these clones use.
    part: usize,
}

/// What a Redis server keeps.
struct MemoryServer {
    parts: Vec<PrefixRecords>,
    inboxes: HashMap<NodeId, Sink>,
    presences: HashMap<NodeId, Presence>,
}

/// The records of one prefix. The ledger knows keys without it.
#[derive(Default)]
struct PrefixRecords {
    prefix: Vec<u8>,
    ledger: Ledger,
    audit: VecDeque<AuditEntry>,
}

impl PrefixRecords {
    fn new(prefix: &[u8]) -> Self {
        PrefixRecords {
            prefix: prefix.to_vec(),
            ..PrefixRecords::default()
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        let server = MemoryServer {
            parts: vec![PrefixRecords::new(DEFAULT_PREFIX)],
            inboxes: HashMap::new(),
            presences: HashMap::new(),
        };
        MemoryStore {
            server: Arc::new(Mutex::new(server)),
            part: 0,
        }
    }
}

impl MemoryServer {
    /// Passes pushes to the inboxes of their nodes. A sink only appends to an inbox, so it may run under the mutex.
    fn push(&self, pushes: Vec<Push>) {
        for push in pushes {
            if let Some(sink) = self.inboxes.get(&push.node()) {
                sink(InboxEvent::Pushed(push));
            }
        }
    }
}

impl MemoryStore {
    /// Returns the store of this name in this process. It lives as long as the process.
    pub(crate) fn named(name: &str) -> Self {
        static NAMED: LazyLock<Mutex<HashMap<String, MemoryStore>>> = LazyLock::new(Mutex::default);
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        named.entry(name.to_owned()).or_default().clone()
    }

    /// Creates an empty store.
    pub fn new() -> Self {
        MemoryStore::default()
    }

    /// Returns the store for records with this prefix. Keys of two prefixes are two keys.
    pub(crate) fn with_prefix(&self, prefix: &[u8]) -> Self {
        let mut server = self.lock();
        let known = server.parts.iter().position(|part| part.prefix == prefix);
        let part = known.unwrap_or_else(|| {
            server.parts.push(PrefixRecords::new(prefix));
            server.parts.len() - 1
        });
        MemoryStore {
            server: self.server.clone(),
            part,
        }
    }

    /// Returns the number of keys with an owner or a waiter, of all prefixes.
    pub fn len(&self) -> usize {
        self.lock().parts.iter().map(|part| part.ledger.len()).sum()
    }

    /// Returns whether no key has an owner or a waiter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives `f` the ledger and the time, so that a test can change records as a foreign client of Redis does.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    pub fn with_ledger<T>(&self, f: impl FnOnce(&mut Ledger, u64) -> T) -> T {
        f(&mut self.lock().parts[self.part].ledger, now_us())
    }

    fn lock(&self) -> MutexGuard<'_, MemoryServer> {
        // A panic under this mutex is a bug in the ledger. Even then, the ledger is better than a poisoned store.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the time of the store's own clock in microseconds. It stands for the server's clock; leases use another clock.
#[allow(clippy::disallowed_methods, reason = "a server has a clock of its own")]
fn now_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Never zero: each grant number must be above 0, the number of keys that were never granted.
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000 + 1
}

/// Returns the date in milliseconds, for the nominal times of jobs. This clock may step, so leases do not use it.
#[allow(clippy::disallowed_methods, reason = "a server has a clock of its own")]
fn date_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1000 + time.tv_nsec as u64 / 1_000_000
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("keys", &self.len()).finish()
    }
}

impl sealed::Sealed for MemoryStore {}

impl Store for MemoryStore {
    fn abilities(&self) -> Abilities {
        Abilities::OF_THE_LEDGER
    }

    fn server(&self, _: &Name) -> ServerId {
        ServerId(0)
    }

    fn describe(&self, _: ServerId) -> String {
        "memory".into()
    }

    fn inspector(&self) -> Option<Arc<dyn Inspect>> {
        Some(Arc::new(self.clone()))
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        Some(self)
    }

    fn connect(
        &self,
        _: ServerId,
        _: Option<GrantNumber>,
    ) -> BoxFuture<'static, Result<Arc<dyn Link>, StoreError>> {
        Box::pin(ready(Err(needs_no("connection"))))
    }

    fn inbox(&self, _: ServerId, _: NodeId, _: Sink) -> BoxFuture<'static, Result<Inbox, StoreError>> {
        Box::pin(ready(Err(needs_no("subscription"))))
    }
}

fn needs_no(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        format_args!("memory needs no {what}"),
    )
}

impl Immediate for MemoryStore {
    fn apply(&self, batch: &Batch, replies: Vec<Reply>) -> BatchReply {
        let mut pushes = Vec::new();
        let mut server = self.lock();
        let ledger = &mut server.parts[self.part].ledger;
        // Only ticks are compared with the date.
        if batch.kind() == Some(Kind::Job) {
            ledger.set_date(date_ms());
        }
        let reply = ledger.apply_into(now_us(), batch, replies, &mut pushes);
        server.push(pushes);
        reply
    }

    fn act(&self, name: &Name, action: &Action) -> Reply {
        let ledger = &mut self.lock().parts[self.part].ledger;
        ledger.set_date(date_ms());
        ledger.act(name, action, now_us())
    }

    fn time(&self) -> u64 {
        now_us()
    }

    fn tell(&self, node: NodeId, presence: Option<Presence>) {
        let mut server = self.lock();
        match presence {
            Some(presence) => server.presences.insert(node, presence),
            None => server.presences.remove(&node),
        };
    }

    fn listen(&self, node: NodeId, sink: Option<Sink>) {
        let mut server = self.lock();
        server.parts[self.part].ledger.set_listening(node, sink.is_some());
        match sink {
            Some(sink) => server.inboxes.insert(node, sink),
            None => {
                server.presences.remove(&node);
                server.inboxes.remove(&node)
            }
        };
    }
}

/// The number of names that are read in one hold of the mutex.
const CHUNK: usize = 100;

impl Inspect for MemoryStore {
    fn read(&self, query: InspectQuery) -> BoxFuture<'static, Result<InspectAnswer, StoreError>> {
        let (names, next) = match query {
            InspectQuery::List(prefix, from) => {
                let server = self.lock();
                page_of(server.parts[self.part].ledger.names(), &prefix, from.as_ref())
            }
            InspectQuery::Show(key) => {
                let names = Kind::ALL.iter().map(|kind| Name::new(*kind, key.clone()));
                (names.collect(), None)
            }
            InspectQuery::Nodes(_) => (Vec::new(), None),
        };
        let mut view = ServerView {
            server: "memory".into(),
            now_us: now_us(),
            date_us: date_ms() * 1000,
            keys: Vec::new(),
            nodes: BTreeMap::new(),
        };
        for chunk in names.chunks(CHUNK) {
            let server = self.lock();
            let views = chunk
                .iter()
                .filter_map(|name| server.parts[self.part].ledger.view(name, view.now_us));
            view.keys.extend(views);
        }
        view.nodes = self.nodes(nodes_of(&view.keys));
        Box::pin(ready(Ok(InspectAnswer {
            views: vec![view],
            next,
            failures: Vec::new(),
        })))
    }

    fn jobs(&self, query: JobQuery) -> BoxFuture<'static, Result<JobAnswer, StoreError>> {
        let server = self.lock();
        let answer = server.parts[self.part]
            .ledger
            .view_jobs(query, now_us(), date_ms());
        Box::pin(ready(Ok(answer)))
    }

    fn recovering(&self) -> BoxFuture<'static, Vec<(Arc<str>, u64)>> {
        let left = self.lock().parts[self.part].ledger.recovering(now_us());
        Box::pin(ready(
            left.map(|left| ("memory".into(), left)).into_iter().collect(),
        ))
    }

    fn steal(&self, steal: StealRequest) -> BoxFuture<'static, Result<(StealReply, u64), StoreError>> {
        Box::pin(ready(Ok((self.take(&steal), date_ms() * 1000))))
    }

    fn act_on_job(
        &self,
        request: JobActRequest,
    ) -> BoxFuture<'static, Result<(JobActReply, u64), StoreError>> {
        let (date, mut pushes) = (date_ms(), Vec::new());
        let mut server = self.lock();
        let ledger = &mut server.parts[self.part].ledger;
        let reply = ledger.act_on_job(&request, (now_us(), date), &mut pushes);
        server.push(pushes);
        Box::pin(ready(Ok((reply, date * 1000))))
    }

    fn note(&self, entry: AuditEntry) -> BoxFuture<'static, Result<(), StoreError>> {
        let mut server = self.lock();
        server.parts[self.part].audit.push_front(entry);
        server.parts[self.part].audit.truncate(MAX_AUDIT);
        Box::pin(ready(Ok(())))
    }

    fn audit(&self) -> BoxFuture<'static, Result<Vec<AuditEntry>, StoreError>> {
        let audit = self.lock().parts[self.part].audit.iter().cloned().collect();
        Box::pin(ready(Ok(audit)))
    }
}

impl MemoryStore {
    fn take(&self, steal: &StealRequest) -> StealReply {
        let mut pushes = Vec::new();
        let mut server = self.lock();
        let ledger = &mut server.parts[self.part].ledger;
        let reply = ledger.steal(now_us(), steal, &mut pushes);
        if let (StealAct::HandOver, StealReply::Done(claim)) = (&steal.act, &reply) {
            ledger.set_date(date_ms());
            ledger.apply(now_us(), &steal.leave(*claim), &mut pushes);
        }
        server.push(pushes);
        reply
    }

    /// Returns what is known of these nodes, or of all that told of themselves if there are none.
    fn nodes(&self, named: BTreeSet<NodeId>) -> BTreeMap<NodeId, NodeView> {
        let server = self.lock();
        let node = |id: NodeId| NodeView {
            presence: server.presences.get(&id).cloned(),
            listens: server.inboxes.contains_key(&id),
        };
        let all = named.is_empty().then(|| server.presences.keys().copied());
        named
            .into_iter()
            .chain(all.into_iter().flatten())
            .map(|id| (id, node(id)))
            .collect()
    }
}
