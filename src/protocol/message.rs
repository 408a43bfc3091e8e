//! The vocabulary between the key machine and a store: requests, replies and pushes.
//!
//! The types are plain values, without a connection, a clock or a task. A [`Request`] names kind, key and claim in
//! full; it depends on nothing that its connection implies.

use std::sync::Arc;

pub use call::{Call, CallTime, JobReport, LatchReport, LeaderReport, LookData, MIN_POLL_MS, Payload};
pub use failure::{Executed, Failure, Redirect};
#[cfg(feature = "redis")]
pub(crate) use names::append_number;
pub use names::{
    ClaimId, ClaimNumber, Fence, GrantNumber, Kind, Name, NodeId, NotAClaimId, NotANode, TickTime, Version,
};
pub use reply::{
    CallAnswer, CallReply, ClaimReply, GrantReply, LeaveReply, QueueOwner, Reply, TickRefusal, WriteAnswer,
    WriteReply,
};
#[cfg(feature = "scheduler")]
pub(crate) use run::start_of;
pub(crate) use run::start_within;
pub use run::{
    JobNode, MAX_RUN_TEXT, MAX_RUNS, OperatorAct, RunEnding, RunOutcome, RunRecord, RunResult, WantedRun,
};

mod call;
mod failure;
mod names;
mod reply;
mod run;

/// How a lease may be shared. A mutex is the write side of the read-write lock of its key: both have one name, one
/// record and one queue, and only the mode of a claim differs.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::{block_on, inspect::Mode};
///
/// let guard = block_on(locks.rw_lock("prices").read())?;
/// let entry = block_on(locks.inspect().show("prices"))?.entries.remove(0);
/// match entry.holders[0].mode {
///     Mode::Read => println!("readers hold it"),
///     Mode::Permits(permits) => println!("{} of {} permits", permits.weight, permits.capacity),
///     _ => println!("one holder has it"),
/// }
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Mode {
    /// One holder at a time: a mutex or a writer.
    #[default]
    Exclusive,
    /// A reader: shares the key with any number of other readers, and with no writer.
    Read,
    /// A holder of permits: shares the key as long as enough permits are left.
    Permits(Permits),
}

impl Mode {
    /// Returns how many permits a claim of this mode holds.
    pub(crate) fn weight(self) -> u64 {
        match self {
            Mode::Permits(permits) => permits.weight.into(),
            Mode::Exclusive | Mode::Read => 0,
        }
    }

    /// Returns whether the mode is a semaphore's.
    pub(crate) fn is_permits(self) -> bool {
        matches!(self, Mode::Permits(_))
    }
}

/// The permits that a claim of a [semaphore](crate::Semaphore) asks for.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::{block_on, inspect::{Mode, Permits}};
///
/// let guard = block_on(locks.semaphore("bank", 10).acquire_many(3))?;
/// let entry = block_on(locks.inspect().show("bank"))?.entries.remove(0);
/// assert_eq!(entry.holders[0].mode, Mode::Permits(Permits { weight: 3, capacity: 10 }));
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Permits {
    /// How many permits the claim takes.
    pub weight: u32,
    /// How many permits the semaphore has for this claim.
    pub capacity: u32,
}

/// The lengths of a claim's lease, the same for its whole life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LeaseTimes {
    /// How long the holder relies on the lease, in milliseconds, counted from before the request was sent.
    pub lease_ms: u64,
    /// How much longer the store keeps the record, in milliseconds. The margin pays for clock rates and small steps
    /// of the server's clock.
    pub margin_ms: u64,
}

impl LeaseTimes {
    /// Returns how long the store keeps the record after the last request that extended it.
    pub fn hold_ms(self) -> u64 {
        self.lease_ms + self.margin_ms
    }

    /// Returns after how many milliseconds without a heartbeat a waiter is passed over. It keeps its place.
    pub fn stale_ms(self) -> u64 {
        self.lease_ms - self.lease_ms / 3
    }
}

/// What happens to the claim of a tick while an earlier tick of its job blocks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenBehind {
    /// The tick is skipped and never runs.
    #[default]
    Skip,
    /// The tick waits until the earlier one has ended. Ticks that waited before it are skipped.
    Queue,
    /// The tick is granted only if this tick was the latest one and has ended, or if no tick was ever granted.
    /// Otherwise the reply is [`EarlierTickDue`](TickRefusal::EarlierTickDue), so no tick is passed over.
    After(TickTime),
}

/// A request to a store about one key. See the verbs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name of the key.
    pub name: Name,
    /// The claim that the request is about.
    pub claim_id: ClaimId,
    /// The lengths of the claim's lease.
    pub term: LeaseTimes,
    /// How the lease is shared.
    pub mode: Mode,
    /// The tick that a job's claim is for. `None` for every other kind.
    pub mark: Option<TickTime>,
    /// What happens to the claim while an earlier tick blocks it.
    pub when_behind: WhenBehind,
    /// The claim of a lock may be kept without a holder if it is granted at once. Its record then has a mark, and the node
    /// gets [`Push::Recalled`] when another claim wants the key.
    pub may_keep: bool,
    /// What the store must do.
    pub verb: Verb,
    /// The data of a call: the checkpoint of [`Call::Save`], the value of [`Call::Proclaim`], what a node tells with
    /// [`Call::Open`] ([`LookData`]), or the call's id for [`Call::SetCount`] and [`Call::CountDown`]. The store recognizes a
    /// repeated call by that id. Of [`Verb::Finish`]: the text of an error.
    pub data: Option<Payload>,
}

impl Request {
    /// Returns whether the request can be executed with the record of its key alone: a renewal by an owner that knows its
    /// grant, or a leave. A finish also changes what is known of the job.
    pub fn needs_record_only(&self) -> bool {
        let is_of_owner = matches!(
            self.verb,
            Verb::Renew { number: Some(_) } | Verb::Assert { .. } | Verb::Leave
        );
        is_of_owner && self.name.kind != Kind::Latch
    }
}

/// What a request asks the store to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Takes a free key if no live waiter is queued, or else joins the queue if `wait` is set. Only this verb creates
    /// a claim. It is sent once per claim number, and refused ([`Reply::Late`]) after the batch's not-after.
    Claim {
        /// Whether the claim joins the queue if it is not granted.
        wait: bool,
    },
    /// Extends an owner's lease to its full length, or records a waiter's heartbeat and settles the key. Never
    /// creates a claim.
    ///
    /// An owner names the `number` of its grant. A server that recovers and has lost the grant then writes it again,
    /// if the key is free for it. Such an assertion is refused after the batch's not-after.
    Renew {
        /// The number of the owner's grant; `None` for a waiter, and for a claim whose outcome is not known.
        number: Option<GrantNumber>,
    },
    /// Asserts a fixed lease for the time that is left of it, as an owner's renewal does, if the server recovers and has
    /// lost the grant. Leaves a record that is there as it is: the owner may have extended its lease since, and two
    /// requests may be executed in any order.
    Assert {
        /// The number of the owner's grant.
        number: GrantNumber,
    },
    /// Releases an owner's lease to the first live waiter, or removes a waiter from the queue.
    Leave,
    /// Marks the tick as run to its end, so that it never runs again, writes how the run ended, and then leaves as
    /// [`Leave`](Self::Leave) does. Accepted from the latest winner of the tick even if its record has ended, unless another
    /// claim was granted the job. An owner that hands the tick over writes only that, and then leaves. The request's data is
    /// the text of the run's error.
    Finish {
        /// How the run ended.
        result: RunResult,
    },
    /// Hands an owner's lease to the first live waiter and queues the owner again as `to`. If no claim waits, `to`
    /// owns the lease at once, with a fresh number. Refused after the batch's not-after.
    Yield {
        /// The fresh number under which the node continues.
        to: ClaimId,
    },
    /// Makes `to` the owner in one step, with the mode and the lease of the request and a fresh number. After a
    /// writer became a reader, waiting readers are let in, up to the first writer. If `to` already owns the lease,
    /// its lease is extended. Refused after the batch's not-after.
    Pass {
        /// The next owner: a claim of the same node, or of a node that adopts a transfer.
        to: ClaimId,
        /// The sender adopts a transfer, and holds nothing yet. A server that recovers holds such a pass back.
        adopts: bool,
    },
    /// A quorum's claim: takes a free key. Nothing waits at the masters of a quorum. Refused after the batch's not-after.
    Propose {
        /// The grant gets this number, or the next one of the master if that is higher. Zero: the master's own next number.
        number: GrantNumber,
    },
    /// A quorum's renewal: extends the record of an owner, or writes it again if it is gone and the key is free. The
    /// master's next number is higher than `number`. A record is not written after the batch's not-after.
    Restore {
        /// The number of the owner's grant.
        number: GrantNumber,
    },
    /// Settles the key and executes a call, which creates no claim.
    Call(Call),
}

impl Verb {
    /// The renewal of a waiter, or of a claim whose outcome is not known.
    pub const HEARTBEAT: Verb = Verb::Renew { number: None };

    /// Returns whether the verb is a renewal, of an owner or of a waiter.
    pub fn is_renewal(self) -> bool {
        matches!(
            self,
            Verb::Renew { .. } | Verb::Assert { .. } | Verb::Restore { .. }
        )
    }

    /// Returns whether the verb may create a claim or a latch, so that a late request is refused.
    pub fn creates(self) -> bool {
        matches!(
            self,
            Verb::Claim { .. }
                | Verb::Propose { .. }
                | Verb::Yield { .. }
                | Verb::Pass { .. }
                | Verb::Call(Call::SetCount { .. })
        )
    }
}

/// How the requests of a batch depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Rule {
    /// Each request is executed on its own.
    #[default]
    Each,
    /// All requests are claims that do not wait, and either all are granted or none is.
    AllOrNone,
}

/// Why a server recovers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum RecoveryCause {
    /// Another run of the server was recorded: it was restarted, demoted or promoted since.
    Run,
    /// The Sentinels have promoted a server since.
    Epoch,
    /// A node has seen a number that the server did not give.
    #[default]
    Number,
}

/// What a node knows when its link to a server opens.
#[derive(Debug, Clone, Copy)]
pub struct LinkRequest<'a> {
    /// The run of the server.
    pub run: &'a str,
    /// The epoch under which the Sentinels confirmed the link, if they did.
    pub epoch: Option<u64>,
    /// The highest grant number that the node has seen. `None` on a quorum, whose masters have a clock for each slot.
    pub number: Option<GrantNumber>,
    /// How long a recovery lasts, in milliseconds.
    pub recovery_ms: u64,
}

/// What a server answers when a link opens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkReply {
    /// The last number that was given. Later grants have higher numbers.
    pub clock: GrantNumber,
    /// How many milliseconds of a recovery are left, and why the server recovers.
    pub recovering: Option<(u64, RecoveryCause)>,
}

/// Requests that travel together. Each is executed atomically and answered on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The highest grant number that the sending node has seen. The next number of the store is higher.
    pub highest: GrantNumber,
    /// Server time in microseconds after which claims and yields of this batch are refused. [`u64::MAX`]: no bound.
    pub not_after: u64,
    /// How long a lock that was handed over again and again is left free for clients that poll, in milliseconds; 0:
    /// never. Not for jobs.
    pub poll_gap_ms: u64,
    /// How long the server grants nothing if this batch shows that it has lost grants, in milliseconds: the lease of the
    /// sender's builder with its margin, or the length on which all nodes agreed.
    pub recovery_ms: u64,
    /// Set if the Sentinels have not confirmed that the server is the master. Then the batch grants nothing and hands nothing
    /// on, as while the server recovers. Owners are served.
    pub is_unconfirmed: bool,
    /// How the requests depend on each other.
    pub rule: Rule,
    /// The requests: all of one kind, and at most one per name. A store may read all of its keys before it executes
    /// the first request.
    pub requests: Vec<Request>,
}

impl Batch {
    /// Returns the kind of the requests. `None` for an empty batch.
    pub fn kind(&self) -> Option<Kind> {
        self.requests.first().map(|request| request.name.kind)
    }
}

/// The reply to a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchReply {
    /// The server's clock when it executed the batch, in microseconds; 0 if it was not read.
    pub time: u64,
    /// One reply per request, in order.
    pub replies: Vec<Reply>,
}

impl BatchReply {
    /// Creates the reply to an action, which carries no time.
    pub(crate) fn of_action(reply: Reply) -> Self {
        BatchReply {
            time: 0,
            replies: vec![reply],
        }
    }
}

/// A grant that was pushed to a waiting node. It repeats the terms of the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The name of the key.
    pub name: Name,
    /// The claim that was granted.
    pub claim_id: ClaimId,
    /// The number of the grant.
    pub number: GrantNumber,
    /// The claim's lease, in milliseconds.
    pub lease_ms: u64,
    /// The number of the attempt at the tick; 0 if the claim is not for a tick.
    pub attempt: u32,
}

/// The request of an operator to a holder, to give its lease back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asking {
    /// How long it has until its lease is revoked, in milliseconds.
    pub grace_ms: u64,
    /// The operator.
    pub by: String,
    /// The reason.
    pub why: String,
}

/// A message that a store pushes to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Push {
    /// A waiting claim was granted.
    Granted(Grant),
    /// The value under this name changed, which this node watches.
    Changed(NodeId, Name),
    /// An operator asks the holder of a lease to give it back.
    Asked(Name, ClaimId, Arc<Asking>),
    /// An operator revoked the lease of a claim, which had this mode.
    Revoked(Name, ClaimId, Mode),
    /// Another claim wants a key whose owner may keep its lease without a holder.
    Recalled(Name, ClaimId),
}

impl Push {
    /// Returns the node that gets the push.
    pub fn node(&self) -> NodeId {
        match self {
            Push::Granted(grant) => grant.claim_id.node,
            Push::Changed(node, _) => *node,
            Push::Asked(_, claim_id, _) | Push::Revoked(_, claim_id, _) | Push::Recalled(_, claim_id) => {
                claim_id.node
            }
        }
    }

    /// Returns the name that the push is about.
    pub fn name(&self) -> &Name {
        match self {
            Push::Granted(grant) => &grant.name,
            Push::Changed(_, name)
            | Push::Asked(name, ..)
            | Push::Revoked(name, ..)
            | Push::Recalled(name, _) => name,
        }
    }
}

/// An event in a node's inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InboxEvent {
    /// A push of the store.
    Pushed(Push),
    /// A push of an unknown format, which is ignored.
    Unknown,
    /// A fact about the server that its operator should know.
    Warning(String),
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn append_to_writes_the_same_text_as_display() {
        for number in [0, 9, 10, 15, 16, 1_700, 0x0123_4567_89ab_cdef, u64::MAX] {
            let node = NodeId::random();
            let claim_id = ClaimId {
                node,
                claim: ClaimNumber(number),
                nonce: number,
            };
            let mut text = Vec::new();
            claim_id.append_to(&mut text);
            assert_eq!(String::from_utf8(text).unwrap(), claim_id.to_string());
        }
    }
}
