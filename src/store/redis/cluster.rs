//! The servers of a Redis Cluster: how the map of their slots is kept up to date, and links to them.
//!
//! The map is read by one task of each node, from several servers at once: at the start, every 30 s, and when an
//! answer or a lost connection shows that the map may be old, at most once a second. `MOVED` corrects its slot at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::cluster::map::CORRECTION;
use crate::protocol::cluster::reading::{Doubt, MapReading, Undecided};
use crate::protocol::cluster::{Address, MapAnswer};
use crate::protocol::flaw::Plant;
use crate::store::redis::config::Config;
use crate::store::redis::connection::{cannot_open, connect, too_slow};
use crate::store::redis::decode::error_text;
use crate::store::redis::link::RedisLink;
use crate::store::redis::map_answer;
use crate::store::redis::slot_map::Cluster;
use crate::store::{Link, MapSink, ServerId};

/// How often the map is read if nothing shows that it is old.
const READ_INTERVAL: Duration = Duration::from_secs(30);
/// The shortest time between two readings of the map.
const MIN_READ_INTERVAL: Duration = Duration::from_secs(1);

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
            let address = target.address();
            let text = format_args!("no connection to {address}");
            StoreError::new(StoreErrorKind::Unreachable, text)
        });
        let mut opened = opened??;
        let server = self.map().at(address);
        if let Some(server) = server {
            self.check(server, &target, &mut opened).await?;
        }
        self.targets.lock().await.insert(address.clone(), opened.clone());
        Ok(opened)
    }

    /// Refuses a connection that leads to another server than the one of the map.
    pub(super) async fn check(
        &self,
        server: ServerId,
        config: &Config,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), StoreError> {
        let name = map_answer::ask_name(config, connection).await?;
        match self.confirm(server, &name) {
            true => Ok(()),
            false => Err(is_another(config)),
        }
    }

    /// Closes such a connection after an error that is not from the server.
    pub(super) async fn note_error(&self, address: &Address, error: &RedisError) {
        if error_text(error).is_none() {
            self.targets.lock().await.remove(address);
        }
    }

    pub(super) fn no_server(&self) -> StoreError {
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
                    let is_corrected = self.map().is_corrected(self.now());
                    next = Instant::now() + if is_corrected { CORRECTION } else { READ_INTERVAL };
                }
                () = self.read_wanted.notified() => {
                    let last = self.last_read.lock().await.map(|(at, _)| at + MIN_READ_INTERVAL);
                    next = last.map_or_else(Instant::now, |earliest| earliest.max(Instant::now()));
                }
            }
        }
    }

    /// Reads the map, unless it was read within the last second.
    ///
    /// # Errors
    ///
    /// Returns why no answer counts.
    pub(super) async fn read(&self, config: &Arc<Config>) -> Result<(), StoreError> {
        let mut last = self.last_read.lock().await;
        let now = Instant::now();
        if last.is_some_and(|(at, well)| well && now < at + MIN_READ_INTERVAL) {
            return Ok(());
        }
        let (urls, began) = (self.urls(), self.now());
        let mut rng = fastrand::Rng::new();
        let mut reading = self.write(|map| MapReading::begin(map, began, &urls, &mut rng, Plant::NONE));
        let failures = self.ask(config, &mut reading).await;
        let mut decided = Ok(());
        self.change(|map| match reading.decide(began, map) {
            Ok(has_changed) => has_changed,
            Err(undecided) => {
                decided = Err(undecided);
                false
            }
        });
        *last = Some((now, decided.is_ok()));
        decided.map_err(|undecided| match undecided {
            Undecided::NoAnswer => no_answer(&failures),
            Undecided::TwoClusters(clusters) => two_clusters(clusters),
        })
    }

    /// Asks the servers of a reading, each for a quarter of the connect timeout. After twice that time, one answer beyond
    /// doubt is enough. Returns why others do not count.
    async fn ask(&self, config: &Arc<Config>, reading: &mut MapReading) -> Vec<StoreError> {
        let limit = config.timeout / 4;
        let end = Instant::now() + 2 * limit;
        let (mut asked, mut failures) = (JoinSet::new(), Vec::new());
        loop {
            while let Some(address) = reading.next_server() {
                let config = config.clone();
                asked.spawn(async move {
                    let answer = timeout(limit, ask_one(&config, &address)).await;
                    let silent = format!("{}:{} is silent", address.0, address.1);
                    let silent = |_| Err(StoreError::new(StoreErrorKind::Unreachable, silent));
                    (address, answer.unwrap_or_else(silent))
                });
            }
            let answered = tokio::select! {
                answered = asked.join_next() => answered,
                () = sleep_until(end), if reading.count() > 0 => None,
            };
            match answered {
                Some(Ok((address, Ok(answer)))) => {
                    self.hides_epoch
                        .fetch_or(answer.epoch.is_none(), Ordering::Relaxed);
                    let doubt = reading.answered(address.clone(), Some(answer));
                    failures.extend(doubt.and_then(|doubt| doubtful(&address, doubt)));
                }
                Some(Ok((address, Err(error)))) => {
                    reading.answered(address, None);
                    failures.push(error);
                }
                // A TLS provider may panic. Its server then has not answered.
                Some(Err(_)) => {}
                None => return failures,
            }
        }
    }
}

/// Asks the server at an address for its map.
async fn ask_one(config: &Config, address: &Address) -> Result<MapAnswer, StoreError> {
    let at = config.at(address.clone());
    let at = Arc::new(at.map_err(|error| cannot_open(config, error))?);
    map_answer::ask(&at, &mut connect(&at).await?).await
}

/// Returns the error for an answer that does not count; `None` if it counts where no other does.
fn doubtful((host, port): &Address, doubt: Doubt) -> Option<StoreError> {
    let why = match doubt {
        Doubt::NoSlots => "knows no slots: it was removed from its cluster, or belongs to none",
        Doubt::Stranger => "belongs to another cluster",
        Doubt::Failed => return None,
    };
    let text = format_args!("{host}:{port} {why}");
    Some(StoreError::new(StoreErrorKind::Unreachable, text))
}

/// Returns the error of a reading without an answer that counts.
fn no_answer(failures: &[StoreError]) -> StoreError {
    let is_refusal = |failure: &StoreError| matches!(failure.kind(), StoreErrorKind::Refused(_));
    let refusal = failures.iter().find(|failure| is_refusal(failure));
    let kind = refusal.map_or(StoreErrorKind::Unreachable, |failure| failure.kind().clone());
    let texts: Vec<_> = failures.iter().map(ToString::to_string).collect();
    let texts = texts.join("; ");
    let text = format_args!("no server of the cluster tells its slots: {texts}");
    StoreError::new(kind, text)
}

/// Returns the error for URLs of two clusters.
fn two_clusters(clusters: [Vec<Address>; 2]) -> StoreError {
    let [one, other] = clusters.map(|urls| {
        let urls = urls.iter().map(|(host, port)| format!("{host}:{port}"));
        urls.collect::<Vec<_>>().join(", ")
    });
    StoreError::unsupported(format_args!(
        "the URLs lead to two clusters: {one} to one, {other} to another. Give those of one cluster"
    ))
}

/// Returns the error for a server that took the address of another one.
fn is_another(config: &Config) -> StoreError {
    let address = config.address();
    let text = format_args!("another server than before answers at {address}");
    StoreError::new(StoreErrorKind::Unreachable, text)
}

/// Opens a link to a server of the cluster. A link to [`ANY`](crate::protocol::cluster::map::ANY) leads to one of the
/// servers that the map names.
pub(super) async fn open(
    cluster: &Arc<Cluster>,
    config: &Arc<Config>,
    server: ServerId,
) -> Result<RedisLink, StoreError> {
    let mut failed = cluster.no_server();
    for (server, at, limit) in servers_at(cluster, config, server).await? {
        match timeout(limit, open_at(cluster, server, &at)).await {
            Ok(Ok(link)) => return Ok(link),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = too_slow(&at),
        }
    }
    Err(failed)
}

async fn open_at(cluster: &Cluster, server: ServerId, at: &Arc<Config>) -> Result<RedisLink, StoreError> {
    let opened = RedisLink::open(at.clone(), None).await;
    if opened.is_err() {
        // The server may have been replaced.
        cluster.want_reading();
    }
    let link = opened?;
    match cluster.confirm(server, &link.opened().place.node_id) {
        true => Ok(link),
        false => Err(is_another(at)),
    }
}

/// Returns a server of the cluster, its configuration, and how long it may take to connect; for `ANY`, all servers that the map
/// names: the first that answers in time is enough.
pub(super) async fn servers_at(
    cluster: &Arc<Cluster>,
    config: &Arc<Config>,
    server: ServerId,
) -> Result<Vec<(ServerId, Arc<Config>, Duration)>, StoreError> {
    let known = match cluster.address(server) {
        Some(address) => vec![(server, address)],
        None => {
            cluster.read(config).await?;
            let masters = cluster.map().masters().to_vec().into_iter();
            masters
                .filter_map(|id| Some((id, cluster.address(id)?)))
                .collect()
        }
    };
    let limit = if known.len() > 1 {
        config.timeout / 4
    } else {
        config.timeout
    };
    let configured = known.into_iter().map(|(server, address)| {
        let at = config.at(address).map_err(|error| cannot_open(config, error))?;
        Ok((server, Arc::new(at), limit))
    });
    configured.collect()
}
