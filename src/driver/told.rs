//! What happens between a node and a server: what of it is an event, and what only counts for an outage.

use crate::driver::events::DriverEvent;
use crate::driver::node::Node;
use crate::driver::outage::Failed;
use crate::driver::servers::Server;
use crate::error::{StoreError, StoreErrorKind};
use crate::protocol::message::Reply;
use crate::protocol::session_step::SessionEvent;
use crate::protocol::step::Input;

impl Node {
    /// Something failed at a server.
    pub(crate) fn failed(&self, server: &Server, what: Failed, error: &StoreError) {
        if server.outage.failed(self.clock.now(), what, error) {
            self.events.push(DriverEvent::StoreFailing {
                server: server.text.clone(),
                error: error.clone(),
            });
        }
    }

    /// What a key is told may be that the store fails.
    pub(crate) fn note_failure(&self, server: &Server, input: &Input) {
        match input {
            Input::Failed { error, .. } => self.failed(server, Failed::Request, error),
            Input::Answered {
                reply: Reply::Refused(refusal),
                ..
            } => self.failed(server, Failed::Request, &StoreError::refused(refusal.clone())),
            Input::Answered {
                reply: Reply::Late, ..
            } => {
                let error = StoreError::new(StoreErrorKind::TimedOut, "requests reach the store too late");
                self.failed(server, Failed::Request, &error);
            }
            _ => {}
        }
    }

    /// What happened between this node and a server.
    pub(crate) fn session_event(&self, server: &Server, event: SessionEvent) {
        let now = || self.clock.now();
        self.events.push(match event {
            SessionEvent::Connected(took) => DriverEvent::Connected { took },
            SessionEvent::ConnectionLost { error, idle } => {
                if !idle {
                    self.failed(server, Failed::Connection, &error);
                }
                DriverEvent::ConnectionLost { error }
            }
            SessionEvent::Answered { refused: false } => match server.outage.answered(now()) {
                Some((away, cost)) => DriverEvent::StoreRecovered {
                    server: server.text.clone(),
                    away,
                    cost,
                },
                None => return,
            },
            SessionEvent::InboxOpen => DriverEvent::InboxOpen {
                away: server.outage.inbox_open(now()),
            },
            SessionEvent::InboxLost(error) => DriverEvent::InboxLost {
                // Nobody waits at a node that nobody holds on to.
                is_news: !self.is_abandoned() && server.outage.inbox_lost(now()),
                error,
            },
            // Each is told with its key, and all of them with their server.
            SessionEvent::Answered { .. }
            | SessionEvent::TimedOut(_)
            | SessionEvent::Bystanders(_)
            | SessionEvent::Down(_) => return,
        });
    }
}
