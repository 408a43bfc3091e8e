//! The rules of a store in pure Rust: requests in, replies and grants out, time as an argument.
//!
//! Behind a mutex it is the [memory store](crate::store::memory); in the simulator it is the server; in the
//! differential test it is what the Lua scripts are compared with, reply by reply. A rule of the protocol is first a
//! rule here.

use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;

use crate::protocol::flaw::{Plant, Sound};
use crate::protocol::message::{Batch, BatchReply, Grant, GrantNumber, Holder, Kind, Name, NodeId, Reply};
pub use crate::protocol::record::{Job, Record, RecordOwner};
use crate::protocol::record::{State, is_past};
pub use crate::protocol::transaction::Branch;
use crate::protocol::transaction::Transaction;

/// All keys of one server.
#[derive(Debug, Default)]
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

    /// Applies a batch at server time `now_us` (microseconds). Grants for others are appended to `pushes`.
    pub fn apply(&mut self, now_us: u64, batch: &Batch, pushes: &mut Vec<Grant>) -> BatchReply {
        self.apply_traced(now_us, batch, pushes, &mut Vec::new())
    }

    /// The same into replies that are empty and have room.
    pub fn apply_into(
        &mut self,
        now_us: u64,
        batch: &Batch,
        replies: Vec<Reply>,
        pushes: &mut Vec<Grant>,
    ) -> BatchReply {
        self.apply_all(now_us, batch, replies, pushes, &mut Vec::new())
    }

    /// The same, telling which rare branches were taken.
    #[doc(hidden)]
    pub fn apply_traced(
        &mut self,
        now_us: u64,
        batch: &Batch,
        pushes: &mut Vec<Grant>,
        branches: &mut Vec<Branch>,
    ) -> BatchReply {
        let replies = Vec::with_capacity(batch.requests.len());
        self.apply_all(now_us, batch, replies, pushes, branches)
    }

    fn apply_all(
        &mut self,
        now_us: u64,
        batch: &Batch,
        mut replies: Vec<Reply>,
        pushes: &mut Vec<Grant>,
        branches: &mut Vec<Branch>,
    ) -> BatchReply {
        self.sweep(now_us / 1000);
        for request in &batch.requests {
            // The common case, a lock that is taken and left by one node, must not pay for a copy of the name.
            if !self.states.contains_key(&request.name) {
                self.states.insert(request.name.clone(), State::default());
            }
            let state = self.states.get_mut(&request.name).expect("put there above");
            let mut transaction = Transaction {
                name: &request.name,
                state,
                job: (request.name.kind == Kind::Job)
                    .then(|| self.jobs.entry(request.name.clone()).or_default()),
                mark: request.mark,
                last: &mut self.last,
                seen: batch.highest,
                listening: self.listening.as_ref(),
                plant: self.plant,
                now_us,
                date_ms: self.date_ms.unwrap_or(now_us / 1000),
                pushes,
                branches,
            };
            replies.push(transaction.treat(request, batch.not_after));
            if state.record.is_none() && state.queue.is_empty() {
                self.states.remove(&request.name);
            }
            if self
                .jobs
                .get(&request.name)
                .is_some_and(|job| *job == Job::default())
            {
                self.jobs.remove(&request.name);
            }
        }
        BatchReply {
            time: now_us,
            replies,
        }
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

    /// Who waits for a key, in order, the dead included.
    pub fn waiters(&self, name: &Name) -> Vec<Holder> {
        self.states.get(name).map_or(Vec::new(), |state| {
            state.queue.iter().map(|entry| entry.holder).collect()
        })
    }

    /// The last millisecond of life of each waiter of each key.
    #[doc(hidden)]
    pub fn entries(&self) -> impl Iterator<Item = (&Name, Holder, u64)> {
        self.states
            .iter()
            .flat_map(|(name, state)| state.queue.iter().map(move |e| (name, e.holder, e.dies)))
    }

    /// What a foreign client does to a record: overwrites it.
    pub fn overwrite(&mut self, name: &Name, record: Option<Record>) {
        let state = self.states.entry(name.clone()).or_default();
        state.record = record;
        if state.record.is_none() && state.queue.is_empty() {
            self.states.remove(name);
        }
    }

    /// What is known of a job.
    pub fn job(&self, name: &Name) -> Option<&Job> {
        self.jobs.get(name)
    }

    /// Makes a waiter's last heartbeat `ms` older.
    pub fn age(&mut self, name: &Name, holder: Holder, ms: u64) {
        let queue = self.states.get_mut(name).map(|state| &mut state.queue);
        if let Some(entry) = queue.and_then(|queue| queue.iter_mut().find(|e| e.holder == holder)) {
            entry.dies = entry.dies.saturating_sub(ms);
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
            !(state.queue.is_empty() && state.record.as_ref().is_none_or(|r| is_past(r.expires, now)))
        });
        self.sweep_at = 2 * self.states.len();
    }
}
