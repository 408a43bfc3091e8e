//! The vocabulary between key machine and store: what is asked, what is answered, what is pushed.
//!
//! Plain values. Nothing here knows a connection, a clock or a task. A [`Request`] names kind, key and
//! holder in full; nothing is implied by the connection it travels on.

use crate::error::{StoreError, StoreRefusal};

pub use call::{Call, Called, JobReport, LatchReport, LeaderReport, Payload};
#[cfg(feature = "redis")]
pub(crate) use names::append_number;
pub use names::{
    ClaimId, ClaimNumber, Fence, GrantNumber, Kind, Name, NodeId, NotAClaimId, NotANode, TickTime, Version,
};

mod call;
mod names;

/// How a lease may be shared. A mutex is the write side of the read-write lock of its key: both have one name, one record
/// and one queue, and only the mode of a claim differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// One holder at a time: a mutex, or a writer.
    #[default]
    Exclusive,
    /// Beside any number of other readers, and beside no writer.
    Read,
    /// Beside others, as long as there are permits for all of them.
    Permits(Permits),
}

impl Mode {
    /// Of a semaphore.
    pub(crate) fn is_of_permits(self) -> bool {
        matches!(self, Mode::Permits(_))
    }
}

/// What a holder of a semaphore wants. The number of all permits travels with each claim and judges that claim alone, so
/// that a deploy may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permits {
    /// So many.
    pub weight: u32,
    /// Of so many.
    pub capacity: u32,
}

/// The lengths of one claim, the same for its whole life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LeaseTimes {
    /// What the holder believes, in milliseconds, counted from before the request was sent.
    pub lease_ms: u64,
    /// What the store adds before it lets others in, in milliseconds. It pays for clock rates and small steps of
    /// the server's clock.
    pub margin_ms: u64,
}

impl LeaseTimes {
    /// How long the store keeps the record after the last request that extended it.
    pub fn hold_ms(self) -> u64 {
        self.lease_ms + self.margin_ms
    }

    /// After this long without a word, a waiter is passed over (it keeps its place).
    pub fn stale_ms(self) -> u64 {
        self.lease_ms - self.lease_ms / 3
    }
}

/// What becomes of a claim of a tick while an earlier tick of its job is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenBehind {
    /// It is skipped, and never run.
    #[default]
    Skip,
    /// It waits until that one has ended, and whatever waited so before it is skipped.
    Queue,
    /// It is granted when this was the latest tick and has ended, or no tick was ever granted; else
    /// [`EarlierTickDue`](Reply::EarlierTickDue). So none is passed over.
    After(TickTime),
}

/// What is asked of a store, for one key. See the verbs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What it is about.
    pub name: Name,
    /// Whose claim it is about.
    pub claim_id: ClaimId,
    /// The claim's lengths.
    pub term: LeaseTimes,
    /// How the lease is shared.
    pub mode: Mode,
    /// Which tick of a job it is for. `None` for everything that is no job.
    pub mark: Option<TickTime>,
    /// What becomes of its claim while an earlier tick is in the way.
    pub turn: WhenBehind,
    /// What is asked.
    pub verb: Verb,
    /// What is to be kept for whoever runs the tick next, of [`Call::Save`]. Of [`Call::SetCount`] and
    /// [`Call::CountDown`] the id of the call, by which the store knows it again.
    pub data: Option<Payload>,
}

/// The things that can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// The only verb that creates. Free and no live waiter: take it. Else, if `wait`, stand in the queue.
    /// Sent once per claim number; refused ([`Reply::Late`]) when executed after the batch's not-after.
    Claim {
        /// Stand in the queue when it is not free.
        wait: bool,
    },
    /// Owner: extend to the full lease. Queued: count as alive, and move a free lock on. Never creates.
    Renew,
    /// Owner: hand over to the first live waiter, or delete. Queued: remove.
    Leave,
    /// The tick has been run to its end: it never runs again. Then as [`Leave`](Self::Leave). Counts for the latest
    /// winner of the tick even when its record has ended meanwhile, as long as nobody else was granted the job.
    Finish {
        /// It went well, and is the latest that did so.
        well: bool,
    },
    /// Owner: hand over to the first live waiter and queue again at the end as `to`; if nobody waits, own it as
    /// `to` with a fresh number. Also refused when executed after the batch's not-after.
    Yield {
        /// The fresh number under which the node goes on.
        to: ClaimId,
    },
    /// Owner: `to` owns it instead, in the mode and for the lease of the request, with a fresh number and nobody in between;
    /// of a writer that goes on as a reader, readers are let in then, up to the first writer. When `to` owns it already, as
    /// [`Renew`](Self::Renew) of that. Also refused when executed after the batch's not-after.
    Pass {
        /// Who owns it next: a number of the same node, or of one that was told of the present owner.
        to: ClaimId,
    },
    /// A question. What is free is moved on, and nothing else is done.
    Call(Call),
}

impl Verb {
    /// It may make something that was not there, such as an owner or a waiter of a claim that was none: it is refused when it
    /// is late.
    pub fn creates(self) -> bool {
        matches!(
            self,
            Verb::Claim { .. } | Verb::Yield { .. } | Verb::Pass { .. } | Verb::Call(Call::SetCount { .. })
        )
    }
}

/// What a store answers to one request, or to an action.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The lease is yours, under this grant number. Asked again, the same number is answered.
    Granted(GrantNumber),
    /// As [`Granted`](Self::Granted), and whoever holds permits of it asked for them as of so many.
    CapacityDiffers(GrantNumber, u32),
    /// The job is yours for this tick, under this grant number, and the number of the attempt at the tick.
    Won(GrantNumber, u32),
    /// The tick is over: it was run to its end, or a later one was begun. Nothing was done.
    Over,
    /// The tick was never begun, and never is: an earlier one was run when it came, or it waited for that and a later one took
    /// its place. Nothing was done.
    Skipped,
    /// By the store's clock the tick comes in so many milliseconds. Nothing was done.
    Early(u64),
    /// The latest tick is another than the one that it comes [after](WhenBehind::After), or has not ended. Nothing was done.
    EarlierTickDue {
        /// The latest tick.
        latest: TickTime,
        /// It has not ended.
        is_open: bool,
    },
    /// As [`Won`](Self::Won) with attempt 1, and the tick before had not ended well: it is never run again.
    Overtook(GrantNumber, TickTime),
    /// The answer to a question about a job.
    Report(Box<JobReport>),
    /// So many permits are held. `None`: all, as somebody has the semaphore who is no claim of ours.
    InUse(Option<u64>),
    /// The answer to a question about a latch.
    Latch(LatchReport),
    /// Who leads; `None`: nobody.
    Leader(Option<LeaderReport>),
    /// What is watched has not come, or not changed, in this version of it: the answer comes when it is asked for again.
    Watching(Version),
    /// You stand in the queue; the present owner's record ends in so many milliseconds, if it ends.
    Queued(Option<u64>),
    /// As [`Queued`](Self::Queued), and a claim of this node owns it alone.
    QueuedBehind(Option<u64>, NodeId),
    /// As [`Queued`](Self::Queued), and the present owner does not know the queue: when it releases, nobody is told.
    QueuedBehindForeign(Option<u64>),
    /// Somebody else holds it or is next; their record ends in so many milliseconds, if it ends.
    Busy(Option<u64>),
    /// It can be had, and another of the claims that go together cannot be granted: nothing was done.
    GroupRefused,
    /// Executed after its not-after: nothing was done.
    Late,
    /// This claim neither owns nor waits.
    Gone,
    /// The answer to a write under leases.
    Written(WriteAnswer),
    /// Left.
    Done,
    /// There was nothing to leave.
    NotThere,
    /// The store refused this request, for itself alone. Nothing was done.
    Refused(StoreRefusal),
}

impl Reply {
    /// The number of the grant that it tells of.
    pub fn number(&self) -> Option<GrantNumber> {
        match self {
            Reply::Granted(number)
            | Reply::CapacityDiffers(number, _)
            | Reply::Won(number, _)
            | Reply::Overtook(number, _) => Some(*number),
            _ => None,
        }
    }
}

/// What commands or a script answered.
#[cfg(feature = "redis")]
pub type WriteReply = ::redis::Value;
/// What commands or a script answered. Without Redis there are none.
#[cfg(not(feature = "redis"))]
pub type WriteReply = ();

/// What a store answers to a write.
#[derive(Debug, Clone, PartialEq)]
pub enum WriteAnswer {
    /// It was done while all its leases were current.
    Done(Box<WriteReply>),
    /// The leases at these places are not current. Nothing was done.
    NotCurrent(Vec<usize>),
    /// It failed, in the server's words. What was written before that stands.
    Failed(String),
}

/// How the requests of a batch stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Rule {
    /// Each is applied on its own.
    #[default]
    Each,
    /// All of them are claims that do not wait, and either every one is granted or none is.
    AllOrNone,
}

/// Requests that travel together. Each is applied atomically and answered on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The highest grant number that the sending node ever saw. The store takes the maximum with its own.
    pub highest: GrantNumber,
    /// Server time in microseconds after which claims and yields of this batch are refused.
    /// [`u64::MAX`] when there is no bound.
    pub not_after: u64,
    /// How long a lock that was handed on and on is left free for those who only look now and then, in milliseconds; 0 for
    /// never. Not for jobs.
    pub poll_gap_ms: u64,
    /// How the requests stand to each other.
    pub rule: Rule,
    /// What is asked. All of one kind, and no name twice: a store may read all of its keys before it treats the
    /// first.
    pub requests: Vec<Request>,
}

impl Batch {
    /// What sort of thing it is about. `None` when nothing is asked.
    pub fn kind(&self) -> Option<Kind> {
        self.requests.first().map(|request| request.name.kind)
    }
}

/// The answer to a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchReply {
    /// The server's clock when it executed the batch, in microseconds; 0 when it did not look.
    pub time: u64,
    /// One reply per request, in order.
    pub replies: Vec<Reply>,
}

impl BatchReply {
    /// The answer to an action, which names no time.
    pub(crate) fn of_action(reply: Reply) -> Self {
        BatchReply {
            time: 0,
            replies: vec![reply],
        }
    }
}

/// A grant that was pushed to a waiting node. It repeats what the claim said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// What was granted.
    pub name: Name,
    /// To whom.
    pub claim_id: ClaimId,
    /// The grant's number.
    pub number: GrantNumber,
    /// The claim's lease, in milliseconds.
    pub lease_ms: u64,
    /// The number of the attempt at the tick it is; 0 for what is no tick.
    pub attempt: u32,
}

/// What a store pushes to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Push {
    /// A grant.
    Granted(Grant),
    /// What this node watches has changed.
    Changed(NodeId, Name),
}

impl Push {
    /// To whom.
    pub fn node(&self) -> NodeId {
        match self {
            Push::Granted(grant) => grant.claim_id.node,
            Push::Changed(node, _) => *node,
        }
    }

    /// What it is about.
    pub fn name(&self) -> &Name {
        match self {
            Push::Granted(grant) => &grant.name,
            Push::Changed(_, name) => name,
        }
    }
}

/// What arrives in a node's inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InboxEvent {
    /// A push.
    Pushed(Push),
    /// Something about the server that its operator should know.
    Warning(String),
}

/// Whether a failed batch may have been executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executed {
    /// It was not, and it never will be.
    No,
    /// Nobody knows; it may even be executed later.
    Unknown,
}

/// Why a request has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// It was not executed, and it never will be.
    No,
    /// Its time was over before a reply came. It may have been executed, and may still be until it is late.
    Unknown,
    /// As [`Unknown`](Self::Unknown), through no fault of its own: its connection broke, or was given up for the sake
    /// of another request. To be asked again at once, and to be counted as nothing.
    Bystander,
    /// It was not sent: the server is known to be down.
    Down,
}

/// Why a whole batch has no answer.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Whether it may have been executed.
    pub executed: Executed,
    /// What happened.
    pub error: StoreError,
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_written_by_hand_as_it_is_shown() {
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
