//! One key, as long as somebody in this process cares: the line, the claims, and what callers do to them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{LostCause, StoreError};
use crate::protocol::claim::{
    Asking, Claim, ClaimKind, Claimant, Finished, Held, Holders, Leaving, Local, Phase, RequestKind, Yielded,
};
use crate::protocol::claims::Claims;
use crate::protocol::context::StepContext;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::line::{Caller, Line};
use crate::protocol::message::{
    Checkpoint, ClaimNumber, Fence, GrantNumber, Holder, Mode, Request, TickTime, Verb,
};
use crate::protocol::readers::Readers;
use crate::protocol::step::{
    AcquireError, AcquireOptions, Class, Effect, Input, KeyEvent, Outcome, Outgoing, Tag, Ticket, ms,
};
use crate::protocol::time::Instant;

/// For so many leases the store is told that a tick was run to its end: longer than it would stand in anybody's way.
const FINISH_LEASES: u32 = 8;

/// So many of a line are asked for at once, while there are permits.
const MOST_AHEAD: usize = 16;

/// The state of one key.
#[derive(Debug, Default)]
pub(crate) struct KeyState<P> {
    pub(crate) plant: P,
    pub(crate) line: Line,
    /// Callers that hold as readers of the line.
    pub(crate) readers: Readers,
    /// The claim that lets readers in.
    pub(crate) open: Option<ClaimNumber>,
    /// Nobody is asked for but the first of the line: the store last had no permits for who asked for some, or did not answer.
    pub(crate) asks_for_one: bool,
    /// Callers that want a claim of their own and have none.
    pub(crate) solos: BTreeMap<Ticket, Caller>,
    pub(crate) claims: Claims,
    /// What is to be kept, for callers that ask for that.
    pub(crate) saves: BTreeMap<Ticket, Checkpoint>,
    /// When to claim again for those that have no claim.
    pub(crate) reclaim: Option<Reclaim>,
    /// Failures in a row of the line's claims.
    pub(crate) failed_claims: u32,
    /// When the store last said that somebody has the key, one of our callers included.
    pub(crate) taken: Option<Instant>,
    /// By then the present owner's record has ended unless it is renewed, as the store told us last in its queue.
    pub(crate) owner_ends: Option<Instant>,
    /// What kept requests from being answered since the last answer.
    pub(crate) error: Option<StoreError>,
    /// The claim that was held last.
    pub(crate) held: ClaimNumber,
    /// What its shard tells it apart by.
    pub(crate) number: u64,
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
    #[inline]
    pub(crate) fn handle(&mut self, cx: &mut StepContext<'_>, input: Input) {
        self.expire(cx);
        match input {
            Input::Lock(ticket, options) => self.lock(cx, ticket, options),
            Input::Save(ticket, options, data) => {
                self.saves.insert(ticket, data);
                self.lock(cx, ticket, options);
            }
            Input::Fetched(ticket) => {
                self.fetched(ticket);
            }
            Input::Cancel(ticket) => self.cancel(cx, ticket),
            Input::Release(ticket) => self.release(cx, ticket, None),
            Input::Finish(ticket, well) => self.release(cx, ticket, Some(Finished { well })),
            Input::Downgrade(ticket, to) => self.downgrade(cx, ticket, to),
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
        self.claim_for_line(cx);
    }

    /// As new, when it is idle, with the room that it had, unless that was much.
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
        self.line.is_empty() && self.solos.is_empty() && self.claims.is_empty()
    }

    pub(crate) fn released_too_late(ticket: Ticket) -> Effect {
        Effect::Released(ticket, Outcome::Lost(LostCause::Deadline))
    }

    // What others ask.

    /// Nobody of this process has the key, waits for it or asks for it: a caller that comes now is the only one, and its
    /// claim is sent at once. It follows what is being given back.
    pub(crate) fn is_free(&self) -> bool {
        let mut claims = self.claims.iter();
        self.line.is_empty()
            && self.solos.is_empty()
            && self.reclaim.is_none()
            && claims.all(|claim| matches!(claim.phase, Phase::Leaving(_)))
    }

    /// The claim by which a caller holds, with what it holds, and its place among the local holders.
    fn held_by(&self, ticket: Ticket) -> Option<(&Claim, &Held, u64)> {
        if let Some(reader) = self.readers.get(ticket) {
            let claim = self.claims.get(reader.claim)?;
            return Some((claim, claim.held()?, reader.index));
        }
        let claim = self.claims.of(ticket)?;
        let held = claim.held()?;
        Some((claim, held, held.index))
    }

    pub(crate) fn remaining(&self, now: Instant, ticket: Ticket) -> Option<Duration> {
        let (_, held, _) = self.held_by(ticket)?;
        (now < held.deadline).then(|| held.deadline.since(now))
    }

    pub(crate) fn attempt(&self, ticket: Ticket) -> u32 {
        self.held_by(ticket).map_or(0, |(claim, ..)| claim.attempt)
    }

    /// The tick that was open when the holder's was granted, and that is never run again.
    pub(crate) fn overtook(&self, ticket: Ticket) -> Option<TickTime> {
        self.held_by(ticket)?.0.overtook
    }

    pub(crate) fn claimed_by(&self, ticket: Ticket) -> Option<Holder> {
        self.held_by(ticket).map(|(claim, ..)| claim.holder)
    }

    pub(crate) fn fence(&self, now: Instant, ticket: Ticket) -> Option<Fence> {
        let (_, held, index) = self.held_by(ticket)?;
        (now < held.deadline).then(|| Fence::new(held.number, index))
    }

    pub(crate) fn holders(&self, now: Instant) -> impl Iterator<Item = (Ticket, Holder, Fence)> {
        let held = self
            .claims
            .iter()
            .filter_map(|claim| Some((claim.holder, claim.held()?)));
        held.filter(move |(_, held)| now < held.deadline)
            .flat_map(|(holder, held)| {
                let alone = held.local().map(|local| (local.ticket, held.index));
                let readers = self.readers.of(holder.claim);
                let all = alone
                    .into_iter()
                    .chain(readers.map(|(ticket, reader)| (ticket, reader.index)));
                all.map(move |(ticket, index)| (ticket, holder, Fence::new(held.number, index)))
            })
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
            failed_claims: 0,
            was_writer: false,
        };
        if options.mark.is_some() || options.question.is_some() {
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
        // A bound for one reader is none for the others.
        let has_own_bound = options.mode == Mode::Read && options.max_hold.is_some();
        // Whether there are permits for who would not wait is no question of who comes before it here.
        let tries = options.mode.is_of_permits() && !options.wait;
        if options.fixed || options.solo || has_own_bound || tries {
            self.solos.insert(ticket, caller);
        } else {
            self.line.push(caller);
        }
    }

    fn refuses(&self, options: AcquireOptions) -> Option<AcquireError> {
        let is_taken = self.claims.is_taken(options.mode);
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

    /// Tells until when it is held at least.
    pub(crate) fn fetched(&mut self, ticket: Ticket) -> Option<Instant> {
        let (claim, held, _) = self.held_by(ticket)?;
        let (number, deadline) = (claim.holder.claim, held.deadline);
        if !self.readers.fetched(ticket)
            && let Phase::Held(held) = &mut self.claims[number].phase
            && let Holders::One(local) = &mut held.holders
        {
            local.unfetched = None;
        }
        Some(deadline)
    }

    fn cancel(&mut self, cx: &mut StepContext<'_>, ticket: Ticket) {
        if self.line.remove(ticket) || self.solos.remove(&ticket).is_some() {
            return;
        }
        if self.readers.get(ticket).is_some() {
            return self.part(cx, ticket, None);
        }
        let Some(claim) = self.claims.of(ticket) else {
            return;
        };
        let number = claim.holder.claim;
        if claim.held().is_some() {
            self.give_back(cx, number, None);
        } else if claim.question().is_some() {
            // It leaves nothing behind that would have to be left.
            self.claims.end(number);
        } else {
            self.claims[number].claimant = Claimant::Nobody;
        }
    }

    fn release(&mut self, cx: &mut StepContext<'_>, ticket: Ticket, finished: Option<Finished>) {
        if self.readers.get(ticket).is_some() {
            return self.part(cx, ticket, Some(ticket));
        }
        match self.held_by(ticket).map(|(claim, ..)| claim.holder.claim) {
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
        let is_shared = claim.claimant == Claimant::Cohort || self.plant.planted(Flaw::SoloHandedOn);
        let next = self.line.front().filter(|_| is_shared);
        let Some(next) = next.copied() else {
            return self.leave(cx, number, release);
        };
        let rules = &cx.source.rules;
        let in_burst = held.index < u64::from(rules.burst) && cx.now.since(held.since) < rules.burst_time;
        // With less than a third left the renewals are failing: who is next should not inherit that.
        let weighs = !self.plant.planted(Flaw::PermitHandedToMany);
        let is_alike = next.options.mode == claim.mode || claim.mode.is_of_permits() && !weighs;
        let is_short = next.lease() > lease || held.deadline.since(cx.now) < lease / 3;
        if !in_burst || is_short || !is_alike {
            return self.give_way(cx, number, release);
        }
        self.line.pop();
        held.holders = Holders::One(Local::new(cx.now, next.ticket, next.options, lease));
        held.index += 1;
        let fence = Fence::new(held.number, held.index);
        self.taken = Some(cx.now);
        cx.event(KeyEvent::HandedOn);
        cx.effects.push(Effect::Granted(next.ticket, fence));
        if let Some(ticket) = release {
            cx.effects.push(Effect::Released(ticket, Outcome::Kept));
        }
        // Its holder before may have held it for too long, or this one may not hold it for long.
        let claim = &self.claims[number];
        if claim.asking.is_none() && (claim.act.is_none() || next.options.max_hold.is_some()) {
            self.schedule(cx, number);
        }
    }

    /// Nobody of this process goes on with it: whoever waits elsewhere has its turn. Who waits here has a claim already that
    /// stands in the store's queue, where there may be several holders.
    fn give_way(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber, release: Option<Ticket>) {
        if self.claims[number].mode.is_of_permits() {
            self.leave(cx, number, release);
        } else {
            self.yield_(cx, number, release);
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
    pub(crate) fn claim_for_line(&mut self, cx: &mut StepContext<'_>) {
        self.let_readers_in(cx);
        for number in self.claims.unsettled() {
            let Some(claim) = self.claims.get(number) else {
                continue;
            };
            let wanted = match claim.claimant {
                Claimant::Cohort => claim.held().is_some() || self.line.mode() == Some(claim.mode),
                Claimant::Solo(_) | Claimant::Ahead => true,
                Claimant::Nobody => false,
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
        self.drop_saves();
        // What is due is taken off at once, or its timer would fire without end.
        self.reclaim = self.reclaim.filter(|reclaim| cx.now < reclaim.at);
        if self.reclaim.is_some() {
            return;
        }
        while let Some((_, caller)) = self.solos.pop_first() {
            self.claim(cx, Claimant::Solo(caller), caller.options, caller.options.wait);
        }
        if let Some(head) = self.line.front()
            && self.claims.pursuit().is_none()
        {
            let options = head.options;
            self.claim(cx, Claimant::Cohort, options, self.line.has_patient());
        }
        self.ask_ahead(cx);
    }

    /// While there are permits, those behind the first of the line are asked for in the same trip. Of one key and node at
    /// most one claim waits in the store.
    fn ask_ahead(&mut self, cx: &mut StepContext<'_>) {
        let is_of_permits = self.line.mode().is_some_and(Mode::is_of_permits);
        let pursuit = self.claims.pursuit().and_then(|number| self.claims.get(number));
        let is_new = pursuit.is_some_and(|claim| matches!(claim.phase, Phase::Asked));
        if !is_of_permits || self.asks_for_one || !is_new {
            return;
        }
        let behind = 1 + self.claims.ahead();
        let next = self.line.iter().take(MOST_AHEAD).skip(behind);
        let options: Vec<_> = next.map(|caller| caller.options).collect();
        for options in options {
            self.claim(cx, Claimant::Ahead, options, false);
        }
    }

    /// What was to be kept for callers that have their answer, or left.
    fn drop_saves(&mut self) {
        let (solos, claims) = (&self.solos, &self.claims);
        let asks = |ticket: Ticket| {
            let is_of =
                |claim: &Claim| matches!(claim.claimant, Claimant::Solo(caller) if caller.ticket == ticket);
            solos.contains_key(&ticket) || claims.iter().any(is_of)
        };
        self.saves.retain(|ticket, _| asks(*ticket));
    }

    fn claim(&mut self, cx: &mut StepContext<'_>, claimant: Claimant, options: AcquireOptions, wait: bool) {
        let holder = cx.source.holder();
        let kind = ClaimKind {
            mode: options.mode,
            fixed: options.fixed,
            mark: options.mark,
        };
        let claim = Claim::new(holder, claimant, options.term, kind, cx.now);
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
            Phase::Held(held) if claim.asking.is_none() && claim.failed_requests == 0 => {
                held.ends.min(latest)
            }
            _ => latest,
        };
        let until = if claim.finished.is_some() && !is_closed {
            cx.now + FINISH_LEASES * claim.hold()
        } else {
            ends
        };
        if keeps_number && claim.held().is_none() {
            claim.claimant = Claimant::Cohort;
        } else {
            claim.phase = Phase::Leaving(Leaving {
                release,
                ends,
                until,
                repeated: false,
            });
        }
        claim.failed_requests = 0;
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
        let kind = ClaimKind {
            mode: self.line.front().map_or(old.mode, |head| head.options.mode),
            mark: old.mark,
            fixed: false,
        };
        let mut claim = Claim::new(holder, Claimant::Cohort, term, kind, cx.now);
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
    /// `seq`: so many requests were counted of it, or of the claim that went on with its count.
    pub(crate) fn leave_old_number(
        &mut self,
        cx: &mut StepContext<'_>,
        yielded: Yielded,
        seq: u32,
        repeated: bool,
    ) {
        let ends = cx.now + ms(yielded.term.hold_ms());
        let number = yielded.from.claim;
        let kind = ClaimKind::default();
        let mut claim = Claim::new(yielded.from, Claimant::Nobody, yielded.term, kind, cx.now);
        claim.phase = Phase::Leaving(Leaving {
            release: yielded.release,
            ends,
            until: ends,
            repeated,
        });
        // A late answer to one of those is none to what follows.
        claim.seq = seq;
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
            RequestKind::Claim { wait } => {
                let verb = claim.verb(wait);
                (verb, Class::of_claim(verb))
            }
            RequestKind::Renew
                if claim.held().is_some() || matches!(claim.phase, Phase::Confirming { .. }) =>
            {
                (Verb::Renew, Class::OwnerRenewal)
            }
            RequestKind::Renew => (Verb::Renew, Class::WaiterRenewal),
            RequestKind::Leave => {
                let finish = claim.finished.map(|Finished { well }| Verb::Finish { well });
                (finish.unwrap_or(Verb::Leave), Class::Leave)
            }
            RequestKind::Yield if claim.was_writer() => (Verb::Downgrade { to: claim.holder }, Class::Leave),
            RequestKind::Yield => (Verb::Yield { to: claim.holder }, Class::Leave),
        };
        let holder = match &claim.yielded {
            Some(yielded) if what == RequestKind::Yield => yielded.from,
            _ => claim.holder,
        };
        let request = Request {
            mark: claim.mark,
            turn: claim.turn,
            name: cx.name.clone(),
            holder,
            term: claim.term,
            mode: claim.mode,
            verb,
            data: match claim.claimant {
                Claimant::Solo(caller) => self.saves.get(&caller.ticket).cloned(),
                Claimant::Cohort | Claimant::Ahead | Claimant::Nobody => None,
            },
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
        claim.failed_requests = 0;
        claim.may_execute_until = None;
        let next = match claim.claimant {
            Claimant::Cohort | Claimant::Ahead => self.line.front().copied(),
            Claimant::Solo(caller) => Some(caller),
            Claimant::Nobody => None,
        };
        self.taken = Some(cx.now);
        let Some(next) = next else {
            return self.leave(cx, number, None);
        };
        if matches!(claim.claimant, Claimant::Cohort | Claimant::Ahead) {
            self.failed_claims = 0;
            claim.claimant = Claimant::Cohort;
            self.asks_for_one = !matches!(claim.phase, Phase::Asked);
            // Its number has one length and one mode for life, and whoever is first wants more, or another.
            if next.lease() > lease || next.options.mode != claim.mode {
                cx.event(KeyEvent::TooShort);
                self.asks_for_one = true;
                return self.give_way(cx, number, None);
            }
            self.line.pop();
        } else if next.was_writer && !claim.fixed && next.options.max_hold.is_none() {
            // From now on it is as any other.
            claim.claimant = Claimant::Cohort;
        }
        let is_open = claim.claimant == Claimant::Cohort && claim.mode == Mode::Read;
        let unfetched = cx.now + lease;
        let holders = if is_open {
            self.readers.add(next.ticket, (number, 0), cx.now, unfetched);
            Holders::Readers(1)
        } else {
            Holders::One(Local::new(cx.now, next.ticket, next.options, lease))
        };
        claim.phase = Phase::Held(Held {
            number: grant,
            deadline,
            holders,
            index: 0,
            since: cx.now,
            due: cx.now + deadline.since(cx.now).saturating_sub(lease / 3 * 2),
            ends: cx.now + claim.hold(),
        });
        self.held = number;
        cx.effects
            .push(Effect::Granted(next.ticket, Fence::new(grant, 0)));
        self.schedule(cx, number);
        if is_open {
            self.open_to_readers(cx, number);
        } else {
            self.deny_beside(cx, number);
        }
    }

    /// A claim of somebody's own was granted: whoever would not wait and cannot hold beside it hears of it.
    fn deny_beside(&mut self, cx: &mut StepContext<'_>, number: ClaimNumber) {
        match self.claims[number].mode {
            Mode::Exclusive => self.deny_the_impatient(cx),
            Mode::Read if self.line.has_impatient() => self.deny_writers(cx),
            Mode::Read | Mode::Permits(_) => {}
        }
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
        match self.claims[number].held().map(Held::local) {
            Some(Some(local)) => cx.effects.push(Effect::Lost(local.ticket, cause)),
            Some(None) => self.lose_readers(cx, number, cause),
            None => {}
        }
        if cause == LostCause::Gone {
            self.claims.end(number);
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
            match (&mut claim.phase, claim.claimant) {
                (Phase::Held(_), _) => self.lose(cx, number, LostCause::Shutdown),
                (Phase::Leaving(leaving), _) => {
                    leaving.until = leaving.until.min(leaving.ends);
                    if claim.retries {
                        self.ask(cx, number, RequestKind::Leave);
                    }
                }
                (_, Claimant::Solo(caller)) => {
                    deny(&caller, cx);
                    claim.claimant = Claimant::Nobody;
                }
                _ => {}
            }
        }
        self.claim_for_line(cx);
    }
}
