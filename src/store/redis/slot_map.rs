//! The map of a cluster's slots: which server serves each of them, as one node knows it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use redis::Client;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;

use crate::error::OptionsError;
use crate::store::ServerId;
use crate::store::redis::names::SLOTS;
use crate::store::redis::sentinel::Address;
use crate::store::redis::url;

/// The server that stands for a slot without a known server: any seed.
pub(super) const ANY: ServerId = ServerId(0);
/// The server of the inbox, which is at one of the servers.
pub(super) const INBOX: ServerId = ServerId(u16::MAX);

/// A cluster, as one node knows it.
pub(super) struct Cluster {
    pub(super) seeds: Vec<Client>,
    map: RwLock<SlotMap>,
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
}

/// Which server serves each slot.
#[derive(Debug)]
pub(super) struct SlotMap {
    servers: Vec<Address>,
    pub(super) slots: Box<[ServerId]>,
}

impl SlotMap {
    /// Returns the id of the server at this address. An address keeps its id.
    pub(super) fn id(&mut self, address: &Address) -> ServerId {
        let at = self.servers.iter().position(|known| known == address);
        let at = at.unwrap_or_else(|| {
            self.servers.push(address.clone());
            self.servers.len() - 1
        });
        ServerId(at as u16 + 1)
    }

    /// Returns the servers that serve slots.
    pub(super) fn masters(&self) -> Vec<ServerId> {
        let mut masters: Vec<_> = self.slots.iter().copied().filter(|id| *id != ANY).collect();
        masters.sort_unstable();
        masters.dedup();
        masters
    }
}

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

    /// Returns the map, for reading.
    pub(super) fn map(&self) -> RwLockReadGuard<'_, SlotMap> {
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
    pub(super) fn change(&self, change: impl FnOnce(&mut SlotMap) -> bool) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let has_changed = change(&mut map);
        drop(map);
        if has_changed {
            self.changes.send_modify(|changes| *changes += 1);
        }
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
