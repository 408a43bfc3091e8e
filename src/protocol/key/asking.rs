//! The claims of a key: which it needs for those who wait here, and what is asked of the store for them.

use crate::error::StoreError;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::key::claim::{Claim, Claimant, Leaving, Origin, Phase, RequestKind, Yielded};
use crate::protocol::key::context::StepContext;
use crate::protocol::key::key_state::KeyState;
use crate::protocol::key::line::Caller;
use crate::protocol::message::{ClaimNumber, Mode, Request, WhenBehind};
use crate::protocol::step::{Effect, KeyEvent, LockOptions, Outgoing, Tag, Ticket, ms};

/// For so many leases the store is told that a tick was run to its end: longer than it would stand in anybody's way.
const FINISH_LEASES: u32 = 8;

/// So many of a line are asked for at once, while there are permits.
const MOST_AHEAD: usize = 16;

impl<P: Plant> KeyState<P> {
    /// Tells of a grant that came because its owner before did not renew, as far as that can be known here. Fixed leases
    /// run out as they should.
    pub(crate) fn note_inheritance(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        let (owner_ends, from) = (self.owner_ends.take(), self.owner.take());
        let ran_out = owner_ends.is_some_and(|ends| ends <= cx.now);
        if ran_out && !self.claims[number].fixed {
            cx.event(KeyEvent::Inherited { from });
        }
    }

    /// Sees to it that a line has a claim, and a claim somebody who wants it.
    pub(crate) fn claim_for_line(&mut self, cx: &mut StepContext<'_>) {
        if self.open.is_some() {
            self.let_readers_in(cx);
        }
        for number in self.claims.unsettled() {
            let Some(claim) = self.claims.get(number) else {
                continue;
            };
            let wanted = match claim.claimant {
                Claimant::Cohort => claim.held().is_some() || self.line.mode() == Some(claim.mode),
                Claimant::Solo(_) | Claimant::Ahead => true,
                Claimant::Abandoned => false,
            };
            match claim.phase {
                _ if wanted => {}
                // An answer is under way: it decides.
                Phase::Asked if claim.asking.is_some() => {}
                Phase::Leaving(_) => {}
                _ if claim.is_asking(RequestKind::Leave) => {}
                _ if self.plant.planted(Flaw::CancelledForgotten) => {
                    self.claims.end(number);
                }
                _ => self.leave(cx, number, None),
            }
        }
        // What is due is taken off at once, or its timer would fire without end.
        self.reclaim = self.reclaim.filter(|reclaim| cx.now < reclaim.at);
        if self.reclaim.is_some() {
            return;
        }
        if !self.solos.is_empty() {
            self.claim_for_solos(cx);
        }
        let Some(head) = self.line.front() else {
            return;
        };
        let options = head.options;
        if self.claims.pursuit().is_none() {
            self.claim(cx, Claimant::Cohort, &options, self.line.has_patient());
        }
        if matches!(options.mode, Mode::Permits(_)) {
            self.ask_ahead(cx);
        }
    }

    /// Claims for the callers that want a claim of their own, except those that rest.
    fn claim_for_solos(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.now;
        let is_due = |(_, caller): &(&Ticket, &Caller)| caller.entered <= now;
        while let Some(ticket) = self.solos.iter().find(is_due).map(|(ticket, _)| *ticket)
            && let Some(caller) = self.solos.remove(&ticket)
        {
            let claimant = Claimant::Solo(caller);
            self.claim(cx, claimant, &caller.options, caller.options.wait);
        }
    }

    /// While there are permits, those behind the first of the line are asked for in the same trip. Of one key and node at
    /// most one claim waits in the store.
    fn ask_ahead(&mut self, cx: &mut StepContext<'_>) {
        let pursuit = self.claims.pursuit().and_then(|number| self.claims.get(number));
        let is_new = pursuit.is_some_and(|claim| matches!(claim.phase, Phase::Asked));
        if self.asks_for_one || !is_new {
            return;
        }
        let behind = 1 + self.claims.ahead();
        let next = self.line.iter().take(MOST_AHEAD).skip(behind);
        let options: Vec<_> = next.map(|caller| caller.options).collect();
        for options in options {
            self.claim(cx, Claimant::Ahead, &options, false);
        }
    }

    pub(crate) fn claim(
        &mut self,
        cx: &mut StepContext<'_>,
        claimant: Claimant,
        options: &LockOptions,
        wait: bool,
    ) {
        let claim_id = cx.source.next_claim_id();
        self.claims
            .insert(Claim::new(claim_id, claimant, options, cx.now));
        self.ask(cx, claim_id.claim, RequestKind::Claim { wait });
    }

    /// From the moment in which a leave is handed out the number is dead here, whatever the answer.
    pub(crate) fn leave(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, release: Option<Ticket>) {
        let is_closed = cx.source.is_closed;
        let keeps_number = self.plant.planted(Flaw::LeaveKeepsNumber);
        let claim = &mut self.claims[number];
        let latest = claim.may_execute_until.unwrap_or(cx.now).max(cx.now) + claim.hold();
        let ends = match &claim.phase {
            // Nothing under way, or given up, can have extended it since.
            Phase::Held(held) if claim.asking.is_none() && claim.failed_requests == 0 => {
                held.ends.min(latest)
            }
            _ => latest,
        };
        let is_finished = claim.tick.as_ref().is_some_and(|tick| tick.finished.is_some());
        let until = if is_finished && !is_closed {
            cx.now + FINISH_LEASES * claim.hold()
        } else {
            ends
        };
        if keeps_number && claim.held().is_none() {
            claim.claimant = Claimant::Cohort;
        } else {
            claim.phase = Phase::Leaving(Leaving { release, ends, until });
        }
        claim.failed_requests = 0;
        claim.unanswered = None;
        let passed = match claim.origin {
            Some(Origin::Pass(_)) => claim.take_passed(),
            _ => None,
        };
        self.ask(cx, number, RequestKind::Leave);
        if let Some(old) = passed {
            self.leave_passed(cx, old);
        }
    }

    /// Lets other nodes have their turn, and goes on at the end of the queue, for whoever is first in the line.
    pub(crate) fn yield_(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, release: Option<Ticket>) {
        // Without a local caller there is nothing to go on for.
        let Some(options) = self.line.front().map(|head| head.options) else {
            return self.leave(cx, number, release);
        };
        let Some(old) = self.claims.remove(number) else {
            return;
        };
        let mut claim_id = cx.source.next_claim_id();
        if self.plant.planted(Flaw::YieldKeepsNumber) {
            claim_id = old.claim_id;
        }
        let mut claim = Claim::new(claim_id, Claimant::Cohort, &options, cx.now);
        claim.seq = old.seq;
        claim.origin = Some(Origin::Yield(Yielded {
            from: old.claim_id,
            term: old.term,
            release,
        }));
        self.claims.insert(claim);
        cx.event(KeyEvent::Yielded);
        self.ask(cx, claim_id.claim, RequestKind::Yield);
    }

    /// A dead number that was the older half of a yield, to be left. `unanswered`: why the yield has no answer, which may have
    /// done it.
    /// `seq`: so many requests were counted of it, or of the claim that went on with its count.
    pub(crate) fn leave_old_number(
        &mut self,
        cx: &mut StepContext<'_>,
        yielded: Yielded,
        seq: u32,
        unanswered: Option<Box<StoreError>>,
    ) {
        let ends = cx.now + ms(yielded.term.hold_ms());
        let number = yielded.from.claim;
        let options = LockOptions::new(yielded.term);
        let mut claim = Claim::new(yielded.from, Claimant::Abandoned, &options, cx.now);
        claim.phase = Phase::Leaving(Leaving {
            release: yielded.release,
            ends,
            until: ends,
        });
        claim.unanswered = unanswered;
        // A late answer to one of those is none to what follows.
        claim.seq = seq;
        self.claims.insert(claim);
        self.ask(cx, number, RequestKind::Leave);
    }

    /// Hands out a request of the claim. At most one is under way that anybody listens to.
    pub(crate) fn ask(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, what: RequestKind) {
        let claim = &mut self.claims[number];
        // What became of it is found out by asking for it again: that is done once.
        let what = match what {
            RequestKind::Renew if claim.pass().is_some() => RequestKind::Pass,
            what => what,
        };
        claim.seq += 1;
        claim.asking = Some(what);
        claim.act = None;
        claim.retries = false;
        claim.look_again = false;
        let (verb, class) = claim.asks_for(what);
        let data = match claim.ticket() {
            Some(ticket) if !self.values.is_empty() => {
                let value = self.values.iter().find(|(of, _)| *of == ticket);
                value.map(|(_, value)| value.clone())
            }
            _ => None,
        };
        let claim_id = claim.asks_as(what);
        let request = Request {
            mark: claim.tick.as_deref().map(|tick| tick.mark),
            turn: claim.tick.as_deref().map_or(WhenBehind::Skip, |tick| tick.turn),
            name: cx.name.clone(),
            claim_id,
            term: claim.term,
            mode: claim.mode,
            verb,
            data,
        };
        let tag = Tag {
            claim: claim.claim_id.claim,
            seq: claim.seq,
        };
        let lease = claim.lease();
        cx.effects.push(Effect::Send(Outgoing {
            tag,
            request,
            lease,
            class,
            called: cx.now,
        }));
        if self.plant.planted(Flaw::UnansweredRefresh)
            && let Phase::Queued { t0 } = &mut self.claims[number].phase
        {
            *t0 = cx.now;
        }
    }
}
