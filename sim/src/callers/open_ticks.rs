//! Nodes that look for open ticks: begun, not ended, and pursued by no node.

use tenure::protocol::message::{Call, JobReport, LookData};
use tenure::protocol::step::{CallOptions, Input};

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::caller::Caller;
use crate::world::event::Event;
use crate::world::signal::Signal;

/// The time between two questions of a node, in ms.
pub(crate) const QUESTION_PAUSE_MS: std::ops::Range<u64> = 300..900;

impl World {
    /// A node asks for a tick that was begun and has not ended.
    pub(crate) fn ask_for_open_tick(&mut self, slot: usize, key: usize) {
        if self.draining {
            return;
        }
        let pause = self.rng.u64(QUESTION_PAUSE_MS) * MS;
        self.after(pause, Event::AskForOpenTick { slot, key });
        self.look_for_open_tick(slot, key);
    }

    /// A node looks at a job once, when its time comes or when it hears that an operator acted.
    pub(crate) fn look_for_open_tick(&mut self, slot: usize, key: usize) {
        let node = &self.nodes[slot];
        if !node.alive || node.paused.is_some() || node.retired {
            return;
        }
        // An operator is called when nothing runs, and resets the mark.
        let mut is_picky = false;
        let call = if self.nodes[slot].mark_ahead && self.chance(50) {
            Call::Reset
        } else {
            is_picky = self.chance(3);
            Call::Open {
                fingerprint: self.rng.u64(0..3),
                over: self.nodes[slot].over.get(&key).copied(),
            }
        };
        let mut call_options = CallOptions::new(self.profile.terms[0], call);
        let name = format!("node {slot}");
        let look = LookData {
            name: &name,
            plan: "UTC:every 1s",
        };
        call_options.data = Some(look.payload());
        let (ticket, caller) = self.new_call(slot, key, &call_options);
        if is_picky {
            self.nodes[slot].picky_looks.insert(caller);
        }
        self.feed(slot, key, Input::Call(ticket, call_options));
    }

    /// A node asks whether its latest run was cancelled, or stolen.
    pub(crate) fn ask_for_ending(&mut self, slot: usize, key: usize) {
        let (job, node) = (self.job(key), self.nodes[slot].id);
        if let Some(run) = job.runs.iter().rfind(|run| run.node == node) {
            let call = Call::Ending { number: run.number };
            let call_options = CallOptions::new(self.profile.terms[0], call);
            let (ticket, _) = self.new_call(slot, key, &call_options);
            self.feed(slot, key, Input::Call(ticket, call_options));
        }
    }

    /// Handles the answer about a job: an open tick is pursued unless the node does so already.
    pub(crate) fn job_answered(&mut self, slot: usize, caller: usize, report: &JobReport) {
        let Caller {
            key, options, call, ..
        } = self.nodes[slot].callers[caller];
        if matches!(call, Some(Call::Ending { .. })) {
            return;
        }
        if options.mark.is_some() {
            return self.raise(Signal::CheckpointAnswered { slot, caller, report });
        }
        let node = &mut self.nodes[slot];
        node.mark_ahead = report.ahead_ms > 0;
        // What a wrong clock reported is forgotten.
        node.over.retain(|of, over| *of != key || over.0 <= report.now_ms);
        let is_picky = self.nodes[slot].picky_looks.remove(&caller);
        let wanted = report.wanted.as_ref().map(|wanted| wanted.tick);
        let open = report.open.filter(|_| !is_picky);
        for tick in wanted.into_iter().chain(open) {
            let pursuit = (key, Some(tick));
            let node = &self.nodes[slot];
            if self.draining || node.retired || node.pursuits.contains(&pursuit) {
                continue;
            }
            if !tick.is_triggered() {
                self.cover(Case::TickReopened);
            }
            self.pursue_tick(slot, key, pursuit.1);
        }
    }
}
