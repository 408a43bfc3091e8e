//! What operators see of jobs, and do about them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::driver::handle::Handle;
use crate::driver::inspector::Inspector;
use crate::driver::waiter::lock;
use crate::error::{Error, StoreError};
use crate::key::Key;
use crate::observe;
use crate::primitives::call::CallFuture;
#[cfg(feature = "serde")]
use crate::primitives::inspect::json;
use crate::primitives::tick::ask_about_job;
use crate::protocol::job_act::{JobAct, JobActReply, JobActRequest};
use crate::protocol::message::{Call, CallAnswer, Name, NodeId, TickTime, start_of};
use crate::protocol::primitive::Primitive;
use crate::protocol::view::{JobAnswer, JobQuery, JobView};
use crate::protocol::write::Action;
use crate::scheduler::history::{JobHistory, JobPlan, JobRun, RunState};
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
        Ok(JobActOutcome::Done { unwritten })
    }

    /// Removes the store's record of a job, and returns whether there was one. The record has the last granted tick, its
    /// result and the history, and has no expiry.
    ///
    /// Call it when no replica schedules the job any more. A replica that still schedules the job makes a new record with its
    /// next look. A replica that is late may then run a tick a second time, because the record of that tick is gone.
    ///
    /// # Errors
    /// [`Error::Busy`] if a node runs the job, or stands by for a tick of it; nothing was removed. [`Error::Store`] if the
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
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum JobActOutcome {
    /// It was done.
    Done {
        /// Why the act is missing from the [audit list](crate::inspect::Inspection::audit). `None`: it is in it.
        unwritten: Option<StoreError>,
    },
    /// Nothing was done: the store does not know the job.
    Unknown,
    /// Nothing was done: the job is in that state already.
    Unchanged,
}

/// A pause of a job.
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
pub struct PauseEntry {
    /// Since when, by the clock of the server.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::date"))]
    pub since: SystemTime,
    /// The operator.
    pub by: Arc<str>,
    /// The reason.
    pub why: Arc<str>,
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
    pub paused: Option<PauseEntry>,
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
        let is_running = latest.as_ref().is_some_and(|run| run.state == RunState::Running);
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
            state: match record.unfinished(now) {
                _ if is_running => JobState::Running,
                _ if record.paused.is_some() => JobState::Paused,
                Some(_) => JobState::Open,
                None => JobState::Idle,
            },
            paused: record.paused.as_ref().map(|pause| PauseEntry {
                since: time(TickTime(pause.since_ms)),
                by: pause.by.clone(),
                why: pause.why.clone(),
            }),
            plan: JobPlan::of(view),
            latest,
            last_success: record.well.map(time),
            next: until_next.filter(|_| !nodes.is_empty()).map(|left| now_at + left),
            nodes,
        }
    }
}
