//! Callers that want several keys, all of them or none: they enter at one moment, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};

use crate::driver::node::{Aftermath, Followup, Keys, Node};
use crate::driver::waiter::{Waiter, lock};
use crate::protocol::message::Name;
use crate::protocol::step::{AcquireOptions, Effect, Input, Ticket};
use crate::protocol::time::Instant;

/// A caller that entered: its ticket, where it waits, and since when.
pub(crate) type Entered = (Ticket, Arc<Waiter>, Instant);

impl Node {
    /// Enters a caller for each of these keys, which are of one kind and no two the same. Their claims go together. Nobody
    /// enters, and nothing is asked, where somebody of this process is in the way, or the keys are of several servers.
    pub(crate) fn join_together(self: &Arc<Self>, wanted: &[(Name, AcquireOptions)]) -> Option<Vec<Entered>> {
        let server = self.servers.of_all(wanted.iter().map(|(name, _)| name))?;
        let shards: BTreeSet<usize> = wanted.iter().map(|(name, _)| self.shard_of(name)).collect();
        // All at once, and in order: nobody else has more than one.
        let locked = shards.into_iter().map(|at| (at, lock(&self.shards[at].keys)));
        let mut locked: BTreeMap<usize, MutexGuard<'_, Keys>> = locked.collect();
        let is_free = |(name, _): &(Name, _)| locked[&self.shard_of(name)].shard.is_free(name);
        if !wanted.iter().all(is_free) {
            return None;
        }
        // The latest of them all, and none of them is stepped at an earlier time again.
        let latest = |now, keys: &mut MutexGuard<'_, Keys>| keys.not_before(now);
        let now = locked.values_mut().fold(self.clock.now(), latest);
        let now = locked.values_mut().fold(now, latest);
        let mut after = Aftermath::take();
        let (mut entered, mut claims) = (Vec::new(), Vec::new());
        for (name, options) in wanted {
            let Keys { shard, waiters, .. } =
                &mut **locked.get_mut(&self.shard_of(name)).expect("locked above");
            self.note_entry(options.term);
            let (ticket, waiter) = (shard.issue(), Arc::new(Waiter::default()));
            waiters.locks.insert(ticket, waiter.clone());
            for effect in shard.handle(now, name, Input::Lock(ticket, *options)).iter() {
                match effect {
                    Effect::Send(claim) => claims.push(claim.clone()),
                    other => self.carry_out(waiters, name, other, &mut after),
                }
            }
            entered.push((ticket, waiter, now));
        }
        lock(&server.session).queue_together(claims);
        let due = locked
            .iter()
            .map(|(at, keys)| self.shards[*at].note_due(&keys.shard));
        let followup = Followup {
            sends: true,
            due: due.min().unwrap_or(u64::MAX),
            is_empty: false,
        };
        drop(locked);
        after.finish(self);
        self.follow_up(now, followup);
        Some(entered)
    }
}
