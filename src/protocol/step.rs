//! The pure state machine between callers and store: local lines, claims, deadlines, renewal.
//!
//! Sans-I/O, as quinn-proto and rustls are: [`Shard::handle`](crate::protocol::key::shard::Shard::handle) takes the time and an
//! [`Input`], and appends [`Effect`]s. It owns no task, clock or connection, so the simulator can drive it by the
//! million steps.
//!
//! Two levels: the lease belongs to the node, the guard to the caller. All callers of one process that want a key
//! stand in one local line behind one claim of their node (the *cohort*), and hand the lease on among themselves
//! without asking the store, up to a bound. This is lock cohorting (Dice, Marathe, Shavit, PPoPP 2012). A lease of
//! fixed length is *solo*: a claim of its own, never handed on. So is that of a caller that wants to be served in the
//! store's order.
//!
//! Here is what goes in and what comes out.

use std::time::Duration;

use strum::{EnumCount, EnumTryAs};

use crate::error::{LostCause, StoreError};
use crate::protocol::message::{
    Call, ClaimId, ClaimNumber, Fence, Grant, JobReport, LatchReport, LeaderReport, LeaseTimes, Mode, Name,
    NodeId, Payload, Reply, Request, TickTime, Unanswered, WhenBehind, WriteAnswer,
};
use crate::protocol::time::Instant;
use crate::protocol::write::{Action, Precondition};

/// One caller: waiting, then holding. Unique in a shard, and older callers have smaller ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How a caller wants a lease: made by a builder, checked when the caller enters, and kept while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOptions {
    /// The lengths of the claim, if the claim is made for this caller.
    pub term: LeaseTimes,
    /// How the lease may be shared.
    pub mode: Mode,
    /// Waits for its turn. Otherwise a caller that would have to wait is told that the key is busy.
    pub wait: bool,
    /// The lease lasts for exactly its length: it is never renewed or handed on, and has a claim of its own.
    pub fixed: bool,
    /// The caller has a claim and a place in the store's queue of its own. The lease is renewed, and never handed on locally.
    pub solo: bool,
    /// Granted with other keys of the same caller or not at all, at the first try: the claim goes in a batch of
    /// [`Rule::AllOrNone`](crate::protocol::message::Rule::AllOrNone).
    pub together: bool,
    /// A busy key is not the last answer: the caller goes on in another way, and no event says that it was denied.
    pub goes_on: bool,
    /// The lease was just lost: nothing is claimed for about a third of a lease.
    pub rests: bool,
    /// The lease is renewed for so long, counted from the grant, and then ends by itself.
    pub max_hold: Option<Duration>,
    /// The tick that the lease is for. A tick has a claim of its own, which is renewed and never handed on locally.
    pub mark: Option<TickTime>,
    /// What becomes of the tick while an earlier tick is in the way.
    pub turn: WhenBehind,
    /// The caller is refused if so many callers of this process already wait for the key.
    pub limit: usize,
    /// As many callers as may wait in this process do: the caller is refused if it would have to wait. Set when it enters.
    pub node_is_full: bool,
}

impl LockOptions {
    /// A lease that is renewed, waited for without a limit, and handed on within the process.
    pub fn new(term: LeaseTimes) -> Self {
        LockOptions {
            term,
            mode: Mode::Exclusive,
            wait: true,
            fixed: false,
            solo: false,
            together: false,
            goes_on: false,
            rests: false,
            max_hold: None,
            mark: None,
            turn: WhenBehind::Skip,
            limit: usize::MAX,
            node_is_full: false,
        }
    }

    /// The lease, without the margin.
    pub(crate) fn lease(&self) -> Duration {
        ms(self.term.lease_ms)
    }

    /// What a caller is told that would have to wait and does not.
    pub(crate) fn busy(&self) -> AcquireError {
        if self.node_is_full {
            AcquireError::NodeFull
        } else {
            AcquireError::Busy
        }
    }
}

/// What a caller asks or has done, without a wish for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallOptions {
    /// The lease: a quarter of it is the time of a request, and a third the pause between two looks of a watch.
    pub term: LeaseTimes,
    /// The mode of the lease that the call is about, if it is about one.
    pub mode: Mode,
    /// What is asked or done.
    pub call: Call,
    /// What comes with it.
    pub data: Option<Payload>,
    /// The tick that the call is about, if it is about one.
    pub mark: Option<TickTime>,
    /// The last call of this caller failed: not now, but after about a third of a lease.
    pub rests: bool,
    /// Refuse a watch when so many watch the key in this process.
    pub limit: usize,
    /// Refuse a watch: as many callers wait in this process, for whatever key, as may.
    pub node_is_full: bool,
}

impl CallOptions {
    /// A call without data, about no tick, at once and without a limit.
    pub fn new(term: LeaseTimes, call: Call) -> Self {
        CallOptions {
            term,
            mode: Mode::Exclusive,
            call,
            data: None,
            mark: None,
            rests: false,
            limit: usize::MAX,
            node_is_full: false,
        }
    }
}

/// Which request an answer belongs to: a claim or call, and the number of the request within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The claim or call that asked.
    pub claim: ClaimNumber,
    /// Counts its requests.
    pub seq: u32,
}

/// What happens to a key.
#[derive(Debug, Clone)]
pub enum Input {
    /// A caller wants the lock. Sent once per ticket.
    Lock(Ticket, LockOptions),
    /// A caller wants to lead an election, and has this value proclaimed in the step in which it wins. Sent once per ticket.
    Campaign(Ticket, LockOptions, Payload),
    /// A caller wants an answer and no lease: [`Effect::Answered`]. Sent once per ticket.
    Call(Ticket, CallOptions),
    /// A caller has something done in a call of its own, which is sent once: [`Effect::Answered`]. A quarter of the duration is its
    /// time. Sent once per ticket.
    Act(Ticket, Duration, Action),
    /// A caller wants it no more: its future or its guard was dropped. Nobody waits for the outcome.
    Cancel(Ticket),
    /// A writer becomes a reader, with nobody in between: what it held by this ticket is told as [`Effect::Released`], and
    /// what it holds then belongs to the other ticket. Its options stay, and when it began. If the store refuses, the other
    /// ticket holds what was held before.
    Downgrade(Ticket, Ticket),
    /// A holder gives its lease to whoever is told of it, in one step: what it held by this ticket is over, and what the
    /// other ticket holds then, for this lease and no longer, is to be [handed out](Self::HandedOut). If the store refuses, the
    /// other ticket holds what was held before.
    Transfer(Ticket, Ticket, LeaseTimes),
    /// A caller wants the lease of this owner, of whom it was told.
    Adopt(Ticket, LockOptions, ClaimId),
    /// What it holds is the affair of whoever is told of it: the store is told nothing.
    HandedOut(Ticket),
    /// A caller asks for a renewal, now, of what the first ticket holds. The other ticket is for the answer, [`Effect::Answered`], and
    /// is sent once. A fixed lease is renewed in this way only.
    Renew(Ticket, Ticket),
    /// A write under this lease was answered, or is never sent. `true`: the store did not do it, as the claim has no lease under
    /// this grant: the lease is over.
    WriteEnded(Precondition, bool),
    /// A holder gives it back and waits for [`Effect::Released`].
    Release(Ticket),
    /// The same, and the tick was run to its end, and whether it went well.
    Finish(Ticket, bool),
    /// The store answered a request that was sent at `sent`.
    Answered {
        /// Which request.
        tag: Tag,
        /// Read from the clock before the request was written.
        sent: Instant,
        /// The server's clock when it was executed, in microseconds; 0 when it did not look.
        time: u64,
        /// What was answered.
        reply: Reply,
    },
    /// A request has no answer and will never have one.
    Failed {
        /// Which request.
        tag: Tag,
        /// Whether it may have been executed, or may still be, and what to do about it.
        why: Unanswered,
        /// From when on the store refuses it as late.
        late_after: Instant,
        /// When its server was last heard, if it ever was.
        heard: Option<Instant>,
        /// Since when it is away: when it was last heard, or since then the first request was sent that came to nothing.
        away: Option<Instant>,
        /// What happened.
        error: StoreError,
    },
    /// A grant arrived in the inbox.
    Pushed(Grant),
    /// What is watched has changed, as the inbox was told.
    Changed,
}

/// What is to be done.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Send this request. Its [`Tag`] comes back with [`Input::Answered`] or [`Input::Failed`], exactly once.
    Send(Outgoing),
    /// Send this action, once. Its [`Tag`] comes back as that of a request does.
    Act(OutgoingAction),
    /// Tell the key machine of the lease [that the write has ended](Input::WriteEnded).
    WriteEnded(Precondition, bool),
    /// The caller holds the lock now.
    Granted(Ticket, Fence),
    /// The answer to a call.
    Answered(Ticket, CallAnswer),
    /// The caller gets no lock, or its call no answer.
    Denied(Ticket, AcquireError),
    /// The holder has held it for as long as it may. It is renewed no more, and lost when what is left is over.
    Overdue(Ticket),
    /// The holder lost it. Sent before the store could let anybody else in.
    Lost(Ticket, LostCause),
    /// What became of [`Input::Release`].
    Released(Ticket, Outcome),
    /// A grant was found whose push did not come: the inbox has to be asked for a sign of life.
    PushMissed,
    /// Something worth telling happened.
    Event(KeyEvent),
}

/// A request on its way, with what its carrier must know.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Comes back with the answer.
    pub tag: Tag,
    /// What to ask.
    pub request: Request,
    /// The lease of its claim. A quarter of it is the request's time.
    pub lease: Duration,
    /// What it is for.
    pub class: Class,
    /// When somebody called for it.
    pub called: Instant,
}

/// An action on its way. It is sent once.
#[derive(Debug, Clone)]
pub struct OutgoingAction {
    /// Comes back with the answer.
    pub tag: Tag,
    /// What it is about; the first lease of a write.
    pub name: Name,
    /// A quarter of this is its time.
    pub lease: Duration,
    /// When it was called for. Its time begins then, and not when it is sent.
    pub called: Instant,
    /// What is to be done.
    pub action: Action,
}

/// What a request is for. It decides what goes first: what comes first here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount)]
pub enum Class {
    /// A holder's lease is renewed.
    OwnerRenewal,
    /// A run of a tick asks about itself, or leaves something.
    Call,
    /// A lease is given back: leave, finish, yield.
    Leave,
    /// A waiter says that it is alive, asks what became of its claim, or makes sure of its grant.
    WaiterRenewal,
    /// Something is claimed.
    Claim,
}

impl Class {
    /// The class of a call.
    pub(crate) fn of_call(call: Call) -> Class {
        match call.of() {
            Some(_) => Class::Call,
            None => Class::Claim,
        }
    }
}

/// Whether grants are pushed to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InboxState {
    /// They are.
    Confirmed,
    /// Nobody knows: whoever waits looks often.
    #[default]
    Unconfirmed,
    /// They are not and will not be: whoever waits looks each third of a lease.
    Refused,
}

/// Why a caller gets no lock.
#[derive(Debug, Clone)]
pub enum AcquireError {
    /// Somebody else has it, and this caller would not wait.
    Busy,
    /// Too many wait already.
    QueueFull {
        /// How many.
        waiting: usize,
    },
    /// Too many wait already in this process, for whatever keys.
    NodeFull,
    /// The store did not do it.
    Store(StoreError),
    /// The action may have been done, and may still be.
    Unanswered(StoreError),
    /// The tick may not run now, or never.
    Tick(TickRefusal),
    /// The node is closing.
    Closed,
    /// What was to be taken over from its owner is lost.
    Lost(LostCause),
    /// What was to be passed on was not, as the store did nothing: it is held as before, under this ticket.
    Kept(Fence, StoreError),
}

/// The answer to a call.
#[derive(Debug, Clone, EnumTryAs)]
pub enum CallAnswer {
    /// What the store knows of a job.
    Report(Box<JobReport>),
    /// How many permits are held; `None` for all.
    InUse(Option<u64>),
    /// Whether the owner that the call is about had the lease.
    Owned(bool),
    /// What the store knows of a latch.
    Latch(LatchReport),
    /// The leader, if there is one.
    Leader(Option<LeaderReport>),
    /// What became of a write.
    Written(WriteAnswer),
}

impl CallAnswer {
    /// Returns the answer that a reply is, if it is one. `repeats`: an earlier request may have been executed.
    pub(crate) fn from_reply(reply: Reply, repeats: bool) -> Option<CallAnswer> {
        match reply {
            Reply::Report(report) => Some(CallAnswer::Report(report)),
            Reply::InUse(permits) => Some(CallAnswer::InUse(permits)),
            Reply::Latch(report) => Some(CallAnswer::Latch(report)),
            Reply::Leader(report) => Some(CallAnswer::Leader(report)),
            Reply::Done => Some(CallAnswer::Owned(true)),
            Reply::Written(answer) => Some(CallAnswer::Written(answer)),
            // "Not there" may be the work of the first request.
            Reply::NotThere => Some(CallAnswer::Owned(repeats)),
            Reply::Gone => Some(CallAnswer::Owned(false)),
            // No store gives another one to a call, unless it is late.
            _ => None,
        }
    }
}

/// Why the store does not let a tick run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TickRefusal {
    /// The tick was run, or a later tick was begun.
    Over,
    /// The tick was never begun, and never will be.
    Skipped,
    /// By the store's clock the tick is due only after this time.
    Early(Duration),
    /// An earlier tick must run first: the latest one, if it has not ended, or one that comes after that.
    EarlierTickDue {
        /// The latest tick.
        latest: TickTime,
        /// The latest tick has not ended.
        is_open: bool,
    },
}

/// What became of a release.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Exclusivity held to the end.
    Kept,
    /// It did not.
    Lost(LostCause),
    /// It held to here, but the store could not be told; the lease ends by itself at the latest.
    Failed(StoreError),
}

/// Something worth an event or a metric, or that the simulator counts.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum KeyEvent {
    /// Handed on to the next caller of this process.
    HandedOn,
    /// A pushed grant was used at once.
    PushUsed,
    /// A pushed grant had too little left and is renewed first.
    PushConfirming,
    /// A push for a claim that is dead or unknown here was ignored or left.
    PushStale,
    /// A grant for a number that this node does not know was left at once.
    UnknownLeft,
    /// A push with a nonce that is not ours: somebody forges grants.
    PushForged,
    /// A waiting claim asked and was told that it is the owner now: its push was lost or is still to come, or the
    /// lease before it ran out.
    FoundGranted,
    /// It was granted when the lease of the owner before, as the store last told it, had run out: that one died, or
    /// lost sight of the store. Comes with one of the three before.
    Inherited {
        /// The node of that owner, if it owned alone.
        from: Option<NodeId>,
    },
    /// The lease was renewed with so much of it left.
    Renewed {
        /// What had been left of the lease when the answer came.
        slack: Duration,
    },
    /// Its holder has held it for as long as it may, and it is renewed no more.
    Overdue {
        /// For how long it was held.
        held: Duration,
        /// When what is left is over it is lost.
        left: Duration,
    },
    /// Its holder has held it for longer than is usual. Told once.
    HeldLong {
        /// For how long so far.
        held: Duration,
    },
    /// A renewal failed; it is tried again while something is left.
    RenewFailed {
        /// What is left.
        left: Duration,
        /// What happened.
        error: StoreError,
    },
    /// The answer to a claim or yield got lost; it is asked for.
    Asking,
    /// A claim was refused because it arrived late.
    Late,
    /// A claim was never answered; it is left once more when it can no longer be executed.
    GhostLeft,
    /// A waiting claim was forgotten by the store and is claimed again.
    Requeued,
    /// The burst was over and the lease was yielded.
    Yielded,
    /// A grant was shorter than whoever is first in the line wants, and was yielded.
    TooShort,
    /// The answer to a leave or yield got lost; it is repeated.
    LeaveRepeated,
    /// The store could not be told in time that a lease is over; it ends by itself.
    LeaveFailed {
        /// What happened last.
        error: Option<StoreError>,
    },
    /// Permits were granted while somebody held some as of another number of permits.
    UnlikeCapacity {
        /// Of so many here.
        ours: u32,
        /// Of so many elsewhere.
        theirs: u32,
    },
    /// A granted answer was too old to be used.
    AnswerStale,
    /// A request that waits failed; it is tried again while its place may live.
    WaitFailed {
        /// What happened.
        error: StoreError,
    },
}

/// The numbers that the key machine goes by. They do not change.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// So many times in a row a lease is handed on locally, then other nodes get their turn.
    pub burst: u32,
    /// And for so long.
    pub burst_time: Duration,
    /// For longer than this a holder does not usually hold.
    pub long_hold: Duration,
    /// The store keeps waiters in a queue.
    pub queues: bool,
    /// A pushed grant may be used at once.
    pub final_push: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            burst: 256,
            burst_time: Duration::from_millis(20),
            long_hold: Duration::from_secs(60),
            queues: true,
            final_push: true,
        }
    }
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Names a key and says what happened to it.
pub type Event = (Name, Input);
