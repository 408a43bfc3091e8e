//! The rules of a store in pure Rust: requests in, replies and grants out, time as an argument.
//!
//! With a mutex around it, the ledger is the [memory store](crate::store::memory). In the simulator it is the server.
//! The differential test compares the Lua scripts with it, reply by reply. Each rule of the protocol is written here
//! first.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;

use crate::error::StoreRefusal;
use crate::protocol::flaw::{Flaw, Plant};
pub use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::branch::Branches;
pub use crate::protocol::ledger::record::{
    CheckpointRecord, Expression, JobRecord, LatchRecord, LeftFree, Proclaimed, Record, RecordOwner,
    SharedLease,
};
use crate::protocol::ledger::record::{KeyRecord, is_past};
use crate::protocol::ledger::recovery_state::RecoveryState;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{
    Batch, BatchReply, CallAnswer, ClaimReply, GrantNumber, Kind, Name, NodeId, Push, RecoveryCause, Reply,
    Request, Rule,
};
use crate::protocol::write::{Action, Precondition};

pub(crate) mod alone;
pub mod branch;
pub(crate) mod call;
pub(crate) mod election;
mod for_tests;
pub(crate) mod hand_over;
mod job_act;
pub(crate) mod latch;
pub(crate) mod quorum;
pub mod record;
pub(crate) mod recovery;
mod recovery_state;
pub(crate) mod shares;
mod steal;
pub(crate) mod ticks;
pub mod transaction;
pub(crate) mod transfer;
pub(crate) mod view;
pub(crate) mod watchers;

/// The state of all keys of one server.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    states: HashMap<Name, KeyRecord, RandomState>,
    /// The records of jobs. They outlive the leases: jobs are few, and the program names them.
    jobs: HashMap<Name, JobRecord, RandomState>,
    /// The last number that was given.
    last: GrantNumber,
    /// The time that ticks are compared with, if it differs from the clock of the leases.
    date_ms: Option<u64>,
    /// The nodes with an open inbox; `None` if that is not known.
    listening: Option<HashSet<NodeId>>,
    /// The number of keys at which the next sweep runs.
    sweep_at: usize,
    /// The latest recovery, in which nothing is granted.
    recovery: RecoveryState,
    plant: Plant,
    branches: Branches,
}

impl Ledger {
    /// Creates an empty ledger.
    pub fn new() -> Self {
        Ledger::default()
    }

    /// Creates an empty ledger with a planted mistake.
    pub fn with_plant(plant: Plant) -> Self {
        Ledger {
            plant,
            ..Ledger::default()
        }
    }

    /// Applies a batch at server time `now_us` (in microseconds). Appends the pushes for other nodes to `pushes`.
    pub fn apply(&mut self, now_us: u64, batch: &Batch, pushes: &mut Vec<Push>) -> BatchReply {
        let replies = Vec::with_capacity(batch.requests.len());
        self.apply_into(now_us, batch, replies, pushes)
    }

    /// Applies a batch, and writes the replies into `replies`, which must be empty.
    #[inline]
    pub(crate) fn apply_into(
        &mut self,
        now_us: u64,
        batch: &Batch,
        mut replies: Vec<Reply>,
        pushes: &mut Vec<Push>,
    ) -> BatchReply {
        self.branches.begin_step();
        self.sweep(now_us / 1000);
        self.check_clock(now_us, batch);
        // A group is granted only after each of its claims was checked.
        let mut is_group_refused = false;
        if batch.rule == Rule::AllOrNone {
            for request in &batch.requests {
                let look =
                    |transaction: &mut Transaction<'_>| transaction.can_grant(request, batch.not_after);
                is_group_refused |= !self.transact(now_us, batch, request, pushes, look);
            }
        }
        for request in &batch.requests {
            let execute = |transaction: &mut Transaction<'_>| {
                transaction.is_group_refused = is_group_refused && !transaction.plant.is(Flaw::HalfGranted);
                transaction.execute(request, batch.not_after)
            };
            replies.push(self.transact(now_us, batch, request, pushes, execute));
        }
        BatchReply {
            time: now_us,
            replies,
        }
    }

    /// Runs `act` on the state of one key. Removes the state if it is empty afterwards.
    fn transact<T>(
        &mut self,
        now_us: u64,
        batch: &Batch,
        request: &Request,
        pushes: &mut Vec<Push>,
        act: impl FnOnce(&mut Transaction<'_>) -> T,
    ) -> T {
        // One lookup per request: the entry is changed in place or removed.
        let mut place = match self.states.entry(request.name.clone()) {
            Entry::Occupied(place) => place,
            Entry::Vacant(place) => place.insert_entry(KeyRecord::default()),
        };
        let is_job = request.name.kind == Kind::Job;
        let mut transaction = Transaction {
            name: &request.name,
            state: place.get_mut(),
            job: is_job.then(|| self.jobs.entry(request.name.clone()).or_default()),
            mark: request.mark,
            last: &mut self.last,
            recovery: &mut self.recovery,
            recovery_ms: batch.recovery_ms,
            is_unconfirmed: batch.is_unconfirmed,
            seen: batch.highest,
            listening: self.listening.as_ref(),
            poll_gap: if request.name.kind == Kind::Lock {
                batch.poll_gap_ms
            } else {
                0
            },
            is_group_refused: false,
            is_after_bound: false,
            plant: self.plant,
            now_us,
            date_ms: self.date_ms.unwrap_or(now_us / 1000),
            pushes,
            branches: &mut self.branches,
        };
        let done = act(&mut transaction);
        if place.get().is_empty(now_us / 1000) {
            place.remove();
        }
        if is_job && self.jobs.get(&request.name) == Some(&JobRecord::default()) {
            self.jobs.remove(&request.name);
        }
        done
    }

    /// Sets the time that ticks are compared with, in milliseconds since the Unix epoch. Leases keep their own clock.
    pub fn set_date(&mut self, date_ms: u64) {
        self.date_ms = Some(date_ms);
    }

    /// Records whether a node has an open inbox. A hand-over may pass over a waiter without one, which keeps its
    /// place. Before the first call of this function no waiter is passed over for it.
    pub fn set_listening(&mut self, node: NodeId, open: bool) {
        let listening = self.listening.get_or_insert_default();
        if open {
            listening.insert(node);
        } else {
            listening.remove(&node);
        }
    }

    /// Returns how many keys have state.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Returns whether no key has state.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Returns the record of a key at `now_us`, if it is there.
    pub fn record(&self, name: &Name, now_us: u64) -> Option<&Record> {
        self.states
            .get(name)?
            .record
            .as_ref()
            .filter(|record| !is_past(record.expires, now_us / 1000))
    }

    /// Returns whether a lease is current at `now_us`: its claim owns or shares the key under the same grant.
    fn is_current(&self, now_us: u64, lease: &Precondition) -> bool {
        let is_shared = |share: &SharedLease| {
            (share.claim_id, share.mode, share.number) == (lease.claim_id, lease.mode, lease.number)
                && !share.is_revoked
        };
        self.record(&lease.name, now_us)
            .is_some_and(|record| record.claim() == Some((lease.claim_id, lease.number)))
            || self.shares(&lease.name, now_us).any(is_shared)
            || self.plant.is(Flaw::WriteUnchecked)
    }

    /// Returns the indices of the leases that are not current at `now_us`. A write is executed only if all of its
    /// leases are current.
    pub fn not_current(&self, now_us: u64, leases: &[Precondition]) -> Vec<usize> {
        let only_first = self.plant.is(Flaw::FirstLeaseChecked);
        let places = leases
            .iter()
            .enumerate()
            .filter(|(place, _)| *place == 0 || !only_first);
        let stale = places.filter(|(_, lease)| !self.is_current(now_us, lease));
        stale.map(|(place, _)| place).collect()
    }

    /// Returns the leases that share a key at `now_us`.
    pub fn shares(&self, name: &Name, now_us: u64) -> impl Iterator<Item = &SharedLease> {
        let shares = self.states.get(name).map_or(&[][..], |state| &state.shares);
        shares.iter().filter(move |share| now_us / 1000 <= share.expires)
    }

    /// Executes an action about `name`. The ledger keeps no data of users, so it refuses writes.
    pub fn act(&mut self, name: &Name, action: &Action, now_us: u64) -> Reply {
        match action {
            Action::Write(_) => Reply::Refused(StoreRefusal::Unsupported),
            Action::ForgetJob => self.forget_job(name, now_us),
        }
    }

    /// Deletes the record of a job, unless a node has the job, or a claim owns it or waits for it.
    fn forget_job(&mut self, name: &Name, now_us: u64) -> Reply {
        let now = now_us / 1000;
        let date = self.date_ms.unwrap_or(now);
        let has_nodes = |job: &JobRecord| job.nodes.values().any(|node| date <= node.until_ms);
        let waits = |state: &KeyRecord| state.queue.iter().any(|entry| now <= entry.dies);
        let is_in_use = self.record(name, now_us).is_some() || self.states.get(name).is_some_and(waits);
        if is_in_use || self.jobs.get(name).is_some_and(has_nodes) {
            return ClaimReply::Busy(None).into();
        }
        self.states.remove(name);
        CallAnswer::Owned(self.jobs.remove(name).is_some()).into()
    }

    /// Begins a recovery of `ms` milliseconds: the server may have lost grants, and grants nothing until every lease
    /// has ended that it may have lost. Never shortens a recovery.
    pub fn begin_recovery(&mut self, now_us: u64, ms: u64) {
        self.recovery
            .begin(now_us / 1000, ms, RecoveryCause::Number, self.plant);
    }

    /// Returns how many milliseconds of a recovery are left at `now_us`; `None` without a recovery.
    pub fn recovering(&self, now_us: u64) -> Option<u64> {
        self.recovery.left(now_us / 1000)
    }

    /// Begins a recovery if the sender has seen a higher number than the server gave: the server has lost that grant.
    fn check_clock(&mut self, now_us: u64, batch: &Batch) {
        if batch.highest > self.last && !self.plant.is(Flaw::EvidenceIgnored) {
            self.branches.note(Branch::RecoveryByClock);
            self.begin_recovery(now_us, batch.recovery_ms);
            self.last = batch.highest;
        }
    }

    /// Removes expired state of all keys, which would otherwise stay if no request came for it. The sweep runs so
    /// seldom that its cost per request is constant.
    fn sweep(&mut self, now: u64) {
        if self.states.len() < self.sweep_at.max(1024) {
            return;
        }
        self.states.retain(|_, state| {
            state.queue.retain(|entry| now <= entry.dies);
            state.shares.retain(|share| now <= share.expires);
            state.watchers.retain(|watcher| now <= watcher.expires);
            !state.is_empty(now)
        });
        self.sweep_at = 2 * self.states.len();
    }
}
