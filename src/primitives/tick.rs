//! One tick of a job: acquired by one node of all, and by nobody once it is over.

use std::time::Duration;

use crate::driver::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::primitives::acquire::LockFuture;
use crate::primitives::guard::{Guard, Lease};
use crate::primitives::mutex::Mutex;
use crate::protocol::message::{Call, ClaimId, JobReport, Name, Payload, TickTime, WhenBehind};
use crate::protocol::step::{AcquireError, CallAnswer, CallOptions, LockOptions, TickRefusal};

/// Pursues a tick of the job called `job`: wins it, or stands by until its winner has ended. Returns a guard, or why the tick
/// does not run now.
///
/// # Errors
/// What keeps the store from deciding.
pub(crate) async fn acquire_tick(
    handle: &Handle,
    job: &Key,
    lease: Duration,
    (tick, turn): (TickTime, WhenBehind),
) -> Result<Result<Guard, TickRefusal>, Error> {
    let options = LockOptions {
        mark: Some(tick),
        turn,
        ..LockOptions::new(handle.options().times(lease))
    };
    let mut acquire = LockFuture::new(handle, &Name::job(job.clone()), options);
    acquire.enter().inspect_err(|error| acquire.note_refusal(error))?;
    match acquire.answer().await {
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
    call: Call,
) -> Result<JobReport, Error> {
    let line = Mutex::new(handle.clone(), Name::job(job.clone())).lease(lease);
    let report = line.ask(call, |_| {}, CallAnswer::try_as_report)?.await?;
    Ok(*report)
}

/// Asks the store about the run of a tick, which must be current: by the store when it answers, and here after that. What is
/// saved travels as `data`.
///
/// # Errors
/// [`Error::Lost`] when it is not; else what keeps the store from answering.
pub(crate) async fn ask_about_run(
    run: &Lease,
    lease: Duration,
    call: impl FnOnce(ClaimId) -> Call,
    (tick, data): (TickTime, Option<Payload>),
) -> Result<JobReport, Error> {
    let held = &run.held;
    let holding = held.holding().ok_or_else(|| held.lost())?;
    let line = Mutex::new(held.handle.clone(), held.name.clone()).lease(lease);
    let set = |call: &mut CallOptions| (call.mark, call.data) = (Some(tick), data);
    let asked = line.ask(call(holding.claim), set, CallAnswer::try_as_report);
    let report = asked?.await?;
    if report.owns && held.is_held() {
        return Ok(*report);
    }
    Err(held.gone())
}
