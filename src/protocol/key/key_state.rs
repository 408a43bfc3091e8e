//! The state of one key, kept while a caller or a claim of this process needs it, and what callers do to it.

use std::collections::BTreeMap;

use crate::error::{LostCause, StoreError};
use crate::protocol::call::calls::Calls;
use crate::protocol::claim::held_lease::{HeldLease, Holding};
use crate::protocol::claim::{Claim, RequestKind};
use crate::protocol::context::StepContext;
use crate::protocol::flaw::Flaw;
use crate::protocol::key::claims::{Claimant, Claims};
use crate::protocol::key::line::{Caller, Line};
use crate::protocol::key::readers::Readers;
use crate::protocol::message::{ClaimId, ClaimNumber, Mode, NodeId, Payload, RunEnding};
use crate::protocol::redirects::Redirects;
use crate::protocol::step::{AcquireError, AnswerTimes, Effect, Input, LockOptions, Outcome, Ticket};
use crate::protocol::time::Instant;

/// The state of one key: its line, its claims and its calls.
#[derive(Debug, Default)]
pub(crate) struct KeyState {
    pub(crate) line: Line,
    /// The callers of the line that hold as readers.
    pub(crate) readers: Readers,
    /// The held claim that lets further readers in.
    pub(crate) open_claim: Option<ClaimNumber>,
    /// Only the first caller of the line has a claim: the last claim for permits was not granted at once, or had no
    /// answer.
    pub(crate) claims_head_only: bool,
    /// Callers that want a claim of their own and have none, because they rest or wait for `reclaim`.
    pub(crate) solos: BTreeMap<Ticket, Caller>,
    pub(crate) claims: Claims,
    /// Renewals that callers asked for. Empty except while their requests are in flight.
    pub(crate) renewals: Vec<Renewal>,
    /// The values of callers that campaign in an election. Each is sent with the requests of its caller's claim until that is granted.
    pub(crate) values: Vec<(Ticket, Payload)>,
    /// The calls of the key; `None` while there are none, which is usual.
    pub(crate) calls: Option<Box<Calls>>,
    /// When to claim again for the callers that have no claim.
    pub(crate) reclaim: Option<Reclaim>,
    /// How many claims for the line failed in a row.
    pub(crate) failed_claims: u32,
    /// The number of claims in a row that a store without a queue answered "busy".
    pub(crate) busy_claims: u32,
    /// When the key was last known to be taken: the store said so, or a caller of this process was granted it.
    pub(crate) taken_at: Option<Instant>,
    /// When the present owner's record ends unless it is renewed, from the last answer that the store gave to a
    /// waiter.
    pub(crate) owner_ends: Option<Instant>,
    /// The node of the present owner, if it owns alone.
    pub(crate) owner: Option<NodeId>,
    /// Why requests have had no answer since the last answer; `None` after an answer.
    pub(crate) error: Option<StoreError>,
    /// The requests that were redirected since the last answer.
    pub(crate) redirects: Redirects,
    /// The guards that are left of leases whose records may still be there, each with its claim. Nearly always empty.
    pub(crate) undropped: Vec<(Ticket, ClaimNumber)>,
    /// The claim that was held last.
    pub(crate) last_held: ClaimNumber,
    /// The number by which the shard identifies the key in its timers.
    pub(crate) number: u64,
    /// The timer that the shard keeps for this key.
    pub(crate) timer: Option<Instant>,
}

/// When to claim again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reclaim {
    pub(crate) at: Instant,
    /// The store was away. If false, the key is taken, in a store that has no queue.
    pub(crate) after_failure: bool,
}

/// A renewal that a caller waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Renewal {
    pub(crate) holder: Ticket,
    pub(crate) caller: Ticket,
}

impl KeyState {
    #[inline]
    pub(crate) fn handle(&mut self, cx: &mut StepContext<'_>, mut input: Input) {
        if self.calls.is_some() || matches!(input, Input::Call(..) | Input::Act(..)) {
            let calls = self.calls.get_or_insert_with(Box::default);
            let left = calls.handle(cx, input);
            self.step_calls(cx, |_, _| {});
            match left {
                Some(of_claims) => input = of_claims,
                None => return,
            }
        }
        self.expire_due(cx);
        self.claims.refresh();
        match input {
            Input::Lock(ticket, options) => self.lock(cx, ticket, options),
            Input::Campaign(ticket, options, value) => {
                self.values.push((ticket, value));
                self.lock(cx, ticket, options);
            }
            Input::Cancel(ticket) => self.cancel(cx, ticket),
            Input::Release(ticket) => self.release(cx, ticket, None),
            Input::Finish(ticket, ending) => self.release(cx, ticket, Some(ending)),
            Input::Downgrade(ticket, to) => self.downgrade(cx, ticket, to),
            Input::Transfer(ticket, to, term) => self.transfer(cx, ticket, to, term),
            Input::Adopt(ticket, options, from) => self.adopt(cx, ticket, options, from),
            Input::HandedOut(ticket) => self.handed_out(cx, ticket),
            Input::Renew(holder, caller) => self.renew(cx, Renewal { holder, caller }),
            Input::WriteEnded(lease, is_refused) => self.write_ended(cx, &lease, is_refused),
            Input::Answered {
                tag,
                sent,
                time,
                reply,
            } => self.answered(cx, tag, AnswerTimes { sent, time }, reply),
            Input::Failed { tag, failed } => self.failed(cx, tag, failed),
            Input::Pushed(grant) => self.pushed(cx, &grant),
            Input::Asked(claim_id, asking) => self.asked(cx, claim_id, &asking),
            Input::Revoked(claim_id, mode) => self.pushed_revoked(cx, claim_id, mode),
            Input::Recalled(claim_id) => self.recalled(cx, claim_id),
            // The calls handle these inputs.
            Input::Call(..) | Input::Act(..) | Input::Changed => {}
        }
        self.end_step(cx);
    }

    /// Ends a step that may have changed claims.
    #[inline]
    pub(crate) fn end_step(&mut self, cx: &mut StepContext<'_>) {
        if !self.renewals.is_empty() {
            self.deny_failed_renewals(cx);
        }
        self.claim_for_line(cx);
        if !self.values.is_empty() {
            self.drop_values();
        }
    }

    /// Drops the values of callers that wait no more.
    fn drop_values(&mut self) {
        let (solos, claims) = (&self.solos, &self.claims);
        let waits = |claim: &Claim| claim.held().is_none();
        self.values
            .retain(|(ticket, _)| solos.contains_key(ticket) || claims.by_ticket(*ticket).is_some_and(waits));
    }

    /// Takes a step of the calls, if there are any, and sends their requests.
    pub(crate) fn step_calls(
        &mut self,
        cx: &mut StepContext<'_>,
        step: impl FnOnce(&mut Calls, &mut StepContext<'_>),
    ) {
        let Some(calls) = &mut self.calls else { return };
        step(calls, cx);
        calls.send_all(cx);
        self.calls.take_if(|calls| calls.is_idle());
    }

    /// Makes an idle state new again. The state keeps its memory, unless that is much.
    #[inline]
    pub(crate) fn forget(&mut self) {
        let (mut line, mut claims) = (std::mem::take(&mut self.line), std::mem::take(&mut self.claims));
        line.shrink();
        claims.shrink();
        *self = KeyState {
            line,
            claims,
            ..KeyState::default()
        };
    }

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.line.is_empty() && self.solos.is_empty() && self.claims.is_empty() && self.calls.is_none()
    }

    pub(crate) fn released_too_late(ticket: Ticket) -> Effect {
        Effect::Released(ticket, Outcome::Lost(LostCause::Deadline))
    }

    // Lookups.

    /// Returns whether no caller of this process has the key, waits for it or makes a call about it. The claim of a
    /// caller that arrives now is then sent at once. It may follow the leave of an earlier claim.
    pub(crate) fn is_free(&self) -> bool {
        let mut claims = self.claims.iter();
        self.line.is_empty()
            && self.solos.is_empty()
            && self.calls.is_none()
            && self.reclaim.is_none()
            && claims.all(|claim| claim.is_leaving() || claim.is_kept())
    }

    /// Returns the claim by which a caller holds, the lease, and the caller's place among the local holders.
    pub(crate) fn held_by(&self, ticket: Ticket) -> Option<(&Claim, &HeldLease, u64)> {
        if let Some(claim) = self.claims.by_ticket(ticket) {
            let held = claim.held()?;
            return Some((claim, held, held.index()));
        }
        let reader = self.readers.get(ticket)?;
        let claim = self.claims.get(reader.claim)?;
        Some((claim, claim.held()?, reader.index))
    }

    /// Returns what a caller holds, until a step ends it.
    pub(crate) fn holding(&self, now: Instant, ticket: Ticket) -> Option<Holding> {
        let (claim, _, index) = self.held_by(ticket)?;
        claim.holding(now, index)
    }

    /// Returns the claim by which a caller holds, and since when it holds.
    pub(crate) fn held_since(&self, ticket: Ticket) -> Option<(ClaimNumber, Instant)> {
        let (claim, held, _) = self.held_by(ticket)?;
        let local = held.local();
        let local = local.or_else(|| Some(&self.readers.get(ticket)?.local))?;
        Some((claim.number(), local.hold.since))
    }

    /// Returns every caller whose deadline has not passed, and what it holds.
    pub(crate) fn holders(&self, now: Instant) -> impl Iterator<Item = (Ticket, Holding)> {
        let held = self
            .claims
            .iter()
            .filter_map(|claim| Some((claim, claim.held()?)));
        held.filter(move |(_, held)| now < held.deadline())
            .flat_map(move |(claim, held)| {
                let alone = held.local().map(|local| (local.ticket, held.index()));
                let readers = self.readers.by_claim(claim.number());
                let all = alone
                    .into_iter()
                    .chain(readers.map(|(ticket, reader)| (ticket, reader.index)));
                all.filter_map(move |(ticket, index)| Some((ticket, claim.holding(now, index)?)))
            })
    }

    /// Returns whether the key is surely taken: the store said so at or after `since`, or a caller of this process
    /// holds it.
    pub(crate) fn is_known_taken(&self, now: Instant, since: Instant) -> bool {
        let held = self.claims.get(self.last_held).and_then(Claim::held);
        // The place in the queue that the store last reported is valid until the next request.
        let is_queued = |claim: &Claim| claim.is_queued() && claim.is_idle() && !claim.is_retry();
        // A server that recovers does not tell whether the key is taken.
        let was_told = self.taken_at.is_some_and(|at| at >= since) || self.claims.iter().any(is_queued);
        // What the store reported is not valid through an outage.
        held.is_some_and(|held| now < held.deadline())
            || was_told && self.error.is_none() && !self.claims.is_recovering()
            || self
                .calls
                .as_ref()
                .is_some_and(|calls| calls.has_no_news_since(since))
    }

    /// Returns why requests have had no answer since the last answer.
    pub(crate) fn last_error(&self, now: Instant) -> Option<StoreError> {
        let of_calls = self.calls.as_ref().and_then(|calls| calls.error.clone());
        of_calls
            .or_else(|| self.error.clone())
            .or_else(|| self.claims.recovery(now))
    }

    /// Returns whether the claim is not over: asked, queued, held, or being left. The old number of a yield and the
    /// old number of a local pass count, too.
    pub(crate) fn knows_claim(&self, claim_id: ClaimId) -> bool {
        self.claims.iter().any(|claim| claim.goes_on_with(claim_id))
    }

    // What callers do.

    fn lock(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, mut options: LockOptions) {
        // In a full node a caller still tries, and is denied as `NodeFull` only if it would have to wait. A caller that
        // does not wait anyway is denied as `Busy`.
        options.node_is_full &= options.wait;
        let mut caller = Caller {
            ticket,
            options,
            entered: cx.now,
            behind: false,
            failed_claims: 0,
        };
        if options.rests && !cx.shard.plant.is(Flaw::NeverRests) {
            // A holder that loses its lease again and again, because its machine lacks some resource, leaves time to
            // others.
            caller.entered = cx.now + cx.shard.jittered(caller.lease() / 3);
        }
        if options.mark.is_some() {
            // Only the store knows the state of a tick. What made other ticks of this job wait does not concern this
            // one.
            self.reclaim = None;
            self.solos.insert(ticket, caller);
            return;
        }
        let is_taken = self.claims.is_taken(options.mode);
        // Only the store knows how many permits are left.
        let recovery = self.claims.recovery(cx.now);
        let recovery = recovery.filter(|_| !matches!(options.mode, Mode::Permits(_)));
        caller.behind = is_taken || recovery.is_some();
        let gives_up = |error: &StoreError| {
            let left = error.retry_after().unwrap_or_default();
            !is_taken && !caller.waits_until(cx.now + left)
        };
        if let Some(error) = recovery.filter(gives_up) {
            return cx.deny(ticket, AcquireError::Store(error));
        }
        if let Some(denial) = self.refuses(options, caller.behind) {
            return cx.deny(ticket, denial);
        }
        caller.options.wait &= !options.node_is_full;
        // A caller that arrives during an outage is told of it at once, and not when the others are tried again.
        self.reclaim = self.reclaim.filter(|reclaim| !reclaim.after_failure);
        let has_own_claim = match options.mode {
            Mode::Exclusive => false,
            // The `max_hold` of one reader must not bind the other readers.
            Mode::Read => options.max_hold.is_some(),
            // Only the store knows whether there are permits for a caller that does not wait.
            Mode::Permits(_) => !options.wait,
        };
        if options.fixed || options.solo || options.rests || has_own_claim {
            self.solos.insert(ticket, caller);
        } else {
            self.line.push(caller);
        }
    }

    fn refuses(&self, options: LockOptions, is_taken: bool) -> Option<AcquireError> {
        if !options.wait {
            return is_taken.then_some(AcquireError::Busy);
        }
        let waiting = self.line.len() + self.solos.len() + self.claims.waiting_alone();
        if !is_taken && waiting == 0 {
            None
        } else if waiting >= options.limit {
            Some(AcquireError::QueueFull { waiting })
        } else {
            options.node_is_full.then_some(AcquireError::NodeFull)
        }
    }

    fn cancel(&mut self, cx: &mut StepContext<'_>, ticket: Ticket) {
        if self.line.remove(ticket) || self.solos.remove(&ticket).is_some() {
            return;
        }
        self.renewals.retain(|renewal| renewal.caller != ticket);
        let Some(claim) = self.claims.by_ticket(ticket) else {
            self.drop_lost(cx, ticket, None);
            return self.leave_share(cx, ticket, None);
        };
        let number = claim.number();
        if claim.held().is_some() {
            self.give_back(cx, number, None);
        } else {
            self.claims.set_claimant(number, Claimant::Abandoned);
        }
    }

    fn release(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, ending: Option<RunEnding>) {
        let Some((claim, held, _)) = self.held_by(ticket) else {
            self.drop_lost(cx, ticket, ending);
            return cx.effects.push(Self::released_too_late(ticket));
        };
        let number = claim.number();
        if held.local().is_none() {
            return self.leave_share(cx, ticket, Some(ticket));
        }
        self.claims[number].note_ending(ending);
        self.give_back(cx, number, Some(ticket));
    }

    /// Gives up everything. A leave is repeated only until its lease has ended.
    pub(crate) fn close(&mut self, cx: &mut StepContext<'_>, keeps_held: bool) {
        self.step_calls(cx, Calls::close);
        self.expire_due(cx);
        self.recall_all(cx);
        let solos = std::mem::take(&mut self.solos);
        let deny = |caller: &Caller, cx: &mut StepContext<'_>| cx.deny(caller.ticket, AcquireError::Closed);
        self.line.retain(|_| false, |caller| deny(caller, cx));
        solos.values().for_each(|caller| deny(caller, cx));
        for number in self.claims.all() {
            let claimant = self.claims.claimant(number);
            let claim = &mut self.claims[number];
            if claim.held().is_some() {
                if !keeps_held || cx.shard.plant.is(Flaw::RunGivenUpAtClose) {
                    self.report_lost(cx, number, LostCause::Shutdown);
                    self.leave(cx, number, None);
                }
            } else if claim.is_leaving() {
                claim.shorten_leave();
                let is_undropped = self.undropped.iter().any(|(_, of)| *of == number);
                if claim.is_retry() || is_undropped && !claim.is_in_flight(RequestKind::Leave) {
                    self.ask(cx, number, RequestKind::Leave);
                }
            } else if let Claimant::Solo(caller) = claimant {
                deny(&caller, cx);
                self.claims.set_claimant(number, Claimant::Abandoned);
            }
        }
        self.end_step(cx);
    }
}
