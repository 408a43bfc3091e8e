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
        if calm {
            self.cover(Case::Calm);
            for key in 0..self.keys.len() {
                if Some(key) != self.latch {
                    self.watch_waiters(key);
                }
            }
            self.watch_latch_waiters();
            self.watch_orphans();
        }
        self.watch_elections();
        for key in self.jobs() {
            self.watch_idle_ticks(key, calm);
            self.watch_abandoned_tick(key, calm);
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
