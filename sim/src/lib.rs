//! Many nodes, one server, a hostile network and a virtual clock, from one seed.
//!
//! Everything is decided by the seed, so a failure is replayed exactly. What is real in it: the engine's shards and
//! the ledger. What is modelled: the runtime (connections, deadlines of batches, the inbox), the network, the
//! server's process and wall clock, and the callers. The model is kept as unkind as reality may be: bytes that were
//! given up are executed late, pushes are older than answers, processes stop for longer than their leases.
//!
//! Reading order: [`coverage`] (what must have happened), `profile` (what kind of world it is), `world` (state and
//! time), `network` (connections, server, inboxes), `callers` (who wants locks), `writes` (what
//! they write), `elections` (who leads), `faults` (what goes wrong), `watch`
//! (what must never happen), `log`.

#![allow(clippy::too_many_lines, reason = "a table of events, and a world's beginning")]

use tenure::protocol::flaw::Flaw;

mod callers;
mod checkpoints;
pub mod coverage;
mod elections;
pub mod explore;
mod faults;
mod inbox;
mod jobs;
mod latches;
mod log;
mod lookout;
mod network;
mod node;
pub mod planted;
mod profile;
mod renewals;
mod server;
mod together;
mod transfers;
mod watch;
mod world;
mod writes;

pub use coverage::Coverage;

/// What is to be simulated.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setup {
    /// Decides everything.
    pub seed: u64,
    /// A mistake that is planted: in the key machine, the session, the link or the ledger.
    pub flaw: Option<Flaw>,
    /// The store adds nothing to a lease: what the margin pays for is paid by nobody.
    pub no_margin: bool,
    /// The scheduler gives back a job whose future goes on.
    pub release_early: bool,
    /// Look out for this alone, so that a planted mistake is found by its harm and not by its means.
    pub only: Option<Wrong>,
    /// Write down what happens.
    pub history: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Run {
    /// How many events were handled.
    pub steps: u64,
    /// How often a key machine was told something.
    pub inputs: u64,
    /// How much time went by in the world, in milliseconds.
    pub virtual_ms: u64,
    /// Depends on everything that happened.
    pub hash: u64,
    /// What happened how often.
    pub coverage: Coverage,
    /// The first thing that must never happen and did.
    pub failure: Option<Failure>,
    /// What happened, when it was asked for.
    pub history: Vec<Line>,
}

/// One line of a history.
#[derive(Debug, Clone)]
pub struct Line {
    /// Which key it is about, if about one.
    pub key: Option<usize>,
    /// Time, node, event.
    pub text: String,
}

/// What must never happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Wrong {
    /// Two guards of one key answer *held* at one instant, and not both of them read.
    TwoHolders,
    /// More permits are held than there are.
    TooMany,
    /// A reader got in before a writer that came earlier, or a request for few permits before one for many.
    Passed,
    /// A lease was adopted twice.
    AdoptedTwice,
    /// Somebody wrote between a writer and the reader that it became.
    Between,
    /// A guard answers *held* and the server's record is not its own.
    Unbacked,
    /// Two runs of one job go on at once.
    TwoRuns,
    /// A tick that ended well is granted again.
    TickAgain,
    /// A run began before its time.
    TickEarly,
    /// Marks went back, attempts were miscounted, or a tick was skipped or finished by what may not do so.
    TickOrder,
    /// Somebody pursues a tick and nobody runs it.
    TickAsleep,
    /// Somebody stands by for a tick that is over and is not told.
    TickUntold,
    /// A tick was given up that may still be run.
    TickDropped,
    /// A tick was begun, has not ended, and nobody is after it.
    TickAbandoned,
    /// A tick was granted though an earlier one is to be run first.
    TickPassedOver,
    /// What a run left was kept though it did not own its tick.
    CheckpointKept,
    /// A run was shown what the runs of another tick left.
    CheckpointOfAnother,
    /// What was kept of a tick is not shown to who runs it again.
    CheckpointForgotten,
    /// A tick that a node knows to be over, and has said so, may be granted again.
    LossBelieved,
    /// A fence does not exceed one that was granted before it.
    Fence,
    /// A record was changed by somebody who does not own it.
    NotTheOwner,
    /// One claim number was granted twice.
    NumberTwice,
    /// A ticket that was lost is held again.
    Revived,
    /// A caller was told what cannot be, or not told what must be.
    Outcome,
    /// A record or queue entry that no engine pursues.
    Orphan,
    /// A grant to a waiter that was not heard of.
    DeadGranted,
    /// A lock is free and somebody waits for it.
    Asleep,
    /// A node that knows of a silent inbox waits for its pushes on.
    Unheard,
    /// A call counted twice in a latch.
    CountedTwice,
    /// A call counted in a generation of a latch that was set after it.
    CountedLate,
    /// A latch was set again before its life was over.
    SetTwice,
    /// A caller was told that it has counted, and it has not.
    NotCounted,
    /// A waiter was told that a latch is at zero, and since it came it was not.
    BeforeZero,
    /// Somebody waits for a latch that is at zero, or was, or is not set.
    PastZero,
    /// Something was proclaimed by who does not lead, or is told of another leader than of whom proclaimed it.
    ProclaimedByAnother,
    /// An observer is told of a leader, or of what it proclaimed, after it was told of something later.
    ToldBack,
    /// An observer is told of a leader that campaigned with a value, and not of the value.
    LeaderWithoutValue,
    /// An observer that keeps asking is not told who leads, or what that one proclaimed.
    LeaderUntold,
    /// Who is to rest claims at once, or never.
    Restless,
    /// A lock is handed on and on and never left free for others.
    NeverFree,
    /// Something is left when all is over.
    LeftOver,
    /// Requests without end.
    Storm,
    /// Something is sent on a connection that was given up, or beside its successor.
    Beside,
    /// A claim is sent before an earlier leave of its key by the same node.
    Overtaken,
    /// The leave of a claim is sent before a call about that claim, which was queued earlier.
    LeftBefore,
    /// A call is sent again after it was answered.
    SentAgain,
    /// A request is neither answered nor reported, or told of twice.
    Unanswered,
    /// A lease is lost in a calm, although its owner is alive.
    LostInCalm,
    /// A lease is held for longer than its holder may hold it.
    HeldTooLong,
    /// A lease of somebody's own is handed on to others of its process.
    Shared,
    /// Of claims that go together some were granted and some were not, or none though all are free.
    Half,
    /// A caller is told of an error of a healthy store.
    DeniedInCalm,
    /// A connection that nothing comes through is used on and on.
    Unnoticed,
    /// What was to be written under a lease is written after a later holder was let in.
    WriteOrder,
    /// A caller was told that nothing was executed, and it was.
    ToldRefused,
    /// A holder was told that the store has its lease no more, and the store had it.
    GivenUp,
}

impl Wrong {
    /// All of them.
    pub const ALL: [Wrong; 52] = [
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
        Wrong::LeaderWithoutValue,
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

/// A thing that must never happen and did.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Which.
    pub wrong: Wrong,
    /// About which key.
    pub key: Option<usize>,
    /// In words.
    pub text: String,
}

/// Lives through one world.
pub fn run(setup: Setup) -> Run {
    world::World::new(setup).run()
}

impl Run {
    /// The failure with its history, fit to be read.
    pub fn story(&self) -> String {
        use std::fmt::Write;
        let mut story = String::new();
        let key = self.failure.as_ref().and_then(|failure| failure.key);
        let (old, last) = self.history.split_at(self.history.len().saturating_sub(200));
        // All of the offending key, but not without end; and the last lines of everything.
        let of_key: Vec<_> = old
            .iter()
            .filter(|line| line.key.is_some() && line.key == key)
            .collect();
        for line in &of_key[of_key.len().saturating_sub(400)..] {
            let _ = writeln!(story, "{}", line.text);
        }
        let _ = writeln!(story, "---- the last {} lines, all keys", last.len());
        for line in last {
            let _ = writeln!(story, "{}", line.text);
        }
        if let Some(failure) = &self.failure {
            let _ = writeln!(story, "==== {:?}: {}", failure.wrong, failure.text);
        }
        story
    }
}
