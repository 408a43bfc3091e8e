//! A batch that was sent and is not answered yet.

use crate::protocol::failed_request::FailedRequest;
use crate::protocol::message::{Kind, Name};
use crate::protocol::session::step::{Attempt, BatchId, Probe, SessionEffect};
use crate::protocol::step::Tag;
use crate::protocol::time::Instant;

/// A batch or an action in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) id: BatchId,
    pub(crate) connection: Attempt,
    /// When it was sent; read before the first byte is written.
    pub(crate) sent: Instant,
    /// From this instant the server surely refuses its claims as late.
    pub(crate) late_after: Instant,
    /// When its connection is given up if no answer arrives.
    pub(crate) gives_up_at: Instant,
    /// The earliest deadline of the requests that still wait for an answer.
    pub(crate) deadline: Option<Instant>,
    pub(crate) requests: Vec<PendingRequest>,
    pub(crate) probes: Vec<Probe>,
    /// Set for an action, which has one request.
    pub(crate) is_action: bool,
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) tag: Tag,
    pub(crate) name: Name,
    /// When the caller asked for it.
    pub(crate) called: Instant,
    pub(crate) deadline: Instant,
    /// Set when the deadline has passed: a late reply has no effect.
    pub(crate) over: bool,
}

impl InFlight {
    /// Returns whether a request about a job still waits for its answer.
    pub(crate) fn is_of_jobs(&self) -> bool {
        let mut waited = self.requests.iter().filter(|request| !request.over);
        !self.is_action && waited.any(|request| request.name.kind == Kind::Job)
    }

    /// Reports the requests whose deadline has passed as failed. The other requests of the batch keep waiting.
    pub(crate) fn expire(&mut self, now: Instant, failed: &FailedRequest, effects: &mut Vec<SessionEffect>) {
        let late_after = self.late_after.max(now);
        for request in self.requests.iter_mut().filter(|request| !request.over) {
            if request.deadline <= now {
                request.over = true;
                let failed = FailedRequest {
                    late_after,
                    ..failed.clone()
                };
                effects.push(SessionEffect::failed(request.name.clone(), request.tag, failed));
            }
        }
        let waited = self.requests.iter().filter(|request| !request.over);
        self.deadline = waited.map(|request| request.deadline).min();
    }
}
