//! Connections, the server behind them, and the inboxes.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::{Branch, Ledger};
use crate::protocol::message::{Batch, BatchReply, Executed, Grant, NodeId, Reply, Verb};
use crate::protocol::step::{Input, Outgoing, Tag};
use crate::protocol::time::Instant;
use crate::testing::sim::coverage::Seen;
use crate::testing::sim::planted::Planted;
use crate::testing::sim::world::{Event, MS, Sample, World};

/// One of a node's two ways to the server: what waits for it, and its connection.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) conn: Option<usize>,
    pub(super) connecting: bool,
    pub(super) had_one: bool,
    pub(super) flushing: bool,
    pub(super) outbox: Vec<Outgoing>,
}

/// An ordered pipe, each way.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) slot: usize,
    pub(super) life: u32,
    pub(super) side: usize,
    /// The client reads it.
    pub(super) client: bool,
    /// The server reads it. It may do so when the client has long given it up.
    pub(super) server: bool,
    /// Nothing moves until then.
    pub(super) stall: u64,
    /// Answers get lost.
    pub(super) mute: bool,
    up: u64,
    down: u64,
    flights: VecDeque<Flight>,
}

/// A batch on its way.
#[derive(Debug)]
struct Flight {
    id: u64,
    asked: Vec<(usize, Tag)>,
    sent: Instant,
    late_after: Instant,
}

/// A node's subscription, as the node sees it.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) sub: u32,
    pub(super) open: bool,
    last: u64,
    pub(super) held_until: u64,
}

/// The server's process and its wall clock.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) ledger: Ledger<Planted>,
    /// What the wall clock shows beyond true time, in µs.
    pub(super) offset: i64,
    pub(super) stall: u64,
    pub(super) down: bool,
    pub(super) refuses: u64,
    /// Who listens: which life, by which subscription, and whether anything gets there.
    pub(super) listening: HashMap<usize, (u32, u32, bool)>,
    pushes: Vec<Grant>,
    branches: Vec<Branch>,
}

pub(super) const EPOCH_US: u64 = 1_700_000_000_000_000;

impl Server {
    pub(super) fn new(flaw: Option<Flaw>) -> Self {
        Server {
            ledger: Ledger::with_plant(Planted(flaw)),
            offset: 0,
            stall: 0,
            down: false,
            refuses: 0,
            listening: HashMap::new(),
            pushes: Vec::new(),
            branches: Vec::new(),
        }
    }

    pub(super) fn clock_us(&self, now: u64) -> u64 {
        (EPOCH_US + now / 1000).saturating_add_signed(self.offset)
    }
}

fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "simulated")
}

impl World {
    pub(super) fn server_us(&self) -> u64 {
        self.server.clock_us(self.now)
    }

    // From the node to the server.

    pub(super) fn flush(&mut self, slot: usize, side: usize) {
        let life = self.nodes[slot].life;
        let node = &mut self.nodes[slot];
        node.sides[side].flushing = false;
        if node.sides[side].outbox.is_empty() {
            return;
        }
        let Some(conn) = node.sides[side].conn else {
            return self.connect(slot, side);
        };
        // At most one request per name travels in a batch.
        let mut taken: Vec<Outgoing> = Vec::new();
        let mut left = Vec::new();
        for outgoing in node.sides[side].outbox.drain(..) {
            let twice = taken
                .iter()
                .any(|other| other.request.name == outgoing.request.name);
            if twice {
                left.push(outgoing)
            } else {
                taken.push(outgoing)
            }
        }
        if !left.is_empty() {
            node.sides[side].outbox = left;
            node.sides[side].flushing = true;
        }
        let more = node.sides[side].flushing;
        if more {
            let pause = self.rng.u64(500..50_000);
            self.after(pause, Event::Flush { slot, life, side });
        }
        self.write(slot, conn, taken);
    }

    fn write(&mut self, slot: usize, conn: usize, outgoing: Vec<Outgoing>) {
        let sent = self.local(slot);
        let lease_left = outgoing
            .iter()
            .map(|outgoing| outgoing.lease_left)
            .min()
            .unwrap_or_default();
        let deadline = (lease_left / 4).clamp(Duration::from_millis(100), Duration::from_secs(1));
        let (not_after, late_after) = self.late(slot, sent + deadline);
        let asked = outgoing
            .iter()
            .map(|outgoing| (self.index(&outgoing.request.name), outgoing.tag))
            .collect();
        let requests = outgoing
            .into_iter()
            .map(|outgoing| outgoing.request)
            .collect::<Vec<_>>();
        let batch = Box::new(Batch {
            highest: self.nodes[slot].highest,
            not_after,
            requests,
        });
        self.flights += 1;
        let flight = self.flights;
        self.conns[conn].flights.push_back(Flight {
            id: flight,
            asked,
            sent,
            late_after,
        });
        if self.in_storm() && self.chance(2) {
            self.write_again(conn, &batch);
        }
        let arrives = (self.now + self.delay()).max(self.conns[conn].up);
        self.conns[conn].up = arrives;
        self.at(
            arrives,
            Event::Arrive {
                conn,
                flight: Some(flight),
                batch,
            },
        );
        let gives_up = self.nodes[slot].clock.truth(sent + deadline) + self.rng.u64(0..2 * MS);
        self.at(gives_up, Event::GiveUp { conn, flight });
    }

    /// Anything but a claim may be executed twice.
    fn write_again(&mut self, conn: usize, batch: &Batch) {
        let mut twin = batch.clone();
        twin.requests
            .retain(|request| !matches!(request.verb, Verb::Claim { .. }));
        if twin.requests.is_empty() {
            return;
        }
        self.saw(Seen::Duplicate);
        if twin
            .requests
            .iter()
            .any(|request| matches!(request.verb, Verb::Yield { .. }))
        {
            self.saw(Seen::DuplicateYield);
        }
        let way = self.delay() + self.rng.u64(0..2_000 * MS);
        self.after(
            way,
            Event::Arrive {
                conn,
                flight: None,
                batch: Box::new(twin),
            },
        );
    }

    /// Until when, by the server's clock, the server may execute what is given up at `give_up`; and from when on, by
    /// ours, it surely will not.
    fn late(&self, slot: usize, give_up: Instant) -> (u64, Instant) {
        let Some(sample) = self.nodes[slot].sample else {
            return (u64::MAX, give_up);
        };
        let ahead = give_up.since(sample.sent).as_micros() as u64;
        let not_after = sample.server_us + ahead + ahead / 50 + 1;
        let passed = Duration::from_micros(not_after - sample.server_us);
        (
            not_after,
            sample.received + passed + passed / 40 + Duration::from_micros(1),
        )
    }

    fn connect(&mut self, slot: usize, side: usize) {
        if std::mem::replace(&mut self.nodes[slot].sides[side].connecting, true) {
            return;
        }
        let life = self.nodes[slot].life;
        let since = self.local(slot);
        let there = self.delay();
        if self.nodes[slot].cut_until > self.now {
            let pause = self.rng.u64(100 * MS..1_000 * MS);
            return self.after(pause, Event::ConnectFailed { slot, life, side });
        }
        if self.server.down {
            return self.after(2 * there, Event::ConnectFailed { slot, life, side });
        }
        // Read half way: what the connection says of the time is old when it gets here.
        let server_us = self.server.clock_us(self.now + there);
        let back = self.delay();
        self.after(
            there + back,
            Event::Connected {
                slot,
                life,
                side,
                since,
                server_us,
            },
        );
    }

    pub(super) fn connected(&mut self, slot: usize, side: usize, since: Instant, server_us: u64) {
        let received = self.local(slot);
        let life = self.nodes[slot].life;
        let conn = self.conns.len();
        self.conns.push(Conn {
            slot,
            life,
            side,
            client: true,
            server: !self.server.down,
            stall: self.nodes[slot].cut_until,
            mute: false,
            up: self.now,
            down: self.now,
            flights: VecDeque::new(),
        });
        let node = &mut self.nodes[slot];
        node.sample = Some(Sample {
            server_us,
            sent: since,
            received,
        });
        node.sides[side].connecting = false;
        node.sides[side].conn = Some(conn);
        if std::mem::replace(&mut node.sides[side].had_one, true) {
            self.saw(Seen::Reconnect);
        }
        self.flush(slot, side);
    }

    pub(super) fn connect_failed(&mut self, slot: usize, side: usize) {
        self.saw(Seen::ConnectFailed);
        self.nodes[slot].sides[side].connecting = false;
        let outgoing = std::mem::take(&mut self.nodes[slot].sides[side].outbox);
        let late_after = self.local(slot);
        for outgoing in outgoing {
            let (key, error) = (
                self.index(&outgoing.request.name),
                error(StoreErrorKind::Unreachable),
            );
            self.feed(
                slot,
                key,
                Input::Failed {
                    tag: outgoing.tag,
                    executed: Executed::No,
                    late_after,
                    error,
                },
            );
        }
    }

    /// Nobody answers in time: the connection is given up with all that is on it.
    pub(super) fn give_up(&mut self, conn: usize, flight: u64) {
        if self.conns[conn].client
            && self.conns[conn]
                .flights
                .iter()
                .any(|waiting| waiting.id == flight)
        {
            self.saw(Seen::GivenUp);
            // A closed socket may still deliver what was written to it.
            self.conns[conn].server &= self.rng.u8(..) < 180;
            self.abandon(conn, StoreErrorKind::TimedOut);
        }
    }

    pub(super) fn reset_seen(&mut self, conn: usize) {
        if self.conns[conn].client {
            self.abandon(conn, StoreErrorKind::Interrupted);
        }
    }

    fn abandon(&mut self, conn: usize, kind: StoreErrorKind) {
        let Conn { slot, side, .. } = self.conns[conn];
        self.note(Some(slot), None, || {
            format!("connection {conn} given up: {kind:?}")
        });
        self.conns[conn].client = false;
        self.nodes[slot].sides[side].conn = None;
        if !self.nodes[slot].alive {
            return;
        }
        for flight in std::mem::take(&mut self.conns[conn].flights) {
            for (key, tag) in flight.asked {
                let (late_after, error) = (flight.late_after, error(kind.clone()));
                self.feed(
                    slot,
                    key,
                    Input::Failed {
                        tag,
                        executed: Executed::Unknown,
                        late_after,
                        error,
                    },
                );
            }
        }
        // Some had not been written yet, and their carrier knows it.
        if kind == StoreErrorKind::Interrupted && self.chance(30) {
            let late_after = self.local(slot);
            for outgoing in std::mem::take(&mut self.nodes[slot].sides[side].outbox) {
                self.saw(Seen::NotWritten);
                let (key, error) = (self.index(&outgoing.request.name), error(kind.clone()));
                self.feed(
                    slot,
                    key,
                    Input::Failed {
                        tag: outgoing.tag,
                        executed: Executed::No,
                        late_after,
                        error,
                    },
                );
            }
        }
        if !self.nodes[slot].sides[side].outbox.is_empty() {
            self.connect(slot, side);
        }
    }

    // At the server.

    pub(super) fn arrive(&mut self, conn: usize, flight: Option<u64>, mut batch: Box<Batch>) {
        if self.server.down || !self.conns[conn].server && flight.is_some() {
            return;
        }
        let held = self.server.stall.max(self.conns[conn].stall);
        if held > self.now {
            return self.at(held, Event::Arrive { conn, flight, batch });
        }
        if flight.is_some() && !self.conns[conn].client {
            self.saw(Seen::LateExecution);
        }
        self.watch.twin = flight.is_none();
        let answer = self.execute(&mut batch);
        let (Some(flight), true) = (flight, self.conns[conn].client) else {
            return;
        };
        if self.conns[conn].mute {
            for request in &batch.requests {
                self.saw(match request.verb {
                    Verb::Claim { .. } => Seen::LostClaimAnswer,
                    Verb::Renew => Seen::LostRenewAnswer,
                    Verb::Leave => Seen::LostLeaveAnswer,
                    Verb::Finish => Seen::LostFinishAnswer,
                    Verb::Yield { .. } => Seen::LostYieldAnswer,
                });
            }
            return;
        }
        let back = (self.now + self.delay()).max(self.conns[conn].down);
        self.conns[conn].down = back;
        self.at(
            back,
            Event::Reply {
                conn,
                flight,
                answer: Box::new(answer),
            },
        );
    }

    fn execute(&mut self, effective: &mut Batch) -> BatchReply {
        let now_us = self.server_us();
        let mut refused = Vec::new();
        for (at, request) in effective.requests.iter_mut().enumerate() {
            if let (false, Verb::Claim { wait }) = (self.profile.rules.queues, &mut request.verb) {
                *wait = false;
            }
            if self.server.refuses > self.now && self.rng.bool() {
                let passing = self.rng.bool();
                refused.push((
                    at,
                    if passing {
                        StoreRefusal::OutOfMemory
                    } else {
                        StoreRefusal::NoPermission
                    },
                ));
            }
        }
        for (at, _) in refused.iter().rev() {
            self.saw(Seen::ServerRefused);
            effective.requests.remove(*at);
        }
        let before = self.records(effective);
        let mut pushes = std::mem::take(&mut self.server.pushes);
        let mut branches = std::mem::take(&mut self.server.branches);
        let mut answer = self
            .server
            .ledger
            .apply_traced(now_us, effective, &mut pushes, &mut branches);
        for branch in branches.drain(..) {
            self.saw(Seen::branch(branch));
        }
        self.server.branches = branches;
        for (request, reply) in effective.requests.iter().zip(&answer.replies) {
            self.log.mix(match reply {
                Reply::Granted(number) | Reply::Won(number, _) => *number,
                Reply::Queued(_) => 1,
                Reply::Busy(_) => 2,
                _ => 3,
            });
            let key = self.index(&request.name);
            let slot = self.slots.get(&request.holder.node).map(|(slot, _)| *slot);
            self.note(None, Some(key), || {
                format!(
                    "server: {:?} {} of node {slot:?} -> {reply:?}",
                    request.verb, request.holder.claim
                )
            });
        }
        self.watch_execution(effective, &answer.replies, &before, &pushes);
        for grant in pushes.drain(..) {
            self.push(grant);
        }
        self.server.pushes = pushes;
        for request in &effective.requests {
            let key = self.index(&request.name);
            self.check_key(key);
        }
        for (at, refusal) in refused {
            answer.replies.insert(at, Reply::Refused(refusal));
        }
        answer
    }

    pub(super) fn reply(&mut self, conn: usize, flight: u64, answer: Box<BatchReply>) {
        let Conn {
            slot, client, stall, ..
        } = self.conns[conn];
        if !client {
            return self.saw(Seen::AnswerDiscarded);
        }
        if stall > self.now {
            return self.at(stall, Event::Reply { conn, flight, answer });
        }
        let flights = &mut self.conns[conn].flights;
        let Some(at) = flights.iter().position(|waiting| waiting.id == flight) else {
            return;
        };
        let flight = flights.remove(at).expect("just found");
        let received = self.local(slot);
        self.nodes[slot].sample = Some(Sample {
            server_us: answer.time,
            sent: flight.sent,
            received,
        });
        for ((key, tag), reply) in flight.asked.into_iter().zip(answer.replies) {
            if let Reply::Granted(number) | Reply::Won(number, _) = reply {
                self.nodes[slot].highest = self.nodes[slot].highest.max(number);
            }
            self.feed(
                slot,
                key,
                Input::Answered {
                    tag,
                    sent: flight.sent,
                    reply,
                },
            );
        }
    }

    // The inbox.

    pub(super) fn subscribe(&mut self, slot: usize) {
        let life = self.nodes[slot].life;
        self.nodes[slot].inbox.sub += 1;
        let sub = self.nodes[slot].inbox.sub;
        let way = self.delay();
        self.after(way, Event::Subscribe { slot, life, sub });
    }

    pub(super) fn subscribe_arrives(&mut self, slot: usize, life: u32, sub: u32) {
        if !self.is(slot, life) || self.nodes[slot].inbox.sub != sub {
            return;
        }
        let cut = self.nodes[slot].cut_until;
        let held = self.server.stall.max(cut);
        if self.server.down || held > self.now {
            let again = if self.server.down {
                self.now + 50 * MS
            } else {
                held
            };
            return self.at(again, Event::Subscribe { slot, life, sub });
        }
        self.listens(self.nodes[slot].id, true);
        self.server.listening.insert(slot, (life, sub, true));
        let way = self.delay();
        self.nodes[slot].inbox.last = self.now + way;
        self.after(way, Event::Opened { slot, life, sub });
    }

    pub(super) fn listens(&mut self, node: NodeId, open: bool) {
        if self.profile.probe {
            self.server.ledger.listens(node, open);
        }
    }

    pub(super) fn opened(&mut self, slot: usize, sub: u32) {
        if self.nodes[slot].inbox.sub == sub {
            self.nodes[slot].inbox.open = true;
            if sub > 1 {
                self.saw(Seen::Resubscribed);
            }
            self.open(slot);
        }
    }

    /// The server finds out that nobody reads that subscription.
    pub(super) fn unsubscribed(&mut self, slot: usize, life: u32, sub: u32) {
        if self
            .server
            .listening
            .get(&slot)
            .is_some_and(|(l, s, _)| (*l, *s) == (life, sub))
        {
            self.server.listening.remove(&slot);
            let node = self
                .slots
                .iter()
                .find(|(_, at)| **at == (slot, life))
                .map(|(node, _)| *node);
            if let Some(node) = node {
                self.listens(node, false);
            }
        }
    }

    pub(super) fn inbox_cut_seen(&mut self, slot: usize, sub: u32) {
        if self.nodes[slot].inbox.sub == sub {
            self.nodes[slot].inbox.open = false;
            self.subscribe(slot);
        }
    }

    fn push(&mut self, grant: Grant) {
        let Some(&(slot, life)) = self.slots.get(&grant.holder.node) else {
            return;
        };
        let key = self.index(&grant.name);
        self.note(None, Some(key), || {
            format!(
                "server: pushes {} to {} of node {slot}",
                grant.number, grant.holder.claim
            )
        });
        let (sub, whole) = match self.server.listening.get(&slot) {
            Some(&(at, sub, whole)) if at == life => (sub, whole),
            _ => return self.saw(Seen::PushLost),
        };
        if !whole {
            return self.saw(Seen::PushLost);
        }
        let way = self.delay();
        let inbox = &mut self.nodes[slot].inbox;
        let mut at = (self.now + way).max(inbox.last).max(inbox.held_until);
        inbox.last = at;
        if self.in_storm() && self.chance(3) {
            self.saw(Seen::PushTwice);
            let again = at + self.rng.u64(0..4_000 * MS);
            self.at(
                again,
                Event::Push {
                    slot,
                    life,
                    sub,
                    grant: Box::new(grant.clone()),
                },
            );
        }
        if self.in_storm() && self.chance(2) {
            self.saw(Seen::PushHeld);
            at += self.rng.u64(50 * MS..4_000 * MS);
            self.nodes[slot].inbox.last = at;
        }
        self.at(
            at,
            Event::Push {
                slot,
                life,
                sub,
                grant: Box::new(grant),
            },
        );
    }

    pub(super) fn push_arrives(&mut self, slot: usize, sub: u32, grant: Grant) {
        let held = self.nodes[slot].inbox.held_until.max(self.nodes[slot].cut_until);
        if held > self.now {
            let life = self.nodes[slot].life;
            return self.at(
                held,
                Event::Push {
                    slot,
                    life,
                    sub,
                    grant: Box::new(grant),
                },
            );
        }
        if self.nodes[slot].inbox.sub != sub {
            return self.saw(Seen::PushLost);
        }
        let node = &mut self.nodes[slot];
        node.highest = node.highest.max(grant.number);
        let key = self.index(&grant.name);
        let under_way = self.nodes[slot]
            .sides
            .iter()
            .filter_map(|side| side.conn)
            .any(|conn| {
                let mut asked = self.conns[conn].flights.iter().flat_map(|flight| &flight.asked);
                asked.any(|(_, tag)| tag.claim == grant.holder.claim)
            });
        if under_way && self.nodes[slot].shard.pursues(&self.keys[key], grant.holder) {
            self.saw(Seen::PushBeforeAnswer);
        }
        self.feed(slot, key, Input::Pushed(grant));
    }
}
