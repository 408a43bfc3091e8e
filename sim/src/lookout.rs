//! Ticks that are open: nodes ask for them from time to time, and none may stay so for long.

use crate::Wrong;
use crate::callers::{Caller, State};
use crate::coverage::Seen;
use crate::jobs::is_over;
use crate::world::{Event, MS, World};
use tenure::protocol::message::{Call, JobReport, TickTime};
use tenure::protocol::step::{CallOptions, Input};

/// How often a node asks, in ms.
const PAUSE: std::ops::Range<u64> = 300..900;

impl World {
    /// A node asks which tick was begun and has not ended.
    pub(crate) fn look_out(&mut self, slot: usize, key: usize) {
        if self.draining {
            return;
        }
        let pause = self.rng.u64(PAUSE) * MS;
        self.after(pause, Event::LookOut { slot, key });
        let node = &self.nodes[slot];
        if !node.alive || node.paused.is_some() || node.retired {
            return;
        }
        // Somebody is called when nothing is run, and mends it.
        let call = if self.nodes[slot].mark_ahead && self.chance(50) {
            Call::Reset
        } else {
            Call::Open {
                within_ms: if self.chance(3) { 50 } else { 3_600_000 },
                fingerprint: self.rng.u64(0..3),
                over: self.nodes[slot].over.get(&key).copied(),
            }
        };
        let asks = CallOptions::new(self.profile.terms[0], call);
        let (ticket, _) = self.new_call(slot, key, &asks);
        self.feed(slot, key, Input::Call(ticket, asks));
    }

    /// Whoever is told of an open tick pursues it, unless it does so already.
    pub(crate) fn job_answered(&mut self, slot: usize, caller: usize, report: &JobReport) {
        let Caller { key, want, .. } = self.nodes[slot].callers[caller];
        if want.mark.is_some() {
            return self.run_answered(slot, caller, report);
        }
        let node = &mut self.nodes[slot];
        node.mark_ahead = report.ahead_ms > 0;
        // What was told by a clock that was wrong is forgotten.
        node.over.retain(|of, over| *of != key || over.0 <= report.now_ms);
        let Some(tick) = report.open else { return };
        let pursuit = (key, Some(tick));
        let node = &self.nodes[slot];
        if self.draining || node.retired || node.pursuits.contains(&pursuit) {
            return;
        }
        self.saw(Seen::TickReopened);
        self.fire(slot, key, pursuit.1);
    }

    /// At the server: what lies ahead of the mark that was brought back may be run again.
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

    /// At the server: what the asker knows to be over is not granted again.
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

    /// In calm, a tick that was begun and that nobody is after any more is soon pursued again, as long as somebody looks.
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
        // One question may be for young ticks alone, a node may have come just now, and the way there and back is long.
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

    /// When no tick fires any more: everybody who is after the last one is killed, one after the other, while it is run.
    pub(crate) fn kill_pursuers(&mut self) {
        let is_quiet = self.profile.quiet_from.is_some_and(|from| self.now > from);
        if !is_quiet || self.now < self.watch.ticks.next_kill || self.jobs().is_empty() {
            return;
        }
        let key = self.locks;
        let mark = self.job(key).mark;
        let is_run = self.nodes.iter().any(|node| {
            let mut live = node.live.iter().map(|caller| &node.callers[*caller]);
            node.alive && live.any(|caller| caller.want.mark == mark && caller.state == State::Holding)
        });
        if mark.is_none() || !is_run || !self.chance(30) {
            return;
        }
        self.saw(Seen::PursuersKilled);
        let mut longest = 0;
        for slot in 0..self.nodes.len() {
            let node = &self.nodes[slot];
            if node.alive && !node.closing && node.pursuits.contains(&(key, mark)) {
                self.note(Some(slot), Some(key), || {
                    "killed with all who are after a tick".into()
                });
                longest = longest.max(self.kill(slot));
            }
        }
        let (_, takeover) = self.bounds_of_ticks();
        self.watch.ticks.next_kill = self.now + longest + 2 * takeover;
    }
}
