//! The map of a cluster's slots.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::protocol::cluster::{Address, ClusterNodeId, ClusterServer, MapAnswer, ServerId};
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::time::Instant;

/// The server that stands for a slot without a known server: any of them.
pub const ANY: ServerId = ServerId(0);
/// How long a slot stays where `MOVED` said that it is. Other servers learn of a move a little later.
pub const CORRECTION: Duration = Duration::from_secs(2);
/// After how long without an answer that counts a map is forgotten. A cluster that was built anew has other node ids.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// Which server serves each slot, as one node knows it.
#[derive(Debug)]
pub struct ClusterMap {
    /// Every server that was ever named. Its id is its place, counted from 1.
    servers: Vec<ClusterServer>,
    slots: Box<[ServerId]>,
    /// The slots that `MOVED` corrected, and when.
    corrected: HashMap<u16, Instant>,
    /// The servers of the map that was believed last.
    members: Vec<ServerId>,
    /// When the first of the readings began that had no answer that counts; `None` after a good one.
    unanswered_since: Option<Instant>,
}

impl ClusterMap {
    /// Returns a map of so many slots, of which no server is known.
    pub fn new(slots: usize) -> Self {
        ClusterMap {
            servers: Vec::new(),
            slots: vec![ANY; slots].into(),
            corrected: HashMap::new(),
            members: Vec::new(),
            unanswered_since: None,
        }
    }

    /// Returns the server that serves a slot.
    pub fn server(&self, slot: u16) -> ServerId {
        self.slots[usize::from(slot) % self.slots.len()]
    }

    /// Returns a server by its id.
    pub fn member(&self, id: ServerId) -> Option<&ClusterServer> {
        self.servers.get(usize::from(id.0).checked_sub(1)?)
    }

    /// Returns the servers that serve slots.
    pub fn masters(&self) -> Vec<ServerId> {
        let mut masters: Vec<_> = self.slots.iter().copied().filter(|id| *id != ANY).collect();
        masters.sort_unstable();
        masters.dedup();
        masters
    }

    /// Returns the servers of the map that was believed last, replicas too.
    pub(super) fn members(&self) -> impl Iterator<Item = &ClusterServer> {
        self.members.iter().filter_map(|id| self.member(*id))
    }

    /// Returns the server at an address: if several were there, the one that belongs to the map.
    pub fn at(&self, address: &Address) -> Option<ServerId> {
        let is_there = |id: &ServerId| self.member(*id).is_some_and(|member| member.address == *address);
        let known = self.members.iter().copied().find(is_there);
        known.or_else(|| self.ids().rev().find(is_there))
    }

    fn ids(&self) -> impl DoubleEndedIterator<Item = ServerId> + use<> {
        (1..=self.servers.len() as u16).map(ServerId)
    }

    /// Notes that a server named the address of a slot's new server. Returns whether the map has changed.
    pub fn correct(&mut self, now: Instant, slot: u16, address: &Address) -> bool {
        let member = |address: &Address| ClusterServer {
            node_id: ClusterNodeId::default(),
            address: address.clone(),
        };
        let id = self.at(address).unwrap_or_else(|| self.id(&member(address)));
        self.corrected.insert(slot, now);
        let at = usize::from(slot) % self.slots.len();
        std::mem::replace(&mut self.slots[at], id) != id
    }

    /// Returns whether the server that answers at the address of `id` is the one of the map. An unknown name counts as
    /// equal, and is learned.
    pub fn confirm(&mut self, id: ServerId, name: &ClusterNodeId, plant: Plant) -> bool {
        let known = usize::from(id.0).checked_sub(1);
        let Some(known) = known.and_then(|at| self.servers.get_mut(at)) else {
            return true;
        };
        if known.node_id.is_empty() {
            known.node_id = name.clone();
        }
        name.is_empty() || known.node_id == *name || plant.is(Flaw::StrangerUsed)
    }

    /// Returns whether slots stay where `MOVED` said they are, whatever a reading says.
    pub fn is_corrected(&self, now: Instant) -> bool {
        self.corrected.values().any(|at| is_fresh(now, *at))
    }

    /// Begins a reading: forgets a map of which no server has answered for a minute.
    pub(super) fn begin_reading(&mut self, now: Instant) {
        let is_over = |since: Instant| now.since(since) >= FORGOTTEN_AFTER;
        if self.unanswered_since.is_some_and(is_over) {
            self.members.clear();
            self.unanswered_since = None;
        }
    }

    /// Notes that a reading had no answer that counts. The map stays as it is.
    pub(super) fn note_unanswered(&mut self, now: Instant) {
        self.unanswered_since.get_or_insert(now);
    }

    /// Takes over the answer of a reading that counts. Returns whether the map has changed.
    pub(super) fn take(&mut self, now: Instant, answer: &MapAnswer) -> bool {
        self.unanswered_since = None;
        let mut members: Vec<_> = answer.members().map(|member| self.id(member)).collect();
        members.sort_unstable();
        members.dedup();
        self.members = members;
        self.corrected.retain(|_, at| is_fresh(now, *at));
        let slots = self.slots_of(answer);
        std::mem::replace(&mut self.slots, slots.clone()) != slots
    }

    /// Returns the slots as an answer has them, but for those that were corrected.
    fn slots_of(&mut self, answer: &MapAnswer) -> Box<[ServerId]> {
        let mut slots: Box<[_]> = vec![ANY; self.slots.len()].into();
        for range in &answer.ranges {
            let id = self.id(&range.master);
            slots[usize::from(range.first)..=usize::from(range.last)].fill(id);
        }
        for slot in self.corrected.keys() {
            slots[usize::from(*slot)] = self.slots[usize::from(*slot)];
        }
        slots
    }

    /// Returns whether an answer has each slot where this map has it.
    pub(super) fn agrees(&self, answer: &MapAnswer) -> bool {
        let is_at = |slot: u16, member: &ClusterServer| self.member(self.server(slot)) == Some(member);
        let mut ranges = answer.ranges.iter();
        ranges.all(|range| (range.first..=range.last).all(|slot| is_at(slot, &range.master)))
    }

    /// Returns the node ids of the map that was believed last.
    pub(super) fn names(&self) -> HashSet<ClusterNodeId> {
        self.members()
            .map(|member| member.node_id.clone())
            .filter(|name| !name.is_empty())
            .collect()
    }

    /// Returns the id of a server. It keeps its id while it stays at its address. Another server there gets its own.
    fn id(&mut self, member: &ClusterServer) -> ServerId {
        let is_it = |known: &&ClusterServer| known.address == member.address;
        let named = |name: &str| {
            let found = self
                .servers
                .iter()
                .position(|known| is_it(&known) && *known.node_id == *name);
            found.map(|at| ServerId(at as u16 + 1))
        };
        if let Some(id) = named(&member.node_id) {
            return id;
        }
        if let Some(id) = named("") {
            self.servers[usize::from(id.0) - 1] = member.clone();
            return id;
        }
        self.servers.push(member.clone());
        ServerId(self.servers.len() as u16)
    }
}

fn is_fresh(now: Instant, corrected: Instant) -> bool {
    now.since(corrected) < CORRECTION
}
