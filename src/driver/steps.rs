//! Steps of keys, on any thread: all keys take their steps first, and then the follow-up is done.
//!
//! The follow-up needs no lock: it sends requests together, sets timers and runs wakers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use tokio::sync::oneshot;

use crate::driver::node::{EnteredCaller, FollowUp, LockedKeys, Node};
use crate::driver::waiter::{CallResult, Waiter, Wake, lock};
use crate::error::LostCause;
use crate::protocol::key::shard::Shard;
use crate::protocol::message::Name;
use crate::protocol::primitive::Primitive;
use crate::protocol::step::{AcquireError, Effect, Input, LockOptions, Ticket};
use crate::protocol::time::Instant;

impl Node {
    /// Feeds an input to the key machine of `name`.
    pub(crate) fn drive(self: &Arc<Self>, name: &Name, input: Input) {
        self.drive_each([(name, input)]);
    }

    /// Feeds what a server answered to the key machine of `name`, at a time that was read for this.
    pub(crate) fn drive_answer(self: &Arc<Self>, now: Instant, name: &Name, input: Input) {
        self.in_shard(name, |keys, after| self.step_shard(keys, now, name, input, after));
    }

    /// Takes steps of one shard while it is locked, and then does the follow-up.
    pub(super) fn in_shard<T>(
        self: &Arc<Self>,
        name: &Name,
        steps: impl FnOnce(&mut LockedKeys, &mut FollowUp) -> T,
    ) -> T {
        let cell = self.cell(name);
        let mut after = FollowUp::take();
        let mut keys = lock(&cell.keys);
        let stepped = steps(&mut keys, &mut after);
        cell.unlock(keys, &mut after);
        self.follow_up(after);
        stepped
    }

    /// Takes one step of each of these keys, and then the follow-up of all, so that their requests travel together.
    pub(crate) fn drive_each<'a>(self: &Arc<Self>, inputs: impl IntoIterator<Item = (&'a Name, Input)>) {
        let mut after = FollowUp::take();
        for (name, input) in inputs {
            let cell = self.cell(name);
            let mut keys = lock(&cell.keys);
            self.step_key(&mut keys, self.clock.now(), name, input, &mut after);
            cell.unlock(keys, &mut after);
        }
        self.follow_up(after);
    }

    /// Takes a step of one key of a locked shard.
    fn step_key(&self, keys: &mut LockedKeys, now: Instant, name: &Name, input: Input, after: &mut FollowUp) {
        // Refused here, so that no key machine depends on what the store serves.
        let wanted = Primitive::wanted_by(name, &input);
        if let Some((ticket, primitive)) = wanted
            && let Some(error) = self.servers.refusal(primitive)
        {
            let denied = Effect::Denied(ticket, AcquireError::Store(error).into());
            return self.carry_out(&mut keys.waiters, name, &denied, after);
        }
        let cancelled = match input {
            Input::Cancel(ticket) => Some(ticket),
            _ => None,
        };
        self.step_shard(keys, now, name, input, after);
        // Done after the step, because the step may find that the lease was lost, which then is the cause.
        if let Some(ticket) = cancelled {
            let waiters = &mut keys.waiters;
            match waiters.locks.remove(&ticket) {
                Some(waiter) => waiter.end(LostCause::Released, &mut after.wakes),
                None => waiters.answer_call(ticket, Err(AcquireError::Closed), &mut after.wakes),
            }
        }
    }

    /// Takes a step of one key of a locked shard, for an input that is not refused.
    fn step_shard(
        &self,
        keys: &mut LockedKeys,
        now: Instant,
        name: &Name,
        input: Input,
        after: &mut FollowUp,
    ) {
        let now = keys.not_before(now);
        after.now = now;
        let LockedKeys { shard, waiters, .. } = keys;
        for effect in shard.handle(now, name, input).iter() {
            self.carry_out(waiters, name, effect, after);
        }
    }

    /// Does the follow-up of steps, when nothing is locked: reports effects, runs wakers, has requests sent, and sets
    /// the timer of the driver.
    pub(super) fn follow_up(self: &Arc<Self>, mut after: Box<FollowUp>) {
        if !after.effects.is_empty() {
            after
                .effects
                .drain(..)
                .for_each(|(name, effect)| self.handle_effect(&name, &effect));
        }
        if !after.wakes.is_empty() {
            after.wakes.drain(..).for_each(Wake::wake);
        }
        let FollowUp {
            now,
            has_requests,
            due,
            is_empty,
            ..
        } = *after;
        after.keep();
        if has_requests && self.servers.immediate().is_some() {
            self.exchange(now);
        } else if has_requests {
            self.alarm.ring();
        } else {
            self.alarm.expect(due);
        }
        if is_empty {
            self.note_idle();
        }
    }

    /// Does what is due in every shard.
    pub(crate) fn wake(self: &Arc<Self>, now: Instant) {
        for cell in &self.shards {
            while cell.due.load(Ordering::SeqCst) <= now.as_nanos() {
                let mut after = FollowUp::take();
                let mut keys = lock(&cell.keys);
                let now = keys.not_before(now);
                after.now = now;
                let LockedKeys { shard, waiters, .. } = &mut *keys;
                let woken = shard.wake_next(now).map(|(name, effects)| {
                    let each = effects.iter();
                    each.for_each(|effect| self.carry_out(waiters, &name, effect, &mut after));
                });
                cell.unlock(keys, &mut after);
                self.follow_up(after);
                if woken.is_none() {
                    break;
                }
            }
        }
    }

    /// Takes a step of every key, one shard at a time, so that no caller waits for all of them.
    pub(super) fn step_every_key(
        self: &Arc<Self>,
        step: impl Fn(&mut Shard, Instant, &mut dyn FnMut(&Name, &Effect)),
    ) {
        let mut after = FollowUp::take();
        for cell in &self.shards {
            let mut keys = lock(&cell.keys);
            let now = keys.now(&self.clock);
            after.now = now;
            let LockedKeys { shard, waiters, .. } = &mut *keys;
            step(shard, now, &mut |name, effect| {
                self.carry_out(waiters, name, effect, &mut after);
            });
            cell.unlock(keys, &mut after);
        }
        self.follow_up(after);
        self.alarm.ring();
        self.note_idle();
    }

    /// Leaves the leases that are kept without a holder.
    pub(crate) fn leave_kept(self: &Arc<Self>) {
        self.step_every_key(|shard, now, perform| shard.leave_kept(now, perform));
    }

    /// Enters a caller of a call. Returns its ticket, the receiver of its answer, and the time when it entered.
    pub(crate) fn call(
        self: &Arc<Self>,
        name: &Name,
        input: impl FnOnce(Ticket) -> Input,
    ) -> (Ticket, oneshot::Receiver<CallResult>, Instant) {
        let (tell, answer) = oneshot::channel();
        let (ticket, now) = self.in_shard(name, |keys, after| {
            let ticket = keys.shard.issue();
            keys.waiters.calls.insert(ticket, tell);
            let now = keys.now(&self.clock);
            self.step_key(keys, now, name, input(ticket), after);
            (ticket, now)
        });
        (ticket, answer, now)
    }

    /// Enters a caller in a locked shard.
    pub(super) fn enter_shard(
        &self,
        keys: &mut LockedKeys,
        name: &Name,
        input: impl FnOnce(Ticket) -> Input,
        after: &mut FollowUp,
    ) -> EnteredCaller {
        let waiter = Arc::new(Waiter::default());
        let ticket = keys.shard.issue();
        keys.waiters.locks.insert(ticket, waiter.clone());
        let now = keys.now(&self.clock);
        self.step_key(keys, now, name, input(ticket), after);
        (ticket, waiter, now)
    }

    /// Enters a caller for each of these keys, which are distinct and of one kind. Their claims are granted together
    /// or not at all. Returns `None`, and sends nothing, if another caller of this process blocks a key, or if the
    /// keys are of several servers.
    pub(crate) fn join_together(
        self: &Arc<Self>,
        wanted: &[(Name, LockOptions)],
    ) -> Option<Vec<EnteredCaller>> {
        let server = self.servers.for_all(wanted.iter().map(|(name, _)| name))?;
        let shards: BTreeSet<usize> = wanted.iter().map(|(name, _)| self.shard_of(name)).collect();
        // Locked in ascending order. No other code locks more than one shard at a time.
        let locked = shards.into_iter().map(|at| (at, lock(&self.shards[at].keys)));
        let mut locked: BTreeMap<usize, MutexGuard<'_, LockedKeys>> = locked.collect();
        let is_free = |(name, _): &(Name, _)| locked[&self.shard_of(name)].shard.is_free(name);
        if !wanted.iter().all(is_free) {
            return None;
        }
        let mut after = FollowUp::take();
        after.together = Some(Vec::new());
        let enter = |(name, options): &(Name, LockOptions)| {
            self.note_entry(options.term);
            let keys = locked.get_mut(&self.shard_of(name)).expect("locked above");
            self.enter_shard(keys, name, |ticket| Input::Lock(ticket, *options), &mut after)
        };
        let entered = wanted.iter().map(enter).collect();
        if let Some(claims) = after.together.take() {
            lock(&server.session).queue_together(claims);
        }
        for (at, keys) in locked {
            self.shards[at].unlock(keys, &mut after);
        }
        self.follow_up(after);
        Some(entered)
    }
}
