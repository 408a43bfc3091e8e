//! What must have happened: a simulator that never meets a case says nothing about it.

use tenure::error::StoreErrorKind;
use tenure::protocol::ledger::Branch;
use tenure::protocol::message::LatchReport;
use tenure::protocol::session::step::SessionEvent;
use tenure::protocol::step::KeyEvent;

macro_rules! counters {
    ($($name:ident: $text:literal,)+) => {
        /// A fault or a rare branch.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the texts say it")]
        #[non_exhaustive]
        pub enum Seen { $($name,)+ }

        const ALL: &[(Seen, &str)] = &[$((Seen::$name, $text),)+];
    };
}

counters! {
    HandedOn: "handed on to the next caller of the process",
    PushUsed: "pushed grant used at once",
    PushConfirming: "pushed grant renewed before use",
    PushStale: "push for a dead number ignored",
    UnknownLeft: "grant for an unknown number left",
    FoundGranted: "waiting claim found granted when it asked",
    PushMissed: "grant found whose push should have come",
    Renewed: "lease renewed",
    RenewFailed: "renewal failed",
    Asking: "answer to a claim lost and asked for",
    Late: "claim refused as late (engine)",
    GhostLeft: "claim never answered, left once more",
    Requeued: "waiting claim forgotten by the store, claimed again",
    Yielded: "lease yielded after a burst",
    TooShort: "grant yielded, as whoever is first wants a longer lease",
    LeaveRepeated: "leave repeated",
    LeaveFailed: "leave given up",
    AnswerStale: "granted answer too old to be used",
    WaitFailed: "waiting claim could not be renewed",
    LateRefused: "claim refused as late (ledger)",
    StalePassedOver: "waiter not heard of passed over",
    DeafPassedOver: "waiter without inbox passed over",
    DeadRemoved: "dead entry removed",
    SettledForAnother: "free key given to another than the caller",
    YieldRepeated: "yield of a number that does not own",
    QueuedBehindForeign: "waiter told that the owner does not know the queue",
    HandedOver: "handed over to another claim",
    LeftFree: "handed on for long and left free",
    MetLeftFree: "asked for while it was left free",
    Joined: "readers joined by another",
    JoinRefused: "reader not let in beside readers, as somebody waits",
    Downgraded: "writer went on as a reader",
    Passed: "lease passed to another",
    PassRepeated: "lease passed again to whom it was",
    PassRefused: "lease of who has it no more not passed",
    Lengthened: "lease made longer by who is told of it",
    HandedOut: "lease given up to whoever is told of it",
    Adopted: "lease adopted by who was told of it",
    NotAdopted: "lease not adopted by who was told of it",
    OwnerAnswered: "caller told of the lease of another",
    OwnerTold: "lease of another extended or given back",
    OwnerGone: "lease of another gone when it was to be extended or given back",
    UnlikeCapacity: "permits granted beside those of who believes in another number",
    UnlikeTold: "node told of that",
    InUseTold: "caller told how many permits are held",
    SharesOfNodes: "permits of one key held by several nodes",
    DeniedLost: "writer lost what it held when it would go on as a reader",
    ReadersOfANode: "several readers of a node by one lease",
    AskedAgain: "owner asked again",
    TickOver: "tick asked for that is over",
    SkippedTold: "tick asked for that was never granted and never is",
    TickEarly: "tick asked for before its time",
    TickSkipped: "tick skipped, as an earlier one was running",
    TickTakenOver: "tick granted once more",
    TickFinishedLate: "tick finished after its record had ended",
    TickFinishedByAnother: "finish of a tick by a claim that is not its latest winner",
    TickLate: "claim of a tick refused as late",
    TickOvertaken: "tick that had not ended well overtaken by a later one",
    TickFiredTwice: "node fired one tick twice",
    TickFiredLate: "node fired an earlier tick after a later one",
    TickMissed: "tick given up by its node, as a later one had fired while the store was away",
    TickTakenOverAtHome: "tick granted once more to the node that had won it",
    TickTakenOverUnqueued: "tick granted once more by a store that cannot queue",
    StandbyDropped: "standby of a tick dropped by the store, as it was over",
    StandbyEarly: "standby of a tick dropped by the store, as it was brought back",
    StandbyTold: "standby told by the store that its tick is over",
    OpenTold: "node told of a tick that was begun and had not ended",
    DeniedBehind: "caller told that another tick is to be run first",
    TickQueued: "tick waits until an earlier one has ended",
    TickBehind: "tick refused, as an earlier one is to be run first",
    TickAfterSkipped: "tick granted after one that was skipped, where none is passed over",
    Reported: "question answered",
    Saved: "something of a run kept",
    SavedBefore: "something of a run came behind something later",
    SavedTold: "run told that something of it is kept",
    NotOwner: "run told that it does not own its tick",
    Resumed: "run told what was kept of its tick",
    ResumedByAnother: "run told what another run of its tick had left",
    OtherFingerprint: "node told that another fingerprint was kept",
    Together: "claims that go together granted",
    TogetherMixed: "claims that go together granted, some to read and some to write",
    TogetherJoined: "one of claims that go together joined readers",
    LeftApart: "free key not granted, as another that goes with it is not free",
    MarkReset: "mark ahead of the server's clock brought back",
    ServerWentBack: "server came back with an older copy of a job",
    LossMended: "store told of a tick that is over, which it had forgotten",
    LatchSetBefore: "latch set again by the call that had set it",
    LatchSetOnce: "latch at zero not set again",
    LatchCountedBefore: "count-down came again and did not count again",
    LatchSetMeanwhile: "call for a latch that was set at about its time",
    LatchUncertain: "the same, and it may have been executed before",
    LatchOver: "call for a latch that is over",
    LatchLost: "waiter told that its latch is gone when another was set",
    LatchSet: "caller told that it has set a latch",
    LatchLeft: "caller told how many count-downs are left",
    LatchZero: "caller told that a latch is at zero",
    LatchUnset: "caller told that a latch is not set",
    LatchRefused: "caller told that nothing was done of its call",
    Led: "candidate leads",
    LedRested: "candidate leads that had lost, or could not ask, and rested",
    Rested: "caller rests before it claims or asks",
    LeaderKilled: "leader killed in a calm",
    LeaderAnswered: "caller told who leads",
    LeaderTold: "observer told of a leader that has proclaimed nothing",
    NextLeaderTold: "observer told of a leader after another",
    NobodyLeadsTold: "observer told that nobody leads",
    ProclaimedTold: "observer told what a leader proclaimed",
    ToldOutside: "observer of a node that does not stand told something",
    LeaderWatched: "observer waits for news of what it knows",
    Proclaimed: "leader proclaimed something",
    ProclaimedByWinner: "value of a candidate proclaimed in the step in which it won",
    ValueOfWinnerTold: "observer told of a leader that campaigned with a value",
    ProclaimedBefore: "what a leader proclaimed came behind something later, or again",
    ProclaimRefused: "something proclaimed by who does not lead",
    NewsPushed: "news pushed to who watches",
    OpenTooOld: "node not told of such a tick, as it was too old",
    TickReopened: "such a tick pursued by a node that was not after it",
    PursuersKilled: "everybody who was after a tick killed while it was run",
    StandbyBusy: "standby told busy by a store that cannot queue",
    WinnerKilled: "winner of a tick killed in a calm",
    WinnerReplaced: "tick of a killed winner run by who stood by",
    DeniedSkipped: "caller told that the tick is skipped",
    DeniedOver: "caller told that the tick is over",
    DeniedNeverBegun: "caller told that the tick was never begun",
    DeniedEarly: "caller told that the tick is early",
    LostAnswerToQuestion: "answer lost after execution: question",
    LostFinishAnswer: "answer lost after execution: finish",
    Retired: "scheduler shut down",
    TickRun: "tick run to its end",
    TickLost: "run lost its lease",
    Granted: "caller granted",
    GrantedFixed: "fixed lease granted",
    DeniedBusy: "caller told busy",
    DeniedFull: "caller told the line is full",
    DeniedNodeFull: "caller told that too many wait in its process",
    DeniedStore: "caller told of the store's error",
    DeniedClosed: "caller told that the node closes",
    LostDeadline: "lost by its deadline",
    LostGone: "lost because the store said gone",
    LostEnded: "fixed lease ended",
    RenewalAsked: "holder of a fixed lease asked for its renewal",
    RenewalAnswered: "holder of a fixed lease told of its renewal",
    RenewalFailed: "holder of a fixed lease told that its renewal failed",
    RenewalLost: "holder of a fixed lease told of its loss by its renewal",
    FetchedLost: "taken up after it was lost",
    LostOverdue: "held for longer than it may be, renewed no more and lost",
    LostUnfetched: "granted to a caller that never took it up, and given back",
    LostShutdown: "lost in shutdown",
    ReleaseKept: "release: kept to the end",
    ReleaseLost: "release: lost",
    ReleaseFailed: "release: the store could not be told",
    CancelWaiting: "waiter cancelled",
    CancelInFlight: "waiter cancelled while its request was under way",
    CancelHolder: "guard dropped",
    Crash: "node crashed",
    CrashHolding: "node crashed with a guard",
    PauseShort: "node paused for less than its lease",
    PauseLong: "node paused for longer than its lease",
    WokeLost: "first look after a pause says lost",
    WokeHeld: "first look after a pause says held",
    Close: "node closed",
    Partition: "node cut off",
    Stall: "connection stalled",
    Reset: "connection reset",
    GivenUp: "connection given up, as it was silent",
    TimedOut: "request given up, its connection not",
    Bystander: "request told that its connection broke or was given up for others",
    ManyUnderWay: "sixteen batches under way",
    BatchOfMany: "batch of several requests",
    Ping: "server asked for a sign of life",
    ProbeAnswered: "probe answered",
    ProbeFailed: "probe failed",
    Silent: "connection falls silent",
    ConnectSilent: "connection that never opens nor fails",
    ConnectClosing: "connection opened by a node that closes",
    SubscribeSilent: "subscription that never opens nor fails",
    InboxSilent: "inbox falls silent",
    InboxPing: "inbox asked for a sign of life",
    InboxPong: "inbox gave a sign of life",
    InboxRefused: "inbox refused",
    Reload: "batch sent again with its script",
    ReloadOvertaken: "batch sent again with its script, and others before it",
    ReloadInVain: "script unknown twice in a row",
    Loading: "server refused batches as it was loading",
    ReadOnly: "server refused writes as it was a replica",
    Locked: "server refused passwords",
    Killed: "connection or inbox killed soon after it opened",
    OpenedTooLate: "connection opened when its attempt was given up",
    AnsweredTooLate: "answer told of a connection that was given up",
    Crowd: "worlds with more requests than can be served",
    LateExecution: "batch executed after it was given up",
    AnswerDiscarded: "answer of an abandoned connection discarded",
    LostClaimAnswer: "answer lost after execution: claim",
    LostRenewAnswer: "answer lost after execution: renew",
    LostLeaveAnswer: "answer lost after execution: leave",
    LostPassAnswer: "answer lost after execution: pass",
    LostYieldAnswer: "answer lost after execution: yield",
    Duplicate: "requests executed twice",
    DuplicateYield: "yield executed twice",
    KnownDown: "request refused as the server is known to be down",
    ConnectFailed: "connection refused",
    NotWritten: "request failed before it was written",
    Reconnect: "connection made again",
    PushLost: "push lost",
    PushHeld: "push held for long",
    PushTwice: "push delivered twice",
    PushBeforeAnswer: "push before the answer that says queued",
    Resubscribed: "inbox opened again",
    ServerStall: "server stalled",
    ServerRestart: "server restarted with its memory",
    ServerForgot: "server restarted empty",
    ServerRefused: "server refused requests",
    StillHeld: "server refused to pass a lease on, and its holder went on",
    ClockSmall: "server's clock stepped within the margin",
    ClockForward: "server's clock stepped forward",
    ClockBack: "server's clock stepped back",
    ForeignDelete: "foreign client deleted a record",
    ForeignTake: "foreign client overwrote a record",
    ForeignType: "foreign client put something that is no lock",
    WriteDone: "write done",
    WriteRefused: "write not done as its lease was not current",
    WriteOfSeveralDone: "write under several leases done",
    WriteOfSeveralRefused: "write under several leases not done as one of them was not current",
    WriteTooLate: "write not sent as its lease was over",
    WriteNotSent: "write not sent as there was no connection",
    WriteAnswered: "write answered",
    WriteUnanswered: "write not answered",
    WriteLate: "write arrived after it was given up",
    Calm: "calm periods watched",
    NoQueue: "worlds whose store cannot queue",
    WeakPush: "worlds whose pushes are not final",
    NoProbe: "worlds whose server does not know who listens",
}

/// How often each thing happened.
#[derive(Debug, Clone)]
pub struct Coverage([u64; ALL.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Coverage([0; ALL.len()])
    }
}

impl Coverage {
    pub(crate) fn saw(&mut self, seen: Seen) {
        self.0[seen as usize] += 1;
    }

    /// Adds what another world saw.
    pub fn add(&mut self, other: &Coverage) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// What never happened.
    pub fn missing(&self) -> Vec<&'static str> {
        self.table()
            .filter(|(_, count)| *count == 0)
            .map(|(text, _)| text)
            .collect()
    }

    /// Every counter.
    pub fn table(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ALL.iter().map(|(seen, text)| (*text, self.0[*seen as usize]))
    }

    /// How often this happened.
    pub fn count(&self, seen: Seen) -> u64 {
        self.0[seen as usize]
    }
}

impl Seen {
    pub(crate) fn notice(notice: &KeyEvent) -> Option<Seen> {
        Some(match notice {
            KeyEvent::HandedOn => Seen::HandedOn,
            KeyEvent::PushUsed => Seen::PushUsed,
            KeyEvent::PushConfirming => Seen::PushConfirming,
            KeyEvent::PushStale => Seen::PushStale,
            KeyEvent::UnknownLeft => Seen::UnknownLeft,
            KeyEvent::FoundGranted => Seen::FoundGranted,
            KeyEvent::Renewed { .. } => Seen::Renewed,
            KeyEvent::RenewFailed { .. } => Seen::RenewFailed,
            KeyEvent::Asking => Seen::Asking,
            KeyEvent::Late => Seen::Late,
            KeyEvent::GhostLeft => Seen::GhostLeft,
            KeyEvent::Requeued => Seen::Requeued,
            KeyEvent::Yielded => Seen::Yielded,
            KeyEvent::TooShort => Seen::TooShort,
            KeyEvent::LeaveRepeated => Seen::LeaveRepeated,
            KeyEvent::LeaveFailed { .. } => Seen::LeaveFailed,
            KeyEvent::AnswerStale => Seen::AnswerStale,
            KeyEvent::WaitFailed { .. } => Seen::WaitFailed,
            KeyEvent::UnlikeCapacity { .. } => Seen::UnlikeTold,
            // Nobody forges here; the scenarios do.
            KeyEvent::PushForged => return None,
            _ => return None,
        })
    }

    pub(crate) fn latch(report: LatchReport) -> Seen {
        match report {
            LatchReport::Set => Seen::LatchSet,
            LatchReport::Left(0) => Seen::LatchZero,
            LatchReport::Left(_) => Seen::LatchLeft,
            LatchReport::Unset => Seen::LatchUnset,
            LatchReport::SetMeanwhile(_) | LatchReport::Over | LatchReport::Uncertain => Seen::LatchRefused,
        }
    }

    pub(crate) fn of_session(event: &SessionEvent) -> Option<Seen> {
        Some(match event {
            SessionEvent::ConnectionLost { error, .. } if *error.kind() == StoreErrorKind::TimedOut => {
                Seen::GivenUp
            }
            SessionEvent::TimedOut(_) => Seen::TimedOut,
            SessionEvent::Bystanders(_) => Seen::Bystander,
            SessionEvent::Down(_) => Seen::KnownDown,
            _ => return None,
        })
    }

    pub(crate) fn branch(branch: Branch) -> Seen {
        match branch {
            Branch::LateRefused => Seen::LateRefused,
            Branch::StalePassedOver => Seen::StalePassedOver,
            Branch::DeafPassedOver => Seen::DeafPassedOver,
            Branch::DeadRemoved => Seen::DeadRemoved,
            Branch::SettledForAnother => Seen::SettledForAnother,
            Branch::YieldRepeated => Seen::YieldRepeated,
            Branch::QueuedBehindForeign => Seen::QueuedBehindForeign,
            Branch::HandedOver => Seen::HandedOver,
            Branch::LeftFree => Seen::LeftFree,
            Branch::MetLeftFree => Seen::MetLeftFree,
            Branch::Joined => Seen::Joined,
            Branch::JoinRefused => Seen::JoinRefused,
            Branch::Downgraded => Seen::Downgraded,
            Branch::Passed => Seen::Passed,
            Branch::PassRepeated => Seen::PassRepeated,
            Branch::PassRefused => Seen::PassRefused,
            Branch::Lengthened => Seen::Lengthened,
            Branch::UnlikeCapacity => Seen::UnlikeCapacity,
            Branch::AskedAgain => Seen::AskedAgain,
            Branch::TickOver => Seen::TickOver,
            Branch::SkippedTold => Seen::SkippedTold,
            Branch::TickEarly => Seen::TickEarly,
            Branch::TickSkipped => Seen::TickSkipped,
            Branch::TickTakenOver => Seen::TickTakenOver,
            Branch::TickFinishedLate => Seen::TickFinishedLate,
            Branch::TickFinishedByAnother => Seen::TickFinishedByAnother,
            Branch::TickLate => Seen::TickLate,
            Branch::TickOvertaken => Seen::TickOvertaken,
            Branch::StandbyDropped => Seen::StandbyDropped,
            Branch::StandbyEarly => Seen::StandbyEarly,
            Branch::StandbyTold => Seen::StandbyTold,
            Branch::OpenTold => Seen::OpenTold,
            Branch::OpenTooOld => Seen::OpenTooOld,
            Branch::OtherFingerprint => Seen::OtherFingerprint,
            Branch::LeftApart => Seen::LeftApart,
            Branch::MarkReset => Seen::MarkReset,
            Branch::TickQueued => Seen::TickQueued,
            Branch::TickBehind => Seen::TickBehind,
            Branch::TickAfterSkipped => Seen::TickAfterSkipped,
            Branch::Saved => Seen::Saved,
            Branch::SavedBefore => Seen::SavedBefore,
            Branch::NotOwner => Seen::NotOwner,
            Branch::Resumed => Seen::Resumed,
            Branch::LossMended => Seen::LossMended,
            Branch::LatchSetBefore => Seen::LatchSetBefore,
            Branch::LatchSetOnce => Seen::LatchSetOnce,
            Branch::LatchCountedBefore => Seen::LatchCountedBefore,
            Branch::LatchSetMeanwhile => Seen::LatchSetMeanwhile,
            Branch::LatchUncertain => Seen::LatchUncertain,
            Branch::LatchOver => Seen::LatchOver,
            Branch::LatchLost => Seen::LatchLost,
            Branch::LeaderWatched => Seen::LeaderWatched,
            Branch::Proclaimed => Seen::Proclaimed,
            Branch::ProclaimedByWinner => Seen::ProclaimedByWinner,
            Branch::ProclaimedBefore => Seen::ProclaimedBefore,
            Branch::ProclaimRefused => Seen::ProclaimRefused,
        }
    }
}
