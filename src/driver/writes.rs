//! Writes of callers' data, from the caller to the server and back: who waits for which answer.
//!
//! A caller's thread asks the key machine for what the write is checked against, leaves its number with the session and
//! wakes the driver, which sends it. The holding is free of it again when there is an answer, or when it was not sent.

#![cfg_attr(
    not(feature = "redis"),
    allow(dead_code, reason = "no other store has data of callers")
)]

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::driver::node::Node;
use crate::driver::outage::Failed;
use crate::driver::pending_writes::{Pending, Unwritten, Written, written};
use crate::driver::servers::Server;
use crate::driver::waiter::lock;
use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::message::{BatchReply, Executed, Failure, Name, Unanswered};
use crate::protocol::session_step::{Attempt, BatchId, SessionInput};
use crate::protocol::step::{Input, Ticket};
use crate::protocol::write::{GuardedWrite, Precondition, WriteBody, WriteId};

impl Node {
    /// Has something written under what this ticket holds, and answers what becomes of it.
    pub(crate) fn write(
        self: &Arc<Self>,
        name: &Name,
        ticket: Ticket,
        body: WriteBody,
    ) -> oneshot::Receiver<Written> {
        let (tell, answer) = oneshot::channel();
        if self.servers.at_once().is_some() {
            let error = StoreError::refused(StoreRefusal::Unsupported);
            let _ = tell.send(Err(Unwritten::NotDone(error)));
            return answer;
        }
        let Some((precondition, lease)) = self.begin_write(name, ticket) else {
            let _ = tell.send(Err(Unwritten::NotHeld));
            return answer;
        };
        let server = self.servers.of(name);
        let write = lock(&server.writes).add(Pending {
            write: Some(GuardedWrite { precondition, body }),
            name: name.clone(),
            ticket,
            tell,
        });
        self.feed(server, SessionInput::Write(write, lease));
        self.alarm.ring();
        answer
    }

    /// A holder is about to write: what that is checked against, and the length of the lease.
    fn begin_write(&self, name: &Name, ticket: Ticket) -> Option<(Precondition, Duration)> {
        let mut keys = lock(&self.cell(name).keys);
        let now = keys.now(&self.clock);
        keys.shard.begin_write(now, name, ticket)
    }

    /// A write of a holder was answered, or is never sent.
    pub(super) fn end_write_of(&self, name: &Name, ticket: Ticket) {
        lock(&self.cell(name).keys).shard.end_write(name, ticket);
    }

    /// The session wants it sent.
    pub(crate) fn send_write(
        self: &Arc<Self>,
        server: &Arc<Server>,
        connection: Attempt,
        id: BatchId,
        write: WriteId,
    ) {
        let mut writes = lock(&server.writes);
        let pending = writes.pending.get_mut(&write);
        let to_send = pending.and_then(|pending| {
            let guarded = pending.write.take()?;
            Some((guarded, pending.name.clone(), pending.ticket))
        });
        drop(writes);
        // It may have waited for a connection for longer than its lease.
        let is_held = |(_, name, ticket): &(_, Name, Ticket)| self.remaining(name, *ticket).is_some();
        let Some((guarded, ..)) = to_send.filter(is_held) else {
            self.end_write(server, write, Err(Unwritten::NotHeld));
            let error = StoreError::refused(StoreRefusal::Other("the lease is over".into()));
            return self.not_sent(server, id, error);
        };
        let mut io = lock(&server.io);
        let Some(open) = io.connections.get_mut(&connection) else {
            drop(io);
            let error = StoreError::new(StoreErrorKind::Interrupted, "the connection is closed");
            return self.not_sent(server, id, error);
        };
        while open.batches.try_join_next().is_some() {}
        let answer = open.link.write(guarded);
        let (node, to) = (self.clone(), server.clone());
        open.batches.spawn(async move {
            let reply = answer.await.map(|answer| {
                node.end_write(&to, write, written(answer));
                BatchReply {
                    time: 0,
                    replies: Vec::new(),
                }
            });
            node.happened(&to, SessionInput::Replied { batch: id, reply });
        });
    }

    fn not_sent(self: &Arc<Self>, server: &Arc<Server>, id: BatchId, error: StoreError) {
        let reply = Err(Failure {
            executed: Executed::No,
            error,
        });
        self.feed(server, SessionInput::Replied { batch: id, reply });
    }

    /// It came to nothing, or nobody knows what became of it.
    pub(crate) fn write_failed(
        self: &Arc<Self>,
        server: &Server,
        write: WriteId,
        why: Unanswered,
        error: StoreError,
    ) {
        match why {
            Unanswered::No | Unanswered::Down => {
                self.end_write(server, write, Err(Unwritten::NotDone(error.clone())));
            }
            // It may still be done: the holding is not free of it.
            Unanswered::Unknown | Unanswered::Bystander => {
                let pending = lock(&server.writes).pending.remove(&write);
                pending
                    .into_iter()
                    .for_each(|pending| pending.tell(Err(Unwritten::Unanswered(error.clone()))));
            }
        }
        self.failed(server, Failed::Request, &error);
    }

    /// Nothing of it is under way any more. What comes after its caller was told that there is no answer tells nobody.
    fn end_write(self: &Arc<Self>, server: &Server, write: WriteId, written: Written) {
        let pending = lock(&server.writes).pending.remove(&write);
        if let Some(pending) = pending {
            self.end_write_of(&pending.name, pending.ticket);
            if matches!(written, Err(Unwritten::NotCurrent)) {
                self.drive(&pending.name, Input::Doubted(pending.ticket));
            }
            pending.tell(written);
        }
    }
}
