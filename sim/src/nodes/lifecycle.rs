//! Births and deaths of processes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tenure::protocol::context::Seed;
use tenure::protocol::key::shard::Shard;
use tenure::protocol::message::NodeId;
use tenure::protocol::session::Session;
use tenure::protocol::session::step::{SessionOptions, SessionRole};

use crate::time::MS;
use crate::world::World;
use crate::world::event::Event;
use crate::world::inbox::Inbox;
use crate::world::node::{Clock, Node, NodeSession};
use crate::world::sentinels::SentinelsSeen;

impl World {
    /// Kills a process. The world is not calm until the server noticed.
    pub(crate) fn crash_process(&mut self, slot: usize) {
        let notice = self.kill(slot);
        self.extend_fault(self.now + notice);
    }

    /// Kills a process, and returns the time until the server notices. Batches in flight may still arrive.
    pub(crate) fn kill(&mut self, slot: usize) -> u64 {
        let node = &mut self.nodes[slot];
        node.alive = false;
        node.paused = None;
        node.backlog = Default::default();
        node.live.clear();
        node.requests.clear();
        node.unsent.clear();
        node.probes.clear();
        let (life, sub) = (node.life, node.inbox.sub);
        for conn in node.conns() {
            self.conns[conn].client = false;
            self.conns[conn].server &= self.rng.bool();
        }
        for session in &mut self.nodes[slot].sessions {
            session.conns.clear();
        }
        let notice = if self.rng.bool() {
            0
        } else {
            self.rng.u64(0..3_000 * MS)
        };
        if let Some(sub) = sub {
            self.after(notice, Event::Unsubscribed { slot, life, sub });
        }
        let rise = self.rng.u64(0..1_500 * MS);
        self.after(rise, Event::ProcessStart { slot });
        notice
    }

    /// Starts a new process in a slot.
    pub(crate) fn restart_process(&mut self, slot: usize) {
        if self.nodes[slot].alive || self.draining {
            return;
        }
        let life = self.nodes[slot].life + 1;
        self.note(Some(slot), None, || format!("starts, life {life}"));
        self.nodes[slot] = self.new_node(slot, life);
        self.want_inbox(slot);
        self.watch_sentinels(slot);
    }

    /// Creates the node of a new process.
    pub(crate) fn new_node(&mut self, slot: usize, life: u32) -> Node {
        let id = NodeId::numbered(((slot as u128 + 1) << 64) | (u128::from(life) + 1));
        self.slots.insert(id, (slot, life));
        let seed = self.rng.u64(..);
        let start_reading = self.rng.u64(1..1_000_000 * MS);
        let rate = self.rng.u64(990..=1010);
        let skew_ms = if self.jobs().is_empty() {
            0
        } else {
            self.rng.i64(-2000..=2000)
        };
        let plant = self.setup.plant();
        let options = SessionOptions {
            request_timeout: self.profile.request_timeout,
            server: "the server".into(),
            remote: true,
            can_fail: true,
            poll_gap: Duration::from_millis(self.profile.poll_gap),
            recovery: self.profile.recovery(),
            lag: Duration::from_millis(self.profile.failover_lag.unwrap_or_default()),
            seed,
            role: SessionRole::Only,
        };
        let member = |server: usize| SessionOptions {
            seed: seed.wrapping_add(server as u64),
            role: SessionRole::Member,
            ..options.clone()
        };
        let with = |options| NodeSession::new(Session::with_plant(options, plant));
        let sessions = match self.cluster.servers {
            0 => vec![with(options)],
            masters if self.is_quorum() => (1..=masters).map(member).map(with).collect(),
            servers => {
                let inbox = SessionOptions {
                    role: SessionRole::Inbox,
                    ..options.clone()
                };
                (1..=servers).map(member).chain([inbox]).map(with).collect()
            }
        };
        self.schedule_map(slot, life);
        Node {
            id,
            life,
            shard: Shard::with_plant(id, 0, 1, Seed::numbered(seed), self.profile.rules, plant),
            sessions,
            map: self.first_map(),
            alive: true,
            paused: None,
            paused_at: 0,
            closing: false,
            cut_until: 0,
            clock: Clock {
                started_at: self.now,
                start_reading,
                rate,
            },
            inbox: Inbox::default(),
            sentinels: SentinelsSeen::default(),
            wake_at: None,
            step_at: None,
            backlog: Default::default(),
            callers: Vec::new(),
            live: Vec::new(),
            requests: BTreeMap::new(),
            answered: HashSet::new(),
            unsent: Vec::new(),
            probes: BTreeMap::new(),
            probed: 0,
            sends: 0,
            opened: 0,
            asked: 0,
            skew_ms,
            newest: None,
            pursuits: Vec::new(),
            retired: false,
            mark_ahead: false,
            picky_looks: HashSet::new(),
            predecessors: HashMap::new(),
            over: HashMap::new(),
        }
    }
}
