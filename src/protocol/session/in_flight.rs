//! A batch that was sent and is not answered yet.

use crate::protocol::message::{Kind, Name};
use crate::protocol::session::step::{Attempt, BatchId, Probe};
use crate::protocol::step::Tag;
use crate::protocol::time::Instant;

/// A batch in flight, or an action.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) id: BatchId,
    pub(crate) connection: Attempt,
    /// Read before the first byte was written.
    pub(crate) sent: Instant,
    /// From when on the server refuses its claims as late, for sure.
    pub(crate) late_after: Instant,
    /// When its connection is given up.
    pub(crate) gives_up_at: Instant,
    /// The earliest deadline of its requests that are still waited for.
    pub(crate) deadline: Option<Instant>,
    pub(crate) requests: Vec<Pending>,
    pub(crate) probes: Vec<Probe>,
    /// It is an action, in the place of one request.
    pub(crate) is_action: bool,
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) tag: Tag,
    pub(crate) name: Name,
    /// When somebody called for it.
    pub(crate) called: Instant,
    pub(crate) deadline: Instant,
    /// Its deadline passed: a late reply decides nothing.
    pub(crate) over: bool,
}

/// A request that has no answer.
#[derive(Debug)]
pub(crate) struct Expired {
    pub(crate) tag: Tag,
    pub(crate) name: Name,
    /// From when on the server refuses it as late.
    pub(crate) late_after: Instant,
}

impl InFlight {
    /// An answer about some job is still waited for.
    pub(crate) fn is_of_jobs(&self) -> bool {
        let mut waited = self.requests.iter().filter(|request| !request.over);
        !self.is_action && waited.any(|request| request.name.kind == Kind::Job)
    }

    /// Requests whose own time is over are waited for no more; the batch goes on.
    pub(crate) fn expire(&mut self, now: Instant, expired: &mut Vec<Expired>) {
        let late_after = self.late_after.max(now);
        for request in &mut self.requests {
            if !request.over && request.deadline <= now {
                request.over = true;
                expired.push(Expired {
                    tag: request.tag,
                    name: request.name.clone(),
                    late_after,
                });
            }
        }
        let waited = self.requests.iter().filter(|request| !request.over);
        self.deadline = waited.map(|request| request.deadline).min();
    }
}
