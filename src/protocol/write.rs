//! Writes of users' data that are done only while a lease is current: what is sent, and what it is checked against.

use std::sync::Arc;

use crate::protocol::message::{GrantNumber, Holder, Mode, Name};

/// A write that was asked for. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// A lease that must be current when the store does the write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Precondition {
    /// What is leased.
    pub name: Name,
    /// By which claim.
    pub holder: Holder,
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
