//! Callers that ask how many permits are in use.

use tenure::protocol::message::Call;
use tenure::protocol::step::{CallOptions, Input, LockOptions};

use crate::world::World;

impl World {
    /// Adds a caller for a call. The caller may cancel before the answer.
    pub(crate) fn add_call(&mut self, slot: usize, key: usize, options: LockOptions, call: Call) {
        let ticket = self.add_caller(slot, key, options);
        self.nodes[slot].callers[ticket.0 as usize - 1].call = Some(call);
        let call = CallOptions {
            mode: options.mode,
            limit: options.limit,
            node_is_full: options.node_is_full,
            ..CallOptions::new(options.term, call)
        };
        self.feed(slot, key, Input::Call(ticket, call));
    }

    /// Returns the question of the next caller. In worlds with permits some callers ask how many are in use.
    pub(crate) fn next_question(&self, slot: usize) -> Option<Call> {
        let has_question = self.profile.permits && self.nodes[slot].callers.len() % 32 == 9;
        has_question.then_some(Call::InUse)
    }
}
