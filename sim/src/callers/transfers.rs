//! Callers that transfer a lease to another process, and callers that adopt it.

use tenure::protocol::message::Call;
use tenure::protocol::step::{CallOptions, Input, LockOptions, Ticket};

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::caller::{Caller, CallerAction, CallerState, TakeUp};
use crate::world::event::Event;
use crate::world::transfer::TransferMessage;

impl World {
    /// Returns whether a holder transfers its lease instead of releasing it. It is derived, not drawn, so the
    /// other choices of the seed stay the same.
    pub(crate) fn is_transferred(&self, caller: usize, options: &LockOptions) -> bool {
        self.profile.transfers && caller % 3 == 2 && options.mark.is_none() && !self.draining
    }

    /// A holder gives up its lease for a transfer.
    pub(crate) fn transfer(&mut self, slot: usize, caller: usize) {
        let ticket = Ticket(caller as u64 + 1);
        let Caller { key, options, .. } = self.nodes[slot].callers[caller];
        let name = self.keys[key].clone();
        if self.nodes[slot].shard.reads_with_others(&name, ticket) {
            return self.act(slot, caller, CallerAction::Drop);
        }
        let held = self.look(slot, caller);
        self.nodes[slot].callers[caller].state = CallerState::Releasing {
            held,
            finished: false,
        };
        let next = LockOptions {
            fixed: true,
            solo: true,
            wait: true,
            max_hold: None,
            limit: usize::MAX,
            node_is_full: false,
            ..options
        };
        let (to, made) = self.new_caller(slot, key, next, TakeUp::Pending);
        self.nodes[slot].callers[made].is_for_transfer = true;
        self.nodes[slot].callers[made].before = Some(caller);
        self.nodes[slot].callers[made].asked_at = self.now;
        self.feed(slot, key, Input::Transfer(ticket, to, next.term));
    }

    /// Sends the messages of a transfer: one or two copies, in time or late. The lease belongs to this node
    /// no longer.
    pub(crate) fn send_transfer(&mut self, slot: usize, caller: usize) {
        let ticket = Ticket(caller as u64 + 1);
        if !self.look(slot, caller) {
            return self.act(slot, caller, CallerAction::Drop);
        }
        let Caller {
            key,
            options,
            asked_at,
            ..
        } = self.nodes[slot].callers[caller];
        let name = self.keys[key].clone();
        let holding = self.nodes[slot].shard.holding(self.local(slot), &name, ticket);
        let Some(of) = holding.map(|holding| holding.claim) else {
            return;
        };
        self.nodes[slot].callers[caller].state = CallerState::Releasing {
            held: true,
            finished: false,
        };
        let message = self.transfer_messages.len();
        self.transfer_messages.push(TransferMessage {
            key,
            of,
            mode: options.mode,
            until: asked_at + options.term.lease_ms * MS,
            adopted: None,
            asked: 0,
        });
        self.cover(Case::TransferSent);
        self.feed(slot, key, Input::HandedOut(ticket));
        let mut rng = fastrand::Rng::with_seed(self.setup.seed ^ self.now ^ caller as u64);
        // The replica knows the transfer, and the first adoption may be lost.
        let is_again = self.profile.failover_lag.is_some();
        if is_again && self.in_fault_period() {
            self.after(0, Event::FailOver);
        }
        let copies = if rng.u8(..3) == 0 || is_again { 2 } else { 1 };
        for copy in 0..copies {
            let way = match rng.u8(..8) {
                _ if is_again && copy > 0 => options.term.lease_ms * MS / 2,
                0 => options.term.lease_ms * MS * 3 / 2,
                1 => options.term.lease_ms * MS / 2,
                _ => 5 * MS,
            };
            let (way, choice) = (rng.u64(0..=way), rng.u8(..8));
            let slot = rng.usize(..self.nodes.len());
            self.after(
                way,
                Event::TransferMessage {
                    slot,
                    message,
                    choice,
                },
            );
        }
    }

    /// A transfer message reaches a node, which adopts, extends or releases the lease.
    pub(crate) fn deliver(&mut self, slot: usize, message: usize, choice: u8) {
        let node = &self.nodes[slot];
        if self.draining || !node.alive || node.paused.is_some() {
            return;
        }
        let TransferMessage { key, of, mode, .. } = self.transfer_messages[message];
        let term = self.profile.terms[self.now as usize % self.profile.terms.len()];
        let call = match choice {
            0 => Some(Call::Release { of, repeats: false }),
            1 => Some(Call::Extend { of }),
            _ => None,
        };
        let (caller, input) = if let Some(call) = call {
            let call = CallOptions {
                mode,
                ..CallOptions::new(term, call)
            };
            let (ticket, caller) = self.new_call(slot, key, &call);
            (caller, Input::Call(ticket, call))
        } else {
            let options = LockOptions {
                mode,
                solo: true,
                ..LockOptions::new(term)
            };
            let (ticket, caller) = self.new_caller(slot, key, options, TakeUp::Pending);
            (caller, Input::Adopt(ticket, options, of))
        };
        let soon = self.now + 6 * self.profile.delay.1 + 100 * MS;
        let found = &mut self.transfer_messages[message];
        let in_time = soon < found.until && self.profile.fault_period.1 == 0;
        found.asked += u32::from(call != Some(Call::Extend { of }));
        let asking = &mut self.nodes[slot].callers[caller];
        (asking.message, asking.in_time) = (Some(message), in_time);
        self.feed(slot, key, input);
    }
}
