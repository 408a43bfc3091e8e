//! The world: nodes, the server, the queue of events, and time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::key::Key;
use crate::protocol::context::Seed;
use crate::protocol::message::{Batch, BatchReply, Grant, GrantNumber, Name, NodeId, TickTime};
use crate::protocol::shard::Shard;
use crate::protocol::step::{Effect, InboxState, Input, Outgoing};
use crate::protocol::time::Instant;
use crate::testing::sim::callers::{Act, Caller};
use crate::testing::sim::coverage::{Coverage, Seen};
use crate::testing::sim::log::Log;
use crate::testing::sim::network::{Conn, Inbox, Server, Side};
use crate::testing::sim::planted::Planted;
use crate::testing::sim::profile::Profile;
use crate::testing::sim::watch::Watch;
use crate::testing::sim::{Failure, Run, Setup, Wrong};

/// Nanoseconds in a millisecond: true time is in nanoseconds.
pub(super) const MS: u64 = 1_000_000;

/// After the last fault, so long until the world must be in order again.
pub(super) const SETTLE: u64 = 8_000 * MS;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: NodeId,
    /// Which life of this slot it is: events for an earlier one are void.
    pub(super) life: u32,
    pub(super) shard: Shard<Planted>,
    pub(super) alive: bool,
    pub(super) paused: Option<u64>,
    pub(super) closing: bool,
    pub(super) cut_until: u64,
    pub(super) clock: Clock,
    pub(super) side: Side,
    pub(super) inbox: Inbox,
    pub(super) highest: GrantNumber,
    pub(super) sample: Option<Sample>,
    /// When it last heard the server, by its own clock.
    pub(super) heard: Option<Instant>,
    pub(super) wake_at: Option<u64>,
    pub(super) backlog: [Vec<Event>; 3],
    pub(super) callers: Vec<Caller>,
    /// The callers that are not over.
    pub(super) live: Vec<usize>,
    pub(super) sends: u32,
    pub(super) asked: u32,
    /// Its wall clock beyond the truth.
    pub(super) skew_ms: i64,
    pub(super) newest: u64,
    /// The ticks that its scheduler saw and is not through with: which job's, and which.
    pub(super) pursuits: Vec<(usize, TickTime)>,
    pub(super) retired: bool,
}

/// A node's own clock: started anywhere, at a rate of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub(super) born: u64,
    pub(super) base: u64,
    /// Parts in a thousand.
    pub(super) rate: u64,
}

/// A reading of the server's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) server_us: u64,
    pub(super) sent: Instant,
    pub(super) received: Instant,
}

impl Clock {
    pub(super) fn local(&self, now: u64) -> Instant {
        Instant::from_nanos(self.base + (now - self.born) * self.rate / 1000)
    }

    /// The first true moment at which the clock shows `at`.
    pub(super) fn truth(&self, at: Instant) -> u64 {
        self.born + (at.as_nanos().saturating_sub(self.base) * 1000).div_ceil(self.rate)
    }
}

/// What can happen. Those with `life` are for one life of a slot.
#[derive(Debug)]
pub(super) enum Event {
    Wake {
        slot: usize,
        life: u32,
    },
    Flush {
        slot: usize,
        life: u32,
    },
    Connected {
        slot: usize,
        life: u32,
        since: Instant,
        server_us: u64,
    },
    ConnectFailed {
        slot: usize,
        life: u32,
    },
    Arrive {
        conn: usize,
        flight: Option<u64>,
        batch: Box<Batch>,
    },
    Reply {
        conn: usize,
        flight: u64,
        answer: Box<BatchReply>,
    },
    GiveUp {
        conn: usize,
        flight: u64,
    },
    ResetSeen {
        conn: usize,
    },
    Subscribe {
        slot: usize,
        life: u32,
        sub: u32,
    },
    Opened {
        slot: usize,
        life: u32,
        sub: u32,
    },
    Unsubscribed {
        slot: usize,
        life: u32,
        sub: u32,
    },
    InboxCutSeen {
        slot: usize,
        life: u32,
        sub: u32,
    },
    Push {
        slot: usize,
        life: u32,
        sub: u32,
        grant: Box<Grant>,
    },
    Tick {
        slot: usize,
        key: usize,
    },
    Chase {
        slot: usize,
        life: u32,
        key: usize,
        mark: u64,
        patient: bool,
    },
    Arrival {
        slot: usize,
    },
    Caller {
        slot: usize,
        life: u32,
        caller: usize,
        act: Act,
    },
    Resume {
        slot: usize,
        life: u32,
    },
    Rise {
        slot: usize,
    },
    ServerUp,
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

pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) rng: fastrand::Rng,
    pub(super) now: u64,
    seq: u64,
    due: BinaryHeap<Reverse<Due>>,
    pub(super) profile: Profile,
    pub(super) keys: Vec<Name>,
    /// So many of them are locks, the rest are jobs.
    pub(super) locks: usize,
    pub(super) nodes: Vec<Node>,
    pub(super) slots: HashMap<NodeId, (usize, u32)>,
    pub(super) conns: Vec<Conn>,
    pub(super) flights: u64,
    pub(super) server: Server,
    pub(super) watch: Watch,
    pub(super) log: Log,
    pub(super) seen: Coverage,
    pub(super) steps: u64,
    pub(super) draining: bool,
    pub(super) failure: Option<Failure>,
    pub(super) finished: bool,
    effects: Vec<Effect>,
}

impl World {
    pub(super) fn new(setup: Setup) -> Self {
        let mut rng = fastrand::Rng::with_seed(setup.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let profile = Profile::draw(&mut rng, &setup);
        let most = if profile.sleepy { 1 } else { 3 };
        let keys = (0..rng.usize(1..=most))
            .map(|k| Name::lock(Key::from(format!("k{k}"))))
            .collect::<Vec<_>>();
        let locks = keys.len();
        let mut keys = keys;
        if setup.seed.is_multiple_of(3) {
            keys.push(Name::job(Key::from("job")));
        }
        let mut world = World {
            setup,
            rng,
            now: 0,
            seq: 0,
            due: BinaryHeap::new(),
            server: Server::new(setup.ledger_flaw),
            watch: Watch::new(keys.len()),
            profile,
            keys,
            locks,
            nodes: Vec::new(),
            slots: HashMap::new(),
            conns: Vec::new(),
            flights: 0,
            log: Log::new(setup.history),
            seen: Coverage::default(),
            steps: 0,
            draining: false,
            failure: None,
            finished: false,
            effects: Vec::new(),
        };
        for slot in 0..world.profile.nodes {
            let node = world.born(slot, 0);
            world.nodes.push(node);
            world.subscribe(slot);
            let first = world.rng.u64(0..50 * MS);
            world.at(first, Event::Arrival { slot });
            if world.keys.len() > locks {
                let first = world.rng.u64(0..500 * MS);
                world.at(first, Event::Tick { slot, key: locks });
            }
        }
        for (rare, seen) in [
            (!world.profile.rules.queues, Seen::NoQueue),
            (!world.profile.rules.final_push, Seen::WeakPush),
            (!world.profile.probe, Seen::NoProbe),
        ] {
            if rare {
                world.saw(seen);
            }
        }
        let (from, until) = world.profile.storm;
        if until > from {
            world.at(from, Event::Fault);
        }
        let drain = world.profile.drain;
        world.at(drain, Event::Drain);
        world.at(20 * MS, Event::Audit);
        world
    }

    pub(super) fn run(mut self) -> Run {
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
            Event::Flush { slot, life } if self.is(slot, life) => self.flush(slot),
            Event::Connected {
                slot,
                life,
                since,
                server_us,
            } if self.is(slot, life) => {
                self.connected(slot, since, server_us);
            }
            Event::ConnectFailed { slot, life } if self.is(slot, life) => self.connect_failed(slot),
            Event::Arrive { conn, flight, batch } => self.arrive(conn, flight, batch),
            Event::Reply { conn, flight, answer } => self.reply(conn, flight, answer),
            Event::GiveUp { conn, flight } => self.give_up(conn, flight),
            Event::ResetSeen { conn } => self.reset_seen(conn),
            Event::Subscribe { slot, life, sub } => self.subscribe_arrives(slot, life, sub),
            Event::Opened { slot, life, sub } if self.is(slot, life) => self.opened(slot, sub),
            Event::Unsubscribed { slot, life, sub } => self.unsubscribed(slot, life, sub),
            Event::InboxCutSeen { slot, life, sub } if self.is(slot, life) => self.inbox_cut_seen(slot, sub),
            Event::Push {
                slot,
                life,
                sub,
                grant,
            } if self.is(slot, life) => self.push_arrives(slot, sub, *grant),
            Event::Tick { slot, key } => self.tick(slot, key),
            Event::Chase {
                slot,
                life,
                key,
                mark,
                patient,
            } if self.is(slot, life) => self.chase(slot, key, mark, patient),
            Event::Arrival { slot } => self.arrival(slot),
            Event::Caller {
                slot,
                life,
                caller,
                act,
            } if self.is(slot, life) => self.act(slot, caller, act),
            Event::Resume { slot, life } if self.is(slot, life) => self.resume(slot),
            Event::Rise { slot } => self.rise(slot),
            Event::ServerUp => self.server.down = false,
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
            Event::Wake { slot, .. } | Event::Caller { slot, .. } | Event::Chase { slot, .. } => (*slot, 2),
            Event::Flush { slot, .. } | Event::Connected { slot, .. } | Event::ConnectFailed { slot, .. } => {
                (*slot, 0)
            }
            Event::Opened { slot, .. } | Event::InboxCutSeen { slot, .. } | Event::Push { slot, .. } => {
                (*slot, 1)
            }
            Event::Reply { conn, .. } | Event::ResetSeen { conn } => {
                let conn = &self.conns[*conn];
                (self.is(conn.slot, conn.life).then_some(conn.slot)?, 0)
            }
            Event::GiveUp { conn, .. } => {
                let conn = &self.conns[*conn];
                (self.is(conn.slot, conn.life).then_some(conn.slot)?, 2)
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

    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        self.due.push(Reverse(Due {
            at: at.max(self.now),
            seq: self.seq,
            event,
        }));
    }

    pub(super) fn after(&mut self, span: u64, event: Event) {
        self.at(self.now + span, event);
    }

    // Nodes.

    pub(super) fn born(&mut self, slot: usize, life: u32) -> Node {
        let id = NodeId::numbered(((slot as u128 + 1) << 64) | (u128::from(life) + 1));
        self.slots.insert(id, (slot, life));
        let seed = self.rng.u64(..);
        let base = self.rng.u64(1..1_000_000 * MS);
        let rate = self.rng.u64(990..=1010);
        let skew_ms = if self.keys.len() > self.locks {
            self.rng.i64(-2000..=2000)
        } else {
            0
        };
        Node {
            id,
            life,
            shard: Shard::with_plant(
                id,
                0,
                1,
                Seed::numbered(seed),
                self.profile.rules,
                Planted(self.setup.flaw),
            ),
            alive: true,
            paused: None,
            closing: false,
            cut_until: 0,
            clock: Clock {
                born: self.now,
                base,
                rate,
            },
            side: Side::default(),
            inbox: Inbox::default(),
            highest: 0,
            sample: None,
            heard: None,
            wake_at: None,
            backlog: Default::default(),
            callers: Vec::new(),
            live: Vec::new(),
            sends: 0,
            asked: 0,
            skew_ms,
            newest: 0,
            pursuits: Vec::new(),
            retired: false,
        }
    }

    /// That life of the slot is running or stopped, but not over.
    pub(super) fn is(&self, slot: usize, life: u32) -> bool {
        self.nodes[slot].life == life && self.nodes[slot].alive
    }

    pub(super) fn local(&self, slot: usize) -> Instant {
        self.nodes[slot].clock.local(self.now)
    }

    pub(super) fn index(&self, name: &Name) -> usize {
        self.keys
            .iter()
            .position(|key| key == name)
            .expect("one of our keys")
    }

    /// Tells a node's engine what happened.
    pub(super) fn feed(&mut self, slot: usize, key: usize, input: Input) {
        self.log.mix((slot as u64) << 8 | key as u64);
        self.note(Some(slot), Some(key), || format!("<- {input:?}"));
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        self.nodes[slot]
            .shard
            .handle(local, &self.keys[key], input, &mut effects);
        self.effects(slot, effects);
        self.check_key(key);
    }

    fn wake(&mut self, slot: usize) {
        self.nodes[slot].wake_at = None;
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        let mut woken = 0;
        while let Some(name) = self.nodes[slot].shard.wake_next(local, &mut effects) {
            woken += 1;
            // A planted mistake keeps a lease whose timer is over; only a sound engine must come to an end.
            if woken > 4 * self.keys.len() {
                let key = self.index(&name);
                self.wrong(Wrong::Storm, Some(key), || {
                    format!("a timer of node {slot} fires without end")
                });
                break;
            }
        }
        self.effects(slot, effects);
        self.check_all();
    }

    pub(super) fn inbox(&mut self, slot: usize, state: InboxState) {
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        self.note(Some(slot), None, || format!("<- inbox {state:?}"));
        self.nodes[slot]
            .shard
            .inbox(local, state, &mut effects, |_, _| {});
        self.effects(slot, effects);
        self.check_all();
    }

    pub(super) fn reachable(&mut self, slot: usize) {
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        self.note(Some(slot), None, || "<- reachable".into());
        self.nodes[slot].shard.reachable(local, &mut effects, |_, _| {});
        self.effects(slot, effects);
        self.check_all();
    }

    pub(super) fn close(&mut self, slot: usize) {
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        self.note(Some(slot), None, || "<- close".into());
        self.nodes[slot].shard.close(local, &mut effects, |_, _| {});
        self.effects(slot, effects);
        self.check_all();
    }

    fn effects(&mut self, slot: usize, mut effects: Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(outgoing) => self.send(slot, outgoing),
                Effect::Granted(ticket, fence) => self.granted(slot, ticket, fence),
                Effect::Denied(ticket, denial) => self.denied(slot, ticket, &denial),
                Effect::Lost(ticket, cause) => self.lost(slot, ticket, cause),
                Effect::Released(ticket, outcome) => self.released(slot, ticket, &outcome),
                Effect::Event(notice) => {
                    self.note(Some(slot), None, || format!("   -> {notice:?}"));
                    if let Some(seen) = Seen::notice(&notice) {
                        self.saw(seen);
                    }
                }
            }
        }
        self.effects = effects;
        self.arm(slot);
    }

    /// The timer is late, as timers are.
    fn arm(&mut self, slot: usize) {
        let node = &self.nodes[slot];
        let Some(due) = node.shard.next_due() else { return };
        let due = node.clock.truth(due).max(self.now);
        if node.wake_at.is_none_or(|at| at > due + 2 * MS) {
            let life = node.life;
            let at = due + self.rng.u64(1_000..2 * MS);
            self.nodes[slot].wake_at = Some(at);
            self.at(at, Event::Wake { slot, life });
        }
    }

    fn send(&mut self, slot: usize, outgoing: Outgoing) {
        let key = self.index(&outgoing.request.name);
        self.log
            .mix(outgoing.tag.claim << 8 | u64::from(outgoing.tag.seq));
        self.note(Some(slot), Some(key), || {
            format!(
                "   -> {:?} {} #{} {:?}",
                outgoing.request.verb, outgoing.tag.claim, outgoing.tag.seq, outgoing.class
            )
        });
        self.nodes[slot].sends += 1;
        let life = self.nodes[slot].life;
        self.nodes[slot].side.outbox.push(outgoing);
        if !std::mem::replace(&mut self.nodes[slot].side.flushing, true) {
            let pause = self.rng.u64(500..50_000);
            self.after(pause, Event::Flush { slot, life });
        }
    }

    // Bookkeeping.

    pub(super) fn saw(&mut self, seen: Seen) {
        self.log.mix(seen as u64);
        self.seen.saw(seen);
    }

    pub(super) fn note(&mut self, who: Option<usize>, key: Option<usize>, text: impl FnOnce() -> String) {
        self.log.line(self.now, who, key, text);
    }

    pub(super) fn wrong(&mut self, wrong: Wrong, key: Option<usize>, text: impl FnOnce() -> String) {
        if self.failure.is_none() && self.setup.only.is_none_or(|only| only == wrong) {
            self.failure = Some(Failure {
                wrong,
                key,
                text: text(),
            });
        }
    }

    /// One message's way.
    pub(super) fn delay(&mut self) -> u64 {
        let (low, high) = self.profile.delay;
        let delay = self.rng.u64(low..=high);
        if self.in_storm() && self.rng.u8(..) < 3 {
            delay + self.rng.u64(0..400 * MS)
        } else {
            delay
        }
    }

    pub(super) fn in_storm(&self) -> bool {
        (self.profile.storm.0..self.profile.storm.1).contains(&self.now)
    }

    /// A fault lasts until `until`.
    pub(super) fn unrest(&mut self, until: u64) {
        self.watch.unrest = self.watch.unrest.max(until);
    }

    pub(super) fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }
}
