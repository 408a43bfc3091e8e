//! A claim: a node's pursuit of one lease, from its first request to its last.

use std::time::Duration;

use crate::protocol::exchange::Exchange;
use crate::protocol::message::{ClaimId, Fence, GrantNumber, Kind, Mode, TickTime, Verb};
use crate::protocol::step::{Class, LeaseTerms, LockOptions, Ticket, ms};
use crate::protocol::time::Instant;

/// A node's pursuit of one lease. Its number is used once, and the lease length never changes.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) claim_id: ClaimId,
    pub(crate) terms: LeaseTerms,
    /// Of the claim of a tick.
    pub(crate) attempt: TickAttempt,
    pub(crate) phase: Phase,
    /// When the first request was made, which is never later than it was sent.
    pub(crate) created_at: Instant,
    pub(crate) exchange: Exchange<RequestKind>,
    /// Set while a request is unanswered: the store may execute it until this time, and refuses it as late after
    /// that.
    pub(crate) executable_until: Option<Instant>,
    /// Set while an owner's renewal, or a request that it was sent with, is unanswered: a server that lost grants may
    /// write the lease again until this time, even after a leave.
    pub(crate) assertable_until: Option<Instant>,
    /// The renewal that had no answer when the leave was sent. The server may execute it after the leave, because a
    /// reload of the scripts changes the order of batches.
    pub(crate) overtakable: Option<u32>,
    /// The lease that the claim continues. Set until the store has answered.
    pub(crate) origin: Option<Origin>,
}

/// The run of a tick by its claim.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TickAttempt {
    /// The number of this attempt at the tick.
    pub(crate) number: u32,
    /// The previous tick, if it had not ended well. It never runs again.
    pub(crate) overtook: Option<TickTime>,
    /// Set when the tick was run to its end. `true`: the run went well.
    pub(crate) finished: Option<bool>,
}

/// The lease that a claim continues, instead of claiming a new one.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A lease of this node, which is given up for a place at the end of the queue.
    Yield(Yielded),
    /// A lease that is taken over from another owner.
    Pass(Box<Pass>),
}

impl Origin {
    /// Returns what the holder held as a writer, if this claim makes it a reader.
    pub(crate) fn held_as_writer(&self, mode: Mode) -> Option<&HeldLease> {
        let Origin::Pass(pass) = self else { return None };
        pass.local.as_ref().filter(|old| old.terms.mode != mode)?.held()
    }
}

/// A lease that is taken over from its owner.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) from: ClaimId,
    /// The claim of the previous owner as it was held, if that owner is in this key machine. Its number is dead since
    /// the pass was sent. If the pass fails, the number is left; if the store surely did nothing, the claim goes on.
    /// `None` for an owner in another machine, which is left alone.
    pub(crate) local: Option<Claim>,
}

#[derive(Debug)]
pub(crate) struct Yielded {
    pub(crate) from: ClaimId,
    pub(crate) terms: LeaseTerms,
    /// Until when the lease surely lasts that was given up.
    pub(crate) deadline: Instant,
    pub(crate) release: Option<Ticket>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Claim {
        wait: bool,
    },
    Renew,
    /// Asserts a fixed lease for the time that is left of it.
    Assert,
    Leave,
    Yield,
    Pass,
}

/// The life of a claim: asked, queued, held, leaving. A claim never goes back to asked.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The store has not answered yet.
    Asked,
    /// In the store's queue. `t0` is when the latest request was sent that was answered "queued". `recovers_until`
    /// is set if the answer was that the server recovers, which says nothing of an owner.
    Queued {
        t0: Instant,
        recovers_until: Option<Instant>,
    },
    /// Granted at `since`, but too little of the lease may be left, so the lease is renewed before its use. `tries`
    /// counts the renewals that did not help.
    Confirming { since: Instant, tries: u32 },
    /// Held by a local caller.
    Held(HeldLease),
    /// Dead here; the store is being told.
    Leaving(Leaving),
}

impl Phase {
    /// Returns whether a caller waits for the claim.
    pub(crate) fn is_waiting(&self) -> bool {
        match self {
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => true,
            Phase::Held(_) | Phase::Leaving(_) => false,
        }
    }
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
    /// When the lease is renewed next.
    pub(crate) due: Instant,
    /// The record in the store has ended by this time if no request extends it.
    pub(crate) ends: Instant,
    /// An operator asked for the lease: it is not handed on in this process.
    pub(crate) is_asked_for: bool,
    /// The number of writes under this lease that were sent and not answered. A write that is never answered counts
    /// to the end: it may be executed late, and would then pass for a write of the next holder.
    pub(crate) writes: u32,
}

/// What a caller holds at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Holding {
    /// The claim by which the caller holds.
    pub claim: ClaimId,
    /// The fence of the caller.
    pub fence: Fence,
    /// When the lease ends if it is not renewed.
    pub deadline: Instant,
    /// The time until the deadline; `None` if the deadline has passed.
    pub remaining: Option<Duration>,
    /// The number of the attempt at the holder's tick.
    pub attempt: u32,
    /// The previous tick, if it had not ended when this one was granted. That tick never runs again.
    pub overtook: Option<TickTime>,
}

impl Holding {
    /// Returns what the caller holds that has the place `index` among the local holders of a claim.
    pub(crate) fn new(now: Instant, claim: &Claim, held: &HeldLease, index: u64) -> Self {
        Holding {
            claim: claim.claim_id,
            fence: Fence::new(held.number, index),
            deadline: held.deadline,
            remaining: (now < held.deadline).then(|| held.deadline.since(now)),
            attempt: claim.attempt.number,
            overtook: claim.attempt.overtook,
        }
    }

    /// Returns whether the deadline has not passed.
    pub fn is_held(&self) -> bool {
        self.remaining.is_some()
    }
}

/// The callers that hold by a claim.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Holders {
    /// One caller, followed by the next of the line.
    One(LocalHolder),
    /// The number of readers that hold at once. `readers` finds them by ticket.
    Readers(u32),
}

/// One caller that holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalHolder {
    pub(crate) ticket: Ticket,
    /// How long the caller may hold, and what was reported of that.
    pub(crate) hold: HoldTime,
    /// When the lease is given back if the caller has not taken it up; `None` once a guard exists.
    pub(crate) unfetched: Option<Instant>,
}

impl LocalHolder {
    /// Returns a holder that is granted now, by a claim with this lease length.
    pub(crate) fn new(now: Instant, ticket: Ticket, options: LockOptions, lease: Duration) -> Self {
        LocalHolder {
            ticket,
            hold: HoldTime::new(now, options),
            unfetched: Some(now + lease),
        }
    }
}

impl HeldLease {
    /// Returns a lease that a claim is granted now.
    pub(crate) fn new(
        now: Instant,
        claim: &Claim,
        number: GrantNumber,
        deadline: Instant,
        holders: Holders,
    ) -> Self {
        HeldLease {
            number,
            deadline,
            holders,
            index: 0,
            since: now,
            due: now + deadline.since(now).saturating_sub(claim.lease() / 3 * 2),
            ends: now + claim.record_lifetime(),
            is_asked_for: false,
            writes: 0,
        }
    }

    /// Returns the one caller that holds by the claim; `None` for readers.
    pub(crate) fn local(&self) -> Option<&LocalHolder> {
        match &self.holders {
            Holders::One(local) => Some(local),
            Holders::Readers(_) => None,
        }
    }
}

/// How long one caller has held, and may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldTime {
    pub(crate) since: Instant,
    pub(crate) max: Option<Duration>,
    /// The caller was told that its time is over.
    pub(crate) is_overdue: bool,
    /// [`HeldLong`](crate::protocol::step::KeyEvent::HeldLong) was reported.
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

    /// Returns the same hold time for another ticket, which was not told yet that the time is over.
    pub(crate) fn under_another_ticket(self) -> HoldTime {
        HoldTime {
            is_overdue: false,
            ..self
        }
    }

    /// Returns when renewals stop; `None` without a limit.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.max.map(|max| self.since + max)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving {
    /// The caller that waits for the outcome of the release.
    pub(crate) release: Option<Ticket>,
    /// When the lease ends by itself.
    pub(crate) ends: Instant,
    /// When the leave is no longer repeated.
    pub(crate) until: Instant,
}

impl Claim {
    pub(crate) fn new(claim_id: ClaimId, terms: LeaseTerms, now: Instant) -> Self {
        Claim {
            claim_id,
            terms,
            attempt: TickAttempt::default(),
            phase: Phase::Asked,
            created_at: now,
            exchange: Exchange::default(),
            executable_until: None,
            assertable_until: None,
            overtakable: None,
            origin: None,
        }
    }

    /// Ends the claim. It is left at `at`, and its record ends by itself at `ends`.
    pub(crate) fn leave_at(&mut self, at: Instant, ends: Instant) {
        self.phase = Phase::Leaving(Leaving {
            release: None,
            ends,
            until: ends,
        });
        self.exchange.plan(at);
    }

    /// Returns how the run of the tick ended, if the claim is for a tick that was run to its end. `true`: it went well.
    pub(crate) fn finished(&self) -> Option<bool> {
        self.attempt.finished.filter(|_| self.terms.tick.is_some())
    }

    pub(crate) fn lease(&self) -> Duration {
        ms(self.terms.times.lease_ms)
    }

    /// Returns how long the record lives in the store: the lease and the margin.
    pub(crate) fn record_lifetime(&self) -> Duration {
        ms(self.terms.times.hold_ms())
    }

    /// Returns the pass that the claim waits for, until the store has answered.
    pub(crate) fn pass(&self) -> Option<&Pass> {
        match &self.origin {
            Some(Origin::Pass(pass)) => Some(pass),
            Some(Origin::Yield(_)) | None => None,
        }
    }

    /// Returns until when the lease surely lasts that this claim continues, as far as its yield or pass knows.
    pub(crate) fn continued_until(&self) -> Option<Instant> {
        match self.origin.as_ref()? {
            Origin::Yield(yielded) => Some(yielded.deadline),
            Origin::Pass(pass) => match &pass.local {
                Some(old) => old.held().map(|held| held.deadline),
                // An executed adoption came after the claim was made.
                None => Some(self.created_at + self.lease()),
            },
        }
    }

    /// Returns the local claim whose lease is being passed on.
    pub(crate) fn passed_mut(&mut self) -> Option<&mut Claim> {
        match &mut self.origin {
            Some(Origin::Pass(pass)) => pass.local.as_mut(),
            Some(Origin::Yield(_)) | None => None,
        }
    }

    /// Ends a pass. Returns the local claim whose lease was passed on.
    pub(crate) fn take_passed(&mut self) -> Option<Claim> {
        match self.origin.take_if(|origin| matches!(origin, Origin::Pass(_))) {
            Some(Origin::Pass(pass)) => pass.local,
            _ => None,
        }
    }

    /// Ends a yield. Returns what was yielded.
    pub(crate) fn take_yielded(&mut self) -> Option<Yielded> {
        match self.origin.take_if(|origin| matches!(origin, Origin::Yield(_))) {
            Some(Origin::Yield(yielded)) => Some(yielded),
            _ => None,
        }
    }

    /// Returns the verb and the class of a request of this kind.
    #[inline]
    pub(crate) fn verb_and_class(&self, kind: RequestKind) -> (Verb, Class) {
        let to = self.claim_id;
        match kind {
            RequestKind::Claim { wait } => (Verb::Claim { wait }, Class::Claim),
            RequestKind::Renew | RequestKind::Assert => {
                let number = self.held().map(|held| held.number);
                let owns = number.is_some() || matches!(self.phase, Phase::Confirming { .. });
                let class = if owns {
                    Class::OwnerRenewal
                } else {
                    Class::WaiterRenewal
                };
                match number {
                    Some(number) if kind == RequestKind::Assert => (Verb::Assert { number }, class),
                    _ => (Verb::Renew { number }, class),
                }
            }
            RequestKind::Leave => {
                let finish = self.finished().map(|well| Verb::Finish { well });
                (finish.unwrap_or(Verb::Leave), Class::Leave)
            }
            RequestKind::Yield => (Verb::Yield { to }, Class::Leave),
            RequestKind::Pass => {
                let adopts = self.pass().is_some_and(|pass| pass.local.is_none());
                (Verb::Pass { to, adopts }, Class::Leave)
            }
        }
    }

    /// Returns the claim that the request is about.
    #[inline]
    pub(crate) fn request_claim_id(&self, kind: RequestKind) -> ClaimId {
        match &self.origin {
            Some(Origin::Yield(yielded)) if kind == RequestKind::Yield => yielded.from,
            Some(Origin::Pass(pass)) if kind == RequestKind::Pass => pass.from,
            _ => self.claim_id,
        }
    }

    pub(crate) fn held(&self) -> Option<&HeldLease> {
        match &self.phase {
            Phase::Held(held) => Some(held),
            _ => None,
        }
    }

    /// Notes an unanswered request: until `late_after` the server may write the lease again.
    pub(crate) fn note_assertable(&mut self, late_after: Instant) {
        self.assertable_until = self.assertable_until.max(Some(late_after));
    }

    /// Returns whether a renewal is in flight.
    pub(crate) fn is_renewing(&self) -> bool {
        matches!(
            self.exchange.in_flight(),
            Some(RequestKind::Renew | RequestKind::Assert)
        )
    }

    /// Notes a renewal in flight before a leave is sent.
    pub(crate) fn note_overtakable(&mut self, next: RequestKind, of: Kind) {
        // The lease of a job is never asserted.
        if next == RequestKind::Leave && self.is_renewing() && of != Kind::Job {
            self.overtakable = Some(self.exchange.seq());
        }
    }

    /// Returns until when the server may write the lease again after a leave, if it may.
    pub(crate) fn assertable(&self, now: Instant) -> Option<Instant> {
        self.assertable_until.filter(|until| now < *until)
    }

    pub(crate) fn is_in_flight(&self, kind: RequestKind) -> bool {
        self.exchange.in_flight() == Some(&kind)
    }

    /// Returns when the claim next needs a step.
    #[inline]
    pub(crate) fn due(&self) -> Option<Instant> {
        let (deadline, unfetched) = self.held().map_or((None, None), |held| {
            let unfetched = held.local().and_then(|local| local.unfetched);
            (Some(held.deadline), unfetched)
        });
        [self.exchange.next_at(), deadline, unfetched]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_))
    }

    /// Returns whether the key is surely taken: this claim holds it, or a claim before this one does.
    pub(crate) fn is_taken(&self) -> bool {
        !matches!(self.phase, Phase::Asked | Phase::Leaving(_)) && !self.is_recovering()
    }

    /// Returns whether the claim waits for the end of the server's recovery.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovers_until().is_some()
    }

    /// Returns when the recovery ends for which the claim waits, if it waits for one.
    pub(crate) fn recovers_until(&self) -> Option<Instant> {
        match self.phase {
            Phase::Queued { recovers_until, .. } => recovers_until,
            _ => None,
        }
    }

    /// Returns whether the claim is held and excludes no readers.
    pub(crate) fn is_shared(&self) -> bool {
        self.terms.mode == Mode::Read && self.held().is_some()
    }
}
