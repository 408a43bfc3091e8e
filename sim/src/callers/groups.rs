//! Callers that lock several keys at once.

use tenure::protocol::message::Mode;
use tenure::protocol::step::{Input, LockOptions};

use crate::world::World;

impl World {
    /// Adds a caller for all locks. In worlds with readers it reads some of the keys. No local caller blocks
    /// any of the keys.
    pub(crate) fn add_group(&mut self, slot: usize, options: LockOptions) {
        // Derived, not drawn, so the other choices of the seed stay the same.
        let round = self.nodes[slot].callers.len() / 8 + slot;
        let mut callers = Vec::new();
        for key in 0..self.locks {
            let reads = self.profile.readers && !round.is_multiple_of(4) && !(round + key).is_multiple_of(3);
            let options = LockOptions {
                mode: if reads { Mode::Read } else { Mode::Exclusive },
                wait: false,
                together: true,
                ..options
            };
            let ticket = self.add_caller(slot, key, options);
            callers.push((key, Input::Lock(ticket, options)));
        }
        self.feed_group(slot, &callers);
    }
}
