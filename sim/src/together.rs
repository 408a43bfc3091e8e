//! Callers of several keys at once: how they come, and what must never become of them.

use tenure::protocol::message::{Batch, Reply, Rule};
use tenure::protocol::step::{AcquireOptions, Input};

use crate::Wrong;
use crate::coverage::Seen;
use crate::world::World;

impl World {
    /// Somebody wants all locks at once. Nobody of its node is in the way.
    pub(crate) fn arrive_together(&mut self, slot: usize, want: AcquireOptions) {
        let want = AcquireOptions {
            wait: false,
            together: true,
            ..want
        };
        let mut callers = Vec::new();
        for key in 0..self.locks {
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
        if is_half || replies.iter().all(|reply| *reply == Reply::Apart) {
            self.wrong(Wrong::Half, None, || {
                format!("claims that go together: {replies:?}")
            });
        }
        if granted > 0 {
            self.saw(Seen::Together);
        }
    }
}
