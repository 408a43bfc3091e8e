//! How a job is run, how a tick can end, and what a job's output says of it.

use std::fmt;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};

use crate::observe::Ran;

/// The lease of a job that says nothing of it. Renewed while the job runs, so it is not a limit on its length.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// How old a tick may be that is finished by somebody who came later.
const DEFAULT_FINISH_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// How often a tick is begun at most, so that a job that kills its process does not kill each that comes after it.
const DEFAULT_ATTEMPTS: u32 = 10;

/// A tick that begins so late was not begun in time, however short its lease.
const MIN_TICK_AGE_LIMIT: Duration = Duration::from_secs(5);

/// What becomes of a tick that comes while an earlier one of the job is run, on whatever node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overlap {
    /// It is skipped, and an event says so.
    #[default]
    Skip,
    /// It waits until that one has ended. Of several that wait the latest is run, and the others are skipped.
    ///
    /// Should the node die that runs the earlier one, that ends by its lease, the one that waits is run, and the earlier one
    /// is never run again. No event says so: `tick_overtaken` is told only of a tick that had not waited.
    QueueOne,
}

/// What becomes of ticks that could not be begun when they were due: the store was away, or no node had the job. How old a tick
/// is the store's clock says, which each node hears of once in a lease (5 s at least).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misfire {
    /// They are not made up for. A tick may be begun for one lease, or for five seconds if that is longer.
    Skip,
    /// The newest of them is run, if it is not older than this.
    RunOnce {
        /// So old at most; five seconds at least.
        within: Duration,
    },
    /// All of them are run, one after the other, from the oldest that is not older than this and not one of more than so many.
    /// The job's ticks never overlap, and none is skipped: one that comes while an earlier one is run comes after it, and a
    /// tick whose run was cut short is run again before the next.
    RunAll {
        /// So old at most; five seconds at least.
        within: Duration,
        /// So many at most: the newest; one at least. And the one that a node was after already when the store went away.
        at_most: u32,
    },
}

/// What becomes of a tick whose run did not end: its node died, lost its lease, or drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnCrash {
    /// Somebody else runs it again from the beginning, or from its [checkpoint](crate::Tick::resume).
    Rerun {
        /// It is begun so often in all; at least once.
        max: u32,
    },
    /// It is over: it may be that it was run in part, and it is never run twice.
    Skip,
}

/// How often a job that failed, panicked or ran out of time is run again at once, under the same lease and as the same attempt,
/// and after which pauses: each twice as long as the one before, and up to twice that by chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    times: u32,
    first: Duration,
    longest: Duration,
}

impl Retry {
    /// So often; the pauses are 1 s at first and 1 min at most.
    pub fn times(times: u32) -> Self {
        Retry {
            times,
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
        }
    }

    /// The pauses: the first one, and the longest.
    pub fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        (self.first, self.longest) = (first, longest.max(first));
        self
    }

    /// How often a job is tried at most.
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

/// How a job is run.
#[derive(Debug, Clone)]
pub(crate) struct JobSettings {
    pub(crate) lease: Duration,
    /// A tick that was begun is finished by whoever comes later, if it is not older than that.
    pub(crate) finish_within: Duration,
    /// So often a tick is begun at most.
    pub(crate) attempts: u32,
    /// So long one run may last.
    pub(crate) timeout: Option<Duration>,
    pub(crate) overlap: Overlap,
    /// `None`: the newest that this node saw come is run, however late; of what came before there was a node nothing is.
    pub(crate) misfire: Option<Misfire>,
    pub(crate) retry: Retry,
    /// It runs on a thread of its own, and cannot be cancelled.
    pub(crate) blocks: bool,
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
        }
    }
}

impl JobSettings {
    /// How old a tick may be that is begun.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        match self.misfire? {
            Misfire::Skip => Some(self.lease.max(MIN_TICK_AGE_LIMIT)),
            // However little is wanted, no tick begins at its very moment.
            Misfire::RunOnce { within } | Misfire::RunAll { within, .. } => {
                Some(within.max(MIN_TICK_AGE_LIMIT))
            }
        }
    }

    /// No tick is passed over.
    pub(crate) fn runs_all(&self) -> bool {
        matches!(self.misfire, Some(Misfire::RunAll { .. }))
    }
}

/// What became of a tick on this node. Users see its word, in events and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum TickOutcome {
    /// Run here, to its end.
    Done,
    /// Run here, and it said that it failed. It is not run again.
    Failed,
    /// Run here, and it panicked. It is not run again.
    Panicked,
    /// Run here for longer than it may, and cancelled. It is not run again.
    TimedOut,
    /// Begun as often as it may, and never ended: it is not run again.
    GivenUp,
    /// Another node ran it, or this one does already; or a later one was begun first.
    Elsewhere,
    /// An earlier tick was still running, here or elsewhere, so this one is never run; or it waited for that, and a later one
    /// took its place.
    Skipped,
    /// No node ran it: the store could not be reached before the next tick came, or until it was too old. Told after the
    /// store was asked again.
    Missed,
    /// This node drains: it pursues nothing, and what it ran was cancelled for another node to take over.
    Drained,
    /// The job was removed from this node's scheduler while another node ran the tick, or it was early.
    Removed,
    /// The job cannot be run as it is; an event says why.
    Refused,
}

impl TickOutcome {
    pub(crate) fn word(self) -> &'static str {
        self.into()
    }
}

/// How a run came to its end.
#[derive(Debug)]
pub(crate) enum Ended {
    /// By itself: with what went wrong, if something did.
    Itself(Option<String>),
    Panicked,
    LeaseLost,
    /// It was cancelled for another node to take over.
    Drained,
    /// It was cancelled, as its time was over.
    TimedOut,
}

/// What became of a tick on this node, and of its run, if it was run here.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) outcome: TickOutcome,
    pub(crate) ran: Option<Ran>,
}

impl Run {
    /// The tick was not run here.
    pub(crate) fn not_here(outcome: TickOutcome) -> Run {
        Run { outcome, ran: None }
    }
}

/// What a job may return: nothing, or a result whose error is told in an event.
pub trait JobOutput {
    /// What went wrong, in the job's words.
    fn failure(self) -> Option<String>;
}

impl JobOutput for () {
    fn failure(self) -> Option<String> {
        None
    }
}

/// With `{:#}`, so that an error that keeps its causes, as `anyhow` and `eyre` make them, tells them all.
impl<T, E: fmt::Display> JobOutput for Result<T, E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| format!("{error:#}"))
    }
}
