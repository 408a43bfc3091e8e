//! Actions: calls that a store executes once, outside of batches. Most of them write users' data while a lease is
//! current.

use std::sync::Arc;

use crate::protocol::message::{ClaimId, GrantNumber, Mode, Name};

/// An action that is sent once, outside of batches.
#[derive(Debug, Clone)]
pub enum Action {
    /// Executes the write if all its leases are current.
    Write(Arc<GuardedWrite>),
    /// Removes all data about a job, unless a claim runs it or waits for it.
    ForgetJob,
}

/// A lease that must be current when the store executes the write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Precondition {
    /// The name of the lease.
    pub name: Name,
    /// The claim that holds the lease.
    pub claim_id: ClaimId,
    /// How the lease is shared.
    pub mode: Mode,
    /// The number of the grant.
    pub number: GrantNumber,
}

/// The commands or the script of a write, in the store's own language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteBody {
    /// Commands, executed in this order.
    Commands {
        /// All keys that the commands touch.
        keys: Vec<Vec<u8>>,
        /// The words of each command: its name, its keys and its arguments.
        commands: Vec<Vec<Vec<u8>>>,
    },
    /// A script.
    Script {
        /// The text of the script.
        text: String,
        /// All keys that the script touches.
        keys: Vec<Vec<u8>>,
        /// The script's other arguments.
        args: Vec<Vec<u8>>,
    },
}

/// A write with the leases that it is checked against. It is sent once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedWrite {
    /// One or more leases of one server. If one of them is not current, nothing is done.
    pub leases: Arc<[Precondition]>,
    /// The commands or the script.
    pub body: WriteBody,
}
