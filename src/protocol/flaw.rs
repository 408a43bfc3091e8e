//! Planted mistakes, by which the simulator shows that it finds them.
//!
//! Every machine has a [`Plant`]. It is empty in a build without the feature `_sim`, so the compiler removes the checks.

use strum::VariantArray;

/// The planted mistake of a machine, or none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plant {
    #[cfg(feature = "_sim")]
    flaw: Option<Flaw>,
}

impl Plant {
    /// No mistake.
    pub const NONE: Plant = Plant {
        #[cfg(feature = "_sim")]
        flaw: None,
    };

    /// Plants this mistake, if there is one.
    #[cfg(feature = "_sim")]
    pub fn new(flaw: Option<Flaw>) -> Self {
        Plant { flaw }
    }

    /// Returns whether this mistake is planted.
    #[inline(always)]
    pub fn is(self, flaw: Flaw) -> bool {
        self.planted() == Some(flaw)
    }

    #[cfg(feature = "_sim")]
    fn planted(self) -> Option<Flaw> {
        self.flaw
    }

    #[cfg(not(feature = "_sim"))]
    #[inline(always)]
    fn planted(self) -> Option<Flaw> {
        None
    }
}

/// A mistake that the simulator must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, VariantArray)]
pub enum Flaw {
    // Of the key machine.
    /// The deadline counts from the answer, and not from the sending of the request.
    DeadlineFromReply,
    /// A late answer to a renewal revives a lost guard.
    LateRenewalRevives,
    /// A claim that the store does not know is sent again under its number.
    NumberTwice,
    /// t₀ is taken when a waiter's renewal is sent, and not when it is answered.
    UnansweredRefresh,
    /// A yield keeps its old number.
    YieldKeepsNumber,
    /// A number is used until its leave is answered.
    LeaveKeepsNumber,
    /// A grant for an unknown claim is kept.
    UnknownKept,
    /// The claim of a cancelled waiter is forgotten, and the store is not told.
    CancelledForgotten,
    /// A lease is renewed after its holder reached its `max_hold`.
    OverdueRenewed,
    /// A renewal of a fixed lease that failed is repeated after its caller was told of the failure.
    FixedLeaseRenewedAlone,
    /// A solo lease is handed on within its process.
    SoloHandedOn,
    /// A permit is handed to the next caller of the process, even if that caller wants another number of permits.
    PermitHandedToMany,
    /// A lease is handed on within its process while a write under it has no answer.
    HandedOnUnanswered,
    /// A watch is repeated on a push, and never by its timer.
    WatchedByPushAlone,
    /// A new caller of a watch gets the answer to a question that was sent before the caller arrived.
    OldLookBelieved,
    /// A caller that has lost its lease claims it again at once.
    NeverRests,
    /// The effects of a step are carried out again in the next step.
    EffectsLeft,
    /// A guard is returned for a lease that was given back, because its caller did not take it up in time.
    LostGrantReturned,
    /// A refusal is reported as "not executed", though an earlier request of the claim may have been executed.
    RefusalBelieved,
    /// A writer that becomes a reader is told that its lease is gone if there is no answer.
    DowngradeGivesUp,
    /// A holder goes on after a pass without an answer.
    ResumedUnanswered,
    /// The caller of a claim that the store does not know is not claimed for again.
    EndedForgotten,
    /// An inbox is trusted after a grant is found that was never pushed to it.
    SilentInboxTrusted,

    /// A write under a lease is not counted, so the lease is handed on while the write has no answer.
    UncountedWrite,

    /// A leave is not repeated when an earlier renewal, which has no answer, can no longer assert the lease.
    AssertedAfterLeave,

    // Of the calls.
    /// A repeated call has a fresh id.
    RepeatedUnderFreshId,
    /// A call about a run or a leadership is sent after the leave of its claim.
    SavedAfterLeave,
    /// The answer to a call is given to another call.
    AnswerToAnotherCall,
    /// A watch is lost when its connection breaks.
    WatchLostWithConnection,
    /// An answer is not given to a caller that arrived after the sender read its clock. The call of that caller is
    /// sent again.
    SenderClockBelieved,

    // Of the ledger.
    /// A hand-over keeps the old grant number.
    NumberKeptOnHandOff,
    /// A waiter that has not renewed is granted the lease.
    DeadHeadGranted,
    /// A free key with a queue is not granted to its first waiter.
    NeverSettled,
    /// A leave frees the lease of any owner.
    LeaveByAnyone,
    /// A claim is executed even if it is late.
    LateClaimExecuted,
    /// A job has no watermark: any tick that finds the job free runs.
    NoMark,
    /// The store does not refuse a tick that is early by its clock.
    EarlyTickGranted,
    /// A tick that is over is granted to its standby.
    FinishedTickHandedOver,
    /// A tick has no standby: its second claim gets the answer "busy".
    NoStandby,
    /// A tick that has begun is never granted to its standby.
    StandbyNeverGranted,
    /// A standby is not told that its tick is over.
    StandbyNeverTold,
    /// A lock that is left free for foreign clients stays free for ever.
    LeftFreeForEver,
    /// A lock with waiters is never left free for foreign clients.
    NeverLeftFree,
    /// A question about a job is not told of a tick that has begun and not ended.
    OpenTickUntold,
    /// Each question about a job counts as the first one with its expression.
    FirstSeenRenewed,
    /// A reader joins other readers although a writer waits.
    ReaderJoinsPastWriter,
    /// A downgrade releases the lock and claims it again.
    DowngradeLetsGo,
    /// A pass is executed for a claim that does not own the lease.
    AdoptedTwice,
    /// A lease that is taken over keeps the grant number of its previous owner.
    AdoptKeepsNumber,
    /// An extension shortens a lease of which more is left.
    ExtendShortens,
    /// The standby of a tick that was brought back is granted the tick before it is due again.
    TickBroughtBackGranted,
    /// The owner of a job and the winner of a tick are compared by node only, and not by claim.
    JobByNode,
    /// A leave of a claim without permits gives back a permit of another claim.
    PermitReleasedTwice,
    /// A permit is renewed after its lease has ended.
    EndedPermitRenewed,
    /// Some claims of a group are granted although others cannot be.
    HalfGranted,
    /// A reader in a group counts as granted although a writer waits before it.
    TogetherPastWriter,
    /// A reader in a group counts as a writer, so that other readers exclude it.
    TogetherAsWriter,
    /// A tick that waits for the end of an earlier tick is skipped.
    QueuedTickSkipped,
    /// The standby of a tick that was run, and that hears of it after the next tick began, is told that its tick was
    /// skipped.
    RunTickCalledSkipped,
    /// A tick is granted although an earlier tick must run first.
    EarlierTickPassedOver,
    /// In a job that runs all ticks, a skipped tick must be run before the next.
    SkippedTickAwaited,
    /// The store keeps a checkpoint of a run that no longer owns the job.
    CheckpointOfLoser,
    /// The checkpoint of a tick is shown to the runs of the next tick.
    CheckpointOutlivesTick,
    /// A checkpoint is acknowledged, and not kept.
    CheckpointNotKept,
    /// A standby is granted its tick although the job is paused.
    PausedStandbyGranted,
    /// A tick of a pause runs after the resume.
    PausedTickResumed,
    /// A claim that is not the latest winner writes how the run ended.
    RunEndedByAnother,
    /// A run that has its end gets another entry for a repeated finish.
    RunEndedTwice,
    /// A store that lost acknowledged data ignores what the nodes report of it.
    LossBelieved,
    /// A write is executed whether or not its lease is current.
    WriteUnchecked,
    /// A write under several leases is executed if the first of them is current.
    FirstLeaseChecked,
    /// A repeated count-down counts again.
    CountedAgain,
    /// A count-down counts in a generation that was set after the call was made.
    CountedLate,
    /// A latch at zero is set again before its life is over.
    LatchSetAgain,
    /// The value that a leader proclaimed is shown as that of the next leader.
    ProclaimedOutlivesLeader,
    /// The value of a candidate that has to wait for its turn is forgotten.
    QueuedValueForgotten,
    /// A late proclaim replaces a later value of the same leader.
    ProclaimedLate,

    /// A revoked lease is renewed and passed on as before.
    RevokedRenewed,
    /// A revoked lease is asserted while the server recovers.
    RevokedAsserted,
    /// A revoked lease is free at once.
    RevokedFreed,
    /// The leave of any claim ends a revoked lease.
    RevokedLeftByAnother,
    /// A revoked lease is passed on or adopted.
    RevokedAdopted,

    /// A triggered tick is compared with the mark of the schedule.
    TriggerJudgedByMark,
    /// A triggered tick stays wanted after a run of it has ended.
    TriggerOutlivesRun,
    /// A tick that comes during a triggered run is skipped.
    TickSkippedForTrigger,
    /// A cancelled tick may be granted again.
    CancelledTickOpen,

    /// A server that recovers grants leases.
    RecoveringGrants,
    /// A claim of a tick waits for the end of a recovery.
    TickWaitsForRecovery,
    /// A lease is asserted after the renewal's not-after.
    AssertedLate,
    /// A lease is asserted although another claim owns the key.
    AssertedOverOwner,
    /// An assertion of a fixed lease shortens a record that is there.
    AssertionShortens,
    /// A claim whose lease is asserted stays in the queue.
    AssertionStaysQueued,
    /// A recovery is shorter than the longest lease.
    RecoveryTooShort,
    /// A server does not notice that it has lost grants.
    EvidenceIgnored,
    /// A server does not notice a reign of another server between two of its own.
    EpochNotCompared,
    /// A recovery leaves the clock below the numbers of an earlier reign.
    ClockNotRaised,
    /// A claim is granted on a link that the Sentinels have not confirmed.
    UnconfirmedGrants,
    /// The answer of one Sentinel confirms a link.
    OneSentinelBelieved,
    /// The Sentinels are asked before the connection to the server opens, and not again.
    SentinelsAskedBefore,
    /// A renewal moves the deadline while the former master may still grant the key.
    RenewedBesideFormerMaster,
    /// A push of a former master is used as a push of its successor.
    FormerPushUsed,
    /// A transfer is adopted at a server that recovers.
    AdoptedWhileRecovering,
    /// A renewal that has the record alone creates a record.
    AloneCreates,
    /// A renewal with the record alone is "gone" because the server that the slot leaves does not have the record.
    GoneBelievedFromSource,

    /// A renewal that another server must execute is taken as "gone".
    RedirectTakenForGone,

    // Of kept leases.
    /// A recalled lease stays kept.
    RecallIgnored,
    /// A recall that comes before the answer to its claim is forgotten.
    EarlyRecallForgotten,
    /// A lease is kept that was granted from the queue, whose record has no mark.
    KeptAfterPush,
    /// A lease is kept while it is unknown whether pushes arrive.
    KeptUnconfirmed,
    /// A lease is kept while a write under it has no answer.
    KeptUnanswered,
    /// A kept lease is used after its leave was sent.
    KeptUsedAfterLeave,
    /// A lease is kept beyond its renewal.
    KeptPastRenewal,
    /// The next holder of a kept lease has the fence of the one before.
    KeptIndexTwice,

    // Of the session.
    /// Not-after is always computed from the first reading of the server's clock.
    NotAfterFromOldReading,
    /// An unanswered claim counts as late from its sending on.
    LateAfterTooEarly,
    /// A connection that was given up is used beside its successor.
    ConnectionBesideSuccessor,
    /// A reply is taken as the reply to the oldest batch in flight.
    ReplyToAnotherBatch,
    /// The renewals of owners are sent in the order of the queue, and not first.
    RenewalBehindQueue,
    /// A claim is sent before this node's own leave of the same key.
    ClaimBeforeLeave,
    /// A node that closes gives up the tick of a run that goes on.
    RunGivenUpAtClose,
    /// The requests in flight on a connection that is given up are forgotten.
    ForgottenWithConnection,
    /// The queued requests for a name that moved to another server are forgotten.
    ForgottenWithMove,
    /// A batch that found no script on the server is sent again with its old not-after, when its claims may be late.
    ReloadWithoutBound,
    /// An inbox stays at its server when the connection leads to another one.
    InboxLeftBehind,
    /// Whether an inbox leads to the server of the connection is told by their addresses.
    InboxComparedByAddress,
    /// A link sends a request on to the server that now serves its name, with the not-after of the first server.
    ForwardedByLink,
    /// A session does not tell the session that has the inbox that its own connection was lost.
    InboxNotTold,
    /// The clock of a slot stays behind when the slot moves to another server.
    ClockLeftBehind,

    /// The map of the one server that is asked is believed, whatever cluster it belongs to.
    OneWitnessBelieved,
    /// A server of another cluster is used at the address of a known one.
    StrangerUsed,

    // Of the quorum and its masters.
    /// A minority of the masters is enough for a grant.
    MinorityEnough,
    /// The lease counts from the youngest vote, and not from that of the last master that makes a majority.
    YoungestVote,
    /// A master that may have lost records votes.
    RecoveringVotes,
    /// The largest number of a majority is the fence, although the other masters may still give lower ones.
    NoSecondTrip,
    /// A lease is left only at the masters that granted it.
    LeftWhereGrantedOnly,
}

impl Flaw {
    /// All mistakes.
    pub const ALL: &[Flaw] = Flaw::VARIANTS;
}
