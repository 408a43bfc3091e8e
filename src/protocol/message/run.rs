//! The runs of a job: how one ended, and what a store keeps of it.

use std::sync::Arc;

use crate::protocol::message::names::{GrantNumber, NodeId, TickTime};

/// The number of runs that a store keeps of a job.
pub const MAX_RUNS: usize = 100;

/// The greatest length of an error text and of a node's name in a [`RunRecord`], in bytes. On Redis: of their encoded form.
pub const MAX_RUN_TEXT: usize = 256;

/// How a run of a tick ended.
///
/// ```
/// use tenure::scheduler::RunOutcome;
///
/// assert_eq!(RunOutcome::TimedOut.word(), "timed_out");
/// let outcome: RunOutcome = "handed_over".parse().expect("it is the word for an outcome");
/// assert!(!outcome.ends_tick()); // another node runs the tick again
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RunOutcome {
    /// The job returned without an error.
    Done,
    /// The job returned an error.
    Failed,
    /// The job panicked.
    Panicked,
    /// The job ran for longer than its timeout, and was cancelled.
    TimedOut,
    /// The tick had used up its attempts. The job was not called.
    GivenUp,
    /// The tick was granted too late. The job was not called.
    Missed,
    /// The node drained before the job had ended. Another node runs the tick again.
    HandedOver,
    /// An operator cancelled the tick.
    Cancelled,
}

impl RunOutcome {
    /// Returns the word for the outcome, on the wire and for people. A variant must therefore not be renamed.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// Returns whether the tick is over, so that no node runs it again.
    pub fn ends_tick(self) -> bool {
        self != RunOutcome::HandedOver
    }
}

/// How a run ended, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunResult {
    /// How it ended.
    pub outcome: RunOutcome,
    /// How long it took by the clock of its node, in milliseconds.
    pub took_ms: u64,
    /// How often the job was called again after a failure.
    pub retries: u32,
}

impl RunResult {
    /// Returns the result of a run that took no time.
    pub fn of(outcome: RunOutcome) -> RunResult {
        RunResult {
            outcome,
            took_ms: 0,
            retries: 0,
        }
    }
}

/// How a run ended, with the text of its error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnding {
    /// The numbers.
    pub result: RunResult,
    /// The text of the error, or empty.
    pub text: Arc<str>,
}

impl From<RunOutcome> for RunEnding {
    fn from(outcome: RunOutcome) -> RunEnding {
        RunEnding {
            result: RunResult::of(outcome),
            text: "".into(),
        }
    }
}

/// What a store keeps of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRecord {
    /// The tick.
    pub tick: TickTime,
    /// The number of the attempt at the tick.
    pub attempt: u32,
    /// The number of the grant. It tells when the run began.
    pub number: GrantNumber,
    /// The node that was granted the tick.
    pub node: NodeId,
    /// The name of the node, or empty.
    pub name: Arc<str>,
    /// How it ended. `None`: it goes on, or it was lost with its lease.
    pub ending: Option<RunEnding>,
}

/// An act of an operator that is in effect: a pause or a trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorAct {
    /// Since when, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// The operator.
    pub by: Arc<str>,
    /// The reason.
    pub why: Arc<str>,
}

/// A run that an operator wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedRun {
    /// The triggered tick.
    pub tick: TickTime,
    /// How often it was granted.
    pub attempt: u32,
    /// Who wants it, why, and since when.
    pub act: OperatorAct,
}

/// How long a triggered tick may be granted, in milliseconds.
const MAX_WANTED_MS: u64 = 24 * 3_600_000;

impl WantedRun {
    /// Returns whether the tick may still be granted at that date.
    pub fn is_open(&self, date_ms: u64) -> bool {
        date_ms <= self.act.since_ms.saturating_add(MAX_WANTED_MS)
    }
}

/// What a node tells of itself when it asks about its job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobNode {
    /// The name of the node, or empty.
    pub name: Arc<str>,
    /// Until when the node counts as one that has the job, in milliseconds since the Unix epoch.
    pub until_ms: u64,
}

/// Returns the beginning of a text: whole characters, in at most [`MAX_RUN_TEXT`] bytes.
#[cfg(feature = "scheduler")]
pub(crate) fn start_of(text: &str) -> &str {
    start_within(text, MAX_RUN_TEXT)
}

/// Returns the beginning of a text: whole characters, in at most `max` bytes.
pub(crate) fn start_within(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
