//! The server: its process, its wall clock, and the ledger, which is the one that ships.

use std::collections::HashMap;

use tenure::error::StoreRefusal;
use tenure::protocol::ledger::{Branch, JobRecord, Ledger};
use tenure::protocol::message::{Batch, BatchReply, Push, Reply, Rule, Verb};
use tenure::protocol::session::step::Attempt;

use crate::coverage::Seen;
use crate::planted::Planted;
use crate::world::World;

/// The server's process and its wall clock.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) ledger: Ledger<Planted>,
    /// What the wall clock shows beyond true time, in µs.
    pub(crate) offset: i64,
    pub(crate) stall: u64,
    pub(crate) down: bool,
    /// Refuses some requests until then.
    pub(crate) refuses: u64,
    /// Refuses whole batches, and connections.
    pub(crate) loading: u64,
    pub(crate) read_only: u64,
    /// Refuses connections.
    pub(crate) locked: u64,
    /// Ends whatever was opened, soon after.
    pub(crate) kills: u64,
    pub(crate) knows_scripts: bool,
    /// Who listens: which life, by which subscription, and whether anything gets there.
    pub(crate) listening: HashMap<usize, (u32, Attempt, bool)>,
    /// What was known of each job a while ago.
    pub(crate) copy: Vec<(usize, JobRecord)>,
    pushes: Vec<Push>,
    branches: Vec<Branch>,
}

pub(crate) const EPOCH_US: u64 = 1_700_000_000_000_000;

impl Server {
    pub(crate) fn new(plant: Planted) -> Self {
        Server {
            ledger: Ledger::with_plant(plant),
            offset: 0,
            stall: 0,
            down: false,
            refuses: 0,
            loading: 0,
            read_only: 0,
            locked: 0,
            kills: 0,
            knows_scripts: false,
            listening: HashMap::new(),
            copy: Vec::new(),
            pushes: Vec::new(),
            branches: Vec::new(),
        }
    }

    pub(crate) fn clock_us(&self, now: u64) -> u64 {
        (EPOCH_US + now / 1000).saturating_add_signed(self.offset)
    }
}

impl World {
    pub(crate) fn server_us(&self) -> u64 {
        self.server.clock_us(self.now)
    }

    /// Why the server refuses a request for itself alone.
    fn refusal_of_one(&mut self) -> Option<StoreRefusal> {
        if self.server.read_only > self.now {
            self.saw(Seen::ReadOnly);
            return Some(StoreRefusal::ReadOnly);
        }
        if self.server.refuses <= self.now || self.rng.bool() {
            return None;
        }
        self.saw(Seen::ServerRefused);
        Some(if self.rng.bool() {
            StoreRefusal::OutOfMemory
        } else {
            StoreRefusal::NoPermission
        })
    }

    pub(crate) fn execute(&mut self, effective: &mut Batch) -> BatchReply {
        let now_us = self.server_us();
        let mut refused = Vec::new();
        for (at, request) in effective.requests.iter_mut().enumerate() {
            if let (false, Verb::Claim { wait }) = (self.profile.rules.queues, &mut request.verb) {
                *wait = false;
            }
            if let Some(refusal) = self.refusal_of_one() {
                refused.push((at, refusal));
            }
        }
        // The first write decides whether a script may write.
        if let (Rule::AllOrNone, Some((_, refusal))) = (effective.rule, refused.first().cloned()) {
            refused = (0..effective.requests.len())
                .map(|at| (at, refusal.clone()))
                .collect();
        }
        for (at, _) in refused.iter().rev() {
            effective.requests.remove(*at);
        }
        let before = self.records(effective);
        let mut pushes = std::mem::take(&mut self.server.pushes);
        let mut branches = std::mem::take(&mut self.server.branches);
        let mut answer = self
            .server
            .ledger
            .apply_traced(now_us, effective, &mut pushes, &mut branches);
        for branch in branches.drain(..) {
            self.saw(Seen::branch(branch));
        }
        self.server.branches = branches;
        for (request, reply) in effective.requests.iter().zip(&answer.replies) {
            self.log.mix(match (reply.number(), reply) {
                (Some(number), _) => number.0,
                (None, Reply::Queued(_) | Reply::QueuedBehind(..) | Reply::QueuedBehindForeign(_)) => 1,
                (None, Reply::Busy(_)) => 2,
                (None, _) => 3,
            });
            let key = self.index(&request.name);
            let slot = self.slots.get(&request.claim_id.node).map(|(slot, _)| *slot);
            self.note(None, Some(key), || {
                format!(
                    "server: {:?} {} of node {slot:?} -> {reply:?}",
                    request.verb, request.claim_id.claim
                )
            });
        }
        self.watch_execution(effective, &answer.replies, &before, &pushes);
        self.watch_together(effective, &answer.replies);
        for push in pushes.drain(..) {
            self.push(push);
        }
        self.server.pushes = pushes;
        for request in &effective.requests {
            let key = self.index(&request.name);
            self.check_key(key);
        }
        for (at, refusal) in refused {
            answer.replies.insert(at, Reply::Refused(refusal));
        }
        answer
    }
}
