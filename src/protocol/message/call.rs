//! Calls: questions and actions about a key that create no claim, and the answers of a store.

use std::fmt;
use std::sync::Arc;

use crate::protocol::message::names::{ClaimId, GrantNumber, NodeId, TickTime, Version};
use crate::protocol::message::run::{OperatorAct, WantedRun};

/// A question or an action about a job, a semaphore, a latch, an election or another claim's lease. A call creates no
/// claim. A call may be repeated at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Asks which tick is unfinished: it was granted, and has not ended. The request's data tells the store of the node and the plan ([`LookData`](super::LookData)).
    Open {
        /// The fingerprint of the service and the job's expression, as the caller knows them; 0 if it knows none. The
        /// store keeps it, so that a later caller learns of a difference.
        fingerprint: u64,
        /// The latest tick that the caller knows to be over. A store that knows the job but would grant that tick has
        /// lost acknowledged state. It treats the tick as over from now on.
        over: Option<TickTime>,
    },
    /// Tells the store that the node has the job no more.
    Withdraw,
    /// Sets a mark that lies ahead of the store's clock back to the clock, so that ticks run again.
    Reset,
    /// Asks whether an operator cancelled the run that has the grant of this number.
    Ending {
        /// The number.
        number: GrantNumber,
    },
    /// Asks whether this claim owns the job for the tick of the request.
    Verify {
        /// The claim of the run.
        of: ClaimId,
    },
    /// Asks whether this claim owns the job for the tick, and for the checkpoint of the tick if it does.
    Recall {
        /// The claim of the run.
        of: ClaimId,
    },
    /// Saves the request's data as a checkpoint, if this claim owns the job for the tick.
    Save {
        /// The claim of the run.
        of: ClaimId,
        /// Grows within a run. A checkpoint that arrives after a later one of its run changes nothing.
        seq: u64,
    },
    /// Asks how many permits of a semaphore are held.
    InUse,
    /// Extends this owner's lease to that of the request, if it would end earlier.
    Extend {
        /// The claim that owns the lease.
        of: ClaimId,
    },
    /// Releases the lease of an owner that is another node's claim, as
    /// [`Verb::Leave`](crate::protocol::message::Verb::Leave) does.
    Release {
        /// The claim that owns the lease.
        of: ClaimId,
        /// Set if an earlier request of this call may have been executed.
        repeats: bool,
    },
    /// Sets a latch that is not set. The request's data is the id of the call.
    SetCount {
        /// The count.
        count: u32,
        /// The life of the latch in milliseconds. The store forgets the latch afterwards.
        life_ms: u64,
    },
    /// Counts a latch down by one, unless a call with this id was counted before.
    CountDown {
        /// When it was called.
        called: CallTime,
    },
    /// Asks how many count-downs of a latch are left.
    Count,
    /// Asks whether a latch is at zero. If not, the caller's node watches the latch for one of its leases.
    Zero {
        /// The generation of the latch; `None`: the present one.
        of: Option<Version>,
    },
    /// Asks which node leads, and for the value that its leader proclaimed.
    Leader {
        /// The version that the caller knows. If there is no later one, the caller's node watches the election for
        /// one of its leases.
        known: Option<Version>,
    },
    /// Stores the request's data as the leader's value, if this claim leads.
    Proclaim {
        /// The claim that leads.
        of: ClaimId,
        /// Grows within a leadership. A value that arrives after a later one changes nothing.
        seq: u64,
    },
}

/// When a caller called a count-down. The request may be late or repeated, and must not count in a later life of the
/// latch.
///
/// A generation that was set before the call is meant by it. For a generation that was set while the call travelled,
/// the order is unknown, because clocks are not compared that closely. The store then does nothing and names the
/// generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallTime {
    /// The earliest time of the call, by the server's clock, in microseconds. The session fills it in.
    pub since: u64,
    /// The latest time of the call, by the server's clock, in microseconds.
    pub until: u64,
    /// Set if an earlier request of this call may have been executed.
    pub repeats: bool,
    /// The generation that is meant, if the store has named it.
    pub of: Option<Version>,
}

impl Call {
    /// Returns the claim whose run or lease the call is about.
    pub fn claim_id(self) -> Option<ClaimId> {
        match self {
            Call::Verify { of }
            | Call::Recall { of }
            | Call::Save { of, .. }
            | Call::Extend { of }
            | Call::Release { of, .. }
            | Call::Proclaim { of, .. } => Some(of),
            Call::Open { .. }
            | Call::Withdraw
            | Call::Ending { .. }
            | Call::Reset
            | Call::InUse
            | Call::SetCount { .. }
            | Call::CountDown { .. }
            | Call::Count
            | Call::Zero { .. }
            | Call::Leader { .. } => None,
        }
    }

    /// Returns whether the store may push news after the answer.
    pub fn is_watched(self) -> bool {
        matches!(self, Call::Zero { .. } | Call::Leader { known: Some(_) })
    }

    /// Returns the call for a caller that knows this version of the watched value. The answer reports what changed
    /// since.
    pub(crate) fn knowing(self, version: Version) -> Self {
        match self {
            Call::Zero { .. } => Call::Zero { of: Some(version) },
            Call::Leader { .. } => Call::Leader { known: Some(version) },
            other => other,
        }
    }

    /// Returns the call for a repetition, when an earlier request may have been executed.
    pub(crate) fn repeated(mut self) -> Self {
        if let Call::Release { repeats, .. } = &mut self {
            *repeats = true;
        } else if let Some(called) = self.called() {
            called.repeats = true;
        }
        self
    }

    /// Returns when it was called, for calls that need the time.
    pub(crate) fn called(&mut self) -> Option<&mut CallTime> {
        match self {
            Call::CountDown { called } => Some(called),
            _ => None,
        }
    }
}

/// What a node tells of itself and of its job with a look ([`Call::Open`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LookData<'a> {
    /// The name of the node, or empty.
    pub name: &'a str,
    /// When the job is due: `<zone>:<expression>`. Empty: that is not told.
    pub plan: &'a str,
}

impl<'a> LookData<'a> {
    /// Returns the data of the request.
    pub fn payload(self) -> Payload {
        Payload(format!("{}\0{}", self.name, self.plan).into_bytes().into())
    }

    /// Reads the data of a request. Bytes that are none are empty.
    pub fn read(data: Option<&'a Payload>) -> LookData<'a> {
        let text = data
            .and_then(|data| std::str::from_utf8(&data.0).ok())
            .unwrap_or_default();
        // A plan has no such byte.
        let (name, plan) = text.rsplit_once('\0').unwrap_or((text, ""));
        LookData { name, plan }
    }
}

/// The data of a call or an answer: a checkpoint, a leader's value, or the id of a call. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(pub Arc<[u8]>);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

/// The answer of a store to a call about a latch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatchReport {
    /// The latch is not set: it never was, or its life is over.
    Unset,
    /// This call set the latch.
    Set,
    /// How many count-downs are left, after this call if it counted.
    Left(u32),
    /// Nothing was done: the latch was set at about the time of the call, in this generation.
    SetMeanwhile(Version),
    /// Nothing was done: the generation that the call was for is over.
    Over,
    /// Nothing was done now: the latch was set at about the time of the call. An earlier request may have been
    /// executed before that.
    Uncertain,
}

/// What a store knows of the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderReport {
    /// The node that leads.
    pub node: NodeId,
    /// The grant by which it leads.
    pub number: GrantNumber,
    /// The version of leader and value; it changes with the leader and with each proclaimed value.
    pub version: Version,
    /// The value that it proclaimed, if any.
    pub value: Option<Payload>,
}

/// Each node of a job asks the store once in a lease, or in this time if the lease is shorter. In milliseconds.
pub const MIN_POLL_MS: u64 = 5_000;

/// What a store knew of a job before it executed the call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobReport {
    /// The tick that was granted and is unfinished.
    pub open: Option<TickTime>,
    /// How far the job's mark lies ahead of the store's clock, in milliseconds. No tick runs until then.
    pub ahead_ms: u64,
    /// Set if the previous caller's fingerprint was another.
    pub differs: bool,
    /// When the store first saw the caller's fingerprint, in milliseconds since the Unix epoch; 0 if it does not know.
    pub since_ms: u64,
    /// Set if the store would have granted the tick that the caller knows to be over.
    pub lost: bool,
    /// The store's clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Set if the claim of the call owns the job for the tick of the request.
    pub owns: bool,
    /// The tick that was granted last.
    pub mark: Option<TickTime>,
    /// The latest tick that was run to its end and succeeded.
    pub well: Option<TickTime>,
    /// The tick that was granted before `mark`; tick 0 if `mark` was the first. `None` if that is unknown.
    pub after: Option<TickTime>,
    /// The checkpoint of the tick; only for its owner.
    pub saved: Option<Payload>,
    /// The pause of the job. Only for a question about open ticks.
    pub paused: Option<Arc<OperatorAct>>,
    /// The run that an operator wants, if it may still be granted. Only for a question about open ticks.
    pub wanted: Option<Arc<WantedRun>>,
    /// When the latest pause ended, in milliseconds since the Unix epoch. Only for a question about open ticks.
    pub resumed_ms: Option<u64>,
    /// Set if an operator cancelled the run. Only for a question about the end of a run.
    pub is_cancelled: bool,
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
