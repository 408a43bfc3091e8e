//! What all callers share: they enter, act, look at their guard, and leave.

use tenure::protocol::session::step::SessionInput;
use tenure::protocol::step::{CallOptions, Input, LockOptions, Ticket};

use crate::coverage::Seen;
use crate::time::MS;
use crate::violation::Wrong;
use crate::world::World;
use crate::world::caller::{Act, Caller, Fetches, State};
use crate::world::event::Event;
use crate::world::signal::Signal;

impl World {
    /// Adds a caller for a call. The call must still be fed to the node with the returned ticket.
    pub(crate) fn new_call(&mut self, slot: usize, key: usize, call: &CallOptions) -> (Ticket, usize) {
        let want = LockOptions {
            mode: call.mode,
            wait: call.call.is_watched(),
            mark: call.mark,
            ..LockOptions::new(call.term)
        };
        let (ticket, caller) = self.new_caller(slot, key, want, Fetches::Never);
        self.nodes[slot].callers[caller].asks = Some(call.call);
        (ticket, caller)
    }

    /// Adds a caller for a key. The caller may cancel before it is granted.
    pub(crate) fn enter(&mut self, slot: usize, key: usize, want: LockOptions) -> Ticket {
        let (crowd, life) = (self.profile.crowd, self.nodes[slot].life);
        let (ticket, caller) = self.new_caller(slot, key, want, Fetches::Later);
        if !crowd && self.chance(25) {
            let patience = self.rng.u64(0..want.term.lease_ms * MS);
            self.after(
                patience,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act: Act::GiveUp,
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
        want: LockOptions,
        fetches: Fetches,
    ) -> (Ticket, usize) {
        let asked_at = self.now;
        let node = &mut self.nodes[slot];
        let ticket = node.shard.issue();
        let caller = node.callers.len();
        debug_assert_eq!(ticket.0 as usize, caller + 1);
        node.callers.push(Caller {
            key,
            want,
            asks: None,
            state: State::Waiting,
            fetches,
            dark: false,
            claim: None,
            since: None,
            asked_at,
            travels: false,
            letter: None,
            in_time: false,
            before: None,
        });
        node.live.push(caller);
        node.asked += 1;
        (ticket, caller)
    }

    /// Does the next planned action of a caller.
    pub(crate) fn act(&mut self, slot: usize, caller: usize, act: Act) {
        let ticket = Ticket(caller as u64 + 1);
        let Caller {
            key, state, fetches, ..
        } = self.nodes[slot].callers[caller];
        match (act, state) {
            (Act::GiveUp, State::Waiting) => {
                let under_way = !self.nodes[slot].requests.is_empty();
                self.saw(if under_way {
                    Seen::CancelInFlight
                } else {
                    Seen::CancelWaiting
                });
                self.nodes[slot].callers[caller].state = State::GivingUp;
                // A caller whose wait ends asks for a sign of life, too.
                self.tell_session(slot, SessionInput::SignWanted);
                self.feed(slot, key, Input::Cancel(ticket));
                self.over(slot, caller);
            }
            (Act::Fetch, State::Holding) => self.fetch(slot, caller),
            (Act::Look, State::Holding) => {
                self.look(slot, caller);
            }
            (Act::Release, State::Holding) => {
                let held = self.look(slot, caller);
                self.nodes[slot].callers[caller].state = State::Releasing {
                    held,
                    finished: false,
                };
                self.feed(slot, key, Input::Release(ticket));
            }
            (Act::Finish, State::Holding) => {
                let held = self.look(slot, caller);
                self.nodes[slot].callers[caller].state = State::Releasing { held, finished: true };
                let well = !caller.is_multiple_of(4);
                self.feed(slot, key, Input::Finish(ticket, well));
            }
            (Act::Downgrade, State::Holding) => self.downgrade(slot, caller),
            (Act::Transfer, State::Holding) => self.transfer(slot, caller),
            (Act::HandOut, State::Holding) => self.hand_out(slot, caller),
            (Act::Write, State::Holding) => self.begin_write(slot, caller),
            (Act::Save, _) => self.save(slot, caller),
            (Act::Proclaim, _) => self.proclaim(slot, caller),
            // The future is dropped, not the guard.
            (Act::GiveUp, State::Holding) if fetches == Fetches::Later => self.act(slot, caller, Act::Drop),
            (Act::Drop, State::Holding) => {
                self.saw(Seen::CancelHolder);
                self.feed(slot, key, Input::Cancel(ticket));
                self.over(slot, caller);
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
        let revived = held && asking.dark;
        asking.dark |= !held;
        self.log.mix(u64::from(held));
        self.note(Some(slot), Some(key), || {
            format!("ticket {} looks: held {held}", caller + 1)
        });
        if revived {
            self.wrong(Wrong::Revived, Some(key), || {
                format!("ticket {} of node {slot} holds again", caller + 1)
            });
        }
        if held {
            self.raise(Signal::KeyChanged { key });
        }
        held
    }

    pub(crate) fn over(&mut self, slot: usize, caller: usize) {
        let node = &mut self.nodes[slot];
        node.callers[caller].state = State::Over;
        node.live.retain(|live| *live != caller);
    }

    pub(crate) fn expect(
        &mut self,
        slot: usize,
        ticket: Ticket,
        told: &str,
        expected: impl Fn(State) -> bool,
    ) -> usize {
        let caller = ticket.0 as usize - 1;
        let Caller { key, state, .. } = self.nodes[slot].callers[caller];
        self.log.mix(ticket.0);
        self.note(Some(slot), Some(key), || {
            format!("   => ticket {} {told}", ticket.0)
        });
        if !expected(state) {
            self.wrong(Wrong::Outcome, Some(key), || {
                format!(
                    "ticket {} of node {slot} is {state:?} and was told: {told}",
                    ticket.0
                )
            });
        }
        caller
    }
}
