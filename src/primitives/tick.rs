//! One tick of a job: acquired by one node of all, and by nobody once it is over.

use std::time::Duration;

use crate::driver::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::primitives::acquire::{Acquire, Wanted};
use crate::primitives::call::{self, Call};
use crate::primitives::guard::Lease;
use crate::protocol::message::{Checkpoint, JobReport, Name, Question, TickTime, Turn};
use crate::protocol::step::{Answer, CallOptions};

/// Pursues a tick of the job called `job`: wins it, or stands by until its winner has ended.
pub(crate) fn acquire_tick(
    handle: &Handle,
    job: &Key,
    lease: Duration,
    tick: TickTime,
    turn: Turn,
) -> Acquire {
    let wanted = Wanted {
        wait: true,
        tick: Some(tick),
        turn,
        ..Wanted::new(Name::job(job.clone()), lease)
    };
    Acquire::new(handle.clone(), wanted)
}

/// Asks the store about the job called `job`.
///
/// # Errors
/// What keeps the store from answering.
pub(crate) async fn ask_about_job(
    handle: &Handle,
    job: &Key,
    lease: Duration,
    question: Question,
) -> Result<JobReport, Error> {
    ask(handle, job, lease, (question, None, None)).await
}

async fn ask(
    handle: &Handle,
    job: &Key,
    lease: Duration,
    (question, tick, data): (Question, Option<TickTime>, Option<Checkpoint>),
) -> Result<JobReport, Error> {
    let name = Name::job(job.clone());
    let options = CallOptions {
        mark: tick,
        data,
        ..call::check(handle, &name, lease, question)?
    };
    let report = Call::new(handle, &name, options, Answer::report).await?;
    Ok(*report)
}

/// What is asked about a run by whoever makes it.
pub(crate) enum AboutRun {
    Verify,
    Recall,
    /// To be kept, and which of those that this run leaves it is.
    Save(u64, Checkpoint),
}

/// Asks the store about the run of a tick, which must be current: by the store when it answers, and here after that.
///
/// # Errors
/// [`Error::Lost`] when it is not; else what keeps the store from answering.
pub(crate) async fn ask_about_run(
    run: &Lease,
    lease: Duration,
    tick: TickTime,
    about: AboutRun,
) -> Result<JobReport, Error> {
    let held = &run.held;
    let Some(of) = held.handle.node().claim(&held.name, held.ticket) else {
        return Err(held.lost());
    };
    let (question, data) = match about {
        AboutRun::Verify => (Question::Verify { of }, None),
        AboutRun::Recall => (Question::Recall { of }, None),
        AboutRun::Save(seq, data) => (Question::Save { of, seq }, Some(data)),
    };
    let report = ask(&held.handle, &held.name.key, lease, (question, Some(tick), data)).await?;
    if report.owns && held.is_held() {
        return Ok(report);
    }
    Err(held.gone())
}
