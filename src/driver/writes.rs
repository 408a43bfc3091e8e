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
use crate::driver::pending_writes::{Pending, Unwritten, Written};
use crate::driver::servers::Server;
use crate::driver::waiter::lock;
use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::protocol::message::{BatchReply, Executed, Failure, Name, Unanswered};
use crate::protocol::session::step::{Attempt, BatchId, SessionInput};
use crate::protocol::step::{Input, Ticket};
use crate::protocol::write::{GuardedWrite, Precondition, WriteBody, WriteId};
use crate::store::WriteAnswer;

impl Node {
    /// Has something written under the leases of these holders, and answers what becomes of it.
    pub(crate) fn write(
        self: &Arc<Self>,
        holders: &[(&Name, Ticket)],
        body: WriteBody,
    ) -> oneshot::Receiver<Written> {
        let (tell, answer) = oneshot::channel();
        if self.servers.at_once().is_some() {
            let error = StoreError::refused(StoreRefusal::Unsupported);
            let _ = tell.send(Err(Unwritten::NotDone(error)));
            return answer;
        }
        let Some(server) = self.servers.of_all(holders.iter().map(|(name, _)| *name)) else {
            let _ = tell.send(Err(Unwritten::Apart));
            return answer;
        };
        let Some((leases, shortest)) = self.begin_write(holders) else {
            let _ = tell.send(Err(Unwritten::NotHeld));
            return answer;
        };
        let write = lock(&server.writes).add(Pending {
            body: Some(body),
            leases,
            tickets: holders.iter().map(|(_, ticket)| *ticket).collect(),
            tell,
        });
        self.feed(server, SessionInput::Write(write, shortest));
        self.alarm.ring();
        answer
    }

    /// Holders are about to write: what that is checked against, and the length of the shortest lease. `None` if a lease is
    /// over, and then no holding counts the write.
    fn begin_write(&self, holders: &[(&Name, Ticket)]) -> Option<(Arc<[Precondition]>, Duration)> {
        let (mut leases, mut shortest) = (Vec::with_capacity(holders.len()), Duration::MAX);
        for (name, ticket) in holders {
            let mut keys = lock(&self.cell(name).keys);
            let now = keys.now(&self.clock);
            let begun = keys.shard.begin_write(now, name, *ticket);
            drop(keys);
            let Some((precondition, lease)) = begun else {
                let before = holders.iter().take(leases.len());
                before.for_each(|(name, ticket)| self.end_write_of(name, *ticket));
                return None;
            };
            leases.push(precondition);
            shortest = shortest.min(lease);
        }
        Some((leases.into(), shortest))
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
            let (body, leases) = (pending.body.take()?, pending.leases.clone());
            Some((GuardedWrite { leases, body }, pending.tickets.clone()))
        });
        drop(writes);
        // It may have waited for a connection for longer than its shortest lease.
        let is_held = |(guarded, tickets): &(GuardedWrite, Vec<Ticket>)| {
            let mut holders = guarded.leases.iter().zip(tickets);
            holders.all(|(lease, ticket)| {
                let holding = self.holding(&lease.name, *ticket);
                holding.is_some_and(|holding| holding.is_held())
            })
        };
        let Some((guarded, _)) = to_send.filter(is_held) else {
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
                node.write_answered(&to, write, answer);
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

    /// The server says what it did. A lease that is not current there is lost here before its holder hears of the write.
    fn write_answered(self: &Arc<Self>, server: &Server, write: WriteId, answer: WriteAnswer) {
        let written = match answer {
            WriteAnswer::Done(reply) => Ok(reply),
            WriteAnswer::Failed(text) => Err(Unwritten::Failed(text)),
            WriteAnswer::NotCurrent(places) => {
                let writes = lock(&server.writes);
                let leases = writes.pending.get(&write).map(|pending| pending.leases.clone());
                drop(writes);
                let leases = leases.unwrap_or_default();
                let refuted = places.iter().filter_map(|place| leases.get(*place));
                self.drive_each(
                    refuted.map(|lease| (&lease.name, Input::Refuted(lease.holder, lease.number))),
                );
                Err(Unwritten::NotCurrent(places.first().copied().unwrap_or(0)))
            }
        };
        self.end_write(server, write, written);
    }

    /// Nothing of it is under way any more. What comes after its caller was told that there is no answer tells nobody.
    fn end_write(self: &Arc<Self>, server: &Server, write: WriteId, written: Written) {
        let pending = lock(&server.writes).pending.remove(&write);
        if let Some(pending) = pending {
            let holders = pending.holders();
            holders.for_each(|(name, ticket)| self.end_write_of(name, ticket));
            pending.tell(written);
        }
    }
}
