//! Laws of claims for several keys.

use tenure::protocol::message::{Batch, Mode, Reply, Request, Rule};

use crate::coverage::Seen;
use crate::violation::Wrong;
use crate::world::World;

impl World {
    /// Checks that all claims of a group are granted or none, and none only if one key is not free.
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
