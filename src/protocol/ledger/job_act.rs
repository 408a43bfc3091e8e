//! The acts of operators about a job.

use std::sync::Arc;

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::job_act::{JobAct, JobActReply, JobActRequest};
use crate::protocol::ledger::Ledger;
use crate::protocol::ledger::record::{JobRecord, Record, is_past};
use crate::protocol::message::{
    ClaimId, GrantNumber, Mode, OperatorAct, Push, RunEnding, RunOutcome, RunResult, TickTime, WantedRun,
};

impl Ledger {
    /// Executes an act of an operator at `now_us` and at this date. A job without a record is unknown: a typing error creates
    /// nothing. Appends the news for the nodes of the job to `pushes`.
    pub fn act_on_job(
        &mut self,
        request: &JobActRequest,
        (now_us, date_ms): (u64, u64),
        pushes: &mut Vec<Push>,
    ) -> JobActReply {
        let (name, plant) = (&request.name, self.plant);
        let Some(job) = self.jobs.get_mut(name) else {
            return JobActReply::Unknown;
        };
        if let Some(state) = self.states.get_mut(name) {
            state
                .record
                .take_if(|record| is_past(record.expires, now_us / 1000));
        }
        let act = OperatorAct {
            since_ms: date_ms,
            by: request.by.clone(),
            why: request.why.clone(),
        };
        let reply = match request.act {
            JobAct::Pause if job.paused.is_some() => JobActReply::Unchanged,
            JobAct::Pause => {
                job.paused = Some(Arc::new(act));
                JobActReply::Done
            }
            JobAct::Resume { catch_up } => job.resume(catch_up, date_ms, plant),
            JobAct::Trigger { for_tick } => {
                let state = self.states.get(name);
                let record = state.and_then(|state| state.record.as_ref());
                let owner = record.and_then(Record::number);
                job.trigger(for_tick, act, owner)
            }
            JobAct::Cancel { tick, since_ms } if job.end_tick(tick, since_ms, plant) => {
                let state = self.states.get_mut(name);
                let record = state.and_then(|state| state.record.as_mut());
                let claim = record.and_then(|record| job.end_run(tick, record, &act, now_us));
                pushes.extend(claim.map(|claim| Push::Revoked(name.clone(), claim, Mode::Exclusive)));
                job.forget_winner(tick);
                JobActReply::Done
            }
            JobAct::Cancel { .. } => JobActReply::OtherTick,
        };
        if reply == JobActReply::Done {
            let live = job.nodes.iter().filter(|(_, node)| date_ms <= node.until_ms);
            pushes.extend(live.map(|(node, _)| Push::Changed(*node, name.clone())));
        }
        reply
    }
}

impl JobRecord {
    fn resume(&mut self, catch_up: bool, date_ms: u64, plant: Plant) -> JobActReply {
        if self.paused.take().is_none() {
            return JobActReply::Unchanged;
        }
        self.resumed_ms = Some(date_ms);
        if !catch_up && !plant.is(Flaw::PausedTickResumed) {
            self.skipped = self.skipped.max(Some(TickTime(date_ms)));
        }
        JobActReply::Done
    }

    /// `owner`: the number of the grant that owns the job.
    fn trigger(
        &mut self,
        for_tick: Option<TickTime>,
        act: OperatorAct,
        owner: Option<GrantNumber>,
    ) -> JobActReply {
        let date_ms = act.since_ms;
        let nominal = for_tick.unwrap_or(TickTime(date_ms - date_ms % 1000));
        let latest = self.runs.back().filter(|run| Some(run.number) == owner);
        let runs = |wanted: &WantedRun| latest.is_some_and(|run| run.tick == wanted.tick);
        let wanted = self.wanted.as_deref();
        if wanted.is_some_and(|wanted| wanted.is_open(date_ms) || runs(wanted)) {
            return JobActReply::Unchanged;
        }
        if nominal.0 > date_ms {
            return JobActReply::InFuture;
        }
        if self.paused.is_some() && self.is_begun() {
            return JobActReply::TickUnfinished;
        }
        self.wanted = Some(Arc::new(WantedRun {
            tick: nominal.triggered(),
            attempt: 0,
            act,
        }));
        JobActReply::Done
    }

    /// Ends a tick that was begun, or withdraws a triggered one. Returns whether there was one.
    fn end_tick(&mut self, tick: TickTime, since_ms: Option<u64>, plant: Plant) -> bool {
        let is_meant = |wanted: &WantedRun| since_ms.is_none_or(|since_ms| since_ms == wanted.act.since_ms);
        if self.wanted_run(Some(tick)).is_some_and(is_meant) {
            self.wanted = None;
        } else if self.mark == Some(tick) && self.is_begun() {
            self.done = !plant.is(Flaw::CancelledTickOpen);
        } else {
            return false;
        }
        self.saved.take_if(|saved| saved.tick == tick);
        true
    }

    /// Ends the latest run if it is of the tick and owns the record, and revokes its lease. The lease keeps its end: the next run
    /// begins when this one was told, or when its lease has ended. Returns the claim to tell. A run that was lost stays as it is.
    fn end_run(
        &mut self,
        tick: TickTime,
        record: &mut Record,
        act: &OperatorAct,
        now_us: u64,
    ) -> Option<ClaimId> {
        let run = self.runs.back_mut().filter(|run| run.tick == tick)?;
        if record.number() != Some(run.number) {
            return None;
        }
        run.ending.get_or_insert_with(|| RunEnding {
            result: RunResult {
                outcome: RunOutcome::Cancelled,
                took_ms: now_us.saturating_sub(run.number.0) / 1000,
                retries: 0,
            },
            text: act.why.clone(),
        });
        let claim = record.claim();
        record.owner.revoke();
        claim.map(|(claim, _)| claim)
    }

    /// Forgets the claim that was granted the tick last, so that nothing it sends later ends the tick.
    fn forget_winner(&mut self, tick: TickTime) {
        if self.runs.back().is_some_and(|run| run.tick == tick) {
            self.winner = None;
        }
    }
}
