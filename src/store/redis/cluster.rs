//! The servers of a Redis Cluster: which of them serves a slot, and the connections for slots that are on their way.
//!
//! The map of slots is read by one task of each node, from any server that answers: at the start, every 30 s, and when an
//! answer or a lost connection shows that the map may be old, at most once a second. `MOVED` corrects its slot at once.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Pipeline, Value, from_redis_value};
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{OptionsError, StoreError, StoreErrorKind, StoreRefusal};
use crate::store::redis::codec::{error_text, result};
use crate::store::redis::config::Config;
use crate::store::redis::link::{RedisLink, cannot_open, connect};
use crate::store::redis::names::SLOTS;
use crate::store::redis::sentinel::Address;
use crate::store::redis::url;
use crate::store::{MapSink, ServerId};

/// How often the map is read if nothing shows that it is old.
const READ_INTERVAL: Duration = Duration::from_secs(30);
/// The shortest time between two readings of the map.
const MIN_READ_INTERVAL: Duration = Duration::from_secs(1);
/// The server that stands for a slot without a known server: any seed.
pub(super) const ANY: ServerId = ServerId(0);
/// The server of the inbox, which is at one of the servers.
pub(super) const INBOX: ServerId = ServerId(u16::MAX);

/// A cluster, as one node knows it.
pub(super) struct Cluster {
    seeds: Vec<Client>,
    map: RwLock<SlotMap>,
    /// The number of changes of the map.
    changes: watch::Sender<u64>,
    /// Wakes the task that reads the map.
    read_wanted: Notify,
    /// When the last reading began, and whether it succeeded.
    last_read: Mutex<Option<(Instant, bool)>>,
    /// The number of inboxes that were opened. Each leads to the next server.
    inboxes: AtomicUsize,
    /// The connections for slots that are on their way to a server.
    targets: Mutex<HashMap<Address, MultiplexedConnection>>,
}

/// Which server serves each slot.
#[derive(Debug)]
struct SlotMap {
    servers: Vec<Address>,
    slots: Box<[ServerId]>,
}

impl SlotMap {
    /// Returns the id of the server at this address. An address keeps its id.
    fn id(&mut self, address: &Address) -> ServerId {
        let at = self.servers.iter().position(|known| known == address);
        let at = at.unwrap_or_else(|| {
            self.servers.push(address.clone());
            self.servers.len() - 1
        });
        ServerId(at as u16 + 1)
    }

    /// Returns the servers that serve slots.
    fn masters(&self) -> Vec<ServerId> {
        let mut masters: Vec<_> = self.slots.iter().copied().filter(|id| *id != ANY).collect();
        masters.sort_unstable();
        masters.dedup();
        masters
    }
}

/// A range of slots, and the address of their master.
type SlotRange = (usize, usize, Address);

impl Cluster {
    /// Returns a cluster with these servers among its servers.
    pub(super) fn new<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, OptionsError> {
        let seeds = urls.into_iter().map(|url| url::cluster(url.as_ref()));
        let seeds: Vec<Client> = seeds.collect::<Result<_, _>>()?;
        if seeds.is_empty() {
            return Err(OptionsError(
                "the list of servers of the cluster is empty: give the URL of at least one".to_owned(),
            ));
        }
        Ok(Cluster {
            seeds,
            map: RwLock::new(SlotMap {
                servers: Vec::new(),
                slots: vec![ANY; SLOTS].into(),
            }),
            changes: watch::Sender::new(0),
            read_wanted: Notify::new(),
            last_read: Mutex::default(),
            inboxes: AtomicUsize::new(0),
            targets: Mutex::default(),
        })
    }

    fn map(&self) -> RwLockReadGuard<'_, SlotMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the server that serves a slot, as far as the map says.
    pub(super) fn server(&self, slot: u16) -> ServerId {
        self.map().slots[usize::from(slot) % SLOTS]
    }

    /// Returns the servers that serve slots.
    pub(super) fn masters(&self) -> Vec<ServerId> {
        let masters = self.map().masters();
        if masters.is_empty() { vec![ANY] } else { masters }
    }

    /// Returns the address of a server.
    pub(super) fn address(&self, id: ServerId) -> Option<Address> {
        let at = usize::from(id.0).checked_sub(1)?;
        self.map().servers.get(at).cloned()
    }

    /// Returns the server where the next inbox opens: another one each time.
    pub(super) async fn next_inbox(&self, config: &Arc<Config>) -> Result<Arc<Config>, StoreError> {
        let mut masters = self.map().masters();
        if masters.is_empty() {
            self.read(config).await?;
            masters = self.map().masters();
        }
        let at = self.inboxes.fetch_add(1, Ordering::Relaxed) % masters.len().max(1);
        let address = masters.get(at).and_then(|id| self.address(*id));
        let address = address.ok_or_else(|| self.no_server())?;
        Ok(Arc::new(
            config.at(address).map_err(|error| cannot_open(config, error))?,
        ))
    }

    fn no_server(&self) -> StoreError {
        let text = format_args!("{self}: no server serves a slot");
        StoreError::new(StoreErrorKind::Unreachable, text)
    }

    /// Asks for a reading of the map, because it may be old.
    pub(super) fn want_reading(&self) {
        self.read_wanted.notify_one();
    }

    /// Notes that a server named the address of a slot's new server.
    pub(super) fn correct(&self, slot: u16, address: &Address) {
        self.change(|map| {
            let id = map.id(address);
            let known = &mut map.slots[usize::from(slot) % SLOTS];
            std::mem::replace(known, id) != id
        });
        self.want_reading();
    }

    /// Changes the map, and tells the node if `change` returns that something has changed.
    fn change(&self, change: impl FnOnce(&mut SlotMap) -> bool) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let has_changed = change(&mut map);
        drop(map);
        if has_changed {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Keeps the map up to date, and calls `changed` after each change.
    pub(super) async fn watch(self: Arc<Self>, config: Arc<Config>, changed: MapSink) {
        let mut changes = self.changes.subscribe();
        let mut next = Instant::now();
        loop {
            tokio::select! {
                _ = changes.changed() => changed(),
                () = sleep_until(next) => {
                    // An error shows when a connection is opened.
                    let _ = self.read(&config).await;
                    next = Instant::now() + READ_INTERVAL;
                }
                () = self.read_wanted.notified() => {
                    let last = self.last_read.lock().await.map(|(at, _)| at + MIN_READ_INTERVAL);
                    next = last.map_or_else(Instant::now, |earliest| earliest.max(Instant::now()));
                }
            }
        }
    }

    /// Reads the map from the first server that answers, unless it was read within the last second.
    ///
    /// # Errors
    ///
    /// Returns why no server told the map.
    pub(super) async fn read(&self, config: &Arc<Config>) -> Result<(), StoreError> {
        let mut last = self.last_read.lock().await;
        let now = Instant::now();
        if last.is_some_and(|(at, well)| well && now < at + MIN_READ_INTERVAL) {
            return Ok(());
        }
        let ranges = self.ask(config).await;
        *last = Some((now, ranges.is_ok()));
        let ranges = ranges?;
        self.change(|map| {
            let mut slots = vec![ANY; SLOTS];
            for (first, last, address) in &ranges {
                let id = map.id(address);
                slots[*first..=*last].fill(id);
            }
            let slots: Box<[_]> = slots.into();
            std::mem::replace(&mut map.slots, slots.clone()) != slots
        });
        Ok(())
    }

    /// Returns the ranges of slots that the first server with an answer tells.
    async fn ask(&self, config: &Arc<Config>) -> Result<Vec<SlotRange>, StoreError> {
        let masters = self.map().masters();
        let known = masters.into_iter().filter_map(|id| self.address(id));
        let known = known.map(|address| config.at(address));
        let seeds = self.seeds.iter().map(|seed| {
            let addr = seed.get_connection_info().addr().clone();
            config.with_addr(addr)
        });
        let limit = config.timeout / 4;
        let mut failures: Vec<StoreError> = Vec::new();
        for server in known.chain(seeds) {
            let server = Arc::new(server.map_err(|error| cannot_open(config, error))?);
            let silent = || {
                let text = format_args!("{} is silent", server.address());
                StoreError::new(StoreErrorKind::Unreachable, text)
            };
            let asked = timeout(limit, slots_of(&server)).await;
            match asked.unwrap_or_else(|_| Err(silent())) {
                Ok(ranges) => return Ok(ranges),
                Err(error) => failures.push(error),
            }
        }
        let is_refusal = |failure: &StoreError| matches!(failure.kind(), StoreErrorKind::Refused(_));
        let refusal = failures.iter().find(|failure| is_refusal(failure));
        let kind = refusal.map_or(StoreErrorKind::Unreachable, |failure| failure.kind().clone());
        let texts: Vec<_> = failures.iter().map(ToString::to_string).collect();
        let text = format_args!("no server of the cluster tells its slots: {}", texts.join("; "));
        Err(StoreError::new(kind, text))
    }

    /// Executes a script of one key at the server that a slot is moving to.
    pub(super) async fn ask_target(
        &self,
        config: &Config,
        address: &Address,
        load: &Cmd,
        call: Cmd,
    ) -> Result<Value, StoreError> {
        let mut targets = self.targets.lock().await;
        let mut connection = match targets.get(address) {
            Some(connection) => connection.clone(),
            None => {
                let target = Arc::new(
                    config
                        .at(address.clone())
                        .map_err(|error| cannot_open(config, error))?,
                );
                let opened = timeout(config.timeout / 4, connect(&target)).await;
                let opened = opened.map_err(|_| {
                    let text = format_args!("no connection to {}", target.address());
                    StoreError::new(StoreErrorKind::Unreachable, text)
                })??;
                targets.insert(address.clone(), opened.clone());
                opened
            }
        };
        drop(targets);
        // SCRIPT LOAD ends what ASKING begins, so it comes first.
        let mut pipeline = Pipeline::with_capacity(3);
        pipeline.add_command(load.clone());
        pipeline.cmd("ASKING");
        pipeline.add_command(call);
        let answers = connection.send_packed_commands(&pipeline, 0, 3).await;
        let answer = answers.and_then(|answers| result(answers.into_iter().nth(2).unwrap_or(Value::Nil)));
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                if error_text(&error).is_none() {
                    self.targets.lock().await.remove(address);
                }
                let text = format_args!("{}:{}: {error}", address.0, address.1);
                Err(StoreError::new(StoreErrorKind::Interrupted, text).with_source(error))
            }
        }
    }
}

/// Opens a link to a server of the cluster. A link to [`ANY`] leads to one of the servers that the map names.
pub(super) async fn open(
    cluster: &Arc<Cluster>,
    config: &Arc<Config>,
    server: ServerId,
) -> Result<RedisLink, StoreError> {
    let address = match cluster.address(server) {
        Some(address) => address,
        None => {
            cluster.read(config).await?;
            let first = cluster.map().masters().first().copied();
            let first = first.and_then(|id| cluster.address(id));
            first.ok_or_else(|| cluster.no_server())?
        }
    };
    let at = config.at(address).map_err(|error| cannot_open(config, error))?;
    let opened = RedisLink::open(Arc::new(at)).await;
    if opened.is_err() {
        // The server may have been replaced.
        cluster.want_reading();
    }
    opened
}

/// Returns the ranges of slots that a server tells.
async fn slots_of(server: &Arc<Config>) -> Result<Vec<SlotRange>, StoreError> {
    let mut connection = connect(server).await?;
    let answer = connection
        .send_packed_command(redis::cmd("CLUSTER").arg("SLOTS"))
        .await;
    let answer = answer
        .and_then(result)
        .map_err(|error| match error_text(&error) {
            Some(text) if text.contains("cluster support disabled") => StoreError::new(
                StoreErrorKind::Refused(StoreRefusal::Unsupported),
                format_args!(
                    "{} is no server of a cluster (`cluster-enabled no`): use `Locks::redis`",
                    server.address()
                ),
            ),
            _ => cannot_open(server, error),
        })?;
    let asked = match server.address() {
        redis::ConnectionAddr::Tcp(host, _) | redis::ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    };
    let unreadable = || {
        let text = format_args!(
            "{} answered CLUSTER SLOTS with no list of slots",
            server.address()
        );
        StoreError::new(StoreErrorKind::Interrupted, text)
    };
    let Value::Array(ranges) = answer else {
        return Err(unreadable());
    };
    let ranges = ranges.iter().map(|range| read_range(range, &asked));
    ranges.collect::<Option<_>>().ok_or_else(unreadable)
}

/// Reads a range of slots: its first and last slot, and the host and port of its master. A server that does not know its
/// own host leaves it empty, and is at the host that was asked.
fn read_range(range: &Value, asked: &str) -> Option<SlotRange> {
    let Value::Array(parts) = range else { return None };
    let [first, last, Value::Array(master), ..] = &parts[..] else {
        return None;
    };
    let number = |value: &Value| from_redis_value::<usize>(value.clone()).ok();
    let host = from_redis_value::<Option<String>>(master.first()?.clone()).ok()?;
    let host = host.filter(|host| !host.is_empty() && host != "?");
    let port = from_redis_value::<u16>(master.get(1)?.clone()).ok()?;
    let (first, last) = (number(first)?, number(last)?);
    let address = (host.unwrap_or_else(|| asked.to_owned()), port);
    (first <= last && last < SLOTS).then_some((first, last, address))
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.seeds.iter();
        let addresses = addresses.map(|seed| seed.get_connection_info().addr().to_string());
        write!(
            f,
            "the Redis Cluster at {}",
            addresses.collect::<Vec<_>>().join(", ")
        )
    }
}

/// Reads `<slot> <host>:<port>`, which `MOVED` and `ASK` say. Without a host the server means the one that was asked.
pub(super) fn read_redirect(detail: &str, asked: &Config) -> Option<(u16, Address)> {
    let (slot, address) = detail.trim().split_once(' ')?;
    let (host, port) = address.trim().rsplit_once(':')?;
    let own = match asked.address() {
        redis::ConnectionAddr::Tcp(host, _) | redis::ConnectionAddr::TcpTls { host, .. } => host.as_str(),
        _ => "",
    };
    let host = if host.is_empty() || host == "?" { own } else { host };
    Some((slot.parse().ok()?, (host.to_owned(), port.parse().ok()?)))
}
