//! Latches: who sets one, counts it down and waits for zero, and what must never become of that.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tenure::protocol::ledger::LatchRecord;
use tenure::protocol::message::{Call, CallTime, LatchReport, Payload, Request, Verb, Version};
use tenure::protocol::step::{CallOptions, Input};

use crate::Wrong;
use crate::callers::{Act, State};
use crate::world::{Event, MS, World};

/// The most who wait at a node.
const WAITERS: usize = 4;
/// How long a latch lives, in ms: some for less than the interval at which others look.
const LIVES: [u64; 4] = [150, 600, 2_000, 4_000];

type Id = Arc<[u8]>;

/// What the watchers remember of the latch.
#[derive(Debug, Default)]
pub(crate) struct Latches {
    calls: u64,
    /// Of each caller (slot, life, place), the call that it makes.
    made: HashMap<(usize, u32, usize), SentCall>,
    /// When each call was made. Those of workers that start twice are not here.
    called: HashMap<Id, u64>,
    /// In which generation each call counted last.
    counted: HashMap<Id, Version>,
    /// When each generation was set.
    set: HashMap<Version, u64>,
    /// The calls that changed it.
    executed: HashSet<Id>,
    /// When it was last seen at zero.
    zero_until: Option<u64>,
    /// When it came to zero.
    zeros: Vec<u64>,
    /// Since when it has been at zero, or not set.
    resting: Option<u64>,
}

#[derive(Debug, Clone)]
struct SentCall {
    id: Id,
    at: u64,
}

impl World {
    /// Somebody sets the latch, counts it down, asks or waits.
    pub(crate) fn use_latch(&mut self, slot: usize) {
        if self.draining {
            return;
        }
        let pause = self.rng.u64(0..120 * MS);
        self.after(pause, Event::Latch { slot });
        let node = &self.nodes[slot];
        if !node.alive || node.paused.is_some() {
            return;
        }
        self.watch.latches.calls += 1;
        let call = self.watch.latches.calls;
        let mut id = format!("call {call}");
        let called = CallTime::default();
        let call = match self.rng.u8(0..100) {
            0..18 => Call::SetCount {
                count: self.rng.u32(1..=4),
                life_ms: LIVES[self.rng.usize(0..LIVES.len())],
            },
            18..60 => {
                if self.chance(25) {
                    id = format!("worker {}", call % 6);
                }
                Call::CountDown { called }
            }
            60..65 => Call::Count,
            _ if self.latch_waiters(slot).count() >= WAITERS => return,
            _ => Call::Zero { of: None },
        };
        let id: Id = id.as_bytes().into();
        self.call_latch(slot, call, id);
    }

    fn call_latch(&mut self, slot: usize, call: Call, id: Id) {
        let Some(key) = self.latch else { return };
        let has_id = matches!(call, Call::SetCount { .. } | Call::CountDown { .. });
        let asks = CallOptions {
            data: has_id.then(|| Payload(id.clone())),
            limit: 64,
            ..CallOptions::new(self.profile.terms[0], call)
        };
        let (ticket, caller) = self.new_call(slot, key, &asks);
        let life = self.nodes[slot].life;
        let call = SentCall {
            id: id.clone(),
            at: self.now,
        };
        let latches = &mut self.watch.latches;
        if id.starts_with(b"call") {
            latches.called.entry(id.clone()).or_insert(self.now);
        }
        latches.made.insert((slot, life, caller), call);
        if self.chance(10) {
            let patience = self.rng.u64(0..asks.term.lease_ms * MS);
            let act = Act::GiveUp;
            self.after(
                patience,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act,
                },
            );
        }
        self.feed(slot, key, Input::Call(ticket, asks));
    }

    /// Who waits at a node, and since when.
    fn latch_waiters(&self, slot: usize) -> impl Iterator<Item = (usize, u64)> {
        let (node, made) = (&self.nodes[slot], &self.watch.latches.made);
        let live = node.live.iter().filter(|caller| {
            let of = &node.callers[**caller];
            Some(of.key) == self.latch && of.want.wait && of.state == State::Waiting
        });
        live.filter_map(move |caller| Some((*caller, made.get(&(slot, node.life, *caller))?.at)))
    }

    /// The call of that caller changed the latch. Workers that start twice share a call.
    pub(crate) fn call_was_executed(&self, slot: usize, caller: usize) -> bool {
        let latches = &self.watch.latches;
        let made = latches.made.get(&(slot, self.nodes[slot].life, caller));
        made.is_some_and(|call| call.id.starts_with(b"call") && latches.executed.contains(&call.id))
    }

    /// A caller was told something. Where the latch was set at about the time of its call it says that it means that one.
    pub(crate) fn latch_answered(&mut self, slot: usize, caller: usize, report: LatchReport) {
        let (node, life) = (&self.nodes[slot], self.nodes[slot].life);
        let (key, call) = (node.callers[caller].key, node.callers[caller].asks);
        let Some(SentCall { id, at }) = self.watch.latches.made.remove(&(slot, life, caller)) else {
            return;
        };
        let latches = &self.watch.latches;
        match (call, report) {
            (Some(Call::Zero { .. }), LatchReport::Left(0)) if latches.zero_until < Some(at) => {
                self.wrong(Wrong::BeforeZero, Some(key), || {
                    format!("ticket {} of node {slot} came at {} ms", caller + 1, at / MS)
                });
            }
            (Some(Call::CountDown { .. }), LatchReport::Left(1..)) if !latches.counted.contains_key(&id) => {
                self.wrong(Wrong::NotCounted, Some(key), || {
                    format!("ticket {} of node {slot} was told {report:?}", caller + 1)
                });
            }
            (Some(mut call), LatchReport::SetMeanwhile(generation)) => {
                if let Call::CountDown { called } = &mut call {
                    *called = CallTime {
                        of: Some(generation),
                        ..CallTime::default()
                    };
                    self.call_latch(slot, call, id);
                }
            }
            _ => {}
        }
    }

    /// At the server: it is set once per life, and each call counts once, and in no generation that was set after it.
    pub(crate) fn watch_latch(
        &mut self,
        key: usize,
        request: &Request,
        before: Option<&LatchRecord>,
        after: Option<&LatchRecord>,
    ) {
        if Some(key) != self.latch {
            return;
        }
        let is_zero = |latch: Option<&LatchRecord>| latch.is_some_and(|latch| latch.left == 0);
        if is_zero(before) || is_zero(after) {
            self.watch.latches.zero_until = Some(self.now);
        }
        if !(after.is_none() || is_zero(after)) {
            self.watch.latches.resting = None;
        }
        let Some(after) = after else { return };
        let told = |latch: &LatchRecord| (latch.generation, latch.left);
        // A copy is executed, and its original may be refused.
        let is_changed = before.map(told) != Some(told(after)) && !self.watch.twin;
        if let Some(id) = request.data.as_ref().filter(|_| is_changed) {
            self.watch.latches.executed.insert(id.0.clone());
        }
        let Some(before) = before.filter(|before| before.generation == after.generation) else {
            self.watch.latches.set.insert(after.generation, self.now);
            if before.is_some() || !matches!(request.verb, Verb::Call(Call::SetCount { .. })) {
                self.wrong(Wrong::SetTwice, Some(key), || {
                    format!("{request:?} made {after:?} of {before:?}")
                });
            }
            return;
        };
        if before.left == after.left {
            return;
        }
        if after.left == 0 {
            self.watch.latches.zeros.push(self.now);
        }
        self.watch_count(key, request, before, after);
    }

    fn watch_count(&mut self, key: usize, request: &Request, before: &LatchRecord, after: &LatchRecord) {
        let Verb::Call(Call::CountDown { called }) = request.verb else {
            return self.wrong(Wrong::CountedTwice, Some(key), || {
                format!("{request:?} made {after:?} of {before:?}")
            });
        };
        let Some(id) = request.data.as_ref().map(|id| id.0.clone()) else {
            return;
        };
        let latches = &mut self.watch.latches;
        let earlier = latches.counted.insert(id.clone(), after.generation);
        let call = latches.called.get(&id).copied();
        let set = latches.set.get(&after.generation).copied();
        if earlier == Some(after.generation) || before.left != after.left + 1 {
            self.wrong(Wrong::CountedTwice, Some(key), || {
                format!("{request:?} made {after:?} of {before:?}")
            });
        }
        // Nobody can say when it was, once the server's clock went back.
        if self.watch.stepped_back {
            return;
        }
        let is_again = earlier.is_some() && call.is_some();
        let is_repeat = called.repeats && called.of.is_none();
        if is_again || is_repeat && call.is_some_and(|call| set > Some(call)) {
            self.wrong(Wrong::CountedLate, Some(key), || {
                format!("{request:?} of {call:?} counted in {earlier:?} and in {after:?} of {set:?}")
            });
        }
    }

    /// In calm, whoever waits hears of zero, and that nothing is set, by its own timer.
    pub(crate) fn watch_latch_sleepers(&mut self) {
        let Some(key) = self.latch else { return };
        let us = self.server_us();
        let latch = self.server.ledger.latch(&self.keys[key], us);
        let rests = latch.is_none_or(|latch| latch.left == 0);
        let now = self.now;
        let latches = &mut self.watch.latches;
        latches.resting = rests.then(|| latches.resting.unwrap_or(now));
        let (resting, zeros) = (latches.resting, std::mem::take(&mut latches.zeros));
        let lease = self.profile.terms[0].lease_ms * MS;
        let trip = 6 * self.profile.delay.1 + 30 * MS;
        let bound = lease / 3 + lease / 100 + trip;
        let calm = self.calm_since();
        // Who came in the calm, and was answered before that once.
        let missed = |at: u64| {
            let after = zeros.iter().find(|zero| **zero > at.max(calm) + trip);
            after.is_some_and(|zero| now > zero + bound)
        };
        let is_past = |at: u64| resting.is_some_and(|since| now > since.max(at) + bound) || missed(at);
        let slots = (0..self.nodes.len()).filter(|slot| self.nodes[*slot].alive);
        let asleep = slots
            .flat_map(|slot| {
                self.latch_waiters(slot)
                    .map(move |(caller, at)| (slot, caller, at))
            })
            .find(|(.., at)| is_past(*at));
        if let Some((slot, caller, at)) = asleep {
            let state = self.describe(key);
            self.wrong(Wrong::PastZero, Some(key), || {
                let (ticket, at) = (caller + 1, at / MS);
                format!("ticket {ticket} of node {slot} has waited since {at} ms: {state}")
            });
        }
        self.watch.latches.zeros = zeros;
    }
}
