//! The state of a world: nodes, server, connections, and the queue of events. The layers above add its
//! behaviour.

pub(crate) mod caller;
pub(crate) mod connection;
pub(crate) mod election_memory;
pub(crate) mod event;
pub(crate) mod exemptions;
pub(crate) mod inbox;
pub(crate) mod latch_memory;
pub(crate) mod memory;
pub(crate) mod node;
pub(crate) mod queries;
pub(crate) mod records;
pub(crate) mod server;
pub(crate) mod signal;
pub(crate) mod tick_memory;
pub(crate) mod transfer;
pub(crate) mod write;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use tenure::key::Key;
use tenure::protocol::message::{Name, NodeId};
use tenure::protocol::step::Effect;

use crate::coverage::{Case, Coverage};
use crate::log::Log;
use crate::planted::Planted;
use crate::profile::Profile;
use crate::setup::{Failure, Setup};
use crate::time::MS;
use crate::violation::Violation;
use crate::world::connection::Connection;
use crate::world::event::Event;
use crate::world::memory::Memory;
use crate::world::node::Node;
use crate::world::server::Server;
use crate::world::signal::Signal;
use crate::world::transfer::TransferMessage;
use crate::world::write::WriteLease;

pub(crate) struct QueuedEvent {
    pub(crate) at: u64,
    pub(crate) seq: u64,
    pub(crate) event: Event,
}

impl PartialEq for QueuedEvent {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}

impl Eq for QueuedEvent {}

impl PartialOrd for QueuedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueuedEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

pub(crate) struct World {
    /// Handles the signals of the layers. Set by the run.
    handler: fn(&mut World, Signal<'_>),
    pub(crate) setup: Setup,
    pub(crate) rng: fastrand::Rng,
    /// The generator for writes, so that nothing else depends on them.
    pub(crate) write_rng: fastrand::Rng,
    pub(crate) reading_rng: fastrand::Rng,
    /// The leases of each write, by its number.
    pub(crate) written: Vec<Vec<WriteLease>>,
    pub(crate) now: u64,
    pub(crate) seq: u64,
    pub(crate) due: BinaryHeap<Reverse<QueuedEvent>>,
    pub(crate) profile: Profile,
    pub(crate) keys: Vec<Name>,
    /// The number of locks among the keys. A job, a latch and elections may follow.
    pub(crate) locks: usize,
    pub(crate) latch: Option<usize>,
    pub(crate) elections: Range<usize>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) slots: HashMap<NodeId, (usize, u32)>,
    pub(crate) conns: Vec<Connection>,
    pub(crate) server: Server,
    /// The messages of transferred leases.
    pub(crate) transfer_messages: Vec<TransferMessage>,
    pub(crate) memory: Memory,
    pub(crate) log: Log,
    pub(crate) coverage: Coverage,
    pub(crate) steps: u64,
    pub(crate) draining: bool,
    pub(crate) failure: Option<Failure>,
    pub(crate) finished: bool,
    pub(crate) inputs: u64,
    pub(crate) effects: Vec<Effect>,
}

impl World {
    pub(crate) fn new(setup: Setup, handler: fn(&mut World, Signal<'_>)) -> Self {
        let mut rng = fastrand::Rng::with_seed(setup.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let profile = Profile::draw(&mut rng, &setup);
        let most = if profile.sleepy || profile.crowd { 1 } else { 3 };
        let keys = (0..rng.usize(1..=most))
            .map(|k| Name::lock(Key::from(format!("k{k}"))))
            .collect::<Vec<_>>();
        let locks = keys.len();
        let mut keys = keys;
        if setup.seed.is_multiple_of(3) && !profile.crowd {
            keys.push(Name::job(Key::from("job")));
        }
        let latch = (setup.seed % 7 == 5 && !profile.crowd).then_some(keys.len());
        if latch.is_some() {
            keys.push(Name::latch(Key::from("latch")));
        }
        let first = keys.len();
        if setup.seed % 9 == 7 && !profile.crowd {
            let elections = 0..1 + setup.seed / 9 % 2;
            keys.extend(elections.map(|e| Name::election(Key::from(format!("e{e}")))));
        }
        let elections = first..keys.len();
        World {
            handler,
            setup,
            rng,
            write_rng: fastrand::Rng::with_seed(setup.seed),
            reading_rng: fastrand::Rng::with_seed(setup.seed),
            written: Vec::new(),
            now: 0,
            seq: 0,
            due: BinaryHeap::new(),
            server: Server::new(Planted(setup.flaw)),
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

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        self.due.push(Reverse(QueuedEvent {
            at: at.max(self.now),
            seq: self.seq,
            event,
        }));
    }

    pub(crate) fn after(&mut self, span: u64, event: Event) {
        self.at(self.now + span, event);
    }

    /// Returns the range of the keys that are jobs.
    pub(crate) fn jobs(&self) -> Range<usize> {
        self.locks..self.latch.unwrap_or(self.elections.start)
    }

    pub(crate) fn cover(&mut self, case: Case) {
        self.log.mix(case as u64);
        self.coverage.add_one(case);
    }

    pub(crate) fn note(&mut self, node: Option<usize>, key: Option<usize>, text: impl FnOnce() -> String) {
        self.log.line(self.now, node, key, text);
    }

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
        if self.in_storm() && self.rng.u8(..) < 3 {
            delay + self.rng.u64(0..400 * MS)
        } else {
            delay
        }
    }

    pub(crate) fn in_storm(&self) -> bool {
        (self.profile.storm.0..self.profile.storm.1).contains(&self.now)
    }

    /// Records that a fault lasts until `until`.
    pub(crate) fn extend_fault(&mut self, until: u64) {
        self.memory.fault_until = self.memory.fault_until.max(until);
    }

    pub(crate) fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }

    /// Takes the next event from the queue, and moves the clock to its time.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        let Reverse(due) = self.due.pop()?;
        debug_assert!(due.at >= self.now);
        self.now = due.at;
        Some(due.event)
    }

    /// Passes a signal to the layers above, which act at once.
    pub(crate) fn raise(&mut self, signal: Signal<'_>) {
        (self.handler)(self, signal);
    }
}
