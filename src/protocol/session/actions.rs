//! Sends actions: each in a call of its own, once, and with a deadline.
//!
//! An action is never sent again. If it has no answer, only its caller can find out whether it was executed.

use std::collections::VecDeque;

use crate::error::StoreErrorKind;
use crate::protocol::message::{CallAnswer, Executed, Failure, WriteAnswer};
use crate::protocol::session::connection::Connection;
use crate::protocol::session::in_flight::{InFlight, PendingRequest};
use crate::protocol::session::step::{BatchId, SessionContext, SessionEffect};
use crate::protocol::session::{MIN_LEASE_TO_GIVE_UP, Session, answer_timeout};
use crate::protocol::step::{Input, OutgoingAction};
use crate::protocol::time::Instant;

/// Most actions in flight. Actions are counted apart from batches, so that many actions do not delay the renewal of a
/// lease.
const MAX_ACTIONS_IN_FLIGHT: usize = 16;

impl Session {
    /// Queues an action, which the next [`step`](Self::step) sends after the batches.
    pub fn queue_action(&mut self, action: OutgoingAction) {
        self.actions.push_back(action);
    }

    /// Sends queued actions. The batches are sent before, because owners' renewals go first.
    pub(super) fn send_actions(&mut self, cx: &mut SessionContext<'_>) {
        while let Connection::Open { attempt, .. } = self.connection
            && self.in_flight.iter().filter(|sent| sent.is_action).count() < MAX_ACTIONS_IN_FLIGHT
            && let Some(queued) = self.actions.pop_front()
        {
            self.ids += 1;
            let id = BatchId(self.ids);
            let timeout = self.options.request_timeout;
            // All requests share the connection, so a short lease does not decide when it is given up.
            let silence = if queued.lease >= MIN_LEASE_TO_GIVE_UP {
                answer_timeout(queued.lease, timeout)
            } else {
                timeout
            };
            let deadline = self.deadline_of(&queued);
            self.in_flight.push_back(InFlight {
                id,
                connection: attempt,
                sent: cx.now,
                late_after: cx.now + timeout,
                gives_up_at: cx.now + silence,
                deadline: Some(deadline),
                requests: vec![PendingRequest {
                    tag: queued.tag,
                    name: queued.name.clone(),
                    called: queued.called,
                    deadline,
                    over: false,
                }],
                probes: Vec::new(),
                is_action: true,
            });
            self.note_use(cx.now);
            cx.effects.push(SessionEffect::Act {
                connection: attempt,
                id,
                name: queued.name,
                action: queued.action,
            });
        }
    }

    /// Handles a write that was not sent, because leases at these places of it are over. Its key is told as by the store, which
    /// was not asked.
    pub(super) fn not_sent(&mut self, id: BatchId, places: &[usize], cx: &mut SessionContext<'_>) {
        let at = self.in_flight.iter().position(|sent| sent.id == id);
        let Some(write) = at.and_then(|at| self.in_flight.remove(at)) else {
            return;
        };
        for PendingRequest { tag, name, over, .. } in write.requests {
            if !over {
                let input = Input::Answered {
                    tag,
                    sent: write.sent,
                    time: 0,
                    reply: CallAnswer::Written(WriteAnswer::NotCurrent(places.to_vec())).into(),
                };
                cx.effects.push(SessionEffect::Tell(name, input));
            }
        }
    }

    /// Returns when a queued action is given up.
    fn deadline_of(&self, queued: &OutgoingAction) -> Instant {
        queued.called + answer_timeout(queued.lease, self.options.request_timeout)
    }

    pub(super) fn next_action_due(&self) -> Option<Instant> {
        self.actions.iter().map(|queued| self.deadline_of(queued)).min()
    }

    /// Removes queued actions whose deadline has passed, and reports them as not executed.
    pub(super) fn expire_actions(&mut self, cx: &mut SessionContext<'_>) {
        let queued = std::mem::take(&mut self.actions).into_iter();
        let late: VecDeque<_>;
        (late, self.actions) = queued.partition(|queued| self.deadline_of(queued) <= cx.now);
        let error = self.error(StoreErrorKind::Unreachable, "not sent in time to");
        let executed = Executed::No;
        let failed = self.failed_request(Failure { executed, error }, cx.now);
        let late = late.into_iter();
        cx.effects
            .extend(late.map(|action| SessionEffect::failed(action.name, action.tag, failed.clone())));
    }
}
