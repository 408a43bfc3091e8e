//! A node: its shard and its session as they ship, and how their effects are carried out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tenure::protocol::key::claim::Holding;
use tenure::protocol::key::context::Seed;
use tenure::protocol::key::shard::{Effects, Shard};
use tenure::protocol::message::{Call, ClaimNumber, Name, NodeId, Reply, Request, TickTime, Verb};
use tenure::protocol::session::Session;
use tenure::protocol::session::step::{
    Attempt, InboxEffect, Probe, SessionEffect, SessionEvent, SessionInput, SessionOptions,
};
use tenure::protocol::step::{Effect, InboxState, Input, Outgoing, Tag, Ticket};
use tenure::protocol::time::Instant;

use crate::Wrong;
use crate::callers::Caller;
use crate::coverage::Seen;
use crate::inbox::Inbox;
use crate::planted::Planted;
use crate::watch::gives;
use crate::world::{Event, MS, World};

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// Which life of this slot it is: events for an earlier one are void.
    pub(crate) life: u32,
    pub(crate) shard: Shard<Planted>,
    pub(crate) session: Session<Planted>,
    /// What its clock showed when its session was last told something or stepped.
    pub(crate) session_at: Instant,
    pub(crate) alive: bool,
    pub(crate) paused: Option<u64>,
    pub(crate) paused_at: u64,
    pub(crate) closing: bool,
    pub(crate) cut_until: u64,
    pub(crate) clock: Clock,
    /// What the session opened and did not close.
    pub(crate) conns: Vec<(Attempt, usize)>,
    /// Its latest connection that opened.
    pub(crate) newest_conn: Option<Attempt>,
    pub(crate) inbox: Inbox,
    pub(crate) wake_at: Option<u64>,
    pub(crate) step_at: Option<u64>,
    pub(crate) backlog: [Vec<Event>; 3],
    pub(crate) callers: Vec<Caller>,
    /// The callers that are not over.
    pub(crate) live: Vec<usize>,
    /// What was left with the session and not told of since: when, while the process runs.
    pub(crate) requests: BTreeMap<(ClaimNumber, u32), (u64, usize)>,
    /// The calls that were answered. They are not sent again.
    pub(crate) answered: HashSet<ClaimNumber>,
    /// Claims, and what gives leases back, in the order in which they were left with the session, which has not sent them.
    pub(crate) unsent: Vec<(Tag, Request)>,
    pub(crate) probes: BTreeMap<Probe, u64>,
    pub(crate) probed: u64,
    pub(crate) sends: u32,
    /// Connections and inboxes that it wanted opened.
    pub(crate) opened: u32,
    pub(crate) asked: u32,
    /// Its wall clock beyond the truth.
    pub(crate) skew_ms: i64,
    pub(crate) newest: Option<TickTime>,
    /// The ticks that its scheduler saw and is not through with: which job's, and which.
    pub(crate) pursuits: Vec<(usize, Option<TickTime>)>,
    pub(crate) retired: bool,
    /// It was told that a job's mark lies ahead of the server's clock.
    pub(crate) mark_ahead: bool,
    /// The tick that a pursued one comes after, as the store says, where none is passed over.
    pub(crate) after: HashMap<(usize, Option<TickTime>), TickTime>,
    /// Of each job, the latest tick that it knows to be over.
    pub(crate) over: HashMap<usize, TickTime>,
}

/// A node's own clock: started anywhere, at a rate of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) born: u64,
    pub(crate) base: u64,
    /// Parts in a thousand.
    pub(crate) rate: u64,
}

impl Clock {
    pub(crate) fn local(&self, now: u64) -> Instant {
        Instant::from_nanos(self.base + (now - self.born) * self.rate / 1000)
    }

    /// The first true moment at which the clock shows `at`.
    pub(crate) fn truth(&self, at: Instant) -> u64 {
        self.born + (at.as_nanos().saturating_sub(self.base) * 1000).div_ceil(self.rate)
    }
}

impl World {
    pub(crate) fn born(&mut self, slot: usize, life: u32) -> Node {
        let id = NodeId::numbered(((slot as u128 + 1) << 64) | (u128::from(life) + 1));
        self.slots.insert(id, (slot, life));
        let seed = self.rng.u64(..);
        let base = self.rng.u64(1..1_000_000 * MS);
        let rate = self.rng.u64(990..=1010);
        let skew_ms = if self.jobs().is_empty() {
            0
        } else {
            self.rng.i64(-2000..=2000)
        };
        let plant = Planted(self.setup.flaw);
        let options = SessionOptions {
            request_timeout: self.profile.request_timeout,
            server: "the server".into(),
            remote: true,
            can_fail: true,
            poll_gap: Duration::from_millis(self.profile.poll_gap),
            seed,
        };
        Node {
            id,
            life,
            shard: Shard::with_plant(id, 0, 1, Seed::numbered(seed), self.profile.rules, plant),
            session: Session::with_plant(options, plant),
            session_at: Instant::default(),
            alive: true,
            paused: None,
            paused_at: 0,
            closing: false,
            cut_until: 0,
            clock: Clock {
                born: self.now,
                base,
                rate,
            },
            conns: Vec::new(),
            newest_conn: None,
            inbox: Inbox::default(),
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
            after: HashMap::new(),
            over: HashMap::new(),
        }
    }

    /// That life of the slot is running or stopped, but not over.
    pub(crate) fn is(&self, slot: usize, life: u32) -> bool {
        self.nodes[slot].life == life && self.nodes[slot].alive
    }

    pub(crate) fn local(&self, slot: usize) -> Instant {
        self.nodes[slot].clock.local(self.now)
    }

    /// Returns what a caller of a node holds, by its clock.
    pub(crate) fn holding(&self, slot: usize, key: usize, ticket: Ticket) -> Option<Holding> {
        let local = self.local(slot);
        self.nodes[slot].shard.holding(local, &self.keys[key], ticket)
    }

    pub(crate) fn index(&self, name: &Name) -> usize {
        self.keys
            .iter()
            .position(|key| key == name)
            .expect("one of our keys")
    }

    // The shard.

    /// Tells a node's shard what happened.
    pub(crate) fn feed(&mut self, slot: usize, key: usize, input: Input) {
        self.inputs += 1;
        self.log.mix((slot as u64) << 8 | key as u64);
        self.note(Some(slot), Some(key), || format!("<- {input:?}"));
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        effects.extend_from_slice(&self.nodes[slot].shard.handle(local, &self.keys[key], input));
        self.effects(slot, effects);
        self.check_key(key);
    }

    /// Does what is due: first the keys, then the session, as the driver does.
    pub(crate) fn wake(&mut self, slot: usize) {
        self.nodes[slot].wake_at = None;
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        let mut woken = 0;
        let mut keep = |(name, woke): (Name, Effects<'_, Planted>)| {
            effects.extend_from_slice(&woke);
            name
        };
        while let Some(name) = self.nodes[slot].shard.wake_next(local).map(&mut keep) {
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
        self.step_session(slot);
    }

    pub(crate) fn inbox_state(&mut self, slot: usize, state: InboxState) {
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        self.note(Some(slot), None, || format!("<- inbox {state:?}"));
        let keep = |_: &Name, effect: &Effect| effects.push(effect.clone());
        self.nodes[slot].shard.inbox(local, state, keep);
        self.effects(slot, effects);
        self.check_all();
    }

    pub(crate) fn reachable(&mut self, slot: usize) {
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        self.note(Some(slot), None, || "<- reachable".into());
        let keep = |_: &Name, effect: &Effect| effects.push(effect.clone());
        self.nodes[slot].shard.reachable(local, keep);
        self.effects(slot, effects);
        self.check_all();
    }

    pub(crate) fn close(&mut self, slot: usize) {
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        self.note(Some(slot), None, || "<- close".into());
        let keep = |_: &Name, effect: &Effect| effects.push(effect.clone());
        self.nodes[slot].shard.close(local, keep);
        self.effects(slot, effects);
        self.check_all();
    }

    fn effects(&mut self, slot: usize, mut effects: Vec<Effect>) {
        let mut missed = false;
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(outgoing) => self.queue(slot, outgoing),
                Effect::Act(action) => self.queue_action(slot, action),
                Effect::WriteEnded(lease, is_refused) => {
                    let key = self.index(&lease.name);
                    self.feed(slot, key, Input::WriteEnded(lease, is_refused));
                }
                Effect::Granted(ticket, fence) => {
                    if fence.is_first() {
                        self.nodes[slot].session.note_grant(fence.number());
                    }
                    self.granted(slot, ticket, fence);
                }
                Effect::Answered(ticket, answer) => self.answered(slot, ticket, &answer),
                Effect::Denied(ticket, denial) => self.denied(slot, ticket, &denial),
                Effect::Overdue(ticket) => self.overdue(slot, ticket),
                Effect::Lost(ticket, cause) => self.lost(slot, ticket, cause),
                Effect::Released(ticket, outcome) => self.released(slot, ticket, &outcome),
                Effect::PushMissed => {
                    self.saw(Seen::PushMissed);
                    missed = true;
                }
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
        if missed {
            self.tell_session(slot, SessionInput::PushMissed);
        }
    }

    /// Leaves a request with the session, which the driver steps soon.
    fn queue(&mut self, slot: usize, outgoing: Outgoing) {
        self.watch_queued(slot, &outgoing);
        self.nodes[slot].session.queue(&outgoing);
        self.step_soon(slot);
    }

    /// Tells a node's shard of callers of several keys that go together, which were found free.
    pub(crate) fn feed_together(&mut self, slot: usize, callers: &[(usize, Input)]) {
        let mut claims = Vec::new();
        for (key, input) in callers {
            self.inputs += 1;
            self.log.mix((slot as u64) << 8 | *key as u64);
            self.note(Some(slot), Some(*key), || format!("<- together {input:?}"));
            let local = self.local(slot);
            let mut effects = Vec::new();
            let name = self.keys[*key].clone();
            let shard = &mut self.nodes[slot].shard;
            effects.extend_from_slice(&shard.handle(local, &name, input.clone()));
            match effects.pop() {
                Some(Effect::Send(outgoing)) if effects.is_empty() => claims.push(outgoing),
                other => self.wrong(Wrong::Outcome, Some(*key), || {
                    format!("a free key answers with {effects:?} and {other:?}")
                }),
            }
        }
        for claim in &claims {
            self.watch_queued(slot, claim);
        }
        self.nodes[slot].session.queue_together(claims);
        self.step_soon(slot);
        self.arm(slot);
    }

    fn watch_queued(&mut self, slot: usize, outgoing: &Outgoing) {
        let key = self.index(&outgoing.request.name);
        let Tag { claim, seq } = outgoing.tag;
        self.log.mix(claim.0 << 8 | u64::from(seq));
        self.note(Some(slot), Some(key), || {
            format!(
                "   -> {:?} {claim} #{seq} {:?}",
                outgoing.request.verb, outgoing.class
            )
        });
        self.watch_rests(slot, key, &outgoing.request);
        if matches!(outgoing.request.verb, Verb::Call(call) if !call.is_watched())
            && self.nodes[slot].answered.contains(&claim)
        {
            self.wrong(Wrong::SentAgain, Some(key), || {
                format!("call {claim} of node {slot} was answered and is sent again")
            });
        }
        let now = self.now;
        let node = &mut self.nodes[slot];
        node.sends += 1;
        node.requests.insert((claim, seq), (now, key));
        if outgoing.request.verb != Verb::Renew {
            node.unsent.push((outgoing.tag, outgoing.request.clone()));
        }
    }

    // The session.

    /// Tells a node's session what happened, and has it send what follows.
    pub(crate) fn tell_session(&mut self, slot: usize, input: SessionInput) {
        self.note(Some(slot), None, || format!("<= {input:?}"));
        let local = self.local(slot);
        let mut effects = Vec::new();
        self.nodes[slot].session_at = local;
        self.nodes[slot].session.handle(local, input, &mut effects);
        self.perform_all(slot, effects);
        if self.profile.lag == 0 {
            self.step_session(slot);
        } else {
            self.step_soon(slot);
        }
    }

    /// The driver is woken, and has other things to do.
    pub(crate) fn step_soon(&mut self, slot: usize) {
        if self.nodes[slot].step_at.is_none() {
            let life = self.nodes[slot].life;
            let at = self.now + self.rng.u64(500..50_000.max(self.profile.lag));
            self.nodes[slot].step_at = Some(at);
            self.at(at, Event::Step { slot, life });
        }
    }

    pub(crate) fn step_session(&mut self, slot: usize) {
        let mut rounds = 0;
        loop {
            let local = self.reading(slot);
            let mut effects = Vec::new();
            self.nodes[slot].session.step(local, &mut effects);
            if effects.is_empty() {
                break;
            }
            self.perform_all(slot, effects);
            rounds += 1;
            if rounds > 1000 {
                self.wrong(Wrong::Storm, None, || {
                    format!("the session of node {slot} does not come to rest")
                });
                break;
            }
        }
        let node = &self.nodes[slot];
        if node.session.next_due().is_some_and(|due| due <= node.session_at) {
            self.wrong(Wrong::Storm, None, || {
                format!("a timer of node {slot}'s session fires without end")
            });
        }
        self.arm(slot);
    }

    /// What the driver's clock showed before it locked the session. A caller may have come since then.
    fn reading(&mut self, slot: usize) -> Instant {
        let now = self.local(slot);
        let age = if self.profile.old_reading {
            self.of_readings.u64(0..200_000)
        } else {
            0
        };
        let node = &mut self.nodes[slot];
        let reading = Instant::from_nanos(now.as_nanos().saturating_sub(age));
        node.session_at = reading.max(node.session_at);
        node.session_at
    }

    fn perform_all(&mut self, slot: usize, effects: Vec<SessionEffect>) {
        for effect in effects {
            self.perform(slot, effect);
        }
    }

    fn perform(&mut self, slot: usize, effect: SessionEffect) {
        match effect {
            SessionEffect::Connect(attempt) => self.connect(slot, attempt),
            SessionEffect::Close(attempt) => self.close_conn(slot, attempt),
            SessionEffect::Send {
                connection,
                id,
                batch,
            } => self.write(slot, connection, id, batch),
            SessionEffect::Act {
                connection,
                id,
                action,
                ..
            } => self.send_action(slot, connection, id, action),
            SessionEffect::Tell(name, input) => {
                let key = self.index(&name);
                self.told(slot, key, &input);
                self.feed(slot, key, input);
            }
            SessionEffect::Reachable => self.reachable(slot),
            SessionEffect::Inbox(InboxEffect::Open(attempt)) => self.subscribe(slot, attempt),
            SessionEffect::Inbox(InboxEffect::Ping(attempt)) => self.ping_inbox(slot, attempt),
            SessionEffect::Inbox(InboxEffect::Close(attempt)) => self.close_inbox(slot, attempt),
            SessionEffect::InboxState(state) => self.inbox_state(slot, state),
            SessionEffect::Probed(probe, answer) => {
                self.saw(match answer {
                    Ok(()) => Seen::ProbeAnswered,
                    Err(_) => Seen::ProbeFailed,
                });
                if self.nodes[slot].probes.remove(&probe).is_none() {
                    self.wrong(Wrong::Outcome, None, || format!("{probe:?} is answered twice"));
                }
            }
            SessionEffect::Event(event) => self.session_event(slot, event),
        }
    }

    fn session_event(&mut self, slot: usize, event: SessionEvent) {
        self.note(Some(slot), None, || format!("   => {event:?}"));
        if let Some(seen) = Seen::of_session(&event) {
            self.saw(seen);
        }
    }

    /// A claim follows our own leave, so that it is judged after it, and a leave follows what is asked about its claim.
    pub(crate) fn sends(&mut self, slot: usize, request: &Request) {
        let unsent = &mut self.nodes[slot].unsent;
        let Some(at) = unsent.iter().position(|(_, of)| of == request) else {
            return;
        };
        unsent.remove(at);
        let is_asked = |(tag, earlier): &(Tag, Request)| {
            let of = match earlier.verb {
                Verb::Call(Call::Extend { .. } | Call::Release { .. }) => None,
                Verb::Call(call) => call.of(),
                _ => None,
            };
            tag.seq == 1 && of == Some(request.claim_id)
        };
        if gives(request.verb) && unsent[..at].iter().any(is_asked) {
            let key = self.index(&request.name);
            self.wrong(Wrong::LeftBefore, Some(key), || {
                format!(
                    "node {slot} leaves {} before a call about it that it follows",
                    request.claim_id
                )
            });
            return;
        }
        let is_before = |(_, earlier): &(Tag, Request)| {
            earlier.name == request.name && !matches!(earlier.verb, Verb::Claim { .. })
        };
        if matches!(request.verb, Verb::Claim { .. }) && unsent[..at].iter().any(is_before) {
            let key = self.index(&request.name);
            self.wrong(Wrong::Overtaken, Some(key), || {
                format!(
                    "claim {} of node {slot} goes before a leave that it follows",
                    request.claim_id
                )
            });
        }
    }

    /// Each request is told of once.
    fn told(&mut self, slot: usize, key: usize, input: &Input) {
        let (Input::Answered { tag, .. } | Input::Failed { tag, .. }) = input else {
            return;
        };
        if let Input::Answered { reply, .. } = input {
            self.watch_found(slot, key, tag.claim, reply);
            if !matches!(reply, Reply::Refused(_) | Reply::Late) {
                self.nodes[slot].answered.insert(tag.claim);
            }
        }
        self.nodes[slot].unsent.retain(|(unsent, _)| unsent != tag);
        let known = self.nodes[slot].requests.remove(&(tag.claim, tag.seq));
        if known.is_none_or(|(_, of)| of != key) {
            self.wrong(Wrong::Unanswered, Some(key), || {
                format!("{tag:?} of node {slot} is told of, and nobody waits for it")
            });
        }
    }

    /// The timer is late, as timers are.
    fn arm(&mut self, slot: usize) {
        let node = &self.nodes[slot];
        let due = node
            .shard
            .next_due()
            .into_iter()
            .chain(node.session.next_due())
            .min();
        let Some(due) = due else { return };
        let due = node.clock.truth(due).max(self.now);
        if node.wake_at.is_none_or(|at| at > due + 2 * MS) {
            let life = node.life;
            let at = due + self.rng.u64(1_000..2 * MS);
            self.nodes[slot].wake_at = Some(at);
            self.at(at, Event::Wake { slot, life });
        }
    }
}
