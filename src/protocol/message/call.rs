//! What is asked about a key without a wish for a lease of it, and what a store answers.

use std::fmt;
use std::sync::Arc;

use crate::protocol::message::names::{ClaimId, GrantNumber, NodeId, TickTime, Version};

/// What is asked of a job, a semaphore, a latch, an election or another's lease without a wish for one. It makes no claim, and may be asked
/// again at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Which tick was begun and has not ended well, if it is not older than that by the store's clock.
    Open {
        /// So old at most, in milliseconds.
        within_ms: u64,
        /// Of the service and the job's expression, as the asker knows them; 0 when it does not. Kept, so that the next
        /// asker with another one is told.
        fingerprint: u64,
        /// The latest tick that the asker knows to be over. A store that knows the job and would grant that has lost what it
        /// acknowledged, and takes it for over from now on.
        over: Option<TickTime>,
    },
    /// Bring a mark that lies ahead of the store's clock back to it, so that ticks are run again.
    Reset,
    /// Whether this claim owns the job, for the tick of the request.
    Verify {
        /// Whose run it is.
        of: ClaimId,
    },
    /// The same, and what the runs of the tick have left, if it does.
    Recall {
        /// Whose run it is.
        of: ClaimId,
    },
    /// The same, and keep the request's data for whoever runs the tick next, if it does.
    Save {
        /// Whose run it is.
        of: ClaimId,
        /// Grows within a run. One that comes behind a later one of the same run changes nothing.
        seq: u64,
    },
    /// How many permits of a semaphore are held.
    InUse,
    /// Make the lease of this owner last for that of the request, if it would end before.
    Extend {
        /// Whose lease it is.
        of: ClaimId,
    },
    /// As [`Verb::Leave`](crate::protocol::message::Verb::Leave), for an owner that is no claim of the asker's.
    Release {
        /// Whose lease it is.
        of: ClaimId,
        /// An earlier request of it may have been executed.
        repeats: bool,
    },
    /// Set a latch that is not set. The request's data is the id of the call.
    SetCount {
        /// To so many.
        count: u32,
        /// For so long, in milliseconds; then nothing is known of it.
        life_ms: u64,
    },
    /// Count a latch down by one, unless it was done under the id of this call before.
    CountDown {
        /// When it was called for.
        called: Called,
    },
    /// How many count-downs of a latch are left.
    Count,
    /// Whether a latch has come to zero. If not, tell the asker's node when it does, for as long as one of its leases.
    Zero {
        /// In this generation; `None`: in the present one.
        of: Option<Version>,
    },
    /// Who leads, and what that one proclaimed.
    Leader {
        /// The asker knows this version of it. While there is none later, tell its node when there is, for as long as one of
        /// its leases.
        known: Option<Version>,
    },
    /// Tell whoever asks who leads the data of the request, if this claim leads.
    Proclaim {
        /// Whose leadership it is.
        of: ClaimId,
        /// Grows within a leadership. One that comes behind a later one changes nothing.
        seq: u64,
    },
}

/// When a caller called for a count-down, which counts in one life of a latch. The request may be late or repeated. Neither may
/// count in a later life, which has a generation that was set after the call.
///
/// A generation that was set before the call is meant by it. Of one that was set while the call was on its way nobody can say,
/// as clocks are not compared that closely: then the store does nothing, and names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Called {
    /// No earlier than this, by the server's clock, in microseconds. The session knows.
    pub since: u64,
    /// And no later than this.
    pub until: u64,
    /// An earlier request of it may have been executed.
    pub repeats: bool,
    /// The generation that is meant, where the store has named it.
    pub of: Option<Version>,
}

impl Call {
    /// Whose run or lease it is about.
    pub fn of(self) -> Option<ClaimId> {
        match self {
            Call::Verify { of }
            | Call::Recall { of }
            | Call::Save { of, .. }
            | Call::Extend { of }
            | Call::Release { of, .. }
            | Call::Proclaim { of, .. } => Some(of),
            Call::Open { .. }
            | Call::Reset
            | Call::InUse
            | Call::SetCount { .. }
            | Call::CountDown { .. }
            | Call::Count
            | Call::Zero { .. }
            | Call::Leader { .. } => None,
        }
    }

    /// Whoever asks it may be told of the answer by a push.
    pub fn is_watched(self) -> bool {
        matches!(self, Call::Zero { .. } | Call::Leader { known: Some(_) })
    }

    /// The same, by somebody who knows this of what is watched: what is answered is what has changed since.
    pub(crate) fn knowing(self, version: Version) -> Self {
        match self {
            Call::Zero { .. } => Call::Zero { of: Some(version) },
            Call::Leader { .. } => Call::Leader { known: Some(version) },
            other => other,
        }
    }

    /// The same, asked again when an earlier request of it may have been executed.
    pub(crate) fn repeated(mut self) -> Self {
        if let Call::Release { repeats, .. } = &mut self {
            *repeats = true;
        } else if let Some(called) = self.called() {
            called.repeats = true;
        }
        self
    }

    /// When it was called for, if that matters.
    pub(crate) fn called(&mut self) -> Option<&mut Called> {
        match self {
            Call::CountDown { called } => Some(called),
            _ => None,
        }
    }
}

/// What a run leaves behind for the next run of its tick, or the id of a call. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(pub Arc<[u8]>);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint({} bytes)", self.0.len())
    }
}

/// What a store knows of a latch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatchReport {
    /// It is not set: it never was, or its life is over.
    Unset,
    /// It was set by this call.
    Set,
    /// So many count-downs are left; for one that counted, after it.
    Left(u32),
    /// Nothing was done: it was set at about the time of the call, in this generation.
    SetMeanwhile(Version),
    /// Nothing was done: the generation that the call was for is over.
    Over,
    /// Nothing was done now. It was set at about the time of the call, and an earlier request may have been executed before
    /// that.
    Uncertain,
}

/// What a store knows of who leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderReport {
    /// Whose claim leads.
    pub node: NodeId,
    /// By which grant.
    pub number: GrantNumber,
    /// Another one is told of another leader, or of something else that it proclaimed.
    pub version: Version,
    /// What it proclaimed, if anything.
    pub value: Option<Payload>,
}

/// What a store knows of a job, before it did what was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobReport {
    /// The tick that was begun and has not ended well.
    pub open: Option<TickTime>,
    /// So far the job's mark lies ahead of the store's clock, in milliseconds: until then no tick is run.
    pub ahead_ms: u64,
    /// The fingerprint of whoever asked before was another.
    pub differs: bool,
    /// The store would have granted the tick that the asker knows to be over.
    pub lost: bool,
    /// The store's clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// The claim that the question is about owns the job, for the tick of the request.
    pub owns: bool,
    /// The tick that was granted last.
    pub mark: Option<TickTime>,
    /// The latest tick that was run to its end and went well.
    pub well: Option<TickTime>,
    /// No tick between this one and `mark` was granted. `None` if that is unknown.
    pub after: Option<TickTime>,
    /// What the runs of this tick have left; told to its owner alone.
    pub saved: Option<Payload>,
}

impl JobReport {
    /// Returns whether the tick was ever granted, if that is known.
    #[cfg(feature = "scheduler")]
    pub(crate) fn was_granted(&self, tick: TickTime) -> Option<bool> {
        let known = [self.mark, self.well, self.after];
        if known.contains(&Some(tick)) {
            Some(true)
        } else if Some(tick) > self.mark || self.after.is_some_and(|after| tick > after) {
            Some(false)
        } else {
            None
        }
    }
}
