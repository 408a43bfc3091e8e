//! The builder of a leased job, and the ways to give it a schedule.

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
use crate::protocol::primitive::Primitive;
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

/// The state of a job without a schedule: [`run`](LeasedJob::run) returns what `Job::new_async` takes.
#[derive(Debug, Clone, Copy)]
pub struct Unscheduled;

/// The state of a job with its own schedule: [`run`](LeasedJob::run) returns a job for a scheduler.
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

/// A builder for a leased job. Nothing happens until [`run`](LeasedJob::run) sets the work.
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
#[must_use = "a job does nothing until `run` sets its work"]
pub struct LeasedJob<S> {
    locks: Locks,
    name: Key,
    settings: JobSettings,
    schedule: S,
}

impl<S> LeasedJob<S> {
    /// Sets the length of the job's lease; the default is 30 s. The lease is renewed while the job runs, so it does
    /// not limit the job's length. With a shorter lease, a standby takes over sooner when the winner dies.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Limits each try of a run, not the tick. A try that lasts longer is cancelled, and its tick is over
    /// (`timed_out`). With [`retry`](Self::retry), a tick may take this long for each try, plus the pauses between
    /// them. The default is no limit, because a limit would cut long nightly jobs short.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }

    /// Limits the number of attempts of a tick; the default is 10, and the minimum is 1. The next attempt begins if
    /// the winner did not end the tick: it died, lost its lease, or was drained. With 1, a tick does not run again
    /// when its winner dies. The limit stops a job that kills its process from killing each node in turn. When the
    /// limit is reached, the tick is over (`given_up`), and an event reports it.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.settings.attempts = attempts.max(1);
        self
    }

    /// Sets the number of attempts as a policy. The default is [`OnCrash::Rerun`] with 10 attempts, more than the
    /// replicas that a deploy replaces during a run.
    pub fn on_crash(self, policy: OnCrash) -> Self {
        self.attempts(match policy {
            OnCrash::Rerun { max } => max,
            OnCrash::Skip => 1,
        })
    }

    /// Sets what happens to a tick that comes while any node runs an earlier one; by default it is skipped. Set it
    /// alike on all nodes: each tick follows the policy of the node that claims it.
    pub fn overlap(mut self, policy: Overlap) -> Self {
        self.settings.overlap = policy;
        self
    }

    /// Sets what happens to ticks that could not begin when they were due. By default, the newest tick that a living
    /// node saw runs as soon as the store is back, and ticks without a living node are not caught up. A job that the
    /// store does not know yet has missed no tick. Set it alike on all nodes.
    pub fn misfire(mut self, policy: Misfire) -> Self {
        self.settings.misfire = Some(policy);
        self
    }

    /// Sets how often a run that fails, panics or times out is repeated on the same node, under the same lease. The
    /// default is never. After the last try the tick is over, whatever its result.
    pub fn retry(mut self, policy: Retry) -> Self {
        self.settings.retry = policy;
        self
    }

    /// Sets the maximum age of an unfinished tick that a later node finishes, if its winner and all standbys are
    /// gone. The default is one day. If it is shorter, more ticks stay unfinished; with zero, all of them do.
    pub fn finish_within(mut self, age: Duration) -> Self {
        self.settings.finish_within = age;
        self
    }

    /// Checks everything that can be checked before the job fires.
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
        if let Some(refused) = self.locks.handle().node().servers.refusal(Primitive::Job) {
            return Err(JobError::unfit(&name, refused.message().to_owned()));
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
    /// Returns `work` in the form that [`Job::new_async`] takes. It runs on the node that wins the tick, and on no
    /// other.
    ///
    /// The job does not know its expression until the scheduler fires it for the first time, because no scheduler
    /// reports it sooner. Until then, this node catches up no missed tick, whatever [`misfire`](Self::misfire) says,
    /// and starts no tick that the scheduler has not fired. So a replica that starts after midnight leaves a missed
    /// midnight tick until the next one. [`Locks::cron`] and [`Leased`] know the expression from the beginning.
    ///
    /// # Errors
    /// [`JobError`] if the name is taken in this process or invalid, the lease is out of range, or the store serves no jobs.
    pub fn run(
        self,
        work: impl Work,
    ) -> Result<impl FnMut(Uuid, JobScheduler) -> JobFuture + Send + Sync + 'static, JobError> {
        let (runner, Unscheduled) = self.build_runner()?;
        Ok(engine::closure(runner, None, work))
    }

    /// Like [`run`](Self::run), for work that blocks its thread: the work runs on tokio's blocking pool. It cannot be
    /// cancelled, only notified ([`Tick::check`], [`Tick::lost_token`]). Its lease is renewed until the thread has
    /// ended, and is released only then, even after a drain or the timeout. The result of the work counts: without an
    /// error, the tick is done.
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
    /// Sets the zone in which the expression is read: a [`Tz`], or its name. The default is UTC.
    pub fn timezone(mut self, zone: impl IntoZone) -> Self {
        self.schedule.zone = zone.into_zone();
        self
    }

    /// Like [`run`](Self::run), for work that blocks its thread; see
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

    /// Returns a job for a scheduler.
    ///
    /// # Errors
    /// [`JobError`] if the name is taken in this process or invalid, the lease is out of range, the expression or
    /// the zone is invalid, or the store serves no jobs.
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
        jobs.note_schedule(&name, made.guid());
        #[cfg(feature = "testing")]
        lock(&jobs.zones).insert(made.guid(), zone);
        Ok(made)
    }
}

/// Returns the schedule of an expression in its zone. An event reports the days on which ticks do not come as the
/// expression says, because clocks change.
///
/// # Errors
/// Returns what is wrong with the expression.
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

/// Returns an expression with which a scheduler fires at least at each tick of the period. A fire between two ticks
/// does nothing.
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
    /// Returns a builder for a job of that name, to set its lease, timeout and policies. [`job`](Self::job) is
    /// shorter if the defaults fit.
    pub fn job_builder(&self, name: impl Into<Key>) -> LeasedJob<Unscheduled> {
        self.leased_job(name.into(), Unscheduled)
    }

    /// Returns a builder for a job with a cron expression, which is read in any zone, whatever its offset is. Seconds
    /// come first, as in tokio-cron-scheduler.
    pub fn cron(&self, name: impl Into<Key>, expression: impl Into<String>) -> LeasedJob<Scheduled> {
        let (spec, zone) = (ScheduleSpec::Cron(expression.into()), Ok(Tz::UTC));
        self.leased_job(name.into(), Scheduled { spec, zone })
    }

    /// Returns a builder for a job with a period of whole seconds, counted from the Unix epoch. All nodes agree on
    /// its ticks, whenever they were started. It replaces `Job::new_repeated_async`, which has no such ticks and is
    /// refused.
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

/// An extension of [`JobBuilder`] for leased jobs. Set the zone and the schedule first, because this method reads
/// them. The zone is asked for its offset at each tick; the scheduler would freeze the offset.
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
    /// Runs the job on the node that wins its tick, and on no other. [`leased_with`](Self::leased_with) also sets the
    /// lease and the policies.
    ///
    /// # Errors
    /// [`JobError`] if the name is taken in this process or invalid, or the builder has no schedule yet.
    fn leased(self, locks: &Locks, name: impl Into<Key>, work: impl Work) -> Result<Self, JobError> {
        self.leased_with(locks.job_builder(name), work)
    }

    /// Like [`leased`](Self::leased), for a job with a lease, a timeout and policies of its own.
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
    /// The errors of [`leased`](Self::leased), and an error if the lease is out of range.
    fn leased_with(self, job: LeasedJob<Unscheduled>, work: impl Work) -> Result<Self, JobError>;

    /// Like [`leased_with`](Self::leased_with), for work that blocks its thread; see
    /// [`run_blocking`](LeasedJob::<Unscheduled>::run_blocking).
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
        jobs.note_schedule(&name, id);
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
    async fn a_job_that_is_never_added_leaves_no_name() {
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
