//! Callers that ask how many permits are in use.

use tenure::protocol::message::Call;
use tenure::protocol::step::{CallOptions, Input, LockOptions};

use crate::world::World;

impl World {
    /// Adds a caller for a call. The caller may cancel before the answer.
    pub(crate) fn ask_patiently(&mut self, slot: usize, key: usize, want: LockOptions, call: Call) {
        let ticket = self.enter(slot, key, want);
        self.nodes[slot].callers[ticket.0 as usize - 1].asks = Some(call);
        let call = CallOptions {
            mode: want.mode,
            limit: want.limit,
            node_is_full: want.node_is_full,
            ..CallOptions::new(want.term, call)
        };
        self.feed(slot, key, Input::Call(ticket, call));
    }

    /// Returns the question of the next caller. In worlds with permits some callers ask how many are in use.
    pub(crate) fn question_of_next(&self, slot: usize) -> Option<Call> {
        let asks = self.profile.permits && self.nodes[slot].callers.len() % 32 == 9;
        asks.then_some(Call::InUse)
    }
}
