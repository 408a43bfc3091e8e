//! The acts of operators about a job.

use std::sync::Arc;

use crate::protocol::flaw::Flaw;
use crate::protocol::job_act::{JobAct, JobActReply, JobActRequest};
use crate::protocol::ledger::Ledger;
use crate::protocol::message::{JobPause, TickTime};

impl Ledger {
    /// Executes an act of an operator at this date. A job without a record is unknown: a typing error creates nothing.
    pub fn act_on_job(&mut self, request: &JobActRequest, date_ms: u64) -> JobActReply {
        let plant = self.plant;
        let Some(job) = self.jobs.get_mut(&request.name) else {
            return JobActReply::Unknown;
        };
        match request.act {
            JobAct::Pause if job.paused.is_some() => return JobActReply::Unchanged,
            JobAct::Pause => {
                job.paused = Some(Arc::new(JobPause {
                    since_ms: date_ms,
                    by: request.by.clone(),
                    why: request.why.clone(),
                }));
            }
            JobAct::Resume { catch_up } => {
                if job.paused.take().is_none() {
                    return JobActReply::Unchanged;
                }
                if !catch_up && !plant.is(Flaw::PausedTickResumed) {
                    job.skipped = job.skipped.max(Some(TickTime(date_ms)));
                }
            }
        }
        JobActReply::Done
    }
}
