//! Who waits for a key in the store, and who gets it when it is free.

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::{LeftFree, QueueEntry, Search};
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{ClaimId, Grant, Mode, Push};

impl<P: Plant> Transaction<'_, P> {
    /// A free key goes to the first live waiter, whoever asks, and a shared one to those who can share it.
    pub(crate) fn settle(&mut self, caller: Option<ClaimId>) -> Search {
        if self.state.record.is_none() && !self.planted(Flaw::NeverSettled) {
            self.hand_over_or_free(caller, false)
        } else {
            Search::NoWaiter
        }
    }

    /// As [`hand_over`](Self::hand_over). With nobody to go to the key is free, and everybody had a chance.
    pub(crate) fn hand_over_or_free(&mut self, caller: Option<ClaimId>, gives: bool) -> Search {
        let search = self.hand_over(caller, gives);
        if search == Search::NoWaiter && self.is_free() && self.poll_gap > 0 {
            self.state.left_free = None;
        }
        search
    }

    /// Whether the key is left free now, instead of going to who waits. `gives`: its owner gives it away.
    pub(crate) fn is_left_free(&mut self, gives: bool) -> bool {
        if self.poll_gap == 0 {
            return false;
        }
        let (mut now, known) = (self.now(), self.state.left_free);
        if let Some(left) = known
            && self.planted(Flaw::LeftFreeForEver)
        {
            now = now.min(left.until(self.poll_gap).saturating_sub(1));
        }
        let gives_up = gives && !self.planted(Flaw::NeverLeftFree);
        let (is_free, known) = LeftFree::check(known, now, self.poll_gap, gives_up);
        self.state.left_free = known;
        if is_free {
            self.branches.push(if gives {
                Branch::LeftFree
            } else {
                Branch::MetLeftFree
            });
        }
        is_free
    }

    /// A heartbeat. Answers whether the caller waits: it revives nobody who is dead, and nobody waits for a tick that is
    /// over.
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

    /// Stands at the end, unless it stands there already. The dead make room, so a queue is never longer than all who
    /// lived when somebody last joined it.
    pub(crate) fn enqueue(&mut self, entry: QueueEntry) {
        let now = self.now();
        let before = self.state.queue.len();
        self.state.queue.retain(|entry| now <= entry.dies);
        if self.state.queue.len() < before {
            self.branches.push(Branch::DeadRemoved);
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

    pub(crate) fn remove_waiter(&mut self, claim_id: ClaimId) -> bool {
        let before = self.state.queue.len();
        self.state.queue.retain(|entry| entry.claim_id != claim_id);
        self.state.queue.len() < before
    }

    /// Removes an entry that is dead, or waits for a tick that is over or was brought back: a finished one must not be handed
    /// to its standby, nor one whose time comes again.
    fn remove_dead_or_over(&mut self, at: usize) -> bool {
        let entry = &self.state.queue[at];
        let is_told = !self.planted(Flaw::FinishedTickHandedOver) && !self.planted(Flaw::StandbyNeverTold);
        let branch = if self.now() > entry.dies {
            Branch::DeadRemoved
        } else if is_told && self.job.as_ref().is_some_and(|job| !job.is_open(entry.mark)) {
            Branch::StandbyDropped
        } else if let Some(job) = &self.job
            && job.is_brought_back(entry.mark, self.date_ms)
            && !self.planted(Flaw::TickBroughtBackGranted)
        {
            Branch::StandbyEarly
        } else {
            return false;
        };
        self.branches.push(branch);
        self.state.queue.remove(at);
        true
    }

    /// Whether a free key goes to this living entry. If not, it keeps its place.
    fn can_be_granted(&mut self, at: usize, caller: Option<ClaimId>) -> bool {
        let entry = &self.state.queue[at];
        let is_kept_waiting = self.job.as_ref().is_some_and(|job| {
            self.planted(Flaw::StandbyNeverGranted) && job.mark == entry.mark
                || self.planted(Flaw::StandbyNeverTold) && !job.is_open(entry.mark)
        });
        if is_kept_waiting {
            return false;
        }
        if caller == Some(entry.claim_id) {
            return true;
        }
        if !entry.is_fresh(self.now()) && !self.planted(Flaw::DeadHeadGranted) {
            self.branches.push(Branch::StalePassedOver);
            return false;
        }
        let is_heard = self
            .listening
            .is_none_or(|listening| listening.contains(&entry.claim_id.node));
        if !is_heard {
            self.branches.push(Branch::DeafPassedOver);
        }
        is_heard
    }

    /// Gives a free key to the first live waiter, or to all who can share it up to the first who cannot. The caller learns of
    /// it by the answer, everybody else by a push. The dead that it walks over go out. What PUBLISH would count decides
    /// nothing: the choice is made before, and is final. `gives`: its owner gives it away.
    pub(crate) fn hand_over(&mut self, caller: Option<ClaimId>, gives: bool) -> Search {
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
                if self.planted(Flaw::ReaderJoinsPastWriter) {
                    at += 1;
                    continue;
                }
                return Search::Waits;
            }
            if self.is_free() && self.is_left_free(gives) {
                return Search::LeftFree;
            }
            let entry = self
                .state
                .queue
                .remove(at)
                .expect("the place is within the queue");
            self.grant_waiter(&entry, caller);
            if entry.mode == Mode::Exclusive {
                return Search::Granted;
            }
        }
        Search::NoWaiter
    }

    fn grant_waiter(&mut self, entry: &QueueEntry, caller: Option<ClaimId>) {
        let number = self.grant(entry);
        self.branches.push(Branch::HandedOver);
        if caller == Some(entry.claim_id) {
            return;
        }
        if caller.is_some() {
            self.branches.push(Branch::SettledForAnother);
        }
        self.pushes.push(Push::Granted(Grant {
            name: self.name.clone(),
            claim_id: entry.claim_id,
            number,
            lease_ms: entry.term.lease_ms,
            attempt: self.job.as_ref().map_or(0, |job| job.attempt),
        }));
    }
}
