//! Lookups of the hash slots of a cluster, and what is done with the ledger of one.

use tenure::protocol::ledger::Ledger;
use tenure::protocol::message::Name;

use crate::world::World;

impl World {
    /// Returns whether this world has a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.profile.cluster
    }

    /// Returns whether this world has a quorum of independent masters.
    pub(crate) fn is_quorum(&self) -> bool {
        self.profile.quorum > 0
    }

    /// Returns whether a node has a session for each of several servers.
    pub(crate) fn has_several(&self) -> bool {
        self.cluster.servers > 0
    }

    /// Returns the hash slot of a key; `None` with one server.
    pub(crate) fn hash_slot(&self, key: usize) -> Option<usize> {
        self.is_cluster().then(|| key % self.cluster.slots.len())
    }

    /// Returns the session of a node that sends the requests about a name, by the node's own map.
    pub(crate) fn session_of(&self, slot: usize, name: &Name) -> usize {
        let hash = self.hash_slot(self.key_index(name));
        hash.map_or(0, |hash| self.session_of_slot(slot, hash))
    }

    /// Returns the session of a node for each hash slot.
    pub(crate) fn sessions_of_slots(&self, slot: usize) -> Vec<usize> {
        let hashes = 0..self.cluster.slots.len();
        hashes.map(|hash| self.session_of_slot(slot, hash)).collect()
    }

    /// Returns the session of a node for a hash slot.
    fn session_of_slot(&self, slot: usize, hash: usize) -> usize {
        let map = &self.nodes[slot].map;
        let member = map.member(map.server(hash as u16));
        member.map_or(0, |member| member.address.1.into())
    }

    /// Returns the session for the next probe.
    pub(crate) fn session_of_probe(&mut self, slot: usize) -> usize {
        match self.cluster.servers {
            0 => self.nodes[slot].inbox_session(),
            servers => self.cluster.rng.usize(0..servers),
        }
    }

    /// Returns the ledger of a key, and what the wall clock of its server shows, in µs.
    pub(crate) fn ledger_of(&self, key: usize) -> (&Ledger, u64) {
        match self.hash_slot(key) {
            None => (&self.server.ledger, self.server_us()),
            Some(hash) if self.cluster.in_hand == Some(hash) => (&self.server.ledger, self.server_us()),
            Some(hash) => {
                let slot = &self.cluster.slots[hash];
                let us = self.server_at(slot.server).clock_us(self.now);
                (&slot.ledger, us)
            }
        }
    }

    /// Returns all ledgers, each with what the wall clock of its server shows, in µs.
    pub(crate) fn ledgers(&self) -> impl Iterator<Item = (&Ledger, u64)> {
        // The first keys have the first hash slots, one each.
        let slots = match self.is_quorum() {
            true => 0,
            false => self.cluster.slots.len().max(1),
        };
        let masters = (0..self.profile.quorum).map(|master| {
            let master = self.server_at(master);
            (&master.ledger, master.clock_us(self.now))
        });
        (0..slots).map(|key| self.ledger_of(key)).chain(masters)
    }

    /// Acts with the server and the ledger of a key at hand.
    pub(crate) fn with_key<T>(&mut self, key: usize, act: impl FnOnce(&mut World) -> T) -> T {
        match self.hash_slot(key) {
            Some(hash) if self.cluster.in_hand != Some(hash) => {
                let server = self.cluster.slots[hash].server;
                self.with_slot(server, Some(hash), act)
            }
            _ => act(self),
        }
    }

    /// Acts with a server at hand, and with the ledger of a hash slot.
    pub(crate) fn with_slot<T>(
        &mut self,
        server: usize,
        hash: Option<usize>,
        act: impl FnOnce(&mut World) -> T,
    ) -> T {
        let from = (self.at, self.cluster.in_hand);
        self.take_slot_in_hand(server, hash);
        let done = act(self);
        self.take_slot_in_hand(from.0, from.1);
        done
    }

    fn take_slot_in_hand(&mut self, server: usize, hash: Option<usize>) {
        if let Some(old) = self.cluster.in_hand.take() {
            std::mem::swap(&mut self.server.ledger, &mut self.cluster.slots[old].ledger);
        }
        self.take_in_hand(server);
        if let Some(new) = hash {
            std::mem::swap(&mut self.server.ledger, &mut self.cluster.slots[new].ledger);
        }
        self.cluster.in_hand = hash;
    }
}
