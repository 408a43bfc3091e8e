//! How a tick can end, and what a job's output says of it.

use std::fmt;

/// What became of a tick on this node. Users see its word, in events and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TickOutcome {
    /// Run here, to its end.
    Done,
    /// Run here, and it said that it failed. It is not run again.
    Failed,
    /// Run here, and it panicked. It is not run again.
    Panicked,
    /// Another node ran it, or this one does already.
    Elsewhere,
    /// An earlier tick was still running, here or elsewhere, so this one is never run.
    Skipped,
    /// The store could not be reached before the next tick came.
    Missed,
    /// This node drains: it pursues nothing, and what it ran was cancelled for another node to take over.
    Drained,
    /// The job cannot be run as it is; an event says why.
    Refused,
}

impl TickOutcome {
    pub(crate) fn word(self) -> &'static str {
        match self {
            TickOutcome::Done => "done",
            TickOutcome::Failed => "failed",
            TickOutcome::Panicked => "panicked",
            TickOutcome::Elsewhere => "elsewhere",
            TickOutcome::Skipped => "skipped",
            TickOutcome::Missed => "missed",
            TickOutcome::Drained => "drained",
            TickOutcome::Refused => "refused",
        }
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

impl<E: fmt::Display> JobOutput for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}
