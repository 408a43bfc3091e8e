//! Elections: who stands, leads and proclaims, who observes that, and what must never become of it.
//!
//! What a leader proclaims names its grant, its node and its place in the order of all that was proclaimed, so that whatever
//! is mixed up is seen. What is true is worked out from what the server executes, and not asked of the ledger.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tenure::protocol::key::claim::Holding;
use tenure::protocol::ledger::RecordOwner;
use tenure::protocol::message::{
    Call, ClaimId, Fence, GrantNumber, Kind, LeaderReport, LeaseTimes, NodeId, Payload, Reply, Request, Verb,
    Version,
};
use tenure::protocol::step::{AcquireError, CallOptions, Input, LockOptions, Ticket};
use tenure::protocol::time::Instant;

use crate::Wrong;
use crate::callers::{Act, Caller, State};
use crate::coverage::Seen;
use crate::world::{Event, MS, World};

/// A caller: slot, life, place.
type Id = (usize, u32, usize);

/// What the watchers remember of elections.
#[derive(Debug, Default)]
pub(crate) struct Elections {
    /// Who led by each grant, at the server.
    led: HashMap<(usize, GrantNumber), NodeId>,
    /// By which grant each claim leads that a node knows to lead.
    leads: HashMap<ClaimId, GrantNumber>,
    /// The latest that was proclaimed under each grant, at the server.
    said: HashMap<(usize, GrantNumber), u64>,
    /// How often anything was to be proclaimed.
    seq: u64,
    /// The value that each claim campaigned with, by its place in the order of all values.
    campaigned: HashMap<ClaimId, u64>,
    /// The grants of leaders that campaigned with a value.
    won_with_value: HashSet<(usize, GrantNumber)>,
    observers: Vec<Observer>,
    rests: HashMap<Id, Rest>,
    next_kill: u64,
}

/// Somebody who asks who leads, again and again.
#[derive(Debug)]
struct Observer {
    slot: usize,
    life: u32,
    key: usize,
    term: LeaseTimes,
    /// Its question was not answered.
    failed: bool,
    /// What it was told last: in which version, and what.
    known: Option<(Version, Told)>,
    /// The latest leader that it was told of, and what it proclaimed.
    latest: Told,
    /// The caller that asks.
    asks: Option<usize>,
    /// Since when that is not what is true, while it asks, and what is true.
    differs: Option<(u64, Told)>,
}

/// By which grant somebody leads, and the place of what was proclaimed under it.
type Told = Option<(GrantNumber, Option<u64>)>;

/// By its node's clock.
#[derive(Debug)]
struct Rest {
    /// Until then it claims nothing.
    earliest: Instant,
    /// Then it does, unless its process is stopped.
    latest: Instant,
}

/// What a leader proclaims.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    number: GrantNumber,
    seq: u64,
    node: String,
}

/// The number in the value of a candidate, which is written before the candidate wins.
const NOT_YET_GRANTED: GrantNumber = GrantNumber(0);

impl Said {
    fn write(&self) -> Payload {
        let text = format!("{} {} {}", self.number.0, self.seq, self.node);
        Payload(text.into_bytes().into())
    }

    fn read(said: &Payload) -> Option<Self> {
        let text = std::str::from_utf8(&said.0).ok()?;
        let mut words = text.split(' ');
        Some(Said {
            number: GrantNumber(words.next()?.parse().ok()?),
            seq: words.next()?.parse().ok()?,
            node: words.next()?.to_owned(),
        })
    }
}

impl World {
    // Who stands.

    /// Everybody of an election begins.
    pub(crate) fn elections_begin(&mut self) {
        for key in self.elections.clone() {
            for slot in 0..self.nodes.len() {
                let first = self.rng.u64(0..50 * MS);
                self.at(first, Event::Stand { slot, key });
                for more in 0..1 + (slot + key) % 2 {
                    let term = self.profile.terms[(slot + more) % self.profile.terms.len()];
                    let observer = self.watch.elections.observers.len();
                    self.watch.elections.observers.push(Observer {
                        slot,
                        life: 0,
                        key,
                        term,
                        failed: false,
                        known: None,
                        latest: None,
                        asks: None,
                        differs: None,
                    });
                    let first = self.rng.u64(0..100 * MS);
                    self.at(first, Event::Observe { observer });
                }
            }
        }
    }

    /// The third node of all only observes.
    fn stands(&self, slot: usize) -> bool {
        slot % 3 != 2
    }

    fn is_candidate(&self, slot: usize, key: usize, caller: usize) -> bool {
        let of = &self.nodes[slot].callers[caller];
        of.key == key && of.asks.is_none()
    }

    /// A node stands, unless it does already; some with two candidates.
    pub(crate) fn stand(&mut self, slot: usize, key: usize) {
        if self.draining || !self.stands(slot) {
            return;
        }
        let pause = self.rng.u64(0..300 * MS);
        self.after(pause, Event::Stand { slot, key });
        let node = &self.nodes[slot];
        let live = node.live.iter();
        let stands = live
            .filter(|caller| self.is_candidate(slot, key, **caller))
            .count();
        if !node.alive || node.paused.is_some() || stands > usize::from((slot + key).is_multiple_of(4)) {
            return;
        }
        let rests = self.chance(10);
        self.campaign(slot, key, rests);
    }

    /// Somebody waits until it leads. Who lost, or could not ask, rests first.
    pub(crate) fn campaign(&mut self, slot: usize, key: usize, rests: bool) {
        if self.draining {
            return;
        }
        let term = self.profile.terms[self.rng.usize(0..self.profile.terms.len())];
        let want = LockOptions {
            solo: true,
            rests,
            limit: 1000,
            ..LockOptions::new(term)
        };
        let ticket = self.enter(slot, key, want);
        if rests {
            self.rests(slot, ticket.0 as usize - 1, term);
        }
        // Not drawn: in the other half of the worlds, no candidate has a value.
        let has_value = self.setup.seed.is_multiple_of(2) && ticket.0.is_multiple_of(2);
        let input = if has_value {
            self.watch.elections.seq += 1;
            let said = Said {
                number: NOT_YET_GRANTED,
                seq: self.watch.elections.seq,
                node: self.nodes[slot].id.to_string(),
            };
            Input::Campaign(ticket, want, said.write())
        } else {
            Input::Lock(ticket, want)
        };
        self.feed(slot, key, input);
    }

    // Who leads.

    /// Somebody leads: it proclaims a few things, the last of them perhaps when it leads no more, and resigns.
    pub(crate) fn lead(&mut self, slot: usize, caller: usize) {
        let Caller { key, want, claim, .. } = self.nodes[slot].callers[caller];
        let life = self.nodes[slot].life;
        let holding = self.holding(slot, key, Ticket(caller as u64 + 1));
        if let (Some(claim), Some(holding)) = (claim, holding.filter(Holding::is_held)) {
            let number = holding.fence.number();
            self.watch.elections.leads.insert(claim, number);
        }
        self.saw(if want.rests { Seen::LedRested } else { Seen::Led });
        let lease = want.term.lease_ms * MS;
        let span = match self.rng.u8(0..100) {
            _ if self.draining => self.rng.u64(0..5 * MS),
            0..10 => 0,
            10..60 => self.rng.u64(0..500 * MS),
            _ => self.rng.u64(0..2 * lease + 500 * MS),
        };
        let act = if self.chance(60) { Act::Release } else { Act::Drop };
        let mut acts = vec![(span, act)];
        for _ in 0..self.rng.u32(0..12) {
            acts.push((self.rng.u64(0..=span), Act::Proclaim));
        }
        if self.chance(20) {
            acts.push((span + self.rng.u64(0..1_000 * MS), Act::Proclaim));
        }
        if self.chance(20) {
            acts.push((self.rng.u64(0..=span), Act::Look));
        }
        for (pause, act) in acts {
            self.after(
                pause,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act,
                },
            );
        }
    }

    /// Somebody proclaims something, whether it still leads or not.
    pub(crate) fn proclaim(&mut self, slot: usize, caller: usize) {
        let Caller { key, want, claim, .. } = self.nodes[slot].callers[caller];
        let Some(of) = claim.filter(|_| !self.draining) else {
            return;
        };
        let Some(number) = self.watch.elections.leads.get(&of).copied() else {
            return;
        };
        self.watch.elections.seq += 1;
        let seq = self.watch.elections.seq;
        let said = Said {
            number,
            seq,
            node: of.node.to_string(),
        };
        let asks = CallOptions {
            data: Some(said.write()),
            ..CallOptions::new(want.term, Call::Proclaim { of, seq })
        };
        let (ticket, made) = self.new_call(slot, key, &asks);
        // It leads for sure, and its node says so until it is answered: then that was true when it was executed.
        let holding = self.holding(slot, key, Ticket(caller as u64 + 1));
        self.nodes[slot].callers[made].in_time = holding.is_some_and(|holding| holding.is_held());
        self.feed(slot, key, Input::Call(ticket, asks));
    }

    /// It leads no more, and stands again.
    pub(crate) fn leads_no_more(&mut self, slot: usize, key: usize) {
        let life = self.nodes[slot].life;
        self.after(MS, Event::StandAgain { slot, life, key });
    }

    // Who observes.

    /// An observer asks, unless it waits for an answer; now and then it gives that up, and asks again later.
    pub(crate) fn observe(&mut self, observer: usize) {
        if self.draining {
            return;
        }
        let pause = self.rng.u64(0..400 * MS);
        self.after(pause, Event::Observe { observer });
        let gives_up = self.chance(10);
        let of = &mut self.watch.elections.observers[observer];
        let node = &self.nodes[of.slot];
        if !node.alive || node.paused.is_some() || node.closing {
            return;
        }
        let (slot, life) = (of.slot, node.life);
        if of.life != life {
            (of.life, of.failed, of.asks) = (life, false, None);
            (of.known, of.latest) = (None, None);
        }
        match of.asks {
            Some(caller) if gives_up => {
                of.asks = None;
                self.act(slot, caller, Act::GiveUp);
            }
            Some(_) => {}
            None => self.ask_who_leads(observer),
        }
    }

    /// The same at once, of an observer that was told something.
    pub(crate) fn look_on(&mut self, observer: usize) {
        if !self.draining && self.watch.elections.observers[observer].asks.is_none() {
            self.ask_who_leads(observer);
        }
    }

    fn ask_who_leads(&mut self, observer: usize) {
        let Observer {
            slot,
            key,
            term,
            failed,
            known,
            ..
        } = self.watch.elections.observers[observer];
        let known = known.map(|(version, _)| version);
        let asks = CallOptions {
            rests: failed,
            limit: 64,
            ..CallOptions::new(term, Call::Leader { known })
        };
        let (ticket, caller) = self.new_call(slot, key, &asks);
        if failed {
            self.rests(slot, caller, term);
        }
        let of = &mut self.watch.elections.observers[observer];
        (of.asks, of.differs) = (Some(caller), None);
        self.feed(slot, key, Input::Call(ticket, asks));
    }

    /// A caller in an election was denied, or its call was.
    pub(crate) fn election_denied(&mut self, slot: usize, caller: usize, denial: &AcquireError) {
        let Caller { key, asks, .. } = self.nodes[slot].callers[caller];
        if !self.elections.contains(&key) {
            return;
        }
        match asks {
            None if matches!(denial, AcquireError::Store(_)) => self.leads_no_more(slot, key),
            Some(Call::Leader { .. }) if !matches!(denial, AcquireError::Closed) => {
                self.told_who_leads(slot, caller, None);
            }
            Some(Call::Leader { .. }) => {
                if let Some(observer) = self.observer_of(slot, caller) {
                    self.watch.elections.observers[observer].asks = None;
                }
            }
            _ => {}
        }
    }

    /// Somebody was told whether it has proclaimed something.
    pub(crate) fn proclaim_answered(&mut self, slot: usize, caller: usize, done: bool) {
        let Caller {
            key, asks, in_time, ..
        } = self.nodes[slot].callers[caller];
        let Some(Call::Proclaim { of, seq }) = asks else {
            return;
        };
        let elections = &self.watch.elections;
        let Some(number) = elections.leads.get(&of).copied() else {
            return;
        };
        let is_kept = elections
            .said
            .get(&(key, number))
            .is_some_and(|kept| *kept >= seq);
        let local = self.local(slot);
        let leader = self.nodes[slot].shard.held_alone(local, &self.keys[key]);
        let leads = leader.is_some_and(|leader| leader.claim == of);
        let wrongly_refused = !done && in_time && leads && !self.is_tainted(number);
        if wrongly_refused || done && !is_kept {
            self.wrong(Wrong::ProclaimedByAnother, Some(key), || {
                format!("{of} leads: {leads}, and was told of its {seq}: {done}")
            });
        }
    }

    /// An observer was told who leads, and what that one proclaimed.
    pub(crate) fn told_who_leads(
        &mut self,
        slot: usize,
        caller: usize,
        answer: Option<Option<&LeaderReport>>,
    ) {
        let Some(observer) = self.observer_of(slot, caller) else {
            return;
        };
        let life = self.nodes[slot].life;
        let of = &mut self.watch.elections.observers[observer];
        (of.asks, of.differs) = (None, None);
        of.failed = answer.is_none();
        if let Some(report) = answer {
            self.watch_told(observer, report);
        }
        if self.chance(80) {
            let pause = self.rng.u64(0..MS);
            self.after(pause, Event::LookOn { slot, life, observer });
        }
    }

    /// The observer for which that caller asks.
    fn observer_of(&self, slot: usize, caller: usize) -> Option<usize> {
        let life = self.nodes[slot].life;
        let mut observers = self.watch.elections.observers.iter();
        observers.position(|of| (of.slot, of.life, of.asks) == (slot, life, Some(caller)))
    }

    /// What is told of a grant was proclaimed under it, and nothing is told after something later.
    fn watch_told(&mut self, observer: usize, report: Option<&LeaderReport>) {
        let Observer {
            slot, key, latest, ..
        } = self.watch.elections.observers[observer];
        self.saw(match report {
            None => Seen::NobodyLeadsTold,
            Some(report) if report.said.is_some() => Seen::ProclaimedTold,
            Some(_) => Seen::LeaderTold,
        });
        if !self.stands(slot) {
            self.saw(Seen::ToldOutside);
        }
        let said = report.and_then(|report| report.said.as_ref()).map(Said::read);
        let elections = &self.watch.elections;
        let is_its = report.is_none_or(|report| {
            let led = elections.led.get(&(key, report.number)) == Some(&report.node);
            let said_so = said.as_ref().is_none_or(|said| {
                let latest = elections.said.get(&(key, report.number)).copied();
                said.as_ref().is_some_and(|said| {
                    [report.number, NOT_YET_GRANTED].contains(&said.number)
                        && said.node == report.node.to_string()
                        && Some(said.seq) <= latest
                })
            });
            led && said_so
        });
        if !is_its {
            self.wrong(Wrong::ProclaimedByAnother, Some(key), || {
                format!("an observer of node {slot} is told {report:?}, in which is said {said:?}")
            });
        }
        let won_with_value = |report: &LeaderReport| {
            let elections = &self.watch.elections;
            elections.won_with_value.contains(&(key, report.number))
                && !self.is_exempt(Fence::new(report.number, 0))
        };
        if let Some(report) = report
            && won_with_value(report)
        {
            self.saw(Seen::ValueOfWinnerTold);
            if said.is_none() {
                self.wrong(Wrong::LeaderWithoutValue, Some(key), || {
                    format!("an observer of node {slot} is told {report:?}, which campaigned with a value")
                });
            }
        }
        let seq = said.flatten().map(|said| said.seq);
        let told = report.map(|report| (report.number, seq));
        if latest > told && told.is_some_and(|(number, _)| !self.is_exempt(Fence::new(number, 0))) {
            self.wrong(Wrong::ToldBack, Some(key), || {
                format!("an observer of node {slot} is told {told:?} after {latest:?}")
            });
        }
        if latest.zip(told).is_some_and(|(latest, told)| latest.0 < told.0) {
            self.saw(Seen::NextLeaderTold);
        }
        let version = report.map_or(Version(0), |report| report.version);
        let of = &mut self.watch.elections.observers[observer];
        (of.known, of.latest) = (Some((version, told)), told.or(latest));
    }

    // At the server.

    /// Who leads, and the place of what it proclaimed last.
    fn truth(&self, key: usize) -> Told {
        let record = self.server.ledger.record(&self.keys[key], self.server_us())?;
        let RecordOwner::Claim(_, number) = record.owner else {
            return None;
        };
        Some((number, self.watch.elections.said.get(&(key, number)).copied()))
    }

    /// Only who leads proclaims something.
    pub(crate) fn watch_election(&mut self, key: usize, request: &Request, reply: &Reply) {
        if !self.elections.contains(&key) {
            return;
        }
        if let (Verb::Claim { .. }, Some(value)) = (request.verb, &request.data)
            && let Some(value) = Said::read(value)
        {
            let campaigned = &mut self.watch.elections.campaigned;
            campaigned.insert(request.claim_id, value.seq);
        }
        let us = self.server_us();
        let record = self.server.ledger.record(&self.keys[key], us);
        let leader = record.and_then(|record| match record.owner {
            RecordOwner::Claim(claim_id, number) => Some((claim_id, number)),
            RecordOwner::Foreign | RecordOwner::WrongType => None,
        });
        if let Some((claim_id, number)) = leader {
            let elections = &mut self.watch.elections;
            if elections.led.insert((key, number), claim_id.node).is_none()
                && let Some(seq) = elections.campaigned.get(&claim_id).copied()
            {
                elections.won_with_value.insert((key, number));
                elections.said.insert((key, number), seq);
            }
        }
        let Verb::Call(Call::Proclaim { of, seq }) = request.verb else {
            return;
        };
        let number = leader
            .filter(|(claim_id, _)| *claim_id == of)
            .map(|(_, number)| number);
        let is_fair = match reply {
            Reply::Done => number.is_some(),
            Reply::Gone => number.is_none(),
            _ => true,
        };
        if let (Some(number), Reply::Done) = (number, reply) {
            let kept = self.watch.elections.said.entry((key, number)).or_default();
            *kept = seq.max(*kept);
        }
        if !is_fair {
            self.wrong(Wrong::ProclaimedByAnother, Some(key), || {
                format!("{leader:?} leads, and {of} that proclaims is told {reply:?}")
            });
        }
    }

    // Who rests.

    fn rests(&mut self, slot: usize, caller: usize, term: LeaseTimes) {
        self.saw(Seen::Rested);
        let (local, life) = (self.local(slot), self.nodes[slot].life);
        let third = Duration::from_millis(term.lease_ms) / 3;
        let rest = Rest {
            earliest: local + third.mul_f64(0.9),
            latest: local + third,
        };
        self.watch.elections.rests.insert((slot, life, caller), rest);
    }

    /// A caller has not rested for long enough.
    pub(crate) fn is_resting(&self, slot: usize, caller: usize) -> bool {
        let rest = self
            .watch
            .elections
            .rests
            .get(&(slot, self.nodes[slot].life, caller));
        rest.is_some_and(|rest| self.local(slot) < rest.earliest)
    }

    /// A node asks for somebody who does not rest.
    pub(crate) fn watch_rests(&mut self, slot: usize, key: usize, request: &Request) {
        if request.name.kind != Kind::Election {
            return;
        }
        let is_of: fn(Option<Call>) -> bool = match request.verb {
            Verb::Claim { .. } => |call| call.is_none(),
            Verb::Call(Call::Leader { .. }) => |call| matches!(call, Some(Call::Leader { .. })),
            _ => return,
        };
        let (local, life) = (self.local(slot), self.nodes[slot].life);
        let node = &self.nodes[slot];
        let wants = |caller: &usize| {
            let of = &node.callers[*caller];
            let waits = matches!(of.state, State::Waiting | State::GivingUp);
            waits && of.key == key && is_of(of.asks)
        };
        let (resting, awake): (Vec<_>, Vec<_>) = node
            .live
            .iter()
            .copied()
            .filter(wants)
            .partition(|caller| self.is_resting(slot, *caller));
        // Of those whose time has come it is for the first.
        let rests = &mut self.watch.elections.rests;
        let is_due = |caller: &&usize| {
            let rest = rests.get(&(slot, life, **caller));
            rest.is_some_and(|rest| rest.earliest <= local)
        };
        let first = awake.iter().find(is_due).copied();
        if let Some(first) = first {
            rests.remove(&(slot, life, first));
        }
        if awake.is_empty() {
            self.wrong(Wrong::Restless, Some(key), || {
                format!("node {slot} asks for nobody but {resting:?}, who rest: {request:?}")
            });
        }
    }

    /// Who has rested claims then, where the store is well.
    fn watch_rested(&mut self) {
        let nodes = &self.nodes;
        self.watch.elections.rests.retain(|(slot, life, caller), _| {
            let node = &nodes[*slot];
            node.alive && node.life == *life && node.callers[*caller].state == State::Waiting
        });
        if !self.is_calm() || !self.profile.rules.queues {
            return;
        }
        let slack = Duration::from_nanos(20 * MS + 4 * self.profile.lag);
        let mut rests = self.watch.elections.rests.iter();
        let late = rests.find(|((slot, ..), rest)| rest.latest + slack < self.local(*slot));
        if let Some((&(slot, _, caller), _)) = late {
            let key = self.nodes[slot].callers[caller].key;
            let state = self.describe(key);
            self.wrong(Wrong::Restless, Some(key), || {
                format!("ticket {} of node {slot} rests on: {state}", caller + 1)
            });
        }
    }

    // Now and then.

    /// In calm, who keeps asking knows who leads, by its own timer.
    pub(crate) fn watch_elections(&mut self) {
        if self.elections.is_empty() {
            return;
        }
        self.watch_rested();
        let calm = self.is_calm();
        for observer in 0..self.watch.elections.observers.len() {
            let of = &self.watch.elections.observers[observer];
            let (slot, key, lease) = (of.slot, of.key, of.term.lease_ms * MS);
            let node = &self.nodes[slot];
            let asks = of.asks.filter(|_| node.alive && node.life == of.life);
            let asks = asks.filter(|caller| !self.is_resting(slot, *caller));
            let truth = self.truth(key);
            let knows = of.known.is_some_and(|(_, told)| told == truth);
            let now = self.now;
            let of = &mut self.watch.elections.observers[observer];
            if !calm || asks.is_none() || knows {
                of.differs = None;
                continue;
            }
            // Between two looks of this check another may have led, of which the observer was told in time.
            of.differs = of.differs.filter(|(_, of)| *of == truth);
            let ((since, _), known) = (*of.differs.get_or_insert((now, truth)), of.known);
            let bound = lease / 3 + lease / 100 + 6 * self.profile.delay.1 + 30 * MS;
            if now - since > bound {
                let state = self.describe(key);
                self.wrong(Wrong::LeaderUntold, Some(key), || {
                    format!("{truth:?} leads, and an observer of node {slot} knows {known:?}: {state}")
                });
            }
        }
        if calm && !self.draining {
            self.kill_a_leader();
        }
    }

    /// Even in a calm a leader may be killed. Not another before all of that is over.
    fn kill_a_leader(&mut self) {
        if self.now < self.watch.elections.next_kill || !self.chance(3) {
            return;
        }
        let leads = |slot: &usize| {
            let node = &self.nodes[*slot];
            let mut live = node.live.iter().map(|caller| &node.callers[*caller]);
            node.alive && live.any(|of| self.elections.contains(&of.key) && of.state == State::Holding)
        };
        let Some(slot) = (0..self.nodes.len()).find(leads) else {
            return;
        };
        self.note(Some(slot), None, || "killed while it leads".into());
        self.saw(Seen::LeaderKilled);
        let notice = self.kill(slot);
        let longest = self.profile.longest().as_nanos() as u64;
        self.watch.elections.next_kill = self.now + notice + 2 * longest;
    }

    /// Nobody observes any more.
    pub(crate) fn stop_observing(&mut self) {
        for observer in 0..self.watch.elections.observers.len() {
            let of = &mut self.watch.elections.observers[observer];
            let (slot, life) = (of.slot, of.life);
            if let Some(caller) = of.asks.take().filter(|_| self.is(slot, life)) {
                self.act(slot, caller, Act::GiveUp);
            }
        }
    }
}
