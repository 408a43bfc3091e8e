//! What the laws remember of elections.

use std::collections::{HashMap, HashSet};

use tenure::protocol::message::{ClaimId, GrantNumber, LeaseTimes, NodeId, Version};
use tenure::protocol::time::Instant;

/// A caller: slot, life, index.
pub(crate) type CallerId = (usize, u32, usize);

/// What the laws remember of elections.
#[derive(Debug, Default)]
pub(crate) struct ElectionMemory {
    /// The node that led by each grant, at the server.
    pub(crate) led: HashMap<(usize, GrantNumber), NodeId>,
    /// The grant of each claim whose node knows that it leads.
    pub(crate) leads: HashMap<ClaimId, GrantNumber>,
    /// The sequence number of the latest proclamation under each grant, at the server.
    pub(crate) proclaimed: HashMap<(usize, GrantNumber), u64>,
    /// The number of proclamations that were sent.
    pub(crate) seq: u64,
    /// The sequence number of the value that each claim campaigned with.
    pub(crate) campaigned: HashMap<ClaimId, u64>,
    /// The grants of leaders that campaigned with a value.
    pub(crate) won_with_value: HashSet<(usize, GrantNumber)>,
    /// All observers.
    pub(crate) observers: Vec<Observer>,
    /// The rest of each resting caller.
    pub(crate) rests: HashMap<CallerId, RestPeriod>,
    /// When a leader may next be killed.
    pub(crate) next_kill: u64,
}

/// A process that asks for the leader again and again.
#[derive(Debug)]
pub(crate) struct Observer {
    /// Where the observer runs.
    pub(crate) slot: usize,
    pub(crate) life: u32,
    pub(crate) key: usize,
    /// The lease times of its questions.
    pub(crate) term: LeaseTimes,
    /// Whether its last question failed.
    pub(crate) failed: bool,
    /// The version and the news that it was told last.
    pub(crate) known: Option<(Version, LeaderNews)>,
    /// The latest leader that it was told of.
    pub(crate) latest: LeaderNews,
    /// The caller that asks for it; `None` between two questions.
    pub(crate) asking_caller: Option<usize>,
    /// Since when its knowledge differs from the truth while it asks, and the truth.
    pub(crate) differs: Option<(u64, LeaderNews)>,
}

/// The grant of a leader, and the sequence number of its last proclamation.
pub(crate) type LeaderNews = Option<(GrantNumber, Option<u64>)>;

/// When a resting caller may claim, by its node's clock.
#[derive(Debug)]
pub(crate) struct RestPeriod {
    /// Before this time it must not claim.
    pub(crate) earliest: Instant,
    /// At this time it claims, unless its process is stopped.
    pub(crate) latest: Instant,
}
