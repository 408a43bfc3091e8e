//! Jobs that a test fires by hand, or by a scheduler of its own: for each tick of that scheduler, whatever its time is.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use chrono::Utc;
use croner::parser::{CronParser, Seconds};
use tenure::scheduler::{EndedRun, JobError, JobOutput, LeasedJob, Misfire, Overlap, Retry, Work};
use tenure::testing::fire_tick;
use tenure::{Key, Locks, Tick};
use tokio_cron_scheduler::{Job, JobScheduler};
use uuid::Uuid;

/// What the closure of a job returns.
pub type Pursuit = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The closure of a job, as `Job::new_async` takes it. It keeps the job.
pub type Closure = Box<dyn FnMut(Uuid, JobScheduler) -> Pursuit + Send + Sync>;

/// So rare that no node starts a tick by its own clock during a test.
const RARE: &str = "0 0 0 1 1 *";

/// Makes jobs whose ticks are those of the scheduler that calls their closures.
pub trait ByHand {
    fn job_builder(&self, name: impl Into<Key>) -> JobByHand;

    fn job(&self, name: impl Into<Key>, work: impl Work) -> Result<Closure, JobError> {
        self.job_builder(name).run(work)
    }

    fn job_with(&self, name: impl Into<Key>, lease: Duration, work: impl Work) -> Result<Closure, JobError> {
        self.job_builder(name).lease(lease).run(work)
    }
}

impl ByHand for Locks {
    fn job_builder(&self, name: impl Into<Key>) -> JobByHand {
        let name = name.into();
        JobByHand {
            job: self.cron(name.clone(), RARE),
            locks: self.clone(),
            name,
        }
    }
}

/// The builder of such a job.
pub struct JobByHand {
    job: LeasedJob,
    locks: Locks,
    name: Key,
}

impl JobByHand {
    fn set(mut self, set: impl FnOnce(LeasedJob) -> LeasedJob) -> Self {
        self.job = set(self.job);
        self
    }

    pub fn lease(self, lease: Duration) -> Self {
        self.set(|job| job.lease(lease))
    }

    pub fn timeout(self, timeout: Duration) -> Self {
        self.set(|job| job.timeout(timeout))
    }

    pub fn attempts(self, attempts: u32) -> Self {
        self.set(|job| job.attempts(attempts))
    }

    pub fn overlap(self, policy: Overlap) -> Self {
        self.set(|job| job.overlap(policy))
    }

    pub fn misfire(self, policy: Misfire) -> Self {
        self.set(|job| job.misfire(policy))
    }

    pub fn retry(self, policy: Retry) -> Self {
        self.set(|job| job.retry(policy))
    }

    pub fn on_end(self, call: impl Fn(EndedRun) + Send + Sync + 'static) -> Self {
        self.set(|job| {
            job.on_end(move |end| {
                call(end);
                std::future::ready(())
            })
        })
    }

    pub fn finish_within(self, age: Duration) -> Self {
        self.set(|job| job.finish_within(age))
    }

    pub fn run(self, work: impl Work) -> Result<Closure, JobError> {
        let made = self.job.run(work)?;
        Ok(closure(self.locks, self.name, made))
    }

    pub fn run_blocking<F, T>(self, work: F) -> Result<Closure, JobError>
    where
        F: Fn(Tick) -> T + Send + Sync + 'static,
        T: JobOutput + Send + 'static,
    {
        let made = self.job.run_blocking(work)?;
        Ok(closure(self.locks, self.name, made))
    }
}

fn closure(locks: Locks, name: Key, made: Job) -> Closure {
    Box::new(move |id, scheduler| {
        // The name is free again when the closure is dropped.
        let _ = &made;
        let (locks, name) = (locks.clone(), name.clone());
        Box::pin(async move {
            let nominal = nominal(id, &scheduler).await;
            fire_tick(&locks, name, nominal).await;
        })
    })
}

/// Returns the latest tick of the job that the scheduler knows by this id.
async fn nominal(id: Uuid, scheduler: &JobScheduler) -> SystemTime {
    let asked = scheduler.context.metadata_storage.write().await.get(id);
    let data = asked.await.unwrap().expect("the scheduler knows the job");
    let text = data.schedule().expect("it has an expression").as_str().to_owned();
    let parser = CronParser::builder()
        .seconds(Seconds::Required)
        .dom_and_dow(true)
        .sloppy_ranges(true)
        .build();
    let cron = parser.parse(&text).unwrap();
    cron.find_previous_occurrence(&Utc::now(), true).unwrap().into()
}
