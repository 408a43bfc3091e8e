//! The claims of one key: one pursuit of a lease each, found by number, by ticket and by what is due.
//!
//! Nearly always there is one. There may be ten thousand, as every fixed lease has a claim of its own; then an index is
//! kept, so that no step walks along all of them.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Index, IndexMut};
use std::time::Duration;

use foldhash::quality::RandomState;

use crate::protocol::line::Caller;
use crate::protocol::message::{ClaimNumber, GrantNumber, Holder, LeaseTimes, TickTime};
use crate::protocol::step::{Ticket, ms};
use crate::protocol::time::Instant;

/// So many claims are sooner looked through than indexed.
const FEW: usize = 8;

/// One pursuit of a lease. Its number lives once, and has one lease length for life.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) holder: Holder,
    pub(crate) term: LeaseTimes,
    pub(crate) owner: Owner,
    /// Never renewed.
    pub(crate) fixed: bool,
    /// The tick that it is for.
    pub(crate) mark: Option<TickTime>,
    /// The number of the attempt at its tick it is.
    pub(crate) attempt: u32,
    /// Its tick was run to the end.
    pub(crate) finished: bool,
    pub(crate) phase: Phase,
    /// When its first request was handed out: never later than it was sent.
    pub(crate) asked: Instant,
    /// The request under way, if any.
    pub(crate) asking: Option<Asking>,
    pub(crate) seq: u32,
    /// When the next request is due, while none is under way.
    pub(crate) act: Option<Instant>,
    /// `act` repeats what failed: it need not be waited for when the store is back.
    pub(crate) retries: bool,
    /// Failures in a row.
    pub(crate) fails: u32,
    /// A grant may have been missed since the request under way was handed out.
    pub(crate) look_again: bool,
    /// Not answered yet: the store may still execute it until then, and refuses it as late from then on.
    pub(crate) may_execute_until: Option<Instant>,
    /// Created by a yield: what it was before.
    pub(crate) yielded: Option<Yielded>,
    /// What the index knows of it.
    indexed: Facts,
}

/// For whom a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// For whoever is first in the line.
    Cohort,
    /// For one caller: a fixed lease, or a tick.
    Solo(Caller),
    /// For nobody any more.
    Nobody,
}

#[derive(Debug)]
pub(crate) struct Yielded {
    pub(crate) from: Holder,
    pub(crate) term: LeaseTimes,
    pub(crate) release: Option<Ticket>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asking {
    pub(crate) seq: u32,
    pub(crate) what: RequestKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Claim { wait: bool },
    Renew,
    Leave,
    Yield,
}

/// Asked, queued, granted, gone; never back.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Nothing is known yet.
    Asked,
    /// In the store's queue; `t0` is when the latest request that was answered "queued" was sent.
    Queued { t0: Instant },
    /// Granted at `since`, but too little may be left: renewed before use. So many times in vain.
    Confirming { since: Instant, tries: u32 },
    /// Ours, for a holder.
    Held(Held),
    /// Dead here; the store is being told.
    Leaving(Leaving),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) number: GrantNumber,
    pub(crate) deadline: Instant,
    pub(crate) ticket: Ticket,
    /// The place of the present holder among the local holders of this grant.
    pub(crate) index: u64,
    /// When the burst began.
    pub(crate) since: Instant,
    /// When it is to be renewed next.
    pub(crate) due: Instant,
    /// By then the record has ended, if no request extends it.
    pub(crate) ends: Instant,
    /// When it is given back, if its caller has not taken it up by then.
    pub(crate) unfetched: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving {
    /// Who waits to hear of it.
    pub(crate) release: Option<Ticket>,
    /// When the lease has ended by itself.
    pub(crate) ends: Instant,
    /// When to stop telling.
    pub(crate) until: Instant,
    /// An earlier request may have done it.
    pub(crate) repeated: bool,
}

impl Claim {
    pub(crate) fn new(
        holder: Holder,
        owner: Owner,
        term: LeaseTimes,
        (fixed, mark): (bool, Option<TickTime>),
        now: Instant,
    ) -> Self {
        Claim {
            holder,
            term,
            owner,
            fixed,
            mark,
            attempt: 0,
            finished: false,
            phase: Phase::Asked,
            asked: now,
            asking: None,
            seq: 0,
            act: None,
            retries: false,
            fails: 0,
            look_again: false,
            may_execute_until: None,
            yielded: None,
            indexed: Facts::default(),
        }
    }

    pub(crate) fn lease(&self) -> Duration {
        ms(self.term.lease_ms)
    }

    /// How long its record lives in the store: the lease and the margin.
    pub(crate) fn hold(&self) -> Duration {
        ms(self.term.hold_ms())
    }

    pub(crate) fn is_tick(&self) -> bool {
        self.mark.is_some()
    }

    pub(crate) fn held(&self) -> Option<&Held> {
        match &self.phase {
            Phase::Held(held) => Some(held),
            _ => None,
        }
    }

    pub(crate) fn is_asking(&self, kind: RequestKind) -> bool {
        self.asking.is_some_and(|asking| asking.what == kind)
    }

    /// When it has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        let (deadline, unfetched) = self
            .held()
            .map_or((None, None), |held| (Some(held.deadline), held.unfetched));
        [self.act, deadline, unfetched].into_iter().flatten().min()
    }

    fn facts(&self) -> Facts {
        let is_leaving = matches!(self.phase, Phase::Leaving(_));
        let solo = match self.owner {
            Owner::Solo(caller) if !is_leaving => Some(caller.ticket),
            _ => None,
        };
        let held = self.held().map(|held| held.ticket);
        Facts {
            due: self.due(),
            ticket: held.or(solo),
            is_cohort: self.owner == Owner::Cohort && !is_leaving,
            is_taken: matches!(
                self.phase,
                Phase::Held(_) | Phase::Queued { .. } | Phase::Confirming { .. }
            ),
            waits_alone: solo.is_some() && held.is_none(),
        }
    }
}

/// What claims are found by.
#[derive(Debug, Default, Clone, Copy)]
struct Facts {
    due: Option<Instant>,
    /// Who holds by it, or waits for it alone.
    ticket: Option<Ticket>,
    /// Pursued for the line.
    is_cohort: bool,
    /// Somebody else has the key for sure, or is before us.
    is_taken: bool,
    /// For a caller that does not hold yet.
    waits_alone: bool,
}

/// Every claim of a key that is not over. At most one of them is the cohort's.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    list: Vec<Claim>,
    index: Option<Box<Finder>>,
}

/// Where each claim is, by what it is found by.
#[derive(Debug, Default)]
struct Finder {
    places: HashMap<ClaimNumber, usize, RandomState>,
    tickets: HashMap<Ticket, ClaimNumber, RandomState>,
    dues: BTreeSet<(Instant, ClaimNumber)>,
    cohort: Option<ClaimNumber>,
    taken: usize,
    alone: usize,
    /// Changed since it was indexed.
    stale: Vec<ClaimNumber>,
    /// Changed since somebody saw to it that each is wanted.
    unsettled: Vec<ClaimNumber>,
}

impl Finder {
    fn touch(&mut self, number: ClaimNumber) {
        for list in [&mut self.stale, &mut self.unsettled] {
            if list.last() != Some(&number) {
                list.push(number);
            }
        }
    }

    fn add(&mut self, number: ClaimNumber, facts: Facts) {
        self.tickets.extend(facts.ticket.map(|ticket| (ticket, number)));
        self.dues.extend(facts.due.map(|due| (due, number)));
        if facts.is_cohort {
            self.cohort = Some(number);
        }
        self.taken += usize::from(facts.is_taken);
        self.alone += usize::from(facts.waits_alone);
    }

    fn remove(&mut self, number: ClaimNumber, facts: Facts) {
        if let Some(ticket) = facts.ticket.filter(|t| self.tickets.get(t) == Some(&number)) {
            self.tickets.remove(&ticket);
        }
        if let Some(due) = facts.due {
            self.dues.remove(&(due, number));
        }
        if facts.is_cohort && self.cohort == Some(number) {
            self.cohort = None;
        }
        self.taken -= usize::from(facts.is_taken);
        self.alone -= usize::from(facts.waits_alone);
    }
}

impl Claims {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.list.iter()
    }

    pub(crate) fn insert(&mut self, claim: Claim) {
        let number = claim.holder.claim;
        self.list.push(claim);
        if let Some(index) = &mut self.index {
            index.places.insert(number, self.list.len() - 1);
            index.touch(number);
        } else if self.list.len() > FEW {
            let mut index = Box::<Finder>::default();
            for (at, claim) in self.list.iter().enumerate() {
                index.places.insert(claim.holder.claim, at);
                index.touch(claim.holder.claim);
            }
            self.list
                .iter_mut()
                .for_each(|claim| claim.indexed = Facts::default());
            self.index = Some(index);
        }
    }

    pub(crate) fn remove(&mut self, number: ClaimNumber) -> Option<Claim> {
        let at = self.place(number)?;
        let claim = self.list.swap_remove(at);
        if let Some(index) = &mut self.index {
            index.remove(number, claim.indexed);
            index.places.remove(&number);
            if let Some(moved) = self.list.get(at) {
                index.places.insert(moved.holder.claim, at);
            }
            if self.list.is_empty() {
                self.index = None;
            }
        }
        Some(claim)
    }

    pub(crate) fn get(&self, number: ClaimNumber) -> Option<&Claim> {
        Some(&self.list[self.place(number)?])
    }

    pub(crate) fn get_mut(&mut self, number: ClaimNumber) -> Option<&mut Claim> {
        let at = self.place(number)?;
        if let Some(index) = &mut self.index {
            index.touch(number);
        }
        Some(&mut self.list[at])
    }

    fn place(&self, number: ClaimNumber) -> Option<usize> {
        match &self.index {
            Some(index) => index.places.get(&number).copied(),
            None => self.list.iter().position(|claim| claim.holder.claim == number),
        }
    }

    /// The claim by which a caller holds, or that waits for this caller alone. Asked between steps.
    pub(crate) fn of(&self, ticket: Ticket) -> Option<&Claim> {
        match &self.index {
            Some(index) => self.get(*index.tickets.get(&ticket)?),
            None => self
                .list
                .iter()
                .find(|claim| claim.facts().ticket == Some(ticket)),
        }
    }

    /// The claim that is pursued for the line.
    pub(crate) fn cohort(&mut self) -> Option<ClaimNumber> {
        self.refresh();
        match &self.index {
            Some(index) => index.cohort,
            None => {
                let mut claims = self.list.iter();
                let cohort = claims.find(|claim| claim.facts().is_cohort)?;
                Some(cohort.holder.claim)
            }
        }
    }

    /// Somebody else has the key for sure, or is before us. Asked at the start of a step.
    pub(crate) fn is_taken(&self) -> bool {
        match &self.index {
            Some(index) => index.taken > 0,
            None => self.list.iter().any(|claim| claim.facts().is_taken),
        }
    }

    /// How many callers wait for a claim of their own. Asked at the start of a step.
    pub(crate) fn waiting_alone(&self) -> usize {
        match &self.index {
            Some(index) => index.alone,
            None => self.list.iter().filter(|claim| claim.facts().waits_alone).count(),
        }
    }

    pub(crate) fn next_due(&mut self) -> Option<Instant> {
        self.refresh();
        match &self.index {
            Some(index) => index.dues.first().map(|(due, _)| *due),
            None => self.list.iter().filter_map(Claim::due).min(),
        }
    }

    /// Those that have something to do by `now`.
    pub(crate) fn due(&mut self, now: Instant) -> Numbers {
        self.refresh();
        match &self.index {
            Some(index) => {
                let due = index.dues.range(..=(now, ClaimNumber(u64::MAX)));
                due.map(|(_, number)| *number).collect()
            }
            None => {
                let due = self
                    .list
                    .iter()
                    .filter(|claim| claim.due().is_some_and(|due| due <= now));
                due.map(|claim| claim.holder.claim).collect()
            }
        }
    }

    /// Those that changed since this was asked last, or may be wanted no more since the line did.
    pub(crate) fn unsettled(&mut self) -> Numbers {
        self.refresh();
        match &mut self.index {
            Some(index) => {
                let changed = index.unsettled.drain(..);
                changed.chain(index.cohort).collect()
            }
            None => self.all(),
        }
    }

    pub(crate) fn all(&self) -> Numbers {
        self.list.iter().map(|claim| claim.holder.claim).collect()
    }

    fn refresh(&mut self) {
        let Some(index) = &mut self.index else { return };
        while let Some(number) = index.stale.pop() {
            if let Some(&at) = index.places.get(&number) {
                let claim = &mut self.list[at];
                let facts = claim.facts();
                index.remove(number, claim.indexed);
                index.add(number, facts);
                claim.indexed = facts;
            }
        }
    }
}

impl Index<ClaimNumber> for Claims {
    type Output = Claim;

    fn index(&self, number: ClaimNumber) -> &Claim {
        self.get(number).expect("a claim that is not over")
    }
}

impl IndexMut<ClaimNumber> for Claims {
    fn index_mut(&mut self, number: ClaimNumber) -> &mut Claim {
        self.get_mut(number).expect("a claim that is not over")
    }
}

/// Numbers of claims, to go through while the claims change. Few need no memory of their own.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    few: [ClaimNumber; FEW],
    len: usize,
    more: Vec<ClaimNumber>,
}

impl FromIterator<ClaimNumber> for Numbers {
    fn from_iter<I: IntoIterator<Item = ClaimNumber>>(numbers: I) -> Self {
        let mut all = Numbers::default();
        for number in numbers {
            if all.len < FEW {
                all.few[all.len] = number;
                all.len += 1;
            } else {
                all.more.push(number);
            }
        }
        all
    }
}

impl Iterator for Numbers {
    type Item = ClaimNumber;

    /// The youngest first.
    fn next(&mut self) -> Option<ClaimNumber> {
        if let Some(number) = self.more.pop() {
            return Some(number);
        }
        self.len = self.len.checked_sub(1)?;
        Some(self.few[self.len])
    }
}
