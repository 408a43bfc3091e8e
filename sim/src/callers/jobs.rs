//! Callers of cron jobs. Each node fires by its own skewed wall clock and claims its ticks as the scheduler
//! does.

use tenure::protocol::message::{Fence, TickTime, WhenBehind};
use tenure::protocol::step::{AcquireError, Input, LockOptions, TickRefusal};

use crate::coverage::Seen;
use crate::time::{EPOCH_US, MS};
use crate::world::World;
use crate::world::caller::{Act, Caller, Fetches, State};
use crate::world::event::Event;
use crate::world::signal::Signal;

/// The time before the last tick at which jobs change from skipping ticks to running all of them, in ns.
pub(crate) const CHANGED: u64 = 1_500 * MS;

impl World {
    /// A tick fires on a node: sometimes late, twice, or not at all.
    pub(crate) fn tick(&mut self, slot: usize, key: usize) {
        if self.draining {
            return;
        }
        if self.profile.quiet_from.is_some_and(|from| self.now > from) {
            return;
        }
        let period = self.profile.period;
        let pause = self.rng.u64(period / 2 * MS..period * 3 / 2 * MS);
        self.after(pause, Event::Tick { slot, key });
        let node = &self.nodes[slot];
        if !node.alive || node.paused.is_some() || node.retired || self.chance(5) {
            return;
        }
        if self.chance(3) {
            return self.retire(slot, key);
        }
        let wall = (EPOCH_US / 1000 + self.now / MS).saturating_add_signed(self.nodes[slot].skew_ms);
        let due = wall / period * period;
        let mark = Some(TickTime(due));
        let newest = self.nodes[slot].newest;
        if newest < mark {
            self.nodes[slot].newest = mark;
            self.fire(slot, key, mark);
        } else if newest == mark && self.chance(30) {
            self.saw(Seen::TickFiredTwice);
            self.fire(slot, key, mark);
        } else if self.chance(10) {
            self.saw(Seen::TickFiredLate);
            let back = period * self.rng.u64(1..=2);
            self.fire(slot, key, Some(TickTime(due - back)));
        }
    }

    pub(crate) fn fire(&mut self, slot: usize, key: usize, mark: Option<TickTime>) {
        self.nodes[slot].pursuits.push((key, mark));
        self.chase(slot, key, mark, true);
    }

    /// Claims a tick for the first time or again. A patient caller claims the tick even if a later one has
    /// fired.
    pub(crate) fn chase(&mut self, slot: usize, key: usize, mark: Option<TickTime>, patient: bool) {
        let node = &self.nodes[slot];
        let turn = self.turn(slot, key, mark);
        let runs_all = matches!(turn, WhenBehind::After(_));
        let missed = !patient && node.newest > mark && !runs_all;
        if missed {
            self.saw(Seen::TickMissed);
        }
        if self.draining || self.nodes[slot].retired || missed {
            return self.pursuit_ends(slot, key, mark);
        }
        let want = LockOptions {
            mark,
            turn,
            limit: 64,
            ..LockOptions::new(self.profile.terms[0])
        };
        let (ticket, _) = self.new_caller(slot, key, want, Fetches::Later);
        self.feed(slot, key, Input::Lock(ticket, want));
    }

    /// Ends the pursuit of a tick: it was run here or elsewhere, or will not be run.
    pub(crate) fn pursuit_ends(&mut self, slot: usize, key: usize, mark: Option<TickTime>) {
        self.nodes[slot].after.remove(&(key, mark));
        let pursuits = &mut self.nodes[slot].pursuits;
        if let Some(at) = pursuits.iter().position(|pursuit| *pursuit == (key, mark)) {
            pursuits.swap_remove(at);
        }
    }

    /// Shuts the scheduler of a node down: waiting callers cancel, and running jobs are released unfinished.
    pub(crate) fn retire(&mut self, slot: usize, key: usize) {
        self.nodes[slot].retired = true;
        self.saw(Seen::Retired);
        for caller in self.nodes[slot].live.clone() {
            let Caller {
                key: of, want, state, ..
            } = self.nodes[slot].callers[caller];
            let act = match state {
                _ if of != key => continue,
                State::Waiting => Act::GiveUp,
                State::Holding => Act::Release,
                _ => continue,
            };
            if state == State::Holding && self.setup.release_early {
                self.watch.ticks.strays.push((key, self.now + 200 * MS));
            }
            self.act(slot, caller, act);
            if state == State::Waiting {
                self.pursuit_ends(slot, key, want.mark);
            }
        }
    }

    /// Starts the run of a tick.
    pub(crate) fn run_begins(&mut self, slot: usize, caller: usize, fence: Fence) {
        self.raise(Signal::RunBegan { slot, caller, fence });
        let period = self.profile.period;
        let most = if self.chance(80) { period / 3 } else { 3 * period };
        let most = if self.draining { 5 } else { most };
        let span = self.rng.u64(0..most * MS);
        let life = self.nodes[slot].life;
        self.works(slot, caller, span);
        let act = Act::Finish;
        self.after(
            span,
            Event::Caller {
                slot,
                life,
                caller,
                act,
            },
        );
    }

    /// Handles the denial of a tick: the node claims the tick again later, or never.
    pub(crate) fn tick_denied(&mut self, slot: usize, caller: usize, denial: &AcquireError) {
        let Caller { key, want, .. } = self.nodes[slot].callers[caller];
        let (pause, patient) = match denial {
            AcquireError::Tick(TickRefusal::Early(left)) => (left.as_nanos() as u64, true),
            AcquireError::Store(_) => (self.rng.u64(50 * MS..300 * MS), false),
            AcquireError::Tick(TickRefusal::EarlierTickDue { latest, is_open }) => {
                // The tick that must run first is claimed first. Then this tick is claimed again.
                let period = self.profile.period;
                let first = (key, Some(TickTime(latest.0 + if *is_open { 0 } else { period })));
                if first.1 >= want.mark {
                    // No tick lies between the two.
                    self.nodes[slot].after.insert((key, want.mark), *latest);
                } else if !self.nodes[slot].pursuits.contains(&first) {
                    self.fire(slot, key, first.1);
                }
                (self.rng.u64(20 * MS..100 * MS), true)
            }
            AcquireError::Busy if matches!(want.turn, WhenBehind::After(_)) => {
                (self.rng.u64(50 * MS..300 * MS), true)
            }
            _ => {
                if matches!(
                    denial,
                    AcquireError::Tick(TickRefusal::Over | TickRefusal::Skipped)
                ) {
                    self.note_over(slot, key, want.mark);
                }
                self.raise(Signal::TickDenied {
                    slot,
                    key,
                    want,
                    denial,
                });
                return self.pursuit_ends(slot, key, want.mark);
            }
        };
        self.chase_after(slot, key, want.mark, pause, patient);
    }

    pub(crate) fn chase_after(
        &mut self,
        slot: usize,
        key: usize,
        mark: Option<TickTime>,
        pause: u64,
        patient: bool,
    ) {
        let life = self.nodes[slot].life;
        self.after(
            pause,
            Event::Chase {
                slot,
                life,
                key,
                mark,
                patient,
            },
        );
    }

    /// Remembers that a node was told that a tick is over.
    pub(crate) fn note_over(&mut self, slot: usize, key: usize, mark: Option<TickTime>) {
        let Some(mark) = mark else { return };
        let latest = self.nodes[slot].over.entry(key).or_insert(mark);
        *latest = mark.max(*latest);
    }

    /// Returns whether ticks of this world wait for earlier ones.
    pub(crate) fn ticks_wait(&self) -> bool {
        matches!(self.setup.seed / 3 % 4, 1 | 2)
    }

    /// Returns what a tick does behind a running one. All nodes of a world agree. In some worlds jobs skip at
    /// first and run every tick later.
    pub(crate) fn turn(&self, slot: usize, key: usize, mark: Option<TickTime>) -> WhenBehind {
        let (period, node) = (self.profile.period, &self.nodes[slot]);
        let is_before = |quiet: u64| self.now + CHANGED < quiet;
        let skips =
            (self.setup.seed / 12).is_multiple_of(2) && self.profile.quiet_from.is_some_and(is_before);
        match self.setup.seed / 3 % 4 {
            1 => WhenBehind::Queue,
            2 if skips => WhenBehind::Skip,
            // Until the node knows the earlier tick, it names one that can never have run.
            2 => {
                let before = || TickTime(mark.map_or(0, |mark| mark.0.saturating_sub(period)));
                WhenBehind::After(node.after.get(&(key, mark)).copied().unwrap_or_else(before))
            }
            _ => WhenBehind::Skip,
        }
    }
}
