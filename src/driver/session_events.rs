//! Turns session events into log events and outage counts.

use std::sync::Arc;

use crate::driver::node::Node;
use crate::driver::outage::{FailureKind, InboxLoss, OutageEnd};
use crate::driver::servers::Server;
use crate::driver::waiter::lock;
use crate::error::{StoreError, StoreErrorKind, Trouble};
use crate::observe;
use crate::observe::pending::Gauge;
use crate::protocol::message::{Executed, Reply};
use crate::protocol::session::step::{SessionEvent, SessionRole};
use crate::protocol::step::{InboxState, Input};
use crate::protocol::time::Instant;

impl Node {
    /// Notes a failure at a server, which may begin an outage.
    pub(crate) fn note_server_failure(&self, server: &Server, what: FailureKind, error: &StoreError) {
        match error.trouble() {
            // A server that recovers answers its requests, and has an event of its own. A value of another kind under one key
            // concerns the callers of that key, who are told.
            Trouble::Recovering | Trouble::Key => return,
            // Nothing is served on a connection that cannot be opened.
            Trouble::Service if what != FailureKind::Connection => {
                if server.outage.is_refusal_news(self.clock.now()) {
                    let event = observe::store_refuses(server.text.clone(), error.clone());
                    self.events.push(event);
                }
                return;
            }
            Trouble::Service | Trouble::Unanswered | Trouble::Passing => {}
        }
        // A failure that a process finds after it stood still says nothing about the server. A server that really
        // fails will fail again.
        if self.pause_until_now().is_some() {
            return;
        }
        // A server that answers for no name is needed by no caller.
        if !self.servers.is_named(server) {
            return;
        }
        let (begins, inbox) = server.outage.failed(self.clock.now(), what, error);
        if begins {
            self.events.push(observe::store_failing(
                server.text.clone(),
                error.clone(),
                self.is_built(),
            ));
            if !self.is_closed() {
                let counted = self.events.counted(Gauge::of_failing(&server.text));
                server.outage.count_outage(counted);
                // The map may have dropped the server meanwhile.
                self.note_left(server);
            }
        }
        if let Some(error) = inbox {
            self.tell_inbox_lost(server, error, false);
        }
    }

    /// Reports that the inbox is lost, and counts it until it is open.
    fn tell_inbox_lost(&self, server: &Server, error: StoreError, is_news: bool) {
        self.events.push(observe::inbox_lost(error, is_news));
        if !self.is_closed() {
            let counted = self.events.counted(Gauge::of_lost_inboxes());
            server.outage.count_lost_inbox(counted);
        }
    }

    /// Ends the counts of the outages. No caller of this node needs the servers any more.
    pub(crate) fn end_outage_counts(&self) {
        self.servers.all().for_each(|server| server.outage.end_counts());
    }

    /// Notes a failure if the input of a key reports one.
    pub(crate) fn note_failed_input(&self, server: &Server, input: &Input) {
        let error = match input {
            // The server answered, and another one serves the key.
            Input::Failed { failed, .. } if matches!(failed.executed, Executed::Elsewhere(_)) => return,
            Input::Failed { failed, .. } => failed.error.clone(),
            Input::Answered { reply, .. } => match reply {
                Reply::Refused(refusal) => StoreError::refused(refusal.clone()),
                Reply::Late => StoreError::new(StoreErrorKind::TimedOut, "requests reach the store too late"),
                _ => return,
            },
            _ => return,
        };
        self.note_server_failure(server, FailureKind::Request, &error);
    }

    /// Notes which run of the server answers on a new connection.
    pub(crate) fn note_run(&self, server: &Server, run_id: Option<&str>) {
        if run_id.is_some_and(|run_id| server.outage.is_changed(run_id)) {
            self.events.push(observe::server_changed(server.text.clone()));
        }
    }

    /// Notes whether grants are pushed.
    pub(crate) fn note_inbox(&self, server: &Server, state: InboxState) {
        let ended = server.outage.inbox_state(self.clock.now(), state);
        self.push_outage_end(server, ended);
    }

    /// Ends the outage of a server that the map of the cluster no longer names.
    pub(crate) fn note_left(&self, server: &Server) {
        if !self.servers.is_named(server) {
            let ended = server.outage.left(self.clock.now());
            self.push_outage_end(server, ended);
            server.outage.end_counts();
        }
    }

    fn push_outage_end(&self, server: &Server, ended: Option<OutageEnd>) {
        self.events.push(match ended {
            Some(OutageEnd::Outage(recovery)) => observe::store_recovered(server.text.clone(), recovery),
            Some(OutageEnd::InboxOnly(error, lasted)) => {
                self.tell_inbox_lost(server, error, true);
                match lasted {
                    Some(_) => observe::inbox_open(lasted),
                    None => return,
                }
            }
            None => return,
        });
    }

    /// Asks a server for a sign of life when no caller has a request for it, so that the end of its outage is
    /// noticed.
    fn probe_server(self: &Arc<Self>, server: &Arc<Server>) {
        let (probed, _) = server.probe();
        self.feed(server, probed);
        self.alarm.ring();
    }

    /// Reports that the inbox is lost, or was not opened.
    fn inbox_lost(self: &Arc<Self>, server: &Arc<Server>, error: StoreError, now: Instant) {
        // A server that refuses is reachable. A local store cannot be asked. A node without handles has no
        // waiters, so the loss is no news for it.
        let is_decided = matches!(error.kind(), StoreErrorKind::Refused(_))
            || !self.servers.store.abilities().remote
            || server.role == SessionRole::Inbox;
        if self.pause_until_now().is_some() {
            return self.tell_inbox_lost(server, error, false);
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
        self.tell_inbox_lost(server, error, is_news);
    }

    /// Handles an event of a session, at the time of the session's step. The session may have sent a request in that
    /// step, whose answer decides what the event means.
    pub(crate) fn session_event(self: &Arc<Self>, server: &Arc<Server>, event: SessionEvent, now: Instant) {
        match event {
            SessionEvent::Connected(took) => self.events.push(observe::connected(took)),
            SessionEvent::ConnectionLost { error, idle } => {
                // The loss of an idle connection is no trouble, unless the inbox broke with it.
                if !idle || server.outage.is_doubted() {
                    self.note_server_failure(server, FailureKind::Connection, &error);
                }
                self.events.push(observe::connection_lost(error));
            }
            SessionEvent::Answered { refused, sent } => {
                self.events.note_answer(now.since(sent));
                if !refused {
                    let ended = server.outage.answered(now, sent);
                    self.push_outage_end(server, ended);
                }
            }
            SessionEvent::Recovering(left, why) => {
                self.events
                    .push(observe::server_recovering(server.text.clone(), left, why.into()));
            }
            SessionEvent::InboxElsewhere => self.events.push(observe::inbox_elsewhere(server.text.clone())),
            SessionEvent::InboxOpen => {
                if let Some(away) = server.outage.inbox_open(now) {
                    self.events.push(observe::inbox_open(away));
                }
                if server.outage.is_on() && server.role != SessionRole::Inbox {
                    self.probe_server(server);
                }
            }
            SessionEvent::InboxLost(error) => self.inbox_lost(server, error, now),
            // The keys report these failures one by one, and the outage reports all of them.
            SessionEvent::TimedOut(_) | SessionEvent::Bystanders(_) | SessionEvent::Down(_) => {}
        }
    }
}
