//! The message of a transferred lease.

use tenure::protocol::message::{ClaimId, Mode};
use tenure::protocol::step::Ticket;

/// The message of a transferred lease.
#[derive(Debug)]
pub(crate) struct TransferMessage {
    pub(crate) key: usize,
    pub(crate) of: ClaimId,
    pub(crate) mode: Mode,
    /// The lease lasts until this time, unless a caller ends it.
    pub(crate) until: u64,
    /// The caller that adopted it.
    pub(crate) adopted: Option<Ticket>,
    /// The number of callers that asked to adopt or end it.
    pub(crate) asked: u32,
}
