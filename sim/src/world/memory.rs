//! What the laws remember.

use std::collections::{HashMap, HashSet};

use tenure::protocol::message::{ClaimId, Fence, GrantNumber, LeaseTimes};

use crate::world::election_memory::ElectionMemory;
use crate::world::latch_memory::LatchMemory;
use crate::world::tick_memory::TickMemory;

/// What the laws remember.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The time until which a known fault lasts.
    pub(crate) fault_until: u64,
    /// When the server's clock last made a small step.
    pub(crate) small_step_at: u64,
    /// When the server's clock was last stepped.
    pub(crate) stepped_at: u64,
    /// Whether the server's clock ever went back.
    pub(crate) stepped_back: bool,
    /// Whether the executed batch is a copy. Its original may have been refused, and be over for its node.
    pub(crate) is_copy: bool,
    pub(crate) ticks: TickMemory,
    pub(crate) latches: LatchMemory,
    pub(crate) elections: ElectionMemory,
    /// Whether the server ever came back empty.
    pub(crate) forgot: bool,
    /// The largest fence of each key that a caller was told.
    pub(crate) highest_fences: Vec<Option<Fence>>,
    /// The fences of writers alone.
    pub(crate) written: Vec<Option<Fence>>,
    /// The claims whose end was executed.
    pub(crate) ended: HashSet<ClaimId>,
    /// The claims whose end was executed, each with the server.
    pub(crate) ended_at: HashSet<(usize, ClaimId)>,
    /// The claims whose lease a server no longer had when it was asked to pass it on.
    pub(crate) told_gone: HashSet<ClaimId>,
    /// The claims whose leases an operator revoked.
    pub(crate) revoked: HashSet<ClaimId>,
    /// When a replica may next take over.
    pub(crate) next_failover: u64,
    /// The transfers that were adopted or released by another node than their own.
    pub(crate) ended_by_another: HashSet<ClaimId>,
    /// The leases that were asserted after their end: the server, the key and the claim of each.
    pub(crate) asserted_after_end: HashSet<(usize, usize, ClaimId)>,
    /// The batch at hand came on a link that the Sentinels have not confirmed.
    pub(crate) is_unconfirmed: bool,
    /// The server lost grants. Until this time holders may lack a record.
    pub(crate) lossy_until: u64,
    /// The server came back empty, and no request has shown that yet.
    pub(crate) emptied: bool,
    /// Grants that the server has lost.
    pub(crate) lost_grants: HashSet<GrantNumber>,
    /// Grants up to this number may have been lost.
    pub(crate) lossy_up_to: GrantNumber,
    /// Grants that are exempt from the laws.
    pub(crate) exempt_grants: HashSet<GrantNumber>,
    /// The highest grant so far.
    pub(crate) highest: GrantNumber,
    /// Fences up to this number may be out of order: the server lost its number and its clock went back.
    pub(crate) exempt_up_to: GrantNumber,
    /// The grant of each claim.
    pub(crate) granted: HashMap<ClaimId, GrantNumber>,
    /// When each claim was last heard, by the server's clock in ms, and its lease times.
    pub(crate) last_heard: HashMap<ClaimId, (u64, LeaseTimes)>,
    /// Since when each key has been free while a caller waits.
    pub(crate) free_since: Vec<Option<u64>>,
    /// When the key was first handed on since it was free, by the server's clock in ms.
    pub(crate) handed_on: Vec<Option<u64>>,
    /// The claims whose recall has arrived.
    pub(crate) recalled: HashSet<ClaimId>,
    /// Since when each record or entry is not pursued.
    pub(crate) orphans: HashMap<(usize, ClaimId), u64>,
    /// The second of the last check of request counts.
    pub(crate) second: u64,
}

impl Memory {
    pub(crate) fn new(keys: usize) -> Self {
        Memory {
            fault_until: 0,
            small_step_at: 0,
            stepped_at: 0,
            stepped_back: false,
            is_copy: false,
            ticks: TickMemory::default(),
            latches: LatchMemory::default(),
            elections: ElectionMemory::default(),
            forgot: false,
            highest_fences: vec![None; keys],
            written: vec![None; keys],
            ended: HashSet::new(),
            ended_at: HashSet::new(),
            told_gone: HashSet::new(),
            revoked: HashSet::new(),
            next_failover: 0,
            ended_by_another: HashSet::new(),
            asserted_after_end: HashSet::new(),
            is_unconfirmed: false,
            lossy_until: 0,
            emptied: false,
            lost_grants: HashSet::new(),
            lossy_up_to: GrantNumber(0),
            exempt_grants: HashSet::new(),
            highest: GrantNumber(0),
            exempt_up_to: GrantNumber(0),
            granted: HashMap::new(),
            last_heard: HashMap::new(),
            free_since: vec![None; keys],
            handed_on: vec![None; keys],
            recalled: HashSet::new(),
            orphans: HashMap::new(),
            second: 0,
        }
    }

    /// Returns the largest fence of a key that a caller was told.
    pub(crate) fn highest_fence(&self, key: usize) -> Option<Fence> {
        self.highest_fences[key]
    }
}
