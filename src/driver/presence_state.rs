//! What a node remembers of telling operators of itself.

use std::sync::atomic::AtomicBool;

use tokio::sync::Notify;

/// Whether this node tells of itself.
#[derive(Debug, Default)]
pub(crate) struct PresenceState {
    /// Notified when a caller asks for a lease.
    pub(crate) wanted: Notify,
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
    #[allow(clippy::disallowed_methods, reason = "operators read the date")]
    pub(crate) fn new() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let started_ms = u64::try_from(now.tv_sec).unwrap_or(0) * 1000 + now.tv_nsec as u64 / 1_000_000;
        PresenceState {
            started_ms,
            ..PresenceState::default()
        }
    }
}
