//! Laws of open ticks.

use tenure::protocol::message::{JobReport, TickTime};

use crate::callers::open_ticks::QUESTION_PAUSE_MS;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::tick_memory::is_over;

impl World {
    /// Checks that after a reset no tick ahead of the clock is marked.
    pub(crate) fn watch_reset(&mut self, key: usize, report: &JobReport) {
        let job = self.job(key);
        if job.mark != Some(TickTime(report.now_ms)) || job.ahead_ms(report.now_ms) > 0 {
            self.report(Violation::TickOrder, Some(key), || {
                format!("a reset at {} left {job:?}", report.now_ms)
            });
        }
        self.memory.ticks.reset(key, &job);
    }

    /// Checks that a tick which the asking node knows to be over is not granted again.
    pub(crate) fn watch_loss(&mut self, key: usize, over: Option<TickTime>, report: &JobReport) {
        let job = self.job(key);
        let knows = job.mark.is_some();
        if knows && over.is_some_and(|over| over.0 <= report.now_ms) && !is_over(&job, over) {
            self.report(Violation::LossNotMended, Some(key), || {
                format!("a node knows that {over:?} is over, and the store has {job:?}")
            });
        }
        if report.lost {
            self.memory.ticks.reset(key, &job);
            let highest = self.memory.highest;
            self.memory.ticks.mended.insert(key, highest);
        }
    }

    /// Checks that in a calm a tick that was begun and lost its pursuers is soon pursued again, while nodes
    /// look for open ticks.
    pub(crate) fn watch_abandoned_tick(&mut self, key: usize, calm: bool) {
        let (job, us) = (self.job(key), self.server_us());
        let is_pursued = |mark: Option<TickTime>| {
            self.nodes
                .iter()
                .any(|node| node.alive && node.pursuits.contains(&(key, mark)))
        };
        let is_open = !job.done && job.paused.is_none() && job.mark.is_some_and(|mark| mark.0 <= us / 1000);
        let is_free = self.server.ledger.record(&self.keys[key], us).is_none();
        let looks = self
            .nodes
            .iter()
            .any(|node| node.alive && node.paused.is_none() && !node.retired && !node.closing);
        if !is_open || !is_free || !looks || self.draining || is_pursued(job.mark) {
            self.memory.ticks.abandoned = None;
            return;
        }
        let (now, fault_until) = (self.now, self.memory.fault_until);
        let abandoned = (job.mark, now);
        let (mark, since) = *self.memory.ticks.abandoned.get_or_insert(abandoned);
        if mark != job.mark {
            self.memory.ticks.abandoned = Some(abandoned);
            return;
        }
        // One question may be for young ticks alone, a node may be new, and a round trip may be slow.
        let bound = 4 * QUESTION_PAUSE_MS.end * MS + 6 * self.profile.delay.1;
        if calm && now - since.max(fault_until) > bound {
            self.report(Violation::TickAbandoned, Some(key), || {
                format!(
                    "{mark:?} has not been pursued for {} ms, the job is {job:?}",
                    (now - since) / MS
                )
            });
        }
    }
}
