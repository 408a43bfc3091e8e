//! The claims of one key, found by number, by ticket and by the time at which they are due.
//!
//! There is nearly always one claim. There may be ten thousand, because every fixed lease has a claim of its own. An
//! index is then kept, so that no step walks along all claims.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Index, IndexMut};

use foldhash::quality::RandomState;

use crate::error::StoreError;
use crate::protocol::key::claim::{Claim, ClaimSummary};
use crate::protocol::message::{ClaimNumber, Mode};
use crate::protocol::step::Ticket;
use crate::protocol::time::Instant;

/// The largest number of claims that is searched without an index, which is faster for so few.
const MAX_UNINDEXED_CLAIMS: usize = 8;

/// Every claim of a key that is not over. At most one is for the head of the line.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    list: Vec<Claim>,
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
        self.list.iter()
    }

    pub(crate) fn insert(&mut self, claim: Claim) {
        let number = claim.claim_id.claim;
        self.list.push(claim);
        if let Some(index) = &mut self.index {
            index.places.insert(number, self.list.len() - 1);
            index.touch(number);
        } else if self.list.len() > MAX_UNINDEXED_CLAIMS {
            let mut index = Box::<ClaimIndex>::default();
            for (at, claim) in self.list.iter().enumerate() {
                index.places.insert(claim.claim_id.claim, at);
                index.touch(claim.claim_id.claim);
            }
            self.index = Some(index);
        }
    }

    pub(crate) fn remove(&mut self, number: ClaimNumber) -> Option<Claim> {
        let at = self.place(number)?;
        let claim = self.list.swap_remove(at);
        if let Some(index) = &mut self.index {
            index.remove(number);
            index.places.remove(&number);
            if let Some(moved) = self.list.get(at) {
                index.places.insert(moved.claim_id.claim, at);
            }
            if self.list.is_empty() {
                self.index = None;
            }
        }
        Some(claim)
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
    pub(crate) fn get(&self, number: ClaimNumber) -> Option<&Claim> {
        if let Some(index) = &self.index {
            return self.list.get(*index.places.get(&number)?);
        }
        self.list.iter().find(|claim| claim.claim_id.claim == number)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: ClaimNumber) -> Option<&mut Claim> {
        if let Some(index) = &mut self.index {
            let at = *index.places.get(&number)?;
            index.touch(number);
            return self.list.get_mut(at);
        }
        self.list.iter_mut().find(|claim| claim.claim_id.claim == number)
    }

    /// Returns the claim of this number if its lease is being passed on.
    pub(crate) fn passed_mut(&mut self, number: ClaimNumber) -> Option<&mut Claim> {
        let mut passed = self.list.iter_mut().filter_map(Claim::passed_mut);
        passed.find(|old| old.claim_id.claim == number)
    }

    fn place(&self, number: ClaimNumber) -> Option<usize> {
        match &self.index {
            Some(index) => index.places.get(&number).copied(),
            None => self.list.iter().position(|claim| claim.claim_id.claim == number),
        }
    }

    /// Returns the claim by which a caller holds, or that waits for this caller alone. Valid between steps only.
    pub(crate) fn of(&self, ticket: Ticket) -> Option<&Claim> {
        match &self.index {
            Some(index) => self.get(*index.tickets.get(&ticket)?),
            None => self.list.iter().find(|claim| claim.ticket() == Some(ticket)),
        }
    }

    /// Returns the claim for the head of the line, or the held claim that will be handed on to it.
    #[inline]
    pub(crate) fn head_claim(&mut self) -> Option<ClaimNumber> {
        self.refresh();
        match &self.index {
            Some(index) => index.head_claim,
            None => {
                let mut claims = self.list.iter();
                let head_claim = claims.find(|claim| claim.is_head_claim())?;
                Some(head_claim.claim_id.claim)
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
            None => self.list.iter().any(excludes),
        }
    }

    /// Returns whether a claim waits for the end of the server's recovery. Valid between steps only.
    pub(crate) fn is_recovering(&self) -> bool {
        match &self.index {
            Some(index) => index.recovering > 0,
            None => self.list.iter().any(Claim::is_recovering),
        }
    }

    /// Returns the error of a server that recovers, if a claim waits for the end of that. Valid between steps only.
    pub(crate) fn recovery(&self, now: Instant) -> Option<StoreError> {
        let ends = || self.list.iter().filter_map(Claim::recovers_until).max();
        let end = self.is_recovering().then(ends)??;
        Some(StoreError::recovering(end.since(now)))
    }

    /// Returns how many callers wait for a claim of their own. Valid at the start of a step only.
    pub(crate) fn waiting_alone(&self) -> usize {
        match &self.index {
            Some(index) => index.alone,
            None => self.list.iter().filter(|claim| claim.waits_alone()).count(),
        }
    }

    /// Returns how many claims are for callers behind the first of the line.
    pub(crate) fn follower_claims(&mut self) -> usize {
        self.refresh();
        match &self.index {
            Some(index) => index.followers,
            None => self.list.iter().filter(|claim| claim.is_for_follower()).count(),
        }
    }

    #[inline]
    pub(crate) fn next_due(&mut self) -> Option<Instant> {
        self.refresh();
        match &self.index {
            Some(index) => index.dues.first().map(|(due, _)| *due),
            None => self.list.iter().filter_map(Claim::due).min(),
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
                    .list
                    .iter()
                    .filter(|claim| claim.due().is_some_and(|due| due <= now));
                due.map(|claim| claim.claim_id.claim).collect()
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
        self.list.iter().map(|claim| claim.claim_id.claim).collect()
    }

    #[inline]
    fn refresh(&mut self) {
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
