//! What operators see of jobs, and do about them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

use crate::driver::handle::Handle;
use crate::driver::inspector::Inspector;
use crate::driver::waiter::lock;
use crate::error::{Error, StoreError};
use crate::key::Key;
use crate::observe;
use crate::options::LONGEST_LEASE;
use crate::primitives::call::CallFuture;
#[cfg(feature = "serde")]
use crate::primitives::inspect::json;
use crate::primitives::inspect::steal::{ASK_EVERY, GRACE_LOOK_PAUSE};
use crate::primitives::tick::ask_about_job;
use crate::protocol::job_act::{JobAct, JobActReply, JobActRequest};
use crate::protocol::message::{
    Asking, Call, CallAnswer, Mode, Name, NodeId, OperatorAct, RunRecord, TickTime, WantedRun, start_of,
};
use crate::protocol::primitive::Primitive;
use crate::protocol::steal::{StealAct, StealReply, StealRequest, StealTarget};
use crate::protocol::view::{JobAnswer, JobQuery, JobView};
use crate::protocol::write::Action;
use crate::scheduler::history::{JobHistory, JobPlan, JobRun};
use crate::scheduler::policy::DEFAULT_LEASE;
use crate::scheduler::schedule::{Schedule, time};

/// What operators see of jobs, and do about them; made by [`Locks::jobs`](crate::Locks::jobs).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let is_removed = locks.jobs().forget("report-of-2025").await?; // no replica schedules it any more
/// assert!(!is_removed); // the store has no record of it
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Jobs(Handle);

impl Jobs {
    pub(super) fn new(handle: &Handle) -> Self {
        Jobs(handle.clone())
    }

    /// Returns the jobs whose names begin with `prefix`, in the order of their names. A job is known to the store within a
    /// second after a node has made it, and until it is [forgotten](Self::forget).
    ///
    /// The store is read page by page, as by [`Inspection::list`](crate::inspect::Inspection::list).
    ///
    /// # Errors
    /// [`Error::Connect`] if the store does not answer, refuses, or serves no jobs, which is so on a quorum. [`Error::Closed`] in
    /// a fork.
    pub async fn list(&self, prefix: impl AsRef<[u8]>) -> Result<Vec<JobEntry>, Error> {
        let (prefix, mut from) = (Box::<[u8]>::from(prefix.as_ref()), None);
        let mut found = BTreeMap::new();
        loop {
            let page = self.read(JobQuery::Page(prefix.clone(), from)).await?;
            let entries = page.jobs.iter().map(JobEntry::new);
            found.extend(entries.map(|entry| (entry.job.clone(), entry)));
            from = page.next;
            if from.is_none() {
                return Ok(found.into_values().collect());
            }
        }
    }

    /// Returns what the store knows of a job. Returns `None` for a job that it does not know.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn show(&self, name: impl Into<Key>) -> Result<Option<JobEntry>, Error> {
        let found = self.read(JobQuery::One(name.into())).await?;
        Ok(found.jobs.first().map(JobEntry::new))
    }

    /// Returns the runs of the ticks since that time, the ticks that no node ran,
    /// and what operators did, oldest first. Returns `None` for a job that
    /// the store does not know. The store keeps the last 100 runs of a job.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn history(
        &self,
        name: impl Into<Key>,
        since: SystemTime,
    ) -> Result<Option<JobHistory>, Error> {
        let found = self.read(JobQuery::One(name.into())).await?;
        let Some(view) = found.jobs.first() else {
            return Ok(None);
        };
        let inspector = self.inspector()?;
        let acts = inspector.audit().await;
        let acts = acts.map_err(|source| inspector.unavailable(source))?;
        Ok(Some(JobHistory::new(view, since, &acts)))
    }

    async fn read(&self, query: JobQuery) -> Result<JobAnswer, Error> {
        let inspector = self.inspector()?;
        let answer = inspector.jobs(query).await;
        answer.map_err(|source| inspector.unavailable(source))
    }

    /// Returns what reads the store, if the store serves jobs.
    fn inspector(&self) -> Result<Inspector, Error> {
        self.0.not_forked(&Key::from("jobs"))?;
        let inspector = self.0.node().inspector();
        let refused = self.0.node().servers.refusal(Primitive::Job);
        refused.map_or(Ok(inspector.clone()), |refused| {
            Err(inspector.unavailable(refused))
        })
    }

    /// Pauses a job, for all replicas and over deploys: no tick begins, nor a further attempt at a tick that has begun. A run that
    /// goes on ends as always. `by` and `why` are told to each node, and are in the audit list. Returns what became of it:
    /// [`JobActOutcome::Unchanged`] if the job is paused already.
    ///
    /// # Errors
    /// As [`list`](Self::list). After a lost answer the job may be paused. A second call then returns
    /// [`JobActOutcome::Unchanged`], and the audit list lacks the act.
    ///
    /// # Cancel safety
    /// If the future is dropped, the job may be paused.
    pub async fn pause(
        &self,
        name: impl Into<Key>,
        by: impl AsRef<str>,
        why: impl AsRef<str>,
    ) -> Result<JobActOutcome, Error> {
        self.act(name.into(), JobAct::Pause, (by.as_ref(), why.as_ref()))
            .await
    }

    /// Resumes a job. No tick of the pause runs, however long it was; a tick that was begun before gets its next attempt, if it is
    /// not older than [`finish_within`](crate::scheduler::LeasedJob::finish_within). With
    /// `catch_up` the job's [`Misfire`](crate::scheduler::Misfire) decides about the ticks of the pause, as after an outage.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    ///
    /// # Cancel safety
    /// If the future is dropped, the job may be resumed.
    pub async fn resume(
        &self,
        name: impl Into<Key>,
        catch_up: bool,
        by: impl AsRef<str>,
        why: impl AsRef<str>,
    ) -> Result<JobActOutcome, Error> {
        let act = JobAct::Resume { catch_up };
        self.act(name.into(), act, (by.as_ref(), why.as_ref())).await
    }

    /// Triggers one more run, on one of the nodes that have the job. Its nominal time is the present second of the server, or the
    /// past time `for_tick`: a job that goes by [`Tick::nominal`](crate::Tick::nominal) then does the work of that tick. It has the
    /// attempts, the timeout and the retries of a tick. `misfire` and `finish_within` do not apply to it; no attempt begins later
    /// than 24 hours after the trigger.
    ///
    /// It changes nothing about the ticks of the schedule. The triggered run waits for a tick that has begun, and a tick that comes
    /// meanwhile waits for the triggered run. It begins in a pause, too. But in a pause a trigger is refused while a tick has begun
    /// and has not ended ([`JobActOutcome::TickUnfinished`]).
    ///
    /// The run is wanted until a run of it ends, or until it is [cancelled](Self::cancel).
    ///
    /// # Errors
    /// As [`list`](Self::list). After a lost answer the run may be wanted. A second call then returns
    /// [`JobActOutcome::Unchanged`] or begins a second run.
    ///
    /// # Cancel safety
    /// If the future is dropped, the run may be wanted.
    pub async fn trigger(
        &self,
        name: impl Into<Key>,
        for_tick: Option<SystemTime>,
        by: impl AsRef<str>,
        why: impl AsRef<str>,
    ) -> Result<JobActOutcome, Error> {
        let act = JobAct::Trigger {
            for_tick: for_tick.map(tick_at),
        };
        self.act(name.into(), act, (by.as_ref(), why.as_ref())).await
    }

    /// Cancels a tick that has begun, or a triggered run: it is over, and neither a standby nor a later attempt runs it. During
    /// `grace`, at most 30 days, a run that awaits [`asked`](crate::Lease::asked) of its [lease](crate::Tick::lease) can end itself.
    /// Other runs go on. Then the lease is [revoked](crate::error::LostCause::Revoked). The next run begins when this run was told or
    /// its lease has ended.
    ///
    /// [`JobEntry::current`] names the tick, and of a triggered one the trigger: a later one is not meant. Returns
    /// [`JobActOutcome::EndedItself`] if the run was asked and the tick ended within the grace, and [`JobActOutcome::OtherTick`] if
    /// it had ended before.
    ///
    /// # Errors
    /// As [`list`](Self::list). After a lost answer the tick may be cancelled.
    ///
    /// # Cancel safety
    /// If the future is dropped, the tick may be cancelled.
    pub async fn cancel(
        &self,
        name: impl Into<Key>,
        tick: TickEntry,
        grace: Duration,
        by: impl AsRef<str>,
        why: impl AsRef<str>,
    ) -> Result<JobActOutcome, Error> {
        let (key, by, why) = (name.into(), by.as_ref(), why.as_ref());
        let grace = grace.min(LONGEST_LEASE);
        let was_asked = self.ask_to_end(&key, tick, (grace, by, why)).await?;
        let act = JobAct::Cancel {
            tick: tick.mark(),
            since_ms: tick.since_ms(),
        };
        match self.act(key, act, (by, why)).await? {
            JobActOutcome::OtherTick if was_asked => Ok(JobActOutcome::EndedItself),
            outcome => Ok(outcome),
        }
    }

    /// Asks the run of a tick to end, again and again, until it has ended or the grace is over. Returns whether it was asked.
    async fn ask_to_end(
        &self,
        key: &Key,
        tick: TickEntry,
        (grace, by, why): (Duration, &str, &str),
    ) -> Result<bool, Error> {
        let (inspector, until) = (self.inspector()?, Instant::now() + grace);
        let (mut ask_at, mut was_asked) = (Instant::now(), false);
        loop {
            let now = Instant::now();
            let left = until.saturating_duration_since(now);
            if left.is_zero() {
                return Ok(was_asked);
            }
            // The act tells whether the store is still unavailable then.
            let number = match self.read(JobQuery::One(key.clone())).await {
                Ok(found) => {
                    let running = found.jobs.first().and_then(|view| tick.running(view));
                    let Some(run) = running else {
                        return Ok(was_asked);
                    };
                    Some(run.number)
                }
                Err(_) => None,
            };
            if let Some(number) = number.filter(|_| now >= ask_at) {
                ask_at = now + ASK_EVERY;
                let asking = Asking {
                    grace_ms: left.as_millis() as u64,
                    by: by.to_owned(),
                    why: why.to_owned(),
                };
                let request = StealRequest {
                    name: Name::job(key.clone()),
                    target: StealTarget::Grant(number, Mode::Exclusive),
                    act: StealAct::Ask(Arc::new(asking.clone())),
                    tells: true,
                };
                if let Ok((StealReply::Done(_), time_us)) = inspector.steal(request.clone()).await
                    && !std::mem::replace(&mut was_asked, true)
                {
                    // A run that ends itself leaves no other trace of the operator.
                    let _ = inspector.note(request.audit(time_us / 1000, &asking)).await;
                }
            }
            sleep(left.min(GRACE_LOOK_PAUSE)).await;
        }
    }

    async fn act(&self, key: Key, act: JobAct, (by, why): (&str, &str)) -> Result<JobActOutcome, Error> {
        let request = JobActRequest {
            name: Name::job(key),
            act,
            by: start_of(by).into(),
            why: start_of(why).into(),
        };
        let inspector = self.inspector()?;
        let acted = inspector.act_on_job(request.clone()).await;
        let (reply, time_us) = acted.map_err(|source| inspector.unavailable(source))?;
        match reply {
            JobActReply::Unknown => return Ok(JobActOutcome::Unknown),
            JobActReply::Unchanged => return Ok(JobActOutcome::Unchanged),
            JobActReply::TickUnfinished => return Ok(JobActOutcome::TickUnfinished),
            JobActReply::InFuture => return Ok(JobActOutcome::InFuture),
            JobActReply::OtherTick => return Ok(JobActOutcome::OtherTick),
            JobActReply::Done => {}
        }
        // First the list: a subscriber of events may block.
        let unwritten = inspector.note(request.audit(time_us / 1000)).await.err();
        observe::job_acted(
            self.0.node().events.label(),
            &request.name.key,
            act.word(),
            by,
            why,
        );
        let at = time(TickTime(time_us / 1000));
        Ok(JobActOutcome::Done { at, unwritten })
    }

    /// Removes the store's record of a job, and returns whether there was one. The record has the last granted tick, its
    /// result and the history, and has no expiry.
    ///
    /// Call it when no replica schedules the job any more. A replica that is late makes a new record, and may then run a tick a
    /// second time, because the record of that tick is gone.
    ///
    /// # Errors
    /// [`Error::Busy`] if a node has the job, runs it, or stands by for a tick of it; nothing was removed. A node that died counts as
    /// one that has the job for [two looks](JobEntry::nodes). [`Error::Store`] if the
    /// store cannot be reached. [`Error::Closed`] in a fork or after a shutdown.
    pub async fn forget(&self, name: impl Into<Key>) -> Result<bool, Error> {
        let name = Name::job(name.into());
        self.0.not_forked(&name.key)?;
        let time = 4 * self.0.options().request_timeout;
        let forgotten = CallFuture::once(
            &self.0,
            &name,
            (time, Action::ForgetJob),
            CallAnswer::try_as_owned,
        )
        .await;
        match forgotten {
            Ok(_) => drop(lock(&self.0.jobs().over).remove(&name.key)),
            // A repeated call does no harm, so an unknown outcome needs no error of its own.
            Err(Error::Unanswered { key, source }) => return Err(Error::Store { key, source }),
            Err(_) => {}
        }
        forgotten
    }

    /// Repairs a job whose mark is ahead of the store's clock, because that clock was wrong once. From now on its
    /// ticks run again, and ticks up to now are over. Returns whether the mark was ahead. Until then, each node
    /// reports `mark_ahead` and runs nothing. If a tick ahead of the clock is running now, it runs once more when the
    /// clock reaches it.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn reset(&self, name: impl Into<Key>) -> Result<bool, Error> {
        let name = name.into();
        let lease = self.0.options().at_most_longest(DEFAULT_LEASE);
        let report = ask_about_job(&self.0, &name, lease, (Call::Reset, None)).await?;
        lock(&self.0.jobs().over).remove(&name);
        Ok(report.ahead_ms > 0)
    }
}

/// What became of an act about a job.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::scheduler::JobActOutcome;
///
/// match locks.jobs().pause("reconcile", "ann", "INC-7").await? {
///     JobActOutcome::Done { .. } => println!("paused"),
///     JobActOutcome::Unknown => println!("the store knows no such job"),
///     JobActOutcome::Unchanged => println!("it was paused before"),
///     _ => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum JobActOutcome {
    /// It was done.
    #[non_exhaustive]
    Done {
        /// When, by the clock of the server. A pause or a trigger has it as its [`since`](ActEntry::since).
        at: SystemTime,
        /// Why the act is missing from the [audit list](crate::inspect::Inspection::audit). `None`: it is in it.
        unwritten: Option<StoreError>,
    },
    /// Nothing was done: the store does not know the job.
    Unknown,
    /// Nothing was done: the job is in that state already, or a triggered run is wanted already.
    Unchanged,
    /// Nothing was triggered: the job is paused, and a tick has begun and has not ended. It may not run again in the pause. Wait
    /// for its end, cancel it, or resume the job.
    TickUnfinished,
    /// Nothing was triggered: the time for the run lies in the future.
    InFuture,
    /// Nothing was cancelled: the tick has ended, or another one has begun.
    OtherTick,
    /// Nothing had to be cancelled: the run was asked, and its tick ended within the grace. The history has its outcome.
    EndedItself,
}

impl JobActOutcome {
    /// Returns the word for the outcome: `done`, `unknown`, `unchanged`, `tick_unfinished`, `in_future`, `other_tick` or
    /// `ended_itself`.
    pub fn word(&self) -> &'static str {
        self.into()
    }
}

/// An act of an operator that is in effect: a pause or a trigger.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// if let Some(pause) = locks.jobs().show("reconcile").await?.and_then(|job| job.paused) {
///     println!("paused by {} since {:?}: {}", pause.by, pause.since, pause.why);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ActEntry {
    /// Since when, by the clock of the server.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::date"))]
    pub since: SystemTime,
    /// The operator.
    pub by: Arc<str>,
    /// The reason.
    pub why: Arc<str>,
}

/// A tick of a job, of its schedule or triggered.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// # use std::time::Duration;
/// let jobs = locks.jobs();
/// if let Some(tick) = jobs.show("reconcile").await?.and_then(|job| job.current) {
///     jobs.cancel("reconcile", tick, Duration::from_secs(10), "ann", "wrong rates").await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TickEntry {
    /// The nominal time of the tick.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::date"))]
    pub tick: SystemTime,
    /// Whether an operator triggered it.
    #[cfg_attr(feature = "serde", serde(rename = "triggered"))]
    pub is_triggered: bool,
    /// When it was triggered, if that is known. Without it each trigger of this nominal time is meant.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::optional_date"))]
    pub since: Option<SystemTime>,
}

impl TickEntry {
    /// Returns the tick of the schedule with this nominal time.
    pub fn scheduled(tick: SystemTime) -> TickEntry {
        TickEntry {
            tick,
            is_triggered: false,
            since: None,
        }
    }

    /// Returns the triggered tick with this nominal time, whenever it was triggered.
    pub fn triggered(tick: SystemTime) -> TickEntry {
        TickEntry {
            is_triggered: true,
            ..TickEntry::scheduled(tick)
        }
    }

    pub(super) fn new(mark: TickTime, wanted: Option<&WantedRun>) -> TickEntry {
        let wanted = wanted.filter(|wanted| wanted.tick == mark);
        TickEntry {
            tick: time(mark),
            is_triggered: mark.is_triggered(),
            since: wanted.map(|wanted| time(TickTime(wanted.act.since_ms))),
        }
    }

    /// Returns when it was triggered, in ms.
    fn since_ms(self) -> Option<u64> {
        self.since.map(|since| tick_at(since).0)
    }

    /// Returns the run of this tick that goes on.
    fn running(self, view: &JobView) -> Option<&RunRecord> {
        let wanted = view.record.wanted.as_deref();
        let is_meant = |tick| {
            let found = TickEntry::new(tick, wanted);
            tick == self.mark() && (self.since.is_none() || found.since == self.since)
        };
        view.running().filter(|run| is_meant(run.tick))
    }

    fn mark(self) -> TickTime {
        let mark = tick_at(self.tick);
        if self.is_triggered { mark.triggered() } else { mark }
    }
}

/// A run that an operator wants, and that has not ended.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// if let Some(wanted) = locks.jobs().show("reconcile").await?.and_then(|job| job.wanted) {
///     println!("{} wants a run for {:?}: {}", wanted.act.by, wanted.tick, wanted.act.why);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WantedRunEntry {
    /// The nominal time of the run.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::date"))]
    pub tick: SystemTime,
    /// Who triggered it, why, and when.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub act: ActEntry,
}

impl WantedRunEntry {
    /// Returns the tick, for [`Jobs::cancel`]. A later trigger is not meant.
    pub fn tick_entry(&self) -> TickEntry {
        TickEntry {
            since: Some(self.act.since),
            ..TickEntry::triggered(self.tick)
        }
    }
}

impl ActEntry {
    pub(super) fn new(act: &OperatorAct) -> ActEntry {
        ActEntry {
            since: time(TickTime(act.since_ms)),
            by: act.by.clone(),
            why: act.why.clone(),
        }
    }
}

fn tick_at(tick: SystemTime) -> TickTime {
    let since = tick.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Later times are refused anyway.
    let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    TickTime(ms.min(TickTime::FIRST_TRIGGERED.0 - 1))
}

/// What the store knows of a job.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// for job in locks.jobs().list("").await? {
///     println!("{}: {} on {} nodes, next at {:?}", job.job, job.state.word(), job.nodes.len(), job.next);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct JobEntry {
    /// The name of the job.
    pub job: Key,
    /// The date by the clock of the server.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::date"))]
    pub now: SystemTime,
    /// Whether a tick of it runs.
    pub state: JobState,
    /// The pause, if an operator has paused the job.
    pub paused: Option<ActEntry>,
    /// The run that an operator wants.
    pub wanted: Option<WantedRunEntry>,
    /// The tick that has begun and has not ended; else the one that is wanted. [`Jobs::cancel`] takes it.
    pub current: Option<TickEntry>,
    /// When it is due, as a node of the job told last.
    pub plan: Option<JobPlan>,
    /// The nodes that have the job. A node that died stays for the time of two looks: two leases of the job, and at least 10 s.
    pub nodes: Vec<JobNodeEntry>,
    /// The latest run.
    pub latest: Option<JobRun>,
    /// The nominal time of the latest tick that succeeded.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::optional_date"))]
    pub last_success: Option<SystemTime>,
    /// The next tick of the plan. `None` if no node has the job.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::optional_date"))]
    pub next: Option<SystemTime>,
}

/// Whether a tick of a job runs.
///
/// ```
/// assert_eq!(tenure::scheduler::JobState::Open.word(), "open");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum JobState {
    /// A node runs a tick.
    Running,
    /// A tick was begun and has not ended, and no node runs it now. A node takes it over when it looks next.
    Open,
    /// No tick is begun.
    Idle,
    /// An operator has paused the job, and no tick runs.
    Paused,
}

impl JobState {
    /// Returns the word for the state: `running`, `open`, `idle` or `paused`.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// A node that has a job.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// for node in locks.jobs().show("reconcile").await?.map_or(Vec::new(), |job| job.nodes) {
///     println!("{} ({})", node.id, node.name);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct JobNodeEntry {
    /// The id of the node.
    pub id: NodeId,
    /// The [name](crate::Builder::node_name) of the node, or empty.
    pub name: Arc<str>,
}

impl JobEntry {
    fn new(view: &JobView) -> JobEntry {
        let (record, now) = (&view.record, view.now_ms);
        let latest = record.runs.back().map(|run| JobRun::new(view, run));
        let running = view.running().map(|run| run.tick);
        let (open, wanted) = (record.unfinished(now), record.wanted.as_deref());
        let wanted = wanted.filter(|wanted| wanted.is_open(now) || running == Some(wanted.tick));
        let is_begun = open.is_some() || wanted.is_some_and(|wanted| wanted.attempt > 0);
        let live = record.nodes.iter().filter(|(_, node)| now <= node.until_ms);
        let nodes: Vec<JobNodeEntry> = live
            .map(|(id, node)| JobNodeEntry {
                id: *id,
                name: node.name.clone(),
            })
            .collect();
        let schedule = record.plan.as_deref().and_then(Schedule::of_plan);
        let now_at = SystemTime::UNIX_EPOCH + Duration::from_millis(now);
        let until_next = schedule.and_then(|(schedule, _)| schedule.until_next(now_at));
        JobEntry {
            job: view.key.clone(),
            now: now_at,
            state: match () {
                _ if running.is_some() => JobState::Running,
                _ if record.paused.is_some() => JobState::Paused,
                _ if is_begun => JobState::Open,
                _ => JobState::Idle,
            },
            paused: record.paused.as_deref().map(ActEntry::new),
            wanted: wanted.map(|wanted| WantedRunEntry {
                tick: time(wanted.tick),
                act: ActEntry::new(&wanted.act),
            }),
            current: running
                .or(open)
                .or(wanted.map(|wanted| wanted.tick))
                .map(|tick| TickEntry::new(tick, wanted)),
            plan: JobPlan::of(view),
            latest,
            last_success: record.well.map(time),
            next: until_next.filter(|_| !nodes.is_empty()).map(|left| now_at + left),
            nodes,
        }
    }
}
