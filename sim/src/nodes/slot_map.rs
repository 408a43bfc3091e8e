//! The map of hash slots that a node has, which may be old. Servers of other clusters and old news are among the answers.

use tenure::protocol::cluster::map::ClusterMap;
use tenure::protocol::cluster::reading::{Doubt, MapReading};
use tenure::protocol::cluster::{Address, MapAnswer, SlotRange};
use tenure::protocol::message::Name;
use tenure::protocol::time::Instant;

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::cluster::Cluster;
use crate::world::event::Event;

impl World {
    /// Schedules when a node next reads the map.
    pub(crate) fn schedule_map(&mut self, slot: usize, life: u32) {
        if self.is_cluster() {
            let pause = self.cluster.rng.u64(200 * MS..3_000 * MS);
            self.after(pause, Event::MapRefresh { slot, life });
        }
    }

    /// A node reads the map, and plans the next reading.
    pub(crate) fn refresh_map(&mut self, slot: usize) {
        let life = self.nodes[slot].life;
        self.schedule_map(slot, life);
        self.read_map(slot);
    }

    /// A node reads the map from servers that answer.
    pub(crate) fn read_map(&mut self, slot: usize) {
        let (now, urls) = (self.local(slot), self.server_addresses());
        let (mut rng, plant) = (self.cluster.rng.fork(), self.setup.plant());
        let map = &mut self.nodes[slot].map;
        let mut reading = MapReading::begin(map, now, &urls, &mut rng, plant);
        while let Some(address) = reading.next_server() {
            let answer = self.told_by(slot, address.1.into());
            match reading.answered(address, answer) {
                Some(Doubt::Stranger) => self.cover(Case::StrangerDoubted),
                Some(Doubt::Failed) => self.cover(Case::FailedDoubted),
                Some(Doubt::NoSlots) | None => {}
            }
        }
        if reading.decide(now, &mut self.nodes[slot].map) == Ok(true) {
            self.cover(Case::MapRefreshed);
            self.map_changed(slot);
        }
    }

    fn server_addresses(&self) -> Vec<Address> {
        let servers = 0..self.cluster.servers;
        servers.map(|server| Cluster::member(server).address).collect()
    }

    /// Returns what a server tells a node of the map. The server may have old news of the others.
    fn told_by(&mut self, slot: usize, server: usize) -> Option<MapAnswer> {
        let of = self.server_at(server);
        if self.nodes[slot].cut_until > self.now || of.down && !of.stranger {
            return None;
        }
        let is_cut_off = of.bus_cut > self.now;
        let last = self.cluster.slots.len() as u16 - 1;
        if of.stranger {
            let epoch = self.cluster.rng.u64(0..1_000);
            let master = Cluster::stranger(server);
            let all = SlotRange {
                first: 0,
                last,
                master,
            };
            return Some(told(vec![all], (Some(epoch), false)));
        }
        let is_old = self.in_fault_period() && self.cluster.rng.u8(0..20) == 0;
        let mut owners = self.slot_owners();
        if is_old || is_cut_off {
            let at = self.cluster.rng.usize(0..owners.len());
            owners[at] = self.cluster.rng.usize(0..self.cluster.servers);
        }
        let has_failed = is_cut_off && self.cluster.rng.bool();
        // A server that believes in an old map may know of elections that failed.
        let epoch = self.cluster.epoch - u64::from(is_old) + u64::from(has_failed);
        let epoch = (self.cluster.rng.u8(0..8) > 0).then_some(epoch);
        Some(told(ranges(&owners), (epoch, has_failed)))
    }

    /// Returns the server of each hash slot.
    fn slot_owners(&self) -> Vec<usize> {
        self.cluster.slots.iter().map(|slot| slot.server).collect()
    }

    /// Returns the map that a new process reads. It may be old.
    pub(crate) fn first_map(&mut self) -> ClusterMap {
        let mut map = ClusterMap::new(self.cluster.slots.len().max(1));
        if !self.is_cluster() {
            return map;
        }
        let (mut owners, servers) = (self.slot_owners(), self.cluster.servers);
        for owner in &mut owners {
            if self.cluster.rng.u8(0..5) == 0 {
                *owner = self.cluster.rng.usize(0..servers);
            }
        }
        let now = Instant::default();
        let url = [Cluster::member(0).address];
        let (mut rng, plant) = (self.cluster.rng.fork(), self.setup.plant());
        let mut reading = MapReading::begin(&mut map, now, &url, &mut rng, plant);
        let asked = reading.next_server().expect("a URL");
        // The others are known as replicas are.
        let mut answer = told(ranges(&owners), (None, false));
        answer.replicas = (0..servers).map(Cluster::member).collect();
        reading.answered(asked, Some(answer));
        reading.decide(now, &mut map).expect("a map");
        map
    }

    /// A node learns that another server serves a hash slot.
    pub(crate) fn slot_moved(&mut self, slot: usize, hash: usize, server: usize) {
        let (now, address) = (self.local(slot), Cluster::member(server).address);
        if self.nodes[slot].map.correct(now, hash as u16, &address) {
            self.map_changed(slot);
        }
    }

    /// The map of a node has changed. Requests that its sessions have not sent are asked for again.
    fn map_changed(&mut self, slot: usize) {
        let map = self.sessions_of_slots(slot);
        self.note(Some(slot), None, || format!("<= map {map:?}"));
        let local = self.local(slot);
        for session in 0..self.cluster.servers {
            let keys = &self.keys;
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

fn told(ranges: Vec<SlotRange>, (epoch, has_failed): (Option<u64>, bool)) -> MapAnswer {
    MapAnswer {
        ranges,
        replicas: Vec::new(),
        has_failed,
        epoch,
    }
}

/// Returns a range of one hash slot for each.
fn ranges(owners: &[usize]) -> Vec<SlotRange> {
    let ranges = owners.iter().zip(0..).map(|(owner, slot)| SlotRange {
        first: slot,
        last: slot,
        master: Cluster::member(*owner),
    });
    ranges.collect()
}
