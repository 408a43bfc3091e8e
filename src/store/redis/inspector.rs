//! Reads for operators: pages of keys and nodes, on connections of their own.
//!
//! Every command is a plain read with a bound, so a large database is read in many short steps, and nothing is settled, swept or
//! created.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value, from_redis_value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::Key;
use crate::protocol::message::{GrantNumber, Kind, Mode, Name, NodeId};
use crate::protocol::view::{
    HolderView, InspectAnswer, InspectQuery, KeyView, MAX_LISTED, NodeView, PAGE, Position, RecordView,
    ServerView, WaiterView, nodes_of,
};
use crate::store::redis::cluster;
use crate::store::redis::config::Config;
use crate::store::redis::connection::{cannot_open, connect, failure, read_time, refused, too_slow};
use crate::store::redis::decode::{error_text, malformed, result, text};
use crate::store::redis::format;
use crate::store::redis::link::greet;
use crate::store::redis::names::{self, Names};
use crate::store::{BoxFuture, Inspect, ServerId};

/// The number of SCANs for one page. With a prefix that few keys have, most SCANs find nothing.
const MAX_SCANS: usize = 200;
/// The number of keys that one pipeline reads.
const CHUNK: usize = 100;
/// How often a name is read whose record changes its form meanwhile.
const MAX_READS: usize = 3;
/// The number of shares that one command reads.
const SHARES: usize = 400;
/// The last byte that is read of what a node told.
const MAX_PRESENCE: &str = "4095";
/// Above every place in a queue, and below every time.
const LAST_PLACE: &str = "99999999999";
/// Above every time, and below every grant number.
const LAST_TIME: &str = "100000000000000";

/// Reads from the servers of a store.
#[derive(Clone)]
pub(super) struct RedisInspector(Arc<Inner>);

struct Inner {
    config: Arc<Config>,
    connections: Mutex<HashMap<ServerId, MultiplexedConnection>>,
}

/// What the first round shows of a name.
struct Outline<'a> {
    name: &'a Name,
    record: Vec<u8>,
    queue: Vec<u8>,
    form: Form,
    left_ms: Option<u64>,
    waiting: u64,
}

/// The form of a record, by its type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Missing,
    Text,
    Shares,
    Latch,
    /// No value of this kind.
    Other,
    /// Another server of the cluster has the name.
    Elsewhere,
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
            config,
            connections: Mutex::default(),
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
                    let page = |server, cursor| inner.list(server, cursor, &prefix);
                    inner.page(from, page).await
                }
                InspectQuery::Show(key) => inner.show(&key).await,
                InspectQuery::Nodes(from) => {
                    let page = |server, cursor| inner.list_nodes(server, cursor);
                    inner.page(from, page).await
                }
            }
        })
    }
}

impl Inner {
    /// Reads a page of the server at the position. The servers follow each other.
    async fn page<P: Future<Output = Result<(ServerView, u64), StoreError>>>(
        &self,
        from: Option<Position>,
        page: impl FnOnce(ServerId, u64) -> P,
    ) -> Result<InspectAnswer, StoreError> {
        let mut servers = self.servers().await?.into_iter().peekable();
        let (at, cursor) = match from {
            Some(Position::Scan(at, cursor)) => (ServerId(at), cursor),
            _ => (ServerId(0), 0),
        };
        let mut read = InspectAnswer {
            views: Vec::new(),
            next: None,
            failures: Vec::new(),
        };
        // A cluster may have lost this server since the last page. New servers have higher ids.
        let Some(server) = servers.find(|server| *server >= at) else {
            return Ok(read);
        };
        read.next = servers.peek().map(|next| Position::Scan(next.0, 0));
        let cursor = if server == at { cursor } else { 0 };
        match page(server, cursor).await {
            Ok((view, cursor)) => {
                read.views.push(view);
                if cursor > 0 {
                    read.next = Some(Position::Scan(server.0, cursor));
                }
            }
            Err(error) => self.note_failure(server, error, &mut read)?,
        }
        Ok(read)
    }

    /// Notes that a master of a quorum does not answer. Every other server must answer.
    fn note_failure(
        &self,
        server: ServerId,
        error: StoreError,
        page: &mut InspectAnswer,
    ) -> Result<(), StoreError> {
        if self.config.masters.is_none() {
            return Err(error);
        }
        page.failures
            .push((self.config.master(server).server().into(), error));
        Ok(())
    }

    async fn servers(&self) -> Result<Vec<ServerId>, StoreError> {
        if let Some(cluster) = &self.config.cluster {
            cluster.read(&self.config).await?;
            return Ok(cluster.masters());
        }
        let masters = self.config.masters.as_ref();
        let count = masters.map_or(1, |masters| masters.clients.len());
        Ok((0..count as u16).map(ServerId).collect())
    }

    async fn list(
        &self,
        server: ServerId,
        cursor: u64,
        prefix: &[u8],
    ) -> Result<(ServerView, u64), StoreError> {
        let mut pattern = b"*".to_vec();
        format::escape_pattern(prefix, &mut pattern);
        pattern.push(b'*');
        let names = &self.config.names;
        // A name is found by its record or by its queue, or by both.
        let mut found = BTreeMap::new();
        let next = self
            .scan(server, cursor, &pattern, |key| {
                if let Some((name, is_queue)) = named(names, key)
                    && [&*names.prefix, name.key.as_bytes()].concat().starts_with(prefix)
                {
                    *found.entry(name).or_insert(false) |= !is_queue;
                }
                found.len()
            })
            .await?;
        let listed: Vec<Name> = found.keys().cloned().collect();
        // While a slot moves, the names that its new server has already are not listed.
        let (mut view, _) = self.view(server, &listed).await?;
        // A name with a record is listed when SCAN returns the record.
        view.keys
            .retain(|key| key.record == RecordView::Free || found.get(&key.name) == Some(&true));
        Ok((view, next))
    }

    async fn list_nodes(&self, server: ServerId, cursor: u64) -> Result<(ServerView, u64), StoreError> {
        let mut nodes = BTreeSet::new();
        let pattern = names::presence("*");
        let next = self
            .scan(server, cursor, pattern.as_bytes(), |key| {
                let key = std::str::from_utf8(key).ok();
                let id = key.and_then(|key| key.strip_prefix(names::PRESENCE)?.parse::<NodeId>().ok());
                nodes.extend(id);
                nodes.len()
            })
            .await?;
        let (mut view, _) = self.view(server, &[]).await?;
        view.nodes = self.nodes(server, nodes).await?;
        view.nodes.retain(|_, node| node.presence.is_some());
        Ok((view, next))
    }

    async fn show(&self, key: &Key) -> Result<InspectAnswer, StoreError> {
        let names: Vec<Name> = Kind::ALL
            .iter()
            .map(|kind| Name::new(*kind, key.clone()))
            .collect();
        let mut servers = self.servers().await?;
        if let Some(cluster) = &self.config.cluster {
            servers = vec![cluster.server(self.config.names.slot(&names[0]))];
        }
        let mut page = InspectAnswer {
            views: Vec::new(),
            next: None,
            failures: Vec::new(),
        };
        for server in servers {
            match self.view(server, &names).await {
                Ok((_, elsewhere)) if !elsewhere.is_empty() => return Err(self.moves(key)),
                Ok((view, _)) => page.views.push(view),
                Err(error) => self.note_failure(server, error, &mut page)?,
            }
        }
        match page.failures.first() {
            Some((_, error)) if page.views.is_empty() => Err(error.clone()),
            _ => Ok(page),
        }
    }

    /// Returns the error for a key that moves. An answer without it would say that the key is free.
    fn moves(&self, key: &Key) -> StoreError {
        if let Some(cluster) = &self.config.cluster {
            cluster.want_reading();
        }
        let text = format_args!("`{key}` moves between servers of the cluster: try again");
        StoreError::new(StoreErrorKind::Interrupted, text)
    }

    /// Passes each key that SCAN returns to `found`, which returns how many names it has. Returns the next cursor.
    async fn scan(
        &self,
        server: ServerId,
        mut cursor: u64,
        pattern: &[u8],
        mut found: impl FnMut(&[u8]) -> usize,
    ) -> Result<u64, StoreError> {
        for _ in 0..MAX_SCANS {
            let mut scan = redis::pipe();
            scan.cmd("SCAN").arg(cursor).arg("MATCH").arg(pattern);
            scan.arg("COUNT").arg(PAGE);
            let [answer] = self.ask(server, &scan).await?.try_into().map_err(unreadable)?;
            let (next, keys): (u64, Vec<Vec<u8>>) = read(result(answer))?;
            let count = keys.iter().map(|key| found(key)).last().unwrap_or_default();
            cursor = next;
            if cursor == 0 || count >= PAGE {
                break;
            }
        }
        Ok(cursor)
    }

    /// Reads what a server keeps of these names, and of the nodes that hold them and wait for them.
    /// Also returns the names that another server of the cluster has by now.
    async fn view(&self, server: ServerId, names: &[Name]) -> Result<(ServerView, Vec<Name>), StoreError> {
        let (mut keys, mut elsewhere, mut now_us) = (Vec::new(), Vec::new(), 0);
        let chunks = names.chunks(CHUNK).chain(names.is_empty().then_some(&[][..]));
        for chunk in chunks {
            let mut chunk = chunk.to_vec();
            for _ in 0..MAX_READS {
                let (outlines, now) = self.outlines(server, &chunk).await?;
                now_us = now;
                let changed = self.fill(server, outlines, now / 1000, &mut keys).await?;
                if changed.is_empty() {
                    chunk.clear();
                    break;
                }
                chunk = changed;
            }
            elsewhere.extend(chunk);
        }
        let nodes = self.nodes(server, nodes_of(&keys)).await?;
        let server = match &self.config.cluster {
            Some(cluster) => cluster
                .address(server)
                .map(|(host, port)| format!("{host}:{port}")),
            None => None,
        }
        .unwrap_or_else(|| self.config.master(server).server());
        let view = ServerView {
            server: server.into(),
            now_us,
            date_us: now_us,
            keys,
            nodes,
        };
        Ok((view, elsewhere))
    }

    /// Reads the types of records, when they end, how many claims wait, and the server's clock.
    async fn outlines<'a>(
        &self,
        server: ServerId,
        names: &'a [Name],
    ) -> Result<(Vec<Outline<'a>>, u64), StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        let keys: Vec<_> = names.iter().map(|name| self.keys_of(name)).collect();
        for (record, queue) in &keys {
            pipe.cmd("TYPE").arg(record);
            pipe.cmd("PTTL").arg(record);
            pipe.cmd("ZCOUNT").arg(queue).arg("1").arg(LAST_PLACE);
        }
        let mut answers = self.ask(server, &pipe).await?.into_iter();
        let time = read_time(result(next(&mut answers)?)).map_err(|error| failure(error).error)?;
        let mut outlines = Vec::with_capacity(names.len());
        for (name, (record, queue)) in names.iter().zip(keys) {
            let form = next(&mut answers)?;
            let is_elsewhere = is_refused_with(&form, &["MOVED", "ASK", "TRYAGAIN"]);
            let form = checked(form)?.and_then(text);
            let left: Option<i64> = optional(next(&mut answers)?)?;
            let waiting: Option<u64> = optional(next(&mut answers)?)?;
            outlines.push(Outline {
                name,
                record,
                queue,
                form: if is_elsewhere {
                    Form::Elsewhere
                } else {
                    form_of(name.kind, form.as_deref())
                },
                left_ms: left.and_then(|left| u64::try_from(left).ok()),
                waiting: waiting.unwrap_or_default(),
            });
        }
        Ok((outlines, time))
    }

    fn keys_of(&self, name: &Name) -> (Vec<u8>, Vec<u8>) {
        let (mut record, mut queue) = (Vec::new(), Vec::new());
        self.config.names.push_record(name, &mut record);
        self.config.names.push_queue(name, &mut queue);
        (record, queue)
    }

    /// Reads the records and the first waiters. Returns the names whose records have another form by now.
    async fn fill(
        &self,
        server: ServerId,
        outlines: Vec<Outline<'_>>,
        now: u64,
        views: &mut Vec<KeyView>,
    ) -> Result<Vec<Name>, StoreError> {
        let mut answers = self.ask(server, &questions(&outlines, now)).await?.into_iter();
        let mut changed = Vec::new();
        for of in outlines {
            let mut view = KeyView {
                name: of.name.clone(),
                record: RecordView::Free,
                left_ms: of.left_ms,
                waiting: of.waiting,
                waiters: Vec::new(),
            };
            let is_read = self
                .read_record(server, (&of, now), &mut answers, &mut view)
                .await?;
            if of.waiting > 0 {
                let entries: Option<Vec<Vec<u8>>> = optional(next(&mut answers)?)?;
                view.waiters = self
                    .waiters(server, &of, now, entries.unwrap_or_default())
                    .await?;
            }
            if view.record == RecordView::Free {
                view.left_ms = None;
            }
            if !is_read {
                changed.push(of.name.clone());
            } else if view.record != RecordView::Free || view.waiting > 0 {
                views.push(view);
            }
        }
        Ok(changed)
    }

    /// Reads the record from the answers to its questions. Returns whether it still has its form: a lock that readers share has another
    /// one than a lock that is written.
    async fn read_record(
        &self,
        server: ServerId,
        (of, now): (&Outline<'_>, u64),
        answers: &mut impl Iterator<Item = Value>,
        view: &mut KeyView,
    ) -> Result<bool, StoreError> {
        match of.form {
            Form::Missing => {}
            Form::Elsewhere => return Ok(false),
            Form::Other => view.record = RecordView::Foreign(None),
            Form::Text => {
                let value = next(answers)?;
                if has_other_type(&value) {
                    return Ok(false);
                }
                let value: Vec<u8> = optional(value)?.unwrap_or_default();
                // A record that has ended since is read as an empty value, too.
                if !value.is_empty() || self.exists(server, &of.record).await? {
                    view.record = text_record(&value, of.left_ms);
                }
            }
            Form::Shares => {
                let first = next(answers)?;
                let page = optional(next(answers)?)?.unwrap_or_default();
                if has_other_type(&first) {
                    return Ok(false);
                }
                let first: Option<Vec<Vec<u8>>> = optional(first)?;
                let first = first.and_then(|first| first.into_iter().next());
                view.record = match first {
                    Some(first) if format::share(&first, of.name.kind).is_none() => RecordView::Foreign(None),
                    _ => self.shares(server, of, now, page).await?,
                };
            }
            Form::Latch => {
                let fields = next(answers)?;
                let watching: Option<u64> = optional(next(answers)?)?;
                let nodes: Option<Vec<Vec<u8>>> = optional(next(answers)?)?;
                if has_other_type(&fields) {
                    return Ok(false);
                }
                let fields: Option<Vec<Option<Vec<u8>>>> = optional(fields)?;
                let fields = fields.unwrap_or_default();
                // A latch that has ended since has no fields.
                let is_there = fields.iter().any(Option::is_some) || self.exists(server, &of.record).await?;
                view.record = match is_there {
                    true => latch(&fields),
                    false => RecordView::Free,
                };
                if matches!(view.record, RecordView::Latch { .. }) {
                    view.waiting = watching.unwrap_or_default();
                    let nodes = nodes.into_iter().flatten();
                    view.waiters = nodes.filter_map(|node| watcher(&node)).collect();
                }
            }
        }
        Ok(true)
    }

    async fn exists(&self, server: ServerId, key: &[u8]) -> Result<bool, StoreError> {
        let mut pipe = redis::pipe();
        push(&mut pipe, "TYPE", key, &[]);
        let [form] = self.ask(server, &pipe).await?.try_into().map_err(unreadable)?;
        let form: Option<String> = optional(form)?;
        Ok(form.is_some_and(|form| form != "none"))
    }

    /// Reads the numbers of the first shares, and counts all of them.
    async fn shares(
        &self,
        server: ServerId,
        of: &Outline<'_>,
        now: u64,
        mut page: Vec<(Vec<u8>, f64)>,
    ) -> Result<RecordView, StoreError> {
        let (mut count, mut in_use, mut holders, mut from) = (0, 0, Vec::new(), 0);
        loop {
            let is_first = from == 0;
            from += page.len();
            let shares = page
                .iter()
                .filter_map(|(member, ends)| Some((format::share(member, of.name.kind)?, *ends as u64)));
            let shares: Vec<_> = shares.collect();
            count += shares.len() as u64;
            in_use += shares.iter().map(|(share, _)| weight(share.mode)).sum::<u64>();
            if is_first && !shares.is_empty() {
                let listed = &shares[..shares.len().min(MAX_LISTED)];
                let mut pipe = redis::pipe();
                let members: Vec<_> = listed
                    .iter()
                    .map(|(share, _)| format!("n{}", share.holder))
                    .collect();
                let members: Vec<&str> = members.iter().map(String::as_str).collect();
                push(&mut pipe, "ZMSCORE", &of.record, &members);
                let [numbers] = self.ask(server, &pipe).await?.try_into().map_err(unreadable)?;
                let numbers: Option<Vec<Option<f64>>> = optional(numbers)?;
                let numbers = numbers
                    .unwrap_or_default()
                    .into_iter()
                    .chain(std::iter::repeat(None));
                // A share without a number has left since.
                holders = listed
                    .iter()
                    .zip(numbers)
                    .filter_map(|((share, ends), number)| {
                        Some(HolderView {
                            node: share.node,
                            claim: share.claim,
                            mode: share.mode,
                            number: GrantNumber(number? as u64),
                            left_ms: Some(ends.saturating_sub(now)),
                        })
                    })
                    .collect();
            }
            if page.len() < SHARES {
                break;
            }
            let mut pipe = redis::pipe();
            push_shares(&mut pipe, &of.record, now, from);
            let [rest] = self.ask(server, &pipe).await?.try_into().map_err(unreadable)?;
            page = optional(rest)?.unwrap_or_default();
        }
        Ok(match count {
            0 => RecordView::Free,
            count => RecordView::Shared {
                count,
                in_use,
                holders,
            },
        })
    }

    /// Reads which of the first waiters are alive.
    async fn waiters(
        &self,
        server: ServerId,
        of: &Outline<'_>,
        now: u64,
        mut entries: Vec<Vec<u8>>,
    ) -> Result<Vec<WaiterView>, StoreError> {
        entries.retain(|entry| format::waiter(entry, of.name.kind).is_some());
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        pipe.cmd("ZMSCORE").arg(&of.queue);
        for entry in &entries {
            pipe.arg([b"b", &entry[1..]].concat());
        }
        let [ends] = self.ask(server, &pipe).await?.try_into().map_err(unreadable)?;
        let ends: Option<Vec<Option<f64>>> = optional(ends)?;
        let ends = ends
            .unwrap_or_default()
            .into_iter()
            .chain(std::iter::repeat(None));
        let waiters = entries.iter().zip(ends).filter_map(|(entry, dies)| {
            let entry = format::waiter(entry, of.name.kind)?;
            Some(WaiterView {
                node: entry.node,
                claim: Some(entry.claim),
                mode: entry.mode,
                is_dead: dies.is_none_or(|dies| dies < now as f64),
            })
        });
        Ok(waiters.collect())
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
        let servers = match &self.config.cluster {
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
                let answers = match self.ask(server, &pipe).await {
                    Ok(answers) => answers,
                    // Another server of a cluster. What it knows is no part of a key.
                    Err(_) if self.config.cluster.is_some() => continue,
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
        self.config.cluster.as_ref().is_none_or(|cluster| {
            let slot = self.config.names.slot_of_key(names::presence(node).as_bytes());
            cluster.server(slot) == server
        })
    }

    /// Sends the commands to a server, and returns an answer for each.
    async fn ask(&self, server: ServerId, pipe: &Pipeline) -> Result<Vec<Value>, StoreError> {
        if pipe.is_empty() {
            return Ok(Vec::new());
        }
        let config = &self.config;
        let asking = async {
            let mut connection = self.connection(server).await?;
            let answers = connection.send_packed_commands(pipe, 0, pipe.len()).await;
            answers.map_err(|error| failure(error).error)
        };
        let late = |_| StoreError::new(StoreErrorKind::TimedOut, too_slow(config));
        let answered = timeout(config.timeout, asking)
            .await
            .map_err(late)
            .and_then(|answered| answered);
        if answered.is_err() {
            self.connections.lock().await.remove(&server);
        }
        answered
    }

    async fn connection(&self, server: ServerId) -> Result<MultiplexedConnection, StoreError> {
        if let Some(open) = self.connections.lock().await.get(&server) {
            return Ok(open.clone());
        }
        let config = &self.config;
        let at = match (&config.cluster, &config.sentinels) {
            (Some(cluster), _) => cluster::config_of(cluster, config, server).await?,
            (None, Some(sentinels)) => {
                let located = sentinels.watch(config.timeout).locate().await?;
                Arc::new(config.at(located).map_err(|error| cannot_open(config, error))?)
            }
            (None, None) => config.master(server),
        };
        let mut opened = connect(&at).await?;
        // A node of a cluster would show its own slots only, and a replica an older state.
        greet(&at, &mut opened, &mut Vec::new()).await?;
        self.connections.lock().await.insert(server, opened.clone());
        Ok(opened)
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

/// Returns the questions about records and first waiters.
fn questions(outlines: &[Outline<'_>], now: u64) -> Pipeline {
    let limit = MAX_LISTED.to_string();
    let mut pipe = redis::pipe();
    for of in outlines {
        match of.form {
            Form::Missing | Form::Other | Form::Elsewhere => {}
            Form::Text => push(&mut pipe, "GETRANGE", &of.record, &["0", "511"]),
            Form::Shares => {
                push(&mut pipe, "ZRANGE", &of.record, &["0", "0"]);
                push_shares(&mut pipe, &of.record, now, 0);
            }
            Form::Latch => {
                push(&mut pipe, "HMGET", &of.record, &["gen", "left"]);
                let now = now.to_string();
                push(&mut pipe, "ZCOUNT", &of.queue, &[&now, "+inf"]);
                push(
                    &mut pipe,
                    "ZRANGEBYSCORE",
                    &of.queue,
                    &[&now, "+inf", "LIMIT", "0", &limit],
                );
            }
        }
        if of.waiting > 0 {
            push(
                &mut pipe,
                "ZRANGEBYSCORE",
                &of.queue,
                &["1", LAST_PLACE, "LIMIT", "0", &limit],
            );
        }
    }
    pipe
}

fn form_of(kind: Kind, form: Option<&str>) -> Form {
    match (form, kind) {
        (None | Some("none"), _) => Form::Missing,
        (Some("string"), _) if kind != Kind::Latch => Form::Text,
        (Some("zset"), Kind::Lock | Kind::Semaphore) => Form::Shares,
        (Some("hash"), Kind::Latch) => Form::Latch,
        _ => Form::Other,
    }
}

fn text_record(value: &[u8], left_ms: Option<u64>) -> RecordView {
    match format::owner(value) {
        Some(owner) => RecordView::Owned(HolderView {
            node: owner.node,
            claim: owner.claim,
            mode: Mode::Exclusive,
            number: owner.number,
            left_ms,
        }),
        None => RecordView::Foreign(Some(format::digest(value))),
    }
}

fn latch(fields: &[Option<Vec<u8>>]) -> RecordView {
    let number = |field: &Option<Vec<u8>>| std::str::from_utf8(field.as_deref()?).ok()?.parse::<u64>().ok();
    let left = match fields {
        [generation, left] => number(generation).and_then(|_| number(left)),
        _ => None,
    };
    match left.and_then(|left| u32::try_from(left).ok()) {
        Some(left) => RecordView::Latch { left },
        None => RecordView::Foreign(None),
    }
}

fn watcher(node: &[u8]) -> Option<WaiterView> {
    Some(WaiterView {
        node: std::str::from_utf8(node).ok()?.parse().ok()?,
        claim: None,
        mode: Mode::Exclusive,
        is_dead: false,
    })
}

fn weight(mode: Mode) -> u64 {
    match mode {
        Mode::Permits(permits) => permits.weight.into(),
        Mode::Exclusive | Mode::Read => 0,
    }
}

fn push(pipe: &mut Pipeline, command: &str, key: &[u8], words: &[&str]) {
    pipe.cmd(command).arg(key).arg(words);
}

fn push_shares(pipe: &mut Pipeline, record: &[u8], now: u64, from: usize) {
    let words = [
        &*now.to_string(),
        LAST_TIME,
        "WITHSCORES",
        "LIMIT",
        &from.to_string(),
        &SHARES.to_string(),
    ];
    push(pipe, "ZRANGEBYSCORE", record, &words);
}

fn next(answers: &mut impl Iterator<Item = Value>) -> Result<Value, StoreError> {
    answers.next().ok_or_else(|| unreadable(()))
}

fn unreadable<T>(_: T) -> StoreError {
    malformed("the server's answer to a read is no such answer").error
}

fn read<T: redis::FromRedisValue>(answer: redis::RedisResult<Value>) -> Result<T, StoreError> {
    let answer = answer.map_err(|error| failure(error).error)?;
    from_redis_value(answer).map_err(unreadable)
}

fn has_other_type(answer: &Value) -> bool {
    is_refused_with(answer, &["WRONGTYPE"])
}

fn is_refused_with(answer: &Value, codes: &[&str]) -> bool {
    matches!(answer, Value::ServerError(error) if codes.contains(&error.code()))
}

/// Returns the answer, or `None` if the key has another type by now, or another server serves it.
fn checked(answer: Value) -> Result<Option<Value>, StoreError> {
    match result(answer) {
        Ok(Value::Nil) => Ok(None),
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.code(), Some("WRONGTYPE" | "MOVED" | "ASK" | "TRYAGAIN")) => Ok(None),
        Err(error) => Err(match error_text(&error) {
            Some(text) => refused(&text).with_source(error),
            None => failure(error).error,
        }),
    }
}

fn optional<T: redis::FromRedisValue>(answer: Value) -> Result<Option<T>, StoreError> {
    let answer = checked(answer)?;
    answer
        .map(|answer| from_redis_value(answer).map_err(unreadable))
        .transpose()
}
