//! Lookups of a caller that the node answers from its own state, without a round trip or a step of a key.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::driver::node::Node;
use crate::driver::servers::Server;
use crate::driver::waiter::{Waiter, lock};
use crate::error::StoreError;
use crate::protocol::claim::held_lease::Holding;
use crate::protocol::key::shard::Shard;
use crate::protocol::message::{ClaimId, ClaimNumber, Name};
use crate::protocol::step::Ticket;
use crate::protocol::time::Instant;
use crate::store::ServerId;

/// A server of the names is silent, so it is unknown whether they are taken.
pub(crate) struct Silent;

impl Node {
    /// Returns the holding of a caller, until a step ends it.
    pub(crate) fn holding(&self, name: &Name, ticket: Ticket) -> Option<Holding> {
        self.query_unless_forked(name, |shard, now| shard.holding(now, name, ticket))
    }

    /// Returns the claim of this process that holds the key alone.
    pub(crate) fn held_alone(&self, name: &Name) -> Option<ClaimId> {
        let holding = self.query_unless_forked(name, |shard, now| shard.held_alone(now, name));
        holding.map(|holding| holding.claim)
    }

    /// Returns the claim by which a caller holds, and since when it holds; `None` after a step has ended that.
    pub(crate) fn held_since(&self, name: &Name, ticket: Ticket) -> Option<(ClaimNumber, Instant)> {
        self.query_unless_forked(name, |shard, _| shard.held_since(name, ticket))
    }

    fn query_unless_forked<T>(
        &self,
        name: &Name,
        look: impl FnOnce(&mut Shard, Instant) -> Option<T>,
    ) -> Option<T> {
        // The parent holds the lease; its child never did.
        if self.is_forked() {
            return None;
        }
        self.look(name, look)
    }

    /// Looks at the shard of a key. The key takes no step.
    pub(crate) fn look<T>(&self, name: &Name, look: impl FnOnce(&mut Shard, Instant) -> T) -> T {
        let mut keys = lock(&self.cell(name).keys);
        let now = keys.now(&self.clock);
        look(&mut keys.shard, now)
    }

    /// Returns whether the lease is held. Called before and after each step of the guarded code, and rarely looks at
    /// a key.
    pub(crate) fn is_held(&self, name: &Name, ticket: Ticket, waiter: &Waiter) -> bool {
        if self.is_forked() || waiter.is_over() {
            return false;
        }
        if waiter.is_held_at(self.clock.now()) {
            return true;
        }
        let holding = self.holding(name, ticket);
        let held = holding.filter(Holding::is_held);
        held.inspect(|held| waiter.note_deadline(held.deadline)).is_some()
    }

    /// Returns `Ok` if the store reported an owner since `since`; otherwise the error that kept the store from
    /// reporting one.
    pub(crate) fn why_waiting(&self, name: &Name, since: Instant) -> Result<(), Option<StoreError>> {
        let keys = lock(&self.cell(name).keys);
        let now = self.clock.now();
        // What a server said before it fell silent does not count, except for a lease that is held here.
        let is_known = !self.is_silent(name, now) || keys.shard.held_alone(now, name).is_some();
        if is_known && keys.shard.is_known_taken(now, name, since) {
            Ok(())
        } else {
            Err(keys.shard.last_error(now, name))
        }
    }

    /// Returns whether the server of `name` is silent, or a majority of the masters of a quorum.
    fn is_silent(&self, name: &Name, now: Instant) -> bool {
        let is_silent = |server: &Server| lock(&server.session).is_silent(now);
        let masters = self.servers.store.masters();
        if masters == 0 {
            return is_silent(self.servers.for_name(name));
        }
        let silent = (0..masters).filter(|master| is_silent(self.servers.get(ServerId(*master))));
        silent.count() > usize::from(masters) / 2
    }

    /// Returns the first of these names that the store named taken since `since`.
    ///
    /// # Errors
    /// A server of the names is silent.
    pub(crate) fn first_taken<'a>(
        &self,
        names: impl Iterator<Item = &'a Name> + Clone,
        since: Instant,
    ) -> Result<Option<&'a Name>, Silent> {
        let now = self.clock.now();
        if names.clone().any(|name| self.is_silent(name, now)) {
            return Err(Silent);
        }
        let mut names = names;
        Ok(names.find(|name| self.look(name, |shard, _| shard.was_named_taken(name, since))))
    }

    /// Returns how long the store still recovers, as far as its answers told this node: until each server grants, or a majority
    /// of the masters of a quorum.
    pub(crate) fn recovering(&self) -> Option<Duration> {
        if self.is_forked() {
            return None;
        }
        let now = self.clock.now();
        let ids = self.servers.store.servers();
        let left = |id| lock(&self.servers.get(id).session).recovering(now);
        let mut rests: Vec<_> = ids.into_iter().map(left).collect();
        rests.sort_unstable();
        let last = match self.servers.is_quorum() {
            true => rests.len() / 2,
            false => rests.len().checked_sub(1)?,
        };
        rests.get(last).copied().flatten()
    }

    /// Returns the number of callers that wait in this process.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the number of keys that have state in this process.
    pub(crate) fn keys(&self) -> usize {
        if self.is_forked() {
            return 0;
        }
        self.shards.iter().map(|cell| lock(&cell.keys).shard.len()).sum()
    }

    /// Returns the time after which no lease that was held here can still be held.
    pub(crate) fn longest_hold(&self) -> Duration {
        Duration::from_millis(self.longest_ms.load(Ordering::Relaxed)) + self.options.request_timeout
    }

    /// Returns whether no lease is held, no caller waits, and no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.shards.iter().all(|cell| lock(&cell.keys).shard.is_empty())
            && self.servers.all().all(|server| lock(&server.session).is_idle())
    }

    pub(crate) async fn idle(self: &Arc<Self>) {
        loop {
            self.leave_kept();
            let idle = self.idle.notified();
            let mut idle = std::pin::pin!(idle);
            idle.as_mut().enable();
            if self.is_idle() {
                return;
            }
            idle.await;
        }
    }
}
