//! The periodic check of all laws that need time.

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::event::Event;

impl World {
    /// Checks the laws that need time, and schedules the next check.
    pub(crate) fn audit(&mut self) {
        self.after(20 * MS, Event::Audit);
        self.check_all();
        self.watch_requests();
        self.watch_silence();
        self.watch_late_assertions();
        self.watch_inboxes();
        let calm = self.is_calm();
        if !calm && self.is_cluster() {
            self.memory.free_since.fill(None);
            self.memory.orphans.clear();
        }
        if calm {
            self.cover(Case::Calm);
            for key in 0..self.keys.len() {
                if Some(key) != self.latch {
                    self.with_key(key, |world| world.watch_waiters(key));
                }
            }
            if let Some(key) = self.latch {
                self.with_key(key, World::watch_latch_waiters);
            }
            self.watch_orphans();
        }
        self.watch_elections();
        for key in self.jobs() {
            self.with_key(key, |world| {
                world.watch_idle_ticks(key, calm);
                world.watch_abandoned_tick(key, calm);
                world.watch_wanted_run(key, calm);
            });
        }
        if calm && !self.draining {
            self.kill_tick_runner();
            self.kill_pursuers();
        }
        if self.now / (1_000 * MS) != self.memory.second {
            self.memory.second = self.now / (1_000 * MS);
            self.watch_request_count(calm);
        }
        if self.draining {
            self.watch_end();
        }
    }
}
