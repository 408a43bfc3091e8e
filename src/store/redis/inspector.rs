//! Reads for operators: pages of keys and nodes, on connections of their own.
//!
//! Every command is a plain read with a bound, so a large database is read in many short steps, and nothing is settled, swept or
//! created.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use redis::Value;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::Key;
use crate::protocol::finding::Finding;
use crate::protocol::job_act::{JobActReply, JobActRequest};
use crate::protocol::message::{Kind, Name, NodeId};
use crate::protocol::steal::{AuditEntry, StealReply, StealRequest};
use crate::protocol::view::{
    InspectAnswer, InspectQuery, JobAnswer, JobQuery, NodeView, PAGE, Position, RecordView, ServerView,
    nodes_of,
};
use crate::store::redis::config::Config;
use crate::store::redis::decode::result;
use crate::store::redis::format;
use crate::store::redis::inspector::answers::{next, optional, push, read};
use crate::store::redis::inspector::connections::Connections;
use crate::store::redis::inspector::keys::KeyReader;
use crate::store::redis::inspector::steal::Stealer;
use crate::store::redis::names::{self, Names};
use crate::store::{BoxFuture, Inspect, ServerId};

mod answers;
mod check;
mod connections;
mod jobs;
mod keys;
mod steal;

/// The number of keys that one SCAN visits. 500 keys among a million took 1 ms, and more than 5 ms on a busy machine.
const SCANNED_KEYS: usize = 100;
/// The number of SCANs for one page. With a prefix that few keys have, most SCANs find nothing.
const MAX_SCANS: usize = 200;
/// The number of nodes that one pipeline asks about.
const CHUNK: usize = 100;
/// The last byte that is read of what a node told.
const MAX_PRESENCE: &str = "16383";

/// Reads from the servers of a store.
#[derive(Clone)]
pub(super) struct RedisInspector(Arc<Inner>);

struct Inner {
    config: Arc<Config>,
    connections: Connections,
}

impl std::fmt::Debug for RedisInspector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RedisInspector")
            .field(&self.0.config.server())
            .finish()
    }
}

impl RedisInspector {
    pub(super) fn new(config: Arc<Config>) -> Self {
        RedisInspector(Arc::new(Inner {
            connections: Connections::new(config.clone()),
            config,
        }))
    }
}

impl Inspect for RedisInspector {
    fn read(&self, query: InspectQuery) -> BoxFuture<'static, Result<InspectAnswer, StoreError>> {
        let inner = self.0.clone();
        Box::pin(async move {
            match query {
                InspectQuery::List(prefix, from) => {
                    let prefix = [&*inner.config.names.prefix, &prefix].concat();
                    let page = |server, cursor, left| inner.list(server, cursor, left, &prefix);
                    Ok(inner.page(from, page).await?.into())
                }
                InspectQuery::Show(key) => inner.show(&key).await,
                InspectQuery::Nodes(from) => {
                    let page = |server, cursor, left| inner.list_nodes(server, cursor, left);
                    Ok(inner.page(from, page).await?.into())
                }
            }
        })
    }

    fn jobs(&self, query: JobQuery) -> BoxFuture<'static, Result<JobAnswer, StoreError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.jobs(query).await })
    }

    fn recovering(&self) -> BoxFuture<'static, Vec<(Arc<str>, u64)>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.recovering().await })
    }

    fn check(&self) -> BoxFuture<'static, Result<Vec<Finding>, StoreError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.check().await })
    }

    fn try_push(&self, key: Key) -> BoxFuture<'static, Result<(), StoreError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.try_push(&key).await })
    }

    fn try_rights(&self, key: Key) -> BoxFuture<'static, Result<(), StoreError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.try_rights(&key).await })
    }

    fn remove(&self, key: Key) -> BoxFuture<'static, Result<(), StoreError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.remove(&key).await })
    }

    fn steal(&self, steal: StealRequest) -> BoxFuture<'static, Result<(StealReply, u64), StoreError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.stealer().steal(&steal).await })
    }

    fn act_on_job(
        &self,
        request: JobActRequest,
    ) -> BoxFuture<'static, Result<(JobActReply, u64), StoreError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.act_on_job(&request).await })
    }

    fn note(&self, entry: AuditEntry) -> BoxFuture<'static, Result<(), StoreError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.stealer().note(&entry).await })
    }

    fn audit(&self) -> BoxFuture<'static, Result<Vec<AuditEntry>, StoreError>> {
        let inner = self.0.clone();
        Box::pin(async move { inner.stealer().audit().await })
    }
}

/// What a page may still use. The page ends when either is used up, or with a failure behind what was read.
#[derive(Debug, Clone, Copy)]
struct Budget {
    scans: usize,
    names: usize,
}

/// What one server shows on a page.
struct ServerPart<V> {
    view: V,
    /// The cursor of the next SCAN of the server; 0 after the last one.
    cursor: u64,
    left: Budget,
}

/// A page, of one server or of several.
struct ListedPage<V> {
    views: Vec<V>,
    next: Option<Position>,
    failures: Vec<(Arc<str>, StoreError)>,
}

impl From<ListedPage<ServerView>> for InspectAnswer {
    fn from(page: ListedPage<ServerView>) -> InspectAnswer {
        InspectAnswer {
            views: page.views,
            next: page.next,
            failures: page.failures,
        }
    }
}

impl Inner {
    async fn recovering(&self) -> Vec<(Arc<str>, u64)> {
        let mut recovering = Vec::new();
        let servers = match self.config.topology.cluster() {
            Some(_) => Ok(Vec::new()),
            None => self.servers().await,
        };
        for server in servers.unwrap_or_default() {
            let mut question = redis::pipe();
            question.cmd("PTTL").arg(names::RECOVERING);
            let answer = self.connections.ask_one(server, &question).await;
            let left: Result<i64, _> = answer.and_then(|answer| read(result(answer)));
            if let Some(left) = left.ok().and_then(|left| u64::try_from(left).ok()) {
                recovering.push((self.config.master(server).server().into(), left));
            }
        }
        recovering
    }

    fn stealer(&self) -> Stealer<'_> {
        Stealer {
            connections: &self.connections,
        }
    }

    /// Reads a page from a position on. The servers follow each other.
    async fn page<V, P: Future<Output = Result<ServerPart<V>, StoreError>>>(
        &self,
        from: Option<Position>,
        page: impl Fn(ServerId, u64, Budget) -> P,
    ) -> Result<ListedPage<V>, StoreError> {
        let (at, cursor) = match from {
            Some(Position::Scan(at, cursor)) => (ServerId(at), cursor),
            _ => (ServerId(0), 0),
        };
        let mut read = ListedPage {
            views: Vec::new(),
            next: None,
            failures: Vec::new(),
        };
        let mut left = Budget {
            scans: MAX_SCANS,
            names: PAGE,
        };
        // A cluster may have lost this server since the last page. New servers have higher ids.
        for server in self.servers().await?.into_iter().filter(|server| *server >= at) {
            let cursor = if server == at { cursor } else { 0 };
            if left.scans == 0 || left.names == 0 {
                read.next = Some(Position::Scan(server.0, 0));
                break;
            }
            match page(server, cursor, left).await {
                Ok(part) => {
                    read.views.push(part.view);
                    left = part.left;
                    if part.cursor > 0 {
                        read.next = Some(Position::Scan(server.0, part.cursor));
                        break;
                    }
                }
                // What was read is shown. The next page tells the failure, if the server still fails.
                Err(_) if !read.views.is_empty() && !self.is_quorum() => {
                    read.next = Some(Position::Scan(server.0, cursor));
                    break;
                }
                Err(error) => self.note_failure(server, error, &mut read.failures)?,
            }
        }
        Ok(read)
    }

    fn is_quorum(&self) -> bool {
        self.config.topology.masters().is_some()
    }

    /// Notes that a master of a quorum does not answer. Every other server must answer.
    fn note_failure(
        &self,
        server: ServerId,
        error: StoreError,
        failures: &mut Vec<(Arc<str>, StoreError)>,
    ) -> Result<(), StoreError> {
        if !self.is_quorum() {
            return Err(error);
        }
        failures.push((self.config.master(server).server().into(), error));
        Ok(())
    }

    async fn servers(&self) -> Result<Vec<ServerId>, StoreError> {
        if let Some(cluster) = self.config.topology.cluster() {
            cluster.read(&self.config).await?;
            return Ok(cluster.masters());
        }
        let masters = self.config.topology.masters();
        let count = masters.map_or(1, |masters| masters.clients.len());
        Ok((0..count as u16).map(ServerId).collect())
    }

    async fn list(
        &self,
        server: ServerId,
        cursor: u64,
        left: Budget,
        prefix: &[u8],
    ) -> Result<ServerPart<ServerView>, StoreError> {
        let mut pattern = b"*".to_vec();
        format::escape_pattern(prefix, &mut pattern);
        pattern.push(b'*');
        let names = &self.config.names;
        // A name is found by its record or by its queue, or by both.
        let mut found = BTreeMap::new();
        let (cursor, left) = self
            .scan(server, cursor, left, &pattern, |key| {
                if let Some((name, is_queue)) = named(names, key)
                    && [&*names.prefix, name.key.as_bytes()].concat().starts_with(prefix)
                {
                    *found.entry(name).or_insert(false) |= !is_queue;
                }
                found.len()
            })
            .await?;
        let listed: Vec<Name> = found.keys().cloned().collect();
        let (mut view, unread) = self.view(server, &listed, false).await?;
        if self.config.topology.cluster().is_some() && !unread.is_empty() {
            // Their slot is on its way here.
            let (moving, _) = self.view(server, &unread, true).await?;
            view.keys.extend(moving.keys);
            view.nodes.extend(moving.nodes);
        }
        // A name with a record is listed when SCAN returns the record.
        view.keys
            .retain(|key| key.record == RecordView::Free || found.get(&key.name) == Some(&true));
        Ok(ServerPart { view, cursor, left })
    }

    async fn list_nodes(
        &self,
        server: ServerId,
        cursor: u64,
        left: Budget,
    ) -> Result<ServerPart<ServerView>, StoreError> {
        let mut nodes = BTreeSet::new();
        let pattern = names::presence("*");
        let (cursor, left) = self
            .scan(server, cursor, left, pattern.as_bytes(), |key| {
                let key = std::str::from_utf8(key).ok();
                let id = key.and_then(|key| key.strip_prefix(names::PRESENCE)?.parse::<NodeId>().ok());
                nodes.extend(id);
                nodes.len()
            })
            .await?;
        let (mut view, _) = self.view(server, &[], false).await?;
        view.nodes = self.nodes(server, nodes).await?;
        view.nodes.retain(|_, node| node.presence.is_some());
        Ok(ServerPart { view, cursor, left })
    }

    async fn show(&self, key: &Key) -> Result<InspectAnswer, StoreError> {
        let names: Vec<Name> = Kind::ALL
            .iter()
            .map(|kind| Name::new(*kind, key.clone()))
            .collect();
        let mut servers = self.servers().await?;
        if let Some(cluster) = self.config.topology.cluster() {
            servers = vec![cluster.server(self.config.names.slot(&names[0]))];
        }
        let mut page = InspectAnswer {
            views: Vec::new(),
            next: None,
            failures: Vec::new(),
        };
        for server in servers {
            match self.view_moving(server, &names).await {
                Ok((_, unread)) if !unread.is_empty() => return Err(self.changes(key)),
                Ok((views, _)) => page.views.extend(views),
                Err(error) => self.note_failure(server, error, &mut page.failures)?,
            }
        }
        match page.failures.first() {
            Some((_, error)) if page.views.is_empty() => Err(error.clone()),
            _ => Ok(page),
        }
    }

    /// Returns the error for a key that could not be read. An answer without it would say that the key is free.
    fn changes(&self, key: &Key) -> StoreError {
        if let Some(cluster) = self.config.topology.cluster() {
            cluster.want_reading();
        }
        let text = format_args!(
            "`{key}` changes while it is read, or moves between servers of a cluster: try again"
        );
        StoreError::new(StoreErrorKind::Interrupted, text)
    }

    /// Passes each key that SCAN returns to `found`, which returns how many names it has. Returns the next cursor, and what is
    /// left for the page.
    async fn scan(
        &self,
        server: ServerId,
        mut cursor: u64,
        mut left: Budget,
        pattern: &[u8],
        mut found: impl FnMut(&[u8]) -> usize,
    ) -> Result<(u64, Budget), StoreError> {
        let mut count = 0;
        while left.scans > 0 && count < left.names {
            let mut scan = redis::pipe();
            scan.cmd("SCAN").arg(cursor).arg("MATCH").arg(pattern);
            scan.arg("COUNT").arg(SCANNED_KEYS);
            let answer = self.connections.ask_one(server, &scan).await?;
            let (next, keys): (u64, Vec<Vec<u8>>) = read(result(answer))?;
            count = keys.iter().map(|key| found(key)).last().unwrap_or(count);
            left.scans -= 1;
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        left.names = left.names.saturating_sub(count);
        Ok((cursor, left))
    }

    /// Like `view`. While their slot moves, some of the names are read at the server to which it moves.
    async fn view_moving(
        &self,
        at: ServerId,
        names: &[Name],
    ) -> Result<(Vec<ServerView>, Vec<Name>), StoreError> {
        let (view, mut unread) = self.view(at, names, false).await?;
        let mut views = vec![view];
        if self.config.topology.cluster().is_none() || unread.is_empty() {
            return Ok((views, unread));
        }
        // Only the server that takes over their slot reads them.
        let others = self.servers().await?.into_iter();
        for server in others.filter(|server| *server != at) {
            if !unread.is_empty() {
                let (view, elsewhere) = self.view(server, &unread, true).await?;
                views.push(view);
                unread = elsewhere;
            }
        }
        Ok((views, unread))
    }

    /// Reads what a server keeps of these names, and of the nodes that hold them and wait for them. Also returns the names that
    /// could not be read.
    async fn view(
        &self,
        server: ServerId,
        names: &[Name],
        is_asking: bool,
    ) -> Result<(ServerView, Vec<Name>), StoreError> {
        let keys = KeyReader {
            connections: &self.connections,
            server,
            is_asking,
        };
        let read = keys.read(names).await?;
        let nodes = self.nodes(server, nodes_of(&read.views)).await?;
        let view = ServerView {
            server: self.name(server),
            now_us: read.now_us,
            date_us: read.now_us,
            keys: read.views,
            nodes,
        };
        Ok((view, read.unread))
    }

    /// Returns the name of a server, for an operator.
    fn name(&self, server: ServerId) -> Arc<str> {
        let cluster = self.config.topology.cluster();
        match cluster.and_then(|cluster| cluster.address(server)) {
            Some((host, port)) => format!("{host}:{port}").into(),
            None => self.config.master(server).server().into(),
        }
    }

    /// Reads what these nodes told of themselves, and which of them listen. A user without the right to read it still sees keys.
    async fn nodes(
        &self,
        server: ServerId,
        nodes: BTreeSet<NodeId>,
    ) -> Result<BTreeMap<NodeId, NodeView>, StoreError> {
        let nodes: Vec<NodeId> = nodes.into_iter().collect();
        let mut views: BTreeMap<_, _> = nodes.iter().map(|node| (*node, NodeView::default())).collect();
        // On a cluster a presence is in a slot of its own, and an inbox at any server.
        let servers = match self.config.topology.cluster() {
            Some(_) => self.servers().await?,
            None => vec![server],
        };
        for server in servers {
            for nodes in nodes.chunks(CHUNK) {
                let here = nodes.iter().filter(|node| self.tells_here(**node, server));
                let here: Vec<NodeId> = here.copied().collect();
                let mut pipe = redis::pipe();
                for node in &here {
                    push(
                        &mut pipe,
                        "GETRANGE",
                        names::presence(node).as_bytes(),
                        &["0", MAX_PRESENCE],
                    );
                }
                pipe.cmd("PUBSUB").arg("NUMSUB");
                for node in nodes {
                    pipe.arg(names::channel(*node));
                }
                let answers = match self.connections.ask(server, &pipe).await {
                    Ok(answers) => answers,
                    // Another server of a cluster. What it knows is no part of a key.
                    Err(_) if self.config.topology.cluster().is_some() => continue,
                    Err(error) => return Err(error),
                };
                let mut answers = answers.into_iter();
                for node in here {
                    let told: Option<Vec<u8>> = optional(next(&mut answers)?).unwrap_or_default();
                    let told = told.filter(|told| !told.is_empty());
                    if let (Some(told), Some(view)) = (told, views.get_mut(&node)) {
                        view.presence = Some(format::read_presence(&told));
                    }
                }
                let Ok(Value::Array(heard)) = result(next(&mut answers)?) else {
                    continue;
                };
                for (node, heard) in nodes.iter().zip(heard.chunks(2)) {
                    if let ([_, Value::Int(1..)], Some(view)) = (heard, views.get_mut(node)) {
                        view.listens = true;
                    }
                }
            }
        }
        Ok(views)
    }

    /// Returns whether the presence of a node is at this server.
    fn tells_here(&self, node: NodeId, server: ServerId) -> bool {
        self.config.topology.cluster().is_none_or(|cluster| {
            let slot = self.config.names.slot_of_key(names::presence(node).as_bytes());
            cluster.server(slot) == server
        })
    }
}

/// Returns the name to which a key of the server belongs, and whether the key is its queue.
fn named(names: &Names, key: &[u8]) -> Option<(Name, bool)> {
    let (record, is_queue) = match names::record_of_queue(key) {
        Some(record) => (record, true),
        None => (key, false),
    };
    let mut kinds = Kind::ALL.iter();
    let name = kinds.find_map(|kind| names.name(*kind, record))?;
    Some((name, is_queue))
}
