//! Which server of a Redis Cluster serves which slot, as one node knows it, and which servers it believes.
//!
//! A [reading](reading::MapReading) asks several servers for the map, and the [map](map::ClusterMap) decides which of
//! their answers counts. No single server is believed: it may have been removed or cut off, or belong to another cluster.

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
