//! The state of one subscription.

use std::collections::BTreeMap;

use tenure::protocol::message::ClaimNumber;
use tenure::protocol::session::step::Attempt;

/// A node's subscription, as the node sees it.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// The subscription that is opening or open.
    pub(crate) sub: Option<Attempt>,
    /// The server that it leads to.
    pub(crate) to: usize,
    /// Since when it leads to another server than the connection.
    pub(crate) left_since: Option<u64>,
    /// Whether it was asked for a sign of life that it has not shown.
    pub(crate) asked: bool,
    /// When another session of the node lost a connection, if the inbox was not asked since.
    pub(crate) doubtful_since: Option<u64>,
    /// Whether it is open.
    pub(crate) open: bool,
    /// Whether the node ever had an open subscription.
    pub(crate) had_one: bool,
    /// The grants that a silent subscription did not deliver.
    pub(crate) silent: Option<MissedPushes>,
    /// When the last push arrives.
    pub(crate) last: u64,
    /// Pushes are delayed until this time.
    pub(crate) held_until: u64,
}

/// Grants whose push was not delivered.
#[derive(Debug, Default)]
pub(crate) struct MissedPushes {
    /// When each claim was granted.
    pub(crate) grants: BTreeMap<ClaimNumber, u64>,
    /// When the node first found such a grant that was old enough to have been pushed.
    pub(crate) found: Option<u64>,
}
