//! Laws of the queue: order, fairness and progress.

use tenure::protocol::ledger::Record;
use tenure::protocol::message::{ClaimId, Request, Verb};

use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::{Caller, CallerState, PERMITS};
use crate::world::node::Node;
use crate::world::records::{KeyRecords, weight};
use crate::world::tick_memory::{is_held_up, is_over};

impl World {
    /// Checks that a shared key is granted to no claim while an earlier waiter could have been granted it.
    pub(crate) fn watch_queue_order(
        &mut self,
        key: usize,
        (claim_id, request): (ClaimId, &Request),
        before: &KeyRecords,
        after: &KeyRecords,
    ) {
        // While a server recovers, an owner that yields goes on at once.
        let recovers = self.holds_back();
        if matches!(request.verb, Verb::Pass { to, .. } if to == claim_id) || self.is_after_loss() || recovers
        {
            return;
        }
        let now = self.server_us() / 1000;
        let earlier = before.waiters.iter().take_while(|waiter| **waiter != claim_id);
        let is_left = |waiter: &&ClaimId| {
            let heard = self.memory.last_heard.get(waiter);
            let is_fresh = heard.is_some_and(|(at, term)| now < at + term.stale_ms());
            is_fresh
                && **waiter != request.claim_id
                && after.waiters.contains(waiter)
                && self.server.ledger.is_listening(waiter.node)
        };
        let passed = earlier.copied().find(|waiter| is_left(&waiter));
        if let Some(waiter) = passed.filter(|_| !after.shares.is_empty()) {
            self.report(Violation::QueueJumped, Some(key), || {
                format!("{claim_id} is granted before the earlier {waiter}")
            });
        }
    }

    /// Checks that callers that poll get in: a lock is not handed on for longer than eight gaps.
    pub(crate) fn watch_left_free(
        &mut self,
        key: usize,
        request: &Request,
        before: Option<&Record>,
        after: Option<&Record>,
    ) {
        let (now, gap) = (self.server_us() / 1000, self.profile.poll_gap);
        let recovers = self.is_after_loss() || self.holds_back();
        let (Some(before), Some(after)) = (before.filter(|_| !recovers), after) else {
            self.memory.handed_on[key] = None;
            return;
        };
        let gives = matches!(request.verb, Verb::Leave | Verb::Yield { .. });
        if gap == 0 || key >= self.locks || !gives || before.owner == after.owner {
            return;
        }
        // The store forgets the time of a hand-over after 600 gaps.
        self.memory.handed_on[key].take_if(|since| now > *since + 600 * gap);
        let since = *self.memory.handed_on[key].get_or_insert(now);
        if now >= since + 8 * gap {
            self.report(Violation::NeverLeftFree, Some(key), || {
                format!("handed on for {} ms, with a poll gap of {gap} ms", now - since)
            });
        }
    }

    /// Checks that in a calm no lock is free or kept for longer than a third of a lease while a caller waits for it.
    pub(crate) fn watch_waiters(&mut self, key: usize) {
        let is_election = self.elections.contains(&key);
        let job = self.job(key);
        let waits = |(slot, node): (usize, &Node)| {
            let of_key = |caller: &usize| node.callers[*caller].key == key;
            let waiting = |caller: &usize| node.callers[*caller].state == CallerState::Waiting;
            // A call waits for no lease, a resting candidate does not wait yet, and a tick that is over is never granted.
            let stands = |caller: &usize| {
                let Caller { call, options, .. } = node.callers[*caller];
                let is_resting = is_election && self.is_resting(slot, *caller);
                let is_held_up = is_held_up(&job, options.mark);
                call.is_none() && !is_resting && !is_held_up && !is_over(&job, options.mark)
            };
            let mut live = node.live.iter();
            node.alive && live.any(|caller| of_key(caller) && waiting(caller) && stands(caller))
        };
        if self.is_quorum() {
            let is_wanted = self.nodes.iter().enumerate().any(waits);
            return self.watch_quorum_waiters(key, is_wanted);
        }
        let owned = self.key_records(&self.keys[key]);
        let wanted = self.nodes.iter().filter(|node| node.alive).flat_map(|node| {
            let live = node.live.iter().map(|caller| &node.callers[*caller]);
            live.filter(|caller| caller.key == key && caller.state == CallerState::Waiting)
                .map(|caller| weight(caller.options.mode))
        });
        // If the free permits suffice for each waiter, one of them must be granted.
        let room = PERMITS.checked_sub(owned.in_use() + wanted.max().unwrap_or_default());
        let has_permits = self.profile.permits && key < self.locks && room.is_some_and(|room| room > 0);
        let free = owned.is_free() || has_permits || self.is_kept(key);
        let recovers = self.server.ledger.recovering(self.server_us()).is_some();
        if !free || recovers || !self.nodes.iter().enumerate().any(waits) {
            self.memory.free_since[key] = None;
            return;
        }
        let since = *self.memory.free_since[key].get_or_insert(self.now);
        let lease = self
            .profile
            .terms
            .iter()
            .map(|term| term.lease_ms)
            .max()
            .unwrap_or(0)
            * MS;
        let left_free = self.profile.poll_gap * MS;
        let bound = left_free + lease / 3 + lease / 100 + 6 * self.profile.delay.1 + 30 * MS;
        if self.now - since > bound {
            let (slept, state) = ((self.now - since) / MS, self.describe_key(key));
            self.report(Violation::WaiterAsleep, Some(key), || {
                format!("free for {slept} ms: {state}")
            });
        }
    }
}
