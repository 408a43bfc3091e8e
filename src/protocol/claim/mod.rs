//! A claim: a node's pursuit of one lease, from its first request to its last.
//!
//! # The six rules of safety
//!
//! A claim number is used once. It goes from asked to queued to granted to gone, and never back. Each rule was found by
//! breaking the design without it; the simulator plants the mistakes.
//!
//! 1. *t₀.* t₀ belongs to one claim number: it is the sending time of a request that was **answered** "queued". If
//!    there are several such requests, the latest counts. The deadline of a **pushed** grant is t₀ + lease. If a grant
//!    comes in the answer to a request, its deadline is the sending time of that request + lease.
//! 2. *Single use.* If the answer to a claim is lost, the node asks with `renew n`. It never sends the claim again. If
//!    the answer is "gone", it claims again as number n + 1.
//! 3. *Dead once sent.* When a leave, yield or pass of number n is sent, n is dead in this process, whatever the
//!    answer. From then on no guard exists for it. There is one exception: a pass whose attempts were all refused or
//!    never sent. The store never executes such a pass, so n is held again until its old deadline. One attempt without
//!    an answer rules out the exception.
//! 4. *Fresh on yield.* A yield continues under a new number. If the lease comes back meanwhile, it has the new number.
//!    So a repeat of the old yield cannot give it away.
//! 5. *Late execution.* A claim carries a not-after time in server time. If a claim was never answered, the node sends
//!    one more leave for it after that time. If a grant is for an unknown number, the node sends a leave for that
//!    number at once. When a connection is given up and replaced, the old one is never used beside the new one.
//! 6. *Lost is final.* No late reply revives a guard whose deadline has passed.
//!
//! # Where to look
//!
//! In reading order. Callers and other claims are the matter of [`key`](crate::protocol::key).
//!
//! * `held_lease`: the deadline, when the next renewal is due, and for how long a lease is handed on in this process.
//! * `origin`: the lease that a claim continues after a yield or a pass, and whether the previous owner may go on.
//! * `holding`: which caller holds, and its fence.
//! * `kept`: a lease without a holder, for the next caller of this process.
//! * `sending`: the words of each request.
//! * `answers`: what an answer or a push means: granted, queued, gone, revoked, stale, too old to be used.
//! * `failures`: what a request without an answer means.
//! * `timers`: a deadline that has passed, also after a suspension; a holder that has reached its `max_hold`; the pauses
//!   between requests.
//! * `leaving`: a leave, its repeats, what its answer tells the caller that released, and the end of a number.
//! * `late_execution`: what the store may still execute, and so when a dead number is left once more.
//!
//! # The way of one renewal
//!
//! 1. A renewal is due when a third of the lease is over (`protocol/claim/timers.rs` `schedule_renewal`).
//! 2. The driver wakes for the renewal and steps the key (`driver/driver.rs` `sleep`, `driver/steps.rs` `wake`,
//!    `protocol/key/shard.rs` `wake_next`).
//! 3. The step first checks the deadline; a lease past its deadline is lost (`protocol/key/requests.rs` `wake`, `expire_due`, `protocol/claim/timers.rs` `expire`). Then it
//!    asks for the renewal (`protocol/key/requests.rs` `send_due_request`).
//! 4. Renewals of owners travel before all other requests (`protocol/session/queue.rs` `most_urgent`).
//! 5. The answer moves the deadline to the sending time + lease (`protocol/claim/answers.rs` `granted`).
//! 6. Without an answer, the request is given up at its deadline (`protocol/session/mod.rs` `check_deadlines`). The renewal is
//!    retried while some of the lease is left (`protocol/claim/failures.rs` `failed`, `holder_not_renewed`,
//!    `protocol/claim/timers.rs` `schedule_retry`).
//! 7. If no retry succeeds, the lease is lost and the guard's token is cancelled (`protocol/key/holding.rs` `lost`, `driver/waiter.rs`
//!    `end`).
//!
//! A holder can also ask for a renewal at once, and gets one answer (`primitives/guard.rs` `renew`, `protocol/key/requests.rs` `renew`,
//! `answer_renewals`, `deny_failed_renewals`). A fixed lease is renewed in no other way.
//!
//! No holder depends on these timers. Each use of a guard compares the deadline with the clock (`primitives/guard.rs` `is_held`,
//! `driver/lookups.rs` `is_held`).

use std::time::Duration;

use crate::protocol::claim::held_lease::HeldLease;
use crate::protocol::claim::late_execution::LateExecution;
use crate::protocol::exchange::Exchange;
use crate::protocol::message::{ClaimId, ClaimNumber, Mode, RunEnding, TickTime};
use crate::protocol::step::{LeaseTerms, Ticket, ms};
use crate::protocol::time::Instant;

pub(crate) mod answers;
mod failures;
pub mod held_lease;
mod holding;
pub(crate) mod kept;
mod late_execution;
mod leaving;
mod origin;
mod sending;
mod timers;

/// A node's pursuit of one lease. Its number is used once, and the lease length never changes.
#[derive(Debug)]
pub(crate) struct Claim {
    claim_id: ClaimId,
    terms: LeaseTerms,
    /// Of the claim of a tick.
    attempt: TickProgress,
    phase: Phase,
    /// When the first request was made, which is never later than it was sent.
    created_at: Instant,
    exchange: Exchange<RequestKind>,
    late: LateExecution,
    /// The lease that the claim continues. Set until the store has answered.
    origin: Option<Origin>,
    /// The lease may be kept without a holder: its record has the mark, and no sign came since that another claim wants the
    /// key. Set before the first request, or never.
    may_keep: bool,
}

/// The run of a tick by its claim.
#[derive(Debug, Clone, Default)]
struct TickProgress {
    /// The number of this attempt at the tick.
    number: u32,
    /// The previous tick, if it had not ended well. It never runs again.
    overtook: Option<TickTime>,
    /// How the run ended.
    ending: Option<Box<RunEnding>>,
}

/// What a request of a claim is for.
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
enum Phase {
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
    /// Kept until then for the next local caller, as it was held last. It has no holder and no request in flight.
    Kept { held: HeldLease, until: Instant },
    /// Dead here; the store is being told.
    Leaving(Leaving),
}

impl Phase {
    /// Returns whether a caller waits for the claim.
    fn is_waiting(&self) -> bool {
        match self {
            Phase::Asked | Phase::Queued { .. } | Phase::Confirming { .. } => true,
            Phase::Held(_) | Phase::Kept { .. } | Phase::Leaving(_) => false,
        }
    }
}

/// A claim that is dead here while the store is told.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    /// The caller that waits for the outcome of the release.
    release: Option<Ticket>,
    /// When the lease ends by itself.
    ends: Instant,
    /// When the leave is no longer repeated.
    until: Instant,
}

impl Leaving {
    /// Returns a leave whose record ends by itself at `ends`. It is repeated until then.
    fn new(release: Option<Ticket>, ends: Instant) -> Self {
        let until = ends;
        Leaving { release, ends, until }
    }
}

/// The lease that a claim continues, instead of claiming a new one.
#[derive(Debug)]
enum Origin {
    /// A lease of this node, which is given up for a place at the end of the queue.
    Yield(Yielded),
    /// A lease that is taken over from another owner.
    Pass(Box<Pass>),
}

/// A lease that is taken over from its owner.
#[derive(Debug)]
pub(crate) struct Pass {
    from: ClaimId,
    /// The previous owner, if it is in this key machine. `None` for an owner in another machine, which is left alone.
    local: Option<Passed>,
}

/// A claim whose lease is being passed on, as it was held. Its number is dead since the pass was sent. If the pass fails,
/// the number is [left](Passed::dead). There is one way back, if the store surely did nothing: [`Claim::resume`].
#[derive(Debug)]
pub(crate) struct Passed(Claim);

/// A lease of this node that is given up.
#[derive(Debug)]
pub(crate) struct Yielded {
    from: ClaimId,
    terms: LeaseTerms,
    /// Until when the lease surely lasts that was given up.
    deadline: Instant,
    release: Option<Ticket>,
}

impl Yielded {
    /// Returns a lease that has no local holder.
    pub(crate) fn unknown(from: ClaimId, terms: LeaseTerms, now: Instant) -> Self {
        Yielded {
            from,
            terms,
            deadline: now,
            release: None,
        }
    }

    pub(crate) fn number(&self) -> ClaimNumber {
        self.from.claim
    }

    /// Takes the caller that waits for the outcome of its release.
    pub(crate) fn take_release(&mut self) -> Option<Ticket> {
        self.release.take()
    }
}

impl Claim {
    pub(crate) fn new(claim_id: ClaimId, terms: LeaseTerms, now: Instant) -> Self {
        Claim {
            claim_id,
            terms,
            attempt: TickProgress::default(),
            phase: Phase::Asked,
            created_at: now,
            exchange: Exchange::default(),
            late: LateExecution::default(),
            origin: None,
            may_keep: false,
        }
    }

    pub(crate) fn id(&self) -> ClaimId {
        self.claim_id
    }

    pub(crate) fn number(&self) -> ClaimNumber {
        self.claim_id.claim
    }

    pub(crate) fn terms(&self) -> LeaseTerms {
        self.terms
    }

    /// Notes the number of the attempt at the tick. `overtook`: the previous tick, if it had not ended well.
    pub(crate) fn note_attempt(&mut self, number: u32, overtook: Option<TickTime>) {
        self.attempt.number = number;
        self.attempt.overtook = overtook.or(self.attempt.overtook);
    }

    /// Notes how the run of the tick ended.
    pub(crate) fn note_ending(&mut self, ending: Option<RunEnding>) {
        self.attempt.ending = ending.map(Box::new);
    }

    /// Returns how the run ended, if the claim is for a tick.
    pub(crate) fn ending(&self) -> Option<&RunEnding> {
        self.attempt
            .ending
            .as_deref()
            .filter(|_| self.terms.tick.is_some())
    }

    /// Returns whether the claim is for a tick that was run to its end.
    pub(crate) fn is_finished(&self) -> bool {
        self.ending()
            .is_some_and(|ending| ending.result.outcome.ends_tick())
    }

    pub(crate) fn lease(&self) -> Duration {
        ms(self.terms.times.lease_ms)
    }

    /// Returns how long the record lives in the store: the lease and the margin.
    pub(crate) fn record_lifetime(&self) -> Duration {
        ms(self.terms.times.hold_ms())
    }

    /// Returns whether a renewal is in flight.
    pub(crate) fn is_renewing(&self) -> bool {
        matches!(
            self.exchange.in_flight(),
            Some(RequestKind::Renew | RequestKind::Assert)
        )
    }

    pub(crate) fn is_in_flight(&self, kind: RequestKind) -> bool {
        self.exchange.in_flight() == Some(&kind)
    }

    /// Returns whether the store has not answered yet.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.phase, Phase::Asked)
    }

    /// Returns whether a caller waits for the claim.
    pub(crate) fn is_waiting(&self) -> bool {
        self.phase.is_waiting()
    }

    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.phase, Phase::Queued { .. })
    }

    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving(_))
    }

    /// Returns whether the key is surely taken: this claim holds it, or a claim before this one does.
    pub(crate) fn is_taken(&self) -> bool {
        !matches!(self.phase, Phase::Asked | Phase::Kept { .. } | Phase::Leaving(_)) && !self.is_recovering()
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
