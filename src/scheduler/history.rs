//! What a job did: the runs that the store keeps, and the ticks without a run between them.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::key::Key;
#[cfg(feature = "serde")]
use crate::primitives::inspect::json;
use crate::protocol::job_act::JobAct;
use crate::protocol::message::{
    Fence, Kind, MAX_RUNS, MIN_POLL_MS, NodeId, RunOutcome, RunRecord, RunResult, TickTime,
};
use crate::protocol::steal::AuditEntry;
use crate::protocol::view::JobView;
use crate::scheduler::schedule::{Schedule, time};

/// The most ticks without a run that a history examines.
const MAX_TICKS: usize = 10_000;

/// What a job did, oldest first; made by [`Jobs::history`](crate::scheduler::Jobs::history).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use std::time::{Duration, SystemTime};
/// use tenure::scheduler::{HistoryEntry, RunState};
///
/// let since = SystemTime::now() - Duration::from_secs(3 * 86_400);
/// for entry in locks.jobs().history("reconcile", since).await?.map_or(Vec::new(), |history| history.entries) {
///     match entry {
///         HistoryEntry::Run(run) if run.state == RunState::Lost => println!("{:?} was lost on {}", run.tick, run.node),
///         HistoryEntry::Run(run) => println!("{:?}: {}", run.tick, run.state.word()),
///         HistoryEntry::NoRun(none) => println!("{} ticks from {:?} on: {}", none.count, none.first, none.why.word()),
///         _ => {}
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct JobHistory {
    /// The name of the job.
    pub job: Key,
    /// The zone and the expression that a node of the job told last. `None`: no node told them.
    pub plan: Option<JobPlan>,
    /// The runs and the ticks without a run, oldest first.
    pub entries: Vec<HistoryEntry>,
    /// Earlier ticks without a run are left out, because there are more than 10,000.
    pub is_cut: bool,
}

/// When a job is due, as its nodes told it.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// if let Some(plan) = locks.jobs().show("reconcile").await?.and_then(|job| job.plan) {
///     println!("{} in {}", plan.expression, plan.zone);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct JobPlan {
    /// The time zone, such as `Europe/Berlin`.
    pub zone: String,
    /// The expression, or `every <n> s`.
    pub expression: String,
}

/// An entry of a [`JobHistory`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::scheduler::HistoryEntry;
///
/// let history = locks.jobs().history("reconcile", std::time::UNIX_EPOCH).await?;
/// let runs = history.iter().flat_map(|history| &history.entries);
/// println!("{} runs", runs.filter(|entry| matches!(entry, HistoryEntry::Run(_))).count());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum HistoryEntry {
    /// A run of a tick.
    Run(JobRun),
    /// Ticks that no node ran.
    NoRun(TicksWithoutRun),
    /// What an operator did about the job.
    Act(AuditEntry),
}

/// A run of a tick, on the node that was granted it.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let job = locks.jobs().show("reconcile").await?;
/// if let Some(run) = job.and_then(|job| job.latest) {
///     println!("attempt {} on {} took {:?}: {}", run.attempt, run.node_name, run.took, run.text);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct JobRun {
    /// The nominal time of the tick.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::date"))]
    pub tick: SystemTime,
    /// Whether an operator triggered it.
    #[cfg_attr(feature = "serde", serde(rename = "triggered"))]
    pub is_triggered: bool,
    /// Whether it goes on, or how it ended.
    pub state: RunState,
    /// The number of the attempt at the tick.
    pub attempt: u32,
    /// The node.
    pub node: NodeId,
    /// The [name](crate::Builder::node_name) of the node, or empty.
    pub node_name: Arc<str>,
    /// When the tick was granted, by the clock of the server. Too late if that clock was set back before.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::date"))]
    pub began: SystemTime,
    /// How long the run took, by the clock of its node. `None`: it has not ended, or its end is not known.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::ms"))]
    pub took: Option<Duration>,
    /// How often the job was called again after a failure.
    pub retries: u32,
    /// The fence of the run.
    pub fence: Fence,
    /// The text of the error with which it ended, or empty. At most 256 bytes of it are kept.
    pub text: Arc<str>,
}

/// Whether a run goes on, or how it ended.
///
/// ```
/// use tenure::scheduler::{RunOutcome, RunState};
///
/// assert_eq!(RunState::Lost.word(), "lost");
/// assert_eq!(RunState::Ended(RunOutcome::Failed).word(), "failed");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunState {
    /// Its node has the lease of the job.
    Running,
    /// Its node lost the lease before the store heard of an end: the process died, or could not reach the store. The
    /// job may have done its work.
    Lost,
    /// It ended, and the store was told.
    Ended(RunOutcome),
}

impl RunState {
    /// Returns the word for the state: `running`, `lost`, or that of the outcome.
    pub fn word(self) -> &'static str {
        match self {
            RunState::Running => "running",
            RunState::Lost => "lost",
            RunState::Ended(outcome) => outcome.word(),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for RunState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// Ticks in a row that no node ran, for one reason.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::scheduler::{HistoryEntry, WhyNoRun};
///
/// let history = locks.jobs().history("reconcile", std::time::UNIX_EPOCH).await?;
/// for entry in history.iter().flat_map(|history| &history.entries) {
///     if let HistoryEntry::NoRun(none) = entry && none.why == WhyNoRun::None {
///         println!("no node ran {} ticks between {:?} and {:?}", none.count, none.first, none.last);
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TicksWithoutRun {
    /// The nominal time of the first of these ticks.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::date"))]
    pub first: SystemTime,
    /// The nominal time of the last of these ticks.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::date"))]
    pub last: SystemTime,
    /// The number of these ticks.
    pub count: usize,
    /// Why no node ran them.
    pub why: WhyNoRun,
}

/// Why no node ran a tick.
///
/// ```
/// assert_eq!(tenure::scheduler::WhyNoRun::Skipped.word(), "skipped");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum WhyNoRun {
    /// An earlier run lasted until the tick or longer.
    Skipped,
    /// No node began it: no node had the job, or none reached the store in time.
    None,
    /// It came while an operator had paused the job.
    Paused,
    /// It came a moment ago, or it may still run after the run that goes on.
    Pending,
}

impl WhyNoRun {
    /// Returns the word for the reason: `skipped`, `none`, `paused` or `pending`.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

impl JobPlan {
    /// Returns whether the job is due at that time.
    pub fn is_due(&self, at: SystemTime) -> bool {
        let plan = Schedule::of_plan(&format!("{}:{}", self.zone, self.expression));
        plan.and_then(|(schedule, _)| schedule.latest(at).ok())
            .is_some_and(|latest| time(latest) == at)
    }

    pub(super) fn of(view: &JobView) -> Option<JobPlan> {
        let (zone, expression) = view.record.plan.as_deref()?.split_once(':')?;
        Some(JobPlan {
            zone: zone.to_owned(),
            expression: expression.to_owned(),
        })
    }
}

impl JobRun {
    pub(super) fn new(view: &JobView, run: &RunRecord) -> JobRun {
        let state = match &run.ending {
            Some(ending) => RunState::Ended(ending.result.outcome),
            None if view.owners.contains(&run.number) => RunState::Running,
            None => RunState::Lost,
        };
        let result = run.ending.as_ref().map(|ending| ending.result);
        // A tick may be granted before the first look of its node, which tells the name.
        let told = view.record.nodes.get(&run.node).filter(|_| run.name.is_empty());
        let node_name = told.map_or(&run.name, |node| &node.name).clone();
        JobRun {
            tick: time(run.tick),
            is_triggered: run.tick.is_triggered(),
            state,
            attempt: run.attempt,
            node: run.node,
            node_name,
            began: UNIX_EPOCH + Duration::from_micros(run.number.date_us(view.now_us, 1_000 * view.now_ms)),
            took: result.map(|result| Duration::from_millis(result.took_ms)),
            retries: result.map_or(0, |result: RunResult| result.retries),
            fence: Fence::new(run.number, 0),
            text: run
                .ending
                .as_ref()
                .map_or_else(|| "".into(), |ending| ending.text.clone()),
        }
    }

    /// Returns where the run stands among the ticks without a run.
    fn position(&self) -> SystemTime {
        self.began.max(self.tick)
    }
}

impl JobHistory {
    /// Returns the history since that time. `acts`: the audit list of the store, the latest entry first.
    pub(super) fn new(view: &JobView, since: SystemTime, acts: &[AuditEntry]) -> JobHistory {
        let runs: Vec<JobRun> = view
            .record
            .runs
            .iter()
            .map(|run| JobRun::new(view, run))
            .collect();
        let mut acts: Vec<&AuditEntry> = acts
            .iter()
            .filter(|act| act.kind == Some(Kind::Job) && act.key == view.key)
            .collect();
        // Two operators may write their entries in another order than they acted.
        acts.sort_by_key(|act| act.time_ms);
        let (without, is_cut) = ticks_without_run(view, (&runs, &pauses(view, &acts)), since);
        // A run may be triggered for an earlier tick.
        let runs = runs.into_iter().filter(|run| run.position() >= since);
        let mut entries: Vec<(SystemTime, HistoryEntry)> =
            runs.map(|run| (run.position(), HistoryEntry::Run(run))).collect();
        entries.extend(
            without
                .into_iter()
                .map(|none| (none.last, HistoryEntry::NoRun(none))),
        );
        let acts = acts.into_iter().filter(|act| act.time() >= since);
        entries.extend(acts.map(|act| (act.time(), HistoryEntry::Act(act.clone()))));
        // Stable: a run comes before the ticks that it lasted into.
        entries.sort_by_key(|(at, _)| *at);
        JobHistory {
            job: view.key.clone(),
            plan: JobPlan::of(view),
            entries: entries.into_iter().map(|(_, entry)| entry).collect(),
            is_cut,
        }
    }
}

/// A pause of a job: its first and its last moment.
struct JobPause {
    from: SystemTime,
    to: SystemTime,
    /// Its ticks may run late.
    is_caught_up: bool,
}

/// Returns the pauses of a job, as far as the audit list goes back.
fn pauses(view: &JobView, acts: &[&AuditEntry]) -> Vec<JobPause> {
    let resumes = [false, true].map(|catch_up| JobAct::Resume { catch_up }.word());
    let (mut pauses, mut since) = (Vec::new(), None);
    for act in acts {
        if act.what == JobAct::Pause.word() {
            since = Some(act.time());
        } else if resumes.contains(&&*act.what) {
            pauses.extend(since.take().map(|from| JobPause {
                from,
                to: act.time(),
                is_caught_up: act.what == resumes[1],
            }));
        }
    }
    let now = time(TickTime(view.now_ms));
    let present = view
        .record
        .paused
        .as_ref()
        .map(|pause| time(TickTime(pause.since_ms)));
    pauses.extend(present.map(|from| JobPause {
        from,
        to: now,
        is_caught_up: false,
    }));
    pauses
}

/// Returns the ticks of the plan that no node ran, and whether earlier ones are left out. Nothing is said of ticks before the
/// plan was known, nor before the oldest run of a full history.
fn ticks_without_run(
    view: &JobView,
    (runs, pauses): (&[JobRun], &[JobPause]),
    since: SystemTime,
) -> (Vec<TicksWithoutRun>, bool) {
    let record = &view.record;
    let schedule = record.plan.as_deref().and_then(Schedule::of_plan);
    let (Some((schedule, _)), Some(expression)) = (schedule, record.expression) else {
        return (Vec::new(), false);
    };
    let is_full = record.run_count > MAX_RUNS as u64;
    let oldest = runs.first().filter(|_| is_full).map(JobRun::position);
    let known_since = time(TickTime(expression.since_ms));
    let now = time(TickTime(view.now_ms));
    let from = since.max(known_since).max(oldest.unwrap_or(since));
    // A triggered run is none of the tick for which it was triggered: that one had none, or another.
    let of_schedule = runs.iter().filter(|run| !run.is_triggered);
    let ran: BTreeSet<SystemTime> = of_schedule.map(|run| run.tick).collect();
    let positions: BTreeSet<SystemTime> = runs.iter().map(JobRun::position).collect();
    let mut found: Vec<TicksWithoutRun> = Vec::new();
    // From the newest tick back, so that the earliest are left out if there are too many.
    let mut at = now;
    for _ in 0..MAX_TICKS {
        let latest = schedule.latest(at).ok().filter(|tick| time(*tick) >= from);
        // Before 1970 there are no ticks.
        let Some(tick) = latest.filter(|tick| tick.0 > 0) else {
            found.reverse();
            return (found, false);
        };
        let nominal = time(tick);
        at = nominal - Duration::from_secs(1);
        if ran.contains(&nominal) {
            continue;
        }
        // A claim comes up to a second after its tick.
        let claimed = nominal + Duration::from_secs(1);
        let mut pauses = pauses.iter();
        let why = match pauses.find(|pause| pause.from <= claimed && nominal <= pause.to) {
            Some(pause) if pause.is_caught_up && may_run(view, runs, tick, (pause.to, now)) => {
                WhyNoRun::Pending
            }
            Some(_) => WhyNoRun::Paused,
            None => why_no_run(view, runs, tick, now),
        };
        // A row does not span a run.
        let is_apart = |next: SystemTime| {
            positions
                .range((Excluded(nominal), Included(next)))
                .next()
                .is_some()
        };
        match found.last_mut() {
            Some(row) if row.why == why && !is_apart(row.first) => {
                row.first = nominal;
                row.count += 1;
            }
            _ => found.push(TicksWithoutRun {
                first: nominal,
                last: nominal,
                count: 1,
                why,
            }),
        }
    }
    found.reverse();
    (found, true)
}

/// Returns whether a tick without a run may still run: it came a moment ago, at `since`, or a run goes on.
fn may_run(view: &JobView, runs: &[JobRun], tick: TickTime, (since, now): (SystemTime, SystemTime)) -> bool {
    let record = &view.record;
    // A tick that was handed over runs again first.
    let is_open = |state| match state {
        RunState::Running => true,
        RunState::Ended(RunOutcome::HandedOver) => record.unfinished(view.now_ms).is_some(),
        _ => false,
    };
    let may_follow = runs.last().is_some_and(|run| is_open(run.state));
    let is_new = now < since + Duration::from_millis(MIN_POLL_MS);
    Some(tick) > record.mark && !record.is_skipped(Some(tick)) && (may_follow || is_new)
}

fn why_no_run(view: &JobView, runs: &[JobRun], tick: TickTime, now: SystemTime) -> WhyNoRun {
    let (record, nominal) = (&view.record, time(tick));
    if Some(tick) > record.mark && record.is_skipped(Some(tick)) {
        return WhyNoRun::Skipped;
    }
    if may_run(view, runs, tick, (nominal, now)) {
        return WhyNoRun::Pending;
    }
    let mut nexts = runs.iter().skip(1);
    let lasted = runs.iter().any(|run| {
        // Of a run without an end only the next attempt at its tick is known.
        let next = nexts.next().filter(|next| next.tick == run.tick);
        let ended = run
            .took
            .map_or(next.map_or(run.began, |next| next.began), |took| run.began + took);
        run.tick < nominal && run.began <= nominal && nominal <= ended
    });
    if lasted { WhyNoRun::Skipped } else { WhyNoRun::None }
}

#[cfg(test)]
mod tests;
