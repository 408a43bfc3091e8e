//! A batch that was sent and is not answered yet.

use std::time::Duration;

use crate::protocol::message::{Kind, Name};
use crate::protocol::session::step::{Attempt, BatchId, Probe};
use crate::protocol::step::Tag;
use crate::protocol::time::Instant;
use crate::protocol::write::WriteId;

/// A batch under way, or a write.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) id: BatchId,
    pub(crate) connection: Attempt,
    /// Read before the first byte was written.
    pub(crate) sent: Instant,
    /// From when on the server refuses its claims as late, for sure.
    pub(crate) late_after: Instant,
    /// When its connection is given up.
    pub(crate) gives_up: Instant,
    /// The earliest deadline of its requests that are still waited for.
    pub(crate) deadline: Option<Instant>,
    pub(crate) requests: Vec<Pending>,
    pub(crate) probes: Vec<Probe>,
    /// The write that it is. It has no requests then, and a deadline until its caller was told.
    pub(crate) write: Option<WriteId>,
}

/// A write that waits to be sent.
#[derive(Debug)]
pub(crate) struct QueuedWrite {
    pub(crate) write: WriteId,
    /// The lease behind it. A quarter of it is its time.
    pub(crate) lease: Duration,
    pub(crate) deadline: Instant,
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
        waited.any(|request| request.name.kind == Kind::Job)
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
