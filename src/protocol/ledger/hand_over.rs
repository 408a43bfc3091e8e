//! The queue of a key in the store, and the choice of the next owner.

use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::{LeftFree, QueueEntry, Search};
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{ClaimId, Grant, Mode, Push};

impl Transaction<'_> {
    /// Settles a key without an exclusive owner. Grants a free key to the first live waiter, and a shared key to
    /// waiters that can share it. The `caller`'s own grant is not pushed.
    pub(crate) fn settle(&mut self, caller: Option<ClaimId>) -> Search {
        if self.state.record.is_none() && !self.plant.is(Flaw::NeverSettled) {
            self.hand_over_or_free(caller, false)
        } else {
            Search::NoWaiter
        }
    }

    /// Hands the key over. If it stays free without a waiter, forgets when it was last left free, because every
    /// client had a chance.
    pub(crate) fn hand_over_or_free(&mut self, caller: Option<ClaimId>, gives: bool) -> Search {
        let search = self.hand_over(caller, gives);
        if search == Search::NoWaiter && self.is_free() && self.poll_gap > 0 {
            self.state.left_free = None;
        }
        search
    }

    /// Returns whether the key is left free now instead of going to a waiter. `gives`: its owner gives it away in
    /// this step.
    pub(crate) fn is_left_free(&mut self, gives: bool) -> bool {
        if self.poll_gap == 0 {
            return false;
        }
        let (mut now, known) = (self.now(), self.state.left_free);
        if let Some(left) = known
            && self.plant.is(Flaw::LeftFreeForEver)
        {
            now = now.min(left.until(self.poll_gap).saturating_sub(1));
        }
        let gives_up = gives && !self.plant.is(Flaw::NeverLeftFree);
        let (is_free, known) = LeftFree::check(known, now, self.poll_gap, gives_up);
        self.state.left_free = known;
        if is_free {
            self.branches.note(if gives {
                Branch::LeftFree
            } else {
                Branch::MetLeftFree
            });
        }
        is_free
    }

    /// Records a heartbeat of a waiter, and returns whether the claim is queued. A heartbeat does not revive a dead
    /// waiter, or one whose tick is over; such a waiter is removed.
    pub(crate) fn note_heartbeat(&mut self, claim_id: ClaimId) -> bool {
        let now = self.now();
        let Some(at) = self
            .state
            .queue
            .iter()
            .position(|entry| entry.claim_id == claim_id)
        else {
            return false;
        };
        if self.remove_dead_or_over(at) {
            return false;
        }
        self.state.queue[at].hear(now);
        true
    }

    /// Appends a waiter, unless its claim is already queued. Removes dead waiters first, so the queue is never longer
    /// than the number of waiters alive when the last one joined.
    pub(crate) fn enqueue(&mut self, entry: QueueEntry) {
        let now = self.now();
        let before = self.state.queue.len();
        self.state.queue.retain(|entry| now <= entry.dies);
        if self.state.queue.len() < before {
            self.branches.note(Branch::DeadRemoved);
        }
        if !self
            .state
            .queue
            .iter()
            .any(|other| other.claim_id == entry.claim_id)
        {
            self.state.queue.push_back(entry);
        }
    }

    /// Removes the claim from the queue, and returns whether it was queued.
    pub(crate) fn remove_waiter(&mut self, claim_id: ClaimId) -> bool {
        let before = self.state.queue.len();
        self.state.queue.retain(|entry| entry.claim_id != claim_id);
        self.state.queue.len() < before
    }

    /// Removes a waiter that is dead, or whose tick is over or was moved into the future by a reset. A finished tick
    /// must not be handed to a waiter for it, nor a tick before its time.
    fn remove_dead_or_over(&mut self, at: usize) -> bool {
        let entry = &self.state.queue[at];
        let is_told = !self.plant.is(Flaw::FinishedTickHandedOver) && !self.plant.is(Flaw::StandbyNeverTold);
        let branch = if self.now() > entry.dies {
            Branch::DeadRemoved
        } else if is_told && self.is_over(entry.mark) {
            Branch::StandbyDropped
        } else if self.is_paused(entry.mark) && !self.plant.is(Flaw::PausedStandbyGranted) {
            Branch::StandbyPaused
        } else if let Some(job) = &self.job
            && job.is_brought_back(entry.mark, self.date_ms)
            && !self.plant.is(Flaw::TickBroughtBackGranted)
        {
            Branch::StandbyEarly
        } else {
            return false;
        };
        self.branches.note(branch);
        self.state.queue.remove(at);
        true
    }

    /// Returns whether a free key may go to this live waiter. A waiter that is passed over keeps its place.
    fn can_be_granted(&mut self, at: usize, caller: Option<ClaimId>) -> bool {
        let mark = self.state.queue[at].mark;
        if self.is_behind_tick(mark) {
            return false;
        }
        let entry = &self.state.queue[at];
        let is_kept_waiting = self.job.as_ref().is_some_and(|job| {
            self.plant.is(Flaw::StandbyNeverGranted) && job.mark == entry.mark
                || self.plant.is(Flaw::StandbyNeverTold) && !job.is_open(entry.mark, self.date_ms, self.plant)
        });
        if is_kept_waiting {
            return false;
        }
        if caller == Some(entry.claim_id) {
            return true;
        }
        if !entry.is_fresh(self.now()) && !self.plant.is(Flaw::DeadHeadGranted) {
            self.branches.note(Branch::StalePassedOver);
            return false;
        }
        let is_heard = self
            .listening
            .is_none_or(|listening| listening.contains(&entry.claim_id.node));
        if !is_heard {
            self.branches.note(Branch::DeafPassedOver);
        }
        is_heard
    }

    /// Grants a free key to the first live waiter, or to all waiters that can share it, up to the first that cannot.
    ///
    /// Dead waiters on the way are removed. The caller learns of its grant by the reply, other nodes by a push. The
    /// choice is final: the number of clients that `PUBLISH` reports does not change it. `gives`: the owner gives the
    /// key away in this step.
    pub(crate) fn hand_over(&mut self, caller: Option<ClaimId>, gives: bool) -> Search {
        if self.held_back().is_some() {
            return Search::NoWaiter;
        }
        let mut at = 0;
        while at < self.state.queue.len() {
            if self.remove_dead_or_over(at) {
                continue;
            }
            if !self.can_be_granted(at, caller) {
                at += 1;
                continue;
            }
            if !self.is_free_for(self.state.queue[at].mode) {
                if self.plant.is(Flaw::ReaderJoinsPastWriter) {
                    at += 1;
                    continue;
                }
                return Search::Waits;
            }
            if self.is_free() && self.is_left_free(gives) {
                return Search::LeftFree;
            }
            let entry = self.state.queue.remove(at).expect("within the queue");
            self.grant_waiter(&entry, caller);
            if entry.mode == Mode::Exclusive {
                return Search::Granted;
            }
        }
        Search::NoWaiter
    }

    /// Grants the key to a waiter. Every waiter except the caller is told by a push.
    fn grant_waiter(&mut self, entry: &QueueEntry, caller: Option<ClaimId>) {
        let number = self.grant(entry);
        self.branches.note(Branch::HandedOver);
        if caller == Some(entry.claim_id) {
            return;
        }
        if caller.is_some() {
            self.branches.note(Branch::SettledForAnother);
        }
        self.pushes.push(Push::Granted(Grant {
            name: self.name.clone(),
            claim_id: entry.claim_id,
            number,
            lease_ms: entry.term.lease_ms,
            attempt: self.job.as_ref().map_or(0, |job| job.attempt_at(entry.mark)),
        }));
    }
}
