//! The state of a session's connection.

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::session::step::Attempt;
use crate::protocol::time::Instant;

/// The one connection of a session. Each attempt to open it has a number, so that late news of an old attempt is
/// recognized.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Connection {
    Closed {
        since: Instant,
        /// The earliest time of the next attempt.
        until: Instant,
    },
    Opening {
        attempt: Attempt,
        began: Instant,
    },
    Open {
        attempt: Attempt,
        /// Set when the server has answered on this connection.
        proven: bool,
        /// When the connection was last used or heard.
        used: Instant,
    },
}

impl Connection {
    /// Returns when this attempt began, if it is the current one.
    pub(crate) fn opening_since(&self, attempt: Attempt) -> Option<Instant> {
        match self {
            Connection::Opening {
                attempt: current,
                began,
            } if *current == attempt => Some(*began),
            _ => None,
        }
    }
}

pub(crate) fn next_attempt(ids: &mut u64) -> Attempt {
    *ids += 1;
    Attempt(*ids)
}

/// Returns whether the connection cannot be used after this error.
pub(crate) fn is_broken(error: &StoreError) -> bool {
    match error.kind() {
        StoreErrorKind::Refused(refusal) => matches!(refusal, StoreRefusal::ReadOnly | StoreRefusal::NoAuth),
        _ => true,
    }
}
