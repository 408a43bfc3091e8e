//! Callers of elections: candidates, leaders and observers.

use std::time::Duration;

use tenure::protocol::claim::held_lease::Holding;
use tenure::protocol::message::{Call, GrantNumber, LeaderReport, LeaseTimes, Payload};
use tenure::protocol::step::{AcquireError, CallOptions, Input, LockOptions, Ticket, WhyDenied};

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::caller::{Caller, CallerAction};
use crate::world::election_memory::{Observer, RestPeriod};
use crate::world::event::Event;
use crate::world::signal::Signal;

/// The value that a leader proclaims.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proclamation {
    pub(crate) number: GrantNumber,
    pub(crate) seq: u64,
    pub(crate) node: String,
}

/// The grant number in the value of a candidate, which is written before the candidate wins.
pub(crate) const NOT_YET_GRANTED: GrantNumber = GrantNumber(0);

impl Proclamation {
    /// Returns the bytes to proclaim.
    pub(crate) fn write(&self) -> Payload {
        let text = format!("{} {} {}", self.number.0, self.seq, self.node);
        Payload(text.into_bytes().into())
    }

    /// Parses proclaimed bytes.
    pub(crate) fn read(proclamation: &Payload) -> Option<Self> {
        let text = std::str::from_utf8(&proclamation.0).ok()?;
        let mut words = text.split(' ');
        Some(Proclamation {
            number: GrantNumber(words.next()?.parse().ok()?),
            seq: words.next()?.parse().ok()?,
            node: words.next()?.to_owned(),
        })
    }
}

impl World {
    /// Schedules the first campaigns and creates the observers.
    pub(crate) fn begin_elections(&mut self) {
        for key in self.elections.clone() {
            for slot in 0..self.nodes.len() {
                let first = self.rng.u64(0..50 * MS);
                self.at(first, Event::Campaign { slot, key });
                for more in 0..1 + (slot + key) % 2 {
                    let term = self.profile.terms[(slot + more) % self.profile.terms.len()];
                    let observer = self.memory.elections.observers.len();
                    self.memory.elections.observers.push(Observer {
                        slot,
                        life: 0,
                        key,
                        term,
                        failed: false,
                        known: None,
                        latest: None,
                        asking_caller: None,
                        differs: None,
                    });
                    let first = self.rng.u64(0..100 * MS);
                    self.at(first, Event::Observe { observer });
                }
            }
        }
    }

    /// Returns whether the caller is a candidate of the key.
    pub(crate) fn is_candidate(&self, slot: usize, key: usize, caller: usize) -> bool {
        let of = &self.nodes[slot].callers[caller];
        of.key == key && of.call.is_none()
    }

    /// Starts a campaign unless the node has enough candidates. Some nodes have two.
    pub(crate) fn start_candidate(&mut self, slot: usize, key: usize) {
        if self.draining || !self.has_candidates(slot) {
            return;
        }
        let pause = self.rng.u64(0..300 * MS);
        self.after(pause, Event::Campaign { slot, key });
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

    /// Starts a candidate. A candidate that lost, or could not reach the store, rests first.
    pub(crate) fn campaign(&mut self, slot: usize, key: usize, rests: bool) {
        if self.draining {
            return;
        }
        let term = self.profile.terms[self.rng.usize(0..self.profile.terms.len())];
        let options = LockOptions {
            solo: true,
            rests,
            limit: 1000,
            ..LockOptions::new(term)
        };
        let ticket = self.add_caller(slot, key, options);
        if rests {
            self.start_rest(slot, ticket.0 as usize - 1, term);
        }
        // Not drawn: in the other half of the worlds, no candidate has a value.
        let has_value = self.setup.seed.is_multiple_of(2) && ticket.0.is_multiple_of(2);
        let input = if has_value {
            self.memory.elections.seq += 1;
            let proclamation = Proclamation {
                number: NOT_YET_GRANTED,
                seq: self.memory.elections.seq,
                node: self.nodes[slot].id.to_string(),
            };
            Input::Campaign(ticket, options, proclamation.write())
        } else {
            Input::Lock(ticket, options)
        };
        self.feed(slot, key, input);
    }

    /// Plans what a leader does: it proclaims values, the last perhaps after its loss, and resigns.
    pub(crate) fn plan_leadership(&mut self, slot: usize, caller: usize) {
        let Caller {
            key, options, claim, ..
        } = self.nodes[slot].callers[caller];
        let life = self.nodes[slot].life;
        let holding = self.holding(slot, key, Ticket(caller as u64 + 1));
        if let (Some(claim), Some(holding)) = (claim, holding.filter(Holding::is_held)) {
            let number = holding.fence.number();
            self.memory.elections.leads.insert(claim, number);
        }
        self.cover(if options.rests { Case::LedRested } else { Case::Led });
        let lease = options.term.lease_ms * MS;
        let span = match self.rng.u8(0..100) {
            _ if self.draining => self.rng.u64(0..5 * MS),
            0..10 => 0,
            10..60 => self.rng.u64(0..500 * MS),
            _ => self.rng.u64(0..2 * lease + 500 * MS),
        };
        let act = if self.chance(60) {
            CallerAction::Release
        } else {
            CallerAction::Drop
        };
        let mut acts = vec![(span, act)];
        for _ in 0..self.rng.u32(0..12) {
            acts.push((self.rng.u64(0..=span), CallerAction::Proclaim));
        }
        if self.chance(20) {
            acts.push((span + self.rng.u64(0..1_000 * MS), CallerAction::Proclaim));
        }
        if self.chance(20) {
            acts.push((self.rng.u64(0..=span), CallerAction::Look));
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

    /// Proclaims a value, whether the caller still leads or not.
    pub(crate) fn proclaim(&mut self, slot: usize, caller: usize) {
        let Caller {
            key, options, claim, ..
        } = self.nodes[slot].callers[caller];
        let Some(of) = claim.filter(|_| !self.draining) else {
            return;
        };
        let Some(number) = self.memory.elections.leads.get(&of).copied() else {
            return;
        };
        self.memory.elections.seq += 1;
        let seq = self.memory.elections.seq;
        let proclamation = Proclamation {
            number,
            seq,
            node: of.node.to_string(),
        };
        let call_options = CallOptions {
            data: Some(proclamation.write()),
            ..CallOptions::new(options.term, Call::Proclaim { of, seq })
        };
        let (ticket, made) = self.new_call(slot, key, &call_options);
        // If the node still reports the lease as held when the answer comes, the caller led when the call was
        // executed.
        let holding = self.holding(slot, key, Ticket(caller as u64 + 1));
        self.nodes[slot].callers[made].in_time = holding.is_some_and(|holding| holding.is_held());
        self.feed(slot, key, Input::Call(ticket, call_options));
    }

    /// Schedules a new campaign after a loss.
    pub(crate) fn campaign_later(&mut self, slot: usize, key: usize) {
        let life = self.nodes[slot].life;
        self.after(MS, Event::CampaignAgain { slot, life, key });
    }

    /// An observer asks unless it waits for an answer. Sometimes it cancels the question and asks again
    /// later.
    pub(crate) fn observe(&mut self, observer: usize) {
        if self.draining {
            return;
        }
        let pause = self.rng.u64(0..400 * MS);
        self.after(pause, Event::Observe { observer });
        let cancels = self.chance(10);
        let of = &mut self.memory.elections.observers[observer];
        let node = &self.nodes[of.slot];
        if !node.alive || node.paused.is_some() || node.closing {
            return;
        }
        let (slot, life) = (of.slot, node.life);
        if of.life != life {
            (of.life, of.failed, of.asking_caller) = (life, false, None);
            (of.known, of.latest) = (None, None);
        }
        match of.asking_caller {
            Some(caller) if cancels => {
                of.asking_caller = None;
                self.act(slot, caller, CallerAction::GiveUp);
            }
            Some(_) => {}
            None => self.ask_for_leader(observer),
        }
    }

    /// An observer asks again at once after an answer.
    pub(crate) fn observe_again(&mut self, observer: usize) {
        if !self.draining && self.memory.elections.observers[observer].asking_caller.is_none() {
            self.ask_for_leader(observer);
        }
    }

    /// Sends the question of an observer. After a failure it rests first.
    pub(crate) fn ask_for_leader(&mut self, observer: usize) {
        let Observer {
            slot,
            key,
            term,
            failed,
            known,
            ..
        } = self.memory.elections.observers[observer];
        let known = known.map(|(version, _)| version);
        let call_options = CallOptions {
            rests: failed,
            limit: 64,
            ..CallOptions::new(term, Call::Leader { known })
        };
        let (ticket, caller) = self.new_call(slot, key, &call_options);
        if failed {
            self.start_rest(slot, caller, term);
        }
        let of = &mut self.memory.elections.observers[observer];
        (of.asking_caller, of.differs) = (Some(caller), None);
        self.feed(slot, key, Input::Call(ticket, call_options));
    }

    /// Handles the denial of a candidate or of a call in an election.
    pub(crate) fn election_denied(&mut self, slot: usize, caller: usize, denial: &WhyDenied) {
        let Caller { key, call, .. } = self.nodes[slot].callers[caller];
        if !self.elections.contains(&key) {
            return;
        }
        match call {
            None if matches!(denial, WhyDenied::Error(AcquireError::Store(_))) => {
                self.campaign_later(slot, key)
            }
            Some(Call::Leader { .. }) if !matches!(denial, WhyDenied::Error(AcquireError::Closed)) => {
                self.leader_answered(slot, caller, None);
            }
            Some(Call::Leader { .. }) => {
                if let Some(observer) = self.observer_of(slot, caller) {
                    self.memory.elections.observers[observer].asking_caller = None;
                }
            }
            _ => {}
        }
    }

    /// Handles what an observer is told about the leader and its proclamation.
    pub(crate) fn leader_answered(
        &mut self,
        slot: usize,
        caller: usize,
        answer: Option<Option<&LeaderReport>>,
    ) {
        let Some(observer) = self.observer_of(slot, caller) else {
            return;
        };
        let life = self.nodes[slot].life;
        let of = &mut self.memory.elections.observers[observer];
        (of.asking_caller, of.differs) = (None, None);
        of.failed = answer.is_none();
        if let Some(report) = answer {
            self.raise(Signal::LeaderAnswered { observer, report });
        }
        if self.chance(80) {
            let pause = self.rng.u64(0..MS);
            self.after(pause, Event::ObserveAgain { slot, life, observer });
        }
    }

    /// Returns the observer for which the caller asks.
    pub(crate) fn observer_of(&self, slot: usize, caller: usize) -> Option<usize> {
        let life = self.nodes[slot].life;
        let mut observers = self.memory.elections.observers.iter();
        observers.position(|of| (of.slot, of.life, of.asking_caller) == (slot, life, Some(caller)))
    }

    /// Remembers until when a caller must rest.
    pub(crate) fn start_rest(&mut self, slot: usize, caller: usize, term: LeaseTimes) {
        self.cover(Case::Rested);
        let (local, life) = (self.local(slot), self.nodes[slot].life);
        let third = Duration::from_millis(term.lease_ms) / 3;
        let rest = RestPeriod {
            earliest: local + third.mul_f64(0.9),
            latest: local + third,
        };
        self.memory.elections.rests.insert((slot, life, caller), rest);
    }

    /// Cancels the questions of all observers.
    pub(crate) fn stop_observing(&mut self) {
        for observer in 0..self.memory.elections.observers.len() {
            let of = &mut self.memory.elections.observers[observer];
            let (slot, life) = (of.slot, of.life);
            if let Some(caller) = of.asking_caller.take().filter(|_| self.is_alive(slot, life)) {
                self.act(slot, caller, CallerAction::GiveUp);
            }
        }
    }
}
