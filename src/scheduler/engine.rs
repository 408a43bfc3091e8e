//! The only file that knows how tokio-cron-scheduler works.
//!
//! It compensates for three limits of version 0.15.1. That crate tells a job no nominal time, so the time is computed
//! from the job's own expression. It polls every 500 ms, at a different phase in each process. And a panic in the
//! closure poisons a lock and ends the job for ever, so the closure itself calls no code of the user.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;
use tokio_cron_scheduler::{Job as CronJob, JobScheduler, JobSchedulerError};
use uuid::Uuid;

use crate::observe;
use crate::protocol::message::TickTime;
use crate::scheduler::error::JobError;
use crate::scheduler::registration::JobRegistration;
use crate::scheduler::schedule::Schedule;
use crate::scheduler::scheduled_job::ScheduledJob;
use crate::scheduler::tick_runner::TickRunner;
use crate::scheduler::work::Work;

/// The future that a closure for `Job::new_async` returns.
pub(crate) type JobFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns the closure that tokio-cron-scheduler calls.
pub(crate) fn closure<F: Work>(
    (runner, registration): (TickRunner, JobRegistration),
    schedule: Option<Schedule>,
    work: F,
) -> impl FnMut(Uuid, JobScheduler) -> JobFuture + Send + Sync + 'static {
    let (job, registration) = (ScheduledJob::new(runner, schedule, work), Arc::new(registration));
    #[cfg(feature = "testing")]
    job.register();
    job.start_background_tasks();
    move |id, scheduler| {
        // The registration lives as long as the closure. A run must not keep it, because the scheduler keeps a
        // closure as long as one of its runs continues.
        let (job, registration) = (job.clone(), Arc::downgrade(&registration));
        // The subscription comes first, so that a removal is not missed.
        let deleted = scheduler.context.job_deleted_tx.subscribe();
        let clock = job.runner.clock();
        let pursuit = async move {
            job.start_background_tasks();
            let removed = pin!(wait_until_removed(id, &scheduler, deleted));
            let mut fired = pin!(handle_fire(id, &scheduler, &job));
            tokio::select! {
                biased;
                () = &mut fired => return,
                () = removed => {}
            }
            // The name is now free for another job, and the standbys of this node stop. A run continues to its end.
            if let Some(registration) = Weak::upgrade(&registration) {
                registration.end();
            }
            fired.await;
        };
        Box::pin(clock.task(pursuit))
    }
}

async fn handle_fire<F: Work>(id: Uuid, scheduler: &JobScheduler, job: &Arc<ScheduledJob<F>>) {
    match nominal(id, scheduler, job).await {
        // A scheduler that knows only the offset of a zone also fires at other times.
        Ok(mark) if !job.is_due(mark) => {}
        Ok(mark) => {
            if !job.is_storage_checked.swap(true, Ordering::Relaxed) {
                let (job, scheduler) = (job.clone(), scheduler.clone());
                tokio::spawn(async move {
                    if let Some(foreign) = foreign_job(&scheduler).await {
                        observe::storage_shared(job.runner.label(), &job.runner.name, foreign);
                    }
                });
            }
            job.handle_tick(mark, false).await;
        }
        Err(why) => observe::job_refused(job.runner.label(), &job.runner.name, &why),
    }
}

/// Returns the tick that fired just now.
async fn nominal<F>(id: Uuid, scheduler: &JobScheduler, job: &ScheduledJob<F>) -> Result<TickTime, String> {
    let schedule = job
        .runner
        .schedule
        .get_or_try_init(|| expression(id, scheduler))
        .await?;
    job.engine_ended.get_or_init(|| ended_flag(scheduler)).await;
    schedule.latest(job.runner.now())
}

/// Returns the flag that a scheduler sets when it is shut down.
pub(crate) async fn ended_flag(scheduler: &JobScheduler) -> Arc<AtomicBool> {
    scheduler.scheduler.read().await.shutdown.clone()
}

/// Returns the schedule from the scheduler's own data.
async fn expression(id: Uuid, scheduler: &JobScheduler) -> Result<Schedule, String> {
    let context = scheduler.context.clone();
    let asked = context.metadata_storage.write().await.get(id);
    let data = asked
        .await
        .map_err(|error| format!("the scheduler's data cannot be read: {error}"))?;
    let data = data.ok_or("the scheduler does not know the job that it fires")?;
    let text = data.schedule().map(|cron| cron.as_str().to_owned());
    utc_schedule(text, data.time_offset_seconds)
}

/// Returns the schedule if all nodes read it alike: an expression in UTC.
fn utc_schedule(text: Option<String>, offset_seconds: i32) -> Result<Schedule, String> {
    if offset_seconds != 0 {
        return Err(format!(
            "the job is scheduled {offset_seconds} s off UTC, by `Job::new_async_tz` or `JobBuilder::with_timezone`, and \
             tokio-cron-scheduler freezes the offset of a zone when the job is made: use `Locks::cron` or \
             `JobBuilder::leased`, which know the zone, or `Job::new_async`, whose expression is read in UTC",
        ));
    }
    let text = text.ok_or(
        "the job has no cron expression, and only cron jobs have ticks that all nodes agree on: for a fixed period use \
         `Locks::every`, which takes the place of `Job::new_repeated_async`",
    )?;
    Schedule::parse(&text)
}

/// Returns why a job cannot be leased, before it is added.
pub(crate) fn unfit(job: &mut CronJob) -> Result<(), String> {
    let data = job
        .job_data()
        .map_err(|error| format!("the job's data cannot be read: {error}"))?;
    let text = data.schedule().map(|cron| cron.as_str().to_owned());
    utc_schedule(text, data.time_offset_seconds).map(drop)
}

/// Adds a job, unless the scheduler's storage is shared with other processes.
pub(crate) async fn add(scheduler: &JobScheduler, job: CronJob) -> Result<Uuid, JobError> {
    let id = scheduler.add(job).await.map_err(JobError::Scheduler)?;
    let Some(foreign) = foreign_job(scheduler).await else {
        return Ok(id);
    };
    scheduler.remove(&id).await.map_err(JobError::Scheduler)?;
    Err(JobError::SharedStorage { foreign })
}

/// How often the storage is checked again, and the pause between two checks. A job that is being added has no code
/// for a moment.
const ADDING: (usize, Duration) = (10, Duration::from_millis(50));

/// Returns a job in the scheduler's storage that this process has no code for: another process put it there. Only one
/// of the two schedulers fires a shared job.
async fn foreign_job(scheduler: &JobScheduler) -> Option<Uuid> {
    let mut found = find_foreign_job(scheduler).await;
    for _ in 0..ADDING.0 {
        found?;
        sleep(ADDING.1).await;
        found = find_foreign_job(scheduler).await;
    }
    found
}

async fn find_foreign_job(scheduler: &JobScheduler) -> Option<Uuid> {
    let context = scheduler.context.clone();
    let listing = context.metadata_storage.write().await.list_next_ticks();
    for tick in listing.await.ok()? {
        let Some(id) = tick.id.as_ref().map(Uuid::from) else {
            continue;
        };
        let looking = context.job_code.write().await.get(id);
        if looking.await.is_ok_and(|code| code.is_none()) {
            return Some(id);
        }
    }
    None
}

/// The message of a scheduler about a job that it removed, or could not remove.
type DeletionNotice = Result<Uuid, (JobSchedulerError, Option<Uuid>)>;

/// Resolves when the scheduler has removed the job.
async fn wait_until_removed(id: Uuid, scheduler: &JobScheduler, mut deleted: Receiver<DeletionNotice>) {
    let context = scheduler.context.clone();
    loop {
        match deleted.recv().await {
            Ok(Ok(of)) if of == id => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => {
                let asked = context.metadata_storage.write().await.get(id);
                if asked.await.is_ok_and(|data| data.is_none()) {
                    return;
                }
            }
            Err(RecvError::Closed) => return pending().await,
        }
    }
}
