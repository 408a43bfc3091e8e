//! The rules of a store in pure Rust: requests in, replies and grants out, time as an argument.
//!
//! With a mutex around it, the ledger is the [memory store](crate::store::memory). In the simulator it is the server.
//! The differential test compares the Lua scripts with it, reply by reply. Each rule of the protocol is written here
//! first.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;

use crate::error::StoreRefusal;
use crate::protocol::flaw::{Flaw, Plant, Sound};
pub use crate::protocol::ledger::branch::Branch;
pub use crate::protocol::ledger::record::{
    CheckpointRecord, Expression, JobRecord, LatchRecord, LeftFree, Proclaimed, Record, RecordOwner,
    SharedLease,
};
use crate::protocol::ledger::record::{KeyRecord, is_past};
use crate::protocol::ledger::recovery_state::RecoveryState;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{
    Batch, BatchReply, ClaimId, GrantNumber, Kind, Name, NodeId, Push, RecoveryCause, Reply, Request, Rule,
};
use crate::protocol::write::{Action, Precondition};

pub(crate) mod alone;
pub mod branch;
pub(crate) mod call;
pub(crate) mod election;
pub(crate) mod hand_over;
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
mod view;
pub(crate) mod watchers;

/// The state of all keys of one server.
#[derive(Debug, Clone, Default)]
pub struct Ledger<P: Plant = Sound> {
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
    plant: P,
}

impl Ledger {
    /// Creates an empty ledger.
    pub fn new() -> Self {
        Ledger::default()
    }
}

impl<P: Plant> Ledger<P> {
    /// Creates an empty ledger with a planted mistake.
    #[doc(hidden)]
    pub fn with_plant(plant: P) -> Self {
        Ledger {
            plant,
            ..Ledger::default()
        }
    }

    /// Applies a batch at server time `now_us` (in microseconds). Appends the pushes for other nodes to `pushes`.
    pub fn apply(&mut self, now_us: u64, batch: &Batch, pushes: &mut Vec<Push>) -> BatchReply {
        self.apply_traced(now_us, batch, pushes, &mut Vec::new())
    }

    /// Applies a batch, and appends the rare branches that it took to `branches`.
    #[doc(hidden)]
    pub fn apply_traced(
        &mut self,
        now_us: u64,
        batch: &Batch,
        pushes: &mut Vec<Push>,
        branches: &mut Vec<Branch>,
    ) -> BatchReply {
        let replies = Vec::with_capacity(batch.requests.len());
        self.apply_into(now_us, batch, replies, (pushes, branches))
    }

    /// Applies a batch, and writes the replies into `replies`, which must be empty.
    #[inline]
    pub(crate) fn apply_into(
        &mut self,
        now_us: u64,
        batch: &Batch,
        mut replies: Vec<Reply>,
        (pushes, branches): (&mut Vec<Push>, &mut Vec<Branch>),
    ) -> BatchReply {
        self.sweep(now_us / 1000);
        self.check_clock(now_us, batch, branches);
        // A group is granted only after each of its claims was checked.
        let mut is_group_refused = false;
        if batch.rule == Rule::AllOrNone {
            for request in &batch.requests {
                let look =
                    |transaction: &mut Transaction<'_, P>| transaction.can_grant(request, batch.not_after);
                is_group_refused |= !self.transact(now_us, batch, request, (pushes, branches), look);
            }
        }
        for request in &batch.requests {
            let execute = |transaction: &mut Transaction<'_, P>| {
                transaction.is_group_refused = is_group_refused && !transaction.planted(Flaw::HalfGranted);
                transaction.execute(request, batch.not_after)
            };
            replies.push(self.transact(now_us, batch, request, (pushes, branches), execute));
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
        (pushes, branches): (&mut Vec<Push>, &mut Vec<Branch>),
        act: impl FnOnce(&mut Transaction<'_, P>) -> T,
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
            branches,
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

    /// Returns whether the node has an open inbox. Before the first [`set_listening`](Self::set_listening) every node
    /// counts as listening.
    #[doc(hidden)]
    pub fn is_listening(&self, node: NodeId) -> bool {
        self.listening
            .as_ref()
            .is_none_or(|listening| listening.contains(&node))
    }

    /// Returns the last number that was given.
    #[doc(hidden)]
    pub fn last_number(&self) -> GrantNumber {
        self.last
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
            || self.plant.planted(Flaw::WriteUnchecked)
    }

    /// Returns the indices of the leases that are not current at `now_us`. A write is executed only if all of its
    /// leases are current.
    pub fn not_current(&self, now_us: u64, leases: &[Precondition]) -> Vec<usize> {
        let only_first = self.plant.planted(Flaw::FirstLeaseChecked);
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

    /// Returns the waiters of a key in queue order, dead ones included.
    pub fn waiters(&self, name: &Name) -> Vec<ClaimId> {
        let queue = self.states.get(name).into_iter().flat_map(|state| &state.queue);
        queue.map(|entry| entry.claim_id).collect()
    }

    /// Returns the last millisecond of life of each waiter of each key.
    #[doc(hidden)]
    pub fn entries(&self) -> impl Iterator<Item = (&Name, ClaimId, u64)> {
        self.states
            .iter()
            .flat_map(|(name, state)| state.queue.iter().map(move |e| (name, e.claim_id, e.dies)))
    }

    /// Replaces or deletes a record, as a foreign client can do.
    pub fn overwrite(&mut self, name: &Name, record: Option<Record>) {
        let state = self.states.entry(name.clone()).or_default();
        state.record = record;
        state.shares.clear();
        state.latch = None;
        let is_empty = state.queue.is_empty() && state.left_free.is_none() && state.watchers.is_empty();
        if state.record.is_none() && is_empty {
            self.states.remove(name);
        }
    }

    /// Returns when a key was last left free, if that is still known at `now_us`.
    #[doc(hidden)]
    pub fn left_free(&self, name: &Name, now_us: u64) -> Option<LeftFree> {
        let left = self.states.get(name)?.left_free?;
        (now_us / 1000 <= left.known_until).then_some(left)
    }

    /// Returns the record of a job.
    pub fn job(&self, name: &Name) -> Option<&JobRecord> {
        self.jobs.get(name)
    }

    /// Executes an action about `name`. The ledger keeps no data of users, so it refuses writes.
    pub fn act(&mut self, name: &Name, action: &Action, now_us: u64) -> Reply {
        match action {
            Action::Write(_) => Reply::Refused(StoreRefusal::Unsupported),
            Action::ForgetJob => self.forget_job(name, now_us),
        }
    }

    /// Deletes the record of a job, unless a claim owns the job or waits for it.
    fn forget_job(&mut self, name: &Name, now_us: u64) -> Reply {
        let now = now_us / 1000;
        let waits = |state: &KeyRecord| state.queue.iter().any(|entry| now <= entry.dies);
        if self.record(name, now_us).is_some() || self.states.get(name).is_some_and(waits) {
            return Reply::Busy(None);
        }
        self.states.remove(name);
        if self.jobs.remove(name).is_some() {
            Reply::Done
        } else {
            Reply::NotThere
        }
    }

    /// Replaces the record of a job, as a client with write access can do.
    #[doc(hidden)]
    pub fn set_job(&mut self, name: &Name, job: JobRecord) {
        self.jobs.insert(name.clone(), job);
    }

    /// Returns the record of a latch at `now_us`, if it is set.
    pub fn latch(&self, name: &Name, now_us: u64) -> Option<&LatchRecord> {
        let latch = self.states.get(name)?.latch.as_deref()?;
        (now_us / 1000 <= latch.expires).then_some(latch)
    }

    /// Returns the nodes that watch a key at `now_us`, each with the end of its watch.
    pub fn watchers(&self, name: &Name, now_us: u64) -> impl Iterator<Item = (NodeId, u64)> {
        let watchers = self.states.get(name).map_or(&[][..], |state| &state.watchers);
        let live = watchers
            .iter()
            .filter(move |watcher| now_us / 1000 <= watcher.expires);
        live.map(|watcher| (watcher.node, watcher.expires))
    }

    /// Ages the state of a key that belongs to no claim by `ms`: its latch, its watchers, and when it was last left
    /// free.
    #[doc(hidden)]
    pub fn age_rest(&mut self, name: &Name, ms: u64) {
        let Some(state) = self.states.get_mut(name) else {
            return;
        };
        let latch = state.latch.iter_mut().map(|latch| &mut latch.expires);
        let watchers = state.watchers.iter_mut().map(|watcher| &mut watcher.expires);
        let left_free = state.left_free.iter_mut().map(|left| &mut left.known_until);
        for until in latch.chain(watchers).chain(left_free) {
            *until = until.saturating_sub(ms);
        }
    }

    /// Returns the value that the present leader of an election proclaimed, at `now_us`.
    pub fn proclaimed(&self, name: &Name, now_us: u64) -> Option<&Proclaimed> {
        let (_, number) = self.record(name, now_us)?.claim()?;
        let proclaimed = self.states.get(name)?.proclaimed.as_deref();
        proclaimed.filter(|proclaimed| proclaimed.number == number)
    }

    /// Deletes the proclaimed value and the watchers of a key, as a client with write access can do.
    #[doc(hidden)]
    pub fn forget_watchers(&mut self, name: &Name) {
        if let Some(state) = self.states.get_mut(name) {
            state.proclaimed = None;
            state.candidate_values.clear();
            state.watchers.clear();
        }
    }

    /// Ages the state of one claim by `ms`: its share of a key, or its place in the queue.
    pub fn age(&mut self, name: &Name, claim_id: ClaimId, ms: u64) {
        let Some(state) = self.states.get_mut(name) else {
            return;
        };
        let shares = state.shares.iter_mut().filter(|share| share.claim_id == claim_id);
        let entries = state.queue.iter_mut().filter(|entry| entry.claim_id == claim_id);
        let shares = shares.map(|share| &mut share.expires);
        for until in shares.chain(entries.map(|entry| &mut entry.dies)) {
            *until = until.saturating_sub(ms);
        }
    }

    /// Begins a recovery of `ms` milliseconds: the server may have lost grants, and grants nothing until every lease
    /// has ended that it may have lost. Never shortens a recovery.
    pub fn begin_recovery(&mut self, now_us: u64, ms: u64) {
        let cause = (RecoveryCause::Number, self.plant);
        self.recovery.begin(now_us / 1000, ms, cause);
    }

    /// Ends a recovery, as a client with write access can do.
    #[doc(hidden)]
    pub fn end_recovery(&mut self) {
        self.recovery.end();
    }

    /// Replaces the last number, as a server does that came back with an older copy of its data.
    #[doc(hidden)]
    pub fn set_last(&mut self, last: GrantNumber) {
        self.last = last;
    }

    /// Returns how many milliseconds of a recovery are left at `now_us`; `None` without a recovery.
    pub fn recovering(&self, now_us: u64) -> Option<u64> {
        self.recovery.left(now_us / 1000)
    }

    /// Begins a recovery if the sender has seen a higher number than the server gave: the server has lost that grant.
    fn check_clock(&mut self, now_us: u64, batch: &Batch, branches: &mut Vec<Branch>) {
        if batch.highest > self.last && !self.plant.planted(Flaw::EvidenceIgnored) {
            branches.push(Branch::RecoveryByClock);
            self.begin_recovery(now_us, batch.recovery_ms);
            self.last = batch.highest;
        }
    }

    /// Deletes every lease and queue, as a client with write access can do. Keeps the clock and the jobs.
    #[doc(hidden)]
    pub fn clear(&mut self) {
        self.states.clear();
    }

    /// Forgets every lease, queue and number, as a server that restarts without persistence does.
    pub fn forget(&mut self) {
        self.states.clear();
        self.jobs.clear();
        self.recovery = RecoveryState::default();
        self.last = GrantNumber::default();
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
