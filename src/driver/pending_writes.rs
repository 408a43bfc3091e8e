//! The writes of a server that somebody waits for, and what each of them is told.

#![cfg_attr(
    not(feature = "redis"),
    allow(dead_code, reason = "no other store has data of callers")
)]

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::protocol::message::Name;
use crate::protocol::step::Ticket;
use crate::protocol::write::{Precondition, WriteBody, WriteId};
use crate::store::WriteReply;

/// What became of a write.
pub(crate) type Written = Result<WriteReply, Unwritten>;

/// Why a write was not done, as far as is known.
#[derive(Debug)]
pub(crate) enum Unwritten {
    /// The lease was over before it was sent.
    NotHeld,
    /// The leases are not of one server, which could look at all of them in one step. Nothing was sent.
    Apart,
    /// The store says that the lease at this place is not current. Nothing was done.
    NotCurrent(usize),
    /// The store failed it in these words, perhaps half-way.
    Failed(String),
    /// Nothing was done.
    NotDone(StoreError),
    /// It may have been done, and may still be.
    Unanswered(StoreError),
}

/// The writes that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    last: u64,
    pub(crate) pending: HashMap<WriteId, Pending>,
}

#[derive(Debug)]
pub(crate) struct Pending {
    /// Until it is sent.
    pub(crate) body: Option<WriteBody>,
    /// What it is checked against.
    pub(crate) leases: Arc<[Precondition]>,
    /// The holder of each lease.
    pub(crate) tickets: Vec<Ticket>,
    pub(crate) tell: oneshot::Sender<Written>,
}

impl Pending {
    /// Each lease and its holder.
    pub(crate) fn holders(&self) -> impl Iterator<Item = (&Name, Ticket)> {
        let names = self.leases.iter().map(|lease| &lease.name);
        names.zip(self.tickets.iter().copied())
    }

    /// Wakes foreign code, which may panic. Not to be called under a lock.
    pub(crate) fn tell(self, written: Written) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.tell.send(written)));
    }
}

impl Writes {
    pub(crate) fn add(&mut self, pending: Pending) -> WriteId {
        self.last += 1;
        let id = WriteId(self.last);
        self.pending.insert(id, pending);
        id
    }
}
