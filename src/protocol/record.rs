//! What a store keeps of a key: the record, the queue, and what is known of a job.

use std::collections::VecDeque;

use crate::protocol::message::{GrantNumber, Holder, LeaseTimes, TickTime};

/// One key: the record and the queue. Neither there: no state.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) record: Option<Record>,
    pub(crate) queue: VecDeque<Entry>,
}

/// Who owns a key, until when on the server's clock (in ms). `None`: until somebody deletes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The owner.
    pub owner: RecordOwner,
    /// The last millisecond in which the record is there.
    pub expires: Option<u64>,
}

/// Who can own a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordOwner {
    /// A claim of ours, under a grant number.
    Claim(Holder, GrantNumber),
    /// Somebody who uses the same record but not our protocol.
    Foreign,
    /// A value that is no lock at all.
    WrongType,
}

/// The memory of a job. The mark only grows, so a tick that was run is never run again, however late, skewed or
/// restarted the node that asks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Job {
    /// The tick that was granted last.
    pub mark: Option<TickTime>,
    /// It was run to its end.
    pub done: bool,
    /// How often it was granted.
    pub attempt: u32,
    /// To whom it was granted last.
    pub winner: Option<Holder>,
    /// The latest tick that came while an earlier one was running, and is never run.
    pub skipped: Option<TickTime>,
}

impl Job {
    /// The tick may still be run.
    pub(crate) fn is_open(&self, mark: Option<TickTime>) -> bool {
        mark > self.mark && mark > self.skipped || mark == self.mark && !self.done
    }
}

/// A waiter: its claim, its lengths, and the last millisecond of its life.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) holder: Holder,
    pub(crate) term: LeaseTimes,
    pub(crate) mark: Option<TickTime>,
    pub(crate) dies: u64,
}

impl Entry {
    pub(crate) fn heard(holder: Holder, term: LeaseTimes, mark: Option<TickTime>, now: u64) -> Self {
        Entry {
            holder,
            term,
            mark,
            dies: now + term.lease_ms,
        }
    }

    /// Heard of within two thirds of its lease.
    pub(crate) fn is_fresh(&self, now: u64) -> bool {
        now + self.term.lease_ms / 3 <= self.dies
    }
}

/// As Redis does: a key is there in the millisecond in which it expires, and gone after it.
pub(crate) fn is_past(expires: Option<u64>, now: u64) -> bool {
    expires.is_some_and(|at| now > at)
}
