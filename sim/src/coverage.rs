//! Coverage: the cases that must be met. A simulator that never meets a case cannot test it.

use tenure::error::StoreErrorKind;
use tenure::protocol::ledger::Branch;
use tenure::protocol::message::LatchReport;
use tenure::protocol::session::step::SessionEvent;
use tenure::protocol::step::KeyEvent;

macro_rules! counters {
    ($($name:ident: $text:literal,)+) => {
        /// A fault or a rare branch that worlds must meet.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "each variant has a text")]
        #[non_exhaustive]
        pub enum Case { $($name,)+ }

        const ALL: &[(Case, &str)] = &[$((Case::$name, $text),)+];
    };
}

counters! {
    HandedOn: "handed on to the next caller of the process",
    PushUsed: "pushed grant used at once",
    PushConfirming: "pushed grant confirmed before use",
    PushStale: "push for a dead number ignored",
    UnknownLeft: "grant for an unknown number left",
    FoundGranted: "waiting claim found granted by its renewal",
    PushMissed: "missed push found",
    Renewed: "lease renewed",
    RenewFailed: "renewal failed",
    Asking: "answer to a claim lost, and asked for",
    Late: "claim refused as late (key machine)",
    UnansweredClaimLeft: "unanswered claim left once more",
    Requeued: "waiting claim forgotten by the store, claimed again",
    Yielded: "lease yielded after a burst",
    TooShort: "grant yielded, as the first waiter wants a longer lease",
    LeaveRepeated: "leave repeated",
    LeaveFailed: "leave given up",
    AnswerStale: "granted answer too old to be used",
    WaitFailed: "waiting claim not renewed",
    LateRefused: "claim refused as late (ledger)",
    StalePassedOver: "stale waiter passed over",
    DeafPassedOver: "waiter without inbox passed over",
    DeadRemoved: "dead entry removed",
    SettledForAnother: "free key granted to another claim than the request's",
    YieldRepeated: "yield by a claim that is not the owner",
    QueuedBehindForeign: "waiter told that the owner is a foreign client",
    HandedOver: "handed over to another claim",
    LeftFree: "key left free after many hand-overs",
    ClaimedWhileLeftFree: "key claimed while it was left free",
    Joined: "readers joined by another reader",
    JoinRefused: "reader queued beside readers, as a waiter came earlier",
    Downgraded: "writer continued as a reader",
    Passed: "lease passed to another",
    PassRepeated: "repeated pass of a lease",
    PassRefused: "pass refused, as the lease was gone",
    Lengthened: "lease extended by a caller of its transfer",
    TransferSent: "transfer sent",
    Adopted: "transferred lease adopted",
    NotAdopted: "transferred lease not adopted",
    OwnerAnswered: "caller told about the lease of another",
    OwnerTold: "lease of another extended or released",
    OwnerGone: "lease of another gone before its extension or release",
    UnlikeCapacity: "permits granted beside holders with another capacity",
    UnlikeTold: "node told of another capacity",
    InUseTold: "caller told how many permits are in use",
    SharesOfNodes: "permits of one key held by several nodes",
    DeniedLost: "writer lost its lease before it could continue as a reader",
    ReadersOfANode: "several readers of a node under one lease",
    AskedAgain: "owner claimed again",
    TickOver: "tick claimed that is over",
    SkippedTold: "tick claimed that was skipped",
    TickEarly: "tick claimed before its time",
    TickSkipped: "tick skipped, as an earlier one was running",
    TickTakenOver: "tick granted once more",
    TickFinishedLate: "tick finished after its record had expired",
    TickFinishedByAnother: "tick finished by a claim that is not its latest winner",
    TickLate: "claim of a tick refused as late",
    TickOvertaken: "open tick overtaken by a later one",
    TickFiredTwice: "node fired one tick twice",
    TickFiredLate: "node fired an earlier tick after a later one",
    TickMissed: "tick given up, as a later one fired while the store was unavailable",
    TickTakenOverBySameNode: "tick granted once more to the node that had won it",
    TickTakenOverUnqueued: "tick granted once more by a store without a queue",
    StandbyDropped: "standby dropped by the store, as its tick was over",
    StandbyEarly: "standby dropped by the store, as its tick was reset",
    StandbyTold: "standby told that its tick is over",
    OpenTold: "node told of an open tick",
    DeniedBehind: "caller told that another tick must run first",
    TickQueued: "tick queued until an earlier one ends",
    TickBehind: "tick refused, as an earlier one must run first",
    TickAfterSkipped: "tick granted after a skipped one, where every tick must run",
    Reported: "question answered",
    Saved: "checkpoint saved",
    SavedBefore: "stale checkpoint ignored",
    SavedTold: "run told that its checkpoint is saved",
    NotOwner: "run told that it does not own its tick",
    Resumed: "run told of a checkpoint",
    ResumedByAnother: "run told of the checkpoint of another run",
    OtherFingerprint: "node told of another fingerprint",
    ExpressionReturned: "an expression came back soon",
    GroupGranted: "group of claims granted",
    GroupMixed: "group of claims granted, with reads and writes",
    GroupJoined: "reader of a group joined other readers",
    LeftApart: "free key not granted, as another key of the group is not free",
    MarkReset: "mark ahead of the server's clock reset",
    ServerWentBack: "server came back with an older copy of a job",
    LossMended: "store told of a finished tick that it had forgotten",
    LatchSetBefore: "latch set again by the call that had set it",
    LatchSetOnce: "latch at zero not set again",
    LatchCountedBefore: "repeated count-down did not count again",
    LatchSetMeanwhile: "call for a latch that was set at about the same time",
    LatchUncertain: "such a call that may have been executed before",
    LatchOver: "call for a latch that is over",
    LatchLost: "waiter told that its latch is gone, as another was set",
    LatchSet: "caller told that it set a latch",
    LatchLeft: "caller told how many count-downs are left",
    LatchZero: "caller told that a latch is at zero",
    LatchUnset: "caller told that a latch is not set",
    LatchRefused: "caller told that its call did nothing",
    Led: "candidate leads",
    LedRested: "candidate leads after a rest",
    Rested: "caller rests before it claims or asks",
    LeaderKilled: "leader killed in a calm",
    LeaderAnswered: "caller told of the leader",
    LeaderTold: "observer told of a leader without a proclamation",
    NextLeaderTold: "observer told of a new leader",
    NoLeaderTold: "observer told that there is no leader",
    ProclaimedTold: "observer told of a proclamation",
    OutsideObserverTold: "observer of a node without candidates told of the leader",
    LeaderWatched: "observer waits for news",
    Proclaimed: "value proclaimed",
    ProclaimedByWinner: "value of a candidate proclaimed in the step in which it won",
    ValueOfWinnerTold: "observer told of a leader that campaigned with a value",
    ProclaimedBefore: "stale or repeated proclamation ignored",
    ProclaimRefused: "proclamation of a caller that does not lead refused",
    NewsPushed: "news pushed to a watching node",
    OpenTooOld: "node not told of an open tick, as it is too old",
    TickReopened: "open tick pursued by another node",
    PursuersKilled: "all pursuers of a tick killed while it was run",
    StandbyBusy: "standby told busy by a store without a queue",
    WinnerKilled: "winner of a tick killed in a calm",
    WinnerReplaced: "tick of a killed winner run by a standby",
    DeniedSkipped: "caller told that the tick is skipped",
    DeniedOver: "caller told that the tick is over",
    DeniedNeverBegun: "caller told that the tick was never begun",
    DeniedEarly: "caller told that the tick is early",
    LostCallAnswer: "answer lost after execution: call",
    LostFinishAnswer: "answer lost after execution: finish",
    Retired: "scheduler shut down",
    TickRun: "tick run to its end",
    TickLost: "run lost its lease",
    Granted: "caller granted",
    GrantedFixed: "fixed lease granted",
    DeniedBusy: "caller told busy",
    DeniedFull: "caller told that the queue is full",
    DeniedNodeFull: "caller told that too many callers of its process wait",
    DeniedStore: "caller told of an error of the store",
    DeniedClosed: "caller told that the node closes",
    LostDeadline: "lost by its deadline",
    LostGone: "lost, as the store reported it gone",
    LostEnded: "fixed lease ended",
    RenewalAsked: "holder of a fixed lease asked for its renewal",
    RenewalAnswered: "holder of a fixed lease told of its renewal",
    RenewalFailed: "holder of a fixed lease told that its renewal failed",
    RenewalLost: "holder of a fixed lease told of its loss by its renewal",
    TakenUpLost: "grant taken up after its loss",
    LostRevoked: "lost, as an operator revoked it",
    Asked: "holder asked for its lease by an operator",
    Revoked: "lease revoked",
    RevokedTold: "holder of a revoked lease told by its renewal",
    LostOverdue: "lost, as it was held for longer than allowed",
    NeverTakenUp: "grant never taken up and released",
    LostShutdown: "lost in shutdown",
    ReleaseKept: "release: held to the end",
    ReleaseLost: "release: lost",
    ReleaseFailed: "release: store not reached",
    CancelWaiting: "waiter cancelled",
    CancelInFlight: "waiter cancelled with a request in flight",
    CancelHolder: "guard dropped",
    Crash: "node crashed",
    CrashHolding: "node crashed with a guard",
    PauseShort: "node paused for less than its lease",
    PauseLong: "node paused for longer than its lease",
    WokeLost: "first look after a pause: lost",
    WokeHeld: "first look after a pause: held",
    Close: "node closed",
    CloseBesideRuns: "node closed while runs go on",
    Partition: "node cut off",
    Stall: "connection stalled",
    Reset: "connection reset",
    GivenUp: "silent connection given up",
    TimedOut: "request timed out, its connection kept",
    Bystander: "request failed, as its connection broke or was given up for others",
    ManyInFlight: "sixteen batches in flight",
    BatchOfMany: "batch of several requests",
    Ping: "server asked for a sign of life",
    ProbeAnswered: "probe answered",
    ProbeFailed: "probe failed",
    Silent: "connection falls silent",
    ConnectSilent: "connection that neither opens nor fails",
    ConnectClosing: "connection opened by a node that closes",
    SubscribeSilent: "subscription that neither opens nor fails",
    InboxSilent: "inbox falls silent",
    InboxPing: "inbox asked for a sign of life",
    InboxPong: "inbox gave a sign of life",
    InboxRefused: "inbox refused",
    Reload: "batch sent again with its script",
    ReloadOvertaken: "batch sent again with its script, after later batches",
    ReloadFailed: "script unknown twice in a row",
    Loading: "server refused batches while loading",
    ReadOnly: "server refused writes as a replica",
    Locked: "server refused connections: passwords or too many clients",
    Killed: "connection or inbox killed soon after it opened",
    OpenedTooLate: "connection opened after its attempt was given up",
    AnsweredTooLate: "answer on a connection that was given up",
    Crowd: "worlds with more requests than the server can serve",
    LateExecution: "batch executed after it was given up",
    AnswerDiscarded: "answer of an abandoned connection discarded",
    LostClaimAnswer: "answer lost after execution: claim",
    LostRenewAnswer: "answer lost after execution: renew",
    LostLeaveAnswer: "answer lost after execution: leave",
    LostPassAnswer: "answer lost after execution: pass",
    LostYieldAnswer: "answer lost after execution: yield",
    Duplicate: "requests executed twice",
    DuplicateYield: "yield executed twice",
    KnownDown: "request refused, as the server is known to be down",
    ConnectFailed: "connection refused",
    NotWritten: "request failed before it was written",
    Reconnect: "connection made again",
    PushLost: "push lost",
    PushHeld: "push delayed for long",
    PushTwice: "push delivered twice",
    PushBeforeAnswer: "push before the answer \"queued\"",
    Resubscribed: "inbox opened again",
    ServerStall: "server stalled",
    ServerRestart: "server restarted with its memory",
    ServerForgot: "server restarted empty",
    ServerRefused: "server refused requests",
    StillHeld: "pass refused by the server, and its holder continued",
    ClockSmall: "server's clock stepped within the margin",
    ClockForward: "server's clock stepped forward",
    ClockBack: "server's clock stepped back",
    ForeignDelete: "foreign client deleted a record",
    ForeignTake: "foreign client overwrote a record",
    ForeignType: "foreign client stored another type",
    WriteDone: "write executed",
    WriteRefused: "write refused, as its lease was not current",
    WriteOfSeveralDone: "write under several leases executed",
    WriteOfSeveralRefused: "write under several leases refused, as one was not current",
    WriteTooLate: "write not sent, as its lease was over",
    WriteNotSent: "write not sent without a connection",
    WriteAnswered: "write answered",
    WriteUnanswered: "write without an answer",
    WriteLate: "write arrived after it was given up",
    Calm: "calm periods watched",
    NoQueue: "worlds with a store that cannot queue",
    WeakPush: "worlds with pushes that are not final",
    NoProbe: "worlds with a server that does not know its subscribers",
    RecoveryByClock: "recovery begun, as a node knew a higher number",
    Asserted: "lost lease asserted",
    AssertionLate: "assertion refused as late",
    ClaimHeldBack: "claim held back by a recovery",
    AdoptionHeldBack: "adoption held back by a recovery",
    Abandoned: "connection broken for its node alone",
    LossHidden: "loss hidden by a grant to a node that knew no number",
    FailedOver: "replica promoted",
    MasterReturned: "former master promoted again",
    LinkUnconfirmed: "connection opened, and too few Sentinels confirmed it",
    LinkElsewhere: "connection not opened, as the Sentinels then named another address",
    LinkEnded: "connection ended, as its server is no longer the master",
    Cluster: "worlds with several servers",
    SlotMoved: "slot moved to another server at once",
    SlotMovedInSteps: "slot moved to another server in steps",
    SlotReturned: "slot moved back to a server that it had left",
    MemberReplaced: "server of a cluster replaced by a lagging copy",
    BatchSplit: "batch with requests of several slots",
    Moved: "server said that another serves the slot",
    Unserved: "server said that none serves the slot",
    AskedOrTryAgain: "server said that a slot is on its way",
    AloneAtSource: "request executed with its record alone: where the slot was",
    AloneAtTarget: "request executed with its record alone: where the slot goes",
    AloneLate: "request with its record alone arrived after its batch was given up",
    RedirectedClaim: "not executed, as the slot is elsewhere: claim",
    RedirectedRenew: "not executed, as the slot is elsewhere: renew",
    RedirectedLeave: "not executed, as the slot is elsewhere: leave",
    RedirectedYield: "not executed, as the slot is elsewhere: yield",
    RedirectedPass: "not executed, as the slot is elsewhere: pass",
    RedirectedCall: "not executed, as the slot is elsewhere: call",
    RedirectedWrite: "not executed, as the slot is elsewhere: write",
    MapRefreshed: "node read a changed map of the slots",
    UnsentReleased: "unsent request asked for again, as the map changed",
    PushedTwiceOverBus: "push delivered twice by the bus",
    Quorum: "worlds with a quorum of masters",
    LinkCut: "node cut off one master of a quorum",
    MasterForgot: "master of a quorum restarted empty",
    MasterWentBack: "master of a quorum came back with an older copy of its data",
    VoteHeldBack: "master of a quorum without a vote, as it recovers",
    Restored: "record written again by a renewal of a quorum",
    RestoredLate: "renewal of a quorum refused as late",
    BusCut: "server cut off from the other servers of its cluster",
    StrangerCame: "server of another cluster at the address of a dead one",
    StrangerDoubted: "map of another cluster not believed",
    StrangerRefused: "link to a server of another cluster refused",
    FailedDoubted: "map of a server that serves nothing counted only alone",
}

/// The count of each case.
#[derive(Debug, Clone)]
pub struct Coverage([u64; ALL.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Coverage([0; ALL.len()])
    }
}

impl Coverage {
    /// Counts a case once.
    pub(crate) fn add_one(&mut self, case: Case) {
        self.0[case as usize] += 1;
    }

    /// Adds the counts of another world.
    pub fn add(&mut self, other: &Coverage) {
        for (sum, count) in self.0.iter_mut().zip(other.0) {
            *sum += count;
        }
    }

    /// Returns the texts of the cases that were never met.
    pub fn missing(&self) -> Vec<&'static str> {
        self.table()
            .filter(|(_, count)| *count == 0)
            .map(|(text, _)| text)
            .collect()
    }

    /// Returns the text and the count of each case.
    pub fn table(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ALL.iter().map(|(seen, text)| (*text, self.0[*seen as usize]))
    }

    /// Returns the count of one case.
    pub fn count(&self, seen: Case) -> u64 {
        self.0[seen as usize]
    }
}

impl Case {
    /// Returns the case of an event of a key machine.
    pub(crate) fn notice(notice: &KeyEvent) -> Option<Case> {
        Some(match notice {
            KeyEvent::HandedOn => Case::HandedOn,
            KeyEvent::PushUsed => Case::PushUsed,
            KeyEvent::PushConfirming => Case::PushConfirming,
            KeyEvent::PushStale => Case::PushStale,
            KeyEvent::UnknownLeft => Case::UnknownLeft,
            KeyEvent::FoundGranted => Case::FoundGranted,
            KeyEvent::Renewed { .. } => Case::Renewed,
            KeyEvent::RenewFailed { .. } => Case::RenewFailed,
            KeyEvent::OutcomeQueried => Case::Asking,
            KeyEvent::Late => Case::Late,
            KeyEvent::GhostLeft => Case::UnansweredClaimLeft,
            KeyEvent::Requeued => Case::Requeued,
            KeyEvent::Yielded => Case::Yielded,
            KeyEvent::GrantUnsuitable => Case::TooShort,
            KeyEvent::LeaveRepeated => Case::LeaveRepeated,
            KeyEvent::LeaveFailed { .. } => Case::LeaveFailed,
            KeyEvent::AnswerStale => Case::AnswerStale,
            KeyEvent::WaitFailed { .. } => Case::WaitFailed,
            KeyEvent::CapacityDiffers { .. } => Case::UnlikeTold,
            // Worlds have no forged pushes; scenarios do.
            KeyEvent::PushForged => return None,
            _ => return None,
        })
    }

    /// Returns the case of an answer about a latch.
    pub(crate) fn latch(report: LatchReport) -> Case {
        match report {
            LatchReport::Set => Case::LatchSet,
            LatchReport::Left(0) => Case::LatchZero,
            LatchReport::Left(_) => Case::LatchLeft,
            LatchReport::Unset => Case::LatchUnset,
            LatchReport::SetMeanwhile(_) | LatchReport::Over | LatchReport::Uncertain => Case::LatchRefused,
        }
    }

    /// Returns the case of an event of a session.
    pub(crate) fn of_session(event: &SessionEvent) -> Option<Case> {
        Some(match event {
            SessionEvent::ConnectionLost { error, .. } if *error.kind() == StoreErrorKind::TimedOut => {
                Case::GivenUp
            }
            SessionEvent::TimedOut(_) => Case::TimedOut,
            SessionEvent::Bystanders(_) => Case::Bystander,
            SessionEvent::Down(_) => Case::KnownDown,
            _ => return None,
        })
    }

    /// Returns the case of a branch of the ledger.
    pub(crate) fn branch(branch: Branch) -> Case {
        match branch {
            Branch::LateRefused => Case::LateRefused,
            Branch::Revoked => Case::Revoked,
            Branch::RevokedTold => Case::RevokedTold,
            Branch::StalePassedOver => Case::StalePassedOver,
            Branch::DeafPassedOver => Case::DeafPassedOver,
            Branch::DeadRemoved => Case::DeadRemoved,
            Branch::SettledForAnother => Case::SettledForAnother,
            Branch::YieldRepeated => Case::YieldRepeated,
            Branch::QueuedBehindForeign => Case::QueuedBehindForeign,
            Branch::HandedOver => Case::HandedOver,
            Branch::LeftFree => Case::LeftFree,
            Branch::MetLeftFree => Case::ClaimedWhileLeftFree,
            Branch::Joined => Case::Joined,
            Branch::JoinRefused => Case::JoinRefused,
            Branch::Downgraded => Case::Downgraded,
            Branch::Passed => Case::Passed,
            Branch::PassRepeated => Case::PassRepeated,
            Branch::PassRefused => Case::PassRefused,
            Branch::Lengthened => Case::Lengthened,
            Branch::CapacityDiffers => Case::UnlikeCapacity,
            Branch::AskedAgain => Case::AskedAgain,
            Branch::TickOver => Case::TickOver,
            Branch::SkippedTold => Case::SkippedTold,
            Branch::TickEarly => Case::TickEarly,
            Branch::TickSkipped => Case::TickSkipped,
            Branch::TickTakenOver => Case::TickTakenOver,
            Branch::TickFinishedLate => Case::TickFinishedLate,
            Branch::TickFinishedByAnother => Case::TickFinishedByAnother,
            Branch::TickLate => Case::TickLate,
            Branch::TickOvertaken => Case::TickOvertaken,
            Branch::StandbyDropped => Case::StandbyDropped,
            Branch::StandbyEarly => Case::StandbyEarly,
            Branch::StandbyTold => Case::StandbyTold,
            Branch::OpenTold => Case::OpenTold,
            Branch::OpenTooOld => Case::OpenTooOld,
            Branch::OtherFingerprint => Case::OtherFingerprint,
            Branch::ExpressionReturned => Case::ExpressionReturned,
            Branch::GroupRefused => Case::LeftApart,
            Branch::MarkReset => Case::MarkReset,
            Branch::TickQueued => Case::TickQueued,
            Branch::TickBehind => Case::TickBehind,
            Branch::TickAfterSkipped => Case::TickAfterSkipped,
            Branch::Saved => Case::Saved,
            Branch::SavedBefore => Case::SavedBefore,
            Branch::NotOwner => Case::NotOwner,
            Branch::Resumed => Case::Resumed,
            Branch::LossMended => Case::LossMended,
            Branch::LatchSetBefore => Case::LatchSetBefore,
            Branch::LatchSetOnce => Case::LatchSetOnce,
            Branch::LatchCountedBefore => Case::LatchCountedBefore,
            Branch::LatchSetMeanwhile => Case::LatchSetMeanwhile,
            Branch::LatchUncertain => Case::LatchUncertain,
            Branch::LatchOver => Case::LatchOver,
            Branch::LatchLost => Case::LatchLost,
            Branch::LeaderWatched => Case::LeaderWatched,
            Branch::Proclaimed => Case::Proclaimed,
            Branch::ProclaimedByWinner => Case::ProclaimedByWinner,
            Branch::ProclaimedBefore => Case::ProclaimedBefore,
            Branch::ProclaimRefused => Case::ProclaimRefused,
            // A node that owns a lease has seen its number.
            Branch::RecoveryByClock | Branch::RecoveryByOwner => Case::RecoveryByClock,
            Branch::Asserted => Case::Asserted,
            Branch::AssertionLate => Case::AssertionLate,
            Branch::ClaimHeldBack => Case::ClaimHeldBack,
            Branch::AdoptionHeldBack => Case::AdoptionHeldBack,
            Branch::VoteHeldBack => Case::VoteHeldBack,
            Branch::Restored => Case::Restored,
            Branch::RestoredLate => Case::RestoredLate,
        }
    }
}
