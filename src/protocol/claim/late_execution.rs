//! Requests that the store may still execute after the claim gave them up.

use crate::protocol::time::Instant;

/// What may still be executed late. It tells when the number must be left once more.
#[derive(Debug, Default)]
pub(crate) struct LateExecution {
    /// Set while a request is unanswered: the store may execute it until this time, and refuses it as late after
    /// that.
    executable_until: Option<Instant>,
    /// Set while an owner's renewal, or a request that it was sent with, is unanswered: a server that lost grants may
    /// write the lease again until this time, even after a leave.
    assertable_until: Option<Instant>,
    /// The renewal that had no answer when the leave was sent. The server may execute it after the leave, because a
    /// reload of the scripts changes the order of batches.
    overtakable: Option<u32>,
}

impl LateExecution {
    /// Notes an unanswered claim, yield or pass: the store may execute it until this time.
    pub(crate) fn note_executable(&mut self, until: Instant) {
        self.executable_until = Some(until);
    }

    /// Notes an answer that tells what became of the claim.
    pub(crate) fn forget_executable(&mut self) {
        self.executable_until = None;
    }

    /// Returns until when the claim may be executed, from `now` on.
    pub(crate) fn executable_from(&self, now: Instant) -> Instant {
        self.executable_until.unwrap_or(now).max(now)
    }

    /// Notes an unanswered renewal: until `late_after` the server may write the lease again.
    pub(crate) fn note_assertable(&mut self, late_after: Instant) {
        self.assertable_until = self.assertable_until.max(Some(late_after));
    }

    /// Returns whether the server may write the lease again after a leave.
    pub(crate) fn is_assertable(&self, now: Instant) -> bool {
        self.assertable(now).is_some()
    }

    fn assertable(&self, now: Instant) -> Option<Instant> {
        self.assertable_until.filter(|until| now < *until)
    }

    /// Notes the renewal that is in flight when a leave is sent.
    pub(crate) fn note_overtakable(&mut self, seq: u32) {
        self.overtakable = Some(seq);
    }

    /// Returns whether this was the renewal that may overtake the leave. It cannot any more.
    pub(crate) fn take_overtakable(&mut self, seq: u32) -> bool {
        self.overtakable.take_if(|of| *of == seq).is_some()
    }

    pub(crate) fn may_be_overtaken(&self) -> bool {
        self.overtakable.is_some()
    }

    /// Returns when the number must be left once more, if it must. `asserts`: a renewal counts, too.
    pub(crate) fn take_last(&mut self, now: Instant, asserts: bool) -> Option<Instant> {
        let assertable = self.assertable(now).filter(|_| asserts);
        self.executable_until.take().max(assertable)
    }
}
