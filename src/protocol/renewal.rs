//! What time does to a claim: losses, renewals, repeats.

use std::time::Duration;

use crate::error::LostCause;
use crate::protocol::context::StepContext;
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::key_state::{KeyState, Phase, RequestKind};
use crate::protocol::step::{Effect, KeyEvent, ms};
use crate::protocol::time::Instant;

/// The shortest pause before a failed request is repeated.
const SHORTEST_RETRY: Duration = Duration::from_millis(10);

impl<P: Plant> KeyState<P> {
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let claims = self.claims.iter().filter_map(|claim| match &claim.phase {
            Phase::Held(held) => Some(claim.act.map_or(held.deadline, |act| act.min(held.deadline))),
            _ => claim.act,
        });
        claims
            .chain(
                self.reclaim
                    .filter(|_| !self.line.is_empty() || !self.solos.is_empty()),
            )
            .min()
    }

    pub(crate) fn wake(&mut self, cx: &mut StepContext<'_>) {
        self.expire(cx);
        for at in (0..self.claims.len()).rev() {
            let claim = &self.claims[at];
            if claim.act.is_none_or(|act| act > cx.now) {
                continue;
            }
            match claim.phase {
                Phase::Held(_) | Phase::Asked | Phase::Queued { .. } | Phase::Confirming => {
                    self.ask(cx, at, RequestKind::Renew)
                }
                Phase::Leaving { until, .. } if cx.now >= until => {
                    cx.effects
                        .push(Effect::Event(KeyEvent::LeaveFailed { error: None }));
                    self.claims.swap_remove(at);
                }
                Phase::Leaving { .. } => self.ask(cx, at, RequestKind::Leave),
            }
        }
        self.pursue(cx);
    }

    /// The deadline is checked on every step, not by its timer alone: a process that stood still and woke up is
    /// lost before it does anything else.
    pub(crate) fn expire(&mut self, cx: &mut StepContext<'_>) {
        for at in (0..self.claims.len()).rev() {
            if let Phase::Held(held) = &self.claims[at].phase
                && cx.now >= held.deadline
            {
                let asking = self.claims[at]
                    .asking
                    .is_some_and(|asking| asking.what == RequestKind::Renew);
                if asking && self.plant.planted(Flaw::LateRenewalRevives) {
                    continue;
                }
                let fixed = self.claims[at].options.fixed;
                self.lose(
                    cx,
                    at,
                    if fixed {
                        LostCause::Ended
                    } else {
                        LostCause::Deadline
                    },
                );
            }
        }
    }

    pub(crate) fn opened(&mut self, cx: &mut StepContext<'_>) {
        self.expire(cx);
        for at in 0..self.claims.len() {
            if matches!(self.claims[at].phase, Phase::Queued { .. }) && self.claims[at].asking.is_none() {
                self.ask(cx, at, RequestKind::Renew);
            }
        }
    }

    /// A lease is renewed when a third of it is over. A lease of fixed length is not.
    ///
    /// A late renewal does not put off those after it. An outage of the store makes all leases due at once, and counted
    /// from when they were renewed at last, they would stay in step for ever, on every node that saw it.
    pub(crate) fn schedule(&mut self, cx: &mut StepContext<'_>, at: usize) {
        let claim = &mut self.claims[at];
        let third = claim.lease() / 3;
        if let Phase::Held(held) = &mut claim.phase {
            let left = held.deadline.since(cx.now);
            let latest = cx.now + left.saturating_sub(2 * third);
            while held.due <= cx.now {
                held.due = held.due + third;
            }
            claim.act = (!claim.options.fixed).then(|| held.due.min(latest));
        }
    }

    /// A waiting claim is renewed when the owner's record should be over, but after a third of its own lease at
    /// the latest, whatever the store says of the record: t₀ must never be old, and a lost push only a delay.
    pub(crate) fn schedule_wait(&mut self, cx: &mut StepContext<'_>, at: usize, left: Option<u64>) {
        let third = ms(self.claims[at].term.lease_ms) / 3;
        let owner = left.map_or(third, |left| ms(left.max(1)) + ms(2));
        let pause = if owner < third {
            owner
        } else {
            cx.source.jittered(third)
        };
        self.claims[at].act = Some(cx.now + pause);
    }

    /// When a failed request is repeated: soon at first, and always while something is left.
    pub(crate) fn schedule_retry(&mut self, cx: &mut StepContext<'_>, at: usize) {
        let claim = &mut self.claims[at];
        claim.fails += 1;
        let step = claim.lease() / 32 * (1 << claim.fails.min(3));
        let pause = match &claim.phase {
            Phase::Held(held) => step.min(held.deadline.since(cx.now) / 4),
            _ => step,
        };
        claim.act = Some(cx.now + cx.source.jittered(pause).max(SHORTEST_RETRY));
    }
}
