//! Callers that write under their leases. A write is one message and is sent once. The server executes it if
//! the ledger reports all leases as current. Only some worlds have writes, with random numbers of their own,
//! so the other worlds stay the same.

use std::sync::Arc;
use std::time::Duration;

use tenure::protocol::step::{AcquireError, Input, Ticket};
use tenure::protocol::write::{Action, GuardedWrite, Precondition, WriteBody};

use crate::coverage::Seen;
use crate::world::World;
use crate::world::caller::{Act, Caller, Fetches, State};
use crate::world::event::Event;
use crate::world::write::Writer;

impl World {
    /// Plans the writes of a holder during its hold.
    pub(crate) fn plan_writes(&mut self, slot: usize, caller: usize, hold: u64) {
        if !self.profile.writes {
            return;
        }
        let life = self.nodes[slot].life;
        for _ in 0..self.of_writes.usize(0..3) {
            // Half of the writes are sent shortly before the release.
            let pause = if self.of_writes.bool() {
                hold.saturating_sub(1_000)
            } else {
                self.of_writes.u64(0..=hold)
            };
            let act = Act::Write;
            self.after(
                pause,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act,
                },
            );
        }
    }

    /// Starts a write if the caller still holds. Half of the writes also need the lease of another caller of
    /// the node.
    pub(crate) fn begin_write(&mut self, slot: usize, caller: usize) {
        let mut callers = vec![caller];
        if self.of_writes.bool() {
            let node = &self.nodes[slot];
            let key = node.callers[caller].key;
            let is_other = |other: &&usize| {
                let Caller { key: of, state, .. } = node.callers[**other];
                of != key && state == State::Holding
            };
            // The other lease comes first, so the server must also check the lease of the writing caller.
            callers.splice(..0, node.live.iter().copied().find(|other| is_other(&other)));
        }
        let (mut writers, mut leases, mut shortest) = (Vec::new(), Vec::new(), Duration::MAX);
        for caller in callers {
            let Some((writer, precondition, lease)) = self.begin_write_of(slot, caller) else {
                for (writer, lease) in writers.iter().zip(leases) {
                    let Writer { key, .. } = *writer;
                    self.feed(slot, key, Input::WriteEnded(lease, false));
                }
                return self.saw(Seen::WriteTooLate);
            };
            writers.push(writer);
            leases.push(precondition);
            shortest = shortest.min(lease);
        }
        let (Writer { key, .. }, want) = (writers[0], self.nodes[slot].callers[caller].want);
        let (ticket, caller) = self.new_caller(slot, key, want, Fetches::Never);
        self.nodes[slot].callers[caller].state = State::Writing;
        self.note(Some(slot), Some(key), || {
            format!("ticket {} writes as {writers:?}", ticket.0)
        });
        // The body of a write is its own number.
        let write = GuardedWrite {
            leases: leases.into(),
            body: WriteBody::Script {
                text: self.written.len().to_string(),
                keys: Vec::new(),
                args: Vec::new(),
            },
        };
        self.written.push(writers);
        let act = Input::Act(ticket, shortest, Action::Write(Arc::new(write)));
        self.feed(slot, key, act);
    }

    /// Returns the precondition of the write for one holder, and the length of its lease.
    pub(crate) fn begin_write_of(
        &mut self,
        slot: usize,
        caller: usize,
    ) -> Option<(Writer, Precondition, Duration)> {
        let key = self.nodes[slot].callers[caller].key;
        let (local, ticket) = (self.local(slot), Ticket(caller as u64 + 1));
        let (node, name) = (&mut self.nodes[slot], &self.keys[key]);
        let (precondition, lease) = node.shard.begin_write(local, name, ticket)?;
        let fence = node.shard.holding(local, name, ticket)?.fence;
        Some((Writer { key, fence }, precondition, lease))
    }

    /// Counts a denied write: it was not executed, or its outcome is unknown.
    pub(crate) fn write_denied(&mut self, denial: &AcquireError) {
        self.saw(match denial {
            AcquireError::Unanswered(_) => Seen::WriteUnanswered,
            _ => Seen::WriteNotSent,
        });
    }
}
