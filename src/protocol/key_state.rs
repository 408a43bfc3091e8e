//! One key, as long as somebody in this process cares: the line, the claims, and what callers do to them.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::LostCause;
use crate::protocol::context::StepContext;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::{
    ClaimNumber, Fence, GrantNumber, Holder, LeaseTimes, Mode, NO_TICK, Request, Verb,
};
use crate::protocol::step::{
    AcquireError, AcquireOptions, Class, Effect, Input, KeyEvent, Outcome, Outgoing, Tag, Ticket, ms,
};
use crate::protocol::time::Instant;

/// The state of one key.
#[derive(Debug, Default)]
pub(crate) struct KeyState<P> {
    pub(crate) plant: P,
    /// Callers that share the cohort's claim, in order of their tickets.
    pub(crate) line: VecDeque<(Ticket, AcquireOptions)>,
    /// Callers that want a claim of their own and have none yet.
    pub(crate) solos: Vec<(Ticket, AcquireOptions)>,
    /// Every claim that is not over. At most one of them is the cohort's.
    pub(crate) claims: Vec<Claim>,
    /// Where the store cannot queue: when to claim anew.
    pub(crate) reclaim: Option<Instant>,
    /// Since when the store has been failing a line that had waited before.
    pub(crate) outage: Option<Instant>,
    /// Failures in a row of claims. An answer ends the row, whatever it says.
    pub(crate) fails: u32,
    /// The timer that the shard keeps for this key.
    pub(crate) due: Option<Instant>,
}

/// One pursuit of a lease. Its number lives once.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) holder: Holder,
    pub(crate) term: LeaseTimes,
    pub(crate) owner: Owner,
    /// What it was made with: whether it stands in the queue if it must, whether it is renewed, and its tick.
    pub(crate) options: AcquireOptions,
    /// The how-manieth attempt at its tick it is.
    pub(crate) attempt: u32,
    /// Its tick was run to the end.
    pub(crate) finished: bool,
    pub(crate) phase: Phase,
    /// When its first request was handed out: never later than it was sent.
    pub(crate) asked: Instant,
    /// The request under way, if any.
    pub(crate) asking: Option<Asking>,
    pub(crate) seq: u32,
    /// When to act, while nothing is under way.
    pub(crate) act: Option<Instant>,
    /// Failures in a row.
    pub(crate) fails: u32,
    /// Never answered so far, and refused as late only from then on.
    pub(crate) may_execute_until: Option<Instant>,
    /// Created by a yield: what it was before.
    pub(crate) yielded: Option<Yielded>,
}

/// For whom a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// For whoever is first in the line.
    Cohort,
    /// For one caller: a fixed lease, or a tick.
    Solo(Ticket),
    /// For nobody any more.
    Nobody,
}

#[derive(Debug)]
pub(crate) struct Yielded {
    pub(crate) from: Holder,
    pub(crate) term: LeaseTimes,
    pub(crate) release: Option<Ticket>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asking {
    pub(crate) seq: u32,
    pub(crate) what: RequestKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Claim { wait: bool },
    Renew,
    Leave,
    Yield,
}

/// Asked, queued, granted, gone; never back.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Nothing is known yet.
    Asked,
    /// In the store's queue; `t0` is when the latest request that was answered "queued" was sent.
    Queued { t0: Instant },
    /// Granted, but too little may be left: renewed before use.
    Confirming,
    /// Ours, for a holder.
    Held(Held),
    /// Dead here; the store is being told.
    Leaving {
        /// Who waits to hear of it.
        release: Option<Ticket>,
        /// When to stop telling: by then it has ended by itself.
        until: Instant,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) number: GrantNumber,
    pub(crate) deadline: Instant,
    pub(crate) ticket: Ticket,
    /// The place of the present holder among the local holders of this grant.
    pub(crate) index: u64,
    /// When the burst began.
    pub(crate) since: Instant,
    /// When it is to be renewed next.
    pub(crate) due: Instant,
}

impl Claim {
    fn new(holder: Holder, owner: Owner, options: AcquireOptions, now: Instant) -> Self {
        Claim {
            holder,
            term: options.term,
            owner,
            options,
            attempt: 0,
            finished: false,
            phase: Phase::Asked,
            asked: now,
            asking: None,
            seq: 0,
            act: None,
            fails: 0,
            may_execute_until: None,
            yielded: None,
        }
    }

    pub(crate) fn lease(&self) -> Duration {
        ms(self.term.lease_ms)
    }

    pub(crate) fn hold(&self) -> Duration {
        ms(self.term.hold_ms())
    }

    fn held(&self) -> Option<&Held> {
        match &self.phase {
            Phase::Held(held) => Some(held),
            _ => None,
        }
    }
}

impl<P: Plant> KeyState<P> {
    pub(crate) fn handle(&mut self, cx: &mut StepContext<'_>, input: Input) {
        self.expire(cx);
        match input {
            Input::Lock(ticket, options) => self.lock(cx, ticket, options),
            Input::Fetched(_) => {}
            Input::Cancel(ticket) => self.cancel(cx, ticket),
            Input::Release(ticket) => self.release(cx, ticket, false),
            Input::Finish(ticket) => self.release(cx, ticket, true),
            Input::Answered { tag, sent, reply } => self.answered(cx, tag, sent, reply),
            Input::Failed {
                tag,
                why,
                late_after,
                error,
                ..
            } => {
                self.failed(cx, tag, why, late_after, error);
            }
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

    pub(crate) fn remaining(&self, now: Instant, ticket: Ticket) -> Option<Duration> {
        let held = self
            .claims
            .iter()
            .filter_map(Claim::held)
            .find(|held| held.ticket == ticket)?;
        (now < held.deadline).then(|| held.deadline.since(now))
    }

    pub(crate) fn attempt(&self, ticket: Ticket) -> u32 {
        self.of(ticket).map_or(0, |claim| claim.attempt)
    }

    pub(crate) fn claimed_by(&self, ticket: Ticket) -> Option<Holder> {
        self.of(ticket).map(|claim| claim.holder)
    }

    fn of(&self, ticket: Ticket) -> Option<&Claim> {
        let mut claims = self.claims.iter();
        claims.find(|claim| claim.held().is_some_and(|held| held.ticket == ticket))
    }

    pub(crate) fn fence(&self, now: Instant, ticket: Ticket) -> Option<Fence> {
        self.holders(now)
            .find(|(holds, ..)| *holds == ticket)
            .map(|(_, _, fence)| fence)
    }

    pub(crate) fn holders(&self, now: Instant) -> impl Iterator<Item = (Ticket, Holder, Fence)> {
        let held = self
            .claims
            .iter()
            .filter_map(|claim| Some((claim.holder, claim.held()?)));
        held.filter(move |(_, held)| now < held.deadline)
            .map(|(holder, held)| (held.ticket, holder, Fence::new(held.number, held.index)))
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

    fn lock(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, options: AcquireOptions) {
        if options.mark != NO_TICK {
            // The store alone knows what became of a tick. What made others of this job wait is no news of this one.
            self.reclaim = None;
            return self.solos.push((ticket, options));
        }
        if !options.wait && self.is_taken() {
            return cx.effects.push(Effect::Denied(ticket, AcquireError::Busy));
        }
        let waiting = self.waiting();
        if options.wait && waiting >= options.limit && (self.is_taken() || waiting > 0) {
            return cx
                .effects
                .push(Effect::Denied(ticket, AcquireError::QueueFull { waiting }));
        }
        if options.wait && options.node_is_full && (self.is_taken() || waiting > 0) {
            return cx.effects.push(Effect::Denied(ticket, AcquireError::NodeFull));
        }
        if options.fixed {
            self.solos.push((ticket, options));
        } else {
            self.line.push_back((ticket, options));
        }
    }

    fn cancel(&mut self, cx: &mut StepContext<'_>, ticket: Ticket) {
        if let Ok(at) = self.line.binary_search_by_key(&ticket, |(ticket, _)| *ticket) {
            self.line.remove(at);
            return;
        }
        self.solos.retain(|(solo, _)| *solo != ticket);
        if let Some(at) = self.position(|claim| claim.owner == Owner::Solo(ticket) && claim.held().is_none())
        {
            self.claims[at].owner = Owner::Nobody;
        } else if let Some(at) = self.held_by(ticket) {
            self.give_back(cx, at, None);
        }
    }

    fn release(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, finished: bool) {
        match self.held_by(ticket) {
            Some(at) => {
                self.claims[at].finished = finished;
                self.give_back(cx, at, Some(ticket));
            }
            None => cx.effects.push(Self::released_too_late(ticket)),
        }
    }

    /// The holder is done: the next caller of this process, another node, or nobody.
    fn give_back(&mut self, cx: &mut StepContext<'_>, at: usize, release: Option<Ticket>) {
        let claim = &mut self.claims[at];
        let lease = claim.lease();
        let Phase::Held(held) = &mut claim.phase else {
            return;
        };
        if claim.owner != Owner::Cohort || self.line.is_empty() {
            return self.leave(cx, at, release);
        }
        let rules = &cx.source.rules;
        let in_burst = held.index < u64::from(rules.burst) && cx.now.since(held.since) < rules.burst_time;
        // With less than a third left the renewals are failing: who is next should not inherit that.
        if !in_burst || held.deadline.since(cx.now) < lease / 3 {
            return self.yield_(cx, at, release);
        }
        let (next, _) = self.line.pop_front().expect("checked above");
        held.ticket = next;
        held.index += 1;
        let fence = Fence::new(held.number, held.index);
        cx.effects.push(Effect::Event(KeyEvent::HandedOn));
        cx.effects.push(Effect::Granted(next, fence));
        if let Some(ticket) = release {
            cx.effects.push(Effect::Released(ticket, Outcome::Kept));
        }
    }

    // What becomes of claims.

    /// Sees to it that a line has a claim, and a claim somebody who wants it.
    pub(crate) fn pursue(&mut self, cx: &mut StepContext<'_>) {
        for at in (0..self.claims.len()).rev() {
            let claim = &self.claims[at];
            let wanted = match claim.owner {
                Owner::Cohort => !self.line.is_empty() || claim.held().is_some(),
                Owner::Solo(_) => true,
                Owner::Nobody => false,
            };
            match claim.phase {
                // An answer is under way: it decides.
                Phase::Asked if claim.asking.is_some() => {}
                Phase::Leaving { .. } => {}
                _ if claim
                    .asking
                    .is_some_and(|asking| asking.what == RequestKind::Leave) => {}
                _ if wanted => {}
                _ if self.plant.planted(Flaw::CancelledForgotten) => {
                    self.claims.remove(at);
                }
                _ => self.leave(cx, at, None),
            }
        }
        // What is due is taken off at once, or its timer would fire without end while a leave is under way.
        self.reclaim = self.reclaim.filter(|at| cx.now < *at);
        if self.reclaim.is_some() || self.is_first_leave_under_way() {
            return;
        }
        for (ticket, options) in std::mem::take(&mut self.solos) {
            self.claim(cx, Owner::Solo(ticket), options);
        }
        let is_pursued = self
            .position(|claim| claim.owner == Owner::Cohort && !matches!(claim.phase, Phase::Leaving { .. }));
        if let (None, Some((_, head))) = (is_pursued, self.line.front()) {
            let wait = self.line.iter().any(|(_, options)| options.wait);
            let options = AcquireOptions { wait, ..*head };
            self.claim(cx, Owner::Cohort, options);
        }
    }

    /// Two connections give no order: a claim could overtake our own leave and find us busy with ourselves.
    fn is_first_leave_under_way(&self) -> bool {
        self.claims.iter().any(|claim| {
            matches!(claim.phase, Phase::Leaving { .. }) && claim.fails == 0 && claim.asking.is_some()
        })
    }

    fn claim(&mut self, cx: &mut StepContext<'_>, owner: Owner, options: AcquireOptions) {
        let holder = cx.source.holder();
        self.claims.push(Claim::new(holder, owner, options, cx.now));
        self.ask(
            cx,
            self.claims.len() - 1,
            RequestKind::Claim { wait: options.wait },
        );
    }

    /// From the moment in which a leave is handed out the number is dead here, whatever the answer.
    pub(crate) fn leave(&mut self, cx: &mut StepContext<'_>, at: usize, release: Option<Ticket>) {
        let claim = &mut self.claims[at];
        // That a tick is over is worth telling for longer than it would stand in anybody's way.
        let patience = if claim.finished { 8 } else { 1 };
        let until = claim.may_execute_until.unwrap_or(cx.now).max(cx.now) + patience * claim.hold();
        if self.plant.planted(Flaw::LeaveKeepsNumber) && claim.held().is_none() {
            claim.owner = Owner::Cohort;
        } else {
            claim.phase = Phase::Leaving { release, until };
        }
        claim.fails = 0;
        self.ask(cx, at, RequestKind::Leave);
    }

    fn yield_(&mut self, cx: &mut StepContext<'_>, at: usize, release: Option<Ticket>) {
        let old = self.claims.swap_remove(at);
        let term = self.line.front().map_or(old.term, |(_, head)| head.term);
        let mut holder = cx.source.holder();
        if self.plant.planted(Flaw::YieldKeepsNumber) {
            holder = old.holder;
        }
        let options = AcquireOptions {
            term,
            wait: true,
            ..old.options
        };
        let (from, term) = (old.holder, old.term);
        self.claims.push(Claim {
            seq: old.seq,
            yielded: Some(Yielded { from, term, release }),
            ..Claim::new(holder, Owner::Cohort, options, cx.now)
        });
        cx.effects.push(Effect::Event(KeyEvent::Yielded));
        self.ask(cx, self.claims.len() - 1, RequestKind::Yield);
    }

    /// A dead number that was the older half of a yield, to be left.
    pub(crate) fn leave_old_number(&mut self, cx: &mut StepContext<'_>, yielded: Yielded) {
        let until = cx.now + ms(yielded.term.hold_ms());
        let options = AcquireOptions {
            term: yielded.term,
            wait: false,
            fixed: false,
            mark: NO_TICK,
            limit: 0,
            node_is_full: false,
        };
        self.claims.push(Claim {
            phase: Phase::Leaving {
                release: yielded.release,
                until,
            },
            seq: 1 << 16,
            // Not its first try: nobody should wait for it.
            fails: 1,
            ..Claim::new(yielded.from, Owner::Nobody, options, cx.now)
        });
        self.ask(cx, self.claims.len() - 1, RequestKind::Leave);
    }

    /// Hands out a request of the claim. At most one is under way that anybody listens to.
    pub(crate) fn ask(&mut self, cx: &mut StepContext<'_>, at: usize, what: RequestKind) {
        let claim = &mut self.claims[at];
        claim.seq += 1;
        claim.asking = Some(Asking { seq: claim.seq, what });
        claim.act = None;
        let (verb, holder) = match what {
            RequestKind::Claim { wait } => (Verb::Claim { wait }, claim.holder),
            RequestKind::Renew => (Verb::Renew, claim.holder),
            RequestKind::Leave if claim.finished => (Verb::Finish, claim.holder),
            RequestKind::Leave => (Verb::Leave, claim.holder),
            RequestKind::Yield => {
                let from = claim
                    .yielded
                    .as_ref()
                    .map_or(claim.holder, |yielded| yielded.from);
                (Verb::Yield { to: claim.holder }, from)
            }
        };
        let class = match (&claim.phase, what) {
            (_, RequestKind::Claim { .. }) => Class::Claim,
            (_, RequestKind::Leave | RequestKind::Yield) => Class::Leave,
            (Phase::Held(_), RequestKind::Renew) => Class::OwnerRenewal,
            (_, RequestKind::Renew) => Class::WaiterRenewal,
        };
        let lease = claim.lease();
        let request = Request {
            mark: claim.options.mark,
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
        cx.effects.push(Effect::Send(Outgoing {
            tag,
            request,
            lease,
            class,
        }));
        if self.plant.planted(Flaw::UnansweredRefresh)
            && let Phase::Queued { t0 } = &mut self.claims[at].phase
        {
            *t0 = cx.now;
        }
    }

    /// The lease is the node's: whoever is first in the line starts, or it is left again.
    pub(crate) fn start(
        &mut self,
        cx: &mut StepContext<'_>,
        at: usize,
        number: GrantNumber,
        deadline: Instant,
    ) {
        self.fails = 0;
        self.outage = None;
        let claim = &mut self.claims[at];
        claim.fails = 0;
        claim.may_execute_until = None;
        let ticket = match claim.owner {
            Owner::Cohort => self.line.pop_front().map(|(ticket, _)| ticket),
            Owner::Solo(ticket) => Some(ticket),
            Owner::Nobody => None,
        };
        let Some(ticket) = ticket else {
            return self.leave(cx, at, None);
        };
        let thirds = claim.lease() / 3 * 2;
        claim.phase = Phase::Held(Held {
            number,
            deadline,
            ticket,
            index: 0,
            since: cx.now,
            due: cx.now + deadline.since(cx.now).saturating_sub(thirds),
        });
        cx.effects.push(Effect::Granted(ticket, Fence::new(number, 0)));
        self.schedule(cx, at);
        self.deny_the_impatient(cx);
    }

    /// Somebody has the lock: whoever would not wait hears of it.
    pub(crate) fn deny_the_impatient(&mut self, cx: &mut StepContext<'_>) {
        self.line.retain(|(ticket, options)| {
            if !options.wait {
                cx.effects.push(Effect::Denied(*ticket, AcquireError::Busy));
            }
            options.wait
        });
    }

    /// The end of a holding that nobody asked for. Told first, then left: a renewal owner answer was lost may have
    /// extended the record.
    pub(crate) fn lose(&mut self, cx: &mut StepContext<'_>, at: usize, cause: LostCause) {
        if let Phase::Held(held) = &self.claims[at].phase {
            cx.effects.push(Effect::Lost(held.ticket, cause));
        }
        if cause == LostCause::Gone {
            self.claims.swap_remove(at);
        } else {
            self.leave(cx, at, None);
        }
    }

    pub(crate) fn close(&mut self, cx: &mut StepContext<'_>) {
        self.expire(cx);
        for (ticket, _) in self.line.drain(..) {
            cx.effects.push(Effect::Denied(ticket, AcquireError::Closed));
        }
        for (ticket, _) in self.solos.drain(..) {
            cx.effects.push(Effect::Denied(ticket, AcquireError::Closed));
        }
        for at in (0..self.claims.len()).rev() {
            match (&self.claims[at].phase, self.claims[at].owner) {
                (Phase::Held(_), _) => self.lose(cx, at, LostCause::Shutdown),
                (Phase::Leaving { .. }, _) => {}
                (_, Owner::Solo(ticket)) => {
                    cx.effects.push(Effect::Denied(ticket, AcquireError::Closed));
                    self.claims[at].owner = Owner::Nobody;
                }
                _ => {}
            }
        }
        self.pursue(cx);
    }

    // Looking things up.

    /// Somebody else has it for sure, or is before us.
    fn is_taken(&self) -> bool {
        self.claims.iter().any(|claim| {
            matches!(
                claim.phase,
                Phase::Held(_) | Phase::Queued { .. } | Phase::Confirming
            )
        })
    }

    fn waiting(&self) -> usize {
        let solos = self
            .claims
            .iter()
            .filter(|c| matches!(c.owner, Owner::Solo(_)) && c.held().is_none());
        self.line.len() + self.solos.len() + solos.count()
    }

    fn held_by(&self, ticket: Ticket) -> Option<usize> {
        self.position(|claim| claim.held().is_some_and(|held| held.ticket == ticket))
    }

    pub(crate) fn numbered(&self, claim: ClaimNumber) -> Option<usize> {
        self.position(|c| c.holder.claim == claim)
    }

    pub(crate) fn position(&self, f: impl Fn(&Claim) -> bool) -> Option<usize> {
        self.claims.iter().position(f)
    }
}
