//! The end of a claim: it is left, and left again while an unanswered request of it may be executed late.

use crate::error::{LostCause, StoreError, StoreErrorKind};
use crate::protocol::claim::answers::ClaimEvent;
use crate::protocol::claim::{Claim, Leaving, Phase, RequestKind};
use crate::protocol::context::StepContext;
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::flaw::Flaw;
use crate::protocol::message::{Kind, LeaveReply};
use crate::protocol::step::{KeyEvent, Outcome, Ticket};
use crate::protocol::time::Instant;

/// How many leases long a finish is repeated: longer than an unfinished tick can block others.
const MAX_FINISH_LEASES: u32 = 8;

impl Claim {
    /// Repeats the leave only until the lease has ended.
    pub(crate) fn shorten_leave(&mut self) {
        if let Phase::Leaving(leaving) = &mut self.phase {
            leaving.until = leaving.until.min(leaving.ends);
        }
    }

    /// Ends the claim before its leave is sent. Its number is dead here from now on, whatever the store answers.
    pub(crate) fn begin_leave(&mut self, cx: &StepContext<'_>, release: Option<Ticket>) {
        let latest = self.late.executable_from(cx.now) + self.record_lifetime();
        let ends = match &self.phase {
            // No request in flight or without an answer can have extended the record.
            Phase::Held(held) if self.exchange.is_idle() && self.exchange.failures() == 0 => {
                held.ends().min(latest)
            }
            Phase::Kept { held, .. } => held.ends().min(latest),
            _ => latest,
        };
        let until = if self.is_finished() && !cx.shard.is_closed {
            cx.now + MAX_FINISH_LEASES * self.record_lifetime()
        } else {
            ends
        };
        if self.held().is_some() || !cx.shard.plant.is(Flaw::LeaveKeepsNumber) {
            self.phase = Phase::Leaving(Leaving { release, ends, until });
        }
        self.exchange.forget_failures();
        self.exchange.forget_unanswered();
    }

    /// Ends the claim. It is left at `at`, and its record ends by itself at `ends`.
    pub(crate) fn leave_at(&mut self, at: Instant, ends: Instant) {
        self.phase = Phase::Leaving(Leaving::new(None, ends));
        self.exchange.plan(at);
    }

    /// Ends a number that the store does not know. If an unanswered request of it may still be executed, the number is left
    /// when it no longer can be.
    pub(crate) fn end(&mut self, cx: &mut StepContext<'_>) -> Option<ClaimEvent> {
        let asserts = !cx.shard.plant.is(Flaw::AssertedAfterLeave);
        let Some(until) = self.late.take_last(cx.now, asserts) else {
            return Some(ClaimEvent::Left);
        };
        cx.event(KeyEvent::GhostLeft);
        let until = until.max(cx.now);
        self.leave_at(until, until + self.record_lifetime());
        None
    }

    /// Notes what may be executed late of a request that failed, or of one that was given up before.
    pub(crate) fn note_late_renewal(&mut self, of: Kind, seq: u32, failure: &FailedRequest) {
        if failure.may_be_executed()
            && of != Kind::Job
            && (self.held().is_some() || self.is_leaving())
            && (seq < self.exchange.seq() || !self.is_in_flight(RequestKind::Leave))
        {
            self.late.note_assertable(failure.late_after);
        }
    }

    /// Notes an answer that tells what became of the claim.
    pub(super) fn forget_executable(&mut self) {
        self.late.forget_executable();
    }

    /// Notes an unanswered yield of the lease, with which a renewal may have been lost.
    pub(crate) fn note_assertable(&mut self, late_after: Instant) {
        self.late.note_assertable(late_after);
    }

    /// Returns whether the server may write the lease again after a leave.
    pub(crate) fn is_assertable(&self, now: Instant) -> bool {
        self.late.is_assertable(now)
    }

    /// Notes that this request, which may have been a renewal after which a leave was sent, has its outcome. Returns whether
    /// the leave was answered before.
    pub(crate) fn is_overtaken(&mut self, seq: u32) -> bool {
        self.late.take_overtakable(seq) && self.exchange.is_idle()
    }

    /// Repeats the leave until the lease has ended by itself.
    pub(super) fn leave_failed(
        &mut self,
        cx: &mut StepContext<'_>,
        failure: &FailedRequest,
    ) -> Option<ClaimEvent> {
        let is_bystander = failure.is_bystander(cx.now, self.lease());
        let Phase::Leaving(leaving) = &mut self.phase else {
            return None;
        };
        cx.event(KeyEvent::LeaveRepeated);
        let is_over = cx.now >= leaving.until;
        let immediate = is_bystander || (self.exchange.failures() == 0 && !failure.down);
        if (is_over || !immediate)
            && let Some(ticket) = leaving.release.take()
        {
            cx.released(ticket, Outcome::Unconfirmed(failure.reported()));
        }
        if is_over {
            let error = Some(failure.error.clone());
            cx.event(KeyEvent::LeaveFailed { error });
        } else if immediate {
            if !is_bystander {
                self.exchange.count_failure();
            }
            self.ask(cx, RequestKind::Leave, false, None);
        } else {
            self.schedule_retry(cx);
        }
        is_over.then_some(ClaimEvent::Left)
    }

    /// Repeats the leave, or gives it up when the lease has ended by itself. `error`: why the store did not answer other
    /// requests.
    pub(crate) fn repeat_leave(
        &mut self,
        cx: &mut StepContext<'_>,
        error: Option<&StoreError>,
    ) -> Option<ClaimEvent> {
        let Phase::Leaving(leaving) = &mut self.phase else {
            return None;
        };
        if cx.now < leaving.until {
            self.ask(cx, RequestKind::Leave, false, None);
            return None;
        }
        cx.event(KeyEvent::LeaveFailed { error: None });
        // The caller still waits if no request failed, because the key was on its way to another server.
        if let Some(ticket) = leaving.release.take() {
            let error = self.exchange.unanswered().or(error).cloned();
            let error = error.unwrap_or_else(|| {
                StoreError::new(
                    StoreErrorKind::Unreachable,
                    "the key moved between servers until its lease was over",
                )
            });
            cx.released(ticket, Outcome::Unconfirmed(error));
        }
        Some(ClaimEvent::Left)
    }

    /// Handles the answer to a leave.
    pub(crate) fn leave_answered(
        &mut self,
        cx: &mut StepContext<'_>,
        reply: LeaveReply,
    ) -> Option<ClaimEvent> {
        let is_finished = self.is_finished();
        let Phase::Leaving(leaving) = &mut self.phase else {
            // Only a number that outlives its leave, which is a planted mistake, gets here.
            return Some(ClaimEvent::Left);
        };
        if let Some(ticket) = leaving.release.take() {
            // "Not there" may be the result of the first try, which was sent while the lease was held. A tick
            // differs: the store knows its latest winner even after the leave, so another node has the tick, or had
            // it.
            let kept = reply == LeaveReply::Left || (self.exchange.unanswered().is_some() && !is_finished);
            let outcome = if kept {
                Outcome::Held
            } else {
                Outcome::Lost(LostCause::Gone)
            };
            cx.released(ticket, outcome);
        }
        // The claim itself may still be executed, if it was not there.
        if reply != LeaveReply::NotThere {
            self.late.forget_executable();
        }
        // The renewal may still write the lease again.
        if self.late.may_be_overtaken() && !cx.shard.plant.is(Flaw::AssertedAfterLeave) {
            return None;
        }
        self.end(cx)
    }
}
