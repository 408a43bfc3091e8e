//! The claims of one key, found by number, by ticket and by the time at which they are due.
//!
//! There is nearly always one claim. There may be ten thousand, because every fixed lease has a claim of its own. An
//! index is then kept, so that no step walks along all claims.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Index, IndexMut};

use foldhash::quality::RandomState;

use crate::error::StoreError;
use crate::protocol::claim::{Claim, Passed};
use crate::protocol::key::line::Caller;
use crate::protocol::message::{ClaimNumber, Mode};
use crate::protocol::step::Ticket;
use crate::protocol::time::Instant;

/// The largest number of claims that is searched without an index, which is faster for so few.
const MAX_UNINDEXED_CLAIMS: usize = 8;

/// The callers that a claim is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claimant {
    /// The first caller of the line.
    LineHead,
    /// One caller: with a fixed lease, a tick, or its own place in the queue.
    Solo(Caller),
    /// The caller that is first in the line at the grant. Sent for a caller behind the first, and granted only if
    /// enough permits are free. After the grant it is [`LineHead`](Self::LineHead).
    LineFollower,
    /// No caller any more.
    Abandoned,
}

/// A claim of a key, and the callers that it is for.
#[derive(Debug)]
pub(crate) struct ListedClaim {
    pub(crate) claim: Claim,
    pub(crate) claimant: Claimant,
}

impl ListedClaim {
    fn number(&self) -> ClaimNumber {
        self.claim.number()
    }

    /// Returns whether a recovery that ends at `end` is too long for the caller of a claim of its own. A tick waits for none: later
    /// ticks have come by then.
    pub(crate) fn is_held_back(&self, end: Instant) -> bool {
        let gives_up = self.claim.terms().tick.is_some()
            || matches!(self.claimant, Claimant::Solo(caller) if !caller.waits_until(end));
        self.claim.is_waiting() && gives_up
    }

    fn summary(&self) -> ClaimSummary {
        ClaimSummary {
            due: self.claim.due(),
            ticket: self.ticket(),
            is_head_claim: self.is_head_claim(),
            is_taken: self.claim.is_taken(),
            is_recovering: self.claim.is_recovering(),
            is_shared: self.claim.is_shared(),
            waits_alone: self.waits_alone(),
            is_for_follower: self.is_for_follower(),
        }
    }

    /// Returns the one caller that holds by the claim, or that waits for it alone.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        if let Some(held) = self.claim.held() {
            return held.local().map(|local| local.ticket);
        }
        match &self.claimant {
            Claimant::Solo(caller) if !self.claim.is_leaving() => Some(caller.ticket),
            _ => None,
        }
    }

    /// Returns whether the claim is for the head of the line, or is held and will be handed on to it. While other
    /// claims may hold beside this one, as readers or by permits, the head of the line gets another claim.
    fn is_head_claim(&self) -> bool {
        let claim = &self.claim;
        let is_pursued = match claim.held() {
            Some(held) => held.local().is_some() && !matches!(claim.terms().mode, Mode::Permits(_)),
            None => !claim.is_leaving(),
        };
        matches!(self.claimant, Claimant::LineHead) && is_pursued
    }

    /// Returns whether the claim is for a caller behind the first of the line.
    fn is_for_follower(&self) -> bool {
        self.claimant == Claimant::LineFollower && !self.claim.is_leaving()
    }

    /// Returns whether the claim is for one caller that does not hold yet.
    fn waits_alone(&self) -> bool {
        let is_waiting = !self.claim.is_leaving() && self.claim.held().is_none();
        matches!(self.claimant, Claimant::Solo(_)) && is_waiting
    }
}

/// The facts by which claims are found.
#[derive(Debug, Default, Clone, Copy)]
struct ClaimSummary {
    due: Option<Instant>,
    /// The one caller that holds by the claim, or that waits for it alone.
    ticket: Option<Ticket>,
    /// See [`ListedClaim::is_head_claim`].
    is_head_claim: bool,
    /// See [`Claim::is_taken`].
    is_taken: bool,
    /// See [`Claim::is_recovering`].
    is_recovering: bool,
    /// See [`Claim::is_shared`].
    is_shared: bool,
    /// See [`ListedClaim::waits_alone`].
    waits_alone: bool,
    /// See [`ListedClaim::is_for_follower`].
    is_for_follower: bool,
}

/// Every claim of a key that is not over. At most one is for the head of the line.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    list: Vec<ListedClaim>,
    index: Option<Box<ClaimIndex>>,
}

/// The places of the claims in the list, and the facts by which they are found.
#[derive(Debug, Default)]
struct ClaimIndex {
    places: HashMap<ClaimNumber, usize, RandomState>,
    /// The facts of each claim when it was indexed.
    summaries: HashMap<ClaimNumber, ClaimSummary, RandomState>,
    tickets: HashMap<Ticket, ClaimNumber, RandomState>,
    dues: BTreeSet<(Instant, ClaimNumber)>,
    head_claim: Option<ClaimNumber>,
    taken: usize,
    recovering: usize,
    shared: usize,
    alone: usize,
    followers: usize,
    /// Claims that changed since they were indexed.
    stale: Vec<ClaimNumber>,
    /// Claims that changed since the last check of whether they are still wanted.
    unsettled: Vec<ClaimNumber>,
}

impl ClaimIndex {
    fn touch(&mut self, number: ClaimNumber) {
        for list in [&mut self.stale, &mut self.unsettled] {
            if list.last() != Some(&number) {
                list.push(number);
            }
        }
    }

    fn add(&mut self, number: ClaimNumber, summary: ClaimSummary) {
        self.summaries.insert(number, summary);
        self.tickets.extend(summary.ticket.map(|ticket| (ticket, number)));
        self.dues.extend(summary.due.map(|due| (due, number)));
        if summary.is_head_claim {
            self.head_claim = Some(number);
        }
        self.taken += usize::from(summary.is_taken);
        self.recovering += usize::from(summary.is_recovering);
        self.shared += usize::from(summary.is_shared);
        self.alone += usize::from(summary.waits_alone);
        self.followers += usize::from(summary.is_for_follower);
    }

    fn remove(&mut self, number: ClaimNumber) {
        let summary = self.summaries.remove(&number).unwrap_or_default();
        if let Some(ticket) = summary.ticket.filter(|t| self.tickets.get(t) == Some(&number)) {
            self.tickets.remove(&ticket);
        }
        if let Some(due) = summary.due {
            self.dues.remove(&(due, number));
        }
        if summary.is_head_claim && self.head_claim == Some(number) {
            self.head_claim = None;
        }
        self.taken -= usize::from(summary.is_taken);
        self.recovering -= usize::from(summary.is_recovering);
        self.shared -= usize::from(summary.is_shared);
        self.alone -= usize::from(summary.waits_alone);
        self.followers -= usize::from(summary.is_for_follower);
    }
}

impl Claims {
    /// Frees memory, except for a few claims.
    pub(crate) fn shrink(&mut self) {
        self.list.shrink_to(MAX_UNINDEXED_CLAIMS);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.list.iter().map(|listed| &listed.claim)
    }

    pub(crate) fn insert(&mut self, claim: Claim, claimant: Claimant) {
        let number = claim.number();
        self.list.push(ListedClaim { claim, claimant });
        if let Some(index) = &mut self.index {
            index.places.insert(number, self.list.len() - 1);
            index.touch(number);
        } else if self.list.len() > MAX_UNINDEXED_CLAIMS {
            let mut index = Box::<ClaimIndex>::default();
            for (at, listed) in self.list.iter().enumerate() {
                index.places.insert(listed.number(), at);
                index.touch(listed.number());
            }
            self.index = Some(index);
        }
    }

    pub(crate) fn remove(&mut self, number: ClaimNumber) -> Option<ListedClaim> {
        let at = self.place(number)?;
        let listed = self.list.swap_remove(at);
        if let Some(index) = &mut self.index {
            index.remove(number);
            index.places.remove(&number);
            if let Some(moved) = self.list.get(at) {
                index.places.insert(moved.number(), at);
            }
            if self.list.is_empty() {
                self.index = None;
            }
        }
        Some(listed)
    }

    /// Removes a claim that is over, without returning it.
    pub(crate) fn end(&mut self, number: ClaimNumber) {
        if self.index.is_some() {
            self.remove(number);
        } else if let Some(at) = self.place(number) {
            // The claim is dropped in place, because it is too large to move.
            let last = self.list.len() - 1;
            if at < last {
                self.list.swap(at, last);
            }
            self.list.truncate(last);
        }
    }

    #[inline]
    pub(crate) fn listed(&self, number: ClaimNumber) -> Option<&ListedClaim> {
        if let Some(index) = &self.index {
            return self.list.get(*index.places.get(&number)?);
        }
        self.list.iter().find(|listed| listed.number() == number)
    }

    #[inline]
    pub(crate) fn listed_mut(&mut self, number: ClaimNumber) -> Option<&mut ListedClaim> {
        if let Some(index) = &mut self.index {
            let at = *index.places.get(&number)?;
            index.touch(number);
            return self.list.get_mut(at);
        }
        self.list.iter_mut().find(|listed| listed.number() == number)
    }

    #[inline]
    pub(crate) fn get(&self, number: ClaimNumber) -> Option<&Claim> {
        self.listed(number).map(|listed| &listed.claim)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: ClaimNumber) -> Option<&mut Claim> {
        self.listed_mut(number).map(|listed| &mut listed.claim)
    }

    /// Returns the callers that a claim is for.
    #[inline]
    pub(crate) fn claimant(&self, number: ClaimNumber) -> Claimant {
        self.listed(number)
            .map_or(Claimant::Abandoned, |listed| listed.claimant)
    }

    pub(crate) fn set_claimant(&mut self, number: ClaimNumber, claimant: Claimant) {
        if let Some(listed) = self.listed_mut(number) {
            listed.claimant = claimant;
        }
    }

    /// Abandons a claim, and returns the callers that it was for.
    pub(crate) fn take_claimant(&mut self, number: ClaimNumber) -> Claimant {
        let claimant = self.claimant(number);
        self.set_claimant(number, Claimant::Abandoned);
        claimant
    }

    /// Returns the claim of this number if its lease is being passed on.
    pub(crate) fn passed_mut(&mut self, number: ClaimNumber) -> Option<&mut Passed> {
        let claims = self.list.iter_mut().map(|listed| &mut listed.claim);
        let mut passed = claims.filter_map(Claim::passed_mut);
        passed.find(|old| old.number() == number)
    }

    fn place(&self, number: ClaimNumber) -> Option<usize> {
        match &self.index {
            Some(index) => index.places.get(&number).copied(),
            None => self.list.iter().position(|listed| listed.number() == number),
        }
    }

    /// Returns the claim by which a caller holds, or that waits for this caller alone.
    pub(crate) fn by_ticket(&self, ticket: Ticket) -> Option<&Claim> {
        let is_its = |listed: &&ListedClaim| listed.ticket() == Some(ticket);
        let listed = match &self.index {
            Some(index) => {
                let known = index.tickets.get(&ticket).and_then(|number| self.listed(*number));
                // A claim that this step changed is not in its place of the index yet.
                let mut changed = index.stale.iter().filter_map(|number| self.listed(*number));
                known.filter(is_its).or_else(|| changed.find(is_its))
            }
            None => self.list.iter().find(is_its),
        };
        listed.map(|listed| &listed.claim)
    }

    /// Returns the claim for the head of the line, or the held claim that will be handed on to it.
    #[inline]
    pub(crate) fn head_claim(&mut self) -> Option<ClaimNumber> {
        self.refresh();
        match &self.index {
            Some(index) => index.head_claim,
            None => {
                let mut listed = self.list.iter();
                let head_claim = listed.find(|listed| listed.is_head_claim())?;
                Some(head_claim.number())
            }
        }
    }

    /// Returns whether the key is surely taken by a claim that excludes this mode, or that comes first. Valid at the
    /// start of a step only.
    pub(crate) fn is_taken(&self, mode: Mode) -> bool {
        let excludes = |claim: &Claim| claim.is_taken() && (mode == Mode::Exclusive || !claim.is_shared());
        match &self.index {
            // Only the store knows how many permits are left.
            _ if matches!(mode, Mode::Permits(_)) => false,
            Some(index) if mode == Mode::Exclusive => index.taken > 0,
            Some(index) => index.taken > index.shared,
            None => self.iter().any(excludes),
        }
    }

    /// Returns whether a claim waits for the end of the server's recovery. Valid between steps only.
    pub(crate) fn is_recovering(&self) -> bool {
        match &self.index {
            Some(index) => index.recovering > 0,
            None => self.iter().any(Claim::is_recovering),
        }
    }

    /// Returns the error of a server that recovers, if a claim waits for the end of that. Valid between steps only.
    pub(crate) fn recovery(&self, now: Instant) -> Option<StoreError> {
        let ends = || self.iter().filter_map(Claim::recovers_until).max();
        let end = self.is_recovering().then(ends)??;
        Some(StoreError::recovering(end.since(now)))
    }

    /// Returns how many callers wait for a claim of their own. Valid at the start of a step only.
    pub(crate) fn waiting_alone(&self) -> usize {
        match &self.index {
            Some(index) => index.alone,
            None => self.list.iter().filter(|listed| listed.waits_alone()).count(),
        }
    }

    /// Returns how many claims are for callers behind the first of the line.
    pub(crate) fn follower_claims(&mut self) -> usize {
        self.refresh();
        match &self.index {
            Some(index) => index.followers,
            None => self.list.iter().filter(|listed| listed.is_for_follower()).count(),
        }
    }

    #[inline]
    pub(crate) fn next_due(&mut self) -> Option<Instant> {
        self.refresh();
        match &self.index {
            Some(index) => index.dues.first().map(|(due, _)| *due),
            None => self.iter().filter_map(Claim::due).min(),
        }
    }

    /// Returns the claims that are due by `now`.
    pub(crate) fn due(&mut self, now: Instant) -> ClaimNumbers {
        self.refresh();
        match &self.index {
            Some(index) => {
                let due = index.dues.range(..=(now, ClaimNumber(u64::MAX)));
                due.map(|(_, number)| *number).collect()
            }
            None => {
                let due = self
                    .iter()
                    .filter(|claim| claim.due().is_some_and(|due| due <= now));
                due.map(|claim| claim.number()).collect()
            }
        }
    }

    /// Returns the claims that changed since the last call. With an index, the claim for the head of the line is
    /// always among them, because the line may have changed.
    #[inline]
    pub(crate) fn unsettled(&mut self) -> ClaimNumbers {
        if self.list.is_empty() {
            return ClaimNumbers::default();
        }
        self.refresh();
        match &mut self.index {
            Some(index) => {
                let changed = index.unsettled.drain(..);
                changed.chain(index.head_claim).collect()
            }
            None => self.all(),
        }
    }

    pub(crate) fn all(&self) -> ClaimNumbers {
        self.list.iter().map(ListedClaim::number).collect()
    }

    /// Puts the claims that this step has changed in their places of the index.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        if self.index.is_some() {
            self.refresh_index();
        }
    }

    fn refresh_index(&mut self) {
        let Some(index) = &mut self.index else { return };
        while let Some(number) = index.stale.pop() {
            if let Some(&at) = index.places.get(&number) {
                index.remove(number);
                index.add(number, self.list[at].summary());
            }
        }
    }
}

impl Index<ClaimNumber> for Claims {
    type Output = Claim;

    #[inline]
    fn index(&self, number: ClaimNumber) -> &Claim {
        self.get(number).expect("a claim that is not over")
    }
}

impl IndexMut<ClaimNumber> for Claims {
    #[inline]
    fn index_mut(&mut self, number: ClaimNumber) -> &mut Claim {
        self.get_mut(number).expect("a claim that is not over")
    }
}

/// A list of claim numbers, for loops that change the claims. One number needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct ClaimNumbers {
    first: Option<ClaimNumber>,
    more: Vec<ClaimNumber>,
}

impl FromIterator<ClaimNumber> for ClaimNumbers {
    #[inline]
    fn from_iter<I: IntoIterator<Item = ClaimNumber>>(numbers: I) -> Self {
        let mut numbers = numbers.into_iter();
        ClaimNumbers {
            first: numbers.next(),
            more: numbers.collect(),
        }
    }
}

impl Iterator for ClaimNumbers {
    type Item = ClaimNumber;

    /// Returns the youngest claim first.
    #[inline]
    fn next(&mut self) -> Option<ClaimNumber> {
        self.more.pop().or_else(|| self.first.take())
    }
}
