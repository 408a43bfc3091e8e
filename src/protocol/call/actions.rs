//! Actions: calls that are sent once. If an action has no answer, the caller's error says that the outcome is
//! unknown.
//!
//! The claims of a guarded write count it until it has ended. A write with an unknown outcome does not end: it may be
//! executed late, and must not pass for a write of the next holder.

use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::call::calls::Calls;
use crate::protocol::call::pending_call::PendingAction;
use crate::protocol::context::StepContext;
use crate::protocol::exchange::Exchange;
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::message::{CallAnswer, CallReply, ClaimReply, Reply, WriteAnswer};
use crate::protocol::redirects::AskAgain;
use crate::protocol::step::{AcquireError, Effect, OutgoingAction, Tag, Ticket};
use crate::protocol::write::Action;

impl Calls {
    pub(crate) fn act(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, lease: Duration, action: Action) {
        let claim = cx.shard.next_claim_id().claim;
        let mut exchange = Exchange::default();
        exchange.plan(cx.now);
        self.actions.push(PendingAction {
            number: claim,
            exchange,
            caller: Some(ticket),
            lease,
            action,
        });
        self.send_due_actions(cx);
    }

    /// Sends an action again that its server did not execute because it does not serve the key.
    pub(crate) fn act_elsewhere(
        &mut self,
        cx: &mut StepContext<'_>,
        mut action: PendingAction,
        when: AskAgain,
    ) {
        action.exchange.redirect(match when {
            AskAgain::AtOnce => cx.now,
            AskAgain::AfterPause(pauses) => cx.now + cx.shard.between(pauses),
        });
        self.actions.push(action);
        self.send_due_actions(cx);
    }

    /// Leaves the actions that are due with the session.
    pub(crate) fn send_due_actions(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.now;
        let actions = self.actions.iter_mut();
        let due = actions.filter(|action| action.exchange.is_due(now));
        let sent = due.map(|action| {
            Effect::Act(OutgoingAction {
                tag: Tag {
                    claim: action.number,
                    seq: action.exchange.begin(()),
                    master: 0,
                },
                name: cx.name.clone(),
                lease: action.lease,
                called: now,
                action: action.action.clone(),
            })
        });
        cx.effects.extend(sent);
    }

    /// Removes and returns the action that an answer is for.
    pub(crate) fn take_action(&mut self, tag: Tag) -> Option<PendingAction> {
        let is_match = |action: &mut PendingAction| {
            action.number == tag.claim && action.exchange.take(tag.seq).is_some()
        };
        let at = self.actions.iter_mut().position(is_match)?;
        Some(self.actions.swap_remove(at))
    }
}

impl PendingAction {
    pub(crate) fn answered(self, cx: &mut StepContext<'_>, reply: Reply) {
        let refused = match &reply {
            Reply::Call(CallReply::Answer(CallAnswer::Written(WriteAnswer::NotCurrent(places)))) => {
                &places[..]
            }
            _ => &[],
        };
        self.end_write(cx, refused);
        let result = match reply {
            Reply::Call(CallReply::Answer(answer)) => Ok(answer),
            Reply::Claim(ClaimReply::Busy(_)) => Err(AcquireError::Busy),
            Reply::Refused(refusal) => Err(AcquireError::Store(StoreError::refused(refusal))),
            _ => {
                let text = "the store answered another question";
                let error = StoreError::new(StoreErrorKind::Interrupted, text);
                Err(AcquireError::Unanswered(error))
            }
        };
        self.report(cx, result);
    }

    pub(crate) fn failed(self, cx: &mut StepContext<'_>, failure: FailedRequest) {
        let denial = if failure.may_be_executed() {
            AcquireError::Unanswered(failure.reported())
        } else {
            self.end_write(cx, &[]);
            AcquireError::Store(failure.reported())
        };
        self.report(cx, Err(denial));
    }

    fn report(self, cx: &mut StepContext<'_>, result: Result<CallAnswer, AcquireError>) {
        cx.effects.extend(self.caller.map(|ticket| match result {
            Ok(answer) => Effect::Answered(ticket, answer),
            Err(why) => Effect::Denied(ticket, why.into()),
        }));
    }

    /// Tells the claims of a write that it has ended. The claims at the places `refused` are told that their leases
    /// are over.
    fn end_write(&self, cx: &mut StepContext<'_>, refused: &[usize]) {
        if let Action::Write(write) = &self.action {
            let leases = write.leases.iter().cloned().enumerate();
            cx.effects
                .extend(leases.map(|(place, lease)| Effect::WriteEnded(lease, refused.contains(&place))));
        }
    }
}
