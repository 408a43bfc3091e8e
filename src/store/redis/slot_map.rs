//! A cluster: its URLs, and the map of its slots as one node knows it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr};
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;

use crate::error::OptionsError;
use crate::protocol::cluster::map::{ANY, ClusterMap};
use crate::protocol::cluster::{Address, ClusterNodeId, ServerId};
use crate::protocol::flaw::Plant;
use crate::protocol::time;
use crate::store::redis::names::SLOTS;
use crate::store::redis::url;

/// The server of the inbox, which is at one of the servers.
pub(super) const INBOX: ServerId = ServerId(u16::MAX);

/// A cluster, as one node knows it.
pub(super) struct Cluster {
    pub(super) seeds: Vec<Client>,
    map: RwLock<ClusterMap>,
    /// The zero of the times of the map.
    began: Instant,
    /// The number of changes of the map.
    pub(super) changes: watch::Sender<u64>,
    /// Wakes the task that reads the map.
    pub(super) read_wanted: Notify,
    /// When the last reading began, and whether it succeeded.
    pub(super) last_read: Mutex<Option<(Instant, bool)>>,
    /// The number of inboxes that were opened. Each leads to the next server.
    pub(super) inboxes: AtomicUsize,
    /// The connections for commands that no session sends: about slots that are on their way to a server, and presences.
    pub(super) targets: Mutex<HashMap<Address, MultiplexedConnection>>,
    /// Whether a server refused to tell its epoch, because the Redis user may not ask for it.
    pub(super) hides_epoch: AtomicBool,
}

impl Cluster {
    /// Returns a cluster with these servers among its servers.
    pub(super) fn new<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        like: &Client,
    ) -> Result<Self, OptionsError> {
        let seeds = urls.into_iter().map(|url| url::seed(url.as_ref(), like));
        let seeds: Vec<Client> = seeds.collect::<Result<_, _>>()?;
        if seeds.is_empty() {
            return Err(OptionsError(
                "the list of servers of the cluster is empty: give the URL of at least one".to_owned(),
            ));
        }
        Ok(Cluster::with_seeds(seeds))
    }

    /// Returns the cluster as a node knows it that has asked no server yet.
    pub(super) fn with_seeds(seeds: Vec<Client>) -> Self {
        Cluster {
            seeds,
            map: RwLock::new(ClusterMap::new(SLOTS)),
            began: Instant::now(),
            changes: watch::Sender::new(0),
            read_wanted: Notify::new(),
            last_read: Mutex::default(),
            inboxes: AtomicUsize::new(0),
            targets: Mutex::default(),
            hides_epoch: AtomicBool::new(false),
        }
    }

    /// Returns the map, for reading.
    pub(super) fn map(&self) -> RwLockReadGuard<'_, ClusterMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present time, as the map counts it.
    pub(super) fn now(&self) -> time::Instant {
        time::Instant::default() + self.began.elapsed()
    }

    /// Returns the addresses of the URLs.
    pub(super) fn urls(&self) -> Vec<Address> {
        let addresses = self.seeds.iter().map(|seed| seed.get_connection_info().addr());
        addresses.map(address).collect()
    }

    /// Returns the server that serves a slot, as far as the map says.
    pub(super) fn server(&self, slot: u16) -> ServerId {
        self.map().server(slot)
    }

    /// Returns the servers that serve slots.
    pub(super) fn masters(&self) -> Vec<ServerId> {
        let masters = self.map().masters();
        if masters.is_empty() { vec![ANY] } else { masters }
    }

    /// Returns the address of a server.
    pub(super) fn address(&self, id: ServerId) -> Option<Address> {
        Some(self.map().member(id)?.address.clone())
    }

    /// Returns whether the server that answers for `id` is the one of the map. If it is not, the map may be old.
    pub(super) fn confirm(&self, id: ServerId, name: &ClusterNodeId) -> bool {
        let is_confirmed = self.write(|map| map.confirm(id, name, Plant::NONE));
        if !is_confirmed {
            self.want_reading();
        }
        is_confirmed
    }

    /// Asks for a reading of the map, because it may be old.
    pub(super) fn want_reading(&self) {
        self.read_wanted.notify_one();
    }

    /// Notes that a server named the address of a slot's new server.
    pub(super) fn correct(&self, slot: u16, address: &Address) {
        self.change(|map| map.correct(self.now(), slot, address));
        self.want_reading();
    }

    /// Changes the map, and tells the node if `change` returns that something has changed.
    pub(super) fn change(&self, change: impl FnOnce(&mut ClusterMap) -> bool) {
        if self.write(change) {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Returns what `write` does with the map.
    pub(super) fn write<T>(&self, write: impl FnOnce(&mut ClusterMap) -> T) -> T {
        write(&mut self.map.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the host and the port of an address.
pub(super) fn address(addr: &ConnectionAddr) -> Address {
    match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port),
        other => (other.to_string(), 0),
    }
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
