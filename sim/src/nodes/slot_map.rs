//! The map of hash slots that a node has, which may be old.

use tenure::protocol::message::Name;

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::event::Event;

impl World {
    /// Schedules when a node next reads the map.
    pub(crate) fn schedule_map(&mut self, slot: usize, life: u32) {
        if self.is_cluster() {
            let pause = self.cluster.rng.u64(200 * MS..3_000 * MS);
            self.after(pause, Event::MapRefresh { slot, life });
        }
    }

    /// A node reads the map from a server that answers. The server may have old news of the others.
    pub(crate) fn refresh_map(&mut self, slot: usize) {
        let life = self.nodes[slot].life;
        self.schedule_map(slot, life);
        let servers = self.cluster.servers;
        let from = self.cluster.rng.usize(0..servers);
        if self.nodes[slot].cut_until > self.now || self.server_at(from).down {
            return;
        }
        let is_old = self.in_fault_period() && self.cluster.rng.u8(0..20) == 0;
        let read: Vec<_> = self.cluster.slots.iter().map(|slot| slot.server).collect();
        let mut read: Vec<_> = read.into_iter().enumerate().collect();
        if is_old {
            let at = self.cluster.rng.usize(0..read.len());
            read[at].1 = self.cluster.rng.usize(0..servers);
        }
        if read.iter().any(|(hash, to)| self.nodes[slot].map[*hash] != *to) {
            self.cover(Case::MapRefreshed);
            self.map_changed(slot, &read);
        }
    }

    /// Corrects the map of a node. Requests that its sessions have not sent are asked for again.
    pub(crate) fn map_changed(&mut self, slot: usize, read: &[(usize, usize)]) {
        let map = &mut self.nodes[slot].map;
        let is_new = read.iter().any(|(hash, server)| map[*hash] != *server);
        for (hash, server) in read {
            map[*hash] = *server;
        }
        if !is_new {
            return;
        }
        let map = map.clone();
        self.note(Some(slot), None, || format!("<= map {map:?}"));
        let local = self.local(slot);
        for session in 0..self.cluster.servers {
            let (keys, map) = (&self.keys, &self.nodes[slot].map.clone());
            let is_moved = |name: &Name| {
                let key = keys.iter().position(|key| key == name);
                key.is_some_and(|key| map[key % map.len()] != session)
            };
            let mut effects = Vec::new();
            let of = &mut self.nodes[slot].sessions[session];
            of.at = local;
            of.session.release_moved(local, is_moved, &mut effects);
            if !effects.is_empty() {
                self.cover(Case::UnsentReleased);
            }
            self.perform_all(slot, session, effects);
        }
        self.schedule_step(slot);
    }
}
