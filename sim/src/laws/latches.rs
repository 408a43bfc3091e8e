//! Laws of latches.

use tenure::protocol::ledger::LatchRecord;
use tenure::protocol::message::{Call, LatchReport, Request, Verb};

use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::Caller;
use crate::world::latch_memory::LatchId;

impl World {
    /// Returns whether the caller's call changed the latch. Workers that start twice share a call and are not
    /// counted.
    pub(crate) fn call_was_executed(&self, slot: usize, caller: usize) -> bool {
        let latches = &self.memory.latches;
        let made = latches.made.get(&(slot, self.nodes[slot].life, caller));
        made.is_some_and(|call| call.id.starts_with(b"call") && latches.executed.contains(&call.id))
    }

    /// Checks at the server: a latch is set once per lifetime, and a call counts once and never in a
    /// generation that was set after it.
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
            self.memory.latches.zero_until = Some(self.now);
        }
        if !(after.is_none() || is_zero(after)) {
            self.memory.latches.resting = None;
        }
        let Some(after) = after else { return };
        let told = |latch: &LatchRecord| (latch.generation, latch.left);
        // A copy was executed; the original may be refused.
        let is_changed = before.map(told) != Some(told(after)) && !self.memory.is_copy;
        if let Some(id) = request.data.as_ref().filter(|_| is_changed) {
            self.memory.latches.executed.insert(id.0.clone());
        }
        let Some(before) = before.filter(|before| before.generation == after.generation) else {
            self.memory.latches.set.insert(after.generation, self.now);
            if before.is_some() || !matches!(request.verb, Verb::Call(Call::SetCount { .. })) {
                self.report(Violation::LatchSetTwice, Some(key), || {
                    format!("{request:?} made {after:?} of {before:?}")
                });
            }
            return;
        };
        if before.left == after.left {
            return;
        }
        if after.left == 0 {
            self.memory.latches.zeros.push(self.now);
        }
        self.watch_count(key, request, before, after);
    }

    /// Checks a change of the count.
    pub(crate) fn watch_count(
        &mut self,
        key: usize,
        request: &Request,
        before: &LatchRecord,
        after: &LatchRecord,
    ) {
        let Verb::Call(Call::CountDown { called }) = request.verb else {
            return self.report(Violation::CountedTwice, Some(key), || {
                format!("{request:?} made {after:?} of {before:?}")
            });
        };
        let Some(id) = request.data.as_ref().map(|id| id.0.clone()) else {
            return;
        };
        let latches = &mut self.memory.latches;
        let earlier = latches.counted.insert(id.clone(), after.generation);
        let call = latches.called.get(&id).copied();
        let set = latches.set.get(&after.generation).copied();
        // A count may be lost, and count again.
        let is_lost = self.is_after_loss();
        let is_again = earlier == Some(after.generation) && !is_lost;
        if is_again || before.left != after.left + 1 {
            self.report(Violation::CountedTwice, Some(key), || {
                format!("{request:?} made {after:?} of {before:?}")
            });
        }
        // The server's clock was stepped after the call, so the order of the call and of the generation is unknown.
        if self.memory.stepped_back || call.is_some_and(|call| call < self.memory.stepped_at) {
            return;
        }
        let is_again = earlier.is_some() && call.is_some() && !is_lost;
        let is_repeat = called.repeats && called.of.is_none();
        if is_again || is_repeat && call.is_some_and(|call| set > Some(call)) {
            self.report(Violation::CountedLate, Some(key), || {
                format!("{request:?} of {call:?} counted in {earlier:?} and in {after:?} of {set:?}")
            });
        }
    }

    /// Checks that in a calm a waiter hears of zero, or of an unset latch, at the latest by its own timer.
    pub(crate) fn watch_latch_waiters(&mut self) {
        let Some(key) = self.latch else { return };
        let us = self.server_us();
        let latch = self.server.ledger.latch(&self.keys[key], us);
        let rests = latch.is_none_or(|latch| latch.left == 0);
        let now = self.now;
        let latches = &mut self.memory.latches;
        latches.resting = rests.then(|| latches.resting.unwrap_or(now));
        let (resting, zeros) = (latches.resting, std::mem::take(&mut latches.zeros));
        let lease = self.profile.terms[0].lease_ms * MS;
        let trip = 6 * self.profile.delay.1 + 30 * MS;
        let bound = lease / 3 + lease / 100 + trip;
        let calm = self.calm_since();
        // A waiter that came in the calm, and had an answer before that zero.
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
            let state = self.describe_key(key);
            self.report(Violation::ZeroNotTold, Some(key), || {
                let (ticket, at) = (caller + 1, at / MS);
                format!("ticket {ticket} of node {slot} has waited since {at} ms: {state}")
            });
        }
        self.memory.latches.zeros = zeros;
    }

    /// Checks an answer: zero was reached since the caller came, and a reported count-down has counted.
    pub(crate) fn watch_latch_answer(
        &mut self,
        slot: usize,
        caller: usize,
        id: &LatchId,
        at: u64,
        report: LatchReport,
    ) {
        let Caller { key, call, .. } = self.nodes[slot].callers[caller];
        let latches = &self.memory.latches;
        match (call, report) {
            (Some(Call::Zero { .. }), LatchReport::Left(0)) if latches.zero_until < Some(at) => {
                self.report(Violation::ZeroToldTooEarly, Some(key), || {
                    format!("ticket {} of node {slot} came at {} ms", caller + 1, at / MS)
                });
            }
            (Some(Call::CountDown { .. }), LatchReport::Left(1..)) if !latches.counted.contains_key(id) => {
                self.report(Violation::NotCounted, Some(key), || {
                    format!("ticket {} of node {slot} was told {report:?}", caller + 1)
                });
            }
            _ => {}
        }
    }
}
