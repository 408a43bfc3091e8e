//! The world: nodes, the server, the queue of events, and time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use tenure::error::StoreError;
use tenure::key::Key;
use tenure::protocol::message::{Batch, BatchReply, Failure, Name, NodeId, Push, TickTime};
use tenure::protocol::session::step::{Attempt, BatchId, SessionInput};
use tenure::protocol::step::Effect;
use tenure::protocol::write::GuardedWrite;

use crate::callers::Act;
use crate::coverage::{Coverage, Seen};
use crate::log::Log;
use crate::network::Conn;
use crate::node::Node;
use crate::planted::Planted;
use crate::profile::Profile;
use crate::server::Server;
use crate::transfers::Letter;
use crate::watch::Watch;
use crate::writes::Writer;
use crate::{Failure as WorldFailure, Run, Setup, Wrong};

/// Nanoseconds in a millisecond: true time is in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

/// After the last fault, so long until the world must be in order again.
pub(crate) const SETTLE: u64 = 8_000 * MS;

/// What can happen. Those with `life` are for one life of a slot.
#[derive(Debug)]
pub(crate) enum Event {
    Wake {
        slot: usize,
        life: u32,
    },
    Step {
        slot: usize,
        life: u32,
    },
    Handshake {
        conn: usize,
    },
    Connected {
        conn: usize,
        time: u64,
    },
    ConnectFailed {
        conn: usize,
        error: StoreError,
    },
    /// With no `id` it is a copy that nobody waits for; `reload`: the script comes with it.
    Arrive {
        conn: usize,
        id: Option<BatchId>,
        batch: Box<Batch>,
        reload: bool,
    },
    NoScript {
        conn: usize,
        id: BatchId,
        batch: Box<Batch>,
    },
    /// Something that is to be written comes to the server.
    Write {
        conn: usize,
        id: BatchId,
        write: Arc<GuardedWrite>,
    },
    Reply {
        conn: usize,
        id: BatchId,
        reply: Box<Result<BatchReply, Failure>>,
    },
    ResetSeen {
        conn: usize,
    },
    Subscribe {
        slot: usize,
        life: u32,
        sub: Attempt,
    },
    InboxOpened {
        slot: usize,
        life: u32,
        sub: Attempt,
    },
    InboxPong {
        slot: usize,
        life: u32,
        sub: Attempt,
    },
    InboxFailed {
        slot: usize,
        life: u32,
        sub: Attempt,
        error: StoreError,
    },
    Unsubscribed {
        slot: usize,
        life: u32,
        sub: Attempt,
    },
    Push {
        slot: usize,
        life: u32,
        sub: Attempt,
        push: Box<Push>,
    },
    Tick {
        slot: usize,
        key: usize,
    },
    LookOut {
        slot: usize,
        key: usize,
    },
    Chase {
        slot: usize,
        life: u32,
        key: usize,
        mark: Option<TickTime>,
        patient: bool,
    },
    Arrival {
        slot: usize,
    },
    Latch {
        slot: usize,
    },
    Stand {
        slot: usize,
        key: usize,
    },
    StandAgain {
        slot: usize,
        life: u32,
        key: usize,
    },
    Observe {
        observer: usize,
    },
    LookOn {
        slot: usize,
        life: u32,
        observer: usize,
    },
    Caller {
        slot: usize,
        life: u32,
        caller: usize,
        act: Act,
    },
    Letter {
        slot: usize,
        letter: usize,
        what: u8,
    },
    Resume {
        slot: usize,
        life: u32,
    },
    Rise {
        slot: usize,
    },
    ServerUp,
    /// A subscription falls silent while everything else works.
    FallSilent {
        slot: usize,
    },
    Fault,
    Audit,
    Drain,
}

struct Due {
    at: u64,
    seq: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) rng: fastrand::Rng,
    /// What is drawn for writes, so that nothing else depends on them.
    pub(crate) of_writes: fastrand::Rng,
    pub(crate) of_readings: fastrand::Rng,
    /// The holders of each write, by its number.
    pub(crate) written: Vec<Vec<Writer>>,
    pub(crate) now: u64,
    seq: u64,
    due: BinaryHeap<Reverse<Due>>,
    pub(crate) profile: Profile,
    pub(crate) keys: Vec<Name>,
    /// So many of them are locks; then there may be a job, a latch, and elections.
    pub(crate) locks: usize,
    pub(crate) latch: Option<usize>,
    pub(crate) elections: Range<usize>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) slots: HashMap<NodeId, (usize, u32)>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) server: Server,
    /// The leases that were given up to whoever is told of them.
    pub(crate) letters: Vec<Letter>,
    pub(crate) watch: Watch,
    pub(crate) log: Log,
    pub(crate) seen: Coverage,
    pub(crate) steps: u64,
    pub(crate) draining: bool,
    pub(crate) failure: Option<WorldFailure>,
    pub(crate) finished: bool,
    pub(crate) inputs: u64,
    pub(crate) effects: Vec<Effect>,
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
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
        let mut world = World {
            setup,
            rng,
            of_writes: fastrand::Rng::with_seed(setup.seed),
            of_readings: fastrand::Rng::with_seed(setup.seed),
            written: Vec::new(),
            now: 0,
            seq: 0,
            due: BinaryHeap::new(),
            server: Server::new(Planted(setup.flaw)),
            watch: Watch::new(keys.len()),
            profile,
            keys,
            locks,
            latch,
            elections,
            nodes: Vec::new(),
            slots: HashMap::new(),
            conns: Vec::new(),
            letters: Vec::new(),
            log: Log::new(setup.history),
            seen: Coverage::default(),
            steps: 0,
            draining: false,
            failure: None,
            finished: false,
            inputs: 0,
            effects: Vec::new(),
        };
        for slot in 0..world.profile.nodes {
            let node = world.born(slot, 0);
            world.nodes.push(node);
            world.tell_session(slot, SessionInput::InboxWanted);
            let first = world.rng.u64(0..50 * MS);
            world.at(first, Event::Arrival { slot });
            if !world.jobs().is_empty() {
                let first = world.rng.u64(0..500 * MS);
                world.at(first, Event::Tick { slot, key: locks });
                world.at(first, Event::LookOut { slot, key: locks });
            }
            if latch.is_some() {
                let first = world.rng.u64(0..100 * MS);
                world.at(first, Event::Latch { slot });
            }
        }
        world.elections_begin();
        for (rare, seen) in [
            (!world.profile.rules.queues, Seen::NoQueue),
            (!world.profile.rules.final_push, Seen::WeakPush),
            (!world.profile.probe, Seen::NoProbe),
            (world.profile.crowd, Seen::Crowd),
        ] {
            if rare {
                world.saw(seen);
            }
        }
        let (from, until) = world.profile.storm;
        if until > from {
            world.at(from, Event::Fault);
        }
        // Not drawn, and only where nothing else goes wrong.
        if until == 0 && !world.profile.crowd && setup.seed.is_multiple_of(2) {
            let slot = setup.seed as usize / 2 % world.nodes.len();
            world.at(1_500 * MS, Event::FallSilent { slot });
        }
        let drain = world.profile.drain;
        world.at(drain, Event::Drain);
        world.at(20 * MS, Event::Audit);
        world
    }

    pub(crate) fn run(mut self) -> Run {
        let text = format!("{:?}, {} keys", self.profile, self.keys.len());
        self.note(None, None, || text);
        while !self.finished && self.failure.is_none() {
            let Some(Reverse(due)) = self.due.pop() else { break };
            debug_assert!(due.at >= self.now);
            self.now = due.at;
            self.steps += 1;
            self.dispatch(due.event);
            if self.steps > 5_000_000 {
                self.wrong(Wrong::Storm, None, || "the world does not come to an end".into());
                break;
            }
        }
        self.log.mix(self.now);
        Run {
            steps: self.steps,
            inputs: self.inputs,
            virtual_ms: self.now / MS,
            hash: self.log.hash,
            coverage: self.seen,
            failure: self.failure,
            history: self.log.lines.unwrap_or_default(),
        }
    }

    fn dispatch(&mut self, event: Event) {
        let Some(event) = self.hold_back(event) else {
            return;
        };
        match event {
            Event::Wake { slot, life } if self.is(slot, life) => self.wake(slot),
            Event::Step { slot, life } if self.is(slot, life) => {
                self.nodes[slot].step_at = None;
                self.step_session(slot);
            }
            Event::Handshake { conn } => self.handshake(conn),
            Event::Connected { conn, time } => self.connected(conn, time),
            Event::ConnectFailed { conn, error } => self.connect_failed(conn, error),
            Event::Arrive {
                conn,
                id,
                batch,
                reload,
            } => self.arrive(conn, id, batch, reload),
            Event::NoScript { conn, id, batch } => self.no_script(conn, id, batch),
            Event::Write { conn, id, write } => self.write_arrives(conn, id, write),
            Event::Reply { conn, id, reply } => self.reply(conn, id, reply),
            Event::ResetSeen { conn } => self.reset_seen(conn),
            Event::Subscribe { slot, life, sub } => self.subscribe_arrives(slot, life, sub),
            Event::InboxOpened { slot, life, sub } if self.is(slot, life) => self.inbox_opened(slot, sub),
            Event::InboxPong { slot, life, sub } if self.is(slot, life) => self.inbox_pong(slot, sub),
            Event::InboxFailed {
                slot,
                life,
                sub,
                error,
            } if self.is(slot, life) => self.inbox_failed(slot, sub, error),
            Event::Unsubscribed { slot, life, sub } => self.unsubscribed(slot, life, sub),
            Event::Push {
                slot,
                life,
                sub,
                push,
            } if self.is(slot, life) => self.push_arrives(slot, sub, *push),
            Event::Tick { slot, key } => self.tick(slot, key),
            Event::LookOut { slot, key } => self.look_out(slot, key),
            Event::Chase {
                slot,
                life,
                key,
                mark,
                patient,
            } if self.is(slot, life) => self.chase(slot, key, mark, patient),
            Event::Arrival { slot } => self.arrival(slot),
            Event::Letter { slot, letter, what } => self.deliver(slot, letter, what),
            Event::Latch { slot } => self.use_latch(slot),
            Event::Stand { slot, key } => self.stand(slot, key),
            Event::StandAgain { slot, life, key } if self.is(slot, life) => self.campaign(slot, key, true),
            Event::Observe { observer } => self.observe(observer),
            Event::LookOn { slot, life, observer } if self.is(slot, life) => self.look_on(observer),
            Event::Caller {
                slot,
                life,
                caller,
                act,
            } if self.is(slot, life) => self.act(slot, caller, act),
            Event::Resume { slot, life } if self.is(slot, life) => self.resume(slot),
            Event::Rise { slot } => self.rise(slot),
            Event::ServerUp => self.server.down = false,
            Event::FallSilent { slot } => self.silence_inbox(slot),
            Event::Fault => self.fault(),
            Event::Audit => self.audit(),
            Event::Drain => self.drain(),
            // For an earlier life.
            _ => {}
        }
    }

    /// What is for a stopped process waits in front of it, in order of where it comes from.
    fn hold_back(&mut self, event: Event) -> Option<Event> {
        let (slot, source) = match &event {
            Event::Wake { slot, .. }
            | Event::Step { slot, .. }
            | Event::Caller { slot, .. }
            | Event::StandAgain { slot, .. }
            | Event::LookOn { slot, .. }
            | Event::Chase { slot, .. } => (*slot, 2),
            Event::InboxOpened { slot, .. }
            | Event::InboxPong { slot, .. }
            | Event::InboxFailed { slot, .. }
            | Event::Push { slot, .. } => (*slot, 1),
            Event::Connected { conn, .. }
            | Event::ConnectFailed { conn, .. }
            | Event::NoScript { conn, .. }
            | Event::Reply { conn, .. }
            | Event::ResetSeen { conn } => {
                let conn = &self.conns[*conn];
                (self.is(conn.slot, conn.life).then_some(conn.slot)?, 0)
            }
            _ => return Some(event),
        };
        let node = &mut self.nodes[slot];
        if node.alive && node.paused.is_some() {
            node.backlog[source].push(event);
            return None;
        }
        Some(event)
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        self.due.push(Reverse(Due {
            at: at.max(self.now),
            seq: self.seq,
            event,
        }));
    }

    pub(crate) fn after(&mut self, span: u64, event: Event) {
        self.at(self.now + span, event);
    }

    /// Those of the keys that are jobs.
    pub(crate) fn jobs(&self) -> Range<usize> {
        self.locks..self.latch.unwrap_or(self.elections.start)
    }

    // Bookkeeping.

    pub(crate) fn saw(&mut self, seen: Seen) {
        self.log.mix(seen as u64);
        self.seen.saw(seen);
    }

    pub(crate) fn note(&mut self, who: Option<usize>, key: Option<usize>, text: impl FnOnce() -> String) {
        self.log.line(self.now, who, key, text);
    }

    pub(crate) fn wrong(&mut self, wrong: Wrong, key: Option<usize>, text: impl FnOnce() -> String) {
        if self.failure.is_none() && self.setup.only.is_none_or(|only| only == wrong) {
            self.failure = Some(WorldFailure {
                wrong,
                key,
                text: text(),
            });
        }
    }

    /// One message's way.
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

    /// A fault lasts until `until`.
    pub(crate) fn unrest(&mut self, until: u64) {
        self.watch.unrest = self.watch.unrest.max(until);
    }

    pub(crate) fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }
}
