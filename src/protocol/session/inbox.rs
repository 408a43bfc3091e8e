//! The session's connection to the inbox: whether it is open, and whether grants still arrive.
//!
//! The store pushes grants to the inbox. No rule depends on the arrival of a push, but waiters that expect pushes use
//! slow timers. An inbox that may have stopped receiving must therefore be found: the session pings it at intervals,
//! and at once when the connection to the server falls silent.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::session::backoff::Backoff;
use crate::protocol::session::step::{
    Attempt, InboxEffect, MAX_RECONNECT_PAUSE, MAX_SILENCE, MIN_RECONNECT_PAUSE, SessionContext,
    SessionEffect, SessionEvent, SessionOptions, SessionRole,
};
use crate::protocol::step::InboxState;
use crate::protocol::time::Instant;

/// The pause before an inbox is opened again after a refusal that will not pass by itself.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(10);
/// After so many inboxes in a row at another server than the connection, pushes count as unreliable.
const MAX_MISSES: u32 = 3;
/// The shortest time between two reports of that.
const MISSES_REPORT_PERIOD: Duration = Duration::from_secs(60);

/// The state of the inbox of one session.
#[derive(Debug)]
pub(crate) struct InboxLink {
    state: LinkState,
    /// Where the inbox that opened last leads.
    address: Arc<str>,
    /// The reliability of pushes that the node was last told.
    reported: InboxState,
    /// How often in a row the server of the connection did not have the subscription.
    misses: u32,
    /// When these misses were last reported.
    misses_reported: Option<Instant>,
    backoff: Backoff,
    timeout: Duration,
    remote: bool,
    /// Whether a missed push replaces the inbox, so that the next one leads to another server. An answered ping is no
    /// proof, because the server of the inbox may be cut off from the other servers.
    is_replaced: bool,
}

#[derive(Debug, Clone, Copy)]
enum LinkState {
    Unwanted,
    Closed {
        since: Instant,
        until: Instant,
    },
    Opening {
        attempt: Attempt,
        began: Instant,
    },
    Open {
        attempt: Attempt,
        since: Instant,
        heard: Instant,
        /// When the ping without an answer was sent. `None` if no answer is due.
        asked: Option<Instant>,
        /// When the inbox comes under suspicion, because a push was missed soon after the last sign of life.
        suspect_at: Option<Instant>,
    },
}

/// The answer of a connection's server about the subscription of an inbox.
pub(super) struct SoughtInbox<'a> {
    pub(super) inbox: Attempt,
    /// Whether the subscription is at that server; `None` if the server could not be asked.
    pub(super) is_there: Option<bool>,
    /// The address of the connection, which decides then.
    pub(super) address: &'a Arc<str>,
}

impl InboxLink {
    pub(crate) fn new(options: &SessionOptions) -> Self {
        InboxLink {
            state: LinkState::Unwanted,
            address: Arc::default(),
            reported: InboxState::Unconfirmed,
            misses: 0,
            misses_reported: None,
            backoff: Backoff::default(),
            timeout: options.request_timeout,
            remote: options.remote,
            is_replaced: options.role == SessionRole::Inbox,
        }
    }

    /// Lets the inbox open at the next step, if it was not wanted before.
    pub(crate) fn want(&mut self, now: Instant) {
        if let LinkState::Unwanted = self.state {
            self.state = LinkState::Closed {
                since: now,
                until: now,
            };
        }
    }

    /// Marks the inbox as open. Returns whether the current attempt opened it; another attempt is closed.
    pub(crate) fn opened(
        &mut self,
        attempt: Attempt,
        address: Arc<str>,
        cx: &mut SessionContext<'_>,
    ) -> bool {
        if !matches!(self.state, LinkState::Opening { attempt: current, .. } if current == attempt) {
            cx.inbox(InboxEffect::Close(attempt));
            return false;
        }
        self.address = address;
        self.state = LinkState::Open {
            attempt,
            since: cx.now,
            heard: cx.now,
            asked: None,
            suspect_at: None,
        };
        cx.event(SessionEvent::InboxOpen);
        // The node is told each time, because grants may have been missed while the inbox was closed.
        self.reported = self.reliability();
        cx.effects.push(SessionEffect::InboxState(self.reported));
        true
    }

    /// Returns the attempt that opened the inbox, if it is open.
    pub(crate) fn open_attempt(&self) -> Option<Attempt> {
        match self.state {
            LinkState::Open { attempt, .. } => Some(attempt),
            _ => None,
        }
    }

    /// Returns whether pushes are reliable while the inbox is open: not if it was found at another server each time.
    fn reliability(&self) -> InboxState {
        if self.misses >= MAX_MISSES {
            InboxState::Unconfirmed
        } else {
            InboxState::Confirmed
        }
    }

    /// Records a sign of life.
    pub(crate) fn heard(&mut self, attempt: Attempt, cx: &mut SessionContext<'_>) {
        if let LinkState::Open {
            attempt: current,
            heard,
            asked,
            suspect_at,
            ..
        } = &mut self.state
            && *current == attempt
        {
            (*heard, *asked) = (cx.now, None);
            *suspect_at = suspect_at.filter(|_| self.is_replaced);
            self.report(self.reliability(), cx);
        }
    }

    /// Closes an inbox that broke or did not open. Returns whether it had been open: then the connection needs a
    /// ping, too.
    pub(crate) fn failed(
        &mut self,
        attempt: Attempt,
        error: StoreError,
        part: f64,
        cx: &mut SessionContext<'_>,
    ) -> bool {
        let was_open_since = match self.state {
            LinkState::Opening { attempt: current, .. } if current == attempt => None,
            LinkState::Open {
                attempt: current,
                since,
                ..
            } if current == attempt => Some(since),
            _ => return false,
        };
        let refused = error.trouble().is_permanent();
        let pause = if refused {
            PAUSE_AFTER_REFUSAL
        } else {
            self.pause(was_open_since, part, cx.now)
        };
        self.state = LinkState::Closed {
            since: cx.now,
            until: cx.now + pause,
        };
        cx.event(SessionEvent::InboxLost(error));
        let state = if refused {
            InboxState::Refused
        } else {
            InboxState::Unconfirmed
        };
        self.report(state, cx);
        was_open_since.is_some()
    }

    /// Returns the pause before the next attempt. An inbox that breaks soon after it opened is not opened again at
    /// once.
    fn pause(&mut self, was_open_since: Option<Instant>, part: f64, now: Instant) -> Duration {
        if was_open_since.is_some_and(|since| now.since(since) >= MAX_RECONNECT_PAUSE) {
            self.backoff.reset();
            return Duration::ZERO;
        }
        self.backoff.next(part)
    }

    /// Replaces an open inbox that leads to another server than the connection does.
    ///
    /// After some replacements in a row pushes count as unreliable, and the inbox is opened again seldom: a proxy may lead each
    /// connection to another server.
    pub(super) fn sought(&mut self, sought: SoughtInbox<'_>, part: f64, cx: &mut SessionContext<'_>) {
        let SoughtInbox {
            inbox,
            is_there,
            address,
        } = sought;
        let LinkState::Open { attempt, since, .. } = self.state else {
            return;
        };
        if attempt != inbox {
            return;
        }
        if is_there.unwrap_or(self.address == *address) {
            self.misses = 0;
            return self.report(InboxState::Confirmed, cx);
        }
        self.misses += u32::from(is_there.is_some());
        cx.inbox(InboxEffect::Close(attempt));
        let pause = if self.misses >= MAX_MISSES {
            let is_old = |reported| cx.now.since(reported) >= MISSES_REPORT_PERIOD;
            if self.misses_reported.is_none_or(is_old) {
                self.misses_reported = Some(cx.now);
                cx.event(SessionEvent::InboxElsewhere);
            }
            PAUSE_AFTER_REFUSAL
        } else {
            self.pause(Some(since), part, cx.now)
        };
        self.state = LinkState::Closed {
            since: cx.now,
            until: cx.now + pause,
        };
        self.report(InboxState::Unconfirmed, cx);
    }

    /// Pings the inbox after its server's connection fell silent. The answer is due within the same timeout.
    pub(crate) fn suspect(&mut self, cx: &mut SessionContext<'_>) {
        if self.remote
            && let LinkState::Open { attempt, asked, .. } = &mut self.state
        {
            if asked.is_none() {
                *asked = Some(cx.now);
                cx.inbox(InboxEffect::Ping(*attempt));
            }
            self.report(InboxState::Unconfirmed, cx);
        }
    }

    /// Suspects or replaces the inbox after a grant whose push did not arrive. An inbox that was heard in the last second
    /// stays confirmed until that second is over, which limits the cost on a server that does not let this user publish.
    /// An inbox that is replaced stays for its first second.
    pub(crate) fn missed_push(&mut self, cx: &mut SessionContext<'_>) {
        let LinkState::Open {
            attempt,
            since,
            heard,
            suspect_at,
            ..
        } = &mut self.state
        else {
            return;
        };
        let attempt = *attempt;
        let trusted_since = if self.is_replaced { *since } else { *heard };
        let trusted_until = trusted_since + MAX_RECONNECT_PAUSE;
        if cx.now < trusted_until {
            *suspect_at = Some(trusted_until);
        } else if self.is_replaced {
            cx.inbox(InboxEffect::Close(attempt));
            self.state = LinkState::Closed {
                since: cx.now,
                until: cx.now,
            };
            self.report(InboxState::Unconfirmed, cx);
        } else {
            *suspect_at = None;
            self.suspect(cx);
        }
    }

    /// Reacts to a connection that was given up because of the request sent at `sent`. An inbox without a sign of
    /// life since then is replaced at once. An inbox younger than one second is only pinged, because connection and
    /// inbox may open and break in turn.
    pub(crate) fn connection_lost(&mut self, sent: Instant, cx: &mut SessionContext<'_>) {
        match self.state {
            LinkState::Open {
                attempt,
                since,
                heard,
                ..
            } if self.remote && heard < sent && cx.now.since(since) >= MAX_RECONNECT_PAUSE => {
                cx.inbox(InboxEffect::Close(attempt));
                self.state = LinkState::Closed {
                    since: cx.now,
                    until: cx.now,
                };
                self.report(InboxState::Unconfirmed, cx);
            }
            _ => self.suspect(cx),
        }
    }

    /// Lets a closed inbox open soon, because the connection just opened. The shortest pause still applies, because
    /// connection and inbox may open and break in turn.
    pub(crate) fn retry_now(&mut self, now: Instant) {
        if let LinkState::Closed { since, until } = &mut self.state
            && self.reported != InboxState::Refused
        {
            *until = (*until).min(now.max(*since + MIN_RECONNECT_PAUSE));
        }
    }

    /// Handles what is due. Returns whether an open inbox turned out to be dead.
    pub(crate) fn step(
        &mut self,
        next_attempt: impl FnOnce() -> Attempt,
        part: impl FnOnce() -> f64,
        cx: &mut SessionContext<'_>,
    ) -> bool {
        let now = cx.now;
        match &mut self.state {
            LinkState::Closed { until, .. } if *until <= now => {
                let attempt = next_attempt();
                self.state = LinkState::Opening { attempt, began: now };
                cx.inbox(InboxEffect::Open(attempt));
            }
            LinkState::Opening { attempt, began } if now.since(*began) >= self.timeout => {
                let attempt = *attempt;
                return self.give_up(attempt, "the subscription did not open", part(), cx);
            }
            LinkState::Open {
                attempt,
                asked: Some(asked),
                ..
            } if now.since(*asked) >= self.timeout => {
                let attempt = *attempt;
                return self.give_up(attempt, "the subscription is silent", part(), cx);
            }
            LinkState::Open {
                suspect_at: Some(at), ..
            } if *at <= now => self.missed_push(cx),
            LinkState::Open {
                attempt,
                heard,
                asked: asked @ None,
                ..
            } if self.remote && now.since(*heard) >= MAX_SILENCE => {
                *asked = Some(now);
                cx.inbox(InboxEffect::Ping(*attempt));
            }
            _ => {}
        }
        false
    }

    /// Closes an inbox that did not open or answer in time.
    fn give_up(&mut self, attempt: Attempt, why: &str, part: f64, cx: &mut SessionContext<'_>) -> bool {
        cx.inbox(InboxEffect::Close(attempt));
        let timeout = self.timeout;
        let error = StoreError::new(StoreErrorKind::TimedOut, format_args!("{why} within {timeout:?}"));
        self.failed(attempt, error, part, cx)
    }

    /// Returns when [`step`](Self::step) is next due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        match self.state {
            LinkState::Unwanted => None,
            LinkState::Closed { until, .. } => Some(until),
            LinkState::Opening { began, .. } => Some(began + self.timeout),
            LinkState::Open {
                heard,
                asked,
                suspect_at,
                ..
            } => {
                let silent = self.remote.then(|| heard + MAX_SILENCE);
                let checked = asked.map(|asked| asked + self.timeout).or(silent);
                checked.into_iter().chain(suspect_at).min()
            }
        }
    }

    /// Reports the reliability of pushes if it changed.
    fn report(&mut self, state: InboxState, cx: &mut SessionContext<'_>) {
        if std::mem::replace(&mut self.reported, state) != state {
            cx.effects.push(SessionEffect::InboxState(state));
        }
    }
}
