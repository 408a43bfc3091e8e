//! What the laws remember of latches.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tenure::protocol::message::Version;

/// The id of a latch call.
pub(crate) type LatchId = Arc<[u8]>;

/// What the laws remember of the latch.
#[derive(Debug, Default)]
pub(crate) struct LatchMemory {
    /// The number of calls so far.
    pub(crate) calls: u64,
    /// The call of each caller (slot, life, index).
    pub(crate) made: HashMap<(usize, u32, usize), LatchCall>,
    /// When each call was made. Calls of workers that start twice are not here.
    pub(crate) called: HashMap<LatchId, u64>,
    /// The generation in which each call counted last.
    pub(crate) counted: HashMap<LatchId, Version>,
    /// When each generation was set.
    pub(crate) set: HashMap<Version, u64>,
    /// The calls that changed the latch.
    pub(crate) executed: HashSet<LatchId>,
    /// When the latch was last seen at zero.
    pub(crate) zero_until: Option<u64>,
    /// When the latch came to zero.
    pub(crate) zeros: Vec<u64>,
    /// Since when the latch has been at zero or unset.
    pub(crate) resting: Option<u64>,
}

/// A latch call that was sent.
#[derive(Debug, Clone)]
pub(crate) struct LatchCall {
    pub(crate) id: LatchId,
    pub(crate) at: u64,
}
