//! What an operator does about a job: pause it, resume it, trigger a run, or cancel a tick.
//!
//! Each act is one step of the store, which then tells the nodes of the job. Correctness does not depend on that message.

use std::sync::Arc;

#[cfg(feature = "scheduler")]
use crate::protocol::message::Kind;
use crate::protocol::message::{Name, TickTime};
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
    /// One more run, also in a pause. It waits for the end of a tick that has begun.
    Trigger {
        /// The nominal time of the run, which is past. `None`: the store's second.
        for_tick: Option<TickTime>,
    },
    /// The tick is over, and a run of it ends. So neither its standbys nor the next attempt run it.
    Cancel {
        /// The tick that was begun, or the triggered tick.
        tick: TickTime,
        /// When the triggered tick was triggered, in ms. A run that was triggered later is not meant, although it has the same
        /// nominal time. `None`: the trigger that is wanted now.
        since_ms: Option<u64>,
    },
}

impl JobAct {
    /// Returns the word for what was done, as the audit list has it.
    pub fn word(self) -> &'static str {
        match self {
            JobAct::Pause => "paused",
            JobAct::Resume { catch_up: false } => "resumed",
            JobAct::Resume { catch_up: true } => "resumed_to_catch_up",
            JobAct::Trigger { .. } => "triggered",
            JobAct::Cancel { .. } => "cancelled",
        }
    }

    /// Returns the nominal time of the tick that the act is about, in ms, if the store did it at this time.
    #[cfg(feature = "scheduler")]
    fn nominal_ms(self, time_ms: u64) -> Option<u64> {
        match self {
            JobAct::Pause | JobAct::Resume { .. } => None,
            JobAct::Trigger { for_tick: None } => Some(time_ms - time_ms % 1000),
            JobAct::Trigger { for_tick: Some(tick) } | JobAct::Cancel { tick, .. } => Some(tick.nominal_ms()),
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
    /// Nothing was done: the job is in that state already, or a triggered run is wanted already.
    Unchanged,
    /// Nothing was done: the job is paused, and a tick that has begun may not run again before the end of the pause.
    TickUnfinished,
    /// Nothing was done: the time for which a run was triggered lies in the future.
    InFuture,
    /// Nothing was done: the tick to cancel has ended, or another one has begun since.
    OtherTick,
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
            number: self
                .act
                .nominal_ms(time_ms)
                .map_or_else(String::new, |ms| ms.to_string()),
            why: self.why.to_string(),
        }
    }
}
