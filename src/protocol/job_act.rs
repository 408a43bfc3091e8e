//! What an operator does about a job: pause it, or resume it.
//!
//! Each act is one step of the store, and never changes a run that goes on.

use std::sync::Arc;

#[cfg(feature = "scheduler")]
use crate::protocol::message::Kind;
use crate::protocol::message::Name;
#[cfg(feature = "scheduler")]
use crate::protocol::steal::AuditEntry;

/// What an operator does about a job, and why.
#[derive(Debug, Clone)]
pub struct JobActRequest {
    /// The name of the job.
    pub name: Name,
    /// What is done.
    pub act: JobAct,
    /// The operator.
    pub by: Arc<str>,
    /// The reason.
    pub why: Arc<str>,
}

/// An act of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobAct {
    /// No tick is granted from now on, nor a further attempt at a tick that is open. A run goes on.
    Pause,
    /// Ticks are granted again.
    Resume {
        /// The ticks of the pause are not passed over: the job's own policy decides, as after an outage.
        catch_up: bool,
    },
}

impl JobAct {
    /// Returns the word for what was done, as the audit list has it.
    pub fn word(self) -> &'static str {
        match self {
            JobAct::Pause => "paused",
            JobAct::Resume { catch_up: false } => "resumed",
            JobAct::Resume { catch_up: true } => "resumed_to_catch_up",
        }
    }
}

/// The reply of a store to an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobActReply {
    /// It was done.
    Done,
    /// Nothing was done: the store does not know the job.
    Unknown,
    /// Nothing was done: the job is in that state already.
    Unchanged,
}

impl JobActRequest {
    /// Returns the entry for the audit list.
    #[cfg(feature = "scheduler")]
    pub(crate) fn audit(&self, time_ms: u64) -> AuditEntry {
        AuditEntry {
            time_ms,
            by: self.by.to_string(),
            what: self.act.word().to_owned(),
            kind: Some(Kind::Job),
            key: self.name.key.clone(),
            number: String::new(),
            why: self.why.to_string(),
        }
    }
}
