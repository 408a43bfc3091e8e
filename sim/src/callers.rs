//! Who wants locks: tries, waits, gives up, holds, releases, drops, and looks whether it still holds.

use crate::Wrong;
use crate::coverage::Seen;
use crate::world::{Event, MS, World};
use tenure::error::LostCause;
use tenure::protocol::message::{Fence, Holder};
use tenure::protocol::session_step::{Probe, SessionInput};
use tenure::protocol::step::{AcquireError, AcquireOptions, Input, Outcome, Ticket};

/// One caller, from its call to its last word.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) key: usize,
    pub(crate) want: AcquireOptions,
    pub(crate) state: State,
    /// Whether it takes up what it is granted: not yet, in time or late, never.
    pub(crate) fetches: Fetches,
    /// Was seen not to hold after it held.
    pub(crate) dark: bool,
    /// The claim that it holds or held by.
    pub(crate) claim: Option<Holder>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    /// Its future is being dropped: what it is told in that step, for what was due before, nobody hears.
    GivingUp,
    Holding,
    /// Waits for what became of its release; whether it held until then.
    Releasing {
        held: bool,
        finished: bool,
    },
    Over,
}

impl State {
    fn may_be_told(self) -> bool {
        matches!(self, State::Waiting | State::GivingUp)
    }
}

/// Whether a caller takes up what it is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetches {
    Later,
    Never,
    Did,
}

/// What a caller does next.
#[derive(Debug)]
pub(crate) enum Act {
    GiveUp,
    Fetch,
    Look,
    Release,
    Drop,
    Finish,
}

impl World {
    /// A caller comes, if there is room for one.
    pub(crate) fn arrival(&mut self, slot: usize) {
        if self.draining {
            return;
        }
        let pause = self.rng.u64(0..2 * self.profile.pause);
        self.after(pause, Event::Arrival { slot });
        let node = &self.nodes[slot];
        if !node.alive || node.paused.is_some() || node.live.len() >= self.profile.callers {
            return;
        }
        let (life, key) = (node.life, self.rng.usize(0..self.locks));
        if self.chance(1) {
            self.probe(slot);
        }
        let term = self.profile.terms[self.rng.usize(0..self.profile.terms.len())];
        // In a crowd the first holds for long, and all others wait with claims of their own.
        let (crowd, is_first) = (self.profile.crowd, self.nodes[slot].callers.is_empty());
        let want = AcquireOptions {
            term,
            wait: crowd || self.rng.u8(0..10) > 0,
            fixed: if crowd { !is_first } else { self.chance(10) },
            mark: None,
            limit: if self.rng.u8(0..50) == 0 { 1 } else { 1000 },
            node_is_full: self.rng.u8(0..100) == 0,
        };
        let node = &mut self.nodes[slot];
        let ticket = node.shard.issue();
        let caller = node.callers.len();
        debug_assert_eq!(ticket.0 as usize, caller + 1);
        node.callers.push(Caller {
            key,
            want,
            state: State::Waiting,
            fetches: Fetches::Later,
            dark: false,
            claim: None,
        });
        node.live.push(caller);
        node.asked += 1;
        if !crowd && self.chance(25) {
            let patience = self.rng.u64(0..term.lease_ms * MS);
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
        self.feed(slot, key, Input::Lock(ticket, want));
    }

    /// Somebody asks whether the server answers.
    fn probe(&mut self, slot: usize) {
        let now = self.now;
        let node = &mut self.nodes[slot];
        node.probed += 1;
        let probe = Probe(node.probed);
        node.probes.insert(probe, now);
        self.tell_session(slot, SessionInput::Probed(probe));
    }

    /// A caller does what it had in mind.
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
                self.feed(slot, key, Input::Finish(ticket));
            }
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

    /// What a guard's question sees, at any moment and before anything else was handled.
    pub(crate) fn look(&mut self, slot: usize, caller: usize) -> bool {
        let local = self.local(slot);
        let node = &mut self.nodes[slot];
        let asking = &mut node.callers[caller];
        let key = asking.key;
        let held = node
            .shard
            .remaining(local, &self.keys[key], Ticket(caller as u64 + 1))
            .is_some();
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
            self.check_key(key);
        }
        held
    }

    fn over(&mut self, slot: usize, caller: usize) {
        let node = &mut self.nodes[slot];
        node.callers[caller].state = State::Over;
        node.live.retain(|live| *live != caller);
    }

    // What callers are told.

    fn expect(&mut self, slot: usize, ticket: Ticket, told: &str, expected: impl Fn(State) -> bool) -> usize {
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

    pub(crate) fn granted(&mut self, slot: usize, ticket: Ticket, fence: Fence) {
        let told = if self.setup.history {
            format!("granted {}.{}", fence.number(), fence.get() & 1023)
        } else {
            String::new()
        };
        let caller = self.expect(slot, ticket, &told, State::may_be_told);
        let Caller { key, want, state, .. } = self.nodes[slot].callers[caller];
        if state == State::GivingUp {
            return self.watch_fence(slot, key, fence);
        }
        self.nodes[slot].callers[caller].state = State::Holding;
        self.nodes[slot].callers[caller].claim = self.nodes[slot].shard.claim(&self.keys[key], ticket);
        self.saw(Seen::Granted);
        if want.fixed {
            self.saw(Seen::GrantedFixed);
        }
        self.watch_fence(slot, key, fence);
        let life = self.nodes[slot].life;
        let lease = want.term.lease_ms * MS;
        let delay = match self.rng.u8(0..100) {
            0..3 => {
                self.nodes[slot].callers[caller].fetches = Fetches::Never;
                return;
            }
            3..8 => self.rng.u64(0..lease * 3 / 2),
            8..40 => self.rng.u64(0..2 * MS),
            _ => 0,
        };
        self.after(
            delay,
            Event::Caller {
                slot,
                life,
                caller,
                act: Act::Fetch,
            },
        );
    }

    /// The caller is polled, and makes a guard of what it was granted.
    fn fetch(&mut self, slot: usize, caller: usize) {
        let Caller { key, want, dark, .. } = self.nodes[slot].callers[caller];
        self.nodes[slot].callers[caller].fetches = Fetches::Did;
        if dark {
            self.saw(Seen::FetchedLost);
        }
        let ticket = Ticket(caller as u64 + 1);
        self.feed(slot, key, Input::Fetched(ticket));
        if self.nodes[slot].callers[caller].state != State::Holding {
            return;
        }
        if want.mark.is_some() {
            let local = self.local(slot);
            let fence = self.nodes[slot].shard.fence(local, &self.keys[key], ticket);
            if let Some(fence) = fence {
                self.run_begins(slot, caller, fence);
            }
            return;
        }
        self.hold(slot, caller);
    }

    fn hold(&mut self, slot: usize, caller: usize) {
        let Caller { want, .. } = self.nodes[slot].callers[caller];
        let hold = match self.rng.u8(0..100) {
            _ if self.draining => self.rng.u64(0..5 * MS),
            _ if self.profile.crowd => 1_800 * MS,
            0..4 => self.rng.u64(0..2 * want.term.lease_ms * MS),
            4..30 => 0,
            _ => self.rng.u64(0..self.profile.hold),
        };
        let life = self.nodes[slot].life;
        let act = if self.chance(60) { Act::Release } else { Act::Drop };
        self.after(
            hold,
            Event::Caller {
                slot,
                life,
                caller,
                act,
            },
        );
        if self.chance(20) {
            let pause = self.rng.u64(0..=hold);
            self.after(
                pause,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act: Act::Look,
                },
            );
        }
    }

    pub(crate) fn denied(&mut self, slot: usize, ticket: Ticket, denial: &AcquireError) {
        let told = if self.setup.history {
            format!("denied: {denial:?}")
        } else {
            String::new()
        };
        let caller = self.expect(slot, ticket, &told, State::may_be_told);
        self.saw(match denial {
            AcquireError::Busy => Seen::DeniedBusy,
            AcquireError::QueueFull { .. } => Seen::DeniedFull,
            AcquireError::NodeFull => Seen::DeniedNodeFull,
            AcquireError::Store(_) => Seen::DeniedStore,
            AcquireError::Over => Seen::DeniedOver,
            AcquireError::Early(_) => Seen::DeniedEarly,
            AcquireError::Closed => Seen::DeniedClosed,
        });
        let Caller { key, want, .. } = self.nodes[slot].callers[caller];
        let may_be_busy = want.mark.is_some() && self.profile.rules.queues;
        if matches!(denial, AcquireError::Busy) && want.wait && !may_be_busy {
            self.wrong(Wrong::Outcome, Some(key), || {
                format!("ticket {} would wait and was told busy", ticket.0)
            });
        }
        if matches!(denial, AcquireError::Store(_)) && self.is_calm() {
            self.wrong(Wrong::DeniedInCalm, Some(key), || {
                format!("ticket {} of node {slot} was told {denial:?}", ticket.0)
            });
        }
        self.over(slot, caller);
        if want.mark.is_some() {
            self.tick_denied(slot, caller, denial);
        }
    }

    pub(crate) fn lost(&mut self, slot: usize, ticket: Ticket, cause: LostCause) {
        let told = if self.setup.history {
            format!("lost: {cause:?}")
        } else {
            String::new()
        };
        let caller = self.expect(slot, ticket, &told, |state| {
            // A release or drop that comes too late may hear of the loss first.
            matches!(state, State::Holding | State::Releasing { held: false, .. })
        });
        self.saw(match cause {
            LostCause::Deadline => Seen::LostDeadline,
            LostCause::Gone => Seen::LostGone,
            LostCause::Ended => Seen::LostEnded,
            LostCause::Unfetched => Seen::LostUnfetched,
            _ => Seen::LostShutdown,
        });
        self.nodes[slot].callers[caller].dark = true;
        let Caller {
            key,
            want,
            state,
            claim,
            ..
        } = self.nodes[slot].callers[caller];
        let is_promised = matches!(cause, LostCause::Deadline | LostCause::Gone);
        if is_promised && self.is_calm() && !self.is_tainted_claim(claim) {
            self.wrong(Wrong::LostInCalm, Some(key), || {
                format!("ticket {} of node {slot} lost its lease: {cause:?}", ticket.0)
            });
        }
        let never = self.nodes[slot].callers[caller].fetches == Fetches::Never;
        if never && want.mark.is_none() {
            self.over(slot, caller);
        }
        if want.mark.is_some() && state == State::Holding {
            // The run is dropped, and its node stands by for the same tick.
            self.saw(Seen::TickLost);
            self.over(slot, caller);
            self.chase_after(slot, key, want.mark, MS, true);
        }
    }

    pub(crate) fn released(&mut self, slot: usize, ticket: Ticket, outcome: &Outcome) {
        let told = if self.setup.history {
            format!("released: {outcome:?}")
        } else {
            String::new()
        };
        let caller = self.expect(slot, ticket, &told, |state| {
            matches!(state, State::Releasing { .. })
        });
        let Caller { key, state, .. } = self.nodes[slot].callers[caller];
        match (outcome, state) {
            (Outcome::Kept, State::Releasing { held: false, .. }) => {
                self.wrong(Wrong::Outcome, Some(key), || {
                    format!("ticket {} had lost and was told kept", ticket.0)
                });
            }
            (Outcome::Kept, State::Releasing { finished, .. }) => {
                self.saw(Seen::ReleaseKept);
                self.tick_kept(slot, ticket, finished);
            }
            (Outcome::Kept, _) => {}
            (Outcome::Lost(_), _) => self.saw(Seen::ReleaseLost),
            (Outcome::Failed(_), _) => self.saw(Seen::ReleaseFailed),
        }
        self.over(slot, caller);
        let mark = self.nodes[slot].callers[caller].want.mark;
        if mark.is_some() {
            self.pursuit_ends(slot, key, mark);
        }
    }
}
