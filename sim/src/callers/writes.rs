//! Callers that write under their leases. A write is one message and is sent once. The server executes it if
//! the ledger reports all leases as current. Only some worlds have writes, with random numbers of their own,
//! so the other worlds stay the same.

use std::sync::Arc;
use std::time::Duration;

use tenure::protocol::step::{AcquireError, Input, Ticket, WhyDenied};
use tenure::protocol::write::{Action, GuardedWrite, Precondition, WriteBody};

use crate::coverage::Case;
use crate::world::World;
use crate::world::caller::{Caller, CallerAction, CallerState, TakeUp};
use crate::world::event::Event;
use crate::world::write::WriteLease;

impl World {
    /// Plans the writes of a holder during its hold.
    pub(crate) fn plan_writes(&mut self, slot: usize, caller: usize, hold: u64) {
        if !self.profile.writes {
            return;
        }
        let life = self.nodes[slot].life;
        for _ in 0..self.write_rng.usize(0..3) {
            // Half of the writes are sent shortly before the release.
            let pause = if self.write_rng.bool() {
                hold.saturating_sub(1_000)
            } else {
                self.write_rng.u64(0..=hold)
            };
            let act = CallerAction::Write;
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
        if self.write_rng.bool() {
            let node = &self.nodes[slot];
            let key = node.callers[caller].key;
            let is_other = |other: &&usize| {
                let Caller { key: of, state, .. } = node.callers[**other];
                of != key && state == CallerState::Holding && self.hash_slot(of) == self.hash_slot(key)
            };
            // The other lease comes first, so the server must also check the lease of the writing caller.
            callers.splice(..0, node.live.iter().copied().find(|other| is_other(&other)));
        }
        let (mut writers, mut leases, mut shortest) = (Vec::new(), Vec::new(), Duration::MAX);
        for caller in callers {
            let Some((writer, precondition, lease)) = self.begin_write_of(slot, caller) else {
                for (writer, lease) in writers.iter().zip(leases) {
                    let WriteLease { key, .. } = *writer;
                    self.feed(slot, key, Input::WriteEnded(lease, false));
                }
                return self.cover(Case::WriteTooLate);
            };
            writers.push(writer);
            leases.push(precondition);
            shortest = shortest.min(lease);
        }
        let (WriteLease { key, .. }, options) = (writers[0], self.nodes[slot].callers[caller].options);
        let (ticket, caller) = self.new_caller(slot, key, options, TakeUp::Never);
        self.nodes[slot].callers[caller].state = CallerState::Writing;
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
    ) -> Option<(WriteLease, Precondition, Duration)> {
        let key = self.nodes[slot].callers[caller].key;
        let (local, ticket) = (self.local(slot), Ticket(caller as u64 + 1));
        let (node, name) = (&mut self.nodes[slot], &self.keys[key]);
        let (precondition, lease) = node.shard.begin_write(local, name, ticket)?;
        let fence = node.shard.holding(local, name, ticket)?.fence;
        Some((WriteLease { key, fence }, precondition, lease))
    }

    /// Counts a denied write: it was not executed, or its outcome is unknown.
    pub(crate) fn write_denied(&mut self, denial: &WhyDenied) {
        self.cover(match denial {
            WhyDenied::Error(AcquireError::Unanswered(_)) => Case::WriteUnanswered,
            _ => Case::WriteNotSent,
        });
    }
}
