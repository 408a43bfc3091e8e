//! Laws of open ticks.

use tenure::protocol::message::{JobReport, TickTime};

use crate::callers::open_ticks::PAUSE;
use crate::time::MS;
use crate::violation::Wrong;
use crate::world::World;
use crate::world::tick_memory::is_over;

impl World {
    /// Checks that after a reset no tick ahead of the clock is marked.
    pub(crate) fn watch_reset(&mut self, key: usize, report: &JobReport) {
        if report.ahead_ms == 0 {
            return;
        }
        let job = self.job(key);
        if job.mark != Some(TickTime(report.now_ms)) || job.ahead_ms(report.now_ms) > 0 {
            self.wrong(Wrong::TickOrder, Some(key), || {
                format!("a reset at {} left {job:?}", report.now_ms)
            });
        }
        self.watch.ticks.reset(key, &job);
    }

    /// Checks that a tick which the asking node knows to be over is not granted again.
    pub(crate) fn watch_loss(&mut self, key: usize, over: Option<TickTime>, report: &JobReport) {
        let job = self.job(key);
        let knows = job.mark.is_some();
        if knows && over.is_some_and(|over| over.0 <= report.now_ms) && !is_over(&job, over) {
            self.wrong(Wrong::LossBelieved, Some(key), || {
                format!("a node knows that {over:?} is over, and the store knows that {job:?}")
            });
        }
        if report.lost {
            self.watch.ticks.reset(key, &job);
            let highest = self.watch.highest;
            self.watch.ticks.mended.insert(key, highest);
        }
    }

    /// Checks that in a calm a tick that was begun and lost its pursuers is soon pursued again, while nodes
    /// look for open ticks.
    pub(crate) fn watch_abandoned(&mut self, key: usize, calm: bool) {
        let (job, us) = (self.job(key), self.server_us());
        let is_pursued = |mark: Option<TickTime>| {
            self.nodes
                .iter()
                .any(|node| node.alive && node.pursuits.contains(&(key, mark)))
        };
        let is_open = !job.done && job.mark.is_some_and(|mark| mark.0 <= us / 1000);
        let is_free = self.server.ledger.record(&self.keys[key], us).is_none();
        let looks = self
            .nodes
            .iter()
            .any(|node| node.alive && node.paused.is_none() && !node.retired && !node.closing);
        if !is_open || !is_free || !looks || self.draining || is_pursued(job.mark) {
            self.watch.ticks.abandoned = None;
            return;
        }
        let (now, unrest) = (self.now, self.watch.unrest);
        let abandoned = (job.mark, now);
        let (mark, since) = *self.watch.ticks.abandoned.get_or_insert(abandoned);
        if mark != job.mark {
            self.watch.ticks.abandoned = Some(abandoned);
            return;
        }
        // One question may be for young ticks alone, a node may be new, and a round trip may be slow.
        let bound = 4 * PAUSE.end * MS + 6 * self.profile.delay.1;
        if calm && now - since.max(unrest) > bound {
            self.wrong(Wrong::TickAbandoned, Some(key), || {
                format!(
                    "nobody is after {mark:?} for {} ms, and it is known that {job:?}",
                    (now - since) / MS
                )
            });
        }
    }
}
