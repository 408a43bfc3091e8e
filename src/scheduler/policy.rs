//! The settings of a job, the outcomes of a tick, and the output of a job.

use std::fmt;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};

use crate::observe::Ran;
use crate::options::JOB_LEASE;
use crate::protocol::message::RunOutcome;
use crate::scheduler::on_end::OnEnd;

/// The lease of a job by default. It is renewed while the job runs, so it does not limit the job's length.
pub const DEFAULT_LEASE: Duration = JOB_LEASE;

/// The maximum age, by default, of an unfinished tick that a later node finishes.
const DEFAULT_FINISH_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// The maximum number of attempts of a tick by default. It stops a job that kills its process from killing each node
/// in turn.
const DEFAULT_ATTEMPTS: u32 = 10;

/// The lower bound for the maximum age of a tick that begins, however short the lease is.
const MIN_TICK_AGE_LIMIT: Duration = Duration::from_secs(5);

/// What happens to a tick that comes while any node runs an earlier tick of the job.
///
/// ```
/// # fn main() -> Result<(), tenure::scheduler::JobError> {
/// # let locks = tenure::Locks::memory();
/// use tenure::scheduler::Overlap;
///
/// let job = locks
///     .cron("reconcile", "0 */5 * * * *")
///     .overlap(Overlap::QueueOne) // the latest tick that came meanwhile runs next
///     .run(|tick| async move { println!("{}", tick.nominal_unix()) })?;
/// # drop(job); Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overlap {
    /// The tick is skipped, and an event reports it.
    #[default]
    Skip,
    /// The tick waits until the earlier one has ended. If several ticks wait, the latest one runs, and the others are
    /// skipped.
    ///
    /// If the node that runs the earlier tick dies, the earlier tick ends with its lease. The waiting tick then runs,
    /// and the earlier one never runs again. No event reports this: `tick_overtaken` is sent only for a later tick
    /// that had not waited.
    QueueOne,
}

/// What happens to ticks that could not begin when they were due, because the store was unavailable or no node had
/// the job. The store's clock decides how old a tick is. Each node learns it once per lease, or every 5 s if that is
/// longer.
///
/// ```
/// # fn main() -> Result<(), tenure::scheduler::JobError> {
/// # let locks = tenure::Locks::memory();
/// use std::time::Duration;
/// use tenure::scheduler::Misfire;
///
/// let job = locks
///     .cron("reconcile", "0 */5 * * * *")
///     // After an outage, the ticks of the last hour run one after the other.
///     .misfire(Misfire::RunAll { within: Duration::from_secs(3600), at_most: 12 })
///     .run(|tick| async move { println!("{}", tick.nominal_unix()) })?;
/// # drop(job); Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misfire {
    /// The ticks are not caught up. A tick may begin within one lease, or within 5 s if that is longer.
    Skip,
    /// The newest tick runs, if it is not older than this.
    RunOnce {
        /// The maximum age; at least 5 s.
        within: Duration,
    },
    /// All ticks run one after the other, from the oldest one within the limits of age and number. The job's ticks
    /// never overlap, and none is skipped. A tick that comes during an earlier one runs after it. A tick whose run
    /// was cut short runs again before the next.
    RunAll {
        /// The maximum age; at least 5 s.
        within: Duration,
        /// The maximum number of ticks; at least one. The newest ticks are kept. A tick that a node already claimed
        /// when the store became unavailable is not counted.
        at_most: u32,
    },
}

/// How often a job that failed, panicked or timed out runs again at once, under the same lease and as the same
/// attempt. The pauses double, and a random time of up to one pause is added to each.
///
/// Each retry has the same [fence](crate::Tick::fence), and may [`resume`](crate::Tick::resume) a checkpoint of an earlier
/// try. The lease is held during the pauses, so a tick that comes meanwhile comes during an earlier one: [`Overlap`]. A run
/// that lost its lease or was drained has not failed: its tick goes to the next
/// [attempt](crate::scheduler::LeasedJob::attempts), on any node.
///
/// ```
/// # fn main() -> Result<(), tenure::scheduler::JobError> {
/// # let locks = tenure::Locks::memory();
/// use std::time::Duration;
/// use tenure::scheduler::Retry;
///
/// let job = locks
///     .cron("reconcile", "0 */5 * * * *")
///     // At most four tries, with pauses of about 1 s, 2 s and 4 s.
///     .retry(Retry::times(3).pauses(Duration::from_secs(1), Duration::from_secs(30)))
///     .run(|tick| async move { println!("{}", tick.nominal_unix()) })?;
/// # drop(job); Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    times: u32,
    first: Duration,
    longest: Duration,
}

impl Retry {
    /// Returns a policy with this number of retries: with three, a tick that fails each time runs four times. The first
    /// pause is 1 s, and the longest is 1 min.
    pub fn times(times: u32) -> Self {
        Retry {
            times,
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
        }
    }

    /// Sets the first pause and the longest pause.
    pub fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        (self.first, self.longest) = (first, longest.max(first));
        self
    }

    /// Returns the maximum number of tries.
    pub(crate) fn tries(self) -> u32 {
        self.times.saturating_add(1)
    }

    pub(crate) fn pauses_between_tries(self) -> impl Iterator<Item = Duration> + Send {
        let builder = ExponentialBuilder::new()
            .with_min_delay(self.first)
            .with_max_delay(self.longest)
            .with_max_times(self.times as usize)
            .with_jitter();
        builder.build()
    }
}

/// The settings of a job.
#[derive(Debug, Clone)]
pub(crate) struct JobSettings {
    pub(crate) lease: Duration,
    /// The maximum age of an unfinished tick that a later node finishes.
    pub(crate) finish_within: Duration,
    /// The maximum number of attempts of a tick.
    pub(crate) attempts: u32,
    /// The maximum length of one try.
    pub(crate) timeout: Option<Duration>,
    pub(crate) overlap: Overlap,
    /// If `None`, the newest tick that this node saw runs, however late. Ticks before the first node are not caught
    /// up.
    pub(crate) misfire: Option<Misfire>,
    pub(crate) retry: Retry,
    /// Whether the job blocks a thread of its own, and so cannot be cancelled.
    pub(crate) blocks: bool,
    /// What is called when a run has ended.
    pub(crate) on_end: Option<OnEnd>,
}

impl Default for JobSettings {
    fn default() -> Self {
        JobSettings {
            lease: DEFAULT_LEASE,
            finish_within: DEFAULT_FINISH_WITHIN,
            attempts: DEFAULT_ATTEMPTS,
            timeout: None,
            overlap: Overlap::default(),
            misfire: None,
            retry: Retry::times(0),
            blocks: false,
            on_end: None,
        }
    }
}

impl JobSettings {
    /// Returns the maximum age of a tick that begins.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        match self.misfire? {
            Misfire::Skip => Some(self.lease.max(MIN_TICK_AGE_LIMIT)),
            // No tick begins at its exact time, so the limit has a lower bound.
            Misfire::RunOnce { within } | Misfire::RunAll { within, .. } => {
                Some(within.max(MIN_TICK_AGE_LIMIT))
            }
        }
    }

    /// Returns whether all ticks run and none is passed over.
    pub(crate) fn runs_all(&self) -> bool {
        matches!(self.misfire, Some(Misfire::RunAll { .. }))
    }
}

/// The outcome of a tick on this node. Events and metrics show its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum TickOutcome {
    /// It ran here to its end.
    Done,
    /// It ran here and returned an error. It does not run again.
    Failed,
    /// It ran here and panicked. It does not run again.
    Panicked,
    /// It ran here for longer than its timeout, and was cancelled. It does not run again.
    TimedOut,
    /// It reached its number of attempts and never ended. It does not run again.
    GivenUp,
    /// Another node ran it, or this node already runs it, or a later tick began first.
    Elsewhere,
    /// An earlier tick was still running, here or elsewhere, so this one never runs. Or it waited, and a later tick
    /// replaced it.
    Skipped,
    /// No node ran it: the store was unavailable until the next tick came, or until the tick was too old. It is
    /// reported after the store was asked again.
    Missed,
    /// This node drains. It claims nothing, and its run was cancelled so that another node takes over.
    Drained,
    /// An operator has paused the job, so the tick does not begin.
    Paused,
    /// An operator cancelled it while it ran here. It does not run again.
    Cancelled,
    /// The job was removed from this node's scheduler while another node ran the tick, or while the tick was early.
    Removed,
}

impl TickOutcome {
    /// Returns what the store keeps of a run with this outcome. `None`: a tick with this outcome had no run here.
    pub(crate) fn of_run(self) -> Option<RunOutcome> {
        match self {
            TickOutcome::Done => Some(RunOutcome::Done),
            TickOutcome::Failed => Some(RunOutcome::Failed),
            TickOutcome::Panicked => Some(RunOutcome::Panicked),
            TickOutcome::TimedOut => Some(RunOutcome::TimedOut),
            TickOutcome::GivenUp => Some(RunOutcome::GivenUp),
            TickOutcome::Missed => Some(RunOutcome::Missed),
            TickOutcome::Drained => Some(RunOutcome::HandedOver),
            TickOutcome::Elsewhere
            | TickOutcome::Skipped
            | TickOutcome::Paused
            | TickOutcome::Cancelled
            | TickOutcome::Removed => None,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        self.into()
    }
}

/// How a run ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It returned, with the text of its error if it failed.
    Itself(Option<String>),
    Panicked,
    LeaseLost,
    /// It was cancelled so that another node takes over.
    Drained,
    /// It was cancelled because its time was over.
    TimedOut,
}

/// The outcome of a tick on this node, and of its run if it ran here.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) outcome: TickOutcome,
    pub(crate) ran: Option<Ran>,
}

impl Run {
    /// Returns the outcome of a tick that did not run here.
    pub(crate) fn not_here(outcome: TickOutcome) -> Run {
        Run { outcome, ran: None }
    }
}

/// A value that a job may return: nothing, or a result. An event reports its error.
///
/// ```
/// use tenure::scheduler::JobOutput;
///
/// assert_eq!(().failure(), None);
/// assert_eq!(Ok::<u64, String>(3).failure(), None);
/// assert_eq!(Err::<(), _>("no rates").failure().as_deref(), Some("no rates"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a run may end with",
    note = "a run ends with nothing, or with a `Result` whose error can be displayed"
)]
pub trait JobOutput {
    /// Returns the job's error text, if the job failed.
    fn failure(self) -> Option<String>;
}

impl JobOutput for () {
    fn failure(self) -> Option<String> {
        None
    }
}

/// The text is formatted with `{:#}`, so that an error with causes, such as those of `anyhow` and `eyre`, shows all
/// of them.
impl<T, E: fmt::Display> JobOutput for Result<T, E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| format!("{error:#}"))
    }
}
