//! The state of one node.

use std::collections::{BTreeMap, HashMap, HashSet};

use tenure::protocol::cluster::map::ClusterMap;
use tenure::protocol::key::shard::Shard;
use tenure::protocol::message::{ClaimNumber, NodeId, Request, TickTime};
use tenure::protocol::session::Session;
use tenure::protocol::session::step::{Attempt, Probe};
use tenure::protocol::step::Tag;
use tenure::protocol::time::Instant;

use crate::world::caller::Caller;
use crate::world::event::Event;
use crate::world::inbox::Inbox;
use crate::world::sentinels::SentinelsSeen;

/// One process in a slot.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// The number of the process in this slot. Events for an earlier one are void.
    pub(crate) life: u32,
    pub(crate) shard: Shard,
    /// The session of each server, and in a cluster one more, which has the inbox.
    pub(crate) sessions: Vec<NodeSession>,
    /// The server that the node takes each hash slot to be at. A session belongs to an address.
    pub(crate) map: ClusterMap,
    /// Whether the process runs or is stopped.
    pub(crate) alive: bool,
    /// Until when the process is stopped; `None` while it runs.
    pub(crate) paused: Option<u64>,
    /// When the process was last stopped.
    pub(crate) paused_at: u64,
    /// Whether the node was closed.
    pub(crate) closing: bool,
    /// Until when the node is cut off the network.
    pub(crate) cut_until: u64,
    pub(crate) clock: Clock,
    pub(crate) inbox: Inbox,
    pub(crate) sentinels: SentinelsSeen,
    /// When the next timer fires.
    pub(crate) wake_at: Option<u64>,
    /// When the driver next steps the session.
    pub(crate) step_at: Option<u64>,
    /// The events held back while the process is stopped, by source.
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
    /// The pending probes, and since when.
    pub(crate) probes: BTreeMap<Probe, u64>,
    /// The number of probes so far.
    pub(crate) probed: u64,
    /// The number of requests queued in this second.
    pub(crate) sends: u32,
    /// The number of connections and inboxes that it opened in this second.
    pub(crate) opened: u32,
    /// The number of callers that came in this second.
    pub(crate) asked: u32,
    /// The error of its wall clock, in ms.
    pub(crate) skew_ms: i64,
    /// The newest tick that its scheduler saw.
    pub(crate) newest: Option<TickTime>,
    /// The ticks that its scheduler pursues: job and tick.
    pub(crate) pursuits: Vec<(usize, Option<TickTime>)>,
    /// Whether its scheduler is shut down.
    pub(crate) retired: bool,
    /// Whether it was told that a job's mark lies ahead of the server's clock.
    pub(crate) mark_ahead: bool,
    /// The looks of a job for which an open tick is too old.
    pub(crate) picky_looks: HashSet<usize>,
    /// The tick that must run before each pursued one, as the store reported it.
    pub(crate) predecessors: HashMap<(usize, Option<TickTime>), TickTime>,
    /// The latest tick of each job that it knows to be over.
    pub(crate) over: HashMap<usize, TickTime>,
}

/// A session of a node with its connections.
#[derive(Debug)]
pub(crate) struct NodeSession {
    pub(crate) session: Session,
    /// The clock reading at the session's last input or step.
    pub(crate) at: Instant,
    /// The connections that the session opened and did not close.
    pub(crate) conns: Vec<(Attempt, usize)>,
    /// The latest connection that opened.
    pub(crate) newest_conn: Option<Attempt>,
}

impl NodeSession {
    pub(crate) fn new(session: Session) -> Self {
        NodeSession {
            session,
            at: Instant::default(),
            conns: Vec::new(),
            newest_conn: None,
        }
    }
}

impl Node {
    /// Returns the connections that the sessions opened and did not close.
    pub(crate) fn conns(&self) -> Vec<usize> {
        let conns = self.sessions.iter().flat_map(|of| &of.conns);
        conns.map(|(_, conn)| *conn).collect()
    }

    /// Returns the index of the session that has the inbox.
    pub(crate) fn inbox_session(&self) -> usize {
        self.sessions.len() - 1
    }
}

/// A node's own clock, with its own start and rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    /// When the process started.
    pub(crate) started_at: u64,
    /// What the clock showed at that time, in ns.
    pub(crate) start_reading: u64,
    /// Parts in a thousand.
    pub(crate) rate: u64,
}

impl Clock {
    /// Returns what the clock shows at a virtual time.
    pub(crate) fn local(&self, now: u64) -> Instant {
        Instant::from_nanos(self.start_reading + (now - self.started_at) * self.rate / 1000)
    }

    /// Returns the first virtual time at which the clock shows `at`.
    pub(crate) fn truth(&self, at: Instant) -> u64 {
        self.started_at + (at.as_nanos().saturating_sub(self.start_reading) * 1000).div_ceil(self.rate)
    }
}
