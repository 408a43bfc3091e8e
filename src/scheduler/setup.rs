//! A leased job that is being set up, and the ways in which it gets its schedule.

use std::any::Any;
use std::fmt::Debug;
use std::time::Duration;

use chrono::TimeZone;
use chrono_tz::Tz;
use tokio_cron_scheduler::{Job, JobBuilder, JobScheduler};
use uuid::Uuid;

#[cfg(feature = "testing")]
use crate::driver::waiter::lock;
use crate::error::OptionsError;
use crate::key::Key;
use crate::locks::Locks;
use crate::observe;
use crate::scheduler::engine::{self, JobFuture};
use crate::scheduler::error::JobError;
use crate::scheduler::explain::explain_rare_job;
use crate::scheduler::policy::{JobOutput, JobSettings, Misfire, OnCrash, Overlap, Retry};
use crate::scheduler::registration::JobRegistration;
use crate::scheduler::schedule::Schedule;
use crate::scheduler::tick::Tick;
use crate::scheduler::tick_runner::TickRunner;
use crate::scheduler::work::{Work, blocking};
use crate::scheduler::zone::IntoZone;

/// A job without a schedule: [`run`](LeasedJob::run) makes of it what `Job::new_async` takes.
#[derive(Debug, Clone, Copy)]
pub struct Unscheduled;

/// A job with a schedule of its own: [`run`](LeasedJob::run) makes of it a job that a scheduler takes.
#[derive(Debug, Clone)]
pub struct Scheduled {
    spec: ScheduleSpec,
    zone: Result<Tz, String>,
}

#[derive(Debug, Clone)]
enum ScheduleSpec {
    Cron(String),
    Every(Duration),
}

/// A leased job that is being set up. Nothing happens until [`run`](LeasedJob::run) says what it does.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tenure::Locks;
/// use tokio_cron_scheduler::JobScheduler;
///
/// let locks = Locks::memory();
/// let job = locks
///     .cron("reconcile", "0 0 0 * * *")
///     .timezone("Europe/Berlin")
///     .lease(Duration::from_secs(20))
///     .timeout(Duration::from_secs(3600))
///     .run(|tick| async move { println!("{}", tick.nominal_unix()) })?;
/// let scheduler = JobScheduler::new().await?;
/// locks.add_job(&scheduler, job).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a job does nothing until `run` says what it does"]
pub struct LeasedJob<S> {
    locks: Locks,
    name: Key,
    settings: JobSettings,
    schedule: S,
}

impl<S> LeasedJob<S> {
    /// How long its lease lasts; default 30 s. It is renewed while the job runs, so it is no limit on its length. A shorter
    /// one lets a standby take over sooner when the winner dies.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Limits each try of a run, not the tick: a try that lasts longer is cancelled, and its tick is over (`timed_out`). With
    /// [`retry`](Self::retry) a tick may take this long for each try, and the pauses between them. By default a try has no
    /// limit, which would end long nightly jobs.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }

    /// How often a tick is begun at most; default 10, 1 at least. An attempt is one that the winner did not end: it died, lost
    /// its lease, or was drained. With 1 a tick is not run again when its winner dies. A limit keeps a job that kills its
    /// process from killing one after the other; when it is reached, the tick is over (`given_up`), and an event says so.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.settings.attempts = attempts.max(1);
        self
    }

    /// The same as a policy; by default [`OnCrash::Rerun`] ten times. Ten are more than replicas are replaced during a run.
    pub fn on_crash(self, policy: OnCrash) -> Self {
        self.attempts(match policy {
            OnCrash::Rerun { max } => max,
            OnCrash::Skip => 1,
        })
    }

    /// What becomes of a tick that comes while an earlier one is run, on whatever node; by default it is skipped. Set it alike
    /// on all nodes: each tick goes by what the node says that comes with it.
    pub fn overlap(mut self, policy: Overlap) -> Self {
        self.settings.overlap = policy;
        self
    }

    /// What becomes of ticks that could not be begun when they were due. By default the newest that some living node saw come
    /// is run as soon as the store is back, and what came while no node lived is not made up for. A job that the store does not
    /// know yet has missed nothing. Set it alike on all nodes.
    pub fn misfire(mut self, policy: Misfire) -> Self {
        self.settings.misfire = Some(policy);
        self
    }

    /// How often a run that fails, panics or runs out of time is begun again on the same node, under the same lease; by default
    /// never. Then its tick is over, whatever came of it.
    pub fn retry(mut self, policy: Retry) -> Self {
        self.settings.retry = policy;
        self
    }

    /// A tick whose winner and standbys are all gone is finished by whoever comes later, if it is not older than this;
    /// default a day. A shorter one leaves more of them unfinished; zero, all.
    pub fn finish_within(mut self, age: Duration) -> Self {
        self.settings.finish_within = age;
        self
    }

    /// Checks everything that can be checked before the job is fired.
    fn build_runner(self) -> Result<((TickRunner, JobRegistration), S), JobError> {
        let (name, options) = (self.name, self.locks.handle().options());
        let length = name.as_bytes().len();
        if length == 0 || length > options.max_key {
            return Err(JobError::Name {
                length,
                limit: options.max_key,
                name,
            });
        }
        options.term(self.settings.lease)?;
        if self.settings.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(JobError::Options(OptionsError(format!(
                "a timeout of zero would cancel each run of job `{name}` at once: give it more, or none"
            ))));
        }
        let runner = TickRunner::new(self.locks.handle().clone(), name.clone(), self.settings);
        Ok((runner.ok_or(JobError::Duplicate { name })?, self.schedule))
    }
}

impl LeasedJob<Unscheduled> {
    /// Makes of `work` what [`Job::new_async`] takes: it is called on the node that wins the tick, and nowhere else.
    ///
    /// Until the scheduler fires it for the first time, the job does not know its expression, as no scheduler tells it. Until
    /// then this node makes up for nothing that was missed, whatever [`misfire`](Self::misfire) says, and starts no tick that
    /// the scheduler has not fired. So a replica that is started after midnight leaves a midnight that nobody ran until the
    /// next. [`Locks::cron`] and [`Leased`] know the expression from the beginning.
    ///
    /// # Errors
    /// [`JobError`] when the name is taken in this process or unfit, or the lease makes no sense.
    pub fn run(
        self,
        work: impl Work,
    ) -> Result<impl FnMut(Uuid, JobScheduler) -> JobFuture + Send + Sync + 'static, JobError> {
        let (runner, Unscheduled) = self.build_runner()?;
        Ok(engine::closure(runner, None, work))
    }

    /// The same for work that blocks its thread: it runs on tokio's blocking pool. It cannot be cancelled, only told
    /// ([`Tick::check`], [`Tick::lost_token`]): its lease is renewed until the thread has ended, and only then given back, also
    /// when a drain or the timeout told it to end. What it returns then counts: without an error the tick is done.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_blocking<F, T>(
        mut self,
        work: F,
    ) -> Result<impl FnMut(Uuid, JobScheduler) -> JobFuture + Send + Sync + 'static, JobError>
    where
        F: Fn(Tick) -> T + Send + Sync + 'static,
        T: JobOutput + Send + 'static,
    {
        self.settings.blocks = true;
        self.run(blocking(work))
    }
}

impl LeasedJob<Scheduled> {
    /// The zone in which the expression is read: a [`Tz`], or its name. UTC by default.
    pub fn timezone(mut self, zone: impl IntoZone) -> Self {
        self.schedule.zone = zone.into_zone();
        self
    }

    /// The same as [`run`](Self::run) for work that blocks its thread; see
    /// [`run_blocking`](LeasedJob::<Unscheduled>::run_blocking).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_blocking<F, T>(mut self, work: F) -> Result<Job, JobError>
    where
        F: Fn(Tick) -> T + Send + Sync + 'static,
        T: JobOutput + Send + 'static,
    {
        self.settings.blocks = true;
        self.run(blocking(work))
    }

    /// Makes a job that a scheduler takes.
    ///
    /// # Errors
    /// [`JobError`] when the name is taken in this process or unfit, the lease makes no sense, or the expression or the zone
    /// is none.
    pub fn run(self, work: impl Work) -> Result<Job, JobError> {
        let (runner, Scheduled { spec, zone }) = self.build_runner()?;
        let (name, jobs) = (runner.0.name.clone(), runner.0.jobs.clone());
        let unfit = |why| JobError::unfit(&name, why);
        let zone = zone.map_err(unfit)?;
        let (schedule, expression) = match spec {
            ScheduleSpec::Cron(text) => (cron_schedule(&runner.0, &text, zone).map_err(unfit)?, text),
            ScheduleSpec::Every(period) => {
                (Schedule::every(period).map_err(unfit)?, engine_expression(period))
            }
        };
        let fire = engine::closure(runner, Some(schedule), work);
        let made = Job::new_async_tz(expression, zone, fire).map_err(JobError::Scheduler)?;
        jobs.knows_schedule(&name, made.guid());
        #[cfg(feature = "testing")]
        lock(&jobs.zones).insert(made.guid(), zone);
        Ok(made)
    }
}

/// When an expression is due in its zone. An event tells of the days on which it is not due as it reads, since clocks change.
///
/// # Errors
/// What is wrong with the expression.
fn cron_schedule<T>(runner: &TickRunner, text: &str, zone: T) -> Result<Schedule, String>
where
    T: TimeZone + Debug + Send + Sync + 'static,
{
    let known = (&zone as &dyn Any).downcast_ref::<Tz>().copied();
    let schedule = Schedule::in_zone(text, zone)?;
    schedule.check_has_next(runner.now())?;
    if let Some(zone) = known
        && let days = explain_rare_job(text, zone, runner.now())?
        && let Some(first) = days.first()
    {
        observe::job_odd_days(runner.label(), &runner.name, days.len(), first);
    }
    Ok(schedule)
}

/// How a scheduler is told to fire every so often. What it fires between two ticks is nothing.
fn engine_expression(period: Duration) -> String {
    let (seconds, minutes, hours) = (period.as_secs(), period.as_secs() / 60, period.as_secs() / 3600);
    if 60 % seconds == 0 {
        format!("*/{seconds} * * * * *")
    } else if seconds % 60 == 0 && 60 % minutes == 0 {
        format!("0 */{minutes} * * * *")
    } else if seconds % 3600 == 0 && 24 % hours == 0 {
        format!("0 0 */{hours} * * *")
    } else {
        "* * * * * *".to_owned()
    }
}

impl Locks {
    /// A job of that name, to be set up: its lease, its timeout. [`job`](Self::job) is short for one with defaults.
    pub fn job_builder(&self, name: impl Into<Key>) -> LeasedJob<Unscheduled> {
        self.leased_job(name.into(), Unscheduled)
    }

    /// A job with a cron expression, which is read in a zone of yours, whatever its offset will be: seconds first, as
    /// tokio-cron-scheduler reads it.
    pub fn cron(&self, name: impl Into<Key>, expression: impl Into<String>) -> LeasedJob<Scheduled> {
        let (spec, zone) = (ScheduleSpec::Cron(expression.into()), Ok(Tz::UTC));
        self.leased_job(name.into(), Scheduled { spec, zone })
    }

    /// A job every so many whole seconds, counted from the Unix epoch, so that all nodes agree on its ticks, whenever they
    /// were started. It takes the place of `Job::new_repeated_async`, which has no such ticks and is refused.
    pub fn every(&self, name: impl Into<Key>, period: Duration) -> LeasedJob<Scheduled> {
        let (spec, zone) = (ScheduleSpec::Every(period), Ok(Tz::UTC));
        self.leased_job(name.into(), Scheduled { spec, zone })
    }

    fn leased_job<S>(&self, name: Key, schedule: S) -> LeasedJob<S> {
        LeasedJob {
            locks: self.clone(),
            name,
            settings: JobSettings::default(),
            schedule,
        }
    }
}

/// [`JobBuilder`]s whose job is leased. Set the zone and the schedule first: this reads them, and asks the zone at each
/// tick, where the scheduler freezes its offset.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::Locks;
/// use tenure::scheduler::Leased;
/// use tokio_cron_scheduler::JobBuilder;
///
/// let locks = Locks::memory();
/// let job = JobBuilder::new()
///     .with_timezone(chrono_tz::Europe::Berlin)
///     .with_cron_job_type()
///     .with_schedule("0 0 0 * * *")?
///     .leased(&locks, "reconcile", |tick| async move { println!("{}", tick.nominal_unix()) })?
///     .build()?;
/// # let _ = job; Ok(()) }
/// ```
pub trait Leased: Sized {
    /// Has the job run on the node that wins its tick, and nowhere else. [`leased_with`](Self::leased_with) also sets its lease
    /// and its policies.
    ///
    /// # Errors
    /// [`JobError`] when the name is taken in this process or unfit, or the builder has no schedule yet.
    fn leased(self, locks: &Locks, name: impl Into<Key>, work: impl Work) -> Result<Self, JobError> {
        self.leased_with(locks.job_builder(name), work)
    }

    /// The same for a job that is set up: its lease, its timeout, its policies.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use tenure::Locks;
    /// use tenure::scheduler::{Leased, Misfire, Overlap};
    /// use tokio_cron_scheduler::JobBuilder;
    ///
    /// let locks = Locks::memory();
    /// let within = Duration::from_secs(900);
    /// let reconcile = locks
    ///     .job_builder("reconcile")
    ///     .overlap(Overlap::QueueOne)
    ///     .misfire(Misfire::RunOnce { within });
    /// let job = JobBuilder::new()
    ///     .with_timezone(chrono_tz::Europe::Berlin)
    ///     .with_cron_job_type()
    ///     .with_schedule("0 0 0 * * *")?
    ///     .leased_with(reconcile, |tick| async move { println!("{}", tick.nominal_unix()) })?
    ///     .build()?;
    /// # let _ = job; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`leased`](Self::leased), and when the lease makes no sense.
    fn leased_with(self, job: LeasedJob<Unscheduled>, work: impl Work) -> Result<Self, JobError>;

    /// The same for work that blocks its thread; see [`run_blocking`](LeasedJob::<Unscheduled>::run_blocking).
    ///
    /// # Errors
    /// As [`leased_with`](Self::leased_with).
    fn leased_blocking<F, O>(self, mut job: LeasedJob<Unscheduled>, work: F) -> Result<Self, JobError>
    where
        F: Fn(Tick) -> O + Send + Sync + 'static,
        O: JobOutput + Send + 'static,
    {
        job.settings.blocks = true;
        self.leased_with(job, blocking(work))
    }
}

impl<T: TimeZone + Debug + Send + Sync + 'static> Leased for JobBuilder<T> {
    fn leased_with(mut self, job: LeasedJob<Unscheduled>, work: impl Work) -> Result<Self, JobError> {
        let (runner, Unscheduled) = job.build_runner()?;
        let (name, jobs) = (runner.0.name.clone(), runner.0.jobs.clone());
        let unfit = |why| JobError::unfit(&name, why);
        let no_schedule = || unfit("the builder has no schedule yet: call `with_schedule` first".into());
        let text = self
            .schedule
            .as_ref()
            .ok_or_else(no_schedule)?
            .pattern
            .to_string();
        let schedule = match self.timezone.clone() {
            Some(zone) => cron_schedule(&runner.0, &text, zone),
            None => cron_schedule(&runner.0, &text, Tz::UTC),
        }
        .map_err(unfit)?;
        let id = Uuid::new_v4();
        #[cfg(feature = "testing")]
        if let Some(zone) = self
            .timezone
            .as_ref()
            .and_then(|zone| (zone as &dyn Any).downcast_ref::<Tz>())
        {
            lock(&jobs.zones).insert(id, *zone);
        }
        jobs.knows_schedule(&name, id);
        let fire = engine::closure(runner, Some(schedule), work);
        self = self.with_job_id(id.into());
        Ok(self.with_run_async(Box::new(fire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::waiter::lock;

    #[tokio::test]
    async fn a_job_that_is_made_and_never_added_leaves_nothing_behind() {
        let locks = Locks::memory();
        let jobs = locks.handle().jobs().clone();
        for _ in 0..3 {
            let made = locks
                .cron("a", "0 0 0 * * *")
                .timezone(Tz::Europe__Berlin)
                .run(|_| async {})
                .unwrap();
            assert!(jobs.has_schedule(made.guid()));
            drop(made);
            let builder = JobBuilder::new()
                .with_timezone(Tz::Europe__Berlin)
                .with_cron_job_type()
                .with_schedule("0 0 0 * * *")
                .unwrap();
            let built = builder.leased(&locks, "a", |_| async {}).unwrap();
            assert_eq!(lock(&jobs.names).len(), 1);
            drop(built);
            assert!(lock(&jobs.names).is_empty());
        }
    }
}
