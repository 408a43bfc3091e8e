//! The errors of callers that get no lease, or no answer to a call.

use std::time::Duration;

use crate::driver::handle::Handle;
use crate::driver::outage::FailureKind;
use crate::error::{ClosedCause, Error, LostCause, StoreError};
use crate::key::Key;
use crate::protocol::message::Name;
use crate::protocol::step::AcquireError;
use crate::protocol::time::Instant;

/// Returns the error of a caller that was denied after it had `waited`, where at most `limit` callers may wait.
pub(crate) fn error(
    handle: &Handle,
    name: &Name,
    why: AcquireError,
    (limit, waited): (usize, Duration),
) -> Error {
    let key = name.key.clone();
    match why {
        AcquireError::QueueFull { waiting } => Error::QueueFull { key, waiting, limit },
        AcquireError::NodeFull => Error::NodeFull {
            key,
            waiting: handle.node().waiting(),
            limit: handle.options().max_waiters_per_node,
        },
        AcquireError::Store(source) => Error::Store { key, source },
        AcquireError::Unanswered(source) => Error::Unanswered { key, source },
        AcquireError::Closed => lost(key, LostCause::Shutdown),
        AcquireError::Lost(cause) => lost(key, cause),
        AcquireError::Busy => Error::Busy { key, waited },
    }
}

/// Returns the error of a caller whose lease was lost before it had a guard. If the node is closed or forked, the error says so.
pub(crate) fn lost(key: Key, cause: LostCause) -> Error {
    let why = match cause {
        LostCause::Forked => ClosedCause::Forked,
        LostCause::Shutdown => ClosedCause::Shutdown,
        cause => return Error::Lost { key, cause },
    };
    Error::Closed { key, why }
}

/// Turns the error of a busy key into `None`: a busy key is no error for a caller that does not wait.
pub(crate) fn unless_busy<G>(answer: Result<G, Error>) -> Result<Option<G>, Error> {
    match answer {
        Ok(guard) => Ok(Some(guard)),
        Err(Error::Busy { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the error of a caller that entered at `since` and gives up now. It says that the key is held only if that is known.
pub(crate) fn gave_up(handle: &Handle, name: &Name, since: Instant, waited: Duration) -> Error {
    let (node, key) = (handle.node(), name.key.clone());
    let source = match node.why_waiting(name, since) {
        Ok(()) => return Error::Busy { key, waited },
        // The server answers.
        Err(Some(source)) if source.is_recovering() => source,
        Err(Some(source)) => {
            if let Some(server) = node.servers.alone_for(name) {
                node.note_server_failure(server, FailureKind::Caller, &source);
            }
            source
        }
        // The wait was so short that no request is late yet: the server does not count as failing.
        Err(None) => StoreError::premature(format_args!("no answer within the wait of {waited:?}")),
    };
    Error::Store { key, source }
}

/// Checks the length of a key.
///
/// # Errors
/// A key that is empty or too long.
pub(crate) fn check_key(handle: &Handle, key: &Key) -> Result<(), Error> {
    let (length, limit) = (key.as_bytes().len(), handle.options().max_key);
    if (1..=limit).contains(&length) {
        return Ok(());
    }
    let key = key.clone();
    Err(Error::Key { key, length, limit })
}
