//! Watching: a call that is repeated on a push or by a timer, until there is news of a key.
//!
//! All callers of this process with the same question share one call. The call is sent at once for a new caller, and
//! then after each third of a lease, until the store answers something other than
//! [`Watching`](crate::protocol::message::CallReply::Watching). The store pushes when there is news, and the call is then
//! sent at once. Nothing depends on that push.

use crate::protocol::call::calls::{Calls, NEVER};
use crate::protocol::call::pending_call::PendingCall;
use crate::protocol::context::StepContext;
use crate::protocol::flaw::Flaw;
use crate::protocol::message::Version;
use crate::protocol::step::{AcquireError, CallOptions, InboxState};
use crate::protocol::time::Instant;

impl Calls {
    /// Returns why one more caller may not watch, or `None` if it may.
    pub(crate) fn refuses(&self, options: &CallOptions) -> Option<AcquireError> {
        let watches = self.pending.iter().filter(|call| call.is_watch());
        let waiting: usize = watches.map(|call| call.callers.len()).sum();
        if !options.call.is_watched() {
            None
        } else if waiting >= options.limit {
            Some(AcquireError::QueueFull { waiting })
        } else {
            options.node_is_full.then_some(AcquireError::NodeFull)
        }
    }

    /// Returns the watch with the same question, or a new call that is sent at `due`.
    pub(crate) fn watch_or_new(&mut self, options: CallOptions, due: Option<Instant>) -> &mut PendingCall {
        let mut pending = self.pending.iter();
        let at = pending.position(|call| call.is_watch() && call.options.call == options.call);
        let at = at.unwrap_or_else(|| {
            self.pending.push(PendingCall::new(options, due));
            self.pending.len() - 1
        });
        &mut self.pending[at]
    }

    /// Handles an answer without news. The callers that arrived before `sent` now know which version they have seen.
    /// They join the watch of the callers that know the same version.
    pub(crate) fn note_no_news(
        &mut self,
        cx: &mut StepContext<'_>,
        at: usize,
        version: Version,
        sent: Instant,
    ) {
        // The store answered, so a caller whose wait ends now has not met an outage.
        self.no_news_at = Some(cx.now);
        let takes_all = cx.shard.plant.is(Flaw::OldLookBelieved);
        let push_alone = cx.shard.plant.is(Flaw::WatchedByPushAlone);
        let call = &mut self.pending[at];
        let pause = cx.shard.jittered(call.lease() / 3);
        let next = if push_alone { NEVER } else { cx.now + pause };
        let is_news = call.exchange.asks_again();
        let newer = call.options.call.knowing(version);
        if newer == call.options.call {
            match is_news {
                true => call.exchange.plan_at_once(),
                false => call.exchange.plan(next),
            }
            return;
        }
        let callers = call.take_callers(sent, takes_all);
        call.exchange.plan_at_once();
        let options = CallOptions {
            call: newer,
            ..call.options.clone()
        };
        let known = self.watch_or_new(options, Some(next));
        known.callers.extend(callers);
        if is_news {
            known.send_when_idle();
        } else {
            known.exchange.plan_by(next);
        }
    }

    /// Sends all watches, because there is news or may be.
    pub(crate) fn changed(&mut self) {
        let watches = self.pending.iter_mut().filter(|call| call.is_watch());
        watches.for_each(PendingCall::send_when_idle);
    }

    /// Handles a change of whether news is pushed, or a new start of pushes, before which some may have been missed.
    pub(crate) fn inbox(&mut self, cx: &mut StepContext<'_>) {
        if cx.shard.inbox == InboxState::Confirmed {
            self.changed();
        }
    }

    /// Sends the watches and calls that wait to be repeated, because the store can be reached again.
    pub(crate) fn reachable(&mut self, _: &mut StepContext<'_>) {
        let put_off = self.pending.iter_mut().filter(|call| call.was_put_off);
        put_off.for_each(PendingCall::send_when_idle);
    }
}
