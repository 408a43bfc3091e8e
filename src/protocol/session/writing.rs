//! How a session sends writes: each in a call of its own, once, and with a deadline.
//!
//! What is written the session does not know; it has a number for it. Nothing is sent again: whether a write that has no
//! answer was done only its caller can find out.

use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::flaw::Plant;
use crate::protocol::message::Unanswered;
use crate::protocol::session::connection::Connection;
use crate::protocol::session::in_flight::{InFlight, QueuedWrite};
use crate::protocol::session::step::{BatchId, SessionEffect, SessionEvent};
use crate::protocol::session::{LONG, Session, patience};
use crate::protocol::time::Instant;
use crate::protocol::write::WriteId;

/// So many are under way. They take no batch's place, so that many of them do not keep a lease from being renewed.
const UNDER_WAY: usize = 16;

impl<P: Plant> Session<P> {
    pub(super) fn queue_write(&mut self, now: Instant, write: WriteId, lease: Duration) {
        let deadline = now + patience(lease, self.options.request_timeout);
        self.writes.push_back(QueuedWrite {
            write,
            lease,
            deadline,
        });
    }

    /// Sends what waits, after the batches: owners' renewals go first.
    pub(super) fn send_writes(&mut self, now: Instant, effects: &mut Vec<SessionEffect>) {
        while let Connection::Open { attempt, .. } = self.connection
            && self.in_flight.iter().filter(|sent| sent.write.is_some()).count() < UNDER_WAY
            && let Some(queued) = self.writes.pop_front()
        {
            self.ids += 1;
            let id = BatchId(self.ids);
            let timeout = self.options.request_timeout;
            // A short lease does not decide over the connection that all share.
            let silence = if queued.lease >= LONG {
                patience(queued.lease, timeout)
            } else {
                timeout
            };
            self.in_flight.push_back(InFlight {
                id,
                connection: attempt,
                sent: now,
                late_after: now + timeout,
                gives_up: now + silence,
                deadline: Some(queued.deadline),
                requests: Vec::new(),
                probes: Vec::new(),
                write: Some(queued.write),
            });
            self.used(now);
            effects.push(SessionEffect::Write {
                connection: attempt,
                id,
                write: queued.write,
            });
        }
    }

    pub(super) fn next_write_due(&self) -> Option<Instant> {
        self.writes.iter().map(|queued| queued.deadline).min()
    }

    /// Those that were not sent in their time are not sent any more.
    pub(super) fn look_at_queued_writes(&mut self, now: Instant, effects: &mut Vec<SessionEffect>) {
        if self.writes.iter().all(|queued| now < queued.deadline) {
            return;
        }
        let error = self.error(StoreErrorKind::Unreachable, "not sent in time to");
        self.writes.retain(|queued| {
            let waits = now < queued.deadline;
            if !waits {
                effects.push(failed(queued.write, Unanswered::No, &error));
            }
            waits
        });
    }

    /// There is no connection: nothing is sent.
    pub(super) fn fail_queued_writes(&mut self, why: Unanswered, effects: &mut Vec<SessionEffect>) {
        if !self.writes.is_empty() {
            let error = self.lost_error();
            let queued = self.writes.drain(..);
            effects.extend(queued.map(|queued| failed(queued.write, why, &error)));
        }
    }

    /// Their time is over: they may have been done, and may still be.
    pub(super) fn tell_overdue_writes(&mut self, overdue: Vec<WriteId>, effects: &mut Vec<SessionEffect>) {
        if overdue.is_empty() {
            return;
        }
        effects.push(SessionEvent::TimedOut(overdue.len()).into());
        let error = self.error(StoreErrorKind::TimedOut, "no reply in time of");
        for write in overdue {
            effects.push(failed(write, Unanswered::Unknown, &error));
        }
    }
}

fn failed(write: WriteId, why: Unanswered, error: &StoreError) -> SessionEffect {
    SessionEffect::WriteFailed(write, why, error.clone())
}
