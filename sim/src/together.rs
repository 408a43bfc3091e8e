//! Callers of several keys at once: how they come, and what must never become of them.

use tenure::protocol::message::{Batch, Mode, Reply, Request, Rule};
use tenure::protocol::step::{Input, LockOptions};

use crate::Wrong;
use crate::coverage::Seen;
use crate::world::World;

impl World {
    /// Somebody wants all locks at once, where there are readers some of them to read. Nobody of its node is in the way.
    pub(crate) fn arrive_together(&mut self, slot: usize, want: LockOptions) {
        // Not drawn: the same seed is the same world as before.
        let round = self.nodes[slot].callers.len() / 8 + slot;
        let mut callers = Vec::new();
        for key in 0..self.locks {
            let reads = self.profile.readers && !round.is_multiple_of(4) && !(round + key).is_multiple_of(3);
            let want = LockOptions {
                mode: if reads { Mode::Read } else { Mode::Exclusive },
                wait: false,
                together: true,
                ..want
            };
            let ticket = self.enter(slot, key, want);
            callers.push((key, Input::Lock(ticket, want)));
        }
        self.feed_together(slot, &callers);
    }

    /// Of claims that go together every one is granted, or none; and none only when something is in the way.
    pub(crate) fn watch_together(&mut self, batch: &Batch, replies: &[Reply]) {
        if batch.rule == Rule::Each || batch.requests.is_empty() {
            return;
        }
        let granted = replies
            .iter()
            .filter(|reply| matches!(reply, Reply::Granted(_)))
            .count();
        let is_half = granted > 0 && granted < replies.len();
        if is_half || replies.iter().all(|reply| *reply == Reply::GroupRefused) {
            self.wrong(Wrong::Half, None, || {
                format!("claims that go together: {replies:?}")
            });
        }
        if granted == 0 {
            return;
        }
        self.saw(Seen::Together);
        let wants = |mode| batch.requests.iter().any(|request| request.mode == mode);
        if wants(Mode::Read) && wants(Mode::Exclusive) {
            self.saw(Seen::TogetherMixed);
        }
        let us = self.server_us();
        let joined = |request: &Request| self.server.ledger.shares(&request.name, us).count() > 1;
        if batch.requests.iter().any(joined) {
            self.saw(Seen::TogetherJoined);
        }
    }
}
