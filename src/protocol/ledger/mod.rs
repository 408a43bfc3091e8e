//! The rules of a store in pure Rust: requests in, replies and grants out, time as an argument.
//!
//! Behind a mutex it is the [memory store](crate::store::memory); in the simulator it is the server; in the
//! differential test it is what the Lua scripts are compared with, reply by reply. A rule of the protocol is first a
//! rule here.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;

use crate::error::StoreRefusal;
use crate::protocol::flaw::{Flaw, Plant, Sound};
pub use crate::protocol::ledger::branch::Branch;
pub use crate::protocol::ledger::record::{
    Job, LatchRecord, LeftFree, Proclaimed, Record, RecordOwner, Saved, Share,
};
use crate::protocol::ledger::record::{State, is_past};
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{
    Batch, BatchReply, ClaimId, GrantNumber, Kind, Name, NodeId, Push, Reply, Request, Rule,
};
use crate::protocol::write::{Action, Precondition};

pub mod branch;
pub(crate) mod call;
pub(crate) mod election;
pub(crate) mod hand_over;
pub(crate) mod latch;
pub(crate) mod passing;
pub mod record;
pub(crate) mod shares;
pub(crate) mod ticks;
pub mod transaction;
pub(crate) mod watchers;

/// All keys of one server.
#[derive(Debug, Clone, Default)]
pub struct Ledger<P: Plant = Sound> {
    states: HashMap<Name, State, RandomState>,
    /// What is known of jobs. It outlives their leases: jobs are few and named by the program.
    jobs: HashMap<Name, Job, RandomState>,
    last: GrantNumber,
    /// What time it is in the world, where the clock of the leases is another.
    date_ms: Option<u64>,
    listening: Option<HashSet<NodeId>>,
    sweep_at: usize,
    plant: P,
}

impl Ledger {
    /// An empty one.
    pub fn new() -> Self {
        Ledger::default()
    }
}

impl<P: Plant> Ledger<P> {
    /// An empty one with a mistake planted.
    #[doc(hidden)]
    pub fn with_plant(plant: P) -> Self {
        Ledger {
            plant,
            ..Ledger::default()
        }
    }

    /// Applies a batch at server time `now_us` (microseconds). What others are to be told is appended to `pushes`.
    pub fn apply(&mut self, now_us: u64, batch: &Batch, pushes: &mut Vec<Push>) -> BatchReply {
        self.apply_traced(now_us, batch, pushes, &mut Vec::new())
    }

    /// The same, telling which rare branches were taken.
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

    /// The same into replies that are empty and have room.
    #[inline]
    pub(crate) fn apply_into(
        &mut self,
        now_us: u64,
        batch: &Batch,
        mut replies: Vec<Reply>,
        (pushes, branches): (&mut Vec<Push>, &mut Vec<Branch>),
    ) -> BatchReply {
        self.sweep(now_us / 1000);
        // Of claims that go together none is granted before all were looked at.
        let mut is_apart = false;
        if batch.rule == Rule::AllOrNone {
            for request in &batch.requests {
                let look =
                    |transaction: &mut Transaction<'_, P>| transaction.can_grant(request, batch.not_after);
                is_apart |= !self.transact(now_us, batch, request, (pushes, branches), look);
            }
        }
        for request in &batch.requests {
            let treat = |transaction: &mut Transaction<'_, P>| {
                transaction.is_apart = is_apart && !transaction.planted(Flaw::HalfGranted);
                transaction.treat(request, batch.not_after)
            };
            replies.push(self.transact(now_us, batch, request, (pushes, branches), treat));
        }
        BatchReply {
            time: now_us,
            replies,
        }
    }

    /// Does something with one key, of which nothing is kept where nothing is left.
    fn transact<T>(
        &mut self,
        now_us: u64,
        batch: &Batch,
        request: &Request,
        (pushes, branches): (&mut Vec<Push>, &mut Vec<Branch>),
        act: impl FnOnce(&mut Transaction<'_, P>) -> T,
    ) -> T {
        // Looked up once: what there is of a key stays in its place, or goes.
        let mut place = match self.states.entry(request.name.clone()) {
            Entry::Occupied(place) => place,
            Entry::Vacant(place) => place.insert_entry(State::default()),
        };
        let is_job = request.name.kind == Kind::Job;
        let mut transaction = Transaction {
            name: &request.name,
            state: place.get_mut(),
            job: is_job.then(|| self.jobs.entry(request.name.clone()).or_default()),
            mark: request.mark,
            last: &mut self.last,
            seen: batch.highest,
            listening: self.listening.as_ref(),
            poll_gap: if request.name.kind == Kind::Lock {
                batch.poll_gap_ms
            } else {
                0
            },
            is_apart: false,
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
        if is_job && self.jobs.get(&request.name) == Some(&Job::default()) {
            self.jobs.remove(&request.name);
        }
        done
    }

    /// Ticks are judged by this time, in milliseconds since the Unix epoch, and no more by the one that leases go by.
    pub fn set_date(&mut self, date_ms: u64) {
        self.date_ms = Some(date_ms);
    }

    /// Says which nodes have an open inbox. A waiter without one may be passed over in a hand-off; it keeps its
    /// place. Until this is called, nobody is passed over for it.
    pub fn listens(&mut self, node: NodeId, open: bool) {
        let listening = self.listening.get_or_insert_default();
        if open {
            listening.insert(node);
        } else {
            listening.remove(&node);
        }
    }

    /// Whether that node has an open inbox, as far as this is known.
    #[doc(hidden)]
    pub fn hears(&self, node: NodeId) -> bool {
        self.listening
            .as_ref()
            .is_none_or(|listening| listening.contains(&node))
    }

    /// How many keys have any state.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// No key has any state.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// The record of a key at `now_us`, if it is there.
    pub fn record(&self, name: &Name, now_us: u64) -> Option<&Record> {
        self.states
            .get(name)?
            .record
            .as_ref()
            .filter(|record| !is_past(record.expires, now_us / 1000))
    }

    /// Whether a lease is current at `now_us`: the record of its claim is there, under that grant.
    fn is_current(&self, now_us: u64, lease: &Precondition) -> bool {
        let is_shared = |share: &Share| {
            (share.claim_id, share.mode, share.number) == (lease.claim_id, lease.mode, lease.number)
        };
        self.record(&lease.name, now_us)
            .is_some_and(|record| record.claim() == Some((lease.claim_id, lease.number)))
            || self.shares(&lease.name, now_us).any(is_shared)
            || self.plant.planted(Flaw::WriteUnchecked)
    }

    /// Which of these leases are not current at `now_us`, by their places. What is written under them is done only if all are.
    pub fn not_current(&self, now_us: u64, leases: &[Precondition]) -> Vec<usize> {
        let only_first = self.plant.planted(Flaw::FirstLeaseChecked);
        let places = leases
            .iter()
            .enumerate()
            .filter(|(place, _)| *place == 0 || !only_first);
        let stale = places.filter(|(_, lease)| !self.is_current(now_us, lease));
        stale.map(|(place, _)| place).collect()
    }

    /// Who shares a key at `now_us`.
    pub fn shares(&self, name: &Name, now_us: u64) -> impl Iterator<Item = &Share> {
        let shares = self.states.get(name).map_or(&[][..], |state| &state.shares);
        shares.iter().filter(move |share| now_us / 1000 <= share.expires)
    }

    /// Who waits for a key, in order, the dead included.
    pub fn waiters(&self, name: &Name) -> Vec<ClaimId> {
        let queue = self.states.get(name).into_iter().flat_map(|state| &state.queue);
        queue.map(|entry| entry.claim_id).collect()
    }

    /// The last millisecond of life of each waiter of each key.
    #[doc(hidden)]
    pub fn entries(&self) -> impl Iterator<Item = (&Name, ClaimId, u64)> {
        self.states
            .iter()
            .flat_map(|(name, state)| state.queue.iter().map(move |e| (name, e.claim_id, e.dies)))
    }

    /// What a foreign client does to a record: overwrites it.
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

    /// When a key was last left free, if that is known at `now_us`.
    #[doc(hidden)]
    pub fn left_free(&self, name: &Name, now_us: u64) -> Option<LeftFree> {
        let left = self.states.get(name)?.left_free?;
        (now_us / 1000 <= left.known_until).then_some(left)
    }

    /// What is known of a job.
    pub fn job(&self, name: &Name) -> Option<&Job> {
        self.jobs.get(name)
    }

    /// Does an action about `name`. Data of users is not kept here.
    pub fn act(&mut self, name: &Name, action: &Action, now_us: u64) -> Reply {
        match action {
            Action::Write(_) => Reply::Refused(StoreRefusal::Unsupported),
            Action::ForgetJob => self.forget_job(name, now_us),
        }
    }

    fn forget_job(&mut self, name: &Name, now_us: u64) -> Reply {
        let now = now_us / 1000;
        let waits = |state: &State| state.queue.iter().any(|entry| now <= entry.dies);
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

    /// What somebody who writes to a job's memory does.
    #[doc(hidden)]
    pub fn set_job(&mut self, name: &Name, job: Job) {
        self.jobs.insert(name.clone(), job);
    }

    /// What is known of a latch at `now_us`, if it is set.
    pub fn latch(&self, name: &Name, now_us: u64) -> Option<&LatchRecord> {
        let latch = self.states.get(name)?.latch.as_deref()?;
        (now_us / 1000 <= latch.expires).then_some(latch)
    }

    /// Who is told when what they watch changes, and until when, at `now_us`.
    pub fn watchers(&self, name: &Name, now_us: u64) -> impl Iterator<Item = (NodeId, u64)> {
        let watchers = self.states.get(name).map_or(&[][..], |state| &state.watchers);
        let live = watchers
            .iter()
            .filter(move |watcher| now_us / 1000 <= watcher.expires);
        live.map(|watcher| (watcher.node, watcher.expires))
    }

    /// Lets `ms` pass for what a key has that belongs to no claim: its latch, its watchers, and the time when it was last left free.
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

    /// What the leader of an election proclaimed, at `now_us`.
    pub fn proclaimed(&self, name: &Name, now_us: u64) -> Option<&Proclaimed> {
        let (_, number) = self.record(name, now_us)?.claim()?;
        let proclaimed = self.states.get(name)?.proclaimed.as_deref();
        proclaimed.filter(|proclaimed| proclaimed.number == number)
    }

    /// What somebody does who removes what was proclaimed and who watches.
    #[doc(hidden)]
    pub fn forget_watchers(&mut self, name: &Name) {
        if let Some(state) = self.states.get_mut(name) {
            state.proclaimed = None;
            state.candidate_values.clear();
            state.watchers.clear();
        }
    }

    /// Lets `ms` pass for what a claim has of a key: its share, or its place in the queue.
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

    /// What a restart without persistence does: every lease, queue and number is forgotten.
    pub fn forget(&mut self) {
        self.states.clear();
        self.jobs.clear();
        self.last = GrantNumber::default();
    }

    /// Leases that expired with nobody looking would stay for ever: now and then all keys are looked through, so
    /// seldom that it costs each request a constant.
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
