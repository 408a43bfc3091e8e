//! One pursuit of a lease, from its first request to its last.

use std::time::Duration;

use crate::error::StoreError;
use crate::protocol::key::line::Caller;
use crate::protocol::message::{ClaimId, Fence, GrantNumber, LeaseTimes, Mode, TickTime, Verb, WhenBehind};
use crate::protocol::step::{Class, LockOptions, Ticket, ms};
use crate::protocol::time::Instant;

/// One pursuit of a lease. Its number lives once, and has one lease length for life.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) claim_id: ClaimId,
    pub(crate) term: LeaseTimes,
    pub(crate) claimant: Claimant,
    /// How its lease may be shared.
    pub(crate) mode: Mode,
    /// Never renewed.
    pub(crate) fixed: bool,
    /// What only the claim of a tick has.
    pub(crate) tick: Option<Box<TickClaim>>,
    pub(crate) phase: Phase,
    /// When its first request was handed out: never later than it was sent.
    pub(crate) created_at: Instant,
    /// The request under way, if any. Its number is `seq`.
    pub(crate) in_flight: Option<RequestKind>,
    /// Counts the requests.
    pub(crate) seq: u32,
    /// When the next request is due, while none is under way.
    pub(crate) next_request: Option<Instant>,
    /// `act` repeats what failed: it need not be waited for when the store is back.
    pub(crate) is_retry: bool,
    /// Failures in a row.
    pub(crate) failed_requests: u32,
    /// A grant may have been missed since the request under way was handed out.
    pub(crate) recheck_on_answer: bool,
    /// Not answered yet: the store may still execute it until then, and refuses it as late from then on.
    pub(crate) executable_until: Option<Instant>,
    /// Why the first of its unanswered requests has no answer. That request may have been executed, whatever is said of its
    /// repeats.
    pub(crate) unanswered: Option<Box<StoreError>>,
    /// The lease that it goes on with: set until the store has answered.
    pub(crate) origin: Option<Origin>,
}

/// What only the claim of a tick has.
#[derive(Debug)]
pub(crate) struct TickClaim {
    pub(crate) mark: TickTime,
    /// What becomes of the tick while an earlier tick is in the way.
    pub(crate) turn: WhenBehind,
    /// The number of this attempt at the tick.
    pub(crate) attempt: u32,
    /// The tick before, which had not ended well and never runs again.
    pub(crate) overtook: Option<TickTime>,
    /// The tick was run to its end, and whether that went well.
    pub(crate) finished: Option<bool>,
}

/// A claim that goes on with a lease instead of claiming one.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Its own lease under another number, which is given up for the end of the queue.
    Yield(Yielded),
    /// The lease of another owner.
    Pass(Box<Pass>),
}

impl Origin {
    /// What the holder held as a writer, if it is to become a reader.
    pub(crate) fn held_as_writer(&self, mode: Mode) -> Option<&HeldLease> {
        let Origin::Pass(pass) = self else { return None };
        pass.local.as_ref().filter(|old| old.mode != mode)?.held()
    }
}

/// A lease that is taken over from its owner.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) from: ClaimId,
    /// The claim of that owner, if it is one of this key machine, as it was held. Its number is dead since the pass was sent: it
    /// is left if nothing comes of the pass, and goes on if the store is known to have done nothing. Another's is left alone.
    pub(crate) local: Option<Claim>,
}

/// For whom a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimant {
    /// For whoever is first in the line.
    LineHead,
    /// For one caller: a fixed lease, a tick, or a place of its own in the queue.
    Solo(Caller),
    /// For whoever is first in the line when it is granted, which is when there are more permits than for those before.
    /// From then on it is the cohort's.
    LineFollower,
    /// For nobody any more.
    Abandoned,
}

#[derive(Debug)]
pub(crate) struct Yielded {
    pub(crate) from: ClaimId,
    pub(crate) term: LeaseTimes,
    pub(crate) release: Option<Ticket>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Claim { wait: bool },
    Renew,
    Leave,
    Yield,
    Pass,
}

/// Asked, queued, granted, gone; never back.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Nothing is known yet.
    Asked,
    /// In the store's queue; `t0` is when the latest request that was answered "queued" was sent.
    Queued { t0: Instant },
    /// Granted at `since`, but too little may be left: renewed before use. So many times in vain.
    Confirming { since: Instant, tries: u32 },
    /// Ours, for a holder.
    Held(HeldLease),
    /// Dead here; the store is being told.
    Leaving(Leaving),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldLease {
    pub(crate) number: GrantNumber,
    pub(crate) deadline: Instant,
    pub(crate) holders: Holders,
    /// The place of the latest holder among the local holders of this grant.
    pub(crate) index: u64,
    /// When the burst began.
    pub(crate) since: Instant,
    /// When it is to be renewed next.
    pub(crate) due: Instant,
    /// By then the record has ended, if no request extends it.
    pub(crate) ends: Instant,
    /// Writes that were sent under it and not answered. One that never is counts to the end: it may still be done, and would
    /// pass for one of the next holder.
    pub(crate) writes: u32,
}

/// What a caller holds, as it is at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Holding {
    /// The claim by which the caller holds.
    pub claim: ClaimId,
    /// The fence of the caller.
    pub fence: Fence,
    /// Until when it is held without a renewal.
    pub deadline: Instant,
    /// How long that is from now on; `None` when the deadline has passed.
    pub remaining: Option<Duration>,
    /// The number of the attempt at its tick.
    pub attempt: u32,
    /// The tick before, if it had not ended when this one was granted: that tick never runs again.
    pub overtook: Option<TickTime>,
}

impl Holding {
    /// That of the caller at the place `index` among the local holders of a claim.
    pub(crate) fn new(now: Instant, claim: &Claim, held: &HeldLease, index: u64) -> Self {
        let tick = claim.tick.as_deref();
        Holding {
            claim: claim.claim_id,
            fence: Fence::new(held.number, index),
            deadline: held.deadline,
            remaining: (now < held.deadline).then(|| held.deadline.since(now)),
            attempt: tick.map_or(0, |tick| tick.attempt),
            overtook: tick.and_then(|tick| tick.overtook),
        }
    }

    /// The deadline has not passed.
    pub fn is_held(&self) -> bool {
        self.remaining.is_some()
    }
}

/// Who holds by a claim.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Holders {
    /// One caller, and after it the next of the line.
    One(LocalHolder),
    /// So many readers of the line at once. Who they are is known by ticket, see `readers`.
    Readers(u32),
}

/// One caller that holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalHolder {
    pub(crate) ticket: Ticket,
    /// What it may do, and has been told.
    pub(crate) hold: HoldTime,
    /// When it is given back, if its caller has not taken it up by then.
    pub(crate) unfetched: Option<Instant>,
}

impl LocalHolder {
    /// Granted now, by a claim with a lease of this length.
    pub(crate) fn new(now: Instant, ticket: Ticket, options: LockOptions, lease: Duration) -> Self {
        LocalHolder {
            ticket,
            hold: HoldTime::new(now, options),
            unfetched: Some(now + lease),
        }
    }
}

impl HeldLease {
    /// The one caller that holds by it, if it is one.
    pub(crate) fn local(&self) -> Option<&LocalHolder> {
        match &self.holders {
            Holders::One(local) => Some(local),
            Holders::Readers(_) => None,
        }
    }
}

/// How long one holder holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldTime {
    pub(crate) since: Instant,
    pub(crate) max: Option<Duration>,
    /// It has been told that this is over.
    pub(crate) is_overdue: bool,
    /// It has been told of that it holds for long.
    pub(crate) is_reported: bool,
}

impl HoldTime {
    pub(crate) fn new(now: Instant, options: LockOptions) -> Self {
        HoldTime {
            since: now,
            max: options.max_hold,
            is_overdue: false,
            is_reported: false,
        }
    }

    /// The same for another ticket, which has not been told that the time is over.
    pub(crate) fn under_another_ticket(self) -> HoldTime {
        HoldTime {
            is_overdue: false,
            ..self
        }
    }

    /// When it is renewed no more.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.max.map(|max| self.since + max)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving {
    /// Who waits to hear of it.
    pub(crate) release: Option<Ticket>,
    /// When the lease has ended by itself.
    pub(crate) ends: Instant,
    /// When to stop telling.
    pub(crate) until: Instant,
}

impl Claim {
    pub(crate) fn new(claim_id: ClaimId, claimant: Claimant, options: &LockOptions, now: Instant) -> Self {
        let tick = options.mark.map(|mark| TickClaim {
            mark,
            turn: options.turn,
            attempt: 0,
            overtook: None,
            finished: None,
        });
        Claim {
            claim_id,
            term: options.term,
            claimant,
            mode: options.mode,
            fixed: options.fixed,
            tick: tick.map(Box::new),
            phase: Phase::Asked,
            created_at: now,
            in_flight: None,
            seq: 0,
            next_request: None,
            is_retry: false,
            failed_requests: 0,
            recheck_on_answer: false,
            executable_until: None,
            unanswered: None,
            origin: None,
        }
    }

    pub(crate) fn lease(&self) -> Duration {
        ms(self.term.lease_ms)
    }

    /// How long its record lives in the store: the lease and the margin.
    pub(crate) fn record_lifetime(&self) -> Duration {
        ms(self.term.hold_ms())
    }

    /// The lease of another owner that it takes over, until it has it.
    pub(crate) fn pass(&self) -> Option<&Pass> {
        match &self.origin {
            Some(Origin::Pass(pass)) => Some(pass),
            Some(Origin::Yield(_)) | None => None,
        }
    }

    /// Ends a pass. Returns the claim of this process whose lease was passed on.
    pub(crate) fn take_passed(&mut self) -> Option<Claim> {
        match self.origin.take_if(|origin| matches!(origin, Origin::Pass(_))) {
            Some(Origin::Pass(pass)) => pass.local,
            _ => None,
        }
    }

    /// Ends a yield. Returns what the claim was before.
    pub(crate) fn take_yielded(&mut self) -> Option<Yielded> {
        match self.origin.take_if(|origin| matches!(origin, Origin::Yield(_))) {
            Some(Origin::Yield(yielded)) => Some(yielded),
            _ => None,
        }
    }

    /// What a request of that kind asks for.
    #[inline]
    pub(crate) fn verb_and_class(&self, what: RequestKind) -> (Verb, Class) {
        let to = self.claim_id;
        match what {
            RequestKind::Claim { wait } => (Verb::Claim { wait }, Class::Claim),
            RequestKind::Renew if self.held().is_some() || matches!(self.phase, Phase::Confirming { .. }) => {
                (Verb::Renew, Class::OwnerRenewal)
            }
            RequestKind::Renew => (Verb::Renew, Class::WaiterRenewal),
            RequestKind::Leave => {
                let finished = self.tick.as_ref().and_then(|tick| tick.finished);
                let finish = finished.map(|well| Verb::Finish { well });
                (finish.unwrap_or(Verb::Leave), Class::Leave)
            }
            RequestKind::Yield => (Verb::Yield { to }, Class::Leave),
            RequestKind::Pass => (Verb::Pass { to }, Class::Leave),
        }
    }

    /// Whose number the request is about.
    #[inline]
    pub(crate) fn request_claim_id(&self, what: RequestKind) -> ClaimId {
        match &self.origin {
            Some(Origin::Yield(yielded)) if what == RequestKind::Yield => yielded.from,
            Some(Origin::Pass(pass)) if what == RequestKind::Pass => pass.from,
            _ => self.claim_id,
        }
    }

    pub(crate) fn held(&self) -> Option<&HeldLease> {
        match &self.phase {
            Phase::Held(held) => Some(held),
            _ => None,
        }
    }

    pub(crate) fn is_in_flight(&self, kind: RequestKind) -> bool {
        self.in_flight == Some(kind)
    }

    /// When it has something to do.
    #[inline]
    pub(crate) fn due(&self) -> Option<Instant> {
        let (deadline, unfetched) = self.held().map_or((None, None), |held| {
            let unfetched = held.local().and_then(|local| local.unfetched);
            (Some(held.deadline), unfetched)
        });
        [self.next_request, deadline, unfetched]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn summary(&self) -> ClaimSummary {
        ClaimSummary {
            due: self.due(),
            ticket: self.ticket(),
            is_head_claim: self.is_head_claim(),
            is_taken: self.is_taken(),
            is_shared: self.is_shared(),
            waits_alone: self.waits_alone(),
            is_for_follower: self.is_for_follower(),
        }
    }

    fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_))
    }

    /// Who holds by it, or waits for it alone.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        match (&self.phase, &self.claimant) {
            (Phase::Held(held), _) => held.local().map(|local| local.ticket),
            (Phase::Leaving(_), _) => None,
            (_, Claimant::Solo(caller)) => Some(caller.ticket),
            _ => None,
        }
    }

    /// Pursued for the line, or held and to be handed on to it. While others may hold beside it, readers or those who have
    /// permits, whoever is first in the line is claimed for meanwhile.
    pub(crate) fn is_head_claim(&self) -> bool {
        let is_pursued = match &self.phase {
            Phase::Leaving(_) => false,
            Phase::Held(held) => held.local().is_some() && !matches!(self.mode, Mode::Permits(_)),
            _ => true,
        };
        matches!(self.claimant, Claimant::LineHead) && is_pursued
    }

    /// Somebody has the key for sure, or is before us.
    pub(crate) fn is_taken(&self) -> bool {
        !matches!(self.phase, Phase::Asked | Phase::Leaving(_))
    }

    /// It is held, and excludes no readers.
    pub(crate) fn is_shared(&self) -> bool {
        self.mode == Mode::Read && self.held().is_some()
    }

    /// It asks for whoever is behind the first of the line.
    pub(crate) fn is_for_follower(&self) -> bool {
        self.claimant == Claimant::LineFollower && !self.is_leaving()
    }

    /// For a caller that does not hold yet.
    pub(crate) fn waits_alone(&self) -> bool {
        matches!(self.claimant, Claimant::Solo(_)) && !self.is_leaving() && self.held().is_none()
    }
}

/// What claims are found by.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ClaimSummary {
    pub(crate) due: Option<Instant>,
    /// Who holds by it, or waits for it alone.
    pub(crate) ticket: Option<Ticket>,
    /// Pursued for the line, or held and to be handed on to it.
    pub(crate) is_head_claim: bool,
    /// Somebody has the key for sure, or is before us.
    pub(crate) is_taken: bool,
    /// It is held, and excludes no readers.
    pub(crate) is_shared: bool,
    /// For a caller that does not hold yet.
    pub(crate) waits_alone: bool,
    /// It asks for whoever is behind the first of the line.
    pub(crate) is_for_follower: bool,
}
