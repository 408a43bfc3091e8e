//! The only file that knows how tokio-cron-scheduler works.
//!
//! It compensates for three limits of version 0.15.1. That crate tells a job no nominal time, so the time is computed
//! from the job's own schedule. It polls every 500 ms, at a different phase in each process. And a panic in the
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
use crate::scheduler::error::JobError;
use crate::scheduler::registration::JobRegistration;
use crate::scheduler::scheduled_job::ScheduledJob;
use crate::scheduler::tick_runner::TickRunner;
use crate::scheduler::work::Work;

/// The future that a closure for `Job::new_async` returns.
pub(crate) type JobFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns the closure that tokio-cron-scheduler calls.
pub(crate) fn closure<F: Work>(
    (runner, registration): (TickRunner, JobRegistration),
    work: F,
) -> impl FnMut(Uuid, JobScheduler) -> JobFuture + Send + Sync + 'static {
    let (job, registration) = (ScheduledJob::new(runner, work), Arc::new(registration));
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
            let mut fired = pin!(handle_fire(&scheduler, &job));
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

async fn handle_fire<F: Work>(scheduler: &JobScheduler, job: &Arc<ScheduledJob<F>>) {
    job.engine_ended.get_or_init(|| ended_flag(scheduler)).await;
    // A scheduler that knows only the offset of a zone also fires at other times, and before the first tick.
    let mark = job.runner.schedule.latest(job.runner.now());
    if let Ok(mark) = mark
        && job.is_due(mark)
    {
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
}

/// Returns the flag that a scheduler sets when it is shut down.
pub(crate) async fn ended_flag(scheduler: &JobScheduler) -> Arc<AtomicBool> {
    scheduler.scheduler.read().await.shutdown.clone()
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
