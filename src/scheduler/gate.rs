//! Pursues each tick: asks the store for it, and has the job run if the store grants it. Knows leases and ticks, and no
//! cron crate.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
use crate::primitives::tick::{acquire_tick, ask_about_job};
use crate::protocol::message::{Call, JobReport, TickTime, WhenBehind};
use crate::protocol::step::TickRefusal;
use crate::protocol::time::Instant;
use crate::scheduler::policy::{Run, Settings, TickOutcome};
use crate::scheduler::schedule::{Schedule, age, time};
use crate::scheduler::work::Work;

/// The pauses between attempts while the store is away.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// So far a node's clock may be off, and a job's mark ahead of the store's clock, before that is told.
const SKEW: Duration = Duration::from_secs(1);

/// So many ticks in a row are skipped before that is told as an alarm.
const ALARM: u32 = 3;

/// One job of this node.
pub(crate) struct Gate {
    pub(super) handle: Handle,
    pub(super) name: Key,
    pub(super) settings: Settings,
    pub(super) jobs: Arc<Jobs>,
    /// The newest tick that this node has seen come.
    pub(super) newest: watch::Sender<TickTime>,
    /// The ticks that are claimed, awaited or run right now.
    pursued: watch::Sender<HashSet<TickTime>>,
    /// Cancelled when the job's scheduler knows it no more.
    life: CancellationToken,
    /// When it is due; not known until it has fired here, unless the schedule came with the job.
    pub(super) schedule: OnceCell<Schedule>,
    /// Held while this node goes from tick to tick, where none is passed over.
    pub(super) walk: AsyncMutex<()>,
    /// In a row.
    skips: AtomicU32,
    /// What the store's clock showed when it was last heard of, in milliseconds since the Unix epoch, and when that was.
    store_clock: Mutex<Option<(u64, Since)>>,
    /// When a tick could not be claimed last, as the store was away: whatever was due by then and is begun later makes up for
    /// itself.
    away: Mutex<Option<SystemTime>>,
    /// The runs that are in a step right now, by their fence: of which tick, since when, and whether that was told.
    pub(super) steps: Mutex<HashMap<u64, Step>>,
    /// Ticks of which it is not known whether another node ran them.
    pub(super) doubts: Mutex<BTreeSet<TickTime>>,
    /// Held by the task that asks the store about them.
    pub(super) audit: AsyncMutex<()>,
}

/// How a tick is pursued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) turn: WhenBehind,
    /// It could not be begun when it was due.
    pub(crate) is_catch_up: bool,
    /// Since when it has been due here, if this node saw it come: what counts until the store's clock is known.
    pub(crate) since: Option<Since>,
}

impl How {
    pub(crate) fn new(turn: WhenBehind, is_catch_up: bool) -> How {
        How {
            turn,
            is_catch_up,
            since: (!is_catch_up).then(Since::now),
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
pub(super) struct Step {
    pub(super) mark: TickTime,
    pub(super) since: Instant,
    pub(super) told: bool,
}

/// Lives as long as the job's scheduler knows it. Its end frees the job's name, and ends the standbys of this node.
pub(crate) struct Life {
    jobs: Arc<Jobs>,
    name: Key,
    is_over: AtomicBool,
    token: CancellationToken,
}

impl Life {
    /// Once: the name may be that of another job since.
    pub(crate) fn end(&self) {
        if !self.is_over.swap(true, Ordering::SeqCst) {
            lock(&self.jobs.names).remove(&self.name);
            self.token.cancel();
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.end();
    }
}

/// A tick that this node pursues.
struct Pursued<'a>(&'a Gate, TickTime);

impl Drop for Pursued<'_> {
    fn drop(&mut self) {
        self.0.pursued.send_modify(|pursued| {
            pursued.remove(&self.1);
        });
    }
}

impl Gate {
    /// `None` when this node has a job of that name.
    pub(crate) fn new(handle: Handle, name: Key, settings: Settings) -> Option<(Gate, Life)> {
        let jobs = handle.jobs().clone();
        let is_new = jobs.reserve(&name);
        let life = is_new.then(|| Life {
            jobs: jobs.clone(),
            name: name.clone(),
            is_over: AtomicBool::new(false),
            token: CancellationToken::new(),
        })?;
        let gate = Gate {
            handle,
            name,
            settings,
            jobs,
            newest: watch::Sender::new(TickTime(0)),
            pursued: watch::Sender::default(),
            life: life.token.clone(),
            schedule: OnceCell::new(),
            walk: AsyncMutex::default(),
            skips: AtomicU32::new(0),
            store_clock: Mutex::default(),
            away: Mutex::default(),
            steps: Mutex::default(),
            doubts: Mutex::default(),
            audit: AsyncMutex::default(),
        };
        gate.handle.node().note_jobs();
        Some((gate, life))
    }

    pub(crate) fn label(&self) -> &Label {
        self.handle.node().events.label()
    }

    /// Resolves when this node pursues no tick of the job any more, and says why.
    pub(crate) async fn ended(&self) -> TickOutcome {
        tokio::select! {
            biased;
            () = self.jobs.closing.cancelled() => TickOutcome::Drained,
            () = self.life.cancelled() => TickOutcome::Removed,
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
        self.jobs.closing.is_cancelled() || self.life.is_cancelled()
    }

    /// What the job's name stands for: the service and the expression. 0 until that is known.
    fn fingerprint(&self) -> u64 {
        let service = &self.handle.options().service;
        let schedule = self.schedule.get();
        schedule.map_or(0, |schedule| schedule.fingerprint(service))
    }

    /// What the store knows of the job, as far as it can be asked. Whatever should not be so is told.
    pub(crate) async fn asked(&self) -> Option<JobReport> {
        let call = Call::Open {
            within_ms: u64::try_from(self.settings.finish_within.as_millis()).unwrap_or(u64::MAX),
            fingerprint: self.fingerprint(),
            over: self.over(),
        };
        let before = self.now();
        let answer = ask_about_job(&self.handle, &self.name, self.settings.lease, call).await;
        // Whatever keeps the store from answering is told by whoever needs an answer.
        let report = answer.ok()?;
        if report.now_ms > 0 {
            self.note_store_clock(report.now_ms);
        }
        let (label, name) = (self.label(), &self.name);
        if let Some((skew, is_ahead)) = skew(report.now_ms, (before, self.now())) {
            observe::clock_skewed(label, name, skew, is_ahead);
        }
        if Duration::from_millis(report.ahead_ms) > SKEW {
            observe::mark_ahead(label, name, report.ahead_ms);
        }
        if report.differs {
            observe::job_differs(label, name);
        }
        let mut over = lock(&self.jobs.over);
        let known = over.get(&self.name).copied();
        if known.is_some_and(|tick| tick.0 > report.now_ms) {
            // By a clock that was wrong. Ticks up to it may come again.
            over.remove(&self.name);
        }
        drop(over);
        if let Some(tick) = known.filter(|_| report.lost) {
            observe::store_went_back(label, name, tick);
        }
        Some(report)
    }

    /// This node is after that tick.
    pub(crate) fn pursues(&self, mark: TickTime) -> bool {
        self.pursued.borrow().contains(&mark)
    }

    /// It is too late to begin this tick. By the store's clock as it is known here, so that it makes no difference whose clock
    /// is off, and by how much.
    pub(super) fn is_too_old(&self, mark: TickTime, since: Option<Since>) -> bool {
        let age = match (self.store_date(), since) {
            (None, Some(since)) => since.elapsed(),
            (date, _) => age(mark, date.unwrap_or_else(|| self.now())),
        };
        self.settings.oldest().is_some_and(|oldest| age > oldest)
    }

    /// It was due when the store was away.
    pub(super) fn was_kept_waiting(&self, mark: TickTime) -> bool {
        lock(&self.away).is_some_and(|away| time(mark) <= away)
    }

    /// What the store's clock shows, or this node's if that is not known yet.
    pub(super) fn date(&self) -> SystemTime {
        self.store_date().unwrap_or_else(|| self.now())
    }

    fn store_date(&self) -> Option<SystemTime> {
        let (ms, heard) = (*lock(&self.store_clock))?;
        Some(UNIX_EPOCH + Duration::from_millis(ms) + heard.elapsed())
    }

    fn note_store_clock(&self, ms: u64) {
        *lock(&self.store_clock) = Some((ms, Since::now()));
    }

    /// The latest tick that this node knows to be over: a store that came back with an older copy does not.
    fn over(&self) -> Option<TickTime> {
        lock(&self.jobs.over).get(&self.name).copied()
    }

    /// The store said so.
    pub(super) fn note_over(&self, mark: TickTime) {
        let mut over = lock(&self.jobs.over);
        let latest = over.entry(self.name.clone()).or_insert(mark);
        *latest = mark.max(*latest);
    }

    /// A run that has come to no await for a third of its lease blocks its runtime, and can be neither cancelled nor told. Its
    /// lease is renewed all the same.
    pub(crate) fn look_at_steps(&self) {
        let node = self.handle.node();
        for step in lock(&self.steps).values_mut() {
            let lasts = node.ran_since(step.since);
            if !step.told && lasts > self.settings.lease / 3 {
                step.told = true;
                observe::job_blocks(self.label(), &self.name, step.mark, lasts);
            }
        }
    }

    /// Three in a row are no accident.
    fn count_skips(&self, outcome: TickOutcome) {
        let skips = match outcome {
            TickOutcome::Skipped => self.skips.fetch_add(1, Ordering::Relaxed) + 1,
            TickOutcome::Done | TickOutcome::Failed | TickOutcome::Panicked | TickOutcome::Elsewhere => {
                self.skips.store(0, Ordering::Relaxed);
                0
            }
            _ => 0,
        };
        // And again whenever it has doubled.
        if skips >= ALARM && skips.is_multiple_of(ALARM) && (skips / ALARM).is_power_of_two() {
            observe::job_skips(self.label(), &self.name, skips);
        }
    }

    /// Pursues a tick until it is over: runs it here if this node wins it, and else stands by until its winner has
    /// ended.
    ///
    /// # Errors
    /// Which tick is to be run first, where none is passed over.
    pub(crate) async fn pursue(
        &self,
        mark: TickTime,
        how: How,
        work: &impl Work,
    ) -> Result<TickOutcome, EarlierTickDue> {
        let _pursuit = self.jobs.pursuits.token();
        let Run { outcome, ran } = self.run_tick(mark, how, work).await?;
        let outcome = match outcome {
            // Not run here in time: another node may have run it.
            TickOutcome::Missed if ran.is_none() => self.account_for(mark).await,
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

    async fn run_tick(&self, mark: TickTime, mut how: How, work: &impl Work) -> Result<Run, EarlierTickDue> {
        self.note_newest(mark);
        let mut newest = self.newest.subscribe();
        let mut pause = RETRY.0;
        let (runs_all, mut is_first) = (self.settings.runs_all(), true);
        loop {
            // The scheduler may fire one tick again and again, every 500 ms when its own store cannot be written:
            // whoever is after it here already will do.
            let Some(pursued) = self.take_up(mark) else {
                if !runs_all {
                    return Ok(Run::not_here(TickOutcome::Elsewhere));
                }
                // What comes next is not to be had before this one has ended, and asking for it again and again ends nothing.
                tokio::select! {
                    biased;
                    why = self.ended() => return Ok(Run::not_here(why)),
                    () = sleep(RETRY.1) => continue,
                }
            };
            // Where none is passed over the store is told that it is over, by a run.
            if !runs_all && is_first && self.is_too_old(mark, how.since) {
                return Ok(Run::not_here(TickOutcome::Missed));
            }
            let entering = acquire_tick(&self.handle, &self.name, self.settings.lease, (mark, how.turn));
            let entered = tokio::select! {
                biased;
                why = self.ended() => return Ok(Run::not_here(why)),
                entered = entering => entered,
            };
            // Later ticks may fire meanwhile, where this node's clock is ahead by more than their distance: they are early,
            // too, and no reason to let go of this one.
            let is_kept = runs_all || matches!(entered, Ok(Err(TickRefusal::Early(_))));
            let wait = match entered {
                Ok(Ok(guard)) => match self.run(guard, mark, how, work).await {
                    None => None,
                    Some(run) => return Ok(run),
                },
                // Won and not taken up in time: nothing was begun.
                Err(Error::Lost { .. }) => None,
                Ok(Err(TickRefusal::Early(left))) => {
                    how.since = how.since.map(|since| since + left);
                    Some(self.pause_early(mark, left))
                }
                Ok(Err(TickRefusal::EarlierTickDue { latest, is_open })) => {
                    return Err(EarlierTickDue { latest, is_open });
                }
                Ok(Err(TickRefusal::Skipped)) => return Ok(self.refused(mark, TickOutcome::Skipped)),
                Ok(Err(TickRefusal::Over)) => return Ok(self.refused(mark, TickOutcome::Elsewhere)),
                Err(error) => match self.failed(mark, how, &error) {
                    Some(outcome) => return Ok(Run::not_here(outcome)),
                    None => Some(self.pause_away(&mut how, &mut pause)),
                },
            };
            let Some(wait) = wait else {
                is_first = false;
                continue;
            };
            drop(pursued);
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
    fn pause_away(&self, how: &mut How, pause: &mut Duration) -> Duration {
        how.is_catch_up = true;
        *lock(&self.away) = Some(self.date());
        *pause = (2 * *pause).min(RETRY.1);
        pause.mul_f64(0.5 + fastrand::f64() * 0.5)
    }

    /// The store's clock decides when it is time. Returns how long until then.
    fn pause_early(&self, mark: TickTime, left: Duration) -> Duration {
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        self.note_store_clock(mark.0.saturating_sub(left_ms));
        observe::tick_early(self.label(), &self.name, mark, left);
        left
    }

    /// The store says that the tick is over, without a run here.
    fn refused(&self, mark: TickTime, outcome: TickOutcome) -> Run {
        self.note_over(mark);
        Run::not_here(outcome)
    }

    /// The store did not decide about this tick. Returns what becomes of it, or `None` if the store is asked again.
    fn failed(&self, mark: TickTime, how: How, error: &Error) -> Option<TickOutcome> {
        match error {
            // A foreign record, as after a reset while the job ran.
            Error::Busy { .. } if matches!(how.turn, WhenBehind::After(_)) => None,
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
    pub(super) async fn pause_behind(&self, mark: TickTime) -> Option<TickOutcome> {
        let mut pursued = self.pursued.subscribe();
        let pause = async {
            let _ = pursued.wait_for(|pursued| !pursued.contains(&mark)).await;
            sleep(RETRY.0).await;
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

    fn take_up(&self, mark: TickTime) -> Option<Pursued<'_>> {
        let is_new = self.pursued.send_if_modified(|pursued| pursued.insert(mark));
        is_new.then(|| Pursued(self, mark))
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

/// So far this node's clock is off the store's for certain, and whether it is ahead, if that is worth telling.
fn skew(store_ms: u64, (asked, answered): (SystemTime, SystemTime)) -> Option<(Duration, bool)> {
    let store = UNIX_EPOCH + Duration::from_millis(store_ms);
    let behind = store.duration_since(answered).unwrap_or_default();
    let ahead = asked.duration_since(store).unwrap_or_default();
    let (skew, is_ahead) = (behind.max(ahead), ahead > behind);
    (store_ms > 0 && skew > SKEW).then_some((skew, is_ahead))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;
    use crate::locks::Locks;
    use crate::scheduler::tick::Tick;

    const HOW: How = How {
        turn: WhenBehind::Skip,
        is_catch_up: false,
        since: None,
    };

    fn gate(locks: &Locks) -> (Arc<Gate>, Life) {
        let (gate, life) = Gate::new(locks.handle().clone(), "job".into(), Settings::default()).unwrap();
        (Arc::new(gate), life)
    }

    #[allow(clippy::disallowed_methods)]
    fn now() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
    }

    #[tokio::test]
    async fn an_early_tick_waits_for_the_clock_of_the_store() {
        let ((gate, _life), runs) = (gate(&Locks::memory()), Arc::new(AtomicUsize::new(0)));
        let mark = TickTime(now() + 400);
        let of_work = runs.clone();
        let work = move |tick: Tick| {
            of_work.fetch_add(1, Ordering::SeqCst);
            async move { assert!(now() >= tick.mark.0, "not before its time") }
        };
        let pursue = async |mark| gate.pursue(mark, HOW, &work).await.unwrap();
        assert_eq!(pursue(mark).await, TickOutcome::Done);
        assert_eq!(pursue(mark).await, TickOutcome::Elsewhere);
        assert_eq!(pursue(TickTime(mark.0 - 1)).await, TickOutcome::Elsewhere);
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_clock_that_is_ahead_by_many_ticks_misses_none() {
        let (gate, _life) = gate(&Locks::memory());
        let first = now() + 500;
        let mut pursuits = Vec::new();
        // Three fire before it is time for the first.
        for n in 0..3 {
            let gate = gate.clone();
            pursuits.push(tokio::spawn(async move {
                gate.pursue(TickTime(first + 1_000 * n), HOW, &|_| async {})
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
        let (gate, _life) = gate(&locks);
        let mark = TickTime(now());
        let pursued = gate.take_up(mark).unwrap();
        let mut waits = std::pin::pin!(gate.pause_behind(mark));
        let is_pending = std::future::poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx).is_pending()));
        assert!(is_pending.await);
        drop(pursued);
        assert_eq!(waits.await, None);
        let _pursued = gate.take_up(mark);
        let _ = locks.drain(Duration::ZERO).await;
        assert_eq!(gate.pause_behind(mark).await, Some(TickOutcome::Drained));
    }

    #[tokio::test]
    async fn a_drain_ends_an_early_wait() {
        let locks = Locks::memory();
        let (gate, _life) = gate(&locks);
        let far = TickTime(now() + 3_600_000);
        let pursuit = tokio::spawn(async move { gate.pursue(far, HOW, &|_| async {}).await.unwrap() });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(locks.drain(Duration::from_secs(5)).await.is_ok());
        assert_eq!(pursuit.await.unwrap(), TickOutcome::Drained);
    }
}
