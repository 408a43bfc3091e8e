//! A claim: a node's pursuit of one lease, from its first request to its last.
//!
//! Reading order: `origin`, `phase`, `held_lease`, `holding`, `sending`, `answers`, `timers`, `leaving`, `late_execution`.

use std::time::Duration;

use crate::protocol::claim::late_execution::LateExecution;
use crate::protocol::claim::origin::Origin;
use crate::protocol::claim::phase::Phase;
use crate::protocol::exchange::Exchange;
use crate::protocol::message::{ClaimId, ClaimNumber, Mode, TickTime};
use crate::protocol::step::{LeaseTerms, ms};
use crate::protocol::time::Instant;

pub(crate) mod answers;
pub mod held_lease;
mod holding;
mod late_execution;
mod leaving;
pub(crate) mod origin;
mod phase;
mod sending;
mod timers;

/// A node's pursuit of one lease. Its number is used once, and the lease length never changes.
#[derive(Debug)]
pub(crate) struct Claim {
    claim_id: ClaimId,
    terms: LeaseTerms,
    /// Of the claim of a tick.
    attempt: TickAttempt,
    phase: Phase,
    /// When the first request was made, which is never later than it was sent.
    created_at: Instant,
    exchange: Exchange<RequestKind>,
    late: LateExecution,
    /// The lease that the claim continues. Set until the store has answered.
    origin: Option<Origin>,
}

/// The run of a tick by its claim.
#[derive(Debug, Clone, Copy, Default)]
struct TickAttempt {
    /// The number of this attempt at the tick.
    number: u32,
    /// The previous tick, if it had not ended well. It never runs again.
    overtook: Option<TickTime>,
    /// Set when the tick was run to its end. `true`: the run went well.
    finished: Option<bool>,
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

impl Claim {
    pub(crate) fn new(claim_id: ClaimId, terms: LeaseTerms, now: Instant) -> Self {
        Claim {
            claim_id,
            terms,
            attempt: TickAttempt::default(),
            phase: Phase::Asked,
            created_at: now,
            exchange: Exchange::default(),
            late: LateExecution::default(),
            origin: None,
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

    /// Notes how the run of the tick ended, if it was run to its end.
    pub(crate) fn note_finished(&mut self, finished: Option<bool>) {
        self.attempt.finished = finished;
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
