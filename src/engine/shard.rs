//! A share of the keys: finds the desk of a key, and keeps the timers.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use foldhash::quality::RandomState;

use crate::claim::{ClaimNo, Fence, Holder, Name, NodeId};
use crate::engine::desk::Desk;
use crate::engine::moment::Moment;
use crate::engine::{Denial, Effect, Input, Rules, Ticket};

/// The engine for the keys whose hash falls here. Shards know nothing of each other, so that no lock is global.
#[derive(Debug)]
pub struct Shard {
    desks: HashMap<Name, Desk, RandomState>,
    timers: BTreeSet<(Moment, Name)>,
    source: Source,
    tickets: u64,
    closed: bool,
}

/// What every desk of a shard draws from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) node: NodeId,
    pub(crate) rules: Rules,
    next_claim: ClaimNo,
    step: u64,
    rng: fastrand::Rng,
}

impl Source {
    /// A number that this node never used, with a nonce that nobody can guess.
    pub(crate) fn holder(&mut self) -> Holder {
        let claim = self.next_claim;
        self.next_claim += self.step;
        Holder {
            node: self.node,
            claim,
            nonce: self.rng.u64(..),
        }
    }

    /// Somewhere in the last tenth before `span`, so that the timers of many nodes part.
    pub(crate) fn jittered(&mut self, span: Duration) -> Duration {
        span.mul_f64(0.9 + self.rng.f64() * 0.1)
    }
}

/// One step of one desk: the time, and where its effects go.
pub(crate) struct Cx<'a> {
    pub(crate) now: Moment,
    pub(crate) name: &'a Name,
    pub(crate) source: &'a mut Source,
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl Shard {
    /// Shard `index` of `of` shards of `node`. Claim numbers are one counter per node, dealt out in turn.
    pub fn new(node: NodeId, index: u64, of: u64, seed: u64, rules: Rules) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        let source = Source {
            node,
            rules,
            next_claim: of + index,
            step: of,
            rng,
        };
        Shard {
            desks: HashMap::default(),
            timers: BTreeSet::new(),
            source,
            tickets: 0,
            closed: false,
        }
    }

    /// A ticket for the next caller.
    pub fn issue(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// Takes in what happened to `name` at `now`; what is to be done is appended to `effects`.
    pub fn handle(&mut self, now: Moment, name: &Name, input: Input, effects: &mut Vec<Effect>) {
        match &input {
            Input::Lock(ticket, _) if self.closed => {
                return effects.push(Effect::Denied(*ticket, Denial::Closed));
            }
            // Only these begin anything. All else is about what is over.
            Input::Lock(..) | Input::Pushed(_) if !self.desks.contains_key(name) => {
                self.desks.insert(name.clone(), Desk::default());
            }
            Input::Release(ticket) | Input::Finish(ticket) if !self.desks.contains_key(name) => {
                return effects.push(Desk::released_too_late(*ticket));
            }
            _ => {}
        }
        self.step(now, name, effects, |desk, cx| desk.handle(cx, input));
    }

    /// When [`wake`](Self::wake) has something to do next.
    pub fn next_due(&self) -> Option<Moment> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// Does what is due: tells losses, renews, asks again.
    pub fn wake(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        while self.wake_next(now, effects).is_some() {}
    }

    /// Does what is due for one key, and names it.
    pub fn wake_next(&mut self, now: Moment, effects: &mut Vec<Effect>) -> Option<Name> {
        let (due, _) = self.timers.first()?;
        if *due > now {
            return None;
        }
        let (_, name) = self.timers.pop_first()?;
        self.step(now, &name, effects, |desk, cx| {
            desk.due = None;
            desk.wake(cx);
        });
        Some(name)
    }

    /// The inbox is open again: grants may have been missed, so every waiting claim is renewed.
    /// `told` hears of the effects name by name.
    pub fn opened(&mut self, now: Moment, effects: &mut Vec<Effect>, told: impl FnMut(&Name, &[Effect])) {
        self.each(|desk, cx| desk.opened(cx), now, effects, told);
    }

    /// Gives up everything: waiters are denied, holders lose, claims are left. No lock is given from now on. `told`
    /// hears of the effects name by name.
    pub fn close(&mut self, now: Moment, effects: &mut Vec<Effect>, told: impl FnMut(&Name, &[Effect])) {
        self.closed = true;
        self.each(|desk, cx| desk.close(cx), now, effects, told);
    }

    /// What is left of a holder's lease, if it still holds.
    pub fn remaining(&self, now: Moment, name: &Name, ticket: Ticket) -> Option<Duration> {
        self.desks.get(name)?.remaining(now, ticket)
    }

    /// The how-manieth attempt at its tick a holder makes.
    pub fn attempt(&self, name: &Name, ticket: Ticket) -> u32 {
        self.desks.get(name).map_or(0, |desk| desk.attempt(ticket))
    }

    /// The claim that a holder holds by, for checkers.
    #[doc(hidden)]
    pub fn claim(&self, name: &Name, ticket: Ticket) -> Option<Holder> {
        self.desks.get(name)?.claimed_by(ticket)
    }

    /// The fence of a holder, if it still holds.
    pub fn fence(&self, now: Moment, name: &Name, ticket: Ticket) -> Option<Fence> {
        self.desks.get(name)?.fence(now, ticket)
    }

    /// How many keys have any state here.
    pub fn len(&self) -> usize {
        self.desks.len()
    }

    /// No key has any state here.
    pub fn is_empty(&self) -> bool {
        self.desks.is_empty()
    }

    /// Every holder that may act as one at `now`, for checkers.
    #[doc(hidden)]
    pub fn holders(&self, now: Moment) -> impl Iterator<Item = (&Name, Ticket, Holder, Fence)> {
        self.desks.iter().flat_map(move |(name, desk)| {
            let holders = desk.holders(now);
            holders.map(move |(ticket, holder, fence)| (name, ticket, holder, fence))
        })
    }

    /// The claim is not over here, for checkers.
    #[doc(hidden)]
    pub fn pursues(&self, name: &Name, holder: Holder) -> bool {
        self.desks.get(name).is_some_and(|desk| desk.pursues(holder))
    }

    /// A line per key, for histories.
    #[doc(hidden)]
    pub fn describe(&self, name: &Name) -> String {
        self.desks
            .get(name)
            .map_or("-".into(), |desk| format!("{desk:?}"))
    }

    fn each(
        &mut self,
        f: impl Fn(&mut Desk, &mut Cx<'_>),
        now: Moment,
        effects: &mut Vec<Effect>,
        mut told: impl FnMut(&Name, &[Effect]),
    ) {
        // In order of names: a simulation must not depend on how a map is laid out.
        let mut names: Vec<Name> = self.desks.keys().cloned().collect();
        names.sort_unstable();
        for name in names {
            let before = effects.len();
            self.step(now, &name, effects, &f);
            told(&name, &effects[before..]);
        }
    }

    /// One step of a key, if there is anything of it. Then its timer is set anew, or it is forgotten when nothing of it is
    /// left.
    fn step(
        &mut self,
        now: Moment,
        name: &Name,
        effects: &mut Vec<Effect>,
        step: impl FnOnce(&mut Desk, &mut Cx<'_>),
    ) {
        let Some(desk) = self.desks.get_mut(name) else {
            return;
        };
        let mut cx = Cx {
            now,
            name,
            source: &mut self.source,
            effects,
        };
        step(desk, &mut cx);
        let due = desk.next_due();
        if due != desk.due {
            if let Some(old) = desk.due.take() {
                self.timers.remove(&(old, name.clone()));
            }
            if let Some(due) = due {
                self.timers.insert((due, name.clone()));
            }
            desk.due = due;
        }
        if desk.is_idle() {
            debug_assert!(due.is_none(), "an idle desk has no timer");
            self.desks.remove(name);
        }
    }
}
