//! Claims each tick at the store, and runs the job if the store grants the tick. Knows leases and ticks, but no cron
//! crate.
//!
//! # The way of one tick
//!
//! 1. The cron crate fires the job's closure, which finds the nominal time of the tick (`scheduler/engine.rs` `closure`,
//!    `handle_fire`). Only that file knows how tokio-cron-scheduler works. The time comes from expression and zone
//!    (`scheduler/schedule.rs` `latest`).
//! 2. If the cron crate does not fire a tick within a second, a task of the job starts the tick
//!    (`scheduler/scheduled_job.rs` `start_unfired`). It does so without an event if the process was paused
//!    (`driver/pause.rs` `was_paused`).
//! 3. The node pursues the tick without knowing any cron crate (`scheduler/tick_runner.rs` `run_if_won`, `try_until_over`).
//! 4. The pursuit is a claim with a mark, the nominal time. The claim also says what happens to the tick while an earlier
//!    tick runs: the tick is skipped, is queued, or runs after it (`primitives/tick.rs` `acquire_tick`). A queued tick
//!    replaces the tick that was queued before it. With *run after it*, no tick is passed over.
//! 5. If the policy runs every tick, the node goes from tick to tick, in order (`scheduler/catch_up.rs` `run_all`,
//!    `run_up_to`).
//! 6. The store alone decides, by its own clock, whether a tick may run (`protocol/ledger/transaction.rs` `claim`,
//!    `protocol/ledger/ticks.rs` `refuse_tick`, `refuse_behind_earlier`). On Redis: `store/redis/lua/claim.lua`,
//!    `store/redis/lua/job.lua`.
//! 7. The winner runs the job, with as many attempts as the policy allows (`scheduler/run.rs` `run`, `try_once`,
//!    `primitives/guard.rs` `run`). The other nodes wait in the queue, as standbys.
//!    Operators see job, date and attempt as the note of the lease (`primitives/guard.rs` `note`).
//! 8. The winner tells the store that the tick has ended. After that, no node runs the tick again (`scheduler/run.rs`
//!    `finish`, `protocol/ledger/ticks.rs` `finish`).
//! 9. A run can leave a checkpoint for the next run of its tick (`scheduler/tick.rs` `checkpoint`, `primitives/tick.rs`
//!    `ask_about_run`). The store keeps it only if the run still owns the tick (`protocol/ledger/call.rs`
//!    `save_checkpoint`). On Redis: `store/redis/lua/ask.lua`.
//! 10. If the winner and all standbys are gone, only the store knows of the open tick. Each node asks the store for an open
//!     tick soon after the node makes the job. Then it asks once per lease, but at most once every 5 s
//!     (`scheduler/scheduled_job.rs` `poll_unfinished`, `protocol/ledger/call.rs` `answer_call`, `report_open_tick`).
//! 11. The same question tells the store the latest tick that the node knows to be over. If a store came back with an older
//!     copy of its data, the question tells it that tick again (`protocol/ledger/call.rs` `mend_lost_mark`).
//! 12. A tick that this node could not run in time is *missed* only if no node ran it. The node asks the store again before
//!     it says so (`scheduler/audit.rs` `resolve_missed`).
//! 13. A drain ends all of this (`scheduler/mod.rs` `drain`).
//!
//! The same code runs in the tests that users write (`testing/simulation.rs`). Three parts are replaced: the store
//! (`testing/store.rs` `apply`), the clocks (`driver/process.rs` `now`, `wall`) and the loop of the cron crate
//! (`testing/engine.rs` `look`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::{Instant as Since, sleep};
use tokio_util::sync::CancellationToken;

use crate::driver::clock::Clock;
use crate::driver::handle::Handle;
use crate::driver::jobs::NodeJobs;
use crate::driver::waiter::lock;
use crate::error::{Error, LostCause};
use crate::key::Key;
use crate::observe::{self, Label, Ran};
use crate::primitives::guard::Guard;
use crate::primitives::tick::acquire_tick;
use crate::protocol::message::{RunOutcome, TickRefusal, TickTime, WantedRun, WhenBehind};
use crate::protocol::time::Instant;
use crate::scheduler::gauges::JobGauges;
use crate::scheduler::policy::{JobSettings, Run, TickOutcome};
use crate::scheduler::registration::JobRegistration;
use crate::scheduler::schedule::Schedule;
use crate::scheduler::work::Work;

/// The shortest pause between two attempts while the store is unavailable.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between two attempts while the store is unavailable.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(2);

/// The number of ticks that are remembered as paused.
const MAX_PAUSED: usize = 128;

/// The number of skipped ticks in a row that raises an alarm.
const SKIPS_BEFORE_ALARM: u32 = 3;

/// Runs the ticks of one job on this node.
pub(crate) struct TickRunner {
    pub(super) handle: Handle,
    pub(super) name: Key,
    pub(super) settings: JobSettings,
    pub(super) jobs: Arc<NodeJobs>,
    /// The newest tick that this node has seen.
    pub(super) newest: watch::Sender<TickTime>,
    /// The ticks that this node claims, waits for, or runs.
    in_progress: watch::Sender<HashSet<TickTime>>,
    /// Cancelled when the scheduler removes the job.
    pub(super) removed: CancellationToken,
    pub(super) schedule: Schedule,
    pub(super) gauges: Arc<JobGauges>,
    /// Locked while this node runs all ticks one after the other.
    pub(super) run_all_lock: AsyncMutex<()>,
    /// The number of skipped ticks in a row.
    consecutive_skips: AtomicU32,
    /// The last known time of the store's clock, in milliseconds since the Unix epoch, and when this node learned it.
    pub(super) store_clock: Mutex<Option<(u64, Since)>>,
    /// Set when the store has answered a question of this node about the job.
    pub(super) has_asked: AtomicBool,
    /// When the store first saw this job's expression, in ms of the store's clock; 0 if that is unknown.
    pub(super) since_ms: AtomicU64,
    /// When a claim last failed because the store was unavailable. A tick that was due before then, and begins later,
    /// is a catch-up.
    pub(super) last_outage: Mutex<Option<SystemTime>>,
    /// The runs that are being polled now, by fence.
    pub(super) ongoing_polls: Mutex<HashMap<u64, OngoingPoll>>,
    /// The ticks of which it is unknown whether another node ran them.
    pub(super) unresolved: Mutex<BTreeSet<TickTime>>,
    /// The latest ticks that did not begin because the job is paused, or was.
    pub(super) paused: Mutex<BTreeSet<TickTime>>,
    /// The pause that this node has reported, by its begin; [`u64::MAX`] if the job was not paused.
    pub(super) reported_pause: AtomicU64,
    /// Locked by the task that asks the store about unresolved ticks.
    pub(super) audit_lock: AsyncMutex<()>,
    /// Notified when an operator acted on the job.
    pub(super) news: Arc<Notify>,
    /// The run that operators want, as the latest look showed it.
    pub(super) wanted: Mutex<Option<Arc<WantedRun>>>,
    /// The latest wanted run that a look showed no more, by its tick and the time of its trigger. A store that came back with an
    /// older copy of its data may show it again.
    pub(super) ended_wanted_run: Mutex<Option<(TickTime, u64)>>,
    /// The trigger of the latest triggered run here, in the same way.
    pub(super) begun_trigger: Mutex<Option<(TickTime, u64)>>,
}

/// How a tick is attempted.
#[derive(Debug, Clone)]
pub(crate) struct TickAttempt {
    pub(crate) when_behind: WhenBehind,
    /// Whether the tick could not begin when it was due.
    pub(crate) is_catch_up: bool,
    /// Since when the tick has been due here, if this node saw it come. It decides the tick's age until the store's
    /// clock is known.
    pub(crate) due_since: Option<Since>,
    /// Whether the tick was claimed in time, and may have waited for a triggered run since.
    pub(crate) was_claimed_in_time: bool,
    /// Whether the tick is too old to be run. It is only ended, because a triggered run waits for that.
    pub(crate) is_abandoned: bool,
    /// The latest run here, if its lease was revoked and the store has not told yet whether an operator cancelled it.
    pub(crate) revoked: Option<Ran>,
}

impl TickAttempt {
    pub(crate) fn new(when_behind: WhenBehind, is_catch_up: bool) -> TickAttempt {
        TickAttempt {
            when_behind,
            is_catch_up,
            due_since: (!is_catch_up).then(Since::now),
            was_claimed_in_time: false,
            is_abandoned: false,
            revoked: None,
        }
    }
}

/// An earlier tick must run first: the latest tick that the store knows if that is open, otherwise a tick after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EarlierTickDue {
    pub(crate) latest: TickTime,
    pub(crate) is_open: bool,
}

/// A poll of a run that has not returned yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct OngoingPoll {
    pub(super) mark: TickTime,
    pub(super) since: Instant,
    pub(super) is_reported: bool,
}

/// A tick that this node works on. Dropping it removes the tick from the set.
struct TickInProgress<'a>(&'a TickRunner, TickTime);

impl Drop for TickInProgress<'_> {
    fn drop(&mut self) {
        self.0.in_progress.send_modify(|in_progress| {
            in_progress.remove(&self.1);
        });
    }
}

impl TickRunner {
    /// Returns `None` if this node already has a job with that name.
    pub(crate) fn new(
        handle: Handle,
        name: Key,
        schedule: Schedule,
        settings: JobSettings,
    ) -> Option<(TickRunner, JobRegistration)> {
        let jobs = handle.jobs().clone();
        let registration = JobRegistration::new(jobs.clone(), name.clone())?;
        let gauges = JobGauges::begin(&handle.node().events, &name);
        let runner = TickRunner {
            news: handle.node().job_news.subscribe(&name),
            handle,
            name,
            settings,
            jobs,
            newest: watch::Sender::new(TickTime(0)),
            in_progress: watch::Sender::default(),
            removed: registration.removal_token(),
            schedule,
            gauges: Arc::new(gauges),
            run_all_lock: AsyncMutex::default(),
            consecutive_skips: AtomicU32::new(0),
            store_clock: Mutex::default(),
            has_asked: AtomicBool::new(false),
            since_ms: AtomicU64::new(0),
            last_outage: Mutex::default(),
            ongoing_polls: Mutex::default(),
            unresolved: Mutex::default(),
            paused: Mutex::default(),
            reported_pause: AtomicU64::new(u64::MAX),
            audit_lock: AsyncMutex::default(),
            wanted: Mutex::default(),
            ended_wanted_run: Mutex::default(),
            begun_trigger: Mutex::default(),
        };
        runner.handle.node().note_jobs();
        Some((runner, registration))
    }

    pub(crate) fn label(&self) -> &Label {
        self.handle.node().events.label()
    }

    /// Resolves when this node claims no further tick of the job. Returns the reason.
    pub(crate) async fn ended(&self) -> TickOutcome {
        tokio::select! {
            biased;
            () = self.jobs.closing.cancelled() => TickOutcome::Drained,
            () = self.removed.cancelled() => TickOutcome::Removed,
        }
    }

    /// Returns the output of `future`, or the reason if this node stops claiming ticks before that.
    async fn unless_ended<T>(&self, future: impl Future<Output = T>) -> Result<T, TickOutcome> {
        tokio::select! {
            biased;
            why = self.ended() => Err(why),
            output = future => Ok(output),
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.handle.node().clock.clone()
    }

    /// Returns the time of this node's wall clock.
    pub(crate) fn now(&self) -> SystemTime {
        self.handle.node().clock.wall()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.jobs.closing.is_cancelled() || self.removed.is_cancelled()
    }

    /// Returns whether this node works on that tick.
    pub(crate) fn is_in_progress(&self, mark: TickTime) -> bool {
        self.in_progress.borrow().contains(&mark)
    }

    /// Reports each run that has not yielded for a third of its lease. Such a run blocks its runtime, and cannot be
    /// cancelled or notified. Its lease is renewed nevertheless.
    pub(crate) fn report_blocking_runs(&self) {
        let node = self.handle.node();
        for polled in lock(&self.ongoing_polls).values_mut() {
            let lasts = node.ran_since(polled.since);
            if !polled.is_reported && lasts > self.settings.lease / 3 {
                polled.is_reported = true;
                observe::job_blocks(self.label(), &self.name, polled.mark, lasts);
            }
        }
    }

    /// Counts skipped ticks, and raises an alarm at three in a row.
    fn count_skips(&self, outcome: TickOutcome) {
        let skips = match outcome {
            TickOutcome::Skipped => self.consecutive_skips.fetch_add(1, Ordering::Relaxed) + 1,
            TickOutcome::Done | TickOutcome::Failed | TickOutcome::Panicked | TickOutcome::Elsewhere => {
                self.consecutive_skips.store(0, Ordering::Relaxed);
                0
            }
            _ => 0,
        };
        // The alarm is repeated each time that the number has doubled.
        if skips >= SKIPS_BEFORE_ALARM
            && skips.is_multiple_of(SKIPS_BEFORE_ALARM)
            && (skips / SKIPS_BEFORE_ALARM).is_power_of_two()
        {
            observe::job_skips(self.label(), &self.name, skips);
        }
    }

    /// Claims a tick and follows it until it is over. Runs the tick if this node wins it, and otherwise stands by
    /// until its winner has ended.
    ///
    /// # Errors
    /// Returns the tick that must run first, if no tick may be passed over.
    pub(crate) async fn run_if_won(
        &self,
        mark: TickTime,
        attempt: TickAttempt,
        work: &impl Work,
    ) -> Result<TickOutcome, EarlierTickDue> {
        let _pursuit = self.jobs.pursuits.token();
        let Run { outcome, ran } = self.try_until_over(mark, attempt, work).await?;
        let outcome = match outcome {
            // The tick was not run here in time, but another node may have run it.
            TickOutcome::Missed if ran.is_none() => self.resolve_missed(mark).await,
            // It was reported when it was refused. The pause that passed over it is over.
            TickOutcome::Paused if !self.is_paused(mark) => outcome,
            _ => {
                observe::tick(self.label(), &self.name, mark, outcome.word(), ran);
                outcome
            }
        };
        if mark.is_triggered() {
            return Ok(outcome);
        }
        if outcome != TickOutcome::Paused {
            lock(&self.paused).retain(|later| *later > mark);
        }
        self.count_skips(outcome);
        Ok(outcome)
    }

    async fn try_until_over(
        &self,
        mark: TickTime,
        mut attempt: TickAttempt,
        work: &impl Work,
    ) -> Result<Run, EarlierTickDue> {
        let is_triggered = mark.is_triggered();
        if !is_triggered {
            self.note_newest(mark);
        }
        let mut newest = self.newest.subscribe();
        let mut pause = MIN_RETRY_PAUSE;
        // No tick passes over a triggered one either.
        let (keeps_order, mut is_first) = (is_triggered || self.settings.runs_all(), true);
        loop {
            // The scheduler may fire one tick repeatedly, every 500 ms if its own storage cannot be written. One
            // attempt of this node is enough.
            let Some(in_progress) = self.begin(mark) else {
                if is_triggered || !self.settings.runs_all() {
                    return Ok(Run::not_here(TickOutcome::Elsewhere));
                }
                // The next tick is not granted before this one has ended, and repeated claims do not end it.
                match self.unless_ended(sleep(MAX_RETRY_PAUSE)).await {
                    Ok(()) => continue,
                    Err(why) => return Ok(Run::not_here(why)),
                }
            };
            // If no tick may be passed over, a run must tell the store that the old tick is over.
            if !keeps_order && is_first && self.is_too_old(mark, attempt.due_since) {
                return Ok(Run::not_here(TickOutcome::Missed));
            }
            if let Some(cancelled) = self.ask_if_cancelled(mark, &mut attempt).await {
                return Ok(cancelled);
            }
            let entered = match self.claim(mark, &mut attempt).await {
                Ok(entered) => entered,
                Err(why) => return Ok(Run::not_here(why)),
            };
            // If this node's clock is ahead by several ticks, later ticks may fire meanwhile. They are early as well,
            // and no reason to give up this one.
            let is_kept = keeps_order || matches!(entered, Ok(Err(TickRefusal::Early(_))));
            let wait = match entered {
                Ok(Ok(guard)) => match self.run_or_lose(guard, mark, &mut attempt, work).await {
                    None => None,
                    Some(run) => return Ok(run),
                },
                // The lease was granted and lost before it was used, so nothing was begun.
                Err(Error::Lost { .. }) => None,
                Ok(Err(refusal)) => match self.refused(mark, &mut attempt, refusal)? {
                    ControlFlow::Continue(wait) => Some(wait),
                    ControlFlow::Break(run) => return Ok(run),
                },
                Err(error) => match self.outcome_of_error(mark, &attempt, &error) {
                    Some(outcome) => return Ok(Run::not_here(outcome)),
                    None => Some(self.note_outage(&mut attempt, &mut pause, &error)),
                },
            };
            let Some(wait) = wait else {
                is_first = false;
                continue;
            };
            drop(in_progress);
            tokio::select! {
                biased;
                why = self.ended() => return Ok(Run::not_here(why)),
                Ok(_) = newest.wait_for(|newest| *newest > mark), if !is_kept => {
                    return Ok(Run::not_here(TickOutcome::Missed));
                }
                () = sleep(wait) => {}
            }
        }
    }

    /// Claims a tick.
    ///
    /// # Errors
    /// The reason if this node stops claiming ticks before the answer.
    async fn claim(
        &self,
        mark: TickTime,
        attempt: &mut TickAttempt,
    ) -> Result<Result<Result<Guard, TickRefusal>, Error>, TickOutcome> {
        let waits = lock(&self.wanted).is_some();
        attempt.was_claimed_in_time |= waits && !self.is_too_old(mark, attempt.due_since);
        let claim = (mark, attempt.when_behind);
        let entering = acquire_tick(&self.handle, &self.name, self.settings.lease, claim);
        self.unless_ended(entering).await
    }

    /// Runs a tick whose lease this node has. Returns `None` if the lease was lost: this node then stands by, unless an operator
    /// cancelled the tick.
    async fn run_or_lose(
        &self,
        guard: Guard,
        mark: TickTime,
        attempt: &mut TickAttempt,
        work: &impl Work,
    ) -> Option<Run> {
        let lease = guard.lease();
        let result = self.run(guard, mark, attempt, work).await;
        let ran = match &result {
            Err(ran) => Some(*ran),
            // A drain may end a run whose lease is gone.
            Ok(run) => run.ran.filter(|_| run.outcome == TickOutcome::Drained),
        };
        attempt.revoked = ran.filter(|_| lease.held.over() == Some(LostCause::Revoked));
        match self.ask_if_cancelled(mark, attempt).await {
            Some(cancelled) => Some(cancelled),
            None => result.ok(),
        }
    }

    /// Asks whether the latest run here was cancelled, if its lease was revoked and the store has not answered that yet.
    async fn ask_if_cancelled(&self, mark: TickTime, attempt: &mut TickAttempt) -> Option<Run> {
        let ran = attempt.revoked?;
        let is_cancelled = self.was_cancelled(ran.fence).await?;
        attempt.revoked = None;
        if !is_cancelled {
            return None;
        }
        self.note_over(mark);
        self.tell_end(mark, ran, RunOutcome::Cancelled.into());
        // The tick may have been triggered again meanwhile.
        self.news.notify_one();
        Some(Run {
            outcome: TickOutcome::Cancelled,
            ran: Some(ran),
        })
    }

    /// Handles the store's refusal of a tick. Returns how long to wait before the next claim, or the outcome.
    ///
    /// # Errors
    /// Returns the tick that must run first.
    fn refused(
        &self,
        mark: TickTime,
        attempt: &mut TickAttempt,
        refusal: TickRefusal,
    ) -> Result<ControlFlow<Run, Duration>, EarlierTickDue> {
        let run = match refusal {
            TickRefusal::Early(left) => {
                attempt.due_since = attempt.due_since.map(|since| since + left);
                return Ok(ControlFlow::Continue(self.note_early(mark, left)));
            }
            TickRefusal::EarlierTickDue { latest, is_open } => {
                return Err(EarlierTickDue { latest, is_open });
            }
            TickRefusal::Paused => {
                remember(&self.paused, mark, MAX_PAUSED);
                Run::not_here(TickOutcome::Paused)
            }
            // The pause is over, and its ticks are passed over.
            TickRefusal::Skipped if lock(&self.paused).contains(&mark) => {
                lock(&self.paused).retain(|later| *later > mark);
                self.not_run(mark, TickOutcome::Paused)
            }
            TickRefusal::Skipped => self.not_run(mark, TickOutcome::Skipped),
            TickRefusal::Over => self.not_run(mark, TickOutcome::Elsewhere),
        };
        Ok(ControlFlow::Break(run))
    }

    /// Records that the store is unavailable. Returns when to ask again: soon after the end of a recovery if the store told it,
    /// else after the pause, of which a random part of up to a half is left out. Doubles the pause.
    fn note_outage(&self, attempt: &mut TickAttempt, pause: &mut Duration, error: &Error) -> Duration {
        attempt.is_catch_up = true;
        *lock(&self.last_outage) = Some(self.store_or_local_time());
        if let Error::Store { source, .. } = error
            && let Some(left) = source.retry_after()
        {
            return left + MIN_RETRY_PAUSE.mul_f64(fastrand::f64());
        }
        *pause = (2 * *pause).min(MAX_RETRY_PAUSE);
        pause.mul_f64(0.5 + fastrand::f64() * 0.5)
    }

    /// Records the store's time from its answer that the tick is early. Returns how long until the tick is due.
    fn note_early(&self, mark: TickTime, left: Duration) -> Duration {
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        self.note_store_clock(mark.0.saturating_sub(left_ms));
        observe::tick_early(self.label(), &self.name, mark, left);
        left
    }

    /// Records that the store said that the tick is over, without a run here.
    fn not_run(&self, mark: TickTime, outcome: TickOutcome) -> Run {
        self.note_over(mark);
        Run::not_here(outcome)
    }

    /// Handles an error that does not decide the tick. Returns the outcome, or `None` if the store is asked again.
    fn outcome_of_error(&self, mark: TickTime, attempt: &TickAttempt, error: &Error) -> Option<TickOutcome> {
        match error {
            // A foreign record, for example after a reset while the job ran.
            Error::Busy { .. } if matches!(attempt.when_behind, WhenBehind::After(_)) => None,
            Error::Busy { .. } => Some(TickOutcome::Skipped),
            Error::Closed { .. } => Some(TickOutcome::Drained),
            // Nothing runs until the store is back, and then only the newest tick.
            _ => {
                observe::tick_waits(self.label(), &self.name, mark, error);
                None
            }
        }
    }

    /// Waits before an earlier tick that blocked this one twice in a row: until this node has ended that tick, and
    /// one pause more. Returns the reason if this node runs no further tick.
    pub(super) async fn wait_before_earlier_tick(&self, mark: TickTime) -> Option<TickOutcome> {
        let mut in_progress = self.in_progress.subscribe();
        let pause = async {
            let _ = in_progress
                .wait_for(|in_progress| !in_progress.contains(&mark))
                .await;
            sleep(MIN_RETRY_PAUSE).await;
        };
        self.unless_ended(pause).await.err()
    }

    pub(super) fn note_newest(&self, mark: TickTime) {
        self.newest
            .send_if_modified(|newest| mark > std::mem::replace(newest, mark.max(*newest)));
    }

    fn begin(&self, mark: TickTime) -> Option<TickInProgress<'_>> {
        let is_new = self
            .in_progress
            .send_if_modified(|in_progress| in_progress.insert(mark));
        is_new.then(|| TickInProgress(self, mark))
    }
}

/// Adds a tick to a set that keeps only the newest `at_most` ticks.
pub(super) fn remember(ticks: &Mutex<BTreeSet<TickTime>>, tick: TickTime, at_most: usize) {
    let mut ticks = lock(ticks);
    ticks.insert(tick);
    if ticks.len() > at_most {
        ticks.pop_first();
    }
}

#[cfg(test)]
mod tests;
