//! The connection as its session sees it.

use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::session::step::Attempt;
use crate::protocol::time::Instant;

/// One to a server, at the most. Its attempts are numbered, so that late news of an old one is told apart.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Connection {
    Closed {
        since: Instant,
        /// Not to be opened again before.
        until: Instant,
    },
    Opening {
        attempt: Attempt,
        began: Instant,
    },
    Open {
        attempt: Attempt,
        /// Something was answered on it.
        proven: bool,
        /// When it was last used or heard.
        used: Instant,
    },
}

impl Connection {
    /// Returns when this attempt to open it began, if it is under way.
    pub(crate) fn opening_since(&self, attempt: Attempt) -> Option<Instant> {
        match self {
            Connection::Opening { attempt: ours, began } if *ours == attempt => Some(*began),
            _ => None,
        }
    }
}

pub(crate) fn next_attempt(ids: &mut u64) -> Attempt {
    *ids += 1;
    Attempt(*ids)
}

/// After this a connection is of no more use.
pub(crate) fn is_broken(error: &StoreError) -> bool {
    match error.kind() {
        StoreErrorKind::Refused(refusal) => matches!(refusal, StoreRefusal::ReadOnly | StoreRefusal::NoAuth),
        _ => true,
    }
}
