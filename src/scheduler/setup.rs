//! The builder of a leased job, and the ways to give it a schedule.

use std::time::Duration;

use chrono_tz::Tz;
use tokio_cron_scheduler::Job;

#[cfg(feature = "testing")]
use crate::driver::waiter::lock;
use crate::error::OptionsError;
use crate::key::Key;
use crate::locks::Locks;
use crate::observe;
use crate::protocol::primitive::Primitive;
use crate::scheduler::engine;
use crate::scheduler::error::JobError;
use crate::scheduler::explain::explain_rare_job;
use crate::scheduler::on_end::{EndedRun, OnEnd};
use crate::scheduler::policy::{DEFAULT_LEASE, JobOutput, JobSettings, Misfire, Overlap, Retry};
use crate::scheduler::schedule::Schedule;
use crate::scheduler::tick::Tick;
use crate::scheduler::tick_runner::TickRunner;
use crate::scheduler::work::{Work, blocking};
use crate::scheduler::zone::IntoZone;

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
/// use tenure::scheduler::{Misfire, Retry};
/// use tokio_cron_scheduler::JobScheduler;
///
/// let locks = Locks::memory();
/// let job = locks
///     .cron("reconcile", "0 0 0 * * *")
///     .timezone("Europe/Berlin")
///     .lease(Duration::from_secs(20))
///     .timeout(Duration::from_secs(3600))
///     .retry(Retry::times(3))
///     .misfire(Misfire::RunOnce { within: Duration::from_secs(3 * 3600) })
///     .run(|tick| async move { println!("{}", tick.nominal_unix()) })?;
/// let scheduler = JobScheduler::new().await?;
/// locks.add_job(&scheduler, job).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a job does nothing until `run` sets its work"]
pub struct LeasedJob {
    locks: Locks,
    name: Key,
    settings: JobSettings,
    spec: ScheduleSpec,
    zone: Result<Tz, String>,
}

impl LeasedJob {
    /// Sets the length of the job's lease; the default is 30 s, or the `longest` of [`Recovery::Always`](crate::Recovery) if that
    /// is shorter. The lease is renewed while the job runs, so it does
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

    /// Sets a function that is called when a run has ended on this node and the store was told, also if the tick was handed over,
    /// given up or missed, or if an operator cancelled it. It is not called for a run that was lost, nor for one whose end the
    /// store was not told. The function delays no tick. It is dropped after 10 s, and a panic is reported by an event.
    /// [`drain`](Locks::drain) waits for it within its timeout.
    ///
    /// A job that no node runs has no end. The alarm for a run that did not happen is outside: `tenure jobs check`.
    pub fn on_end<F>(mut self, call: impl Fn(EndedRun) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.settings.on_end = Some(OnEnd::new(call));
        self
    }

    /// Sets the zone in which the expression is read: a [`Tz`], or its name. The default is UTC.
    pub fn timezone(mut self, zone: impl IntoZone) -> Self {
        self.zone = zone.into_zone();
        self
    }

    /// Returns the job for [`Locks::add_job`]. It runs on the node that wins the tick, and on no other.
    ///
    /// # Errors
    /// [`JobError`] if the name is taken in this process or invalid, the lease is out of range, the expression or
    /// the zone is invalid, or the store serves no jobs.
    pub fn run(self, work: impl Work) -> Result<Job, JobError> {
        let zone = self.check()?;
        let schedule = self.schedule(zone)?;
        let expression = match &self.spec {
            ScheduleSpec::Cron(text) => text.clone(),
            ScheduleSpec::Every(period) => engine_expression(*period),
        };
        let LeasedJob { name, settings, .. } = self;
        let handle = self.locks.handle();
        let runner = TickRunner::new(handle.clone(), name.clone(), schedule, settings);
        let runner = runner.ok_or_else(|| JobError::Duplicate { name: name.clone() })?;
        let fire = engine::closure(runner, work);
        let made = Job::new_async_tz(expression, zone, fire).map_err(JobError::Scheduler)?;
        handle.jobs().note_id(&name, made.guid());
        #[cfg(feature = "testing")]
        lock(&handle.jobs().zones).insert(made.guid(), zone);
        Ok(made)
    }

    /// Like [`run`](Self::run), for work that blocks its thread: the work runs on tokio's blocking pool. It cannot be
    /// cancelled, only notified ([`Tick::check`], [`Tick::lost_token`]). Its lease is renewed until the thread has
    /// ended, and is released only then, even after a drain or the timeout. The result of the work counts: without an
    /// error, the tick is done. So work that stops half-way, because it was told to, returns an error (`tick.check()?`), and another
    /// node then runs the tick again.
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

    /// Checks everything but the schedule. Returns the zone.
    fn check(&self) -> Result<Tz, JobError> {
        let (name, options) = (&self.name, self.locks.handle().options());
        let length = name.as_bytes().len();
        if length == 0 || length > options.max_key {
            return Err(JobError::Name {
                length,
                limit: options.max_key,
                name: name.clone(),
            });
        }
        if let Some(refused) = self.locks.handle().node().servers.refusal(Primitive::Job) {
            return Err(JobError::unfit(name, refused.message().to_owned()));
        }
        options.term(self.settings.lease)?;
        if self.settings.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(JobError::Options(OptionsError(format!(
                "a timeout of zero would cancel each run of job `{name}` at once: give it more, or none"
            ))));
        }
        self.zone.clone().map_err(|why| JobError::unfit(name, why))
    }

    /// Returns when the job is due. An event reports the days on which ticks do not come as the expression says, because
    /// clocks change.
    fn schedule(&self, zone: Tz) -> Result<Schedule, JobError> {
        let unfit = |why| JobError::unfit(&self.name, why);
        let text = match &self.spec {
            ScheduleSpec::Cron(text) => text,
            ScheduleSpec::Every(period) => return Schedule::every(*period).map_err(unfit),
        };
        let (node, schedule) = (
            self.locks.handle().node(),
            Schedule::in_zone(text, zone).map_err(unfit)?,
        );
        let now = node.clock.wall();
        schedule.check_has_next(now).map_err(unfit)?;
        let days = explain_rare_job(text, zone, now).map_err(unfit)?;
        if let Some(first) = days.first() {
            observe::job_odd_days(node.events.label(), &self.name, days.len(), first);
        }
        Ok(schedule)
    }
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
    /// Returns a builder for a job with a cron expression, which is read in any zone, whatever its offset is. Seconds
    /// come first, as in tokio-cron-scheduler.
    pub fn cron(&self, name: impl Into<Key>, expression: impl Into<String>) -> LeasedJob {
        self.leased_job(name.into(), ScheduleSpec::Cron(expression.into()))
    }

    /// Returns a builder for a job with a period of whole seconds, counted from the Unix epoch. All nodes agree on
    /// its ticks, whenever they were started. It replaces `Job::new_repeated_async`, which has no such ticks and is
    /// refused.
    pub fn every(&self, name: impl Into<Key>, period: Duration) -> LeasedJob {
        self.leased_job(name.into(), ScheduleSpec::Every(period))
    }

    fn leased_job(&self, name: Key, spec: ScheduleSpec) -> LeasedJob {
        LeasedJob {
            locks: self.clone(),
            name,
            settings: JobSettings {
                lease: self.handle().options().at_most_longest(DEFAULT_LEASE),
                ..JobSettings::default()
            },
            spec,
            zone: Ok(Tz::UTC),
        }
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
            assert!(jobs.has_id(made.guid()));
            drop(made);
            assert!(lock(&jobs.names).is_empty());
        }
    }
}
