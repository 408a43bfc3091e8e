//! Pursues each tick: asks the store for it, and has the job run if the store grants it. Knows leases and ticks, and no
//! cron crate.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex as AsyncMutex, OnceCell, watch};
use tokio::time::{Instant as Since, sleep};
use tokio_util::sync::CancellationToken;

use crate::driver::clock::Clock;
use crate::driver::handle::Handle;
use crate::driver::jobs::Jobs;
use crate::driver::waiter::lock;
use crate::error::Error;
use crate::key::Key;
use crate::observe::{self, Label};
use crate::primitives::tick::acquire_tick;
use crate::protocol::message::{TickTime, WhenBehind};
use crate::protocol::step::TickRefusal;
use crate::protocol::time::Instant;
use crate::scheduler::policy::{JobSettings, Run, TickOutcome};
use crate::scheduler::registration::JobRegistration;
use crate::scheduler::schedule::Schedule;
use crate::scheduler::work::Work;

/// The pauses between attempts while the store is away.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// @
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(2);

/// So many ticks in a row are skipped before that is told as an alarm.
const SKIPS_BEFORE_ALARM: u32 = 3;

/// One job of this node.
pub(crate) struct TickRunner {
    pub(super) handle: Handle,
    pub(super) name: Key,
    pub(super) settings: JobSettings,
    pub(super) jobs: Arc<Jobs>,
    /// The newest tick that this node has seen come.
    pub(super) newest: watch::Sender<TickTime>,
    /// The ticks that are claimed, awaited or run right now.
    in_progress: watch::Sender<HashSet<TickTime>>,
    /// Cancelled when the job's scheduler knows it no more.
    removed: CancellationToken,
    /// When it is due; not known until it has fired here, unless the schedule came with the job.
    pub(super) schedule: OnceCell<Schedule>,
    /// Held while this node goes from tick to tick, where none is passed over.
    pub(super) run_all_lock: AsyncMutex<()>,
    /// In a row.
    consecutive_skips: AtomicU32,
    /// What the store's clock showed when it was last heard of, in milliseconds since the Unix epoch, and when that was.
    pub(super) store_clock: Mutex<Option<(u64, Since)>>,
    /// When a tick could not be claimed last, as the store was away: whatever was due by then and is begun later makes up for
    /// itself.
    pub(super) last_outage: Mutex<Option<SystemTime>>,
    /// The runs that are in a step right now, by their fence: of which tick, since when, and whether that was told.
    pub(super) ongoing_polls: Mutex<HashMap<u64, OngoingPoll>>,
    /// Ticks of which it is not known whether another node ran them.
    pub(super) unresolved: Mutex<BTreeSet<TickTime>>,
    /// Held by the task that asks the store about them.
    pub(super) audit_lock: AsyncMutex<()>,
}

/// How a tick is pursued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TickAttempt {
    pub(crate) when_behind: WhenBehind,
    /// It could not be begun when it was due.
    pub(crate) is_catch_up: bool,
    /// Since when it has been due here, if this node saw it come: what counts until the store's clock is known.
    pub(crate) due_since: Option<Since>,
}

impl TickAttempt {
    pub(crate) fn new(when_behind: WhenBehind, is_catch_up: bool) -> TickAttempt {
        TickAttempt {
            when_behind,
            is_catch_up,
            due_since: (!is_catch_up).then(Since::now),
        }
    }
}

/// An earlier tick is to be run first: the latest that the store knows of, if it is open, else one that comes after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EarlierTickDue {
    pub(crate) latest: TickTime,
    pub(crate) is_open: bool,
}

/// A run between two awaits.
#[derive(Debug, Clone, Copy)]
pub(super) struct OngoingPoll {
    pub(super) mark: TickTime,
    pub(super) since: Instant,
    pub(super) is_reported: bool,
}

/// A tick that this node pursues.
struct TickInProgress<'a>(&'a TickRunner, TickTime);

impl Drop for TickInProgress<'_> {
    fn drop(&mut self) {
        self.0.in_progress.send_modify(|in_progress| {
            in_progress.remove(&self.1);
        });
    }
}

impl TickRunner {
    /// `None` when this node has a job of that name.
    pub(crate) fn new(
        handle: Handle,
        name: Key,
        settings: JobSettings,
    ) -> Option<(TickRunner, JobRegistration)> {
        let jobs = handle.jobs().clone();
        let registration = JobRegistration::new(jobs.clone(), name.clone())?;
        let runner = TickRunner {
            handle,
            name,
            settings,
            jobs,
            newest: watch::Sender::new(TickTime(0)),
            in_progress: watch::Sender::default(),
            removed: registration.removal_token(),
            schedule: OnceCell::new(),
            run_all_lock: AsyncMutex::default(),
            consecutive_skips: AtomicU32::new(0),
            store_clock: Mutex::default(),
            last_outage: Mutex::default(),
            ongoing_polls: Mutex::default(),
            unresolved: Mutex::default(),
            audit_lock: AsyncMutex::default(),
        };
        runner.handle.node().has_jobs();
        Some((runner, registration))
    }

    pub(crate) fn label(&self) -> &Label {
        self.handle.node().events.label()
    }

    /// Resolves when this node pursues no tick of the job any more, and says why.
    pub(crate) async fn ended(&self) -> TickOutcome {
        tokio::select! {
            biased;
            () = self.jobs.closing.cancelled() => TickOutcome::Drained,
            () = self.removed.cancelled() => TickOutcome::Removed,
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.handle.node().clock.clone()
    }

    /// What this node's wall clock shows.
    pub(crate) fn now(&self) -> SystemTime {
        self.handle.node().clock.wall()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.jobs.closing.is_cancelled() || self.removed.is_cancelled()
    }

    /// This node is after that tick.
    pub(crate) fn is_in_progress(&self, mark: TickTime) -> bool {
        self.in_progress.borrow().contains(&mark)
    }

    /// A run that has come to no await for a third of its lease blocks its runtime, and can be neither cancelled nor told. Its
    /// lease is renewed all the same.
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

    /// Three in a row are no accident.
    fn count_skips(&self, outcome: TickOutcome) {
        let skips = match outcome {
            TickOutcome::Skipped => self.consecutive_skips.fetch_add(1, Ordering::Relaxed) + 1,
            TickOutcome::Done | TickOutcome::Failed | TickOutcome::Panicked | TickOutcome::Elsewhere => {
                self.consecutive_skips.store(0, Ordering::Relaxed);
                0
            }
            _ => 0,
        };
        // And again whenever it has doubled.
        if skips >= SKIPS_BEFORE_ALARM
            && skips.is_multiple_of(SKIPS_BEFORE_ALARM)
            && (skips / SKIPS_BEFORE_ALARM).is_power_of_two()
        {
            observe::job_skips(self.label(), &self.name, skips);
        }
    }

    /// Pursues a tick until it is over: runs it here if this node wins it, and else stands by until its winner has
    /// ended.
    ///
    /// # Errors
    /// Which tick is to be run first, where none is passed over.
    pub(crate) async fn run_if_won(
        &self,
        mark: TickTime,
        tick_attempt: TickAttempt,
        work: &impl Work,
    ) -> Result<TickOutcome, EarlierTickDue> {
        let _pursuit = self.jobs.pursuits.token();
        let Run { outcome, ran } = self.try_until_over(mark, tick_attempt, work).await?;
        let outcome = match outcome {
            // Not run here in time: another node may have run it.
            TickOutcome::Missed if ran.is_none() => self.resolve_missed(mark).await,
            // That was told where it happened, which may be before there is a tick.
            TickOutcome::Refused => outcome,
            _ => {
                observe::tick(self.label(), &self.name, mark, outcome.word(), ran);
                outcome
            }
        };
        self.count_skips(outcome);
        Ok(outcome)
    }

    async fn try_until_over(
        &self,
        mark: TickTime,
        mut tick_attempt: TickAttempt,
        work: &impl Work,
    ) -> Result<Run, EarlierTickDue> {
        self.note_newest(mark);
        let mut newest = self.newest.subscribe();
        let mut pause = MIN_RETRY_PAUSE;
        let (runs_all, mut is_first) = (self.settings.runs_all(), true);
        loop {
            // The scheduler may fire one tick again and again, every 500 ms when its own store cannot be written:
            // whoever is after it here already will do.
            let Some(in_progress) = self.begin(mark) else {
                if !runs_all {
                    return Ok(Run::not_here(TickOutcome::Elsewhere));
                }
                // What comes next is not to be had before this one has ended, and asking for it again and again ends nothing.
                tokio::select! {
                    biased;
                    why = self.ended() => return Ok(Run::not_here(why)),
                    () = sleep(MAX_RETRY_PAUSE) => continue,
                }
            };
            // Where none is passed over the store is told that it is over, by a run.
            if !runs_all && is_first && self.is_too_old(mark, tick_attempt.due_since) {
                return Ok(Run::not_here(TickOutcome::Missed));
            }
            let entering = acquire_tick(
                &self.handle,
                &self.name,
                self.settings.lease,
                (mark, tick_attempt.when_behind),
            );
            let entered = tokio::select! {
                biased;
                why = self.ended() => return Ok(Run::not_here(why)),
                entered = entering => entered,
            };
            // Later ticks may fire meanwhile, where this node's clock is ahead by more than their distance: they are early,
            // too, and no reason to let go of this one.
            let is_kept = runs_all || matches!(entered, Ok(Err(TickRefusal::Early(_))));
            let wait = match entered {
                Ok(Ok(guard)) => match self.run(guard, mark, tick_attempt, work).await {
                    None => None,
                    Some(run) => return Ok(run),
                },
                // Won and not taken up in time: nothing was begun.
                Err(Error::Lost { .. }) => None,
                Ok(Err(TickRefusal::Early(left))) => {
                    tick_attempt.due_since = tick_attempt.due_since.map(|since| since + left);
                    Some(self.note_early(mark, left))
                }
                Ok(Err(TickRefusal::EarlierTickDue { latest, is_open })) => {
                    return Err(EarlierTickDue { latest, is_open });
                }
                Ok(Err(TickRefusal::Skipped)) => return Ok(self.not_run(mark, TickOutcome::Skipped)),
                Ok(Err(TickRefusal::Over)) => return Ok(self.not_run(mark, TickOutcome::Elsewhere)),
                Err(error) => match self.outcome_of_error(mark, tick_attempt, &error) {
                    Some(outcome) => return Ok(Run::not_here(outcome)),
                    None => Some(self.note_outage(&mut tick_attempt, &mut pause)),
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

    /// The store is away, from now on at the latest. Returns how long until it is asked again, and doubles the next pause.
    fn note_outage(&self, tick_attempt: &mut TickAttempt, pause: &mut Duration) -> Duration {
        tick_attempt.is_catch_up = true;
        *lock(&self.last_outage) = Some(self.store_or_local_time());
        *pause = (2 * *pause).min(MAX_RETRY_PAUSE);
        pause.mul_f64(0.5 + fastrand::f64() * 0.5)
    }

    /// The store's clock decides when it is time. Returns how long until then.
    fn note_early(&self, mark: TickTime, left: Duration) -> Duration {
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        self.note_store_clock(mark.0.saturating_sub(left_ms));
        observe::tick_early(self.label(), &self.name, mark, left);
        left
    }

    /// The store says that the tick is over, without a run here.
    fn not_run(&self, mark: TickTime, outcome: TickOutcome) -> Run {
        self.note_over(mark);
        Run::not_here(outcome)
    }

    /// The store did not decide about this tick. Returns what becomes of it, or `None` if the store is asked again.
    fn outcome_of_error(
        &self,
        mark: TickTime,
        tick_attempt: TickAttempt,
        error: &Error,
    ) -> Option<TickOutcome> {
        match error {
            // A foreign record, as after a reset while the job ran.
            Error::Busy { .. } if matches!(tick_attempt.when_behind, WhenBehind::After(_)) => None,
            Error::Busy { .. } => Some(TickOutcome::Skipped),
            Error::Closed { .. } => Some(TickOutcome::Drained),
            Error::Key { .. } | Error::Options(_) => {
                observe::job_refused(self.label(), &self.name, error);
                Some(TickOutcome::Refused)
            }
            // Fail closed: nothing runs until the store is back, and then only the newest tick.
            _ => {
                observe::tick_waits(self.label(), &self.name, mark, error);
                None
            }
        }
    }

    /// Before a tick is pursued that was named twice in a row as to be run first: until this node lets go of it, and for a
    /// while. Says why nothing is run here any more.
    pub(super) async fn wait_before_earlier_tick(&self, mark: TickTime) -> Option<TickOutcome> {
        let mut in_progress = self.in_progress.subscribe();
        let pause = async {
            let _ = in_progress
                .wait_for(|in_progress| !in_progress.contains(&mark))
                .await;
            sleep(MIN_RETRY_PAUSE).await;
        };
        tokio::select! {
            biased;
            why = self.ended() => Some(why),
            () = pause => None,
        }
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

/// Adds a tick to those that are remembered: the newest, and so many at most.
pub(super) fn remember(ticks: &Mutex<BTreeSet<TickTime>>, tick: TickTime, at_most: usize) {
    let mut ticks = lock(ticks);
    ticks.insert(tick);
    if ticks.len() > at_most {
        ticks.pop_first();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;
    use crate::locks::Locks;
    use crate::scheduler::tick::Tick;

    const ATTEMPT: TickAttempt = TickAttempt {
        when_behind: WhenBehind::Skip,
        is_catch_up: false,
        due_since: None,
    };

    fn runner(locks: &Locks) -> (Arc<TickRunner>, JobRegistration) {
        let (runner, registration) =
            TickRunner::new(locks.handle().clone(), "job".into(), JobSettings::default()).unwrap();
        (Arc::new(runner), registration)
    }

    #[allow(clippy::disallowed_methods)]
    fn now() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
    }

    #[tokio::test]
    async fn an_early_tick_waits_for_the_clock_of_the_store() {
        let ((runner, _registration), runs) = (runner(&Locks::memory()), Arc::new(AtomicUsize::new(0)));
        let mark = TickTime(now() + 400);
        let of_work = runs.clone();
        let work = move |tick: Tick| {
            of_work.fetch_add(1, Ordering::SeqCst);
            async move { assert!(now() >= tick.mark.0, "not before its time") }
        };
        let run_if_won = async |mark| runner.run_if_won(mark, ATTEMPT, &work).await.unwrap();
        assert_eq!(run_if_won(mark).await, TickOutcome::Done);
        assert_eq!(run_if_won(mark).await, TickOutcome::Elsewhere);
        assert_eq!(run_if_won(TickTime(mark.0 - 1)).await, TickOutcome::Elsewhere);
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_clock_that_is_ahead_by_many_ticks_misses_none() {
        let (runner, _registration) = runner(&Locks::memory());
        let first = now() + 500;
        let mut pursuits = Vec::new();
        // Three fire before it is time for the first.
        for n in 0..3 {
            let runner = runner.clone();
            pursuits.push(tokio::spawn(async move {
                runner
                    .run_if_won(TickTime(first + 1_000 * n), ATTEMPT, &|_| async {})
                    .await
                    .unwrap()
            }));
        }
        for pursuit in pursuits {
            assert_eq!(pursuit.await.unwrap(), TickOutcome::Done);
        }
    }

    #[tokio::test]
    async fn who_is_behind_a_tick_that_is_pursued_here_waits_until_it_is_let_go() {
        let locks = Locks::memory();
        let (runner, _registration) = runner(&locks);
        let mark = TickTime(now());
        let in_progress = runner.begin(mark).unwrap();
        let mut waits = std::pin::pin!(runner.wait_before_earlier_tick(mark));
        let is_pending = std::future::poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx).is_pending()));
        assert!(is_pending.await);
        drop(in_progress);
        assert_eq!(waits.await, None);
        let _pursued = runner.begin(mark);
        let _ = locks.drain(Duration::ZERO).await;
        assert_eq!(
            runner.wait_before_earlier_tick(mark).await,
            Some(TickOutcome::Drained)
        );
    }

    #[tokio::test]
    async fn a_drain_ends_an_early_wait() {
        let locks = Locks::memory();
        let (runner, _registration) = runner(&locks);
        let far = TickTime(now() + 3_600_000);
        let pursuit =
            tokio::spawn(async move { runner.run_if_won(far, ATTEMPT, &|_| async {}).await.unwrap() });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(locks.drain(Duration::from_secs(5)).await.is_ok());
        assert_eq!(pursuit.await.unwrap(), TickOutcome::Drained);
    }
}
