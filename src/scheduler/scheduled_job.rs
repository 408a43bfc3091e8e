//! What a node does for its jobs beside firing: it looks for ticks that somebody began and nobody finished, and for
//! those that its engine did not fire.
//!
//! Who runs a tick and who stands by for it fired for it. When all of them are gone, as after a deploy that replaced
//! one replica after the other during a run, nobody who comes later fires for it again: only the store knows of it. So
//! each node asks, soon after a job was made and from then on once in a lease, or in five seconds if that is longer.
//!
//! An engine may lose a tick, come too late for it, or sleep until a time that its clock no longer shows. So each node
//! looks by its own clock a second after each tick of a job that has an engine and a schedule: one that it has seen fire,
//! or whose schedule came with it.

use std::collections::BTreeSet;
#[cfg(feature = "testing")]
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, UNIX_EPOCH};

use tokio::runtime::Handle as Runtime;
use tokio::sync::{Mutex as AsyncMutex, OnceCell, OwnedMutexGuard};
use tokio::time::{Instant, sleep};

#[cfg(feature = "testing")]
use crate::driver::jobs::Fire;
use crate::driver::waiter::lock;
use crate::observe;
use crate::protocol::message::{JobReport, TickTime, WhenBehind};
use crate::scheduler::policy::{Misfire, Overlap, TickOutcome};
use crate::scheduler::schedule::{Schedule, age};
use crate::scheduler::tick_runner::{TickAttempt, TickRunner, remember};
use crate::scheduler::work::Work;

/// How soon after a job was made the store is asked for the first time: later than the job could be found unfit.
const FIRST_POLL_DELAY: Duration = Duration::from_millis(500);
/// How often at most.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// So late an engine may be that looks every half a second.
const MAX_ENGINE_DELAY: Duration = Duration::from_secs(1);
/// How long to sleep at most: this node's clock may be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(5);
/// So many ticks are remembered, of which the engine fires few at a time.
const MAX_SEEN_TICKS: usize = 128;

/// A job and what it does, shared by its closure, its lookouts and its runs.
pub(crate) struct ScheduledJob<F> {
    pub(crate) runner: TickRunner,
    work: F,
    /// The schedule came with the job, and the engine may know another.
    has_own_schedule: bool,
    created_at: Instant,
    /// What the engine sets when it ends that fires the job.
    pub(super) engine_ended: OnceCell<Arc<AtomicBool>>,
    /// Held by the task that looks for open ticks.
    polling: Arc<AsyncMutex<()>>,
    /// Its engine's storage was looked at, or is now.
    pub(super) is_storage_checked: AtomicBool,
    /// The ticks that this node has pursued.
    seen: Mutex<BTreeSet<TickTime>>,
}

impl<F> ScheduledJob<F> {
    pub(crate) fn new(runner: TickRunner, schedule: Option<Schedule>, work: F) -> Arc<ScheduledJob<F>> {
        let has_own_schedule = schedule.is_some();
        if let Some(schedule) = schedule {
            let _ = runner.schedule.set(schedule);
        }
        Arc::new(ScheduledJob {
            runner,
            work,
            has_own_schedule,
            created_at: Instant::now(),
            engine_ended: OnceCell::new(),
            polling: Arc::default(),
            is_storage_checked: AtomicBool::new(false),
            seen: Mutex::default(),
        })
    }

    /// Whether the engine has ended that fired it, or else to which this node's jobs were attached last. `None` while none is
    /// known.
    fn engine_has_ended(&self) -> Option<bool> {
        let engine = self.engine_ended.get().cloned();
        let engine = engine.or_else(|| lock(&self.runner.jobs.engine).clone());
        engine.map(|ended| ended.load(Ordering::Relaxed))
    }

    /// When its schedule came with it, the engine's firing says nothing: a tick may have been pursued long ago, or come
    /// before the job was made.
    pub(crate) fn is_due(&self, mark: TickTime) -> bool {
        let age = age(mark, self.runner.now());
        !self.has_own_schedule
            || age <= self.created_at.elapsed() + MAX_ENGINE_DELAY && !lock(&self.seen).contains(&mark)
    }

    /// What this node should run and nobody is after: a tick that somebody began and nobody has finished, or the newest that
    /// nobody began, if such are made up for.
    fn unfinished_tick(&self, report: &JobReport) -> Option<(TickTime, bool)> {
        let open = report.open.filter(|open| !self.runner.is_in_progress(*open));
        let open = open.map(|open| (open, false));
        let missed = self.missed(report).map(|missed| (missed, true));
        // Where all are run one after the other, the newest is where that leads, whatever comes before it.
        if self.runner.settings.runs_all() {
            missed.or(open)
        } else {
            open.or(missed)
        }
    }

    /// The newest tick that came and that nobody began, if it is made up for.
    fn missed(&self, report: &JobReport) -> Option<TickTime> {
        let misfire = self.runner.settings.misfire?;
        let (schedule, known) = (self.runner.schedule.get()?, report.mark?);
        // By then any engine would have fired it.
        let past = self.runner.now().checked_sub(MAX_ENGINE_DELAY)?;
        let missed = schedule.latest(past).ok().filter(|missed| *missed > known)?;
        let is_new = !self.runner.is_in_progress(missed) && !lock(&self.seen).contains(&missed);
        (misfire != Misfire::Skip && is_new && !self.runner.is_too_old(missed, None)).then_some(missed)
    }

    /// So that all jobs of a node ask in the same moments, and their questions travel together.
    fn until_next_poll(&self, period: Duration) -> Duration {
        let node = self.runner.handle.node();
        let period = period.as_nanos() as u64;
        let since = (node.clock.now().as_nanos() + node.id.phase(period)) % period;
        Duration::from_nanos(period - since)
    }

    /// The newest tick, when one that came since then was not fired in time, and how long ago that one came; or how long
    /// until there may be one.
    fn unfired_tick(&self, since: Instant) -> Result<(TickTime, Duration), Duration> {
        // Nobody may have added it to a scheduler, or to the one that takes the place of another.
        let (Some(schedule), Some(false)) = (self.runner.schedule.get(), self.engine_has_ended()) else {
            return Err(MAX_ENGINE_DELAY);
        };
        let now = self.runner.now();
        let past = now.checked_sub(MAX_ENGINE_DELAY).unwrap_or(UNIX_EPOCH);
        let due = schedule.latest(past).map_err(|_| MAX_SLEEP)?;
        let age = age(due, now);
        if age > since.elapsed() || lock(&self.seen).contains(&due) {
            return Err(schedule.until_next(past).unwrap_or(MAX_SLEEP));
        }
        // What came since is newer, and the engine would have fired that alone.
        let newest = schedule.latest(now).map_err(|_| MAX_SLEEP)?;
        Ok((newest, age))
    }
}

impl<F: Work> ScheduledJob<F> {
    pub(crate) async fn handle_tick(self: &Arc<Self>, mark: TickTime, is_catch_up: bool) -> TickOutcome {
        remember(&self.seen, mark, MAX_SEEN_TICKS);
        if self.runner.settings.runs_all() {
            return self.runner.run_all(mark, is_catch_up, &self.work).await;
        }
        let when_behind = match self.runner.settings.overlap {
            Overlap::Skip => WhenBehind::Skip,
            Overlap::QueueOne => WhenBehind::Queue,
        };
        let tick_attempt = TickAttempt::new(when_behind, is_catch_up);
        let outcome = self.runner.run_if_won(mark, tick_attempt, &self.work).await;
        // Nothing is behind another tick in these turns.
        outcome.unwrap_or(TickOutcome::Elsewhere)
    }

    /// So that a test can fire it.
    #[cfg(feature = "testing")]
    pub(crate) fn register(self: &Arc<Self>) {
        let job: Arc<dyn Fire> = self.clone();
        let (name, job) = (self.runner.name.clone(), Arc::downgrade(&job));
        lock(&self.runner.jobs.fired.0).insert(name, job);
    }

    /// Once, and as soon as there is a runtime to look out on: that of whoever makes the job, or fires it first.
    pub(crate) fn start_background_tasks(self: &Arc<Self>) {
        if let Ok(runtime) = Runtime::try_current()
            && let Ok(polling_guard) = self.polling.clone().try_lock_owned()
        {
            let (clock, this) = (self.runner.clock(), Arc::downgrade(self));
            // The guard goes with the task: a runtime may end before it polls what it was given.
            let first = FIRST_POLL_DELAY + self.until_next_poll(FIRST_POLL_DELAY);
            runtime.spawn(clock.task(ScheduledJob::poll_unfinished(this.clone(), polling_guard, first)));
            runtime.spawn(clock.task(ScheduledJob::start_unfired(this)));
        }
    }

    fn spawn_tick(self: Arc<Self>, mark: TickTime, is_catch_up: bool) {
        let clock = self.runner.clock();
        tokio::spawn(clock.task(async move {
            self.handle_tick(mark, is_catch_up).await;
        }));
    }

    /// Asks for open ticks. Ends with the job's closure, of which this keeps nothing while it sleeps.
    async fn poll_unfinished(this: Weak<Self>, _polling: OwnedMutexGuard<()>, mut pause: Duration) {
        // With a runtime that is no more it ends, too: on the next it begins again.
        let Some(mut news) = this.upgrade().map(|job| job.runner.clock().news()) else {
            return;
        };
        loop {
            sleep(pause).await;
            news.heard();
            let Some(job) = this.upgrade() else { return };
            if job.engine_has_ended() != Some(true) {
                let found = tokio::select! {
                    biased;
                    _ = job.runner.ended() => return,
                    found = job.runner.fetch_report() => found,
                };
                if let Some((mark, is_catch_up)) = found.and_then(|report| job.unfinished_tick(&report)) {
                    job.clone().spawn_tick(mark, is_catch_up);
                }
            }
            drop(job);
            news.come().await;
            let Some(job) = this.upgrade() else { return };
            pause = job.until_next_poll(job.runner.settings.lease.max(MIN_POLL_INTERVAL));
        }
    }

    /// Starts what its engine has not.
    async fn start_unfired(this: Weak<Self>) {
        let since = Instant::now();
        loop {
            let Some(job) = this.upgrade() else { return };
            let own = job.engine_ended.get();
            if job.runner.is_ended() || own.is_some_and(|ended| ended.load(Ordering::Relaxed)) {
                return;
            }
            job.runner.report_blocking_runs();
            let pause = match job.unfired_tick(since) {
                Ok((mark, age)) => {
                    // No scheduler fires while its process stands still.
                    if !job.runner.handle.node().was_paused(age, MAX_ENGINE_DELAY) {
                        observe::engine_missed(job.runner.label(), &job.runner.name, mark);
                    }
                    job.clone().spawn_tick(mark, false);
                    MAX_ENGINE_DELAY
                }
                Err(pause) => pause,
            };
            let clock = job.runner.clock();
            drop(job);
            clock.nap(pause, MAX_SLEEP).await;
        }
    }
}

#[cfg(feature = "testing")]
impl<F: Work> Fire for ScheduledJob<F> {
    fn fire(self: Arc<Self>, mark: TickTime) -> Pin<Box<dyn Future<Output = &'static str> + Send>> {
        Box::pin(async move { self.handle_tick(mark, false).await.word() })
    }
}
