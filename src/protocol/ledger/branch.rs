//! What rare branches the rules of a store have.

/// What rare branches were taken; the simulator adds them up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[doc(hidden)]
pub enum Branch {
    /// A claim or yield came after its not-after.
    LateRefused,
    /// A waiter was passed over because it was not heard of.
    StalePassedOver,
    /// A waiter was passed over because nobody listens for it.
    DeafPassedOver,
    /// An entry was removed, one lease after its last heartbeat.
    DeadRemoved,
    /// A free key with a queue was given to a waiter other than the caller.
    SettledForAnother,
    /// A yield came for a number that no longer owns.
    YieldRepeated,
    /// A waiter was told that the owner does not know the queue.
    QueuedBehindForeign,
    /// A leave handed the lock over.
    HandedOver,
    /// A lock was left free for who only looks now and then.
    LeftFree,
    /// A claim or a waiter came while a lock was left free.
    MetLeftFree,
    /// Somebody joined those who share a key.
    Joined,
    /// Somebody waits who could share a key, as another was there before.
    JoinRefused,
    /// A writer went on as a reader.
    Downgraded,
    /// A lease went from its owner to another.
    Passed,
    /// The same was asked for again.
    PassRepeated,
    /// A lease was to go from somebody who has it no more.
    PassRefused,
    /// A lease was to last for longer.
    Lengthened,
    /// Permits were granted while somebody held some as of another number.
    UnlikeCapacity,
    /// An owner asked again and got the same number.
    AskedAgain,
    /// A tick was asked for that is over.
    TickOver,
    /// Somebody was told that a tick was never begun, and never is.
    SkippedTold,
    /// A tick was asked for before its time.
    TickEarly,
    /// A tick came while an earlier one was running.
    TickSkipped,
    /// A tick was granted once more, as its winner did not finish it.
    TickTakenOver,
    /// A tick was finished by a winner whose record had ended.
    TickFinishedLate,
    /// A tick was to be finished by a claim that is not its latest winner.
    TickFinishedByAnother,
    /// The claim of a tick came after its not-after.
    TickLate,
    /// A tick was granted while an earlier one had not ended well, which is now never run again.
    TickOvertaken,
    /// Somebody stood by for a tick that was over.
    StandbyDropped,
    /// Who stood by for a tick that was brought back went out of the queue: its time comes again.
    StandbyEarly,
    /// Somebody who had stood by for a tick was told that it is over.
    StandbyTold,
    /// Somebody who asked was told of a tick that was begun and had not ended well.
    OpenTold,
    /// Nobody is told of such a tick, as it is too old.
    OpenTooOld,
    /// Somebody was told that another fingerprint is kept.
    OtherFingerprint,
    /// A mark that lay ahead of the store's clock was brought back.
    MarkReset,
    /// A key that could be had was not granted as another of the claims that go together could not be.
    LeftApart,
    /// A tick waits until an earlier one has ended.
    TickQueued,
    /// A tick was refused, as an earlier one is to be run first.
    TickBehind,
    /// A tick was asked for after one that was skipped, where none is passed over.
    TickAfterSkipped,
    /// What a run left was kept.
    Saved,
    /// What a run left came behind something later of the same run.
    SavedBefore,
    /// Who asked about its run owns the job no more.
    NotOwner,
    /// Whoever runs a tick again was told what an earlier run of it had left.
    Resumed,
    /// A tick that the asker knew to be over was open.
    LossMended,
    /// A latch was set again by the call that had set it.
    LatchSetBefore,
    /// A latch at zero was not set again.
    LatchSetOnce,
    /// A count-down came again.
    LatchCountedBefore,
    /// A call came for a latch that was set at about its time.
    LatchSetMeanwhile,
    /// The same, and an earlier request of it may have been executed.
    LatchUncertain,
    /// A call came for a generation that is over.
    LatchOver,
    /// Who waits for a generation was told that nothing is known of it, when another was set.
    LatchLost,
    /// Who knows who leads waits for news of it.
    LeaderWatched,
    /// A leader proclaimed something.
    Proclaimed,
    /// The value with which the new leader campaigned was proclaimed.
    ProclaimedByWinner,
    /// What a leader proclaimed came behind something later, or again.
    ProclaimedBefore,
    /// Somebody who does not lead proclaimed something.
    ProclaimRefused,
}
