//! Callers of locks: mutexes and read-write locks.

use std::time::Duration;

use tenure::protocol::claim::held_lease::Holding;
use tenure::protocol::message::{Mode, Name, Permits};
use tenure::protocol::session::step::{Probe, SessionInput};
use tenure::protocol::step::{Input, LockOptions, Ticket};

use crate::coverage::Case;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::{Caller, CallerAction, CallerState, PERMITS, TakeUp};
use crate::world::event::Event;

impl World {
    /// Adds a caller if the node has room for another.
    pub(crate) fn add_lock_caller(&mut self, slot: usize) {
        if self.draining {
            return;
        }
        let pause = self.rng.u64(0..2 * self.profile.pause);
        self.after(pause, Event::Arrival { slot });
        let node = &self.nodes[slot];
        if !node.alive || node.paused.is_some() || node.live.len() >= self.profile.callers {
            return;
        }
        let mut key = self.rng.usize(0..self.locks);
        // A kept lease is of use to a node with keys of its own.
        if self.profile.keeps && self.nodes[slot].callers.len() % 8 < 6 {
            key = slot % self.locks;
        }
        if self.chance(1) {
            self.probe(slot);
        }
        let term = self.profile.terms[self.rng.usize(0..self.profile.terms.len())];
        // In a crowd the first caller holds for long, and all others wait with claims of their own.
        let (crowd, is_first) = (self.profile.crowd, self.nodes[slot].callers.is_empty());
        let question = self.next_question(slot);
        let options = LockOptions {
            mode: self.next_mode(slot),
            wait: crowd || self.rng.u8(0..10) > 0,
            fixed: if crowd { !is_first } else { self.chance(10) },
            solo: !crowd && !self.is_quorum() && self.nodes[slot].callers.len() % 16 == 6,
            // Derived, not drawn, so the other choices of the seed stay the same.
            max_hold: (!crowd && self.nodes[slot].callers.len() % 8 == 3)
                .then(|| Duration::from_millis(term.lease_ms / 2)),
            keep: self.next_keep(slot),
            limit: if self.rng.u8(0..50) == 0 { 1 } else { 1000 },
            node_is_full: self.rng.u8(0..100) == 0,
            ..LockOptions::new(term)
        };
        let free = |key: &Name| self.nodes[slot].shard.is_free(key);
        // Derived for the same reason.
        let is_together = !crowd && !self.profile.permits && self.nodes[slot].callers.len() % 8 == 1;
        let shares_slot = self.cluster.slots.len() < 2 && !self.is_quorum();
        if is_together && shares_slot && self.locks > 1 && self.keys[..self.locks].iter().all(free) {
            return self.add_group(slot, options);
        }
        if let Some(call) = question {
            return self.add_call(slot, key, options, call);
        }
        let ticket = self.add_caller(slot, key, options);
        self.feed(slot, key, Input::Lock(ticket, options));
    }

    /// Returns how long the node keeps the lease of the next caller. It is derived, too.
    fn next_keep(&self, slot: usize) -> Duration {
        let next = self.nodes[slot].callers.len() + slot;
        match self.profile.keeps && self.profile.poll_gap == 0 {
            true => [
                Duration::MAX,
                Duration::from_millis(20),
                Duration::MAX,
                Duration::ZERO,
            ][next % 4],
            false => Duration::ZERO,
        }
    }

    /// Returns the mode of the next caller. It is derived, not drawn, so the other choices of the seed stay
    /// the same. In some worlds most callers read, in others few.
    pub(crate) fn next_mode(&self, slot: usize) -> Mode {
        let next = (self.nodes[slot].callers.len() * 7 + slot * 3) as u64 % 10;
        if self.profile.permits {
            // Sometimes a caller comes from an older deploy with a smaller capacity.
            let capacity = PERMITS - u32::from(next == 9);
            let weight = [1, 1, 2, 1, 3, 1, 1, 2, 1, 1][next as usize].min(capacity);
            return Mode::Permits(Permits { weight, capacity });
        }
        if self.profile.readers && next < 3 + 5 * (self.setup.seed % 2) {
            Mode::Read
        } else {
            Mode::Exclusive
        }
    }

    /// A writer continues as a reader.
    pub(crate) fn downgrade(&mut self, slot: usize, caller: usize) {
        let held = self.look(slot, caller);
        let node = &mut self.nodes[slot];
        let Caller { key, options, .. } = node.callers[caller];
        node.callers[caller].state = CallerState::Releasing {
            held,
            finished: false,
        };
        let next = LockOptions {
            mode: Mode::Read,
            wait: true,
            solo: false,
            limit: usize::MAX,
            node_is_full: false,
            ..options
        };
        let (to, reader) = self.new_caller(slot, key, next, TakeUp::Pending);
        self.nodes[slot].callers[reader].before = Some(caller);
        self.feed(slot, key, Input::Downgrade(Ticket(caller as u64 + 1), to));
    }

    /// Asks the session whether the server answers.
    pub(crate) fn probe(&mut self, slot: usize) {
        let now = self.now;
        let session = self.session_of_probe(slot);
        let node = &mut self.nodes[slot];
        node.probed += 1;
        let probe = Probe(node.probed);
        node.probes.insert(probe, now);
        self.tell_session(slot, session, SessionInput::Probed(probe));
    }

    /// Polls a granted caller, which turns its grant into a guard.
    pub(crate) fn take_up_grant(&mut self, slot: usize, caller: usize) {
        let Caller {
            key,
            options,
            was_lost,
            ..
        } = self.nodes[slot].callers[caller];
        self.nodes[slot].callers[caller].take_up_state = TakeUp::Done;
        if was_lost {
            self.cover(Case::TakenUpLost);
        }
        let ticket = Ticket(caller as u64 + 1);
        let local = self.local(slot);
        let is_taken = self.nodes[slot]
            .shard
            .take_up(local, &self.keys[key], ticket)
            .is_some();
        let is_held = self.look(slot, caller);
        if is_taken != is_held {
            self.report(Violation::WrongAnswer, Some(key), || {
                format!(
                    "ticket {} of node {slot} took up its grant: {is_taken}, held: {is_held}",
                    ticket.0
                )
            });
        }
        if !is_taken {
            return self.act(slot, caller, CallerAction::Drop);
        }
        if options.mark.is_some() {
            let holding = self.holding(slot, key, ticket);
            if let Some(holding) = holding.filter(Holding::is_held) {
                self.begin_run(slot, caller, holding.fence);
            }
            return;
        }
        if self.elections.contains(&key) {
            return self.plan_leadership(slot, caller);
        }
        self.hold(slot, caller);
    }

    /// Plans what a holder does, and how its hold ends.
    pub(crate) fn hold(&mut self, slot: usize, caller: usize) {
        let Caller { options, .. } = self.nodes[slot].callers[caller];
        let hold = match self.rng.u8(0..100) {
            _ if self.draining => self.rng.u64(0..5 * MS),
            _ if self.profile.crowd => 1_800 * MS,
            _ if options.max_hold.is_some() => {
                let longest = self.profile.longest().as_nanos() as u64;
                self.rng.u64(0..4 * longest)
            }
            0..4 => self.rng.u64(0..2 * options.term.lease_ms * MS),
            4..30 => 0,
            _ => self.rng.u64(0..self.profile.hold),
        };
        let hold = self.plan_renewals(slot, caller, &options, hold);
        let life = self.nodes[slot].life;
        let act = if self.chance(60) {
            CallerAction::Release
        } else {
            CallerAction::Drop
        };
        let act = match options.mode {
            _ if self.nodes[slot].callers[caller].is_for_transfer => CallerAction::SendTransfer,
            _ if self.is_transferred(caller, &options) => CallerAction::Transfer,
            Mode::Exclusive if self.profile.readers && caller % 4 == 1 => CallerAction::Downgrade,
            _ => act,
        };
        self.after(
            hold,
            Event::Caller {
                slot,
                life,
                caller,
                act,
            },
        );
        self.plan_writes(slot, caller, hold);
        if self.chance(20) {
            let pause = self.rng.u64(0..=hold);
            self.after(
                pause,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act: CallerAction::Look,
                },
            );
        }
    }
}
