//! A shard: a share of the keys, with their states and timers.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::time::Duration;

use foldhash::quality::RandomState;

use crate::error::StoreError;
use crate::protocol::claim::held_lease::Holding;
use crate::protocol::context::{RequestSink, Seed, ShardContext, StepContext};
use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::key::key_state::KeyState;
use crate::protocol::message::{ClaimId, ClaimNumber, Kind, Name, NodeId};
use crate::protocol::quorum::Quorum;
use crate::protocol::session::server_clock::ServerClock;
use crate::protocol::step::{
    AcquireError, AnswerTimes, Effect, FormerMaster, InboxState, Input, Rules, Ticket,
};
use crate::protocol::time::Instant;
use crate::protocol::write::Precondition;

/// The number of effects that a shard keeps memory for between steps.
const MAX_KEPT_EFFECTS: usize = 64;

/// The keys whose hash falls to this shard. Shards share no state, so that no lock is global.
#[derive(Debug)]
pub struct Shard {
    keys: HashMap<Name, Box<KeyState>, RandomState>,
    /// The empty state of a forgotten key, which keeps its memory for the next key.
    spare: Option<Box<KeyState>>,
    timers: Timers,
    last_key: u64,
    context: ShardContext,
    last_ticket: u64,
    /// Between the keys and the masters of a quorum.
    quorum: Option<Box<Quorum>>,
    /// The effects of the current step. Empty between steps: see [`Effects`].
    effects: Vec<Effect>,
}

/// A lease that is kept without a holder, for checkers.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct Kept {
    /// The claim.
    pub claim_id: ClaimId,
    /// When the lease ends here.
    pub deadline: Instant,
    /// When it is left.
    pub until: Instant,
    /// The length of the lease.
    pub lease: Duration,
    /// The inbox is confirmed: a recall would arrive.
    pub is_told: bool,
}

/// The effects of one step, to be carried out in order. Dropping this empties the buffer, so that no step sees the
/// effects of another.
#[derive(Debug)]
#[must_use = "effects must be carried out"]
pub struct Effects<'a> {
    effects: &'a mut Vec<Effect>,
    plant: Plant,
}

impl Deref for Effects<'_> {
    type Target = [Effect];

    #[inline]
    fn deref(&self) -> &[Effect] {
        self.effects
    }
}

impl Drop for Effects<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.plant.is(Flaw::EffectsLeft) {
            self.effects.clear();
        }
        if self.effects.capacity() > MAX_KEPT_EFFECTS {
            self.effects.shrink_to(MAX_KEPT_EFFECTS);
        }
    }
}

impl Shard {
    /// Returns shard `index` of `of` shards of `node`. The shards share one sequence of claim numbers, dealt out in
    /// turn.
    pub fn new(node: NodeId, index: u64, of: u64, seed: Seed, rules: Rules) -> Self {
        Shard::with_plant(node, index, of, seed, rules, Plant::NONE)
    }

    /// Returns a shard with a planted mistake.
    #[doc(hidden)]
    pub fn with_plant(node: NodeId, index: u64, of: u64, seed: Seed, rules: Rules, plant: Plant) -> Self {
        Shard {
            keys: HashMap::default(),
            spare: None,
            timers: Timers::default(),
            last_key: 0,
            context: ShardContext::new(node, index, of, seed, rules, plant),
            last_ticket: 0,
            quorum: (rules.masters > 0).then(|| Box::new(Quorum::new(rules.masters, plant))),
            effects: Vec::new(),
        }
    }

    /// Returns a ticket for the next caller.
    pub fn issue(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }

    /// Handles one input of the key `name` at `now`, and returns the effects.
    pub fn handle(&mut self, now: Instant, name: &Name, input: Input) -> Effects<'_> {
        self.begin();
        match (input, &mut self.quorum) {
            (
                Input::Lock(ticket, _)
                | Input::Campaign(ticket, ..)
                | Input::Call(ticket, _)
                | Input::Act(ticket, ..)
                | Input::Adopt(ticket, ..),
                _,
            ) if self.context.is_closed => {
                self.effects
                    .push(Effect::Denied(ticket, AcquireError::Closed.into()));
            }
            (
                Input::Answered {
                    tag,
                    sent,
                    time,
                    reply,
                },
                Some(quorum),
            ) => quorum.answered(now, tag, AnswerTimes { sent, time }, reply),
            (Input::Failed { tag, failed }, Some(quorum)) => quorum.failed(now, tag, failed),
            (input, _) => self.step_key(now, name, input),
        }
        self.end_step(now);
        self.effects()
    }

    /// Notes a reading of the clock of a quorum's master.
    pub fn note_clock(&mut self, master: usize, reading: ServerClock) {
        if let Some(quorum) = &mut self.quorum {
            quorum.note_clock(master, reading);
        }
    }

    /// Sends what the quorum has to send, and gives its answers to the keys.
    #[inline]
    fn end_step(&mut self, now: Instant) {
        while let Some(quorum) = &mut self.quorum {
            self.effects.extend(quorum.take_sends().map(Effect::Send));
            let Some((name, input)) = quorum.take_input() else {
                return;
            };
            self.step_key(now, &name, input);
        }
    }

    fn step_key(&mut self, now: Instant, name: &Name, input: Input) {
        let effects = &mut self.effects;
        let key = match input {
            // Only these inputs create a state. All others are about something that is over.
            Input::Lock(..)
            | Input::Campaign(..)
            | Input::Adopt(..)
            | Input::Pushed(_)
            | Input::Revoked(..)
            | Input::Call(..)
            | Input::Act(..) => self.keys.entry(name.clone()).or_insert_with(|| {
                let mut key = self.spare.take().unwrap_or_default();
                self.last_key += 1;
                key.number = self.last_key;
                key
            }),
            Input::Release(ticket) | Input::Finish(ticket, _) | Input::HandedOut(ticket) => {
                match self.keys.get_mut(name) {
                    Some(key) => key,
                    None => return effects.push(KeyState::released_too_late(ticket)),
                }
            }
            Input::Downgrade(ticket, to) | Input::Transfer(ticket, to, _) => match self.keys.get_mut(name) {
                Some(key) => key,
                None => return effects.extend(KeyState::passed_too_late(ticket, to)),
            },
            Input::Renew(_, caller) => match self.keys.get_mut(name) {
                Some(key) => key,
                None => return effects.push(KeyState::renewed_too_late(caller)),
            },
            _ => match self.keys.get_mut(name) {
                Some(key) => key,
                None => return,
            },
        };
        let mut cx = StepContext {
            now,
            name,
            shard: &mut self.context,
            effects,
            sink: sink(&mut self.quorum),
        };
        key.handle(&mut cx, input);
        if Self::settle(key, name, &mut self.timers) {
            self.forget(name);
        }
    }

    /// Takes up a grant, so that the caller gets its guard. Returns the time until which the lease is held at least.
    /// Returns `None` if the lease is over; there must be no guard then. A lease that is not taken up is renewed for
    /// one lease, and then given back.
    ///
    /// This is no step: it happens for every grant, and has no effects.
    pub fn take_up(&mut self, now: Instant, name: &Name, ticket: Ticket) -> Option<Instant> {
        let deadline = self.keys.get_mut(name).and_then(|key| key.take_up(now, ticket));
        if self.context.plant.is(Flaw::LostGrantReturned) {
            return deadline.or(Some(now));
        }
        debug_assert!(
            deadline.is_none() || self.holding(now, name, ticket).is_some(),
            "a guard belongs to a claim that is held"
        );
        deadline
    }

    /// Returns whether other callers read by the lease of this holder. If not, no other caller is let in by it from
    /// now on.
    pub fn reads_with_others(&mut self, name: &Name, ticket: Ticket) -> bool {
        self.keys
            .get_mut(name)
            .is_some_and(|key| key.reads_with_others(ticket))
    }

    /// Returns when [`wake_next`](Self::wake_next) has something to do next.
    pub fn next_due(&self) -> Option<Instant> {
        let of_keys = self.timers.first().map(|(due, _)| due);
        let of_quorum = self.quorum.as_ref().and_then(|quorum| quorum.next_due());
        of_keys.into_iter().chain(of_quorum).min()
    }

    /// Does what is due for one key: reports losses, renews, asks again. Returns the key and the effects, or `None`
    /// if nothing is due.
    pub fn wake_next(&mut self, now: Instant) -> Option<(Name, Effects<'_>)> {
        if let Some(quorum) = &mut self.quorum
            && let Some(name) = quorum.wake(now)
        {
            self.begin();
            self.end_step(now);
            return Some((name, self.effects()));
        }
        let (_, name) = self.timers.first().filter(|(due, _)| *due <= now)?;
        let name = name.clone();
        self.step(now, &name, KeyState::wake);
        Some((name, self.effects()))
    }

    /// Handles a change of whether grants are pushed. When pushes start again, some may have been missed, so every
    /// waiting claim is renewed. While the state is unknown, every waiting claim asks often.
    pub fn inbox(&mut self, now: Instant, state: InboxState, perform: impl FnMut(&Name, &Effect)) {
        let before = std::mem::replace(&mut self.context.inbox, state);
        if before != state || state == InboxState::Confirmed {
            self.each(now, KeyState::inbox, perform);
        }
    }

    /// Notes what a master before the present one may still do.
    pub fn note_former_master(&mut self, former: FormerMaster) {
        self.context.former = former;
    }

    /// Handles a new connection: every failed request that waits to be repeated is sent now. `is_elsewhere`: the
    /// connection leads to another place than the one before, so every lease is renewed, too.
    pub fn reachable(
        &mut self,
        now: Instant,
        is_elsewhere: bool,
        is_served: impl Fn(&Name) -> bool,
        perform: impl FnMut(&Name, &Effect),
    ) {
        // A master of a quorum that restarted has no vote for now, so there is nothing to assert.
        let is_elsewhere = is_elsewhere && self.quorum.is_none();
        let step = |key: &mut KeyState, cx: &mut StepContext<'_>| {
            if is_served(cx.name) {
                key.reachable(cx, is_elsewhere);
            }
        };
        self.each(now, step, perform);
    }

    /// Returns whether no caller of this process has the key, waits for it or makes a call about it. An
    /// [`Input::Lock`] then only sends a claim.
    pub fn is_free(&self, name: &Name) -> bool {
        !self.context.is_closed && self.keys.get(name).is_none_or(|key| key.is_free())
    }

    /// Returns whether the key is surely taken: the store said so at or after `since`, or a caller of this process
    /// holds it.
    pub fn is_known_taken(&self, now: Instant, name: &Name, since: Instant) -> bool {
        self.keys
            .get(name)
            .is_some_and(|key| key.is_known_taken(now, since))
    }

    /// Returns whether the store named the key taken at or after `since`, as far as it is known here.
    pub fn was_named_taken(&self, name: &Name, since: Instant) -> bool {
        let taken_at = self.keys.get(name).and_then(|key| key.taken_at);
        taken_at.is_some_and(|at| at >= since)
    }

    /// Returns why the requests of this key have had no answer since the last answer.
    pub fn last_error(&self, now: Instant, name: &Name) -> Option<StoreError> {
        self.keys.get(name)?.last_error(now)
    }

    /// Gives up everything: waiters are denied, holders lose their leases, and claims are left. No lock is granted
    /// from now on.
    ///
    /// With `runs_go_on` the ticks that are held stay so: their runs cannot be ended from here, so each of them keeps its
    /// lease until its runner releases it.
    pub fn close(&mut self, now: Instant, runs_go_on: bool, perform: impl FnMut(&Name, &Effect)) {
        self.context.is_closed = true;
        self.each(
            now,
            |key, cx| key.close(cx, runs_go_on && cx.name.kind == Kind::Job),
            perform,
        );
    }

    /// Leaves every lease that is kept without a holder.
    pub fn leave_kept(&mut self, now: Instant, perform: impl FnMut(&Name, &Effect)) {
        if self.context.kept > 0 {
            self.each(now, KeyState::leave_kept, perform);
        }
    }

    /// Returns what a caller holds, until a step ends it.
    pub fn holding(&self, now: Instant, name: &Name, ticket: Ticket) -> Option<Holding> {
        self.keys.get(name)?.holding(now, ticket)
    }

    /// Returns the claim by which a caller holds, and since when it holds.
    pub(crate) fn held_since(&self, name: &Name, ticket: Ticket) -> Option<(ClaimNumber, Instant)> {
        self.keys.get(name)?.held_since(ticket)
    }

    /// Begins a write of a holder. Returns what the write is checked against, and the length of the lease. Returns
    /// `None` if the lease is over; nothing may be sent then. Until [`Input::WriteEnded`] the lease is not handed on
    /// in this process.
    pub fn begin_write(
        &mut self,
        now: Instant,
        name: &Name,
        ticket: Ticket,
    ) -> Option<(Precondition, Duration)> {
        self.keys
            .get_mut(name)?
            .begin_write(name, ticket, now, self.context.plant)
    }

    /// Returns whether the lease of a write is still held here.
    pub fn holds(&mut self, now: Instant, lease: &Precondition) -> bool {
        let held = self
            .keys
            .get_mut(&lease.name)
            .and_then(|key| key.holder_under(lease)?.held());
        held.is_some_and(|held| now < held.deadline())
    }

    /// Returns how many keys have a state here.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether no key has a state here.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.quorum.as_ref().is_none_or(|quorum| quorum.is_empty())
    }

    /// Returns every holder of the key that may act as one at `now`, for checkers.
    #[doc(hidden)]
    pub fn holders(&self, now: Instant, name: &Name) -> impl Iterator<Item = (Ticket, Holding)> {
        let key = self.keys.get(name).into_iter();
        key.flat_map(move |key| key.holders(now))
    }

    /// Returns what the first local holder of the key holds. An exclusive key has only one.
    pub fn held_alone(&self, now: Instant, name: &Name) -> Option<Holding> {
        let (_, holding) = self.keys.get(name)?.holders(now).next()?;
        Some(holding)
    }

    /// Returns the lease of the key that is kept without a holder, for checkers.
    #[doc(hidden)]
    pub fn kept(&self, name: &Name) -> Option<Kept> {
        let is_told = self.context.inbox == InboxState::Confirmed;
        self.keys.get(name)?.kept().map(|(claim, until, deadline)| Kept {
            claim_id: claim.id(),
            deadline,
            until,
            lease: claim.lease(),
            is_told,
        })
    }

    /// Returns whether the claim is not over here, for checkers.
    #[doc(hidden)]
    pub fn knows_claim(&self, name: &Name, claim_id: ClaimId) -> bool {
        let is_of_quorum = self.quorum.as_ref().is_some_and(|quorum| quorum.knows(claim_id));
        is_of_quorum || self.keys.get(name).is_some_and(|key| key.knows_claim(claim_id))
    }

    /// Returns a description of the key in one line, for histories.
    #[doc(hidden)]
    pub fn describe(&self, name: &Name) -> String {
        format!("{:?}", self.keys.get(name))
    }

    fn each(
        &mut self,
        now: Instant,
        step: impl Fn(&mut KeyState, &mut StepContext<'_>),
        mut perform: impl FnMut(&Name, &Effect),
    ) {
        // The order of names makes a simulation independent of the layout of a map.
        let mut names: Vec<Name> = self.keys.keys().cloned().collect();
        names.sort_unstable();
        for name in names {
            self.step(now, &name, &step);
            self.effects().iter().for_each(|effect| perform(&name, effect));
        }
    }

    /// Takes one step of a key that has a state.
    fn step(&mut self, now: Instant, name: &Name, step: impl FnOnce(&mut KeyState, &mut StepContext<'_>)) {
        self.begin();
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        let mut cx = StepContext {
            now,
            name,
            shard: &mut self.context,
            effects: &mut self.effects,
            sink: sink(&mut self.quorum),
        };
        step(key, &mut cx);
        if Self::settle(key, name, &mut self.timers) {
            self.forget(name);
        }
        self.end_step(now);
    }

    /// Begins a step. Drops the effects of a step that panicked.
    #[inline]
    fn begin(&mut self) {
        if !self.effects.is_empty() && !self.context.plant.is(Flaw::EffectsLeft) {
            self.effects.clear();
        }
    }

    #[inline]
    fn effects(&mut self) -> Effects<'_> {
        Effects {
            effects: &mut self.effects,
            plant: self.context.plant,
        }
    }

    /// Sets the timer of a key after a step. Returns whether the key is idle, and its state can be forgotten.
    #[inline]
    fn settle(key: &mut KeyState, name: &Name, timers: &mut Timers) -> bool {
        let due = key.next_due();
        timers.change(name, key.number, &mut key.timer, due);
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

/// Returns the quorum as what takes the requests of a step.
fn sink(quorum: &mut Option<Box<Quorum>>) -> Option<&mut dyn RequestSink> {
    quorum.as_deref_mut().map(|quorum| quorum as &mut dyn RequestSink)
}

/// When a key is due. The number distinguishes the keys of one moment.
type Due = (Instant, u64);

/// At most one timer per key. The earliest is kept apart from the others, because there is usually one or none. A
/// tree alone would allocate and free a node for each lease.
#[derive(Debug, Default)]
struct Timers {
    first: Option<(Due, Name)>,
    /// All later timers. Empty when there is no first.
    rest: BTreeMap<Due, Name>,
}

impl Timers {
    #[inline]
    fn first(&self) -> Option<(Instant, &Name)> {
        self.first.as_ref().map(|((due, _), name)| (*due, name))
    }

    /// Moves the timer of the key with this number to `due`. `old` is the present timer, and is updated.
    #[inline]
    fn change(&mut self, name: &Name, number: u64, old: &mut Option<Instant>, due: Option<Instant>) {
        if *old == due {
            return;
        }
        if let Some(old) = *old {
            self.remove((old, number));
        }
        if let Some(due) = due {
            self.set((due, number), name);
        }
        *old = due;
    }

    #[inline]
    fn set(&mut self, due: Due, name: &Name) {
        let mut timer = (due, name.clone());
        match &mut self.first {
            Some(first) => {
                if timer.0 < first.0 {
                    std::mem::swap(first, &mut timer);
                }
                self.rest.insert(timer.0, timer.1);
            }
            None => self.first = Some(timer),
        }
    }

    #[inline]
    fn remove(&mut self, due: Due) {
        match &self.first {
            Some((first, _)) if *first == due => self.first = self.rest.pop_first(),
            _ => {
                self.rest.remove(&due);
            }
        }
    }
}
