//! The calls of one key, kept while a caller of this process waits for an answer.

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::call::pending_call::{PendingAction, PendingCall, PendingCaller};
use crate::protocol::context::StepContext;
use crate::protocol::failed_request::{FailedRequest, MAX_RETRY_PAUSE};
use crate::protocol::flaw::Flaw;
use crate::protocol::message::{Call, CallAnswer, CallReply, Payload, Reply, Request, Verb, WhenBehind};
use crate::protocol::redirects::{AskAgain, Redirects};
use crate::protocol::step::{
    AcquireError, CallOptions, Class, Effect, Input, KeyEvent, Outgoing, Tag, Ticket, ms,
};
use crate::protocol::time::Instant;

/// A timer that never fires, for planted mistakes.
pub(crate) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The call or action that sent a request.
enum RequestSender {
    /// A call, at this place in the list.
    Call(usize),
    /// An action, removed from the list.
    Action(PendingAction),
}

/// The calls of one key, and the callers that wait for answers.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) pending: Vec<PendingCall>,
    /// The actions, which are sent once.
    pub(crate) actions: Vec<PendingAction>,
    /// Callers whose last call failed, with the time at which their next call may be sent.
    resting: Vec<(Instant, Ticket, CallOptions)>,
    /// When the store last said that there is no news.
    pub(crate) no_news_at: Option<Instant>,
    /// Why requests have had no answer since the last answer; `None` after an answer.
    pub(crate) error: Option<StoreError>,
    /// The requests that were redirected since the last answer.
    redirects: Redirects,
}

impl Calls {
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.resting.is_empty() && self.actions.is_empty()
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        let pending = self.pending.iter().filter_map(|call| call.exchange.next_at());
        let rested = self.resting.iter().map(|(until, ..)| *until);
        let actions = self.actions.iter().filter_map(|action| action.exchange.next_at());
        pending.chain(rested).chain(actions).min()
    }

    /// Returns whether the store said at or after `since` that there is no news. What it said is not valid through an
    /// outage.
    pub(crate) fn has_no_news_since(&self, since: Instant) -> bool {
        self.no_news_at.is_some_and(|at| at >= since) && self.error.is_none()
    }

    /// Handles an input of the key. Returns the input if it is not about the calls.
    pub(crate) fn handle(&mut self, cx: &mut StepContext<'_>, input: Input) -> Option<Input> {
        let sender = match &input {
            Input::Answered { tag, .. } | Input::Failed { tag, .. } => self.sender_of(*tag),
            _ => None,
        };
        match (input, sender) {
            (Input::Call(ticket, options), _) => self.call(cx, ticket, options),
            (Input::Act(ticket, lease, action), _) => self.act(cx, ticket, lease, action),
            (Input::Cancel(ticket), _) if self.cancel(ticket) => {}
            (Input::Changed, _) => self.changed(),
            (Input::Answered { sent, reply, .. }, Some(sender)) => {
                self.redirects.end();
                match sender {
                    RequestSender::Call(at) => self.answered(cx, at, sent, reply),
                    RequestSender::Action(action) => action.answered(cx, reply),
                }
            }
            (Input::Failed { failed, .. }, Some(sender)) => {
                let lease = match &sender {
                    RequestSender::Call(at) => self.pending[*at].lease(),
                    RequestSender::Action(action) => action.lease,
                };
                let when = self.redirects.note(cx.now, lease, failed.executed);
                match (sender, when) {
                    (RequestSender::Call(at), Some(when)) => self.call_elsewhere(cx, at, when),
                    (RequestSender::Action(action), Some(when)) => self.act_elsewhere(cx, action, when),
                    (RequestSender::Call(at), None) => self.failed(cx, at, failed),
                    (RequestSender::Action(action), None) => action.failed(cx, failed),
                }
            }
            (input, _) => return Some(input),
        }
        None
    }

    // What callers do.

    fn call(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, options: CallOptions) {
        if options.rests && !cx.shard.plant.is(Flaw::NeverRests) {
            let until = cx.now + cx.shard.jittered(ms(options.term.lease_ms) / 3);
            self.resting.push((until, ticket, options));
        } else {
            self.enter(cx, ticket, options);
        }
    }

    fn enter(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, options: CallOptions) {
        if let Some(denial) = self.refuses(&options) {
            return cx.deny(ticket, denial);
        }
        let caller = PendingCaller {
            entered: cx.now,
            term: options.term,
        };
        let third = cx.now + ms(options.term.lease_ms) / 3;
        let call = self.watch_or_new(options, None);
        call.callers.insert(ticket, caller);
        // The other callers of the call may have longer leases.
        call.exchange.plan_by(third);
    }

    /// Removes a caller whose future was dropped. A later answer is ignored, and the store keeps nothing of the call.
    /// Returns whether the caller had a call.
    fn cancel(&mut self, ticket: Ticket) -> bool {
        let mut pending = self.pending.iter_mut();
        let mut resting = self.resting.extract_if(.., |(_, resting, _)| *resting == ticket);
        let mut actions = self.actions.iter_mut();
        pending.any(|call| call.callers.remove(&ticket).is_some())
            || resting.next().is_some()
            || actions.any(|action| action.caller.take_if(|caller| *caller == ticket).is_some())
    }

    /// Gives up all calls except actions: the caller of an action still gets its outcome.
    pub(crate) fn close(&mut self, cx: &mut StepContext<'_>) {
        let resting = std::mem::take(&mut self.resting).into_iter();
        let resting = resting.map(|(_, ticket, _)| ticket);
        let pending = std::mem::take(&mut self.pending).into_iter();
        let tickets = pending.flat_map(|call| call.callers.into_keys()).chain(resting);
        let denied = tickets.map(|ticket| Effect::Denied(ticket, AcquireError::Closed.into()));
        cx.effects.extend(denied);
    }

    // What timers do.

    pub(crate) fn wake(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.now;
        let rested: Vec<_> = self.resting.extract_if(.., |(until, ..)| *until <= now).collect();
        for (_, ticket, options) in rested {
            self.enter(cx, ticket, options);
        }
        let due = self.pending.iter_mut().filter(|call| call.exchange.is_due(now));
        due.for_each(|call| call.exchange.plan_at_once());
        self.send_due_actions(cx);
    }

    /// Sends the calls that are due and not in flight, and forgets the calls without callers.
    pub(crate) fn send_all(&mut self, cx: &mut StepContext<'_>) {
        self.pending.retain(|call| !call.callers.is_empty());
        for at in 0..self.pending.len() {
            if self.pending[at].exchange.is_at_once() {
                self.send(cx, at);
            }
        }
    }

    fn send(&mut self, cx: &mut StepContext<'_>, at: usize) {
        let call = &mut self.pending[at];
        let term = call.term();
        let is_mistaken = cx.shard.plant.is(Flaw::RepeatedUnderFreshId) && call.exchange.seq() > 0;
        let id = match call.id {
            Some(id) if !call.is_watch() && !is_mistaken => id,
            _ => {
                call.exchange.begin_id();
                *call.id.insert(cx.shard.next_claim_id())
            }
        };
        if is_mistaken && call.options.data.is_some() {
            call.options.data = Some(Payload(id.to_string().into_bytes().into()));
        }
        let seq = call.exchange.begin(());
        let class = if cx.shard.plant.is(Flaw::SavedAfterLeave) {
            Class::Claim
        } else {
            Class::of_call(call.options.call)
        };
        cx.send(Outgoing {
            tag: Tag {
                claim: id.claim,
                seq,
                master: 0,
            },
            request: Request {
                mark: call.options.mark,
                when_behind: WhenBehind::Skip,
                may_keep: false,
                name: cx.name.clone(),
                claim_id: id,
                term,
                mode: call.options.mode,
                verb: Verb::Call(call.options.call),
                data: call.options.data.clone(),
            },
            lease: ms(term.lease_ms),
            class,
            called: call
                .callers
                .values()
                .next()
                .map_or(cx.now, |caller| caller.entered),
        });
    }

    // Answers and failures.

    /// Returns the call or action that sent the request of this tag, if it is one of these. Removes an action.
    fn sender_of(&mut self, tag: Tag) -> Option<RequestSender> {
        let is_match =
            |call: &PendingCall| !call.exchange.is_idle() && call.id.is_some_and(|id| id.claim == tag.claim);
        let call = self.pending.iter().position(is_match).map(RequestSender::Call);
        call.or_else(|| self.take_action(tag).map(RequestSender::Action))
    }

    /// Handles the answer to a request that was sent at `sent`.
    fn answered(&mut self, cx: &mut StepContext<'_>, mut at: usize, sent: Instant, reply: Reply) {
        if cx.shard.plant.is(Flaw::AnswerToAnotherCall) {
            let first = self.pending.iter().position(|call| !call.exchange.is_idle());
            at = first.unwrap_or(at);
        }
        let call = self.pending[at].options.call;
        let former = cx.shard.beside_former_master(sent);
        let reply = match (reply, former) {
            // A former master may grant the key when its own copy of the lease ends, so nothing is promised.
            (Reply::Call(CallReply::Answer(CallAnswer::Owned(true))), Some(until))
                if matches!(call, Call::Extend { .. }) =>
            {
                Err(StoreError::recovering(until.since(cx.now)))
            }
            (Reply::Call(reply), _) => Ok(reply),
            (Reply::Refused(refusal), _) => Err(StoreError::refused(refusal)),
            _ => {
                let late = "the request reached the store too late";
                Err(StoreError::new(StoreErrorKind::TimedOut, late))
            }
        };
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                let failure = FailedRequest::of_answer(cx.now, self.no_news_at, error);
                return self.failed(cx, at, failure);
            }
        };
        self.error = None;
        let (takes_all, takes_one) = (
            cx.shard.plant.is(Flaw::OldLookBelieved),
            !cx.shard.plant.is(Flaw::SenderClockBelieved),
        );
        let call = &mut self.pending[at];
        call.note_answer();
        let answer = match reply {
            CallReply::Watching(version) => return self.note_no_news(cx, at, version, sent),
            // The first request may have removed what this one did not find.
            CallReply::Answer(_) if matches!(call.options.call, Call::Release { repeats: true, .. }) => {
                CallAnswer::Owned(true)
            }
            CallReply::Answer(answer) => answer,
        };
        // A watch may have gained callers since the request was sent. Any other call has one caller, and its request
        // was sent for that caller, even if the sender read its clock before the caller arrived.
        let is_for_all = takes_all || takes_one && !call.is_watch();
        let callers = call.take_callers(sent, is_for_all).into_keys();
        call.exchange.plan_at_once();
        cx.effects
            .extend(callers.map(|ticket| Effect::Answered(ticket, answer.clone())));
    }

    /// Sends a call again that its server did not execute because it does not serve the key.
    fn call_elsewhere(&mut self, cx: &mut StepContext<'_>, at: usize, when: AskAgain) {
        let call = &mut self.pending[at];
        call.exchange.end();
        match when {
            AskAgain::AtOnce => call.exchange.plan_at_once(),
            AskAgain::AfterPause(pauses) => call.put_off(cx.now + cx.shard.between(pauses)),
        }
    }

    /// Handles a request that failed. It is repeated for the callers that may still be answered in time: at once
    /// after the first failure, and else after a pause.
    fn failed(&mut self, cx: &mut StepContext<'_>, at: usize, mut failure: FailedRequest) {
        let now = cx.now;
        self.error = Some(failure.error.clone());
        let believes_all = cx.shard.plant.is(Flaw::RefusalBelieved);
        let forgets = cx.shard.plant.is(Flaw::WatchLostWithConnection);
        let call = &mut self.pending[at];
        call.exchange.note_failure(&mut failure, believes_all);
        if failure.may_be_executed() {
            call.options.call = call.options.call.repeated();
        }
        call.exchange.end();
        call.exchange.plan_at_once();
        if forgets && call.is_watch() {
            return call.exchange.plan(NEVER);
        }
        let lease = call.lease();
        if failure.is_bystander(now, lease) {
            return;
        }
        let failures = call.exchange.count_failure();
        let mut callers = std::mem::take(&mut call.callers);
        callers.retain(|ticket, caller| {
            let stays = failure.keeps_waiting(call.patience(*caller), failures, now);
            if !stays {
                let error = AcquireError::Store(failure.reported());
                cx.deny(*ticket, error);
            }
            stays
        });
        call.callers = callers;
        if failure.is_repeated_at_once(failures) || call.callers.is_empty() {
            return;
        }
        let pause = (lease / 16).min(MAX_RETRY_PAUSE);
        call.put_off(now + cx.shard.jittered(pause));
        let error = failure.error.clone();
        cx.event(KeyEvent::WaitFailed { error });
    }
}
