//! An operator, who asks holders for their leases, revokes leases, and hands some over at once.

use std::sync::Arc;

use tenure::protocol::job_act::{JobAct, JobActReply, JobActRequest};
use tenure::protocol::ledger::RecordOwner;
use tenure::protocol::message::{Asking, GrantNumber, Kind, Mode, Push, TickTime};
use tenure::protocol::steal::{StealAct, StealReply, StealRequest, StealTarget};

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::event::Event;
use crate::world::signal::Signal;

impl World {
    /// Begins the work of the operator. Derived, not drawn, so that the other worlds stay the same: worlds without faults of a
    /// server, with several servers, with failovers, and with a server that forgets often.
    pub(crate) fn call_operator(&mut self) {
        let seed = self.setup.seed;
        let is_chosen = seed % 16 == 9 || seed % 16 == 15 || seed % 32 == 22 || seed % 32 == 28;
        if is_chosen && !self.profile.crowd && !self.is_quorum() {
            self.at(300 * MS, Event::Operator);
        }
    }

    /// Takes one step about the lease of some key, and plans the next.
    pub(crate) fn operate(&mut self) {
        if self.draining {
            return self.resume_jobs();
        }
        let pause = self.operator_rng.u64(20 * MS..400 * MS);
        self.after(pause, Event::Operator);
        let key = self.operator_rng.usize(0..self.keys.len());
        if self.keys[key].kind == Kind::Job && self.operator_rng.u8(0..4) > 0 {
            self.with_key(key, |world| world.act_on_job(key));
        } else if Some(key) != self.latch {
            self.with_key(key, |world| world.steal(key));
        }
    }

    /// Pauses a job, or resumes it.
    fn act_on_job(&mut self, key: usize) {
        let is_away = self.server.down || self.server.stall > self.now || self.server.loading > self.now;
        if is_away || self.server.read_only > self.now {
            return;
        }
        let job = self.job(key);
        let (is_paused, wanted) = (job.paused.is_some(), job.wanted.map(|wanted| wanted.tick));
        let act = match self.operator_rng.u8(0..16) {
            // Sometimes for the latest tick, and sometimes for the present second.
            8..11 => JobAct::Trigger {
                for_tick: job.mark.filter(|_| self.operator_rng.bool()),
            },
            11 => JobAct::Cancel {
                tick: wanted
                    .filter(|_| self.operator_rng.bool())
                    .or(job.mark)
                    .unwrap_or_default(),
                since_ms: None,
            },
            12.. => return,
            // Most pauses are short.
            _ if !is_paused && self.operator_rng.u8(0..3) > 0 => return,
            0 => JobAct::Pause,
            _ if !is_paused => JobAct::Pause,
            1..3 => JobAct::Resume { catch_up: true },
            _ => JobAct::Resume { catch_up: false },
        };
        self.apply_act(key, act);
    }

    fn apply_act(&mut self, key: usize, act: JobAct) {
        let before = self.job(key).mark;
        let cancelled = matches!(act, JobAct::Cancel { tick, .. } if Some(tick) == before);
        let request = JobActRequest {
            name: self.keys[key].clone(),
            act,
            by: "an operator".into(),
            why: "".into(),
        };
        let us = self.server_us();
        let ms = us / 1000;
        let mut pushes = Vec::new();
        let reply = self.server.ledger.act_on_job(&request, (us, ms), &mut pushes);
        for push in pushes {
            if let Push::Revoked(_, claim, _) = push {
                self.memory.revoked.insert(claim);
            }
            self.push(push);
        }
        self.note(None, Some(key), || format!("operator: {act:?} -> {reply:?}"));
        if reply != JobActReply::Done {
            return;
        }
        self.cover(match act {
            JobAct::Pause => Case::JobPaused,
            JobAct::Resume { catch_up: false } => Case::JobResumed,
            JobAct::Resume { catch_up: true } => Case::JobCaughtUp,
            JobAct::Trigger { .. } => Case::JobTriggered,
            JobAct::Cancel { .. } => Case::TickCancelled,
        });
        let job = self.job(key);
        if act == (JobAct::Resume { catch_up: false }) {
            self.memory.ticks.passed_over.insert(key, (before, TickTime(ms)));
        }
        self.memory.ticks.skipped.insert(key, job.skipped);
        if cancelled {
            // As if its winner had ended it.
            let tick = self.memory.ticks.ticks.entry((key, before)).or_default();
            tick.ended = true;
            let highest = self.memory.highest;
            self.memory.ticks.cancelled.insert((key, before), highest);
        }
        if let JobAct::Trigger { .. } | JobAct::Cancel { .. } = act {
            self.memory.ticks.note_wanted(key, &job);
        }
        self.memory.ticks.kept.insert(key, job.saved.clone());
        if let Some(known) = self.memory.ticks.history.get_mut(&key) {
            *known = job;
        }
        self.raise(Signal::KeyChanged { key });
    }

    /// Resumes each job and wants nothing more, so that all ticks come to their ends.
    pub(crate) fn resume_jobs(&mut self) {
        for key in 0..self.keys.len() {
            if self.keys[key].kind == Kind::Job {
                self.with_key(key, |world| world.end_acts(key));
            }
        }
    }

    fn end_acts(&mut self, key: usize) {
        if let Some(wanted) = self.job(key).wanted {
            let tick = wanted.tick;
            self.apply_act(key, JobAct::Cancel { tick, since_ms: None });
        }
        if self.job(key).paused.is_some() {
            self.apply_act(key, JobAct::Resume { catch_up: true });
        }
    }

    fn steal(&mut self, key: usize) {
        let is_away = self.server.down || self.server.stall > self.now || self.server.loading > self.now;
        if is_away || self.server.read_only > self.now {
            return;
        }
        let Some(target) = self.choose_target(key) else {
            return;
        };
        let act = match self.operator_rng.u8(0..10) {
            0..4 => StealAct::Ask(Arc::new(Asking::default())),
            // After a hand-over two nodes believe that they hold the lease, which is no calm.
            9 if self.profile.fault_period.1 > 0 => StealAct::HandOver,
            _ => StealAct::Revoke,
        };
        let hands_over = matches!(act, StealAct::HandOver);
        let steal = StealRequest {
            name: self.keys[key].clone(),
            target,
            act,
            tells: self.operator_rng.u8(0..10) < 7,
        };
        if hands_over {
            // Its holder may believe that it holds the lease, and another one has it.
            self.exempt(key);
            self.extend_fault(self.now + self.profile.longest().as_nanos() as u64);
        }
        let us = self.server_us();
        let mut pushes = Vec::new();
        let reply = self.server.ledger.steal(us, &steal, &mut pushes);
        self.note(None, Some(key), || format!("operator: {steal:?} -> {reply:?}"));
        self.cover_branches();
        pushes.into_iter().for_each(|push| self.push(push));
        if let StealReply::Done(claim) = reply {
            let is_revoked = !matches!(steal.act, StealAct::Ask(_));
            self.memory.revoked.extend(claim.filter(|_| is_revoked));
            if hands_over {
                // The operator knows no poll gap, and leaves nothing free.
                self.memory.handed_on[key] = None;
                self.execute(&mut steal.leave(claim));
                // The holder did not ask for this.
                self.memory.ended.retain(|ended| Some(*ended) != claim);
                self.memory.handed_on[key] = None;
            }
        }
        self.raise(Signal::KeyChanged { key });
    }

    /// Returns a lease of the key, if there is one.
    fn choose_target(&mut self, key: usize) -> Option<StealTarget> {
        let records = self.key_records(&self.keys[key]);
        if let Some(record) = &records.record {
            let number = match record.owner {
                RecordOwner::Claim(_, number) | RecordOwner::Revoked(_, number) => number,
                RecordOwner::Foreign | RecordOwner::RevokedForeign => {
                    return Some(StealTarget::Foreign("".into()));
                }
                RecordOwner::WrongType => return None,
            };
            // Sometimes the lease changed hands since the operator looked.
            let number = GrantNumber(number.0 - u64::from(self.operator_rng.u8(0..16) == 0));
            return Some(StealTarget::Grant(number, Mode::Exclusive));
        }
        let shares = &records.shares;
        let at = (!shares.is_empty()).then(|| self.operator_rng.usize(0..shares.len()))?;
        let share = &shares[at];
        Some(match share.is_revoked {
            true => StealTarget::RevokedShare(share.claim_id.node, share.claim_id.claim, share.mode),
            false => StealTarget::Grant(share.number, share.mode),
        })
    }
}
