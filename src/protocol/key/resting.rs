//! Who lost a lease and wants it again rests before it claims: a holder that loses it again and again, as its machine is short of
//! something, leaves the others time.

use crate::protocol::flaw::Plant;
use crate::protocol::key::context::StepContext;
use crate::protocol::key::key_state::KeyState;
use crate::protocol::key::line::Caller;
use crate::protocol::time::Instant;

impl<P: Plant> KeyState<P> {
    /// About a third of its lease.
    pub(crate) fn rest(&mut self, cx: &mut StepContext<'_>, caller: Caller) {
        let until = cx.now + cx.source.jittered(caller.lease() / 3);
        self.resting.push((until, caller));
    }

    /// Whoever has rested comes as if it came now.
    pub(crate) fn rested(&mut self, cx: &mut StepContext<'_>) {
        let rested: Vec<_> = self
            .resting
            .extract_if(.., |(until, _)| *until <= cx.now)
            .collect();
        for (_, mut caller) in rested {
            caller.entered = cx.now;
            self.enter(cx, caller);
        }
    }

    /// When the next has.
    pub(crate) fn next_rested(&self) -> Option<Instant> {
        self.resting.iter().map(|(until, _)| *until).min()
    }
}
