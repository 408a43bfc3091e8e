//! The state of a world: nodes, server, connections, and the queue of events. The layers above add its
//! behaviour.

pub(crate) mod caller;
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod election_memory;
pub(crate) mod event;
pub(crate) mod exemptions;
pub(crate) mod hash_slots;
pub(crate) mod inbox;
pub(crate) mod latch_memory;
pub(crate) mod memory;
pub(crate) mod node;
pub(crate) mod queries;
pub(crate) mod records;
pub(crate) mod sentinels;
pub(crate) mod server;
pub(crate) mod signal;
pub(crate) mod tick_memory;
pub(crate) mod transfer;
pub(crate) mod write;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use tenure::Key;
use tenure::protocol::message::{Name, NodeId};
use tenure::protocol::step::Effect;

use crate::coverage::{Case, Coverage};
use crate::log::Log;
use crate::profile::Profile;
use crate::setup::{Failure, Setup};
use crate::time::MS;
use crate::violation::Violation;
use crate::world::cluster::Cluster;
use crate::world::connection::Connection;
use crate::world::event::Event;
use crate::world::memory::Memory;
use crate::world::node::Node;
use crate::world::sentinels::Sentinels;
use crate::world::server::{Replica, Server};
use crate::world::signal::Signal;
use crate::world::transfer::TransferMessage;
use crate::world::write::WriteLease;

/// One world.
pub(crate) struct World {
    /// Handles the signals of the layers. Set by the run.
    handler: fn(&mut World, Signal<'_>),
    pub(crate) setup: Setup,
    /// The generator for all other choices.
    pub(crate) rng: fastrand::Rng,
    /// The generator for writes, so that nothing else depends on them.
    pub(crate) write_rng: fastrand::Rng,
    /// The generator for the choices of the operator.
    pub(crate) operator_rng: fastrand::Rng,
    /// The generator for the age of clock readings.
    pub(crate) reading_rng: fastrand::Rng,
    /// The leases of each write, by its number.
    pub(crate) written: Vec<Vec<WriteLease>>,
    /// The virtual time, in ns.
    pub(crate) now: u64,
    pub(crate) seq: u64,
    /// The scheduled events, by their time and number. Events of one time keep their order.
    pub(crate) due: BTreeMap<(u64, u64), Event>,
    pub(crate) profile: Profile,
    /// The names of all keys.
    pub(crate) keys: Vec<Name>,
    /// The number of locks among the keys. A job, a latch and elections may follow.
    pub(crate) locks: usize,
    /// The index of the latch, if there is one.
    pub(crate) latch: Option<usize>,
    /// The indices of the elections.
    pub(crate) elections: Range<usize>,
    pub(crate) nodes: Vec<Node>,
    /// The slot and the life of each node.
    pub(crate) slots: HashMap<NodeId, (usize, u32)>,
    /// All connections ever opened.
    pub(crate) conns: Vec<Connection>,
    /// The server at hand: the master, or the server that an event is about. See [`visit`](World::visit).
    pub(crate) server: Server,
    /// The index of the server at hand.
    pub(crate) at: usize,
    /// The index of the master.
    pub(crate) master: usize,
    /// All servers. The place of the one at hand has no meaning.
    pub(crate) servers: Vec<Server>,
    pub(crate) cluster: Cluster,
    /// The master before this one, and until when some nodes still use it.
    pub(crate) old_master: Option<(usize, u64)>,
    /// The Sentinels of the servers. `None` if there are none, or if the master keeps its address.
    pub(crate) sentinels: Option<Box<Sentinels>>,
    /// The lagging copy that is about to become the master.
    pub(crate) replica: Option<Replica>,
    /// The number of promotions so far.
    pub(crate) promotions: u64,
    /// The number of the latest run of a server.
    pub(crate) runs: u64,
    /// The messages of transferred leases.
    pub(crate) transfer_messages: Vec<TransferMessage>,
    pub(crate) memory: Memory,
    pub(crate) log: Log,
    pub(crate) coverage: Coverage,
    /// The number of events handled.
    pub(crate) steps: u64,
    /// Whether no new callers come.
    pub(crate) draining: bool,
    /// The first violation.
    pub(crate) failure: Option<Failure>,
    /// Whether the world came to its end.
    pub(crate) finished: bool,
    /// The number of inputs to key machines.
    pub(crate) inputs: u64,
    /// A buffer for effects, kept for its memory.
    pub(crate) effects: Vec<Effect>,
}

impl World {
    /// Creates a world without nodes and events.
    pub(crate) fn new(setup: Setup, handler: fn(&mut World, Signal<'_>)) -> Self {
        let mut rng = fastrand::Rng::with_seed(setup.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let profile = Profile::draw(&mut rng, &setup);
        let most = if profile.pauses_often || profile.crowd {
            1
        } else {
            3
        };
        let keys = (0..rng.usize(1..=most))
            .map(|k| Name::lock(Key::from(format!("k{k}"))))
            .collect::<Vec<_>>();
        let locks = keys.len();
        let mut keys = keys;
        // A quorum serves locks alone.
        let has_others = !profile.crowd && profile.quorum == 0;
        if setup.seed.is_multiple_of(3) && has_others {
            keys.push(Name::job(Key::from("job")));
        }
        let latch = (setup.seed % 7 == 5 && has_others).then_some(keys.len());
        if latch.is_some() {
            keys.push(Name::latch(Key::from("latch")));
        }
        let first = keys.len();
        if setup.seed % 9 == 7 && has_others {
            let elections = 0..1 + setup.seed / 9 % 2;
            keys.extend(elections.map(|e| Name::election(Key::from(format!("e{e}")))));
        }
        let elections = first..keys.len();
        let plant = setup.plant();
        let mut cluster = Cluster::new(setup.seed, profile.cluster.then_some(keys.len()), plant);
        if profile.quorum > 0 {
            cluster.servers = profile.quorum;
        }
        let mut servers: Vec<_> = (0..cluster.servers.max(1)).map(|_| Server::new(plant)).collect();
        let mut server = Server::new(plant);
        // The clocks of the servers are apart by less than the margin.
        for (at, offset) in cluster.offsets().into_iter().enumerate() {
            let of = if at == 0 { &mut server } else { &mut servers[at] };
            of.offset = offset;
            // The masters of a quorum were used before.
            if profile.quorum > 0 {
                of.note_run();
            }
        }
        World {
            cluster,
            handler,
            setup,
            rng,
            write_rng: fastrand::Rng::with_seed(setup.seed),
            operator_rng: fastrand::Rng::with_seed(setup.seed),
            reading_rng: fastrand::Rng::with_seed(setup.seed),
            written: Vec::new(),
            now: 0,
            seq: 0,
            due: BTreeMap::new(),
            server,
            at: 0,
            master: 0,
            servers,
            old_master: None,
            sentinels: profile
                .has_sentinels
                .then(|| Box::new(Sentinels::new(setup.seed))),
            replica: None,
            promotions: 0,
            runs: 0,
            memory: Memory::new(keys.len()),
            profile,
            keys,
            locks,
            latch,
            elections,
            nodes: Vec::new(),
            slots: HashMap::new(),
            conns: Vec::new(),
            transfer_messages: Vec::new(),
            log: Log::new(setup.history),
            coverage: Coverage::default(),
            steps: 0,
            draining: false,
            failure: None,
            finished: false,
            inputs: 0,
            effects: Vec::new(),
        }
    }

    /// Acts with another server at hand.
    pub(crate) fn visit(&mut self, to: usize, act: impl FnOnce(&mut World)) {
        self.with_slot(to, None, act);
    }

    /// Changes the server at hand.
    pub(crate) fn take_in_hand(&mut self, to: usize) {
        if to != self.at {
            std::mem::swap(&mut self.server, &mut self.servers[self.at]);
            std::mem::swap(&mut self.server, &mut self.servers[to]);
            self.at = to;
        }
    }

    /// Returns a server.
    pub(crate) fn server_at(&self, server: usize) -> &Server {
        if server == self.at {
            &self.server
        } else {
            &self.servers[server]
        }
    }

    /// Returns a server, to change it.
    pub(crate) fn server_at_mut(&mut self, server: usize) -> &mut Server {
        if server == self.at {
            &mut self.server
        } else {
            &mut self.servers[server]
        }
    }

    /// Schedules an event at a time.
    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        self.due.insert((at.max(self.now), self.seq), event);
    }

    /// Schedules an event after a span.
    pub(crate) fn after(&mut self, span: u64, event: Event) {
        self.at(self.now + span, event);
    }

    /// Returns the range of the keys that are jobs.
    pub(crate) fn jobs(&self) -> Range<usize> {
        self.locks..self.latch.unwrap_or(self.elections.start)
    }

    /// Counts a case.
    pub(crate) fn cover(&mut self, case: Case) {
        self.log.mix(case as u64);
        self.coverage.add_one(case);
    }

    /// Counts the branches that the server's ledger took in its latest step.
    pub(crate) fn cover_branches(&mut self) {
        for at in 0..self.server.ledger.branches().len() {
            self.cover(Case::branch(self.server.ledger.branches()[at]));
        }
    }

    /// Adds a line to the history.
    pub(crate) fn note(&mut self, node: Option<usize>, key: Option<usize>, text: impl FnOnce() -> String) {
        self.log.line(self.now, node, key, text);
    }

    /// Reports a violation. The first one ends the world.
    pub(crate) fn report(&mut self, violation: Violation, key: Option<usize>, text: impl FnOnce() -> String) {
        if self.failure.is_none() && self.setup.only.is_none_or(|only| only == violation) {
            self.failure = Some(Failure {
                violation,
                key,
                text: text(),
            });
        }
    }

    /// Draws the delay of one message.
    pub(crate) fn delay(&mut self) -> u64 {
        let (low, high) = self.profile.delay;
        let delay = self.rng.u64(low..=high);
        if self.in_fault_period() && self.rng.u8(..) < 3 {
            delay + self.rng.u64(0..400 * MS)
        } else {
            delay
        }
    }

    /// Returns whether faults happen now.
    pub(crate) fn in_fault_period(&self) -> bool {
        (self.profile.fault_period.0..self.profile.fault_period.1).contains(&self.now)
    }

    /// Records that a fault lasts until `until`.
    pub(crate) fn extend_fault(&mut self, until: u64) {
        self.memory.fault_until = self.memory.fault_until.max(until);
    }

    /// Returns true in `percent` of the calls.
    pub(crate) fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }

    /// Takes the next event from the queue, and moves the clock to its time.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        let ((at, _), event) = self.due.pop_first()?;
        debug_assert!(at >= self.now);
        self.now = at;
        Some(event)
    }

    /// Passes a signal to the layers above, which act at once.
    pub(crate) fn raise(&mut self, signal: Signal<'_>) {
        (self.handler)(self, signal);
    }
}
