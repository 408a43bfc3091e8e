//! A session's connection: opened when something is wanted, given up when it is silent or broken, and never used beside its
//! successor.

use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::message::Unanswered;
use crate::protocol::session::backoff::part_of_pause;
use crate::protocol::session::connection::{Connection, next_attempt};
use crate::protocol::session::in_flight::{Expired, InFlight};
use crate::protocol::session::step::{
    Attempt, MIN_RECONNECT_PAUSE, SessionContext, SessionEffect, SessionEvent,
};
use crate::protocol::session::{SILENT_AFTER, Session};
use crate::protocol::step::Outgoing;
use crate::protocol::time::Instant;

/// A connection that was not used for so long may have been closed for that by the server, or by what is on the way.
const IDLE_AFTER: Duration = Duration::from_millis(900);

impl<P: Plant> Session<P> {
    pub(super) fn is_wanted(&self) -> bool {
        !self.queue.is_empty() || !self.probes.is_empty() || !self.actions.is_empty()
    }

    /// The last attempt failed, and nothing was heard for as long as a request may take. What the server itself says
    /// for good, a wrong password, needs no second opinion.
    pub(super) fn is_down(&self, now: Instant) -> bool {
        let Some(error) = self.lost.as_ref().filter(|_| self.unreachable) else {
            return false;
        };
        is_permanent(error)
            || self
                .heard
                .is_none_or(|heard| now.since(heard) >= self.options.request_timeout)
    }

    /// What was sent at `sent` came to nothing: the first of these since the server was last heard begins an outage.
    pub(super) fn note_unanswered(&mut self, sent: Instant) {
        if self.missed <= self.heard {
            self.missed = Some(sent);
        }
    }

    /// Whether nothing is known of what the server would have said lately: there is no connection, or was none just now, or
    /// what was sent on it has no answer.
    pub fn is_silent(&self, now: Instant) -> bool {
        let is_old = |since: Instant| now.since(since) >= SILENT_AFTER;
        let is_unanswered = |batch: &InFlight| is_old(batch.sent.max(self.heard.unwrap_or_default()));
        let is_open =
            matches!(self.connection, Connection::Open { .. }) && self.reopened_at.is_none_or(is_old);
        self.options.remote && (!is_open || self.in_flight.iter().any(is_unanswered))
    }

    pub(super) fn connect(&mut self, cx: &mut SessionContext<'_>) {
        let (attempt, began) = (next_attempt(&mut self.ids), cx.now);
        self.connection = Connection::Opening { attempt, began };
        cx.effects.push(SessionEffect::Connect(attempt));
    }

    pub(super) fn connected(&mut self, attempt: Attempt, time: u64, cx: &mut SessionContext<'_>) {
        let now = cx.now;
        // Of an attempt that was given up nothing is wanted.
        let Some(began) = self.connection.opening_since(attempt) else {
            return cx.effects.push(SessionEffect::Close(attempt));
        };
        self.note_server_time(time, began, now);
        self.heard = Some(now);
        self.unreachable = false;
        if self.lost.take().is_some() {
            self.reopened_at = Some(now);
        }
        self.connection = Connection::Open {
            attempt,
            proven: false,
            used: now,
        };
        self.inbox.retry_now(now);
        cx.event(SessionEvent::Connected(now.since(began)));
        cx.effects.push(SessionEffect::Reachable);
    }

    pub(super) fn connect_failed(
        &mut self,
        attempt: Attempt,
        error: StoreError,
        cx: &mut SessionContext<'_>,
    ) {
        // A late error of an old attempt says nothing of its successor.
        let Some(began) = self.connection.opening_since(attempt) else {
            return;
        };
        self.note_unanswered(began);
        self.unreachable = true;
        self.close(error, false, cx);
        if self.is_down(cx.now) {
            return self.report_down(cx);
        }
        // Holders and waiters know that a renewal did not arrive yet, and try again. Others wait until that is certain.
        let renewals = self.queue.take_renewals();
        self.report_unsent(renewals, Unanswered::No, cx);
    }

    /// Tells that these requests are not sent, nor the actions and probes that wait.
    fn report_unsent(&mut self, unsent: Vec<Outgoing>, why: Unanswered, cx: &mut SessionContext<'_>) {
        let error = self.lost_error();
        let requests = unsent.into_iter().map(|queued| (queued.request.name, queued.tag));
        let actions = std::mem::take(&mut self.actions).into_iter();
        for (name, tag) in requests.chain(actions.map(|queued| (queued.name, queued.tag))) {
            let late_after = cx.now;
            let request = Expired {
                tag,
                name,
                late_after,
            };
            cx.effects.push(self.unanswered(request, why, error.clone()));
        }
        let failed = |probe| SessionEffect::Probed(probe, Err(error.clone()));
        cx.effects.extend(self.probes.drain(..).map(failed));
    }

    /// Closed, and not to be opened again before a pause that doubles.
    fn close(&mut self, error: StoreError, idle: bool, cx: &mut SessionContext<'_>) {
        let part = part_of_pause(&mut self.jitter);
        let pause = self.backoff.next(part);
        self.connection = Connection::Closed {
            since: cx.now,
            until: cx.now + pause,
        };
        self.lost = Some(error.clone());
        cx.event(SessionEvent::ConnectionLost { error, idle });
    }

    /// The inbox opened, so this can be tried, too: but not twice in a moment, as each may open and break in turn.
    pub(super) fn retry_now(&mut self, now: Instant) {
        if let Connection::Closed { since, until } = &mut self.connection {
            *until = (*until).min(now.max(*since + MIN_RECONNECT_PAUSE));
        }
    }

    /// Nothing is sent to a server that is down.
    pub(super) fn report_down(&mut self, cx: &mut SessionContext<'_>) {
        let queued = self.queue.take_all();
        if !queued.is_empty() {
            cx.event(SessionEvent::Down(queued.len()));
        }
        self.report_unsent(queued, Unanswered::Down, cx);
    }

    pub(super) fn lost_error(&self) -> StoreError {
        self.lost
            .clone()
            .unwrap_or_else(|| self.error(StoreErrorKind::Unreachable, "no connection to"))
    }

    pub(super) fn error(&self, kind: StoreErrorKind, what: &str) -> StoreError {
        StoreError::new(kind, format_args!("{what} {}", self.options.server))
    }

    pub(super) fn timed_out(&self, kind: StoreErrorKind, what: &str, waited: Duration) -> StoreError {
        let waited = Duration::from_millis(waited.as_millis() as u64);
        let server = &self.options.server;
        StoreError::new(kind, format_args!("{what} {server} within {waited:?}"))
    }

    /// A sign of life: an empty batch. Whoever is silent is given up as after a request.
    pub(super) fn ping(&mut self, cx: &mut SessionContext<'_>) {
        if let Connection::Open { attempt, .. } = self.connection
            && self.options.remote
        {
            self.send(attempt, None, cx);
        }
    }

    /// Never used beside its successor: whatever is under way on it is told so. `sent`: when that was which found it
    /// broken.
    pub(super) fn give_up(
        &mut self,
        connection: Attempt,
        sent: Instant,
        error: StoreError,
        cx: &mut SessionContext<'_>,
    ) {
        let now = cx.now;
        if !matches!(self.connection, Connection::Open { attempt, .. } if attempt == connection) {
            return;
        }
        self.note_unanswered(sent);
        let excused = self.is_proven(connection);
        if self.plant.planted(Flaw::ConnectionBesideSuccessor) {
            self.predecessor = Some(connection);
        } else {
            cx.effects.push(SessionEffect::Close(connection));
        }
        let idle = *error.kind() == StoreErrorKind::Interrupted && self.was_idle_before(sent);
        self.close(error.clone(), idle, cx);
        // It did its work until now. One that refuses everything did not.
        if excused
            && !matches!(error.kind(), StoreErrorKind::Refused(_))
            && let Connection::Closed { until, .. } = &mut self.connection
        {
            *until = now;
        }
        let under_way = std::mem::take(&mut self.in_flight);
        if self.plant.planted(Flaw::ForgottenWithConnection) {
            return;
        }
        for batch in under_way {
            let overdue = batch.gives_up_at <= now;
            let why = match excused {
                true if !overdue => Unanswered::Bystander,
                _ => Unanswered::Unknown,
            };
            self.report_unanswered(batch, why, &error, cx);
        }
        // What broke or silenced one did so to the other, or soon will.
        self.inbox.connection_lost(sent, cx);
    }

    /// Nothing was under way for a while before what was sent then and what is still under way.
    pub(super) fn was_idle_before(&self, sent: Instant) -> bool {
        let first = self
            .in_flight
            .iter()
            .map(|batch| batch.sent)
            .fold(sent, Instant::min);
        self.heard.is_some_and(|heard| first.since(heard) >= IDLE_AFTER)
    }

    pub(super) fn is_proven(&self, connection: Attempt) -> bool {
        matches!(self.connection, Connection::Open { attempt, proven: true, .. } if attempt == connection)
    }
}

/// No other connection will fare better. What the server calls by no name that is known here may pass.
fn is_permanent(error: &StoreError) -> bool {
    use StoreRefusal::{NoAuth, NoPermission, Unsupported, WrongPassword};
    match error.kind() {
        StoreErrorKind::Refused(refusal) => {
            matches!(refusal, NoAuth | NoPermission | Unsupported | WrongPassword)
        }
        _ => false,
    }
}
