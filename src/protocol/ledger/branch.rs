//! The rare branches of a store's rules.

/// The rare branches that the latest step of a ledger took. The simulator and the differential tests count them; every
/// other build notes none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Branches {
    #[cfg(any(feature = "_sim", feature = "testing"))]
    list: Vec<Branch>,
}

#[cfg(any(feature = "_sim", feature = "testing"))]
impl Branches {
    pub(crate) fn begin_step(&mut self) {
        self.list.clear();
    }

    pub(crate) fn note(&mut self, branch: Branch) {
        self.list.push(branch);
    }

    pub(crate) fn as_slice(&self) -> &[Branch] {
        &self.list
    }
}

#[cfg(not(any(feature = "_sim", feature = "testing")))]
impl Branches {
    pub(crate) fn begin_step(&mut self) {}

    pub(crate) fn note(&mut self, _: Branch) {}

    pub(crate) fn as_slice(&self) -> &[Branch] {
        &[]
    }
}

/// A rare branch that a request took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[doc(hidden)]
pub enum Branch {
    /// A claim or yield was executed after its not-after, so it was refused.
    LateRefused,
    /// A waiter was passed over because its heartbeats are stale.
    StalePassedOver,
    /// A waiter was passed over because its node has no open inbox.
    DeafPassedOver,
    /// A waiter was removed, one lease after its last heartbeat.
    DeadRemoved,
    /// A free key was granted to a waiter other than the caller.
    SettledForAnother,
    /// A yield came for a claim that no longer owns the key.
    YieldRepeated,
    /// A waiter was told that the owner does not know the queue.
    QueuedBehindForeign,
    /// A key was handed over to a waiter.
    HandedOver,
    /// An owner that may keep its lease learned that another claim wants the key.
    Recalled,
    /// A lock was left free for clients that poll.
    LeftFree,
    /// A claim or a waiter came while a lock was left free.
    MetLeftFree,
    /// A claim joined the present holders of a key.
    Joined,
    /// A claim that could share the key queues behind an earlier waiter.
    JoinRefused,
    /// A writer became a reader.
    Downgraded,
    /// A lease passed from its owner to another claim.
    Passed,
    /// An operator revoked a lease.
    Revoked,
    /// The holder of a revoked lease learned of it by its renewal.
    RevokedTold,
    /// A pass was repeated after it had been executed.
    PassRepeated,
    /// A pass named a claim that no longer owns the lease.
    PassRefused,
    /// A lease was extended for another claim's call.
    Lengthened,
    /// Permits were granted although a current holder recorded another capacity.
    CapacityDiffers,
    /// An owner repeated its request and got the same number.
    AskedAgain,
    /// A claim named a tick that is over.
    TickOver,
    /// A claim learned that its tick was skipped and never runs.
    SkippedTold,
    /// A claim came before the time of its tick.
    TickEarly,
    /// A tick came while an earlier one was running, and was skipped.
    TickSkipped,
    /// A tick was granted again, because its winner did not finish it.
    TickTakenOver,
    /// A tick was finished by its winner after the record had ended.
    TickFinishedLate,
    /// A claim that is not the latest winner tried to finish a tick.
    TickFinishedByAnother,
    /// A claim of a tick was refused, because its job is paused.
    TickPaused,
    /// A waiter was removed because its job is paused.
    StandbyPaused,
    /// An owner handed its tick over before the run had ended.
    TickHandedOver,
    /// A run was not ended again: its end was written before, or its grant is not known.
    RunEndedBefore,
    /// A run ended after a reset had set the mark to another time.
    ResetRunEnded,
    /// The first look of a node removed a node that was gone.
    GoneNodeForgotten,
    /// The claim of a tick was executed after its not-after, so it was refused.
    TickLate,
    /// A tick was granted while an earlier one was unfinished, which now never runs again.
    TickOvertaken,
    /// A waiter was removed because its tick was over.
    StandbyDropped,
    /// A triggered tick waits for the end of a tick of the schedule.
    TriggerBehindTick,
    /// A tick of the schedule waits for the end of a triggered run.
    TickBehindTrigger,
    /// A triggered tick was granted.
    TriggerGranted,
    /// A node was told whether its run was cancelled.
    EndingTold,
    /// A run of a triggered tick ended it.
    TriggerFinished,
    /// A waiter was removed because a reset moved its tick into the future.
    StandbyEarly,
    /// A former waiter learned that its tick is over.
    StandbyTold,
    /// A call learned of an unfinished tick.
    OpenTold,
    /// A call learned that the stored fingerprint differs from its own.
    OtherFingerprint,
    /// An expression that was replaced a short time ago came back.
    ExpressionReturned,
    /// A mark ahead of the store's clock was set back to the clock.
    MarkReset,
    /// A claim was refused only because another claim of its group was refused.
    GroupRefused,
    /// A tick waits until an earlier one has ended.
    TickQueued,
    /// A tick was refused, because an earlier one must run first.
    TickBehind,
    /// A tick was granted after a skipped one, for a job that runs every tick in order.
    TickAfterSkipped,
    /// A checkpoint was saved.
    Saved,
    /// A checkpoint came after a later one of the same run, and was dropped.
    SavedBefore,
    /// A call about a run came from a claim that no longer owns the job.
    NotOwner,
    /// A run got the checkpoint of an earlier run of its tick.
    Resumed,
    /// A tick that the caller knew to be over was open in the store, which had lost its newer state.
    LossMended,
    /// A call that had set the latch was repeated.
    LatchSetBefore,
    /// A latch at zero was not set again.
    LatchSetOnce,
    /// A count-down was repeated, and counted once.
    LatchCountedBefore,
    /// A count-down came for a latch that was set at about the time of the call.
    LatchSetMeanwhile,
    /// A repeated count-down came for such a latch, and its earlier request may have been executed.
    LatchUncertain,
    /// A count-down came for a generation that is over.
    LatchOver,
    /// A waiter asked about a generation that was replaced by another.
    LatchLost,
    /// An observer that knows the present leader began to watch.
    LeaderWatched,
    /// A leader proclaimed a value.
    Proclaimed,
    /// The value with which the new leader campaigned was proclaimed.
    ProclaimedByWinner,
    /// A proclaimed value came after a later one, or a second time.
    ProclaimedBefore,
    /// A claim that does not lead tried to proclaim a value.
    ProclaimRefused,
    /// A node had seen a higher number than the server gave, so a recovery began.
    RecoveryByClock,
    /// An owner renewed under a higher number than the server gave, and had no record, so a recovery began.
    RecoveryByOwner,
    /// An owner's lost record was written again.
    Asserted,
    /// An assertion came after its not-after.
    AssertionLate,
    /// A claim came while the server recovered.
    ClaimHeldBack,
    /// An adoption came while the server recovered.
    AdoptionHeldBack,
    /// A master of a quorum that recovers gave no vote.
    VoteHeldBack,
    /// A quorum's renewal wrote the record again.
    Restored,
    /// A quorum's renewal would have written the record again, and came after its not-after.
    RestoredLate,
}
