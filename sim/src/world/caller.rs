//! The state of one caller.

use tenure::protocol::message::{Call, ClaimId};
use tenure::protocol::step::LockOptions;
use tenure::protocol::time::Instant;

/// The number of permits of each key, in worlds with permits.
pub(crate) const PERMITS: u32 = 3;

/// One caller, from its request to its end.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) key: usize,
    pub(crate) options: LockOptions,
    /// The call that it makes, if it makes one.
    pub(crate) call: Option<Call>,
    pub(crate) state: CallerState,
    /// Whether it has taken up its grant.
    pub(crate) take_up_state: TakeUp,
    /// Whether it was seen to have lost its lease. It must never hold again after that.
    pub(crate) was_lost: bool,
    /// The claim of its lease; `None` before the grant.
    pub(crate) claim: Option<ClaimId>,
    /// When it was granted, by its node's clock.
    pub(crate) since: Option<Instant>,
    /// When it came, in virtual ns.
    pub(crate) asked_at: u64,
    /// Whether its grant will be transferred to another process.
    pub(crate) is_for_transfer: bool,
    /// The transfer message that it acts on.
    pub(crate) message: Option<usize>,
    /// Whether the lease surely lasts until its request is executed.
    pub(crate) in_time: bool,
    /// The caller that held the lease before it, in this process.
    pub(crate) before: Option<usize>,
}

/// The state of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallerState {
    Waiting,
    /// Its future is being dropped. An outcome of the same step reaches no caller.
    GivingUp,
    Holding,
    /// Waits for the outcome of its release. `held` says whether it held until then.
    Releasing {
        held: bool,
        finished: bool,
    },
    /// Waits for the outcome of a write.
    Writing,
    /// Waits for the outcome of a renewal.
    Renewing,
    Over,
}

impl CallerState {
    /// Returns whether a caller may be granted, denied or answered.
    pub(crate) fn may_be_told(self) -> bool {
        matches!(
            self,
            CallerState::Waiting | CallerState::GivingUp | CallerState::Writing | CallerState::Renewing
        )
    }
}

/// Whether a caller takes up its grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TakeUp {
    Pending,
    Never,
    Done,
}

/// The next action of a caller.
#[derive(Debug)]
pub(crate) enum CallerAction {
    GiveUp,
    TakeUp,
    Look,
    Release,
    Drop,
    Finish,
    HandOver,
    Downgrade,
    /// Gives up its lease for a transfer.
    Transfer,
    /// Sends the transfer messages.
    SendTransfer,
    /// Writes under the lease.
    Write,
    /// Renews its fixed lease.
    Renew,
    /// Proclaims a value, whether it leads or not.
    Proclaim,
    /// Saves a checkpoint, whether it holds or not.
    Save,
}
