//! What all callers share: they enter, act, look at their guard, and leave.

use tenure::protocol::message::RunOutcome;
use tenure::protocol::step::{CallOptions, Input, LockOptions, Ticket};

use crate::coverage::Case;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::{Caller, CallerAction, CallerState, TakeUp};
use crate::world::event::Event;
use crate::world::signal::Signal;

impl World {
    /// Adds a caller for a call. The call must still be fed to the node with the returned ticket.
    pub(crate) fn new_call(&mut self, slot: usize, key: usize, call: &CallOptions) -> (Ticket, usize) {
        let options = LockOptions {
            mode: call.mode,
            wait: call.call.is_watched(),
            mark: call.mark,
            ..LockOptions::new(call.term)
        };
        let (ticket, caller) = self.new_caller(slot, key, options, TakeUp::Never);
        self.nodes[slot].callers[caller].call = Some(call.call);
        (ticket, caller)
    }

    /// Adds a caller for a key. The caller may cancel before it is granted.
    pub(crate) fn add_caller(&mut self, slot: usize, key: usize, options: LockOptions) -> Ticket {
        let (crowd, life) = (self.profile.crowd, self.nodes[slot].life);
        let (ticket, caller) = self.new_caller(slot, key, options, TakeUp::Pending);
        if !crowd && self.chance(25) {
            let patience = self.rng.u64(0..options.term.lease_ms * MS);
            self.after(
                patience,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act: CallerAction::GiveUp,
                },
            );
        }
        ticket
    }

    /// Adds a caller to a node. Its request must still be fed to the node with the returned ticket.
    pub(crate) fn new_caller(
        &mut self,
        slot: usize,
        key: usize,
        options: LockOptions,
        take_up_state: TakeUp,
    ) -> (Ticket, usize) {
        let asked_at = self.now;
        let node = &mut self.nodes[slot];
        let ticket = node.shard.issue();
        let caller = node.callers.len();
        debug_assert_eq!(ticket.0 as usize, caller + 1);
        node.callers.push(Caller {
            key,
            options,
            call: None,
            state: CallerState::Waiting,
            take_up_state,
            was_lost: false,
            claim: None,
            since: None,
            asked_at,
            is_for_transfer: false,
            message: None,
            in_time: false,
            before: None,
        });
        node.live.push(caller);
        node.asked += 1;
        (ticket, caller)
    }

    /// Does the next planned action of a caller.
    pub(crate) fn act(&mut self, slot: usize, caller: usize, act: CallerAction) {
        let ticket = Ticket(caller as u64 + 1);
        let Caller {
            key,
            state,
            take_up_state,
            ..
        } = self.nodes[slot].callers[caller];
        match (act, state) {
            (CallerAction::GiveUp, CallerState::Waiting) => {
                let is_in_flight = !self.nodes[slot].requests.is_empty();
                self.cover(if is_in_flight {
                    Case::CancelInFlight
                } else {
                    Case::CancelWaiting
                });
                self.nodes[slot].callers[caller].state = CallerState::GivingUp;
                // A caller whose wait ends asks for a sign of life, too.
                self.want_sign(slot);
                self.feed(slot, key, Input::Cancel(ticket));
                self.end_caller(slot, caller);
            }
            (CallerAction::TakeUp, CallerState::Holding) => self.take_up_grant(slot, caller),
            (CallerAction::Look, CallerState::Holding) => {
                self.look(slot, caller);
            }
            (CallerAction::Release, CallerState::Holding) => {
                let held = self.look(slot, caller);
                self.nodes[slot].callers[caller].state = CallerState::Releasing {
                    held,
                    finished: false,
                };
                self.feed(slot, key, Input::Release(ticket));
            }
            (CallerAction::Finish, CallerState::Holding) => {
                let held = self.look(slot, caller);
                self.nodes[slot].callers[caller].state = CallerState::Releasing { held, finished: true };
                let outcome = match caller.is_multiple_of(4) {
                    true => RunOutcome::Failed,
                    false => RunOutcome::Done,
                };
                self.feed(slot, key, Input::Finish(ticket, outcome.into()));
            }
            (CallerAction::HandOver, CallerState::Holding) => {
                let held = self.look(slot, caller);
                self.nodes[slot].callers[caller].state = CallerState::Releasing {
                    held,
                    finished: false,
                };
                self.feed(slot, key, Input::Finish(ticket, RunOutcome::HandedOver.into()));
            }
            (CallerAction::Downgrade, CallerState::Holding) => self.downgrade(slot, caller),
            (CallerAction::Transfer, CallerState::Holding) => self.transfer(slot, caller),
            (CallerAction::SendTransfer, CallerState::Holding) => self.send_transfer(slot, caller),
            (CallerAction::Write, CallerState::Holding) => self.begin_write(slot, caller),
            (CallerAction::Renew, CallerState::Holding) => self.renew(slot, caller),
            (CallerAction::Save, _) => self.save_checkpoint(slot, caller),
            (CallerAction::Proclaim, _) => self.proclaim(slot, caller),
            // The future is dropped, not the guard.
            (CallerAction::GiveUp, CallerState::Holding) if take_up_state == TakeUp::Pending => {
                self.act(slot, caller, CallerAction::Drop)
            }
            (CallerAction::Drop, CallerState::Holding) => {
                self.cover(Case::CancelHolder);
                self.feed(slot, key, Input::Cancel(ticket));
                self.end_caller(slot, caller);
            }
            _ => {}
        }
    }

    /// Returns whether a guard answers *held*. A guard can be asked at any moment, before any pending event
    /// is handled.
    pub(crate) fn look(&mut self, slot: usize, caller: usize) -> bool {
        let local = self.local(slot);
        let node = &mut self.nodes[slot];
        let asking = &mut node.callers[caller];
        let key = asking.key;
        let ticket = Ticket(caller as u64 + 1);
        let holding = node.shard.holding(local, &self.keys[key], ticket);
        let held = holding.is_some_and(|holding| holding.is_held());
        let revived = held && asking.was_lost;
        asking.was_lost |= !held;
        self.log.mix(u64::from(held));
        self.note(Some(slot), Some(key), || {
            format!("ticket {} looks: held {held}", caller + 1)
        });
        if revived {
            self.report(Violation::LostLeaseRevived, Some(key), || {
                format!("ticket {} of node {slot} holds again", caller + 1)
            });
        }
        if held {
            self.raise(Signal::KeyChanged { key });
        }
        held
    }

    /// Ends a caller.
    pub(crate) fn end_caller(&mut self, slot: usize, caller: usize) {
        let node = &mut self.nodes[slot];
        node.callers[caller].state = CallerState::Over;
        node.live.retain(|live| *live != caller);
    }

    /// Logs what a caller was told, and reports a violation if its state does not allow that. Returns the
    /// caller.
    pub(crate) fn expect_state(
        &mut self,
        slot: usize,
        ticket: Ticket,
        told: &str,
        expected: impl Fn(CallerState) -> bool,
    ) -> usize {
        let caller = ticket.0 as usize - 1;
        let Caller { key, state, .. } = self.nodes[slot].callers[caller];
        self.log.mix(ticket.0);
        self.note(Some(slot), Some(key), || {
            format!("   => ticket {} {told}", ticket.0)
        });
        if !expected(state) {
            self.report(Violation::WrongAnswer, Some(key), || {
                format!(
                    "ticket {} of node {slot} is {state:?} and was told: {told}",
                    ticket.0
                )
            });
        }
        caller
    }
}
