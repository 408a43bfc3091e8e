//! One key, as long as somebody in this process cares: the line, the claims, and what callers do to them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{LostCause, StoreError};
use crate::protocol::claims::{Asking, Claim, Claims, Held, Leaving, Owner, Phase, RequestKind, Yielded};
use crate::protocol::context::StepContext;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::line::{Caller, Line};
use crate::protocol::message::{ClaimNumber, Fence, GrantNumber, Holder, Mode, Request, Verb};
use crate::protocol::step::{
    AcquireError, AcquireOptions, Class, Effect, Input, KeyEvent, Outcome, Outgoing, Tag, Ticket, ms,
};
use crate::protocol::time::Instant;

/// For so many leases the store is told that a tick was run to its end: longer than it would stand in anybody's way.
const FINISH_LEASES: u32 = 8;

/// The state of one key.
#[derive(Debug, Default)]
pub(crate) struct KeyState<P> {
    pub(crate) plant: P,
    pub(crate) line: Line,
    /// Callers that want a claim of their own and have none.
    pub(crate) solos: BTreeMap<Ticket, Caller>,
    pub(crate) claims: Claims,
    /// When to claim again for those that have no claim.
    pub(crate) reclaim: Option<Reclaim>,
    /// Failures in a row of the line's claims.
    pub(crate) strikes: u32,
    /// When the store last said that somebody has the key, one of our callers included.
    pub(crate) taken: Option<Instant>,
    /// By then the present owner's record has ended unless it is renewed, as the store told us last in its queue.
    pub(crate) owner_ends: Option<Instant>,
    /// What kept requests from being answered since the last answer.
    pub(crate) error: Option<StoreError>,
    /// The claim that was held last.
    pub(crate) held: ClaimNumber,
    /// The timer that the shard keeps for this key.
    pub(crate) due: Option<Instant>,
}

/// When to claim again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reclaim {
    pub(crate) at: Instant,
    /// Because the store was away. Else because somebody has the key, in a store that cannot queue.
    pub(crate) after_failure: bool,
}

impl<P: Plant> KeyState<P> {
    pub(crate) fn handle(&mut self, cx: &mut StepContext<'_>, input: Input) {
        self.expire(cx);
        match input {
            Input::Lock(ticket, options) => self.lock(cx, ticket, options),
            Input::Fetched(ticket) => self.fetched(ticket),
            Input::Cancel(ticket) => self.cancel(cx, ticket),
            Input::Release(ticket) => self.release(cx, ticket, false),
            Input::Finish(ticket) => self.release(cx, ticket, true),
            Input::Answered { tag, sent, reply } => self.answered(cx, tag, sent, reply),
            Input::Failed {
                tag,
                why,
                late_after,
                heard,
                error,
            } => self.failed(cx, tag, why, late_after, heard, error),
            Input::Pushed(grant) => self.pushed(cx, &grant),
        }
        self.pursue(cx);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.line.is_empty() && self.solos.is_empty() && self.claims.is_empty()
    }

    pub(crate) fn released_too_late(ticket: Ticket) -> Effect {
        Effect::Released(ticket, Outcome::Lost(LostCause::Deadline))
    }

    // What others ask.

    /// The claim by which a caller holds, with what it holds.
    fn held_by(&self, ticket: Ticket) -> Option<(&Claim, &Held)> {
        let claim = self.claims.of(ticket)?;
        Some((claim, claim.held()?))
    }

    pub(crate) fn remaining(&self, now: Instant, ticket: Ticket) -> Option<Duration> {
        let (_, held) = self.held_by(ticket)?;
        (now < held.deadline).then(|| held.deadline.since(now))
    }

    pub(crate) fn attempt(&self, ticket: Ticket) -> u32 {
        self.held_by(ticket).map_or(0, |(claim, _)| claim.attempt)
    }

    pub(crate) fn claimed_by(&self, ticket: Ticket) -> Option<Holder> {
        self.held_by(ticket).map(|(claim, _)| claim.holder)
    }

    pub(crate) fn fence(&self, now: Instant, ticket: Ticket) -> Option<Fence> {
        let (_, held) = self.held_by(ticket)?;
        (now < held.deadline).then(|| Fence::new(held.number, held.index))
    }

    pub(crate) fn holders(&self, now: Instant) -> impl Iterator<Item = (Ticket, Holder, Fence)> {
        let held = self
            .claims
            .iter()
            .filter_map(|claim| Some((claim.holder, claim.held()?)));
        held.filter(move |(_, held)| now < held.deadline)
            .map(|(holder, held)| (held.ticket, holder, Fence::new(held.number, held.index)))
    }

    /// Somebody has the key for sure: the store said so since then, or a caller of ours holds it.
    pub(crate) fn told_taken(&self, now: Instant, since: Instant) -> bool {
        let held = self.claims.get(self.held).and_then(Claim::held);
        // What the store said of a place in its queue holds until it is asked again.
        let is_queued = |claim: &Claim| {
            matches!(claim.phase, Phase::Queued { .. }) && claim.asking.is_none() && !claim.retries
        };
        let was_told = self.taken.is_some_and(|at| at >= since) || self.claims.iter().any(is_queued);
        // Nor does it hold through an outage.
        held.is_some_and(|held| now < held.deadline) || was_told && self.error.is_none()
    }

    /// The claim is not over: asked, queued, held, or being left. A yield pursues the number it leaves, too.
    pub(crate) fn pursues(&self, holder: Holder) -> bool {
        self.claims.iter().any(|claim| {
            claim.holder == holder
                || claim
                    .yielded
                    .as_ref()
                    .is_some_and(|yielded| yielded.from == holder)
        })
    }

    // What callers do.

    fn lock(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, mut options: AcquireOptions) {
        // Who may not wait tries, and is told why it may not when it would have to.
        options.node_is_full &= options.wait;
        let caller = Caller {
            ticket,
            options,
            entered: cx.now,
            strikes: 0,
        };
        if options.mark.is_some() {
            // The store alone knows what became of a tick. What made others of this job wait is no news of this one.
            self.reclaim = None;
            self.solos.insert(ticket, caller);
            return;
        }
        if let Some(denial) = self.refuses(options) {
            return cx.effects.push(Effect::Denied(ticket, denial));
        }
        let mut caller = caller;
        caller.options.wait &= !options.node_is_full;
        // Whoever comes to a store that is away hears of it at once, and not when others are tried again.
        self.reclaim = self.reclaim.filter(|reclaim| !reclaim.after_failure);
        if options.fixed {
            self.solos.insert(ticket, caller);
        } else {
            self.line.push(caller);
        }
    }

    fn refuses(&self, options: AcquireOptions) -> Option<AcquireError> {
        let is_taken = self.claims.is_taken();
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

    pub(crate) fn fetched(&mut self, ticket: Ticket) {
        let number = self.held_by(ticket).map(|(claim, _)| claim.holder.claim);
        let claim = number.and_then(|number| self.claims.get_mut(number));
        if let Some(Phase::Held(held)) = claim.map(|claim| &mut claim.phase) {
            held.unfetched = None;
        }
    }

    fn cancel(&mut self, cx: &mut StepContext<'_>, ticket: Ticket) {
        if self.line.remove(ticket) || self.solos.remove(&ticket).is_some() {
            return;
        }
        let Some(claim) = self.claims.of(ticket) else {
            return;
        };
        let number = claim.holder.claim;
        if claim.held().is_some() {
            self.give_back(cx, number, None);
        } else {
            self.claims[number].owner = Owner::Nobody;
        }
    }

    fn release(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, finished: bool) {
        match self.held_by(ticket).map(|(claim, _)| claim.holder.claim) {
            Some(number) => {
                self.claims[number].finished = finished;
                self.give_back(cx, number, Some(ticket));
            }
            None => cx.effects.push(Self::released_too_late(ticket)),
        }
    }

    /// The holder is done: the next caller of this process, another node, or nobody.
    pub(crate) fn give_back(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        release: Option<Ticket>,
    ) {
        let claim = &mut self.claims[number];
        let lease = claim.lease();
        let Phase::Held(held) = &mut claim.phase else {
            return;
        };
        let next = self.line.front().filter(|_| claim.owner == Owner::Cohort);
        let Some(next) = next.copied() else {
            return self.leave(cx, number, release);
        };
        let rules = &cx.source.rules;
        let in_burst = held.index < u64::from(rules.burst) && cx.now.since(held.since) < rules.burst_time;
        // With less than a third left the renewals are failing: who is next should not inherit that.
        if !in_burst || held.deadline.since(cx.now) < lease / 3 || next.lease() > lease {
            return self.yield_(cx, number, release);
        }
        self.line.pop();
        held.ticket = next.ticket;
        held.index += 1;
        held.unfetched = Some(cx.now + lease);
        let fence = Fence::new(held.number, held.index);
        self.taken = Some(cx.now);
        cx.event(KeyEvent::HandedOn);
        cx.effects.push(Effect::Granted(next.ticket, fence));
        if let Some(ticket) = release {
            cx.effects.push(Effect::Released(ticket, Outcome::Kept));
        }
    }

    // What becomes of claims.

    /// Tells of a grant that came because its owner before did not renew, as far as that can be known here. Fixed leases
    /// run out as they should.
    pub(crate) fn note_inheritance(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let ran_out = self.owner_ends.take().is_some_and(|ends| ends <= cx.now);
        if ran_out && !self.claims[number].fixed {
            cx.event(KeyEvent::Inherited);
        }
    }

    /// Sees to it that a line has a claim, and a claim somebody who wants it.
    pub(crate) fn pursue(&mut self, cx: &mut StepContext<'_>) {
        for number in self.claims.unsettled() {
            let Some(claim) = self.claims.get(number) else {
                continue;
            };
            let wanted = match claim.owner {
                Owner::Cohort => !self.line.is_empty() || claim.held().is_some(),
                Owner::Solo(_) => true,
                Owner::Nobody => false,
            };
            match claim.phase {
                _ if wanted => {}
                // An answer is under way: it decides.
                Phase::Asked if claim.asking.is_some() => {}
                Phase::Leaving(_) => {}
                _ if claim.is_asking(RequestKind::Leave) => {}
                _ if self.plant.planted(Flaw::CancelledForgotten) => {
                    self.claims.remove(number);
                }
                _ => self.leave(cx, number, None),
            }
        }
        // What is due is taken off at once, or its timer would fire without end.
        self.reclaim = self.reclaim.filter(|reclaim| cx.now < reclaim.at);
        if self.reclaim.is_some() {
            return;
        }
        for (_, caller) in std::mem::take(&mut self.solos) {
            self.claim(cx, Owner::Solo(caller), caller.options, caller.options.wait);
        }
        if let Some(head) = self.line.front().copied()
            && self.claims.cohort().is_none()
        {
            self.claim(cx, Owner::Cohort, head.options, self.line.has_patient());
        }
    }

    fn claim(&mut self, cx: &mut StepContext<'_>, owner: Owner, options: AcquireOptions, wait: bool) {
        let holder = cx.source.holder();
        let kind = (options.fixed, options.mark);
        let claim = Claim::new(holder, owner, options.term, kind, cx.now);
        self.claims.insert(claim);
        self.ask(cx, holder.claim, RequestKind::Claim { wait });
    }

    /// From the moment in which a leave is handed out the number is dead here, whatever the answer.
    pub(crate) fn leave(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, release: Option<Ticket>) {
        let is_closed = cx.source.is_closed;
        let keeps_number = self.plant.planted(Flaw::LeaveKeepsNumber);
        let claim = &mut self.claims[number];
        let latest = claim.may_execute_until.unwrap_or(cx.now).max(cx.now) + claim.hold();
        let ends = match &claim.phase {
            // Nothing under way, or given up, can have extended it since.
            Phase::Held(held) if claim.asking.is_none() && claim.fails == 0 => held.ends.min(latest),
            _ => latest,
        };
        let until = if claim.finished && !is_closed {
            cx.now + FINISH_LEASES * claim.hold()
        } else {
            ends
        };
        if keeps_number && claim.held().is_none() {
            claim.owner = Owner::Cohort;
        } else {
            claim.phase = Phase::Leaving(Leaving {
                release,
                ends,
                until,
                repeated: false,
            });
        }
        claim.fails = 0;
        self.ask(cx, number, RequestKind::Leave);
    }

    /// Lets other nodes have their turn, and goes on at the end of the queue, for whoever is first in the line.
    pub(crate) fn yield_(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, release: Option<Ticket>) {
        let Some(old) = self.claims.remove(number) else {
            return;
        };
        let term = self.line.front().map_or(old.term, |head| head.options.term);
        let mut holder = cx.source.holder();
        if self.plant.planted(Flaw::YieldKeepsNumber) {
            holder = old.holder;
        }
        let mut claim = Claim::new(holder, Owner::Cohort, term, (false, old.mark), cx.now);
        claim.seq = old.seq;
        claim.yielded = Some(Yielded {
            from: old.holder,
            term: old.term,
            release,
        });
        self.claims.insert(claim);
        cx.event(KeyEvent::Yielded);
        self.ask(cx, holder.claim, RequestKind::Yield);
    }

    /// A dead number that was the older half of a yield, to be left. `repeated`: the yield may have done it.
    pub(crate) fn leave_old_number(&mut self, cx: &mut StepContext<'_>, yielded: Yielded, repeated: bool) {
        let ends = cx.now + ms(yielded.term.hold_ms());
        let number = yielded.from.claim;
        let kind = (false, None);
        let mut claim = Claim::new(yielded.from, Owner::Nobody, yielded.term, kind, cx.now);
        claim.phase = Phase::Leaving(Leaving {
            release: yielded.release,
            ends,
            until: ends,
            repeated,
        });
        // Beyond those of the claim that shared its count.
        claim.seq = 1 << 16;
        self.claims.insert(claim);
        self.ask(cx, number, RequestKind::Leave);
    }

    /// Hands out a request of the claim. At most one is under way that anybody listens to.
    pub(crate) fn ask(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, what: RequestKind) {
        let claim = &mut self.claims[number];
        claim.seq += 1;
        claim.asking = Some(Asking { seq: claim.seq, what });
        claim.act = None;
        claim.retries = false;
        claim.look_again = false;
        let (verb, class) = match what {
            RequestKind::Claim { wait } => (Verb::Claim { wait }, Class::Claim),
            RequestKind::Renew
                if claim.held().is_some() || matches!(claim.phase, Phase::Confirming { .. }) =>
            {
                (Verb::Renew, Class::OwnerRenewal)
            }
            RequestKind::Renew => (Verb::Renew, Class::WaiterRenewal),
            RequestKind::Leave if claim.finished => (Verb::Finish, Class::Leave),
            RequestKind::Leave => (Verb::Leave, Class::Leave),
            RequestKind::Yield => (Verb::Yield { to: claim.holder }, Class::Leave),
        };
        let holder = match &claim.yielded {
            Some(yielded) if what == RequestKind::Yield => yielded.from,
            _ => claim.holder,
        };
        let request = Request {
            mark: claim.mark,
            name: cx.name.clone(),
            holder,
            term: claim.term,
            mode: Mode::Exclusive,
            verb,
        };
        let tag = Tag {
            claim: claim.holder.claim,
            seq: claim.seq,
        };
        let lease = claim.lease();
        cx.effects.push(Effect::Send(Outgoing {
            tag,
            request,
            lease,
            class,
        }));
        if self.plant.planted(Flaw::UnansweredRefresh)
            && let Phase::Queued { t0 } = &mut self.claims[number].phase
        {
            *t0 = cx.now;
        }
    }

    /// The lease is the node's: whoever is first in the line starts, or it is left again.
    pub(crate) fn start(
        &mut self,
        cx: &mut StepContext<'_>,
        number: ClaimNumber,
        grant: GrantNumber,
        deadline: Instant,
    ) {
        let claim = &mut self.claims[number];
        let lease = claim.lease();
        claim.fails = 0;
        claim.may_execute_until = None;
        let next = match claim.owner {
            Owner::Cohort => self.line.front().copied(),
            Owner::Solo(caller) => Some(caller),
            Owner::Nobody => None,
        };
        self.taken = Some(cx.now);
        let Some(next) = next else {
            return self.leave(cx, number, None);
        };
        if claim.owner == Owner::Cohort {
            self.strikes = 0;
            // Its number has one length for life, and whoever is first wants more.
            if next.lease() > lease {
                cx.event(KeyEvent::TooShort);
                return self.yield_(cx, number, None);
            }
            self.line.pop();
        }
        claim.phase = Phase::Held(Held {
            number: grant,
            deadline,
            ticket: next.ticket,
            index: 0,
            since: cx.now,
            due: cx.now + deadline.since(cx.now).saturating_sub(lease / 3 * 2),
            ends: cx.now + claim.hold(),
            unfetched: Some(cx.now + lease),
        });
        self.held = number;
        cx.effects
            .push(Effect::Granted(next.ticket, Fence::new(grant, 0)));
        self.schedule(cx, number);
        self.deny_the_impatient(cx);
    }

    /// Somebody has the lock: whoever would not wait hears of it.
    pub(crate) fn deny_the_impatient(&mut self, cx: &mut StepContext<'_>) {
        if self.line.has_impatient() {
            self.line.retain(
                |caller| caller.options.wait,
                |caller| {
                    let why = caller.options.busy();
                    cx.effects.push(Effect::Denied(caller.ticket, why));
                },
            );
        }
    }

    /// The end of a holding that nobody asked for. Told first, then left: a renewal whose answer was lost may have
    /// extended the record.
    pub(crate) fn lose(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, cause: LostCause) {
        if let Phase::Held(held) = &self.claims[number].phase {
            cx.effects.push(Effect::Lost(held.ticket, cause));
        }
        if cause == LostCause::Gone {
            self.claims.remove(number);
        } else {
            self.leave(cx, number, None);
        }
    }

    /// Gives up everything. What is being told to the store is told only until the lease behind it has ended.
    pub(crate) fn close(&mut self, cx: &mut StepContext<'_>) {
        self.expire(cx);
        let solos = std::mem::take(&mut self.solos);
        let deny = |caller: &Caller, cx: &mut StepContext<'_>| {
            cx.effects
                .push(Effect::Denied(caller.ticket, AcquireError::Closed));
        };
        self.line.retain(|_| false, |caller| deny(caller, cx));
        solos.values().for_each(|caller| deny(caller, cx));
        for number in self.claims.all() {
            let claim = &mut self.claims[number];
            match (&mut claim.phase, claim.owner) {
                (Phase::Held(_), _) => self.lose(cx, number, LostCause::Shutdown),
                (Phase::Leaving(leaving), _) => {
                    leaving.until = leaving.until.min(leaving.ends);
                    if claim.retries {
                        self.ask(cx, number, RequestKind::Leave);
                    }
                }
                (_, Owner::Solo(caller)) => {
                    deny(&caller, cx);
                    claim.owner = Owner::Nobody;
                }
                _ => {}
            }
        }
        self.pursue(cx);
    }
}
