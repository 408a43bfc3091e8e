//! The state of a cluster: hash slots, each with a ledger, at one of several servers.

use std::collections::BTreeSet;

use tenure::protocol::cluster::ClusterServer;
use tenure::protocol::flaw::Plant;
use tenure::protocol::ledger::Ledger;
use tenure::protocol::message::{Batch, Reply};
use tenure::protocol::session::step::BatchId;

use crate::time::MS;

/// The clocks of two servers are never apart by more than twice this.
pub(crate) const CLOCK_BAND_US: i64 = 60_000;

/// The same for the masters of a quorum, in whose worlds no slot moves with its scores.
pub(crate) const QUORUM_CLOCK_BAND_US: i64 = 120_000;

/// A cluster. Worlds with one server have no hash slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The number of servers of a cluster, or of masters of a quorum; 0 in a world with one server.
    pub(crate) servers: usize,
    pub(crate) slots: Vec<HashSlot>,
    /// Grows with each move.
    pub(crate) epoch: u64,
    /// The mean time between two changes, in ns.
    pub(crate) pause: u64,
    /// The hash slot whose ledger is with the server at hand.
    pub(crate) in_hand: Option<usize>,
    /// The lagging copy that is about to replace a server.
    pub(crate) replica: Option<LaggingCopy>,
    /// The batches of which some requests are executed with their records alone.
    pub(crate) joins: Vec<Join>,
    /// The generator for all choices of clusters, so that nothing else depends on them.
    pub(crate) rng: fastrand::Rng,
}

/// A hash slot: its keys, its clock and its recovery move from server to server.
#[derive(Debug)]
pub(crate) struct HashSlot {
    pub(crate) ledger: Ledger,
    /// The server that serves it.
    pub(crate) server: usize,
    /// Where it moves to, while it is on its way.
    pub(crate) half: Option<HalfMove>,
    /// The servers that it has left.
    pub(crate) left: BTreeSet<usize>,
    /// No server serves it until this time.
    pub(crate) unserved_until: u64,
    /// Until this time a move may delay its callers.
    pub(crate) settles_at: u64,
}

/// A hash slot on its way.
#[derive(Debug)]
pub(crate) struct HalfMove {
    pub(crate) target: usize,
    /// The keys whose record the target has.
    pub(crate) moved: BTreeSet<usize>,
}

/// What a replica of a server has of the server's hash slots.
#[derive(Debug)]
pub(crate) struct LaggingCopy {
    pub(crate) server: usize,
    pub(crate) ledgers: Vec<(usize, Ledger)>,
}

/// A batch whose replies the link collects.
#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) conn: usize,
    pub(crate) id: BatchId,
    pub(crate) time: u64,
    pub(crate) batch: Batch,
    pub(crate) replies: Vec<Option<Reply>>,
}

impl Cluster {
    /// Creates the hash slots for a number of keys; `None`: a world with one server.
    pub(crate) fn new(seed: u64, keys: Option<usize>, plant: Plant) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5107);
        let mut servers = 0;
        let mut slots = Vec::new();
        let mut pause = 0;
        if let Some(keys) = keys {
            servers = rng.usize(2..=3);
            pause = [60, 300, 1_500][rng.usize(0..3)] * MS;
            slots.resize_with(rng.usize(1..=keys.min(3)), || HashSlot {
                ledger: Ledger::with_plant(plant),
                server: rng.usize(0..servers),
                half: None,
                left: BTreeSet::new(),
                unserved_until: 0,
                settles_at: 0,
            });
        }
        Cluster {
            servers,
            slots,
            epoch: 1,
            pause,
            in_hand: None,
            replica: None,
            joins: Vec::new(),
            rng,
        }
    }

    /// Returns half of the greatest distance between the clocks of two servers, in µs.
    pub(crate) fn clock_band(&self) -> i64 {
        match self.slots.is_empty() {
            true => QUORUM_CLOCK_BAND_US,
            false => CLOCK_BAND_US,
        }
    }

    /// Draws the errors of the servers' wall clocks, in µs. Later steps only lead upwards, to `CLOCK_BAND`.
    pub(crate) fn offsets(&mut self) -> Vec<i64> {
        let (band, rng) = (self.clock_band(), &mut self.rng);
        (0..self.servers).map(|_| rng.i64(-band..=0)).collect()
    }

    /// Returns a server at its address.
    pub(crate) fn member(server: usize) -> ClusterServer {
        ClusterServer {
            node_id: format!("server {server}").into(),
            address: (String::new(), server as u16),
        }
    }

    /// Returns a server of another cluster, at the address of a server.
    pub(crate) fn stranger(server: usize) -> ClusterServer {
        ClusterServer {
            node_id: "stranger".into(),
            ..Cluster::member(server)
        }
    }

    /// Returns until when moves may delay callers.
    pub(crate) fn settles_at(&self) -> u64 {
        self.slots.iter().map(|slot| slot.settles_at).max().unwrap_or(0)
    }
}
