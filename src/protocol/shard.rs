//! A share of the keys: finds the key of a key, and keeps the timers.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::quality::RandomState;

use crate::error::StoreError;
use crate::protocol::context::{Seed, Source, StepContext};
use crate::protocol::flaw::{Plant, Sound};
use crate::protocol::key_state::KeyState;
use crate::protocol::message::{Fence, Holder, Name, NodeId, TickTime};
use crate::protocol::step::{AcquireError, Effect, InboxState, Input, Rules, Ticket};
use crate::protocol::time::Instant;
use crate::protocol::timers::Timers;
use crate::protocol::write::Precondition;

/// The key machine of the keys whose hash falls here. Shards know nothing of each other, so that no lock is global.
#[derive(Debug)]
pub struct Shard<P = Sound> {
    plant: P,
    keys: HashMap<Name, Box<KeyState<P>>, RandomState>,
    /// The state of a key that was forgotten, empty and with room, for the next.
    spare: Option<Box<KeyState<P>>>,
    timers: Timers,
    numbers: u64,
    source: Source,
    tickets: u64,
}

impl Shard<Sound> {
    /// Shard `index` of `of` shards of `node`. Claim numbers are one counter per node, dealt out in turn.
    pub fn new(node: NodeId, index: u64, of: u64, seed: Seed, rules: Rules) -> Self {
        Shard::with_plant(node, index, of, seed, rules, Sound)
    }
}

impl<P: Plant> Shard<P> {
    /// The same, with a mistake planted.
    #[doc(hidden)]
    pub fn with_plant(node: NodeId, index: u64, of: u64, seed: Seed, rules: Rules, plant: P) -> Self {
        Shard {
            plant,
            keys: HashMap::default(),
            spare: None,
            timers: Timers::default(),
            numbers: 0,
            source: Source::new(node, index, of, seed, rules),
            tickets: 0,
        }
    }

    /// A ticket for the next caller.
    pub fn issue(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// Takes in what happened to `name` at `now`; what is to be done is appended to `effects`.
    pub fn handle(&mut self, now: Instant, name: &Name, input: Input, effects: &mut Vec<Effect>) {
        let key = match input {
            Input::Lock(ticket, _) | Input::Save(ticket, ..) | Input::Adopt(ticket, ..)
                if self.source.is_closed =>
            {
                return effects.push(Effect::Denied(ticket, AcquireError::Closed));
            }
            Input::Fetched(ticket) => {
                self.fetched(name, ticket);
                return;
            }
            // Only these begin anything. All else is about what is over.
            Input::Lock(..) | Input::Save(..) | Input::Adopt(..) | Input::Pushed(_) => {
                self.keys.entry(name.clone()).or_insert_with(|| {
                    let mut key = self.spare.take().unwrap_or_default();
                    self.numbers += 1;
                    (key.plant, key.number) = (self.plant, self.numbers);
                    key
                })
            }
            Input::Release(ticket) | Input::Finish(ticket, _) => match self.keys.get_mut(name) {
                Some(key) => key,
                None => return effects.push(KeyState::<P>::released_too_late(ticket)),
            },
            Input::Downgrade(ticket, to) | Input::Transfer(ticket, to, _) => match self.keys.get_mut(name) {
                Some(key) => key,
                None => return effects.extend(KeyState::<P>::passed_too_late(ticket, to)),
            },
            _ => match self.keys.get_mut(name) {
                Some(key) => key,
                None => return,
            },
        };
        let mut cx = StepContext {
            now,
            name,
            source: &mut self.source,
            effects,
        };
        key.handle(&mut cx, input);
        if Self::settle(key, name, &mut self.timers) {
            self.forget(name);
        }
    }

    /// The same for [`Input::Fetched`]. No step, and at no time: it happens for every grant, and leads to nothing. Tells
    /// until when it is held at least.
    pub fn fetched(&mut self, name: &Name, ticket: Ticket) -> Option<Instant> {
        self.keys.get_mut(name)?.fetched(ticket)
    }

    /// Others read by the lease of this holder. If not, nobody else is let in by it from now on.
    pub fn reads_with_others(&mut self, name: &Name, ticket: Ticket) -> bool {
        self.keys
            .get_mut(name)
            .is_some_and(|key| key.reads_with_others(ticket))
    }

    /// When [`wake`](Self::wake) has something to do next.
    pub fn next_due(&self) -> Option<Instant> {
        let (due, _) = self.timers.first()?;
        Some(due)
    }

    /// Does what is due: tells losses, renews, asks again.
    pub fn wake(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while self.wake_next(now, effects).is_some() {}
    }

    /// Does what is due for one key, and names it.
    pub fn wake_next(&mut self, now: Instant, effects: &mut Vec<Effect>) -> Option<Name> {
        let (_, name) = self.timers.first().filter(|(due, _)| *due <= now)?;
        let name = name.clone();
        self.step(now, &name, effects, KeyState::wake);
        Some(name)
    }

    /// Whether grants are pushed. When they are again, some may have been missed, so every waiting claim is renewed; while
    /// nobody knows, every waiting claim looks often. `told` hears of the effects name by name.
    pub fn inbox(
        &mut self,
        now: Instant,
        state: InboxState,
        effects: &mut Vec<Effect>,
        told: impl FnMut(&Name, &[Effect]),
    ) {
        let before = std::mem::replace(&mut self.source.inbox, state);
        if before != state || state == InboxState::Confirmed {
            self.each(|key, cx| key.inbox(cx), now, effects, told);
        }
    }

    /// A connection opened: whatever failed and waits to be tried again is tried now. `told` hears of the effects name
    /// by name.
    pub fn reachable(&mut self, now: Instant, effects: &mut Vec<Effect>, told: impl FnMut(&Name, &[Effect])) {
        self.each(|key, cx| key.reachable(cx), now, effects, told);
    }

    /// Nobody of this process has the key, waits for it or asks for it: a [`Input::Lock`] is answered with a claim to be
    /// sent, and nothing else.
    pub fn is_free(&self, name: &Name) -> bool {
        !self.source.is_closed && self.keys.get(name).is_none_or(|key| key.is_free())
    }

    /// Somebody has the key for sure: the store said so at or after `since`, or a caller of this process holds it.
    pub fn told_taken(&self, now: Instant, name: &Name, since: Instant) -> bool {
        self.keys.get(name).is_some_and(|key| key.told_taken(now, since))
    }

    /// What kept this key's requests from being answered since the last answer.
    pub fn last_error(&self, name: &Name) -> Option<StoreError> {
        self.keys.get(name)?.error.clone()
    }

    /// Gives up everything: waiters are denied, holders lose, claims are left. No lock is given from now on. `told`
    /// hears of the effects name by name.
    pub fn close(&mut self, now: Instant, effects: &mut Vec<Effect>, told: impl FnMut(&Name, &[Effect])) {
        self.source.is_closed = true;
        self.each(|key, cx| key.close(cx), now, effects, told);
    }

    /// What is left of a holder's lease, if it still holds.
    pub fn remaining(&self, now: Instant, name: &Name, ticket: Ticket) -> Option<Duration> {
        self.keys.get(name)?.remaining(now, ticket)
    }

    /// The number of the attempt at its tick a holder makes.
    pub fn attempt(&self, name: &Name, ticket: Ticket) -> u32 {
        self.keys.get(name).map_or(0, |key| key.attempt(ticket))
    }

    /// The tick that was open when this holder's was granted, and that is never run again.
    pub fn overtook(&self, name: &Name, ticket: Ticket) -> Option<TickTime> {
        self.keys.get(name)?.overtook(ticket)
    }

    /// The claim that a holder holds by.
    pub fn claim(&self, name: &Name, ticket: Ticket) -> Option<Holder> {
        self.keys.get(name)?.claimed_by(ticket)
    }

    /// A holder is about to write something: what that is checked against, and the length of the lease. `None`: it holds no
    /// more, and nothing may be sent. Until [`end_write`](Self::end_write) its lease is not handed on in this process.
    pub fn begin_write(
        &mut self,
        now: Instant,
        name: &Name,
        ticket: Ticket,
    ) -> Option<(Precondition, Duration)> {
        self.keys.get_mut(name)?.begin_write(name, ticket, now)
    }

    /// A write of a holder was answered, or is never sent. Not for one that may still be done.
    pub fn end_write(&mut self, name: &Name, ticket: Ticket) {
        if let Some(key) = self.keys.get_mut(name) {
            key.end_write(ticket);
        }
    }

    /// The fence of a holder, if it still holds.
    pub fn fence(&self, now: Instant, name: &Name, ticket: Ticket) -> Option<Fence> {
        self.keys.get(name)?.fence(now, ticket)
    }

    /// How many keys have any state here.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// No key has any state here.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Every holder that may act as one at `now`, for checkers.
    #[doc(hidden)]
    pub fn holders(&self, now: Instant) -> impl Iterator<Item = (&Name, Ticket, Holder, Fence)> {
        self.keys.iter().flat_map(move |(name, key)| {
            let holders = key.holders(now);
            holders.map(move |(ticket, holder, fence)| (name, ticket, holder, fence))
        })
    }

    /// By which claim somebody of this process has the key alone, if it does.
    pub fn held_alone(&self, now: Instant, name: &Name) -> Option<Holder> {
        self.keys.get(name)?.held_alone(now)
    }

    /// The claim is not over here, for checkers.
    #[doc(hidden)]
    pub fn pursues(&self, name: &Name, holder: Holder) -> bool {
        self.keys.get(name).is_some_and(|key| key.pursues(holder))
    }

    /// A line per key, for histories.
    #[doc(hidden)]
    pub fn describe(&self, name: &Name) -> String {
        self.keys.get(name).map_or("-".into(), |key| format!("{key:?}"))
    }

    fn each(
        &mut self,
        f: impl Fn(&mut KeyState<P>, &mut StepContext<'_>),
        now: Instant,
        effects: &mut Vec<Effect>,
        mut told: impl FnMut(&Name, &[Effect]),
    ) {
        // In order of names: a simulation must not depend on how a map is laid out.
        let mut names: Vec<Name> = self.keys.keys().cloned().collect();
        names.sort_unstable();
        for name in names {
            let before = effects.len();
            self.step(now, &name, effects, &f);
            told(&name, &effects[before..]);
        }
    }

    /// One step of a key, if there is anything of it.
    fn step(
        &mut self,
        now: Instant,
        name: &Name,
        effects: &mut Vec<Effect>,
        step: impl FnOnce(&mut KeyState<P>, &mut StepContext<'_>),
    ) {
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        let mut cx = StepContext {
            now,
            name,
            source: &mut self.source,
            effects,
        };
        step(key, &mut cx);
        if Self::settle(key, name, &mut self.timers) {
            self.forget(name);
        }
    }

    /// After a step its timer is set again. True when nothing of it is left.
    #[inline]
    fn settle(key: &mut KeyState<P>, name: &Name, timers: &mut Timers) -> bool {
        let due = key.next_due();
        if due != key.due {
            if let Some(old) = key.due {
                timers.remove((old, key.number));
            }
            if let Some(due) = due {
                timers.set((due, key.number), name);
            }
            key.due = due;
        }
        debug_assert!(due.is_none() || !key.is_idle(), "an idle key has no timer");
        key.is_idle()
    }

    fn forget(&mut self, name: &Name) {
        if let Some(mut key) = self.keys.remove(name) {
            key.forget();
            self.spare = Some(key);
        }
    }
}
