//! The context of a step of a key: the time, unused numbers, and the effects.

use std::time::Duration;

use siphasher::sip::SipHasher24;

use crate::protocol::flaw::Plant;
use crate::protocol::message::{ClaimId, ClaimNumber, Name, NodeId};
use crate::protocol::step::{
    Effect, FormerMaster, InboxState, KeyEvent, Outcome, Outgoing, Rules, Ticket, WhyDenied,
};
use crate::protocol::time::Instant;

/// The number of moments in a period at which a node renews its leases. More moments make smaller batches, fewer make renewals
/// earlier.
const MOMENTS: u64 = 1_024;

/// The seeds of a shard's random numbers.
#[derive(Debug, Clone, Copy)]
pub struct Seed {
    /// The nonce of a claim is SipHash-2-4 of its number under this key (Aumasson and Bernstein, 2012). A process
    /// that sees some nonces cannot predict the next. Comes from the operating system, except in tests.
    pub nonce_key: (u64, u64),
    /// Spreads the timers of many nodes. It need not be secret.
    pub jitter: u64,
}

impl Seed {
    /// Returns a seed that can be repeated, for simulators and tests.
    pub fn numbered(n: u64) -> Self {
        Seed {
            nonce_key: (n, !n),
            jitter: n,
        }
    }
}

/// The state that all keys of a shard share.
#[derive(Debug)]
pub(crate) struct ShardContext {
    pub(crate) node: NodeId,
    pub(crate) rules: Rules,
    pub(crate) plant: Plant,
    /// Whether grants are pushed.
    pub(crate) inbox: InboxState,
    /// What a master before the present one may still do.
    pub(crate) former: FormerMaster,
    /// No caller is accepted any more.
    pub(crate) is_closed: bool,
    /// When a difference in the capacity of a semaphore was last reported.
    pub(crate) capacity_reported: Option<Instant>,
    /// How many leases are kept without a holder.
    pub(crate) kept: usize,
    next_claim: ClaimNumber,
    step: u64,
    nonces: SipHasher24,
    jitter: fastrand::Rng,
}

impl ShardContext {
    /// Returns the context of shard `index` of `of` shards of `node`.
    pub(crate) fn new(node: NodeId, index: u64, of: u64, seed: Seed, rules: Rules, plant: Plant) -> Self {
        let (key0, key1) = seed.nonce_key;
        ShardContext {
            node,
            rules,
            plant,
            inbox: InboxState::default(),
            former: FormerMaster::default(),
            is_closed: false,
            capacity_reported: None,
            kept: 0,
            next_claim: ClaimNumber(of + index),
            step: of,
            nonces: SipHasher24::new_with_keys(key0, key1),
            jitter: fastrand::Rng::with_seed(seed.jitter),
        }
    }

    /// Returns until when a former master may grant keys, if it may have when a request was executed that was sent at `sent`.
    ///
    /// A former master accepts writes for `lag` after the promotion of its successor. It grants a key when its own copy of the
    /// record ends, and a renewal at the successor does not move that copy. So a deadline moves only by a request that was
    /// executed after that time. If the deadline has not passed then, the copy stood to the last write of the former master.
    pub(crate) fn beside_former_master(&self, sent: Instant) -> Option<Instant> {
        self.former.until.filter(|until| sent < *until)
    }

    /// Returns a claim number that this node never used, with a nonce that no other process can guess.
    pub(crate) fn next_claim_id(&mut self) -> ClaimId {
        let claim = self.next_claim;
        self.next_claim.0 += self.step;
        ClaimId {
            node: self.node,
            claim,
            nonce: self.nonces.hash(&claim.0.to_le_bytes()),
        }
    }

    /// Returns a random duration in the last tenth of `span`, so that the timers of many nodes spread.
    pub(crate) fn jittered(&mut self, span: Duration) -> Duration {
        span.mul_f64(0.9 + self.jitter.f64() * 0.1)
    }

    /// Returns the latest moment of this node that is not after `at`. There are 1,024 moments in a period, and the requests of one
    /// moment travel in one batch. The moments of two nodes differ.
    pub(crate) fn on_grid(&self, at: Instant, period: Duration) -> Instant {
        let step = (period.as_nanos() as u64 / MOMENTS).max(1);
        let since_last = at.as_nanos().saturating_add(self.node.phase(step)) % step;
        Instant::from_nanos(at.as_nanos().saturating_sub(since_last))
    }

    /// Returns a random duration between two durations.
    pub(crate) fn between(&mut self, (shortest, longest): (Duration, Duration)) -> Duration {
        shortest + (longest - shortest).mul_f64(self.jitter.f64())
    }

    /// Returns a random number below `end`.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.jitter.u32(..end)
    }
}

/// The context of one step of one key: the time, the shared state, and the effects.
pub(crate) struct StepContext<'a> {
    pub(crate) now: Instant,
    pub(crate) name: &'a Name,
    pub(crate) shard: &'a mut ShardContext,
    pub(crate) effects: &'a mut Vec<Effect>,
    /// Takes the requests, if the store is a quorum.
    pub(crate) sink: Option<&'a mut dyn RequestSink>,
}

/// Takes requests of key machines, to send others in their place.
pub(crate) trait RequestSink {
    fn send(&mut self, now: Instant, outgoing: Outgoing);
}

impl StepContext<'_> {
    /// Sends a request.
    #[inline]
    pub(crate) fn send(&mut self, outgoing: Outgoing) {
        match &mut self.sink {
            Some(sink) => sink.send(self.now, outgoing),
            None => self.effects.push(Effect::Send(outgoing)),
        }
    }

    pub(crate) fn event(&mut self, event: KeyEvent) {
        self.effects.push(Effect::Event(event));
    }

    /// Denies the caller its lease.
    pub(crate) fn deny(&mut self, ticket: Ticket, why: impl Into<WhyDenied>) {
        self.effects.push(Effect::Denied(ticket, why.into()));
    }

    /// Reports the outcome of a release.
    pub(crate) fn released(&mut self, ticket: Ticket, outcome: Outcome) {
        self.effects.push(Effect::Released(ticket, outcome));
    }
}
