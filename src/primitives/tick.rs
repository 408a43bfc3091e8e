//! One tick of a job: acquired by one node of all, and by nobody once it is over.

use std::time::Duration;

use crate::driver::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::primitives::acquire::Acquire;
use crate::primitives::call::{self, Call};
use crate::primitives::guard::{Guard, Lease};
use crate::protocol::message::{Checkpoint, JobReport, Name, Question, TickTime, Turn};
use crate::protocol::step::{AcquireError, Answer, CallOptions, LockOptions, TickRefusal};

/// Pursues a tick of the job called `job`: wins it, or stands by until its winner has ended. Returns a guard, or why the tick
/// does not run now.
///
/// # Errors
/// What keeps the store from deciding.
pub(crate) async fn acquire_tick(
    handle: &Handle,
    job: &Key,
    lease: Duration,
    (tick, turn): (TickTime, Turn),
) -> Result<Result<Guard, TickRefusal>, Error> {
    let options = LockOptions {
        mark: Some(tick),
        turn,
        ..LockOptions::new(handle.options().times(lease))
    };
    let mut acquire = Acquire::new(handle.clone(), Name::job(job.clone()), options);
    acquire.enter().inspect_err(|error| acquire.note_refusal(error))?;
    match (&mut acquire).await {
        Ok(guard) => Ok(Ok(guard)),
        Err(AcquireError::Tick(refusal)) => Ok(Err(refusal)),
        Err(why) => Err(acquire.error(why)),
    }
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
    let term = handle.options().times(lease);
    let options = CallOptions {
        mark: tick,
        data,
        ..call::check(handle, &name, term, question)?
    };
    let report = Call::new(handle, &name, options, Answer::try_as_report).await?;
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
    let Some(of) = held.holding().map(|holding| holding.claim) else {
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
