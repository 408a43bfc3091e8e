//! What a store replies: each reply says what was asked.

use std::time::Duration;

use strum::EnumTryAs;

use crate::error::StoreRefusal;
use crate::protocol::message::call::{JobReport, LatchReport, LeaderReport};
use crate::protocol::message::failure::Failure;
use crate::protocol::message::names::{GrantNumber, NodeId, TickTime, Version};

/// The reply of a store to one request or action.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To a request that claims a lease, or that renews or passes one.
    Claim(ClaimReply),
    /// To a leave or a finish.
    Leave(LeaveReply),
    /// To a call or an action.
    Call(CallReply),
    /// Nothing was done: the request was executed after its not-after.
    Late,
    /// Nothing was done: the store refused this request alone.
    Refused(StoreRefusal),
    /// The part of the batch with this request has no answer. Other parts of the batch may have one.
    Failed(Box<Failure>),
}

/// The reply to a request that claims a lease, or that renews or passes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimReply {
    /// The claim owns the lease.
    Granted(GrantReply),
    /// The claim is queued. The present record ends in this many milliseconds, if it ends.
    Queued(Option<u64>, QueueOwner),
    /// The server may have lost grants, and grants nothing for this many milliseconds. A claim that waits is queued,
    /// except for a tick; nothing else was done.
    Recovering(u64),
    /// Another claim holds the key or is next. The present record ends in this many milliseconds, if it ends.
    Busy(Option<u64>),
    /// Nothing was done: the claim could be granted, but another claim of its group could not.
    GroupRefused,
    /// Nothing was done: the tick does not run now.
    Tick(TickRefusal),
    /// An operator revoked the claim's lease. The record is still there, and the claim can only leave it.
    Revoked,
    /// The claim neither owns the key nor waits for it.
    Gone,
}

/// A grant in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GrantReply {
    /// The number of the grant. A repeated request gets the same number.
    pub number: GrantNumber,
    /// The number of the attempt at the tick; 0 if the claim is not for a tick, or the reply does not tell it.
    pub attempt: u32,
    /// An earlier tick that had not ended. It never runs again.
    pub overtook: Option<TickTime>,
    /// A current holder of permits recorded this other capacity.
    pub other_capacity: Option<u32>,
}

/// What a waiting claim is told of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueOwner {
    /// Several claims share the key, or none owns it now.
    Shared,
    /// A claim of this node owns the key alone.
    Node(NodeId),
    /// The store does not announce the release: the owner does not know the queue, or the lock may be left free.
    Foreign,
}

/// Why the store does not let a tick run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TickRefusal {
    /// The tick was run to its end, or a later tick was granted.
    Over,
    /// The tick was skipped and never runs. An earlier tick was running when it came, or a later tick replaced it
    /// while it waited.
    Skipped,
    /// An operator paused the job.
    Paused,
    /// By the store's clock the tick is due only after this time.
    Early(Duration),
    /// An earlier tick must run first: the latest tick if it has not ended, or else one that comes after it.
    EarlierTickDue {
        /// The latest tick.
        latest: TickTime,
        /// The latest tick has not ended.
        is_open: bool,
    },
}

/// The reply to a leave or a finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaveReply {
    /// The claim left, or the tick was marked as run.
    Left,
    /// There was nothing to leave.
    NotThere,
}

/// The reply to a call or an action.
#[derive(Debug, Clone, PartialEq)]
pub enum CallReply {
    /// The answer for the caller.
    Answer(CallAnswer),
    /// The watched value still has this version. The store pushes a message when it changes, and the caller then asks
    /// again.
    Watching(Version),
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, EnumTryAs)]
pub enum CallAnswer {
    /// What the store knows of a job.
    Report(Box<JobReport>),
    /// The number of permits that are held; `None` if a foreign owner holds the whole semaphore.
    InUse(Option<u64>),
    /// Whether the owner that the call is about has the lease, or had it until this call.
    Owned(bool),
    /// What the store knows of a latch.
    Latch(LatchReport),
    /// The leader; `None` if there is none.
    Leader(Option<LeaderReport>),
    /// The result of a write.
    Written(WriteAnswer),
}

/// The reply of the commands or of the script.
#[cfg(feature = "redis")]
pub type WriteReply = ::redis::Value;
/// The reply of the commands or of the script. Without Redis there are none.
#[cfg(not(feature = "redis"))]
pub type WriteReply = ();

/// The answer of a store to a write.
#[derive(Debug, Clone, PartialEq)]
pub enum WriteAnswer {
    /// All leases were current, and the write was executed.
    Done(Box<WriteReply>),
    /// Nothing was done: the leases with these indices are not current.
    NotCurrent(Vec<usize>),
    /// The write failed, in the server's words. Commands executed before the error keep their effect.
    Failed(String),
}

impl Reply {
    /// Returns the number of the grant that the reply names.
    pub fn number(&self) -> Option<GrantNumber> {
        match self {
            Reply::Claim(ClaimReply::Granted(grant)) => Some(grant.number),
            _ => None,
        }
    }

    /// Returns the answer to a call.
    pub fn answer(&self) -> Option<&CallAnswer> {
        match self {
            Reply::Call(CallReply::Answer(answer)) => Some(answer),
            _ => None,
        }
    }
}

impl GrantReply {
    /// Returns a grant that carries its number only.
    pub fn new(number: GrantNumber) -> Self {
        GrantReply {
            number,
            ..GrantReply::default()
        }
    }
}

impl ClaimReply {
    /// Returns a grant that carries its number only.
    pub fn granted(number: GrantNumber) -> Self {
        ClaimReply::Granted(GrantReply::new(number))
    }
}

impl From<ClaimReply> for Reply {
    fn from(reply: ClaimReply) -> Self {
        Reply::Claim(reply)
    }
}

impl From<LeaveReply> for Reply {
    fn from(reply: LeaveReply) -> Self {
        Reply::Leave(reply)
    }
}

impl From<CallReply> for Reply {
    fn from(reply: CallReply) -> Self {
        Reply::Call(reply)
    }
}

impl From<CallAnswer> for Reply {
    fn from(answer: CallAnswer) -> Self {
        Reply::Call(CallReply::Answer(answer))
    }
}
