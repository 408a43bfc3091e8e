//! The servers of a Redis Cluster: how the map of their slots is kept up to date, and links to them.
//!
//! The map is read by one task of each node, from any server that answers: at the start, every 30 s, and when an
//! answer or a lost connection shows that the map may be old, at most once a second. `MOVED` corrects its slot at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value, from_redis_value};
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{StoreError, StoreErrorKind};
use crate::store::redis::config::Config;
use crate::store::redis::connection::{cannot_open, connect};
use crate::store::redis::decode::{error_text, result};
use crate::store::redis::link::RedisLink;
use crate::store::redis::names::SLOTS;
use crate::store::redis::sentinel::Address;
use crate::store::redis::slot_map::{ANY, Cluster};
use crate::store::{MapSink, ServerId};

/// How often the map is read if nothing shows that it is old.
const READ_INTERVAL: Duration = Duration::from_secs(30);
/// The shortest time between two readings of the map.
const MIN_READ_INTERVAL: Duration = Duration::from_secs(1);

/// A range of slots, and the address of their master.
type SlotRange = (usize, usize, Address);

impl Cluster {
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

    /// Returns a connection to a server for commands that no session sends.
    pub(super) async fn connection(
        &self,
        config: &Arc<Config>,
        address: &Address,
    ) -> Result<MultiplexedConnection, StoreError> {
        if let Some(connection) = self.targets.lock().await.get(address) {
            return Ok(connection.clone());
        }
        let target = config
            .at(address.clone())
            .map_err(|error| cannot_open(config, error))?;
        let target = Arc::new(target);
        let opened = timeout(config.timeout / 4, connect(&target)).await;
        let opened = opened.map_err(|_| {
            let text = format_args!("no connection to {}", target.address());
            StoreError::new(StoreErrorKind::Unreachable, text)
        })??;
        self.targets.lock().await.insert(address.clone(), opened.clone());
        Ok(opened)
    }

    /// Closes such a connection after an error that is not from the server.
    pub(super) async fn note_error(&self, address: &Address, error: &RedisError) {
        if error_text(error).is_none() {
            self.targets.lock().await.remove(address);
        }
    }

    fn no_server(&self) -> StoreError {
        let text = format_args!("{self}: no server serves a slot");
        StoreError::new(StoreErrorKind::Unreachable, text)
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
}

/// Opens a link to a server of the cluster. A link to [`ANY`] leads to one of the servers that the map names.
pub(super) async fn open(
    cluster: &Arc<Cluster>,
    config: &Arc<Config>,
    server: ServerId,
) -> Result<RedisLink, StoreError> {
    let opened = RedisLink::open(config_of(cluster, config, server).await?, None).await;
    if opened.is_err() {
        // The server may have been replaced.
        cluster.want_reading();
    }
    opened
}

/// Returns the configuration for a server of the cluster; for [`ANY`], of one that the map names.
pub(super) async fn config_of(
    cluster: &Arc<Cluster>,
    config: &Arc<Config>,
    server: ServerId,
) -> Result<Arc<Config>, StoreError> {
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
    Ok(Arc::new(at))
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
            Some(text) if text.contains("cluster support disabled") => StoreError::unsupported(format_args!(
                "{} is no server of a cluster (`cluster-enabled no`): use `Locks::redis`",
                server.address()
            )),
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
