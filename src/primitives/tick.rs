//! The lease of one tick of a job: one node acquires it, and no node does after the tick is over.

use std::time::Duration;

use crate::driver::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::primitives::acquire::Acquire;
use crate::primitives::guard::{Guard, Lease};
use crate::primitives::target::Target;
use crate::protocol::message::{
    Call, CallAnswer, ClaimId, JobReport, Name, Payload, TickRefusal, TickTime, WhenBehind,
};
use crate::protocol::step::{CallOptions, LockOptions, WhyDenied};

/// Acquires a tick of the job `job`, and stands by while another node runs it. Returns a guard, or the reason why the tick does
/// not run now.
///
/// # Errors
/// Bad input, or a store that did not decide.
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
    let mut acquire = Acquire::new(handle, &Name::job(job.clone()), options);
    acquire.enter().inspect_err(|error| acquire.note_refusal(error))?;
    match acquire.answer().await {
        Ok(guard) => Ok(Ok(guard)),
        Err(WhyDenied::Tick(refusal)) => Ok(Err(refusal)),
        Err(why) => Err(acquire.error(why)),
    }
}

/// Sends a call about the job `job`, with its data, and returns the store's report.
///
/// # Errors
/// Bad input, or a store that did not answer.
pub(crate) async fn ask_about_job(
    handle: &Handle,
    job: &Key,
    lease: Duration,
    (call, data): (Call, Option<Payload>),
) -> Result<JobReport, Error> {
    let target = Target::new(handle.clone(), Name::job(job.clone())).lease(lease);
    let set = |call: &mut CallOptions| call.data = data;
    let report = target.ask(call, set, CallAnswer::try_as_report)?.await?;
    Ok(*report)
}

/// Sends a call about the run of a tick, and returns the store's report. The run must be current at the store when it answers,
/// and in this process after that. A checkpoint to save is sent as `data`.
///
/// # Errors
/// [`Error::Lost`] if the run is not current. Otherwise bad input, or a store that did not answer.
pub(crate) async fn ask_about_run(
    run: &Lease,
    lease: Duration,
    call: impl FnOnce(ClaimId) -> Call,
    (tick, data): (TickTime, Option<Payload>),
) -> Result<JobReport, Error> {
    let held = &run.held;
    let holding = held.holding().ok_or_else(|| held.lost())?;
    let target = Target::new(held.handle.clone(), held.name.clone()).lease(lease);
    let set = |call: &mut CallOptions| (call.mark, call.data) = (Some(tick), data);
    let asked = target.ask(call(holding.claim), set, CallAnswer::try_as_report);
    let report = asked?.await?;
    if report.owns && held.is_held() {
        return Ok(*report);
    }
    Err(held.gone())
}
