//! What a node remembers of telling operators of itself.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use tokio::sync::Notify;

use crate::driver::notes::Notes;

/// Whether this node tells of itself.
#[derive(Debug, Default)]
pub(crate) struct PresenceState {
    /// Notified when a caller asks for a lease.
    pub(crate) wanted: Notify,
    /// What callers noted on their leases.
    pub(crate) notes: Arc<Notes>,
    /// A server may have been told.
    pub(super) may_be_told: AtomicBool,
    /// Set at the shutdown.
    pub(super) is_over: AtomicBool,
    /// A refusal was reported.
    pub(super) has_warned: AtomicBool,
    /// When the node was built, in milliseconds since 1970.
    pub(super) started_ms: u64,
}

impl PresenceState {
    pub(crate) fn new(now: SystemTime) -> Self {
        let now = now.duration_since(SystemTime::UNIX_EPOCH);
        PresenceState {
            started_ms: now.unwrap_or_default().as_millis() as u64,
            ..PresenceState::default()
        }
    }
}
