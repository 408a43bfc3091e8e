//! Callers of cron jobs. Each node fires by its own skewed wall clock and claims its ticks as the scheduler
//! does.

use tenure::protocol::message::{Fence, TickRefusal, TickTime, WhenBehind};
use tenure::protocol::step::{AcquireError, Input, LockOptions, WhyDenied};

use crate::coverage::Case;
use crate::time::{EPOCH_US, MS};
use crate::world::World;
use crate::world::caller::{Caller, CallerAction, CallerState, TakeUp};
use crate::world::event::Event;
use crate::world::signal::Signal;

/// The time before the last tick at which jobs change from skipping ticks to running all of them, in ns.
pub(crate) const POLICY_CHANGE_NS: u64 = 1_500 * MS;

impl World {
    /// A tick fires on a node: sometimes late, twice, or not at all.
    pub(crate) fn fire_tick(&mut self, slot: usize, key: usize) {
        if self.draining {
            return;
        }
        if self.profile.quiet_from.is_some_and(|from| self.now > from) {
            return;
        }
        let period = self.profile.period;
        let pause = self.rng.u64(period / 2 * MS..period * 3 / 2 * MS);
        self.after(pause, Event::TickFires { slot, key });
        let node = &self.nodes[slot];
        if !node.alive || node.paused.is_some() || node.retired || self.chance(5) {
            return;
        }
        if self.chance(3) {
            return self.retire_scheduler(slot, key);
        }
        let wall = (EPOCH_US / 1000 + self.now / MS).saturating_add_signed(self.nodes[slot].skew_ms);
        let due = wall / period * period;
        let mark = Some(TickTime(due));
        let newest = self.nodes[slot].newest;
        if newest < mark {
            self.nodes[slot].newest = mark;
            self.pursue_tick(slot, key, mark);
        } else if newest == mark && self.chance(30) {
            self.cover(Case::TickFiredTwice);
            self.pursue_tick(slot, key, mark);
        } else if self.chance(10) {
            self.cover(Case::TickFiredLate);
            let back = period * self.rng.u64(1..=2);
            self.pursue_tick(slot, key, Some(TickTime(due - back)));
        }
    }

    /// Starts the pursuit of a tick by a node.
    pub(crate) fn pursue_tick(&mut self, slot: usize, key: usize, mark: Option<TickTime>) {
        self.nodes[slot].pursuits.push((key, mark));
        self.claim_tick(slot, key, mark, true);
    }

    /// Claims a tick for the first time or again. A patient caller claims the tick even if a later one has
    /// fired.
    pub(crate) fn claim_tick(&mut self, slot: usize, key: usize, mark: Option<TickTime>, patient: bool) {
        let node = &self.nodes[slot];
        let when_behind = self.when_behind(slot, key, mark);
        let runs_all = matches!(when_behind, WhenBehind::After(_));
        let missed = !patient && node.newest > mark && !runs_all;
        if missed {
            self.cover(Case::TickMissed);
        }
        if self.draining || self.nodes[slot].retired || missed {
            return self.end_pursuit(slot, key, mark);
        }
        let options = LockOptions {
            mark,
            turn: when_behind,
            limit: 64,
            ..LockOptions::new(self.profile.terms[0])
        };
        let (ticket, _) = self.new_caller(slot, key, options, TakeUp::Pending);
        self.feed(slot, key, Input::Lock(ticket, options));
    }

    /// Ends the pursuit of a tick: it was run here or elsewhere, or will not be run.
    pub(crate) fn end_pursuit(&mut self, slot: usize, key: usize, mark: Option<TickTime>) {
        self.nodes[slot].predecessors.remove(&(key, mark));
        let pursuits = &mut self.nodes[slot].pursuits;
        if let Some(at) = pursuits.iter().position(|pursuit| *pursuit == (key, mark)) {
            pursuits.swap_remove(at);
        }
    }

    /// Shuts the scheduler of a node down: waiting callers cancel, and running jobs are released unfinished.
    pub(crate) fn retire_scheduler(&mut self, slot: usize, key: usize) {
        self.nodes[slot].retired = true;
        self.cover(Case::Retired);
        for caller in self.nodes[slot].live.clone() {
            let Caller {
                key: of,
                options,
                state,
                ..
            } = self.nodes[slot].callers[caller];
            let act = match state {
                _ if of != key => continue,
                CallerState::Waiting => CallerAction::GiveUp,
                CallerState::Holding => CallerAction::HandOver,
                _ => continue,
            };
            if state == CallerState::Holding && self.setup.release_early {
                self.memory.ticks.early_releases.push((key, self.now + 200 * MS));
            }
            self.act(slot, caller, act);
            if state == CallerState::Waiting {
                self.end_pursuit(slot, key, options.mark);
            }
        }
    }

    /// Starts the run of a tick.
    pub(crate) fn begin_run(&mut self, slot: usize, caller: usize, fence: Fence) {
        self.raise(Signal::RunBegan { slot, caller, fence });
        let period = self.profile.period;
        let longest = if self.chance(80) { period / 3 } else { 3 * period };
        let longest = if self.draining { 5 } else { longest };
        let span = self.rng.u64(0..longest * MS);
        let life = self.nodes[slot].life;
        self.plan_checkpoints(slot, caller, span);
        let act = CallerAction::Finish;
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
    pub(crate) fn tick_denied(&mut self, slot: usize, caller: usize, denial: &WhyDenied) {
        let Caller { key, options, .. } = self.nodes[slot].callers[caller];
        let (pause, patient) = match denial {
            WhyDenied::Tick(TickRefusal::Early(left)) => (left.as_nanos() as u64, true),
            WhyDenied::Error(AcquireError::Store(_)) => (self.rng.u64(50 * MS..300 * MS), false),
            WhyDenied::Tick(TickRefusal::EarlierTickDue { latest, is_open }) => {
                // The tick that must run first is claimed first. Then this tick is claimed again.
                let period = self.profile.period;
                let first = (key, Some(TickTime(latest.0 + if *is_open { 0 } else { period })));
                if first.1 >= options.mark {
                    // No tick lies between the two.
                    self.nodes[slot].predecessors.insert((key, options.mark), *latest);
                } else if !self.nodes[slot].pursuits.contains(&first) {
                    self.pursue_tick(slot, key, first.1);
                }
                (self.rng.u64(20 * MS..100 * MS), true)
            }
            WhyDenied::Error(AcquireError::Busy) if matches!(options.turn, WhenBehind::After(_)) => {
                (self.rng.u64(50 * MS..300 * MS), true)
            }
            _ => {
                if matches!(denial, WhyDenied::Tick(TickRefusal::Over | TickRefusal::Skipped)) {
                    self.note_tick_over(slot, key, options.mark);
                }
                self.raise(Signal::TickDenied {
                    slot,
                    key,
                    options,
                    denial,
                });
                return self.end_pursuit(slot, key, options.mark);
            }
        };
        self.claim_tick_later(slot, key, options.mark, pause, patient);
    }

    /// Schedules another claim of a tick.
    pub(crate) fn claim_tick_later(
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
            Event::ClaimTick {
                slot,
                life,
                key,
                mark,
                patient,
            },
        );
    }

    /// Remembers that a node was told that a tick is over.
    pub(crate) fn note_tick_over(&mut self, slot: usize, key: usize, mark: Option<TickTime>) {
        let Some(mark) = mark.filter(|mark| !mark.is_triggered()) else {
            return;
        };
        let latest = self.nodes[slot].over.entry(key).or_insert(mark);
        *latest = mark.max(*latest);
    }

    /// Returns whether ticks of this world wait for earlier ones.
    pub(crate) fn ticks_wait(&self) -> bool {
        matches!(self.setup.seed / 3 % 4, 1 | 2)
    }

    /// Returns what a tick does behind a running one. All nodes of a world agree. In some worlds jobs skip at
    /// first and run every tick later.
    pub(crate) fn when_behind(&self, slot: usize, key: usize, mark: Option<TickTime>) -> WhenBehind {
        let (period, node) = (self.profile.period, &self.nodes[slot]);
        let is_before = |quiet: u64| self.now + POLICY_CHANGE_NS < quiet;
        let skips =
            (self.setup.seed / 12).is_multiple_of(2) && self.profile.quiet_from.is_some_and(is_before);
        match self.setup.seed / 3 % 4 {
            _ if mark.is_some_and(TickTime::is_triggered) => WhenBehind::Queue,
            1 => WhenBehind::Queue,
            2 if skips => WhenBehind::Skip,
            // Until the node knows the earlier tick, it names one that can never have run.
            2 => {
                let before = || TickTime(mark.map_or(0, |mark| mark.0.saturating_sub(period)));
                WhenBehind::After(
                    node.predecessors
                        .get(&(key, mark))
                        .copied()
                        .unwrap_or_else(before),
                )
            }
            _ => WhenBehind::Skip,
        }
    }
}
