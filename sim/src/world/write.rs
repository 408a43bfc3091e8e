//! One lease of a write.

use tenure::protocol::message::Fence;

/// One of the leases of a write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteLease {
    pub(crate) key: usize,
    pub(crate) fence: Fence,
}
