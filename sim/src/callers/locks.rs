//! Callers of locks: mutexes and read-write locks.

use std::time::Duration;

use tenure::protocol::key::claim::Holding;
use tenure::protocol::message::{Mode, Name, Permits};
use tenure::protocol::session::step::{Probe, SessionInput};
use tenure::protocol::step::{Input, LockOptions, Ticket};

use crate::coverage::Seen;
use crate::time::MS;
use crate::violation::Wrong;
use crate::world::World;
use crate::world::caller::{Act, Caller, Fetches, PERMITS, State};
use crate::world::event::Event;

impl World {
    /// Adds a caller if the node has room for another.
    pub(crate) fn arrival(&mut self, slot: usize) {
        if self.draining {
            return;
        }
        let pause = self.rng.u64(0..2 * self.profile.pause);
        self.after(pause, Event::Arrival { slot });
        let node = &self.nodes[slot];
        if !node.alive || node.paused.is_some() || node.live.len() >= self.profile.callers {
            return;
        }
        let key = self.rng.usize(0..self.locks);
        if self.chance(1) {
            self.probe(slot);
        }
        let term = self.profile.terms[self.rng.usize(0..self.profile.terms.len())];
        // In a crowd the first caller holds for long, and all others wait with claims of their own.
        let (crowd, is_first) = (self.profile.crowd, self.nodes[slot].callers.is_empty());
        let asks = self.question_of_next(slot);
        let want = LockOptions {
            mode: self.mode_of_next(slot),
            wait: crowd || self.rng.u8(0..10) > 0,
            fixed: if crowd { !is_first } else { self.chance(10) },
            solo: !crowd && self.nodes[slot].callers.len() % 16 == 6,
            // Derived, not drawn, so the other choices of the seed stay the same.
            max_hold: (!crowd && self.nodes[slot].callers.len() % 8 == 3)
                .then(|| Duration::from_millis(term.lease_ms / 2)),
            limit: if self.rng.u8(0..50) == 0 { 1 } else { 1000 },
            node_is_full: self.rng.u8(0..100) == 0,
            ..LockOptions::new(term)
        };
        let free = |key: &Name| self.nodes[slot].shard.is_free(key);
        // Derived for the same reason.
        let is_together = !crowd && !self.profile.permits && self.nodes[slot].callers.len() % 8 == 1;
        if is_together && self.locks > 1 && self.keys[..self.locks].iter().all(free) {
            return self.arrive_together(slot, want);
        }
        if let Some(call) = asks {
            return self.ask_patiently(slot, key, want, call);
        }
        let ticket = self.enter(slot, key, want);
        self.feed(slot, key, Input::Lock(ticket, want));
    }

    /// Returns the mode of the next caller. It is derived, not drawn, so the other choices of the seed stay
    /// the same. In some worlds most callers read, in others few.
    pub(crate) fn mode_of_next(&self, slot: usize) -> Mode {
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
        let Caller { key, want, .. } = node.callers[caller];
        node.callers[caller].state = State::Releasing {
            held,
            finished: false,
        };
        let next = LockOptions {
            mode: Mode::Read,
            wait: true,
            solo: false,
            limit: usize::MAX,
            node_is_full: false,
            ..want
        };
        let (to, reader) = self.new_caller(slot, key, next, Fetches::Later);
        self.nodes[slot].callers[reader].before = Some(caller);
        self.feed(slot, key, Input::Downgrade(Ticket(caller as u64 + 1), to));
    }

    /// Asks the session whether the server answers.
    pub(crate) fn probe(&mut self, slot: usize) {
        let now = self.now;
        let node = &mut self.nodes[slot];
        node.probed += 1;
        let probe = Probe(node.probed);
        node.probes.insert(probe, now);
        self.tell_session(slot, SessionInput::Probed(probe));
    }

    /// Polls a granted caller, which turns its grant into a guard.
    pub(crate) fn fetch(&mut self, slot: usize, caller: usize) {
        let Caller { key, want, dark, .. } = self.nodes[slot].callers[caller];
        self.nodes[slot].callers[caller].fetches = Fetches::Did;
        if dark {
            self.saw(Seen::FetchedLost);
        }
        let ticket = Ticket(caller as u64 + 1);
        let local = self.local(slot);
        let is_taken = self.nodes[slot]
            .shard
            .take_up(local, &self.keys[key], ticket)
            .is_some();
        let is_held = self.look(slot, caller);
        if is_taken != is_held {
            self.wrong(Wrong::Outcome, Some(key), || {
                format!(
                    "ticket {} of node {slot} took up its grant: {is_taken}, held: {is_held}",
                    ticket.0
                )
            });
        }
        if !is_taken {
            return self.act(slot, caller, Act::Drop);
        }
        if want.mark.is_some() {
            let holding = self.holding(slot, key, ticket);
            if let Some(holding) = holding.filter(Holding::is_held) {
                self.run_begins(slot, caller, holding.fence);
            }
            return;
        }
        if self.elections.contains(&key) {
            return self.lead(slot, caller);
        }
        self.hold(slot, caller);
    }

    pub(crate) fn hold(&mut self, slot: usize, caller: usize) {
        let Caller { want, .. } = self.nodes[slot].callers[caller];
        let hold = match self.rng.u8(0..100) {
            _ if self.draining => self.rng.u64(0..5 * MS),
            _ if self.profile.crowd => 1_800 * MS,
            _ if want.max_hold.is_some() => {
                let longest = self.profile.longest().as_nanos() as u64;
                self.rng.u64(0..4 * longest)
            }
            0..4 => self.rng.u64(0..2 * want.term.lease_ms * MS),
            4..30 => 0,
            _ => self.rng.u64(0..self.profile.hold),
        };
        let life = self.nodes[slot].life;
        let act = if self.chance(60) { Act::Release } else { Act::Drop };
        let act = match want.mode {
            _ if self.nodes[slot].callers[caller].travels => Act::HandOut,
            _ if self.gives_up(caller, &want) => Act::Transfer,
            Mode::Exclusive if self.profile.readers && caller % 4 == 1 => Act::Downgrade,
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
                    act: Act::Look,
                },
            );
        }
    }
}
