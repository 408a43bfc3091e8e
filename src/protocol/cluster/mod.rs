//! Which server of a Redis Cluster serves which slot, as one node knows it, and which servers it believes.
//!
//! A [reading](reading::MapReading) asks several servers for the map, and the [map](map::ClusterMap) decides which of
//! their answers counts. No single server is believed: it may have been removed or cut off, or belong to another cluster.
//!
//! # The way of a request on a cluster
//!
//! 1. Each time a request is sent, the store says which server serves its name: the map has a server for each slot
//!    (`store/redis/mod.rs` `server`, `store/redis/names.rs` `slot`, `store/redis/slot_map.rs` `server`). Each server has a session of its own
//!    (`driver/servers.rs` `make`).
//! 2. One more session has the inbox, at any of the servers. The other sessions tell it when it is needed or in doubt
//!    (`protocol/session/step.rs` `SessionRole`, `protocol/session/reconnect.rs` `give_up`). A push that is missing moves the inbox to another
//!    server (`protocol/session/inbox.rs` `missed_push`).
//! 3. The link splits a batch by slot, and sends one script call for each slot in one write (`store/redis/slots.rs` `apply`, `split`, `call`).
//!    Each slot has its own clock (`store/redis/names.rs` `push_clock`).
//! 4. If a server does not serve a slot, the requests of that slot were not executed. Their machines are told so
//!    (`protocol/session/batch_replies.rs` `answered`), and ask for them again: at once after a move, else after a pause that grows
//!    (`protocol/redirects.rs` `note`, `protocol/key/failures.rs` `ask_elsewhere`, `protocol/call/calls.rs` `call_elsewhere`). A
//!    claim is asked for under a fresh number.
//! 5. After a third of the lease, a redirection is a failure as any other, except for the first `MOVED`, which ends a long move.
//! 6. `MOVED` corrects the map at once; one task reads the whole map (`protocol/cluster/map.rs` `correct`, `store/redis/cluster.rs` `watch`, `read`). When the map changes,
//!    queued requests for names that moved are asked for again (`driver/driver.rs` `map_changed`, `protocol/session/reconnect.rs`
//!    `release_moved`).
//! 7. No single server is believed about the map. A reading asks several (`protocol/cluster/reading.rs` `next_server`), an answer must share
//!    a node id with the known map (`answered`), and of the cluster nearest to that map (`nearest`) epochs and votes decide (`decide`, `protocol/cluster/map.rs` `take`). A server is a node
//!    id at an address: a link to another server than that of the map is refused (`protocol/cluster/map.rs` `confirm`, `store/redis/cluster.rs` `open`, `check`).
//! 8. While a slot is half moved, a script finds only some of its names. An owner's renewal or leave is then executed with its record alone, at the
//!    source and then at the target (`protocol/redirects.rs` `after_script`, `after_alone`, `protocol/ledger/alone.rs` `apply_alone`,
//!    `store/redis/slots.rs` `apply_alone`, `ask_target`). On Redis: `store/redis/lua/alone.lua`. "Gone" is believed from
//!    the target only (`protocol/redirects.rs` `is_believed`).

use std::sync::Arc;

pub mod map;
pub mod reading;
#[cfg(test)]
mod tests;

/// The server of a store that answers for a name. A single server has the id 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u16);

/// Host and port.
pub type Address = (String, u16);

/// The node id by which the servers of a cluster know a server. Empty if unknown.
pub type ClusterNodeId = Arc<str>;

/// A server of a cluster: a node id, at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterServer {
    /// Its node id.
    pub node_id: ClusterNodeId,
    /// Where it is.
    pub address: Address,
}

/// A range of slots, and the master that serves them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRange {
    /// The first slot.
    pub first: u16,
    /// The last slot, included.
    pub last: u16,
    /// The server.
    pub master: ClusterServer,
}

/// What a server tells of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapAnswer {
    /// The slots that are served, sorted.
    pub ranges: Vec<SlotRange>,
    /// The replicas of the masters.
    pub replicas: Vec<ClusterServer>,
    /// Set if the server believes that its cluster serves nothing (`cluster_state:fail`). A server that is cut off
    /// from most masters believes so.
    pub has_failed: bool,
    /// The highest epoch that the server knows (`cluster_current_epoch`). A promotion and a moved slot raise it. `None` if
    /// the server does not tell it.
    pub epoch: Option<u64>,
}

impl MapAnswer {
    /// Returns the servers that the answer names.
    pub fn members(&self) -> impl Iterator<Item = &ClusterServer> {
        let masters = self.ranges.iter().map(|range| &range.master);
        masters.chain(&self.replicas)
    }
}
