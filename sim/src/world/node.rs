//! The state of one node.

use std::collections::{BTreeMap, HashMap, HashSet};

use tenure::protocol::key::shard::Shard;
use tenure::protocol::message::{ClaimNumber, NodeId, Request, TickTime};
use tenure::protocol::session::Session;
use tenure::protocol::session::step::{Attempt, Probe};
use tenure::protocol::step::Tag;
use tenure::protocol::time::Instant;

use crate::planted::Planted;
use crate::world::caller::Caller;
use crate::world::event::Event;
use crate::world::inbox::Inbox;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// The number of the process in this slot. Events for an earlier one are void.
    pub(crate) life: u32,
    pub(crate) shard: Shard<Planted>,
    pub(crate) session: Session<Planted>,
    /// The clock reading at the session's last input or step.
    pub(crate) session_at: Instant,
    pub(crate) alive: bool,
    pub(crate) paused: Option<u64>,
    pub(crate) paused_at: u64,
    pub(crate) closing: bool,
    pub(crate) cut_until: u64,
    pub(crate) clock: Clock,
    /// The connections that the session opened and did not close.
    pub(crate) conns: Vec<(Attempt, usize)>,
    /// The latest connection that opened.
    pub(crate) newest_conn: Option<Attempt>,
    pub(crate) inbox: Inbox,
    pub(crate) wake_at: Option<u64>,
    pub(crate) step_at: Option<u64>,
    pub(crate) backlog: [Vec<Event>; 3],
    pub(crate) callers: Vec<Caller>,
    /// The callers that have not ended.
    pub(crate) live: Vec<usize>,
    /// The requests that the session has not reported yet: since when, not counting pauses, and their key.
    pub(crate) requests: BTreeMap<(ClaimNumber, u32), (u64, usize)>,
    /// The calls that were answered. They must not be sent again.
    pub(crate) answered: HashSet<ClaimNumber>,
    /// The queued claims and releases that the session has not sent, in order.
    pub(crate) unsent: Vec<(Tag, Request)>,
    pub(crate) probes: BTreeMap<Probe, u64>,
    pub(crate) probed: u64,
    pub(crate) sends: u32,
    /// The number of connections and inboxes that it opened in this second.
    pub(crate) opened: u32,
    pub(crate) asked: u32,
    /// The error of its wall clock, in ms.
    pub(crate) skew_ms: i64,
    pub(crate) newest: Option<TickTime>,
    /// The ticks that its scheduler pursues: job and tick.
    pub(crate) pursuits: Vec<(usize, Option<TickTime>)>,
    pub(crate) retired: bool,
    /// Whether it was told that a job's mark lies ahead of the server's clock.
    pub(crate) mark_ahead: bool,
    /// The tick that must run before each pursued one, as the store reported it.
    pub(crate) after: HashMap<(usize, Option<TickTime>), TickTime>,
    /// The latest tick of each job that it knows to be over.
    pub(crate) over: HashMap<usize, TickTime>,
}

/// A node's own clock, with its own start and rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) born: u64,
    pub(crate) base: u64,
    /// Parts in a thousand.
    pub(crate) rate: u64,
}

impl Clock {
    pub(crate) fn local(&self, now: u64) -> Instant {
        Instant::from_nanos(self.base + (now - self.born) * self.rate / 1000)
    }

    /// Returns the first virtual time at which the clock shows `at`.
    pub(crate) fn truth(&self, at: Instant) -> u64 {
        self.born + (at.as_nanos().saturating_sub(self.base) * 1000).div_ceil(self.rate)
    }
}
