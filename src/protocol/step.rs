//! The inputs and effects of the key machine, the pure state machine between callers and the store.
//!
//! The machine does no I/O, as in quinn-proto and rustls.
//! [`Shard::handle`](crate::protocol::key::shard::Shard::handle) takes the time and an [`Input`], and appends
//! [`Effect`]s. The machine owns no task, clock or connection, so a simulator can drive it for millions of steps.
//!
//! There are two levels: a lease belongs to a node, and a guard belongs to a caller. All callers of one process that
//! want a key queue in one local *line*, behind one claim of their node. They are a *cohort*, and hand the lease on
//! among themselves without a request to the store, up to a bound. This is lock cohorting (Dice, Marathe, Shavit,
//! PPoPP 2012). A lease of fixed length is *solo*: it has a claim of its own and is never handed on. The lease of a
//! caller that wants the store's order is solo, too.

use std::sync::Arc;
use std::time::Duration;

use strum::EnumCount;

use crate::error::{LostCause, StoreError};
use crate::protocol::failed_request::FailedRequest;
use crate::protocol::message::{
    Asking, Call, CallAnswer, ClaimId, ClaimNumber, Fence, Grant, GrantNumber, LeaseTimes, Mode, Name,
    NodeId, Payload, Reply, Request, RunEnding, TickRefusal, TickTime, WhenBehind,
};
use crate::protocol::time::Instant;
use crate::protocol::write::{Action, Precondition};

/// A caller, from when it waits until it no longer holds. Unique in a shard; older callers have smaller tickets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How a caller wants a lease. Made by a builder, checked when the caller enters, and kept while the caller waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOptions {
    /// The lengths of the claim, if the claim is made for this caller.
    pub term: LeaseTimes,
    /// How the lease may be shared.
    pub mode: Mode,
    /// Waits for the caller's turn. If false, a caller that would have to wait is denied as busy.
    pub wait: bool,
    /// When the caller gives up, if it waits for a limited time. The caller ends its wait by itself. A caller that gives up before
    /// the server has recovered is denied at once.
    pub until: Option<Instant>,
    /// The lease lasts for exactly its length. It is never renewed or handed on, and it has a claim of its own.
    pub fixed: bool,
    /// The caller has its own claim and its own place in the store's queue. The lease is renewed, and never handed on
    /// locally.
    pub solo: bool,
    /// The first try grants all keys of this caller or none: the claim goes in a batch of
    /// [`Rule::AllOrNone`](crate::protocol::message::Rule::AllOrNone).
    pub together: bool,
    /// A busy key is not the final answer, because the caller then tries another way. No event says that the caller
    /// was denied.
    pub has_fallback: bool,
    /// The caller has just lost its lease: nothing is claimed for about a third of a lease.
    pub rests: bool,
    /// The longest time for which the lease is renewed, counted from the grant. The lease then ends by itself.
    pub max_hold: Option<Duration>,
    /// How long the lease stays with this node after its last local release; zero: it is given back at once.
    pub keep: Duration,
    /// The tick that the lease is for. A tick has a claim of its own, which is renewed and never handed on locally.
    pub mark: Option<TickTime>,
    /// What happens to the tick while an earlier tick blocks it.
    pub turn: WhenBehind,
    /// The caller is refused if this many callers of this process already wait for the key.
    pub limit: usize,
    /// As many callers wait in this process as may wait: the caller is refused if it must wait. Set when the caller
    /// enters.
    pub node_is_full: bool,
}

impl LockOptions {
    /// Returns options for a lease that is renewed and handed on within the process. The caller waits without a
    /// limit.
    pub fn new(term: LeaseTimes) -> Self {
        LockOptions {
            term,
            mode: Mode::Exclusive,
            wait: true,
            until: None,
            fixed: false,
            solo: false,
            together: false,
            has_fallback: false,
            rests: false,
            max_hold: None,
            keep: Duration::ZERO,
            mark: None,
            turn: WhenBehind::Skip,
            limit: usize::MAX,
            node_is_full: false,
        }
    }

    /// Returns what a claim for this caller has for life.
    pub(crate) fn terms(&self) -> LeaseTerms {
        LeaseTerms {
            times: self.term,
            mode: self.mode,
            is_fixed: self.fixed,
            tick: self.mark.map(|mark| TickTerms {
                mark,
                turn: self.turn,
            }),
        }
    }

    /// Returns how long a lease of this caller is kept after its release. Only an exclusive lock that is renewed and handed on
    /// locally is kept.
    pub(crate) fn keep_of_lock(&self) -> Duration {
        let is_alone = self.fixed || self.solo || self.together || self.mark.is_some();
        match self.mode {
            Mode::Exclusive if !is_alone => self.keep,
            _ => Duration::ZERO,
        }
    }

    /// Returns the length of the lease, without the margin.
    pub(crate) fn lease(&self) -> Duration {
        ms(self.term.lease_ms)
    }

    /// Returns the denial of a caller that would have to wait, but does not.
    pub(crate) fn busy(&self) -> AcquireError {
        if self.node_is_full {
            AcquireError::NodeFull
        } else {
            AcquireError::Busy
        }
    }
}

/// What a claim has for life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    pub(crate) times: LeaseTimes,
    /// How the lease may be shared.
    pub(crate) mode: Mode,
    /// The lease lasts for exactly its length.
    pub(crate) is_fixed: bool,
    /// The tick that the lease is for, if it is for one.
    pub(crate) tick: Option<TickTerms>,
}

/// A tick, and what happens to it while an earlier tick blocks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TickTerms {
    pub(crate) mark: TickTime,
    pub(crate) turn: WhenBehind,
}

impl LeaseTerms {
    /// Returns the terms of a lease that is renewed, and is for no tick.
    pub(crate) fn of_lock(times: LeaseTimes, mode: Mode) -> Self {
        LeaseTerms {
            times,
            mode,
            is_fixed: false,
            tick: None,
        }
    }
}

/// What a caller asks or does without a claim to a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallOptions {
    /// The lease. A request may take a quarter of it, and a watch is repeated after a third of it.
    pub term: LeaseTimes,
    /// The mode of the lease that the call is about, if it is about one.
    pub mode: Mode,
    /// The question or the action.
    pub call: Call,
    /// The data that comes with the call.
    pub data: Option<Payload>,
    /// The tick that the call is about, if it is about one.
    pub mark: Option<TickTime>,
    /// The caller's last call failed: this one is sent after about a third of a lease.
    pub rests: bool,
    /// A watch is refused if this many callers of this process already watch the key.
    pub limit: usize,
    /// As many callers wait in this process, for any keys, as may wait: a watch is refused.
    pub node_is_full: bool,
}

impl CallOptions {
    /// Returns a call without data, about no tick, which is sent at once and without a limit.
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

/// The request that an answer belongs to: a claim or call, and the number of the request within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The claim or call that sent the request.
    pub claim: ClaimNumber,
    /// The number of the request, counted per claim or call.
    pub seq: u32,
    /// The index of the master of a quorum that gets the request; 0 for every other store.
    pub master: u16,
}

/// An event that a key machine handles.
#[derive(Debug, Clone)]
pub enum Input {
    /// A caller wants the lock. Given once per ticket.
    Lock(Ticket, LockOptions),
    /// A caller campaigns in an election. The value is proclaimed in the step in which the caller wins. Given once per
    /// ticket.
    Campaign(Ticket, LockOptions, Payload),
    /// A caller wants an answer and no lease. [`Effect::Answered`] follows. Given once per ticket.
    Call(Ticket, CallOptions),
    /// A caller has an action done, which is sent once, outside of batches. [`Effect::Answered`] follows. The action
    /// may take a quarter of the duration. Given once per ticket.
    Act(Ticket, Duration, Action),
    /// A caller gives up: its future or its guard was dropped. No caller waits for the outcome.
    Cancel(Ticket),
    /// A writer becomes a reader, and no other claim holds the key in between. [`Effect::Released`] ends what the
    /// writer held under the first ticket. The reader holds under the second ticket, with the same options and the
    /// same start of the hold time. If the store refuses, the second ticket holds what the writer held.
    Downgrade(Ticket, Ticket),
    /// A holder gives its lease away in one step, to the process that gets the transfer. [`Effect::Released`] ends
    /// what it held under the first ticket. The second ticket then holds for these lengths only, until the lease is
    /// [handed out](Self::HandedOut). If the store refuses, the second ticket holds what was held before.
    Transfer(Ticket, Ticket, LeaseTimes),
    /// A caller takes over the lease of the owner named by a transfer.
    Adopt(Ticket, LockOptions, ClaimId),
    /// The lease of this ticket now belongs to the process that gets the transfer. The store is not told.
    HandedOut(Ticket),
    /// A caller asks for a renewal, now, of what the first ticket holds. [`Effect::Answered`] follows for the second
    /// ticket, which is given once. A fixed lease is renewed in no other way.
    Renew(Ticket, Ticket),
    /// A write under this lease was answered, or will never be sent. `true`: the store did not execute it, because
    /// the claim has no lease under this grant. The lease is then over.
    WriteEnded(Precondition, bool),
    /// Another claim wants the key of this claim, which may be kept.
    Recalled(ClaimId),
    /// A holder gives its lease back. [`Effect::Released`] follows.
    Release(Ticket),
    /// A holder gives the lease of a tick back, and says how the run ended.
    Finish(Ticket, RunEnding),
    /// The store answered a request.
    Answered {
        /// The request.
        tag: Tag,
        /// When the request was sent, read from the clock before it was written.
        sent: Instant,
        /// The server's clock when the request was executed, in microseconds; 0 if the server did not read it.
        time: u64,
        /// The answer.
        reply: Reply,
    },
    /// A request has no answer and will never have one.
    Failed {
        /// The request.
        tag: Tag,
        /// What happened, and how to go on.
        failed: FailedRequest,
    },
    /// A grant arrived in the inbox.
    Pushed(Grant),
    /// A push says that an operator asks for the lease of this claim.
    Asked(ClaimId, Arc<Asking>),
    /// A push says that an operator revoked the lease of this claim, which had this mode.
    Revoked(ClaimId, Mode),
    /// The inbox received a push that says that what is watched has changed.
    Changed,
}

/// When a request was answered, by two clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerTimes {
    /// When the request was sent.
    pub(crate) sent: Instant,
    /// The server's clock when the request was executed, in microseconds; 0 if the server did not read it.
    pub(crate) time: u64,
}

/// What the owner of a key machine must do after a step.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Sends this request. Its [`Tag`] comes back with [`Input::Answered`] or [`Input::Failed`], exactly once.
    Send(Outgoing),
    /// Sends this action once. Its [`Tag`] comes back in the same way as that of a request.
    Act(OutgoingAction),
    /// Tells the key machine of the lease [that the write has ended](Input::WriteEnded).
    WriteEnded(Precondition, bool),
    /// The caller holds the lock now.
    Granted(Ticket, Fence),
    /// A call is answered.
    Answered(Ticket, CallAnswer),
    /// The caller gets no lock, or its call gets no answer.
    Denied(Ticket, WhyDenied),
    /// The holder has reached its `max_hold`. The lease is not renewed any more, and is lost when the rest of it is
    /// over.
    Overdue(Ticket),
    /// An operator asks the holder for the lease. At this time the lease may be revoked.
    Asked(Ticket, Arc<Asking>, Instant),
    /// The holder lost the lease. After a deadline, this comes before the store can grant the key to another claim.
    Lost(Ticket, LostCause),
    /// The outcome of [`Input::Release`].
    Released(Ticket, Outcome),
    /// A grant was found whose push did not arrive: the inbox must show a sign of life.
    PushMissed,
    /// An event for logs, metrics or the simulator.
    Event(KeyEvent),
}

/// A request to be sent, with what the session must know about it.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Comes back with the answer.
    pub tag: Tag,
    /// The request.
    pub request: Request,
    /// The lease of its claim. The request may take a quarter of it.
    pub lease: Duration,
    /// The class, which decides the order of sending.
    pub class: Class,
    /// When the caller or the timer called for the request.
    pub called: Instant,
}

/// An action to be sent. It is sent once.
#[derive(Debug, Clone)]
pub struct OutgoingAction {
    /// Comes back with the answer.
    pub tag: Tag,
    /// The name that the action is about; for a write, that of its first lease.
    pub name: Name,
    /// The length of the lease. The action may take a quarter of it.
    pub lease: Duration,
    /// When the caller called for the action. The time of the action begins then, and not when it is sent.
    pub called: Instant,
    /// The action.
    pub action: Action,
}

/// What a request is for. Requests of an earlier class are sent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount)]
pub enum Class {
    /// Renews the lease of a holder.
    OwnerRenewal,
    /// Asks or acts for a claim: a run of a tick, a leader, or a lease that was transferred.
    Call,
    /// Gives a lease back or passes it on: leave, finish, yield, pass.
    Leave,
    /// Shows that a waiter is alive, asks about the outcome of a claim, or makes sure of a grant.
    WaiterRenewal,
    /// Claims a lease, or asks or acts without a claim.
    Claim,
}

impl Class {
    /// Returns the class of a call.
    pub(crate) fn of_call(call: Call) -> Class {
        match call.claim_id() {
            Some(_) => Class::Call,
            None => Class::Claim,
        }
    }
}

/// What a master before the present one may still do, as far as a node knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FormerMaster {
    /// Until then it may accept writes, and grant a key when its own copy of the record ends. `None` if that time is over.
    pub until: Option<Instant>,
    /// The numbers of its grants are not higher.
    pub highest: GrantNumber,
}

/// Whether grants are pushed to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InboxState {
    /// Grants are pushed.
    Confirmed,
    /// It is not known whether grants are pushed: waiters ask often.
    #[default]
    Unconfirmed,
    /// Grants are not pushed, and never will be: waiters ask each third of a lease.
    Refused,
}

/// Why a caller gets no lock, or its call no answer.
#[derive(Debug, Clone)]
pub enum AcquireError {
    /// Another holder has the key, and this caller does not wait.
    Busy,
    /// Too many callers of this process already wait for the key.
    QueueFull {
        /// The number of waiting callers.
        waiting: usize,
    },
    /// Too many callers already wait in this process, for any keys.
    NodeFull,
    /// The store did not do it.
    Store(StoreError),
    /// The outcome of the action is unknown: it may have been executed, or may still be.
    Unanswered(StoreError),
    /// The node is closing.
    Closed,
    /// The lease that was to be taken over from its owner is lost.
    Lost(LostCause),
}

/// Why a caller does not get what it waits for.
#[derive(Debug, Clone)]
pub enum WhyDenied {
    /// It gets no lock, or its call no answer.
    Error(AcquireError),
    /// The tick may not run now, or may never run.
    Tick(TickRefusal),
    /// The lease was not passed on, because the store did nothing. It is held as before, under this ticket.
    StillHeld(Fence, StoreError),
}

impl From<AcquireError> for WhyDenied {
    fn from(error: AcquireError) -> Self {
        WhyDenied::Error(error)
    }
}

/// The outcome of a release.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The lease was held until its release.
    Held,
    /// The lease was lost before its release.
    Lost(LostCause),
    /// The lease was held so far, but the store did not confirm the release. The lease ends by itself at the latest.
    Unconfirmed(StoreError),
}

/// An event for logs and metrics, or for the simulator to count.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum KeyEvent {
    /// A lease was handed on to the next caller of this process.
    HandedOn,
    /// A kept lease was handed to a caller of this process.
    Reused,
    /// A lease that may be kept was recalled: another claim wants the key.
    Recalled,
    /// A pushed grant was used at once.
    PushUsed,
    /// A pushed grant is renewed before its use: too little of it was left, its lease is fixed, or pushes are not
    /// final.
    PushConfirming,
    /// A push for a claim that is dead here was ignored.
    PushStale,
    /// A grant for a claim number that this node does not know was left at once.
    UnknownLeft,
    /// A push has a nonce that this node did not make: another process forges grants.
    PushForged,
    /// A waiting claim asked and was told that it owns the lease. Its push was lost or is still to come, or the lease
    /// before it ran out.
    FoundGranted,
    /// The grant came after the previous owner's lease had run out, as far as the store last told it. That owner
    /// died, or lost its connection to the store. Comes with one of [`PushUsed`](Self::PushUsed),
    /// [`PushConfirming`](Self::PushConfirming) and [`FoundGranted`](Self::FoundGranted).
    Inherited {
        /// The node of the previous owner, if it owned alone.
        from: Option<NodeId>,
    },
    /// The lease was renewed.
    Renewed {
        /// What was left of the lease when the answer came.
        slack: Duration,
        /// The lease.
        lease: Duration,
    },
    /// The holder has reached its `max_hold`, and the lease is not renewed any more.
    Overdue {
        /// How long the lease was held.
        held: Duration,
        /// What is left of the lease. The lease is lost when this time is over.
        left: Duration,
    },
    /// The holder has held the lease for longer than is usual. Reported once.
    HeldLong {
        /// How long the lease has been held so far.
        held: Duration,
    },
    /// A renewal failed. It is repeated while some of the lease is left.
    RenewFailed {
        /// What is left of the lease.
        left: Duration,
        /// What happened.
        error: StoreError,
    },
    /// The answer to a claim or yield was lost; the node asks for the outcome.
    OutcomeQueried,
    /// An operator asks for the lease. Reported once for a grant.
    Asked(Arc<Asking>),
    /// An operator revoked the lease.
    Revoked,
    /// A claim was refused because it was late.
    Late,
    /// A claim was never answered. It is left once more when it can no longer be executed.
    GhostLeft,
    /// The store forgot a waiting claim, which is claimed again.
    Requeued,
    /// A lease was yielded to other nodes: its burst was over, or it did not suit the first caller of the line.
    Yielded,
    /// A grant was shorter than the first caller of the line wants, or of another mode. It was given back.
    GrantUnsuitable,
    /// The answer to a leave or yield was lost; the leave is repeated.
    LeaveRepeated,
    /// The store was not told in time that a lease is over. The lease ends by itself.
    LeaveFailed {
        /// The last error.
        error: Option<StoreError>,
    },
    /// Permits were granted while a current holder recorded another capacity.
    CapacityDiffers {
        /// The capacity that this node uses.
        local: u32,
        /// The capacity that the other holder recorded.
        recorded: u32,
    },
    /// An answer with a grant came too late to be used.
    AnswerStale,
    /// A request of a waiter failed. It is repeated while the waiter's place in the queue may live.
    WaitFailed {
        /// What happened.
        error: StoreError,
    },
}

/// The limits that the key machine follows. They do not change.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// How many times in a row a lease is handed on locally, before other nodes get their turn.
    pub burst: u32,
    /// How long a lease is handed on locally, before other nodes get their turn.
    pub burst_time: Duration,
    /// How long a holder may hold before [`KeyEvent::HeldLong`] reports it.
    pub long_hold: Duration,
    /// The store keeps waiters in a queue.
    pub queues: bool,
    /// A pushed grant may be used at once.
    pub final_push: bool,
    /// The number of masters of a quorum; 0 for every other store.
    pub masters: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            burst: 256,
            burst_time: Duration::from_millis(20),
            long_hold: Duration::from_secs(60),
            queues: true,
            final_push: true,
            masters: 0,
        }
    }
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
