//! Mistakes to plant, so that the simulator can show that it finds them.
//!
//! They exist only where the simulator builds: every machine has a type parameter that says which mistake is planted,
//! and [`Sound`], its default, says "none" in a way that the compiler removes.

use std::fmt::Debug;

use strum::VariantArray;

/// Says which mistake is planted.
pub trait Plant: Copy + Default + Debug + Send + Sync + 'static {
    /// Whether it is this one.
    fn planted(self, flaw: Flaw) -> bool;
}

/// Nothing is planted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sound;

impl Plant for Sound {
    #[inline(always)]
    fn planted(self, _: Flaw) -> bool {
        false
    }
}

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, VariantArray)]
pub enum Flaw {
    // Of the key machine.
    /// The deadline counts from the answer.
    DeadlineFromReply,
    /// A renewal that was answered late revives a lost guard.
    LateRenewalRevives,
    /// A lost claim is sent again under its number.
    NumberTwice,
    /// t₀ is taken when a refresh is sent, not when it is answered.
    UnansweredRefresh,
    /// A yield goes on under its old number.
    YieldKeepsNumber,
    /// A number lives on until its leave is answered.
    LeaveKeepsNumber,
    /// A grant for an unknown claim is kept.
    UnknownKept,
    /// A cancelled waiter's claim is forgotten without a word.
    CancelledForgotten,
    /// A lease is renewed however long its holder may hold it.
    OverdueRenewed,
    /// A renewal of a fixed lease that failed is repeated after its caller was told of the failure.
    FixedLeaseRenewedAlone,
    /// A lease of somebody's own is handed on within its process.
    SoloHandedOn,
    /// A permit is handed on within its process to whoever is next, however many that one wants.
    PermitHandedToMany,
    /// A lease is handed on within its process while a write under it has no answer.
    HandedOnUnanswered,
    /// Who watches looks when it is told of a change, and not by itself.
    WatchedByPushAlone,
    /// Who comes to watch believes an answer to a question of before.
    OldLookBelieved,
    /// Who lost a lease claims it again at once.
    NeverRests,
    /// The effects of a step are carried out again in the next step.
    EffectsLeft,
    /// A lease that was given back because its caller did not take it up is returned as a guard all the same.
    LostGrantReturned,
    /// A refusal is told as one, though an earlier request of it may have been executed.
    RefusalBelieved,
    /// A writer that becomes a reader is told that its lease is gone when there is no answer.
    DowngradeGivesUp,
    /// An inbox is believed to be heard though a grant is found that was never pushed to it.
    SilentInboxTrusted,

    /// A write under a lease is not counted, so that the lease is handed on while the write has no answer.
    UncountedWrite,

    // Of the calls.
    /// A repeated call gets a fresh id.
    RepeatedUnderFreshId,
    /// A call about a run or a leadership is sent after the leave of its claim.
    SavedAfterLeave,
    /// The answer to a call is given to another one.
    AnswerToAnotherCall,
    /// A watch is lost with its connection.
    WatchLostWithConnection,
    /// An answer is not given to a caller that came after the sender read its clock. Its call is sent again.
    SenderClockBelieved,

    // Of the ledger.
    /// A hand-off keeps the old grant number.
    NumberKeptOnHandOff,
    /// A waiter that was not heard of is granted all the same.
    DeadHeadGranted,
    /// A free key with a queue stays as it is.
    NeverSettled,
    /// A leave frees whatever it finds.
    LeaveByAnyone,
    /// A claim is executed however late it is.
    LateClaimExecuted,
    /// A job has no watermark: whoever comes when it is free runs it.
    NoMark,
    /// Whether a tick is early is left to the nodes' clocks.
    EarlyTickGranted,
    /// A tick that is over is handed to its standby.
    FinishedTickHandedOver,
    /// Nobody stands by for a tick: who comes second is told busy.
    NoStandby,
    /// A tick that was begun is granted to nobody who stands by for it.
    StandbyNeverGranted,
    /// Whoever stands by for a tick is not told that it is over.
    StandbyNeverTold,
    /// A lock that is left free for others is left free for ever.
    LeftFreeForEver,
    /// A lock that is handed on and on is never left free.
    NeverLeftFree,
    /// Nobody who asks is told of a tick that was begun and has not ended.
    OpenTickUntold,
    /// A reader joins other readers past a writer that waits.
    ReaderJoinsPastWriter,
    /// A writer that becomes a reader gives the lock away and takes it again.
    DowngradeLetsGo,
    /// A lease is passed on by whoever asks for it, its owner or not.
    AdoptedTwice,
    /// Who takes a lease over has the number of its owner before.
    AdoptKeepsNumber,
    /// A lease that is to last for longer ends sooner, where so much was left of it.
    ExtendShortens,
    /// Who stood by for a tick that was brought back is granted it before its time comes again.
    TickBroughtBackGranted,
    /// Who owns a job, and who won a tick, is known by the node alone.
    JobByNode,
    /// Who leaves without having any gives back a permit of somebody else's.
    PermitReleasedTwice,
    /// A permit whose lease has ended is renewed, whoever was given it.
    EndedPermitRenewed,
    /// Of claims that go together those are granted that can be.
    HalfGranted,
    /// Of claims that go together a reader counts as granted though a writer waits before it.
    TogetherPastWriter,
    /// Of claims that go together a reader counts as one that writes: others must not read.
    TogetherAsWriter,
    /// A tick that would wait until an earlier one has ended is skipped.
    QueuedTickSkipped,
    /// Whoever stood by for a tick that was run, and hears of it when the next has begun, is told that it was skipped.
    RunTickCalledSkipped,
    /// A tick is granted though an earlier one is to be run first.
    EarlierTickPassedOver,
    /// Where none is passed over, a tick that was skipped is to be run before the next.
    SkippedTickAwaited,
    /// What a run leaves is kept whoever owns the job by then.
    CheckpointOfLoser,
    /// What the runs of a tick left is shown to those of the next.
    CheckpointOutlivesTick,
    /// A store that lost what it had acknowledged does not hear of it from those who know.
    LossBelieved,
    /// What is to be written under a lease is written, whether or not that is current.
    WriteUnchecked,
    /// What is to be written under several leases is written if the first of them is current.
    FirstLeaseChecked,
    /// A count-down that comes again counts again.
    CountedAgain,
    /// A count-down counts in a generation that was set after it was called for.
    CountedLate,
    /// A latch at zero is set again before its life is over.
    LatchSetAgain,
    /// What a leader proclaimed is told of the next one.
    ProclaimedOutlivesLeader,
    /// The value of a candidate that has to wait for its turn is forgotten.
    QueuedValueForgotten,
    /// What a leader proclaimed replaces something later of the same leader.
    ProclaimedLate,

    // Of the session.
    /// Not-after is worked out from the first reading of the server's clock, for ever.
    NotAfterFromOldReading,
    /// An unanswered claim counts as late when it was sent.
    LateAfterTooEarly,
    /// A connection that was given up is used beside its successor.
    ConnectionBesideSuccessor,
    /// A reply is taken for that of the oldest batch under way.
    ReplyToAnotherBatch,
    /// Owners' renewals wait behind whatever came before them.
    RenewalBehindQueue,
    /// A claim goes before our own leave of its key that it follows.
    ClaimBeforeLeave,
    /// What is under way on a connection that is given up is forgotten.
    ForgottenWithConnection,
    /// A batch that met a server without the script is sent again as it was, when its claims may long be late.
    ReloadWithoutBound,
}

impl Flaw {
    /// All of them.
    pub const ALL: &[Flaw] = Flaw::VARIANTS;
}
