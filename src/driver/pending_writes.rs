//! The writes of a server that somebody waits for, and what each of them is told.

#![cfg_attr(
    not(feature = "redis"),
    allow(dead_code, reason = "no other store has data of callers")
)]

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::protocol::message::Name;
use crate::protocol::step::Ticket;
use crate::protocol::write::{GuardedWrite, WriteId};
use crate::store::{WriteAnswer, WriteReply};

/// What became of a write.
pub(crate) type Written = Result<WriteReply, Unwritten>;

/// Why a write was not done, as far as is known.
#[derive(Debug)]
pub(crate) enum Unwritten {
    /// The lease was over before it was sent.
    NotHeld,
    /// The store says that the lease is not current. Nothing was done.
    NotCurrent,
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
    pub(crate) write: Option<GuardedWrite>,
    pub(crate) name: Name,
    pub(crate) ticket: Ticket,
    pub(crate) tell: oneshot::Sender<Written>,
}

impl Pending {
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

pub(crate) fn written(answer: WriteAnswer) -> Written {
    match answer {
        WriteAnswer::Done(reply) => Ok(reply),
        WriteAnswer::NotCurrent => Err(Unwritten::NotCurrent),
        WriteAnswer::Failed(text) => Err(Unwritten::Failed(text)),
    }
}
