//! The timers of a claim: its deadline, a grant that is not taken up, and its next request.

use std::time::Duration;

use crate::error::LostCause;
use crate::protocol::claim::answers::{AfterLoss, ClaimEvent};
use crate::protocol::claim::held_lease::LocalHolder;
use crate::protocol::claim::{Claim, Phase, RequestKind};
use crate::protocol::context::StepContext;
use crate::protocol::failed_request::MAX_RETRY_PAUSE;
use crate::protocol::flaw::Flaw;
use crate::protocol::message::Kind;
use crate::protocol::step::{Effect, InboxState, KeyEvent, ms};
use crate::protocol::time::Instant;

/// The shortest pause before a failed request is repeated.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(10);
/// The shortest pause before a grant that was too old is confirmed again. The pause doubles.
const MIN_CONFIRMATION_PAUSE: Duration = Duration::from_millis(20);
/// How often a waiting claim asks while the owner does not know the queue, in the first [`FOREIGN_EARLY_WAIT`] of a wait.
/// Other libraries poll, too: redis-py every 100 ms.
const FOREIGN_EARLY_PERIOD: Duration = Duration::from_millis(30);
/// How often a waiting claim asks after that: a caller that has waited so long waits for a long holder.
const FOREIGN_LATE_PERIOD: Duration = Duration::from_millis(250);
/// How long a wait for a foreign owner counts as early.
const FOREIGN_EARLY_WAIT: Duration = Duration::from_secs(2);
/// The bounds of a waiter's pause while it is unknown whether grants are pushed.
const UNCONFIRMED_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(250));

impl Claim {
    /// Ends the lease if its deadline has passed, and the grant of a caller that has not taken it up.
    pub(crate) fn expire(&self, cx: &StepContext<'_>) -> Option<ClaimEvent> {
        let Some(held) = self.held() else {
            return self.expire_kept(cx);
        };
        let local = held.local();
        if cx.now < held.deadline() {
            let is_over = local
                .and_then(|local| local.unfetched)
                .is_some_and(|until| until <= cx.now);
            return local
                .filter(|_| is_over)
                .map(|local| ClaimEvent::Unfetched(local.ticket));
        }
        if self.is_in_flight(RequestKind::Renew) && cx.shard.plant.is(Flaw::LateRenewalRevives) {
            return None;
        }
        let cause = if self.terms.is_fixed {
            LostCause::Ended
        } else if local.is_some_and(|local| local.hold.is_overdue) {
            LostCause::Overdue
        } else {
            LostCause::Deadline
        };
        ClaimEvent::lost(cause, AfterLoss::Leave)
    }

    /// Returns whether the holder has reached its `max_hold`. The holder is then told once, and the lease is not
    /// renewed any more. The rest of the lease is the holder's time to finish. Also reports a holder that has held
    /// for long.
    pub(crate) fn check_overdue(&mut self, cx: &mut StepContext<'_>) -> bool {
        let Phase::Held(held) = &mut self.phase else {
            return false;
        };
        let left = held.deadline().since(cx.now);
        let Some(LocalHolder { ticket, hold, .. }) = held.local_mut() else {
            return false;
        };
        let held_for = cx.now.since(hold.since);
        let renews_all = cx.shard.plant.is(Flaw::OverdueRenewed);
        if hold.until().is_none_or(|until| cx.now < until) || renews_all {
            // The time of a job or of a leader has no usual length.
            let is_lock = !matches!(cx.name.kind, Kind::Job | Kind::Election);
            let is_long = held_for >= cx.shard.rules.long_hold && !hold.is_reported && is_lock;
            hold.is_reported |= is_long;
            if is_long {
                cx.event(KeyEvent::HeldLong { held: held_for });
            }
            return false;
        }
        self.exchange.rest();
        if !hold.is_overdue {
            hold.is_overdue = true;
            cx.effects.push(Effect::Overdue(*ticket));
            cx.event(KeyEvent::Overdue { held: held_for, left });
        }
        true
    }

    /// Schedules the renewal of a lease, when a third of it is over. A fixed lease is not renewed.
    pub(crate) fn schedule_renewal(&mut self, cx: &StepContext<'_>) {
        let third = self.lease() / 3;
        let Phase::Held(held) = &mut self.phase else {
            return;
        };
        let next = held.next_renewal(cx.now, third, |at| cx.shard.on_grid(at, third));
        match self.terms.is_fixed {
            true => self.exchange.rest(),
            false => self.exchange.plan(next),
        }
    }

    /// Schedules the first renewal that moves the deadline again, for the time when no former master can grant any more. A
    /// lease that ends before is lost.
    pub(crate) fn schedule_renewal_after_former_master(&mut self, cx: &mut StepContext<'_>) {
        let (Some(held), Some(until)) = (self.held(), cx.shard.former.until) else {
            return;
        };
        let spread = held.deadline().since(until.max(cx.now)) / 4;
        let overdue = held.local().and_then(|local| local.hold.until());
        let pause = cx.shard.between((Duration::ZERO, spread.min(MAX_RETRY_PAUSE)));
        let next = until.max(cx.now) + pause;
        self.exchange
            .plan(overdue.map_or(next, |overdue| next.min(overdue)).max(cx.now));
    }

    /// Schedules the renewal of a waiting claim, when the owner's record should be over. The pause is at most a third
    /// of the claim's own lease, whatever the store says of the record. So t₀ is never old, and a lost push is only a
    /// delay. `others`: behind a foreign owner, how many other claims of the key check, too.
    pub(crate) fn schedule_wait(&mut self, cx: &mut StepContext<'_>, left: Option<u64>, others: Option<u32>) {
        let third = self.lease() / 3;
        let owner = left.map_or(third, |left| ms(left.max(1)) + ms(2));
        let mut pause = if owner < third {
            owner
        } else {
            let heartbeat = cx.now + cx.shard.jittered(third);
            cx.shard.on_grid(heartbeat, third).since(cx.now)
        };
        if let Some(others) = others {
            pause = pause.min(self.foreign_pause(cx, others));
        }
        if cx.shard.inbox == InboxState::Unconfirmed {
            pause = pause.min(cx.shard.between(UNCONFIRMED_PAUSES));
        }
        self.exchange.plan(cx.now + pause);
    }

    /// Plans the repeat of a request that its server did not execute, because it does not serve the key now.
    pub(crate) fn redirect(&mut self, at: Instant) {
        self.exchange.redirect(at);
    }

    pub(crate) fn has_next_request(&self) -> bool {
        self.exchange.next_at().is_some()
    }

    pub(crate) fn is_request_due(&self, now: Instant) -> bool {
        self.exchange.is_due(now)
    }

    /// Returns whether the next request repeats one that failed or was redirected.
    pub(crate) fn is_retry(&self) -> bool {
        self.exchange.is_retry()
    }

    pub(crate) fn is_redirected(&self) -> bool {
        self.exchange.is_redirected()
    }

    /// Notes that a grant may have been missed since the request in flight was made. If the answer is "queued", the claim asks
    /// again at once.
    pub(crate) fn ask_again_after_answer(&mut self) {
        self.exchange.ask_again_after_answer();
    }

    pub(crate) fn asks_again(&self) -> bool {
        self.exchange.asks_again()
    }

    /// Asks soon, because it is unknown whether grants are pushed.
    pub(crate) fn expect_no_push(&mut self, cx: &mut StepContext<'_>) {
        let look = cx.now + cx.shard.between(UNCONFIRMED_PAUSES);
        self.exchange.plan_by(look);
    }

    /// Returns how long a claim waits before it checks whether a foreign owner has released. Such an owner does not
    /// announce its release.
    ///
    /// A node checks all its keys at the same moments, which differ from node to node. The checks of a node then
    /// travel in one batch, and the round trip is the cost. Any claim that checks moves the queue of its key on, so
    /// the claims take turns. Many fixed leases check no more often together than one claim does.
    fn foreign_pause(&self, cx: &mut StepContext<'_>, others: u32) -> Duration {
        let look = if cx.now.since(self.created_at) < FOREIGN_EARLY_WAIT {
            FOREIGN_EARLY_PERIOD
        } else {
            FOREIGN_LATE_PERIOD
        };
        let period = look.as_nanos() as u64;
        let since_last = (cx.now.as_nanos() + cx.shard.node.phase(period)) % period;
        look * (1 + cx.shard.below(2 * others + 1)) - Duration::from_nanos(since_last)
    }

    /// Schedules another confirmation of a grant that was too old to be used.
    pub(crate) fn schedule_confirmation(&mut self, cx: &mut StepContext<'_>, tries: u32) {
        if let Phase::Confirming { tries: tried, .. } = &mut self.phase {
            *tried = tries;
        }
        let pause = MIN_CONFIRMATION_PAUSE * (1 << tries.clamp(1, 6).saturating_sub(1));
        let pause = cx.shard.jittered(pause.min(MAX_RETRY_PAUSE));
        self.exchange.plan(cx.now + pause);
    }

    /// Schedules the retry of a failed request: soon at first, and always while some of the lease is left.
    pub(crate) fn schedule_retry(&mut self, cx: &mut StepContext<'_>) {
        let failures = self.exchange.count_failure();
        let step = (self.lease() / 32 * (1 << failures.min(3))).min(MAX_RETRY_PAUSE);
        let pause = match &self.phase {
            Phase::Held(held) => step.min(held.deadline().since(cx.now) / 4),
            _ => step,
        };
        let pause = cx.shard.jittered(pause).max(MIN_RETRY_PAUSE);
        self.exchange.retry(cx.now + pause);
    }

    /// Returns when the claim next needs a step: at its deadline or the end of its keep, when a grant is given back that was not
    /// taken up, and when a request is due.
    #[inline]
    pub(crate) fn due(&self) -> Option<Instant> {
        let (deadline, unfetched) = self.held().map_or((None, None), |held| {
            let unfetched = held.local().and_then(|local| local.unfetched);
            (Some(held.deadline()), unfetched)
        });
        let deadline = deadline.or_else(|| self.kept_until());
        [self.exchange.next_at(), deadline, unfetched]
            .into_iter()
            .flatten()
            .min()
    }
}
