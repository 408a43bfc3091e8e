//! The list of violations: what must never happen.

/// What must never happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Wrong {
    /// Two guards of one key answer *held* at one instant, and at least one of them is exclusive.
    TwoHolders,
    /// More permits are held than exist.
    TooMany,
    /// A reader was granted before an earlier writer, or a request for few permits before an earlier one for
    /// many.
    Passed,
    /// A lease was adopted twice.
    AdoptedTwice,
    /// A writer was granted between a writer and its continuation as a reader.
    Between,
    /// A guard answers *held*, and the server's record belongs to another claim.
    Unbacked,
    /// Two runs of one job go on at once.
    TwoRuns,
    /// A tick that ended well is granted again.
    TickAgain,
    /// A run began before its time.
    TickEarly,
    /// Marks went back, attempts were miscounted, or the wrong request skipped or finished a tick.
    TickOrder,
    /// A tick is pursued and not run.
    TickAsleep,
    /// A standby is not told that its tick is over.
    TickUntold,
    /// A tick was given up that may still be run.
    TickDropped,
    /// A tick was begun, has not ended, and no node pursues it.
    TickAbandoned,
    /// A tick was granted before an earlier one that must run first.
    TickPassedOver,
    /// A checkpoint was kept of a run that did not own its tick.
    CheckpointKept,
    /// A run was shown the checkpoint of another tick.
    CheckpointOfAnother,
    /// A run was not shown the checkpoint of an earlier run of its tick.
    CheckpointForgotten,
    /// A tick may be granted again although a node reported that it is over.
    LossBelieved,
    /// A fence does not exceed an earlier one.
    Fence,
    /// A record was changed by a request that does not own it.
    NotTheOwner,
    /// One claim number was granted twice.
    NumberTwice,
    /// A lost ticket is held again.
    Revived,
    /// A caller was told something impossible, or not told something it must know.
    Outcome,
    /// No node pursues a record or queue entry.
    Orphan,
    /// A grant went to a waiter whose heartbeat had expired.
    DeadGranted,
    /// A lock is free while a caller waits for it.
    Asleep,
    /// A node that knows of its silent inbox still waits for pushes.
    Unheard,
    /// A call counted twice in a latch.
    CountedTwice,
    /// A call counted in a generation that was set after it.
    CountedLate,
    /// A latch was set again before its lifetime ended.
    SetTwice,
    /// A caller was told that its call counted, and it did not.
    NotCounted,
    /// A waiter was told of a zero from before it came.
    BeforeZero,
    /// A caller waits for a latch that reached zero or is not set.
    PastZero,
    /// A caller that does not lead proclaimed a value, or a value was reported of another leader.
    ProclaimedByAnother,
    /// An observer was told of a leader or value older than the one it knew.
    ToldBack,
    /// An asking observer is not told of the leader or its value.
    LeaderUntold,
    /// A resting caller claims too early, or a rested one never claims.
    Restless,
    /// A lock is handed on and on and never left free.
    NeverFree,
    /// Something is left at the end.
    LeftOver,
    /// Requests are sent without end.
    Storm,
    /// A request is sent on a connection that was given up or has a successor.
    Beside,
    /// A claim is sent before an earlier leave of its key by the same node.
    Overtaken,
    /// The leave of a claim is sent before a call about that claim that was queued earlier.
    LeftBefore,
    /// A call is sent again after its answer.
    SentAgain,
    /// A request is neither answered nor reported, or is reported twice.
    Unanswered,
    /// A lease is lost in a calm, although its owner is alive.
    LostInCalm,
    /// A lease is held for longer than its caller allows.
    HeldTooLong,
    /// A caller's own lease is handed on to another caller of its process.
    Shared,
    /// Some claims of a group were granted and others not, or none although all keys are free.
    Half,
    /// A caller is told of an error of a healthy store.
    DeniedInCalm,
    /// A silent connection stays in use.
    Unnoticed,
    /// A write is executed after a later holder was granted its key.
    WriteOrder,
    /// A caller was told that its request was not executed, and it was.
    ToldRefused,
    /// A holder was told that its lease is gone, and the store still had it.
    GivenUp,
}

impl Wrong {
    /// All violations.
    pub const ALL: [Wrong; 51] = [
        Wrong::HeldTooLong,
        Wrong::TwoHolders,
        Wrong::TooMany,
        Wrong::Passed,
        Wrong::AdoptedTwice,
        Wrong::Between,
        Wrong::Unbacked,
        Wrong::TwoRuns,
        Wrong::TickAgain,
        Wrong::TickEarly,
        Wrong::TickOrder,
        Wrong::TickAsleep,
        Wrong::TickUntold,
        Wrong::TickDropped,
        Wrong::TickAbandoned,
        Wrong::LossBelieved,
        Wrong::Fence,
        Wrong::NotTheOwner,
        Wrong::NumberTwice,
        Wrong::Revived,
        Wrong::Outcome,
        Wrong::Orphan,
        Wrong::DeadGranted,
        Wrong::Asleep,
        Wrong::Unheard,
        Wrong::CountedTwice,
        Wrong::CountedLate,
        Wrong::SetTwice,
        Wrong::NotCounted,
        Wrong::BeforeZero,
        Wrong::PastZero,
        Wrong::ProclaimedByAnother,
        Wrong::ToldBack,
        Wrong::LeaderUntold,
        Wrong::Restless,
        Wrong::NeverFree,
        Wrong::LeftOver,
        Wrong::Storm,
        Wrong::Beside,
        Wrong::Overtaken,
        Wrong::LeftBefore,
        Wrong::SentAgain,
        Wrong::Unanswered,
        Wrong::LostInCalm,
        Wrong::Shared,
        Wrong::Half,
        Wrong::DeniedInCalm,
        Wrong::Unnoticed,
        Wrong::WriteOrder,
        Wrong::ToldRefused,
        Wrong::GivenUp,
    ];
}
