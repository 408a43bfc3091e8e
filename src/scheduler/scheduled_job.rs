//! The background tasks of a job: one looks for ticks that no node has finished, and one for ticks that the scheduler
//! did not fire.
//!
//! A node stands by for a tick only if its scheduler fired the tick. When the winner and all standbys are gone, only
//! the store knows of the tick. This happens when a deploy replaces one replica after the other during a run. So each
//! node asks the store soon after a job is made, and then once per lease, or every 5 s if that is longer.
//!
//! A scheduler may lose a tick, fire it too late, or sleep until a time that its clock no longer shows. So each node
//! checks by its own clock, one second after each tick of a job with a scheduler and a known schedule.

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
use crate::protocol::message::{JobReport, MIN_POLL_MS, TickTime, WhenBehind};
use crate::scheduler::policy::{Misfire, Overlap, TickOutcome};
use crate::scheduler::schedule::age;
use crate::scheduler::tick_runner::{TickAttempt, TickRunner, remember};
use crate::scheduler::work::Work;

/// How soon after a job is made the store is asked for the first time. By then an unfit job has been refused.
const FIRST_POLL_DELAY: Duration = Duration::from_millis(500);
/// The shortest interval between two queries.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(MIN_POLL_MS);
/// The longest delay of a scheduler that checks every 500 ms.
const MAX_ENGINE_DELAY: Duration = Duration::from_secs(1);
/// The longest sleep, because this node's clock may be set meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(5);
/// The maximum number of remembered ticks. A scheduler fires only a few at a time.
const MAX_SEEN_TICKS: usize = 128;

/// A job and its work, shared by its closure, its background tasks and its runs.
pub(crate) struct ScheduledJob<F> {
    pub(crate) runner: TickRunner,
    work: F,
    created_at: Instant,
    /// The flag that the job's scheduler sets when it shuts down.
    pub(super) engine_ended: OnceCell<Arc<AtomicBool>>,
    /// Locked by the task that looks for unfinished ticks.
    polling: Arc<AsyncMutex<()>>,
    /// Whether the scheduler's storage was checked for foreign jobs, or is being checked.
    pub(super) is_storage_checked: AtomicBool,
    /// The latest ticks that this node has handled.
    seen: Mutex<BTreeSet<TickTime>>,
}

impl<F> ScheduledJob<F> {
    pub(crate) fn new(runner: TickRunner, work: F) -> Arc<ScheduledJob<F>> {
        Arc::new(ScheduledJob {
            runner,
            work,
            created_at: Instant::now(),
            engine_ended: OnceCell::new(),
            polling: Arc::default(),
            is_storage_checked: AtomicBool::new(false),
            seen: Mutex::default(),
        })
    }

    /// Returns whether the job's scheduler has shut down, or else the scheduler that was attached last. Returns
    /// `None` if no scheduler is known.
    fn engine_has_ended(&self) -> Option<bool> {
        let engine = self.engine_ended.get().cloned();
        let engine = engine.or_else(|| lock(&self.runner.jobs.engine).clone());
        engine.map(|ended| ended.load(Ordering::Relaxed))
    }

    /// Returns whether a fired tick must be handled. The scheduler may fire at other times than those of the schedule: the
    /// tick may have been handled before, or be older than the job.
    pub(crate) fn is_due(&self, mark: TickTime) -> bool {
        let age = age(mark, self.runner.now());
        age <= self.created_at.elapsed() + MAX_ENGINE_DELAY && !lock(&self.seen).contains(&mark)
    }

    /// Returns a tick that this node must run and does not work on yet, and whether it is a catch-up. The tick is
    /// unfinished, or it is the newest tick that no node began, if such ticks are caught up.
    fn unfinished_tick(&self, report: &JobReport) -> Option<(TickTime, bool)> {
        if report.paused.is_some() {
            return None;
        }
        let open = self
            .runner
            .open_tick(report)
            .filter(|(_, is_too_old)| !is_too_old);
        let missed = self.missed(report).map(|missed| (missed, true));
        // If all ticks run one after the other, the newest one leads to all earlier ones.
        if self.runner.settings.runs_all() {
            missed.or(open)
        } else {
            open.or(missed)
        }
    }

    /// Returns the newest tick that came and that no node began, if it is caught up.
    fn missed(&self, report: &JobReport) -> Option<TickTime> {
        // Without a policy the newest tick that this node saw is caught up, if it was refused in a pause that is over.
        let Some(misfire) = self.runner.settings.misfire else {
            let newest = *self.runner.newest.borrow();
            let was_refused = lock(&self.runner.paused).contains(&newest);
            let is_new = was_refused && !self.runner.is_in_progress(newest) && Some(newest) > report.mark;
            return is_new.then_some(newest);
        };
        let (schedule, known) = (&self.runner.schedule, report.mark?);
        // By then any scheduler has fired it.
        let past = self.runner.now().checked_sub(MAX_ENGINE_DELAY)?;
        let missed = schedule.latest(past).ok().filter(|missed| *missed > known)?;
        // A tick that was refused in a pause does not count as seen.
        let is_seen = lock(&self.seen).contains(&missed) && !lock(&self.runner.paused).contains(&missed);
        let is_new = !self.runner.is_in_progress(missed) && !is_seen;
        let is_caught_up = misfire != Misfire::Skip
            && self.runner.was_scheduled(missed)
            && !self.runner.is_too_old(missed, None);
        (is_new && is_caught_up).then_some(missed)
    }

    /// Returns the time until the next query. All jobs of a node ask at the same moments, so that their queries
    /// travel together.
    fn until_next_poll(&self, period: Duration) -> Duration {
        let node = self.runner.handle.node();
        let period = period.as_nanos() as u64;
        let since = (node.clock.now().as_nanos() + node.id.phase(period)) % period;
        Duration::from_nanos(period - since)
    }

    /// Returns the newest tick if a tick since then was not fired in time, and the age of that tick. Otherwise
    /// returns how long until there may be such a tick.
    fn unfired_tick(&self, since: Instant) -> Result<(TickTime, Duration), Duration> {
        // The job may not have been added to a scheduler yet, or to the next scheduler.
        if self.engine_has_ended() != Some(false) {
            return Err(MAX_ENGINE_DELAY);
        }
        let schedule = &self.runner.schedule;
        let now = self.runner.now();
        let past = now.checked_sub(MAX_ENGINE_DELAY).unwrap_or(UNIX_EPOCH);
        let due = schedule.latest(past).map_err(|_| MAX_SLEEP)?;
        let age = age(due, now);
        if age > since.elapsed() || lock(&self.seen).contains(&due) {
            return Err(schedule.until_next(past).unwrap_or(MAX_SLEEP));
        }
        // A later tick is newer, and the scheduler would have fired only that one.
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
        // With these policies no tick waits for an earlier one.
        outcome.unwrap_or(TickOutcome::Elsewhere)
    }

    /// Registers the job, so that a test can fire it.
    #[cfg(feature = "testing")]
    pub(crate) fn register(self: &Arc<Self>) {
        let job: Arc<dyn Fire> = self.clone();
        let (name, job) = (self.runner.name.clone(), Arc::downgrade(&job));
        lock(&self.runner.jobs.fired.0).insert(name, job);
    }

    /// Starts the background tasks once, as soon as there is a runtime: when the job is made, or when it first fires.
    pub(crate) fn start_background_tasks(self: &Arc<Self>) {
        if !self.runner.is_ended()
            && let Ok(runtime) = Runtime::try_current()
            && let Ok(polling_guard) = self.polling.clone().try_lock_owned()
        {
            let (clock, this) = (self.runner.clock(), Arc::downgrade(self));
            // The task owns the guard, because a runtime may end before it polls a spawned task.
            let first = FIRST_POLL_DELAY + self.until_next_poll(FIRST_POLL_DELAY);
            runtime.spawn(clock.task(ScheduledJob::poll_unfinished(this.clone(), polling_guard, first)));
            runtime.spawn(clock.task(ScheduledJob::start_unfired(this)));
            runtime.spawn(clock.task(self.runner.withdrawn()));
        }
    }

    /// Pursues a tick that no scheduler fires: a triggered one, or one that is only ended.
    fn spawn_unscheduled(self: Arc<Self>, mark: TickTime, is_abandoned: bool) {
        let clock = self.runner.clock();
        tokio::spawn(clock.task(async move {
            let attempt = TickAttempt {
                is_abandoned,
                ..TickAttempt::new(WhenBehind::Queue, false)
            };
            // The claim names no earlier tick, so none is due before it.
            let _ = self.runner.run_if_won(mark, attempt, &self.work).await;
        }));
    }

    fn spawn_tick(self: Arc<Self>, mark: TickTime, is_catch_up: bool) {
        let clock = self.runner.clock();
        tokio::spawn(clock.task(async move {
            self.handle_tick(mark, is_catch_up).await;
        }));
    }

    /// Pursues what a look showed: the run that operators want, and a tick that no node has finished.
    fn follow(self: &Arc<Self>, report: &JobReport) {
        if let Some((wanted, has_ended)) = self.runner.new_wanted_tick(report) {
            if has_ended {
                observe::store_went_back(self.runner.label(), &self.runner.name, wanted);
            }
            self.clone().spawn_unscheduled(wanted, has_ended);
        }
        // A triggered run waits for the end of that tick, which no node runs any more.
        let is_awaited = report.wanted.is_some() && report.paused.is_none();
        if let Some((abandoned, true)) = self.runner.open_tick(report).filter(|_| is_awaited) {
            self.clone().spawn_unscheduled(abandoned, true);
        }
        if let Some((mark, is_catch_up)) = self.unfinished_tick(report) {
            self.clone().spawn_tick(mark, is_catch_up);
        }
    }

    /// Asks the store for unfinished ticks. Ends with the job's closure: this task keeps nothing of the job while it
    /// sleeps.
    async fn poll_unfinished(this: Weak<Self>, _polling: OwnedMutexGuard<()>, mut pause: Duration) {
        // The task also ends with its runtime. It starts again on the next runtime.
        let Some(mut news) = this.upgrade().map(|job| job.runner.clock().news()) else {
            return;
        };
        let Some(acted) = this.upgrade().map(|job| job.runner.news.clone()) else {
            return;
        };
        loop {
            // An operator may act at any time. A node that does not hear of it looks when its time comes.
            tokio::select! {
                () = sleep(pause) => {}
                () = acted.notified() => {}
            }
            news.mark_seen();
            let Some(job) = this.upgrade() else { return };
            if job.engine_has_ended() != Some(true) {
                let found = tokio::select! {
                    biased;
                    _ = job.runner.ended() => return,
                    found = job.runner.fetch_report() => found,
                };
                if let Some(report) = found {
                    job.follow(&report);
                }
            }
            drop(job);
            news.changed().await;
            let Some(job) = this.upgrade() else { return };
            pause = job.until_next_poll(job.runner.settings.lease.max(MIN_POLL_INTERVAL));
        }
    }

    /// Starts the ticks that the scheduler did not fire.
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
                    // If the process stood still, its scheduler could not fire.
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
            clock.sleep(pause, MAX_SLEEP).await;
        }
    }
}

#[cfg(feature = "testing")]
impl<F: Work> Fire for ScheduledJob<F> {
    fn fire(self: Arc<Self>, mark: TickTime) -> Pin<Box<dyn Future<Output = &'static str> + Send>> {
        Box::pin(async move {
            self.start_background_tasks();
            self.handle_tick(mark, false).await.word()
        })
    }
}
