//! Callers of latches: they set one, count it down, ask for its count and wait for zero.

use tenure::protocol::message::{Call, CallTime, LatchReport, Payload};
use tenure::protocol::step::{CallOptions, Input};

use crate::time::MS;
use crate::world::World;
use crate::world::caller::{CallerAction, CallerState};
use crate::world::event::Event;
use crate::world::latch_memory::{LatchCall, LatchId};
use crate::world::signal::Signal;

/// The maximum number of waiters of a node.
pub(crate) const MAX_WAITERS: usize = 4;

/// The lifetimes of latches, in ms. Some are shorter than the interval at which waiters ask.
pub(crate) const LATCH_LIVES_MS: [u64; 4] = [150, 600, 2_000, 4_000];

impl World {
    /// A caller sets the latch, counts it down, asks for its count or waits for zero.
    pub(crate) fn use_latch(&mut self, slot: usize) {
        if self.draining {
            return;
        }
        let pause = self.rng.u64(0..120 * MS);
        self.after(pause, Event::LatchUse { slot });
        let node = &self.nodes[slot];
        if !node.alive || node.paused.is_some() {
            return;
        }
        self.memory.latches.calls += 1;
        let call = self.memory.latches.calls;
        let mut id = format!("call {call}");
        let called = CallTime::default();
        let call = match self.rng.u8(0..100) {
            0..18 => Call::SetCount {
                count: self.rng.u32(1..=4),
                life_ms: LATCH_LIVES_MS[self.rng.usize(0..LATCH_LIVES_MS.len())],
            },
            18..60 => {
                if self.chance(25) {
                    id = format!("worker {}", call % 6);
                }
                Call::CountDown { called }
            }
            60..65 => Call::Count,
            _ if self.latch_waiters(slot).count() >= MAX_WAITERS => return,
            _ => Call::Zero { of: None },
        };
        let id: LatchId = id.as_bytes().into();
        self.call_latch(slot, call, id);
    }

    /// Sends a call to the latch. The caller may cancel it.
    pub(crate) fn call_latch(&mut self, slot: usize, call: Call, id: LatchId) {
        let Some(key) = self.latch else { return };
        let has_id = matches!(call, Call::SetCount { .. } | Call::CountDown { .. });
        let call_options = CallOptions {
            data: has_id.then(|| Payload(id.clone())),
            limit: 64,
            ..CallOptions::new(self.profile.terms[0], call)
        };
        let (ticket, caller) = self.new_call(slot, key, &call_options);
        let life = self.nodes[slot].life;
        let call = LatchCall {
            id: id.clone(),
            at: self.now,
        };
        let latches = &mut self.memory.latches;
        if id.starts_with(b"call") {
            latches.called.entry(id.clone()).or_insert(self.now);
        }
        latches.made.insert((slot, life, caller), call);
        if self.chance(10) {
            let patience = self.rng.u64(0..call_options.term.lease_ms * MS);
            let act = CallerAction::GiveUp;
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
        self.feed(slot, key, Input::Call(ticket, call_options));
    }

    /// Returns the waiters of a node, with the time at which each came.
    pub(crate) fn latch_waiters(&self, slot: usize) -> impl Iterator<Item = (usize, u64)> {
        let (node, made) = (&self.nodes[slot], &self.memory.latches.made);
        let live = node.live.iter().filter(|caller| {
            let of = &node.callers[**caller];
            Some(of.key) == self.latch && of.options.wait && of.state == CallerState::Waiting
        });
        live.filter_map(move |caller| Some((*caller, made.get(&(slot, node.life, *caller))?.at)))
    }

    /// Handles the answer to a latch call. If the latch was set at about the time of the call, the caller
    /// names the generation and repeats it.
    pub(crate) fn latch_answered(&mut self, slot: usize, caller: usize, report: LatchReport) {
        let (node, life) = (&self.nodes[slot], self.nodes[slot].life);
        let call = node.callers[caller].call;
        let Some(LatchCall { id, at }) = self.memory.latches.made.remove(&(slot, life, caller)) else {
            return;
        };
        self.raise(Signal::LatchAnswered {
            slot,
            caller,
            id: &id,
            called_at: at,
            report,
        });
        if let (Some(mut call), LatchReport::SetMeanwhile(generation)) = (call, report)
            && let Call::CountDown { called } = &mut call
        {
            *called = CallTime {
                of: Some(generation),
                ..CallTime::default()
            };
            self.call_latch(slot, call, id);
        }
    }
}
