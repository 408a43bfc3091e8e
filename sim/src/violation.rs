//! The list of violations: what must never happen.

use strum::VariantArray;

/// What must never happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, VariantArray)]
#[non_exhaustive]
pub enum Violation {
    /// Two guards of one key answer *held* at one instant, and at least one of them is exclusive.
    TwoHolders,
    /// More permits are held than exist.
    TooManyPermits,
    /// A reader was granted before an earlier writer, or a request for few permits before an earlier one for
    /// many.
    QueueJumped,
    /// A lease is kept without a holder although it was recalled, its record has no mark, no recall would arrive, or its renewal
    /// was due.
    KeptTooLong,
    /// A lease was adopted twice.
    AdoptedTwice,
    /// A recovery began again in one reign, although nothing was lost meanwhile.
    RecoveryRepeated,
    /// A writer was granted between a writer and its continuation as a reader.
    WriterBetween,
    /// A guard answers *held*, and the server's record belongs to another claim.
    RecordOfAnother,
    /// Two runs of one job go on at once.
    TwoRuns,
    /// A tick that ended well is granted again.
    TickRunAgain,
    /// A run began before its time.
    TickEarly,
    /// Marks went back, attempts were miscounted, or the wrong request skipped or finished a tick.
    TickOrder,
    /// A tick was granted in a pause of its job, or a tick of a pause after it.
    PausedTickGranted,
    /// A triggered tick was granted that no operator wants, or it is wanted after its end.
    TriggerRunAgain,
    /// A tick was skipped because of a triggered run.
    TickSkippedForTrigger,
    /// The history of a job does not show its grants, or an end that another request wrote.
    HistoryWrong,
    /// A tick is pursued and not run.
    TickNotRun,
    /// A standby is not told that its tick is over.
    StandbyNotTold,
    /// A tick was given up that may still be run.
    TickGivenUp,
    /// A tick was begun, has not ended, and no node pursues it.
    TickAbandoned,
    /// A claim of a tick was kept although its server recovers: later ticks come meanwhile.
    TickKeptInRecovery,
    /// A node was told a wrong time at which the store first saw its expression.
    FirstSeenMoved,
    /// A tick was granted before an earlier one that must run first.
    TickPassedOver,
    /// A checkpoint was kept of a run that did not own its tick.
    CheckpointOfNonOwner,
    /// A run was shown the checkpoint of another tick.
    CheckpointOfAnotherTick,
    /// A run was not shown the checkpoint of an earlier run of its tick.
    CheckpointForgotten,
    /// A tick may be granted again although a node reported that it is over.
    LossNotMended,
    /// A fence does not exceed an earlier one.
    FenceOrder,
    /// An assertion changed the end of a lease that the server knew.
    AssertionChangedEnd,
    /// A record was changed by a request that does not own it.
    ChangedByNonOwner,
    /// One claim number was granted twice.
    ClaimNumberReused,
    /// A lost ticket is held again.
    LostLeaseRevived,
    /// A caller was told something impossible, or not told something it must know.
    WrongAnswer,
    /// No node pursues a record or queue entry.
    OrphanRecord,
    /// A grant went to a waiter whose heartbeat had expired.
    DeadWaiterGranted,
    /// A lock is free while a caller waits for it.
    WaiterAsleep,
    /// A node that knows of its silent inbox still waits for pushes.
    SilentInboxTrusted,
    /// A connection was lost, and the inbox of the node is trusted as before.
    LostInboxTrusted,
    /// A call counted twice in a latch.
    CountedTwice,
    /// A call counted in a generation that was set after it.
    CountedLate,
    /// A latch was set again before its lifetime ended.
    LatchSetTwice,
    /// A caller was told that its call counted, and it did not.
    NotCounted,
    /// A waiter was told of a zero from before it came.
    ZeroToldTooEarly,
    /// A caller waits for a latch that reached zero or is not set.
    ZeroNotTold,
    /// A caller that does not lead proclaimed a value, or a value was reported of another leader.
    ProclaimedByAnother,
    /// An observer was told of a leader or value older than the one it knew.
    LeaderNewsOutOfOrder,
    /// An observer was told of a leader that campaigned with a value, and not of the value.
    LeaderWithoutValue,
    /// An asking observer is not told of the leader or its value.
    LeaderNotTold,
    /// A resting caller claims too early, or a rested one never claims.
    RestIgnored,
    /// A lock is handed on for long and never left free.
    NeverLeftFree,
    /// Something is left at the end.
    LeftOver,
    /// Requests are sent without end.
    EndlessRequests,
    /// A request is sent on a connection that was given up or has a successor.
    OldConnectionUsed,
    /// A claim is sent before an earlier leave of its key by the same node.
    LeaveOvertaken,
    /// The leave of a claim is sent before a call about that claim that was queued earlier.
    CallOvertaken,
    /// A call is sent again after its answer.
    SentAgain,
    /// A request is neither answered nor reported, or is reported twice.
    Unanswered,
    /// A lease is lost in a calm, although its owner is alive.
    LostInCalm,
    /// A lease is held for longer than its caller allows.
    HeldTooLong,
    /// A caller's own lease is handed on to another caller of its process.
    SoloLeaseShared,
    /// Some claims of a group were granted and others not, or none although all keys are free.
    GroupSplit,
    /// A caller is told of an error of a healthy store.
    DeniedInCalm,
    /// A claim that asserted its lease still waits for the key.
    OwnerQueued,
    /// An inbox stays at a server that is no longer the master.
    InboxLeftBehind,
    /// A silent connection stays in use.
    SilentConnectionKept,
    /// A write is executed after a later holder was granted its key.
    WriteOrder,
    /// A caller was told that its request was not executed, and it was.
    ExecutedCallReportedRefused,
    /// A holder was told that its lease is gone, and the store still had it.
    ValidLeaseReportedGone,
}
