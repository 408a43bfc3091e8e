//! Actions: what a store does in a call of its own, once. Most of them write data of users while a lease is current.

use std::sync::Arc;

use crate::protocol::message::{ClaimId, GrantNumber, Mode, Name};

/// What is done in a call of its own.
#[derive(Debug, Clone)]
pub enum Action {
    /// Write this, if its leases are current.
    Write(Arc<GuardedWrite>),
    /// Remove what is known of a job, unless a claim runs it or waits for it.
    ForgetJob,
}

/// A lease that must be current when the store does the write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Precondition {
    /// What is leased.
    pub name: Name,
    /// By which claim.
    pub claim_id: ClaimId,
    /// How it is shared.
    pub mode: Mode,
    /// The grant's number.
    pub number: GrantNumber,
}

/// What is to be done, in the store's own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteBody {
    /// Commands, one after the other.
    Commands {
        /// Every key that they touch.
        keys: Vec<Vec<u8>>,
        /// The words of each: its name, its keys and its arguments.
        commands: Vec<Vec<Vec<u8>>>,
    },
    /// A script.
    Script {
        /// Its text.
        text: String,
        /// Every key that it touches.
        keys: Vec<Vec<u8>>,
        /// What else it is given.
        args: Vec<Vec<u8>>,
    },
}

/// A write with what it is checked against. It is sent once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedWrite {
    /// One lease or several of one server. Each must be current, or nothing is done.
    pub leases: Arc<[Precondition]>,
    /// What is to be done.
    pub body: WriteBody,
}
