//! The claims of one key: one pursuit of a lease each, found by number, by ticket and by what is due.
//!
//! Nearly always there is one. There may be ten thousand, as every fixed lease has a claim of its own; then an index is
//! kept, so that no step walks along all of them.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Index, IndexMut};

use foldhash::quality::RandomState;

use crate::protocol::key::claim::{Claim, ClaimSummary};
use crate::protocol::message::{ClaimNumber, Mode};
use crate::protocol::step::Ticket;
use crate::protocol::time::Instant;

/// So many claims are sooner looked through than indexed.
const MAX_UNINDEXED_CLAIMS: usize = 8;

/// Every claim of a key that is not over. At most one of them is pursued for the line.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    list: Vec<Claim>,
    index: Option<Box<ClaimIndex>>,
}

/// Where each claim is, by what it is found by.
#[derive(Debug, Default)]
struct ClaimIndex {
    places: HashMap<ClaimNumber, usize, RandomState>,
    /// What it was found by when it was indexed.
    summaries: HashMap<ClaimNumber, ClaimSummary, RandomState>,
    tickets: HashMap<Ticket, ClaimNumber, RandomState>,
    dues: BTreeSet<(Instant, ClaimNumber)>,
    head_claim: Option<ClaimNumber>,
    taken: usize,
    shared: usize,
    alone: usize,
    followers: usize,
    /// Changed since it was indexed.
    stale: Vec<ClaimNumber>,
    /// Changed since somebody saw to it that each is wanted.
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
        self.shared -= usize::from(summary.is_shared);
        self.alone -= usize::from(summary.waits_alone);
        self.followers -= usize::from(summary.is_for_follower);
    }
}

impl Claims {
    /// Keeps room for a few.
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

    /// The same for one that is over, and of no more interest.
    pub(crate) fn end(&mut self, number: ClaimNumber) {
        if self.index.is_some() {
            self.remove(number);
        } else if let Some(at) = self.place(number) {
            // In place: a claim is large.
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

    fn place(&self, number: ClaimNumber) -> Option<usize> {
        match &self.index {
            Some(index) => index.places.get(&number).copied(),
            None => self.list.iter().position(|claim| claim.claim_id.claim == number),
        }
    }

    /// The claim by which a caller holds, or that waits for this caller alone. Asked between steps.
    pub(crate) fn of(&self, ticket: Ticket) -> Option<&Claim> {
        match &self.index {
            Some(index) => self.get(*index.tickets.get(&ticket)?),
            None => self.list.iter().find(|claim| claim.ticket() == Some(ticket)),
        }
    }

    /// The claim that is pursued for the line, or will be handed on to it.
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

    /// Somebody has the key for sure who excludes this mode, or is before us. Asked at the start of a step.
    pub(crate) fn is_taken(&self, mode: Mode) -> bool {
        let excludes = |claim: &Claim| claim.is_taken() && (mode == Mode::Exclusive || !claim.is_shared());
        match &self.index {
            // How many permits are left the store knows alone.
            _ if matches!(mode, Mode::Permits(_)) => false,
            Some(index) if mode == Mode::Exclusive => index.taken > 0,
            Some(index) => index.taken > index.shared,
            None => self.list.iter().any(excludes),
        }
    }

    /// How many callers wait for a claim of their own. Asked at the start of a step.
    pub(crate) fn waiting_alone(&self) -> usize {
        match &self.index {
            Some(index) => index.alone,
            None => self.list.iter().filter(|claim| claim.waits_alone()).count(),
        }
    }

    /// How many ask for those behind the first of the line.
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

    /// Those that have something to do by `now`.
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

    /// Those that changed since this was asked last, or may be wanted no more since the line did.
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

/// Numbers of claims, to go through while the claims change. One needs no memory of its own.
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

    /// The youngest first.
    #[inline]
    fn next(&mut self) -> Option<ClaimNumber> {
        self.more.pop().or_else(|| self.first.take())
    }
}
