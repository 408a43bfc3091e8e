//! Callers that save and recall checkpoints of runs.

use tenure::protocol::message::{Call, ClaimId, Payload, TickTime};
use tenure::protocol::step::{CallOptions, Input};

use crate::time::MS;
use crate::world::World;
use crate::world::caller::{Caller, CallerAction};
use crate::world::event::Event;

/// Returns a checkpoint that names its run and its tick.
pub(crate) fn checkpoint_of(of: ClaimId, mark: Option<TickTime>) -> Payload {
    Payload(format!("{of} {mark:?}").into_bytes().into())
}

impl World {
    /// Plans the calls of a run: it may recall a checkpoint, save some while it goes on, and save one after
    /// it ended.
    pub(crate) fn plan_checkpoints(&mut self, slot: usize, caller: usize, span: u64) {
        // These numbers come from another generator, so the rest of the world stays the same.
        let mut rng = fastrand::Rng::with_seed(self.setup.seed ^ self.now ^ caller as u64);
        if rng.bool() {
            self.send_checkpoint_call(slot, caller, |of| Call::Recall { of });
        }
        let life = self.nodes[slot].life;
        let save = || Event::Caller {
            slot,
            life,
            caller,
            act: CallerAction::Save,
        };
        for _ in 0..rng.u32(0..3) {
            let at = rng.u64(0..=span);
            self.after(at, save());
        }
        if rng.u8(0..4) == 0 {
            // A stopped run may go on long after it lost its lease.
            let at = span + rng.u64(0..2_000 * MS);
            self.after(at, save());
        }
    }

    /// Saves a checkpoint of a run.
    pub(crate) fn save_checkpoint(&mut self, slot: usize, caller: usize) {
        let seq = self.nodes[slot].asked.into();
        self.send_checkpoint_call(slot, caller, |of| Call::Save { of, seq });
    }

    /// Sends a call of a run about its checkpoints.
    pub(crate) fn send_checkpoint_call(
        &mut self,
        slot: usize,
        caller: usize,
        call: impl Fn(ClaimId) -> Call,
    ) {
        let Caller {
            key, options, claim, ..
        } = self.nodes[slot].callers[caller];
        let Some(of) = claim.filter(|_| !self.draining) else {
            return;
        };
        let call = call(of);
        let is_save = matches!(call, Call::Save { .. });
        let call_options = CallOptions {
            mode: options.mode,
            mark: options.mark,
            data: is_save.then(|| checkpoint_of(of, options.mark)),
            ..CallOptions::new(options.term, call)
        };
        if let Call::Recall { of } = call {
            self.memory.ticks.recalls.entry(of).or_insert(self.now);
        }
        let (ticket, _) = self.new_call(slot, key, &call_options);
        self.feed(slot, key, Input::Call(ticket, call_options));
    }
}
