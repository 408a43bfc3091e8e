//! What only tests and the simulator ask of a ledger, and do to one as a client with write access can.

use crate::protocol::ledger::Ledger;
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::{JobRecord, LatchRecord, LeftFree, Proclaimed, Record};
use crate::protocol::ledger::recovery_state::RecoveryState;
use crate::protocol::message::{ClaimId, GrantNumber, Name, NodeId};

impl Ledger {
    /// Returns whether the node has an open inbox. Before the first [`set_listening`](Self::set_listening) every node
    /// counts as listening.
    pub fn is_listening(&self, node: NodeId) -> bool {
        self.listening
            .as_ref()
            .is_none_or(|listening| listening.contains(&node))
    }

    /// Returns the last number that was given.
    pub fn last_number(&self) -> GrantNumber {
        self.last
    }

    /// Returns the waiters of a key in queue order, dead ones included.
    pub fn waiters(&self, name: &Name) -> Vec<ClaimId> {
        let queue = self.states.get(name).into_iter().flat_map(|state| &state.queue);
        queue.map(|entry| entry.claim_id).collect()
    }

    /// Returns the last millisecond of life of each waiter of each key.
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
    pub fn left_free(&self, name: &Name, now_us: u64) -> Option<LeftFree> {
        let left = self.states.get(name)?.left_free?;
        (now_us / 1000 <= left.known_until).then_some(left)
    }

    /// Returns the record of a job.
    pub fn job(&self, name: &Name) -> Option<&JobRecord> {
        self.jobs.get(name)
    }

    /// Replaces the record of a job, as a client with write access can do.
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

    /// Ends a recovery, as a client with write access can do.
    pub fn end_recovery(&mut self) {
        self.recovery.end();
    }

    /// Replaces the last number, as a server does that came back with an older copy of its data.
    pub fn set_last(&mut self, last: GrantNumber) {
        self.last = last;
    }

    /// Deletes every lease and queue, as a client with write access can do. Keeps the clock and the jobs.
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

    /// Returns the run that was compared last.
    pub fn recorded_run(&self) -> Option<&str> {
        self.recovery.run.as_deref()
    }

    /// Returns the rare branches that the latest step took. Only the simulator and the differential tests have builds that
    /// note them.
    pub fn branches(&self) -> &[Branch] {
        self.branches.as_slice()
    }
}
