//! The state of the server.

use std::collections::HashMap;

use tenure::protocol::flaw::Plant;
use tenure::protocol::ledger::{JobRecord, Ledger};
use tenure::protocol::message::{LinkRequest, Push};
use tenure::protocol::session::step::Attempt;

use crate::time::{EPOCH_US, MS};

/// The end of a stall while the process is stopped.
pub(crate) const STOPPED: u64 = u64::MAX;
/// How often a message looks whether a stopped server goes on.
const STOPPED_LOOK: u64 = 20 * MS;

/// A server's process and its wall clock.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) ledger: Ledger,
    /// The number of its run.
    pub(crate) run: u64,
    /// The error of the wall clock, in µs.
    pub(crate) offset: i64,
    /// The server stands still until this time.
    pub(crate) stall: u64,
    /// The number of promotions so far when it began its latest recovery, if no wall clock was ahead of its own then.
    pub(crate) recovered_after: Option<u64>,
    /// Whether the server is restarting.
    pub(crate) down: bool,
    /// Whether a server of another cluster answers at its address meanwhile.
    pub(crate) stranger: bool,
    /// Refuses some requests until this time.
    pub(crate) refuses: u64,
    /// Refuses whole batches and connections until this time.
    pub(crate) loading: u64,
    /// Refuses writes until this time.
    pub(crate) read_only: u64,
    /// Refuses connections until this time.
    pub(crate) locked: u64,
    /// Ends every new connection soon after it opened, until this time.
    pub(crate) kills: u64,
    /// Is cut off from the other servers of its cluster until this time.
    pub(crate) bus_cut: u64,
    /// Whether the scripts are loaded.
    pub(crate) knows_scripts: bool,
    /// The subscription of each node: its life, its attempt, and whether pushes get through.
    pub(crate) listening: HashMap<usize, (u32, Attempt, bool)>,
    /// The nodes that are cut off this master, each until a time.
    pub(crate) cut_links: HashMap<usize, u64>,
    /// An older copy of the data.
    pub(crate) saved: Option<Ledger>,
    /// A backup of the jobs.
    pub(crate) copy: Vec<(usize, JobRecord)>,
    /// A buffer for pushes, kept for its memory.
    pub(crate) pushes: Vec<Push>,
}

impl Server {
    pub(crate) fn new(plant: Plant) -> Self {
        Server {
            ledger: Ledger::with_plant(plant),
            run: 0,
            offset: 0,
            stall: 0,
            recovered_after: None,
            down: false,
            stranger: false,
            refuses: 0,
            loading: 0,
            read_only: 0,
            locked: 0,
            kills: 0,
            bus_cut: 0,
            knows_scripts: false,
            listening: HashMap::new(),
            cut_links: HashMap::new(),
            saved: None,
            copy: Vec::new(),
            pushes: Vec::new(),
        }
    }

    /// Returns when a message may be handled that is held until `held`, at the earliest.
    pub(crate) fn look_at(now: u64, held: u64) -> u64 {
        if held == STOPPED { now + STOPPED_LOOK } else { held }
    }

    /// Records its run, as the first client did.
    pub(crate) fn note_run(&mut self) {
        let link = LinkRequest {
            run: &self.run(),
            epoch: None,
            number: None,
            recovery_ms: 0,
        };
        self.ledger.link(0, &link);
    }

    /// Returns the text of its run.
    pub(crate) fn run(&self) -> String {
        format!("run:{}", self.run)
    }

    /// Returns what the wall clock shows at a virtual time, in µs.
    pub(crate) fn clock_us(&self, now: u64) -> u64 {
        (EPOCH_US + now / 1000).saturating_add_signed(self.offset)
    }
}

/// The server that is about to become the master.
#[derive(Debug)]
pub(crate) enum Replica {
    /// A replica with this copy of its master's data.
    Copy(Box<Ledger>),
    /// A former master that was cut off and never demoted, with its own data.
    Returning(usize),
}
