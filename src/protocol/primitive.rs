//! The primitives that a store may be unable to serve.

use crate::protocol::message::{Kind, Mode, Name};
use crate::protocol::step::{Input, Ticket};
use crate::protocol::write::Action;

/// What callers ask a store for. The text is the plural for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
pub enum Primitive {
    /// Exclusive locks, on one key or on several, also with a fixed lease.
    #[strum(to_string = "mutexes")]
    Mutex,
    /// Locks in the order of arrival across processes.
    #[strum(to_string = "fair locks")]
    FairLock,
    /// Locks of readers.
    #[strum(to_string = "read locks")]
    ReadLock,
    /// Permits.
    #[strum(to_string = "semaphores")]
    Semaphore,
    /// Count-down latches.
    #[strum(to_string = "latches")]
    Latch,
    /// Elections.
    #[strum(to_string = "elections")]
    Election,
    /// Leases that another process adopts, and writers that become readers.
    #[strum(to_string = "transfers")]
    Transfer,
    /// Leased jobs.
    #[strum(to_string = "jobs")]
    Job,
    /// Writes that are executed while a lease is current.
    #[strum(to_string = "writes under a lease")]
    Write,
    /// Leases that an operator takes from their holders.
    #[strum(to_string = "steals")]
    Steal,
}

impl Primitive {
    /// Returns the caller and the primitive of an input with which a caller begins; `None` for all other inputs.
    pub fn wanted_by(name: &Name, input: &Input) -> Option<(Ticket, Primitive)> {
        let (ticket, of_lock) = match input {
            Input::Lock(ticket, options) if options.mode == Mode::Read => (ticket, Primitive::ReadLock),
            Input::Lock(ticket, options) if options.solo => (ticket, Primitive::FairLock),
            Input::Lock(ticket, _) => (ticket, Primitive::Mutex),
            Input::Adopt(ticket, ..) => return Some((*ticket, Primitive::Transfer)),
            Input::Act(ticket, _, Action::Write(_)) => return Some((*ticket, Primitive::Write)),
            // The calls about a lock extend or release a transfer.
            Input::Campaign(ticket, ..) | Input::Call(ticket, _) | Input::Act(ticket, ..) => {
                (ticket, Primitive::Transfer)
            }
            _ => return None,
        };
        let primitive = match name.kind {
            Kind::Lock => of_lock,
            Kind::Job => Primitive::Job,
            Kind::Semaphore => Primitive::Semaphore,
            Kind::Latch => Primitive::Latch,
            Kind::Election => Primitive::Election,
        };
        Some((*ticket, primitive))
    }
}
