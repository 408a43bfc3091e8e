//! What happens between a node and a server: what of it is an event, and what only counts for an outage.

use std::sync::Arc;

use crate::driver::node::Node;
use crate::driver::outage::{Ended, Failed, InboxLoss};
use crate::driver::servers::Server;
use crate::driver::waiter::lock;
use crate::error::{StoreError, StoreErrorKind};
use crate::observe;
use crate::protocol::message::Reply;
use crate::protocol::session::step::SessionEvent;
use crate::protocol::step::{InboxState, Input};
use crate::protocol::time::Instant;

impl Node {
    /// Something failed at a server.
    pub(crate) fn failed(&self, server: &Server, what: Failed, error: &StoreError) {
        // What a process that stood still finds is no news of the server. A server that really fails goes on failing.
        if self.pause_until_now().is_some() {
            return;
        }
        let (begins, inbox) = server.outage.failed(self.clock.now(), what, error);
        if begins {
            self.events
                .push(observe::store_failing(server.text.clone(), error.clone()));
        }
        if let Some(error) = inbox {
            self.events.push(observe::inbox_lost(error, false));
        }
    }

    /// What a key is told may be that the store fails.
    pub(crate) fn note_failure(&self, server: &Server, input: &Input) {
        let error = match input {
            Input::Failed { error, .. } => error.clone(),
            Input::Answered { reply, .. } => match reply {
                Reply::Refused(refusal) => StoreError::refused(refusal.clone()),
                Reply::Late => StoreError::new(StoreErrorKind::TimedOut, "requests reach the store too late"),
                _ => return,
            },
            _ => return,
        };
        self.failed(server, Failed::Request, &error);
    }

    /// A connection to a server opened, which says which run of it this is.
    pub(crate) fn note_run(&self, server: &Server, run_id: Option<&str>) {
        if run_id.is_some_and(|run_id| server.outage.is_changed(run_id)) {
            self.events.push(observe::server_changed(server.text.clone()));
        }
    }

    /// Whether grants are pushed has changed.
    pub(crate) fn note_inbox(&self, server: &Server, state: InboxState) {
        let ended = server.outage.inbox_state(self.clock.now(), state);
        self.tell_ended(server, ended);
    }

    fn tell_ended(&self, server: &Server, ended: Option<Ended>) {
        self.events.push(match ended {
            Some(Ended::Outage(recovery)) => observe::store_recovered(server.text.clone(), recovery),
            Some(Ended::Doubt(error, lasted)) => {
                self.events.push(observe::inbox_lost(error, true));
                match lasted {
                    Some(_) => observe::inbox_open(lasted),
                    None => return,
                }
            }
            None => return,
        });
    }

    /// Asks a server for a sign of life when no caller has a request for it, so that the end of its outage is told.
    fn probe_server(self: &Arc<Self>, server: &Arc<Server>) {
        let (probed, _) = server.probe();
        self.feed(server, probed);
        self.alarm.ring();
    }

    /// The inbox is lost, or was not opened.
    fn inbox_lost(self: &Arc<Self>, server: &Arc<Server>, error: StoreError, now: Instant) {
        // A server that refuses is there. A store that is never away cannot be asked. A node without handles has no waiters.
        let is_decided =
            matches!(error.kind(), StoreErrorKind::Refused(_)) || !self.servers.store.abilities().remote;
        if self.pause_until_now().is_some() {
            return self.events.push(observe::inbox_lost(error, false));
        }
        let is_news = match server.outage.inbox_lost(now, &error, is_decided) {
            _ if self.is_abandoned() => false,
            InboxLoss::Explained => false,
            InboxLoss::Alone => true,
            InboxLoss::Doubted { is_asked } => {
                if !is_asked || lock(&server.io).connections.is_empty() {
                    self.probe_server(server);
                }
                return;
            }
        };
        self.events.push(observe::inbox_lost(error, is_news));
    }

    /// What happened between this node and a server, at the time of the session's step: an answer to what was sent in that
    /// step decides what it means.
    pub(crate) fn session_event(self: &Arc<Self>, server: &Arc<Server>, event: SessionEvent, now: Instant) {
        match event {
            SessionEvent::Connected(took) => self.events.push(observe::connected(took)),
            SessionEvent::ConnectionLost { error, idle } => {
                // One that was idle is no trouble, unless the inbox broke with it.
                if !idle || server.outage.is_doubted() {
                    self.failed(server, Failed::Connection, &error);
                }
                self.events.push(observe::connection_lost(error));
            }
            SessionEvent::Answered { refused: false, sent } => {
                let ended = server.outage.answered(now, sent);
                self.tell_ended(server, ended);
            }
            SessionEvent::InboxOpen => {
                if let Some(away) = server.outage.inbox_open(now) {
                    self.events.push(observe::inbox_open(away));
                }
                if server.outage.is_on() {
                    self.probe_server(server);
                }
            }
            SessionEvent::InboxLost(error) => self.inbox_lost(server, error, now),
            // Each is told with its key, and all of them with their server.
            SessionEvent::Answered { .. }
            | SessionEvent::TimedOut(_)
            | SessionEvent::Bystanders(_)
            | SessionEvent::Down(_) => {}
        }
    }
}
