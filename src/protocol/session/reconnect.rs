//! The life of a session's connection: opened when a request needs it, and given up when it is silent or broken. A
//! connection is never used beside its successor.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::flaw::Flaw;
use crate::protocol::message::{Executed, Failure, GrantNumber, LinkReply, Name, Redirect};
use crate::protocol::session::backoff::part_of_pause;
use crate::protocol::session::connection::{Connection, next_attempt};
use crate::protocol::session::in_flight::InFlight;
use crate::protocol::session::inbox::SoughtInbox;
use crate::protocol::session::step::{
    Attempt, InboxEffect, MIN_RECONNECT_PAUSE, Opened, SessionContext, SessionEffect, SessionEvent,
    SessionInput, SessionRole,
};
use crate::protocol::session::{SILENT_AFTER, Session};
use crate::protocol::step::{FormerMaster, Outgoing, ms};
use crate::protocol::time::Instant;

/// A connection unused for this long may have been closed as idle, by the server or by the network.
const IDLE_AFTER: Duration = Duration::from_millis(900);

impl Session {
    /// Returns whether a request, a probe or an action needs a connection.
    pub(super) fn is_wanted(&self) -> bool {
        !self.queue.is_empty() || !self.probes.is_empty() || !self.actions.is_empty()
    }

    /// Returns whether the server is down: the last attempt to connect failed, and the server has not answered for a
    /// request timeout. A permanent refusal, for example a missing right, counts at once.
    pub(super) fn is_down(&self, now: Instant) -> bool {
        let Some(error) = self.lost.as_ref().filter(|_| self.unreachable) else {
            return false;
        };
        error.trouble().is_permanent()
            || self
                .heard
                .is_none_or(|heard| now.since(heard) >= self.options.request_timeout)
    }

    /// Records that a request sent at `sent` has no answer. The first such request since the last answer begins an
    /// outage.
    pub(super) fn note_unanswered(&mut self, sent: Instant) {
        if self.missed <= self.heard {
            self.missed = Some(sent);
        }
    }

    /// Returns whether the server's present state is unknown: the connection is not open, opened less than 200 ms ago
    /// after a loss, or has a request that is 200 ms old and unanswered.
    pub fn is_silent(&self, now: Instant) -> bool {
        let is_old = |since: Instant| now.since(since) >= SILENT_AFTER;
        let is_unanswered = |batch: &InFlight| is_old(batch.sent.max(self.heard.unwrap_or_default()));
        let is_open =
            matches!(self.connection, Connection::Open { .. }) && self.reopened_at.is_none_or(is_old);
        self.options.remote && (!is_open || self.in_flight.iter().any(is_unanswered))
    }

    /// Returns how long the server still recovers, as far as its answers told; `None` if it does not.
    pub fn recovering(&self, now: Instant) -> Option<Duration> {
        let left = self.recovering_until?.since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Begins to open a connection.
    pub(super) fn connect(&mut self, cx: &mut SessionContext<'_>) {
        let (attempt, began) = (next_attempt(&mut self.ids), cx.now);
        self.connection = Connection::Opening { attempt, began };
        cx.effects.push(SessionEffect::Connect(attempt));
    }

    pub(super) fn connected(&mut self, attempt: Attempt, opened: Opened, cx: &mut SessionContext<'_>) {
        let now = cx.now;
        // This attempt was given up, so its connection is not used.
        let Some(began) = self.connection.opening_since(attempt) else {
            return cx.effects.push(SessionEffect::Close(attempt));
        };
        let Opened { place, link, .. } = opened;
        self.is_unconfirmed = opened.is_unconfirmed;
        self.note_server_time(opened.time, began, now);
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
        let is_elsewhere = self.place.as_ref().is_some_and(|last| place.is_elsewhere(last));
        place.replace(&mut self.place, is_elsewhere);
        match self.options.role {
            SessionRole::Member => cx
                .effects
                .push(SessionEffect::TellInbox(SessionInput::InboxRetried)),
            SessionRole::Only | SessionRole::Inbox => self.inbox.retry_now(now),
        }
        self.seek_inbox(cx);
        cx.event(SessionEvent::Connected(now.since(began)));
        let former = self.note_link(link, cx);
        cx.effects.push(SessionEffect::Reachable {
            is_elsewhere,
            former,
            clock: self.clock,
        });
    }

    /// Notes what the server answered to the link. Returns what a former master of the server may still do.
    ///
    /// A recovery begins in each reign after its promotion. The former master may accept writes for `lag` after the promotion,
    /// so surely no longer than for `lag` after the begin of the recovery. An unconfirmed link does not know of a reign, but it
    /// opened after the promotion.
    fn note_link(&mut self, link: LinkReply, cx: &mut SessionContext<'_>) -> FormerMaster {
        self.note_grant(link.clock);
        if let Some((left, cause)) = link.recovering {
            self.note_recovery(ms(left), cause, cx);
        }
        let (recovery, lag) = (self.options.recovery, self.options.lag);
        let after_lag = recovery.saturating_sub(lag);
        let of_recovery = link
            .recovering
            .map(|(left, _)| ms(left).saturating_sub(after_lag));
        let of_link = self.is_unconfirmed.then_some(lag);
        let rest = of_recovery
            .max(of_link)
            .filter(|rest| !rest.is_zero() && !lag.is_zero());
        FormerMaster {
            until: rest.map(|rest| cx.now + rest),
            // Nothing is granted on an unconfirmed link, so each push comes from elsewhere.
            highest: if self.is_unconfirmed {
                GrantNumber(u64::MAX)
            } else {
                link.clock
            },
        }
    }

    /// Gives up a connection that ended by itself.
    pub(super) fn connection_ended(&mut self, attempt: Attempt, cx: &mut SessionContext<'_>) {
        let address = self.place.as_ref().map_or("", |place| &place.address);
        let text = format_args!(
            "{address} is no longer the master, or another master of its quorum refuses this process"
        );
        let error = StoreError::new(StoreErrorKind::Interrupted, text);
        self.give_up(attempt, cx.now, error, cx);
    }

    /// Asks the server of the open connection whether it has the subscription of the open inbox. One name may lead to two
    /// servers, and a subscription cannot tell where it leads.
    ///
    /// An inbox at a demoted master still receives grants by replication. But the new master sees no subscriber of
    /// this node, and therefore passes over the node's waiters.
    pub(super) fn seek_inbox(&mut self, cx: &mut SessionContext<'_>) {
        if let Connection::Open {
            attempt: connection, ..
        } = self.connection
            && self.options.role == SessionRole::Only
            && let Some(inbox) = self.inbox.open_attempt()
            && !self.plant.is(Flaw::InboxLeftBehind)
        {
            cx.inbox(InboxEffect::Seek { inbox, connection });
        }
    }

    /// Handles the answer about the inbox's subscription. If the server cannot be asked, the addresses decide.
    pub(super) fn inbox_sought(
        &mut self,
        inbox: Attempt,
        connection: Attempt,
        is_there: Option<bool>,
        cx: &mut SessionContext<'_>,
    ) {
        let is_current = matches!(self.connection, Connection::Open { attempt, .. } if attempt == connection);
        let Some(place) = self.place.as_ref().filter(|_| is_current) else {
            return;
        };
        let is_there = is_there.filter(|_| !self.plant.is(Flaw::InboxComparedByAddress));
        let part = part_of_pause(&mut self.jitter);
        let sought = SoughtInbox {
            inbox,
            is_there,
            address: &place.address,
        };
        self.inbox.sought(sought, part, cx);
    }

    pub(super) fn connect_failed(
        &mut self,
        attempt: Attempt,
        error: StoreError,
        cx: &mut SessionContext<'_>,
    ) {
        // A late error of an old attempt does not concern its successor.
        let Some(began) = self.connection.opening_since(attempt) else {
            return;
        };
        self.note_unanswered(began);
        self.unreachable = true;
        self.close(error, false, cx);
        if self.is_down(cx.now) {
            return self.report_down(cx);
        }
        // Owners and waiters retry a renewal that was not sent. Other requests wait until the server is known to be
        // down.
        let renewals = self.queue.take_renewals();
        self.report_unsent(renewals, false, cx);
    }

    /// Reports that these requests are not sent, because the server is known to be `down` or for another reason. Also reports
    /// the queued actions and probes.
    fn report_unsent(&mut self, unsent: Vec<Outgoing>, down: bool, cx: &mut SessionContext<'_>) {
        let (executed, error) = (Executed::No, self.lost_error());
        let failed = FailedRequest {
            down,
            ..self.failed_request(Failure { executed, error }, cx.now)
        };
        let requests = unsent.into_iter().map(|queued| (queued.request.name, queued.tag));
        let actions = std::mem::take(&mut self.actions).into_iter();
        let all = requests.chain(actions.map(|queued| (queued.name, queued.tag)));
        cx.effects
            .extend(all.map(|(name, tag)| SessionEffect::failed(name, tag, failed.clone())));
        let failed = |probe| SessionEffect::Probed(probe, Err(failed.error.clone()));
        cx.effects.extend(self.probes.drain(..).map(failed));
    }

    /// Reports the queued requests and actions whose names this server no longer serves. Their machines ask for them
    /// again, and the store then says which server serves the names.
    pub fn release_moved(
        &mut self,
        now: Instant,
        is_moved: impl Fn(&Name) -> bool,
        effects: &mut Vec<SessionEffect>,
    ) {
        let moved = self.queue.take_moved(&is_moved).into_iter();
        let moved = moved.map(|queued| (queued.request.name, queued.tag));
        let actions = std::mem::take(&mut self.actions).into_iter();
        let (gone, kept): (VecDeque<_>, _) = actions.partition(|queued| is_moved(&queued.name));
        self.actions = kept;
        let gone = gone.into_iter().map(|queued| (queued.name, queued.tag));
        if self.plant.is(Flaw::ForgottenWithMove) {
            return;
        }
        let executed = Executed::Elsewhere(Redirect::Moved);
        let error = self.error(StoreErrorKind::Unreachable, "the name is no longer served by");
        let failed = self.failed_request(Failure { executed, error }, now);
        let all = moved.chain(gone);
        effects.extend(all.map(|(name, tag)| SessionEffect::failed(name, tag, failed.clone())));
    }

    /// Closes the connection. The pause before the next attempt doubles each time, up to a limit.
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

    /// Lets a closed connection open soon, because the inbox just opened. The shortest pause still applies, because
    /// connection and inbox may open and break in turn.
    pub(super) fn retry_now(&mut self, now: Instant) {
        if let Connection::Closed { since, until } = &mut self.connection {
            *until = (*until).min(now.max(*since + MIN_RECONNECT_PAUSE));
        }
    }

    /// Reports all queued requests as not sent, because the server is down.
    pub(super) fn report_down(&mut self, cx: &mut SessionContext<'_>) {
        let queued = self.queue.take_all();
        if !queued.is_empty() {
            cx.event(SessionEvent::Down(queued.len()));
        }
        self.report_unsent(queued, true, cx);
    }

    /// Returns why there is no connection.
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

    /// Sends an empty batch as a ping. A connection that does not answer it is given up, as after a request.
    pub(super) fn ping(&mut self, cx: &mut SessionContext<'_>) {
        if let Connection::Open { attempt, .. } = self.connection
            && self.options.remote
        {
            self.send(attempt, None, cx);
        }
    }

    /// Gives up a connection that proved broken for the request sent at `sent`. Reports every request in flight on
    /// it, so that the connection is never used beside its successor.
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
        if self.plant.is(Flaw::ConnectionBesideSuccessor) {
            self.predecessor = Some(connection);
        } else {
            cx.effects.push(SessionEffect::Close(connection));
        }
        let idle = *error.kind() == StoreErrorKind::Interrupted && self.was_idle_before(sent);
        self.close(error.clone(), idle, cx);
        // The connection worked until now, so its successor may open at once. A server that refuses everything did
        // not work.
        if excused
            && !matches!(error.kind(), StoreErrorKind::Refused(_))
            && let Connection::Closed { until, .. } = &mut self.connection
        {
            *until = now;
        }
        let under_way = std::mem::take(&mut self.in_flight);
        if self.plant.is(Flaw::ForgottenWithConnection) {
            return;
        }
        for batch in under_way {
            let (executed, error) = (Executed::Unknown, error.clone());
            let failed = FailedRequest {
                bystander: excused && batch.gives_up_at > now,
                ..self.failed_request(Failure { executed, error }, now)
            };
            self.report_failed(batch, &failed, cx);
        }
        // The cause usually breaks or silences the inbox, too.
        match self.options.role {
            SessionRole::Member => cx
                .effects
                .push(SessionEffect::TellInbox(SessionInput::InboxDoubted)),
            SessionRole::Only | SessionRole::Inbox => self.inbox.connection_lost(sent, cx),
        }
    }

    /// Returns whether the connection was idle before `sent` and before the requests in flight: the server was last
    /// heard at least 900 ms earlier.
    pub(super) fn was_idle_before(&self, sent: Instant) -> bool {
        let first = self
            .in_flight
            .iter()
            .map(|batch| batch.sent)
            .fold(sent, Instant::min);
        self.heard.is_some_and(|heard| first.since(heard) >= IDLE_AFTER)
    }

    /// Returns whether the server has answered on this connection, which is the current one.
    pub(super) fn is_proven(&self, connection: Attempt) -> bool {
        matches!(self.connection, Connection::Open { attempt, proven: true, .. } if attempt == connection)
    }
}
