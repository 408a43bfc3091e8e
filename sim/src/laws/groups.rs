//! Laws of claims for several keys.

use tenure::protocol::message::{Batch, ClaimReply, Mode, Reply, Request, Rule};

use crate::coverage::Case;
use crate::violation::Violation;
use crate::world::World;

impl World {
    /// Checks that all claims of a group are granted or none, and none only if one key is not free.
    pub(crate) fn watch_group(&mut self, batch: &Batch, replies: &[Reply]) {
        if batch.rule == Rule::Each || batch.requests.is_empty() {
            return;
        }
        let granted = replies
            .iter()
            .filter(|reply| matches!(reply, Reply::Claim(ClaimReply::Granted(_))))
            .count();
        let is_half = granted > 0 && granted < replies.len();
        if is_half
            || replies
                .iter()
                .all(|reply| *reply == Reply::Claim(ClaimReply::GroupRefused))
        {
            self.report(Violation::GroupSplit, None, || {
                format!("claims of one group: {replies:?}")
            });
        }
        if granted == 0 {
            return;
        }
        self.cover(Case::GroupGranted);
        let wants = |mode| batch.requests.iter().any(|request| request.mode == mode);
        if wants(Mode::Read) && wants(Mode::Exclusive) {
            self.cover(Case::GroupMixed);
        }
        let us = self.server_us();
        let joined = |request: &Request| self.server.ledger.shares(&request.name, us).count() > 1;
        if batch.requests.iter().any(joined) {
            self.cover(Case::GroupJoined);
        }
    }
}
