//! What runs of ticks leave for those that run them again.

use crate::Wrong;
use crate::callers::{Act, Caller};
use crate::coverage::Seen;
use crate::jobs::Ticks;
use crate::world::{Event, MS, World};
use tenure::protocol::ledger::{JobRecord, RecordOwner};
use tenure::protocol::message::{Call, ClaimId, JobReport, Payload, Request, TickTime, Verb};
use tenure::protocol::step::{CallOptions, Input};

/// What a run leaves: whose it is, and of which tick.
fn cursor(of: ClaimId, mark: Option<TickTime>) -> Payload {
    Payload(format!("{of} {mark:?}").into_bytes().into())
}

impl World {
    /// A run asks what was left of its tick, and leaves something while it goes on, and perhaps when it is over.
    pub(crate) fn works(&mut self, slot: usize, caller: usize, span: u64) {
        // Not drawn from the world's own numbers, so that nothing else changes.
        let mut rng = fastrand::Rng::with_seed(self.setup.seed ^ self.now ^ caller as u64);
        if rng.bool() {
            self.ask_about(slot, caller, |of| Call::Recall { of });
        }
        let life = self.nodes[slot].life;
        let save = || Event::Caller {
            slot,
            life,
            caller,
            act: Act::Save,
        };
        for _ in 0..rng.u32(0..3) {
            let at = rng.u64(0..=span);
            self.after(at, save());
        }
        if rng.u8(0..4) == 0 {
            // Of a run that was stopped and goes on long after it lost its lease.
            let at = span + rng.u64(0..2_000 * MS);
            self.after(at, save());
        }
    }

    pub(crate) fn save(&mut self, slot: usize, caller: usize) {
        let seq = self.nodes[slot].asked.into();
        self.ask_about(slot, caller, |of| Call::Save { of, seq });
    }

    fn ask_about(&mut self, slot: usize, caller: usize, call: impl Fn(ClaimId) -> Call) {
        let Caller { key, want, claim, .. } = self.nodes[slot].callers[caller];
        let Some(of) = claim.filter(|_| !self.draining) else {
            return;
        };
        let call = call(of);
        let is_save = matches!(call, Call::Save { .. });
        let asks = CallOptions {
            mode: want.mode,
            mark: want.mark,
            data: is_save.then(|| cursor(of, want.mark)),
            ..CallOptions::new(want.term, call)
        };
        if let Call::Recall { of } = call {
            self.watch.ticks.recalls.entry(of).or_insert(self.now);
        }
        let (ticket, _) = self.new_call(slot, key, &asks);
        self.feed(slot, key, Input::Call(ticket, asks));
    }

    /// What a run was told of itself.
    pub(crate) fn run_answered(&mut self, slot: usize, caller: usize, report: &JobReport) {
        let Caller { key, want, asks, .. } = self.nodes[slot].callers[caller];
        let Some(of) = asks.and_then(Call::of) else {
            return;
        };
        let tick = (key, want.mark);
        let now = self.now;
        let Ticks { saved, recalls, .. } = &mut self.watch.ticks;
        match asks {
            Some(Call::Save { .. }) if report.owns => {
                saved.entry(tick).or_insert(now);
                self.saw(Seen::SavedTold);
            }
            Some(Call::Recall { .. }) if report.owns => {
                // An answer may be slow, and nobody had been told when it was given.
                let told = saved.get(&tick).zip(recalls.get(&of));
                let was_told = told.is_some_and(|(told, asked)| told < asked) && !self.watch.forgot;
                let Some(found) = &report.saved else {
                    if was_told {
                        self.wrong(Wrong::CheckpointForgotten, Some(key), || {
                            format!("node {slot} is shown nothing of {:?}", want.mark)
                        });
                    }
                    return;
                };
                let text = String::from_utf8_lossy(&found.0).into_owned();
                if !text.ends_with(&format!(" {:?}", want.mark)) {
                    self.wrong(Wrong::CheckpointOfAnother, Some(key), || {
                        format!("node {slot} runs {:?} and is shown {text}", want.mark)
                    });
                }
                if !text.starts_with(&of.to_string()) {
                    self.saw(Seen::ResumedByAnother);
                }
            }
            _ => {}
        }
    }

    /// At the server: what comes to be kept is of the run that owns its tick.
    pub(crate) fn watch_save(&mut self, key: usize, request: &Request, job: &JobRecord) {
        let before = self.watch.ticks.kept.insert(key, job.saved.clone()).flatten();
        let Verb::Call(Call::Save { of, .. }) = request.verb else {
            return;
        };
        let us = self.server_us();
        let is_owner = self
            .server
            .ledger
            .record(&request.name, us)
            .is_some_and(|record| matches!(record.owner, RecordOwner::Claim(owner, _) if owner == of));
        if before != job.saved && !(is_owner && job.mark == request.mark) {
            self.wrong(Wrong::CheckpointKept, Some(key), || {
                format!(
                    "{of} of {:?} left something, and it is known that {job:?}",
                    request.mark
                )
            });
        }
    }
}
