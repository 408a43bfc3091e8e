//! Leases that go from one process to another: who gives them up, the messages that tell of them, and what comes of those.

use tenure::protocol::message::{Call, ClaimId, Mode};
use tenure::protocol::step::{CallOptions, Input, LockOptions, Ticket};

use crate::Wrong;
use crate::callers::{Act, Caller, Fetches, State};
use crate::coverage::Seen;
use crate::world::{Event, MS, World};

/// What is told of a lease that was given up.
#[derive(Debug)]
pub(crate) struct Letter {
    key: usize,
    of: ClaimId,
    mode: Mode,
    /// It lasts until then at least, unless somebody asked for its end.
    until: u64,
    /// Who was granted it.
    adopted: Option<Ticket>,
    /// So many asked for it: to have it, or for its end.
    asked: u32,
}

impl World {
    /// Whether a caller that holds gives its lease up, instead of giving it back. Not drawn: the same seed is the same world as
    /// before.
    pub(crate) fn gives_up(&self, caller: usize, want: &LockOptions) -> bool {
        self.profile.transfers && caller % 3 == 2 && want.mark.is_none() && !self.draining
    }

    /// A holder gives its lease to whoever is told of it.
    pub(crate) fn transfer(&mut self, slot: usize, caller: usize) {
        let ticket = Ticket(caller as u64 + 1);
        let Caller { key, want, .. } = self.nodes[slot].callers[caller];
        let name = self.keys[key].clone();
        if self.nodes[slot].shard.reads_with_others(&name, ticket) {
            return self.act(slot, caller, Act::Drop);
        }
        let held = self.look(slot, caller);
        self.nodes[slot].callers[caller].state = State::Releasing {
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
            ..want
        };
        let (to, made) = self.new_caller(slot, key, next, Fetches::Later);
        self.nodes[slot].callers[made].travels = true;
        self.nodes[slot].callers[made].before = Some(caller);
        self.nodes[slot].callers[made].asked_at = self.now;
        self.feed(slot, key, Input::Transfer(ticket, to, next.term));
    }

    /// What was granted for others is none of this node's any more, and they are told: once, or twice, in time or late.
    pub(crate) fn hand_out(&mut self, slot: usize, caller: usize) {
        let ticket = Ticket(caller as u64 + 1);
        if !self.look(slot, caller) {
            return self.act(slot, caller, Act::Drop);
        }
        let Caller {
            key, want, asked_at, ..
        } = self.nodes[slot].callers[caller];
        let name = self.keys[key].clone();
        let holding = self.nodes[slot].shard.holding(self.local(slot), &name, ticket);
        let Some(of) = holding.map(|holding| holding.claim) else {
            return;
        };
        self.nodes[slot].callers[caller].state = State::Releasing {
            held: true,
            finished: false,
        };
        let letter = self.letters.len();
        self.letters.push(Letter {
            key,
            of,
            mode: want.mode,
            until: asked_at + want.term.lease_ms * MS,
            adopted: None,
            asked: 0,
        });
        self.saw(Seen::HandedOut);
        self.feed(slot, key, Input::HandedOut(ticket));
        let mut rng = fastrand::Rng::with_seed(self.setup.seed ^ self.now ^ caller as u64);
        let copies = if rng.u8(..3) == 0 { 2 } else { 1 };
        for _ in 0..copies {
            let way = match rng.u8(..8) {
                0 => want.term.lease_ms * MS * 3 / 2,
                1 => want.term.lease_ms * MS / 2,
                _ => 5 * MS,
            };
            let (way, what) = (rng.u64(0..=way), rng.u8(..8));
            let slot = rng.usize(..self.nodes.len());
            self.after(way, Event::Letter { slot, letter, what });
        }
    }

    /// A node is told of a lease.
    pub(crate) fn deliver(&mut self, slot: usize, letter: usize, what: u8) {
        let node = &self.nodes[slot];
        if self.draining || !node.alive || node.paused.is_some() {
            return;
        }
        let Letter { key, of, mode, .. } = self.letters[letter];
        let term = self.profile.terms[self.now as usize % self.profile.terms.len()];
        let call = match what {
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
            let want = LockOptions {
                mode,
                solo: true,
                ..LockOptions::new(term)
            };
            let (ticket, caller) = self.new_caller(slot, key, want, Fetches::Later);
            (caller, Input::Adopt(ticket, want, of))
        };
        let soon = self.now + 6 * self.profile.delay.1 + 100 * MS;
        let found = &mut self.letters[letter];
        let in_time = soon < found.until && self.profile.storm.1 == 0;
        found.asked += u32::from(call != Some(Call::Extend { of }));
        let asks = &mut self.nodes[slot].callers[caller];
        (asks.letter, asks.in_time) = (Some(letter), in_time);
        self.feed(slot, key, input);
    }

    /// Somebody was granted the lease that it was told of: nobody else was, or ever is.
    pub(crate) fn watch_adopted(&mut self, slot: usize, caller: usize) {
        let Some(letter) = self.nodes[slot].callers[caller].letter else {
            return;
        };
        self.saw(Seen::Adopted);
        let ticket = Ticket(caller as u64 + 1);
        let (key, of) = (self.letters[letter].key, self.letters[letter].of);
        if let Some(other) = self.letters[letter].adopted.replace(ticket) {
            self.wrong(Wrong::AdoptedTwice, Some(key), || {
                format!("{of} was adopted as ticket {} and ticket {}", other.0, ticket.0)
            });
        }
    }

    /// Where nothing ever failed, whoever asks in time gets it, unless others ask, too.
    pub(crate) fn watch_not_adopted(
        &mut self,
        slot: usize,
        caller: usize,
        owned: Option<bool>,
        is_gone: bool,
    ) {
        let Caller {
            key,
            asks,
            letter,
            in_time,
            ..
        } = self.nodes[slot].callers[caller];
        let Some(letter) = letter else { return };
        self.saw(match owned {
            Some(true) => Seen::OwnerTold,
            Some(false) => Seen::OwnerGone,
            None => Seen::NotAdopted,
        });
        let Letter { of, asked, .. } = self.letters[letter];
        let own = u32::from(asks != Some(Call::Extend { of }));
        if in_time && is_gone && asked == own && !self.is_tainted_claim(Some(of)) {
            self.wrong(Wrong::Outcome, Some(key), || {
                format!("{of} was gone in time, asked {asks:?}")
            });
        }
    }

    /// An owner that no node pursues, as somebody is told of it.
    pub(crate) fn is_on_its_way(&self, key: usize, claim_id: ClaimId) -> bool {
        let is_its = |letter: &Letter| letter.key == key && letter.of == claim_id;
        self.letters.iter().any(is_its)
    }
}
