//! What must never happen, looked for after every step.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::Wrong;
use crate::callers::{Caller, PERMITS, State};
use crate::coverage::Seen;
use crate::elections::Elections;
use crate::jobs::Ticks;
use crate::latches::Latches;
use crate::node::Node;
use crate::world::{Event, MS, SETTLE, World};
use tenure::error::{LostCause, StoreError, StoreErrorKind};
use tenure::protocol::ledger::{LatchRecord, Record, RecordOwner, SharedLease};
use tenure::protocol::message::{
    Batch, Call, ClaimId, ClaimNumber, Fence, GrantNumber, LeaseTimes, Mode, Name, Push, Reply, Request,
    Rule, Verb,
};
use tenure::protocol::session::step::MAX_SILENCE;
use tenure::protocol::step::{AcquireError, Outcome, Ticket};

/// What the watchers remember.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Some fault lasts until then.
    pub(crate) unrest: u64,
    /// When the server's clock last made a small step.
    pub(crate) stepped: u64,
    pub(crate) stepped_back: bool,
    /// What is executed is a copy: its original may have been refused, and be over for its node.
    pub(crate) twin: bool,
    pub(crate) ticks: Ticks,
    pub(crate) latches: Latches,
    pub(crate) elections: Elections,
    pub(crate) forgot: bool,
    highest_fences: Vec<Option<Fence>>,
    /// Of writers alone.
    written: Vec<Option<Fence>>,
    /// Claims whose end was executed.
    ended: HashSet<ClaimId>,
    /// Grants that nothing is promised of any more.
    tainted: HashSet<GrantNumber>,
    pub(crate) highest: GrantNumber,
    /// Fences up to this number may come out of order: the server lost its number and its clock went back.
    amnesty: GrantNumber,
    granted: HashMap<ClaimId, GrantNumber>,
    heard: HashMap<ClaimId, (u64, LeaseTimes)>,
    free_since: Vec<Option<u64>>,
    /// When it was handed on for the first time since it was free, by the server's clock in ms.
    pub(crate) handed_on: Vec<Option<u64>>,
    orphans: HashMap<(usize, ClaimId), u64>,
    second: u64,
}

impl Watch {
    pub(crate) fn new(keys: usize) -> Self {
        Watch {
            unrest: 0,
            stepped: 0,
            stepped_back: false,
            twin: false,
            ticks: Ticks::default(),
            latches: Latches::default(),
            elections: Elections::default(),
            forgot: false,
            highest_fences: vec![None; keys],
            written: vec![None; keys],
            ended: HashSet::new(),
            tainted: HashSet::new(),
            highest: GrantNumber(0),
            amnesty: GrantNumber(0),
            granted: HashMap::new(),
            heard: HashMap::new(),
            free_since: vec![None; keys],
            handed_on: vec![None; keys],
            orphans: HashMap::new(),
            second: 0,
        }
    }
}

impl Watch {
    /// The largest fence of a key that somebody was told.
    pub(crate) fn highest_fence(&self, key: usize) -> Option<Fence> {
        self.highest_fences[key]
    }
}

/// What the server knew of a key.
#[derive(Debug)]
pub(crate) struct Owned {
    record: Option<Record>,
    shares: Vec<SharedLease>,
    waiters: Vec<ClaimId>,
    pub(crate) latch: Option<LatchRecord>,
}

impl Owned {
    fn is_free(&self) -> bool {
        self.record.is_none() && self.shares.is_empty()
    }

    /// How many permits are held.
    fn in_use(&self) -> u32 {
        self.shares.iter().map(|share| weight(share.mode)).sum()
    }

    /// Who has it, and by which grants.
    fn grants(&self) -> impl Iterator<Item = (ClaimId, GrantNumber)> {
        let alone = self.record.iter().filter_map(|record| match record.owner {
            RecordOwner::Claim(claim_id, number) => Some((claim_id, number)),
            _ => None,
        });
        alone.chain(self.shares.iter().map(|share| (share.claim_id, share.number)))
    }
}

/// So many permits are wanted.
fn weight(mode: Mode) -> u32 {
    match mode {
        Mode::Permits(permits) => permits.weight,
        _ => 0,
    }
}

/// Whose lease a request is about.
fn actor(request: &Request) -> ClaimId {
    match request.verb {
        Verb::Call(call) => call.of().unwrap_or(request.claim_id),
        _ => request.claim_id,
    }
}

/// It ends what its actor has.
pub(crate) fn gives(verb: Verb) -> bool {
    matches!(
        verb,
        Verb::Leave
            | Verb::Finish { .. }
            | Verb::Yield { .. }
            | Verb::Pass { .. }
            | Verb::Call(Call::Release { .. })
    )
}

/// Both may hold at one instant.
fn go_together(one: Mode, other: Mode) -> bool {
    matches!(
        (one, other),
        (Mode::Read, Mode::Read) | (Mode::Permits(_), Mode::Permits(_))
    )
}

impl World {
    // Exclusivity.

    /// Each guard that answers *held* is backed by the server's record, and is alone. A stopped process counts: its
    /// guards are asked as of now, by its own clock.
    pub(crate) fn check_key(&mut self, key: usize) {
        let us = self.server_us();
        let longest = self.profile.longest();
        let record = self.server.ledger.record(&self.keys[key], us);
        let mut first: Option<(usize, Fence, Mode)> = None;
        let mut several = false;
        let mut in_use = 0;
        let mut sharers = HashSet::new();
        let mut found = None;
        for (slot, node) in self.nodes.iter_mut().enumerate() {
            if !node.alive {
                continue;
            }
            let local = node.clock.local(self.now);
            // More than one only when a stranger deleted the record of the first.
            let mut holds = Vec::new();
            for (name, ticket, holding) in node.shard.holders(local) {
                let (claim, fence) = (holding.claim, holding.fence);
                if *name != self.keys[key] {
                    continue;
                }
                let caller = ticket.0 as usize - 1;
                holds.push(caller);
                let asked = &node.callers[caller];
                if asked.dark {
                    found = Some((
                        Wrong::Revived,
                        format!("ticket {} of node {slot} holds again", ticket.0),
                    ));
                } else if asked.state != State::Holding {
                    let text = format!(
                        "ticket {} of node {slot} is {:?} and holds",
                        ticket.0, asked.state
                    );
                    found = Some((Wrong::Outcome, text));
                }
                // Its node may hold a longer lease than it asked for; a renewal may have been on its way when its time
                // was over, and queued before it was sent.
                let longest = asked.want.max_hold.map(|most| most + 2 * longest);
                let fixed = asked
                    .want
                    .fixed
                    .then(|| Duration::from_millis(asked.want.term.lease_ms));
                let longest = fixed.or(longest);
                if let (Some(longest), Some(since)) = (longest, asked.since)
                    && local > since + longest
                {
                    found = Some((
                        Wrong::HeldTooLong,
                        format!("ticket {} of node {slot} is held since {since:?}", ticket.0),
                    ));
                }
                if self.watch.tainted.contains(&fence.number()) {
                    continue;
                }
                let mode = asked.want.mode;
                let earlier = first.replace((slot, fence, mode));
                several |= earlier.is_some_and(|(_, before, _)| before.number() == fence.number());
                if let Some((other, before, earlier)) = earlier
                    && !go_together(mode, earlier)
                {
                    let text = format!(
                        "node {other} holds it by grant {} and node {slot} by grant {}",
                        before.number(),
                        fence.number()
                    );
                    found = Some((Wrong::TwoHolders, text));
                    break;
                }
                in_use += weight(mode);
                sharers.insert(slot);
                if in_use > PERMITS {
                    let text = format!("{in_use} of {PERMITS} permits are held, the latest by node {slot}");
                    found = Some((Wrong::TooMany, text));
                    break;
                }
                let backed = record.is_some_and(|record| match record.owner {
                    RecordOwner::Claim(claim_id, number) => claim_id == claim && number == fence.number(),
                    _ => false,
                });
                let mut shares = self.server.ledger.shares(&self.keys[key], us);
                let backed = backed
                    || mode != Mode::Exclusive
                        && shares.any(|share| share.claim_id == claim && share.number == fence.number());
                if !backed && found.is_none() && self.setup.only != Some(Wrong::TwoHolders) {
                    let text = format!(
                        "node {slot} holds by grant {}, the record is {record:?}",
                        fence.number()
                    );
                    found = Some((Wrong::Unbacked, text));
                }
            }
            for caller in &node.live {
                let asked = &mut node.callers[*caller];
                if asked.key == key && asked.state == State::Holding && !holds.contains(caller) {
                    asked.dark = true;
                }
            }
        }
        if several {
            self.saw(Seen::ReadersOfANode);
        }
        if in_use > 0 && sharers.len() > 1 {
            self.saw(Seen::SharesOfNodes);
        }
        if let Some((wrong, text)) = found {
            self.wrong(wrong, Some(key), || text);
        }
    }

    pub(crate) fn check_all(&mut self) {
        for key in 0..self.keys.len() {
            self.check_key(key);
        }
    }

    /// Nothing is promised of its order.
    pub(crate) fn is_exempt(&self, fence: Fence) -> bool {
        fence.number() <= self.watch.amnesty || self.watch.tainted.contains(&fence.number())
    }

    pub(crate) fn watch_fence(&mut self, slot: usize, key: usize, mode: Mode, fence: Fence) {
        let exempt = self.is_exempt(fence);
        let before = match mode {
            Mode::Read | Mode::Permits(_) => self.watch.written[key],
            _ => self.watch.highest_fences[key],
        };
        if let (Some(before), false) = (before, exempt)
            && fence <= before
        {
            self.wrong(Wrong::Fence, Some(key), || {
                format!("node {slot} got fence {fence} after {before}")
            });
        }
        if exempt {
            return;
        }
        // The order of readers among themselves means nothing.
        self.watch.highest_fences[key] = self.watch.highest_fences[key].max(Some(fence));
        if mode == Mode::Exclusive {
            self.watch.written[key] = Some(fence);
        }
    }

    /// A lease of a caller's own is that of nobody before it, and of nobody after it.
    pub(crate) fn watch_own(&mut self, slot: usize, caller: usize, fence: Fence) {
        if fence.is_first() {
            return;
        }
        let (before, rest) = self.nodes[slot].callers.split_at(caller);
        let (of, others) = (&rest[0], before.iter().chain(&rest[1..]));
        let mut sharers = others.filter(|other| other.claim.is_some() && other.claim == of.claim);
        let is_own = |of: &Caller| of.want.fixed || of.want.solo;
        if is_own(of) || sharers.any(is_own) {
            let key = of.key;
            self.wrong(Wrong::Shared, Some(key), || {
                format!(
                    "ticket {} of node {slot} got a lease that is somebody's own",
                    caller + 1
                )
            });
        }
    }

    /// Nothing is promised of the present owner's lease any more.
    pub(crate) fn taint(&mut self, key: usize) {
        let us = self.server_us();
        if let Some(Record {
            owner: RecordOwner::Claim(_, number),
            ..
        }) = self.server.ledger.record(&self.keys[key], us)
        {
            self.watch.tainted.insert(*number);
        }
        let shares = self.server.ledger.shares(&self.keys[key], us);
        self.watch.tainted.extend(shares.map(|share| share.number));
    }

    pub(crate) fn is_tainted(&self, number: GrantNumber) -> bool {
        self.watch.tainted.contains(&number)
    }

    pub(crate) fn is_tainted_claim(&self, claim: Option<ClaimId>) -> bool {
        let number = claim.and_then(|claim| self.watch.granted.get(&claim));
        number.is_some_and(|number| self.watch.tainted.contains(number))
    }

    pub(crate) fn taint_all(&mut self) {
        for key in 0..self.keys.len() {
            self.taint(key);
        }
    }

    /// The server lost its number, or its clock went back. After both, in whatever order, fences may be smaller.
    pub(crate) fn watch_number(&mut self, forgot: bool) {
        if forgot {
            self.watch.forgot = true;
            self.watch.handed_on.fill(None);
        } else {
            self.watch.stepped_back = true;
        }
        if self.watch.forgot && self.watch.stepped_back {
            self.watch.amnesty = self.watch.highest;
        }
    }

    // What callers are told.

    /// The store did nothing, as far as that says.
    fn says_not_executed(error: &StoreError) -> bool {
        matches!(
            error.kind(),
            StoreErrorKind::Refused(_) | StoreErrorKind::Unreachable
        )
    }

    /// A caller that is told that nothing was executed may repeat its call.
    pub(crate) fn watch_refused_call(&mut self, slot: usize, caller: usize, denial: &AcquireError) {
        let AcquireError::Store(error) = denial else {
            return;
        };
        if Self::says_not_executed(error) && self.call_was_executed(slot, caller) {
            let key = self.nodes[slot].callers[caller].key;
            self.wrong(Wrong::ToldRefused, Some(key), || {
                format!("the call of ticket {} of node {slot}: {error}", caller + 1)
            });
        }
    }

    /// The same of a release.
    pub(crate) fn watch_refused_release(&mut self, slot: usize, caller: usize, outcome: &Outcome) {
        let Outcome::Unconfirmed(error) = outcome else {
            return;
        };
        let Caller { key, claim, .. } = self.nodes[slot].callers[caller];
        if Self::says_not_executed(error) && claim.is_some_and(|claim| self.watch.ended.contains(&claim)) {
            self.wrong(Wrong::ToldRefused, Some(key), || {
                format!("the release of ticket {} of node {slot}: {error}", caller + 1)
            });
        }
    }

    /// A holder is told that the store has its lease no more, and the store has it.
    pub(crate) fn watch_given_up(&mut self, slot: usize, caller: usize, denial: &AcquireError) {
        let Caller { key, before, .. } = self.nodes[slot].callers[caller];
        let Some(before) = before.filter(|_| matches!(denial, AcquireError::Lost(LostCause::Gone))) else {
            return;
        };
        let claim = self.nodes[slot].callers[before].claim;
        let owned = self.owned(&self.keys[key]);
        let has = owned.grants().any(|(claim_id, _)| Some(claim_id) == claim);
        if has && !self.watch.stepped_back {
            self.wrong(Wrong::GivenUp, Some(key), || {
                format!("ticket {} of node {slot}: {owned:?}", caller + 1)
            });
        }
    }

    // At the server.

    pub(crate) fn records(&self, batch: &Batch) -> Vec<Owned> {
        let names = batch.requests.iter().map(|request| &request.name);
        names.map(|name| self.owned(name)).collect()
    }

    fn owned(&self, name: &Name) -> Owned {
        let us = self.server_us();
        let ledger = &self.server.ledger;
        Owned {
            record: ledger.record(name, us).cloned(),
            shares: ledger.shares(name, us).copied().collect(),
            waiters: ledger.waiters(name),
            latch: ledger.latch(name, us).cloned(),
        }
    }

    /// Only the owner changed a record; each number was granted once; the grant went to one who is alive; and what
    /// was executed is still wanted.
    pub(crate) fn watch_execution(
        &mut self,
        batch: &Batch,
        replies: &[Reply],
        before: &[Owned],
        pushes: &[Push],
    ) {
        let us = self.server_us();
        let now = us / 1000;
        for ((request, reply), before) in batch.requests.iter().zip(replies).zip(before) {
            let key = self.index(&request.name);
            let after = self.owned(&request.name);
            self.watch_owner(key, request, before.record.as_ref(), after.record.as_ref());
            self.watch_shares(key, request, before, &after);
            self.watch_downgrade(key, request, reply, before);
            self.watch_latch(key, request, before.latch.as_ref(), after.latch.as_ref());
            self.watch_election(key, request, reply);
            self.watch_tick(key, request, reply, !before.is_free() || !after.is_free());
            self.watch_pollers(key, request, before.record.as_ref(), after.record.as_ref());
            // A copy is executed, and its original may be refused.
            let is_done = !matches!(reply, Reply::Refused(_) | Reply::Late) && !self.watch.twin;
            if gives(request.verb) && is_done {
                self.watch.ended.insert(actor(request));
            }
            if !before.is_free() || !after.is_free() {
                self.watch.free_since[key] = None;
            }
            let to = match request.verb {
                Verb::Yield { to } | Verb::Pass { to } => to,
                _ => request.claim_id,
            };
            for (claim_id, number) in after.grants() {
                if before.grants().all(|earlier| earlier != (claim_id, number)) {
                    self.watch_new_owner(key, (claim_id, number), to, pushes);
                    self.watch_passed(key, (claim_id, request), before, &after);
                }
            }
            let is_queued = matches!(
                reply,
                Reply::Queued(_) | Reply::QueuedBehind(..) | Reply::QueuedBehindForeign(_)
            );
            if is_queued || reply.number().is_some() {
                self.watch.heard.insert(to, (now, request.term));
                self.watch_ghost(key, request, to);
            }
        }
    }

    /// Each number is granted once, to somebody who is alive and is told.
    fn watch_new_owner(
        &mut self,
        key: usize,
        (claim_id, number): (ClaimId, GrantNumber),
        to: ClaimId,
        pushes: &[Push],
    ) {
        let now = self.server_us() / 1000;
        self.watch.highest = self.watch.highest.max(number);
        let earlier = self.watch.granted.insert(claim_id, number);
        if earlier.is_some_and(|earlier| earlier != number) {
            self.wrong(Wrong::NumberTwice, Some(key), || {
                format!("claim {claim_id} is granted again")
            });
        }
        if claim_id == to {
            return;
        }
        let heard = self.watch.heard.get(&claim_id).copied();
        if heard.is_none_or(|(at, term)| now.saturating_sub(at) > term.stale_ms()) {
            self.wrong(Wrong::DeadGranted, Some(key), || {
                format!("{claim_id} was last heard at {heard:?}")
            });
        }
        let is_told = |push: &Push| matches!(push, Push::Granted(grant) if grant.claim_id == claim_id && grant.number == number);
        if !pushes.iter().any(is_told) {
            self.wrong(Wrong::Outcome, Some(key), || {
                format!("{claim_id} is not told of its grant")
            });
        }
    }

    /// Nobody is granted a key that is shared before who came earlier and could be granted it.
    fn watch_passed(
        &mut self,
        key: usize,
        (claim_id, request): (ClaimId, &Request),
        before: &Owned,
        after: &Owned,
    ) {
        if matches!(request.verb, Verb::Pass { to } if to == claim_id) {
            return;
        }
        let now = self.server_us() / 1000;
        let earlier = before.waiters.iter().take_while(|waiter| **waiter != claim_id);
        let is_left = |waiter: &&ClaimId| {
            let heard = self.watch.heard.get(waiter);
            let is_fresh = heard.is_some_and(|(at, term)| now < at + term.stale_ms());
            is_fresh
                && **waiter != request.claim_id
                && after.waiters.contains(waiter)
                && self.server.ledger.is_listening(waiter.node)
        };
        let passed = earlier.copied().find(|waiter| is_left(&waiter));
        if let Some(waiter) = passed.filter(|_| !after.shares.is_empty()) {
            self.wrong(Wrong::Passed, Some(key), || {
                format!("{claim_id} is granted, and {waiter} came before it")
            });
        }
    }

    /// Shares end by their holders alone, and last for a lease.
    fn watch_shares(&mut self, key: usize, request: &Request, before: &Owned, after: &Owned) {
        let is_extension = matches!(request.verb, Verb::Call(Call::Extend { .. }));
        let full = self.server_us() / 1000 + request.term.hold_ms();
        for share in &before.shares {
            // What is passed again is extended for who has it.
            let passed = matches!(request.verb, Verb::Pass { to } if to == share.claim_id);
            let is_its = share.claim_id == actor(request) || passed;
            let full = if is_extension {
                full.max(share.expires)
            } else {
                full
            };
            let fair = match after.shares.iter().find(|after| after.claim_id == share.claim_id) {
                Some(after) => *after == *share || is_its && after.expires == full,
                None => is_its && gives(request.verb),
            };
            if !fair {
                self.wrong(Wrong::NotTheOwner, Some(key), || {
                    format!("{:?} of {} ended {share:?}", request.verb, request.claim_id)
                });
            }
        }
        if after.in_use() > PERMITS {
            self.wrong(Wrong::TooMany, Some(key), || {
                format!("the server has {:?}", after.shares)
            });
        }
        if after.record.is_some() && !after.shares.is_empty() {
            self.wrong(Wrong::TwoHolders, Some(key), || {
                format!("the server has {after:?}")
            });
        }
    }

    /// A writer that asks to go on as a reader does.
    fn watch_downgrade(&mut self, key: usize, request: &Request, reply: &Reply, before: &Owned) {
        let is_owner =
            before.record.is_some() && before.grants().any(|(claim_id, _)| claim_id == request.claim_id);
        let is_done = matches!(reply, Reply::Granted(_) | Reply::Late);
        if matches!(request.verb, Verb::Pass { .. }) && is_owner && !is_done {
            self.wrong(Wrong::Between, Some(key), || {
                format!("{} was the owner and was told {reply:?}", request.claim_id)
            });
        }
    }

    fn watch_owner(
        &mut self,
        key: usize,
        request: &Request,
        before: Option<&Record>,
        after: Option<&Record>,
    ) {
        let Some(before) = before else { return };
        let fair = match before.owner {
            RecordOwner::Claim(claim_id, _) if after.is_some_and(|after| after.owner == before.owner) => {
                let (old, new) = (before.expires, after.and_then(|after| after.expires));
                // The owner's to the full lease, also when the clock went back and that is less.
                let full = self.server_us() / 1000 + request.term.hold_ms();
                let is_extension = matches!(request.verb, Verb::Call(Call::Extend { .. }));
                let full = if is_extension {
                    Some(full).max(old)
                } else {
                    Some(full)
                };
                let passed = matches!(request.verb, Verb::Pass { to } if to == claim_id);
                old == new || (claim_id == actor(request) || passed) && new == full
            }
            RecordOwner::Claim(claim_id, _) => claim_id == actor(request) && gives(request.verb),
            _ => after == Some(before),
        };
        if !fair {
            self.wrong(Wrong::NotTheOwner, Some(key), || {
                format!(
                    "{:?} of {} made {after:?} of {before:?}",
                    request.verb, request.claim_id
                )
            });
        }
    }

    /// Who only looks now and then gets in: a lock is not handed on for longer than eight gaps.
    fn watch_pollers(
        &mut self,
        key: usize,
        request: &Request,
        before: Option<&Record>,
        after: Option<&Record>,
    ) {
        let (now, gap) = (self.server_us() / 1000, self.profile.poll_gap);
        let (Some(before), Some(after)) = (before, after) else {
            self.watch.handed_on[key] = None;
            return;
        };
        let gives = matches!(request.verb, Verb::Leave | Verb::Yield { .. });
        if gap == 0 || key >= self.locks || !gives || before.owner == after.owner {
            return;
        }
        let since = *self.watch.handed_on[key].get_or_insert(now);
        if now >= since + 8 * gap {
            self.wrong(Wrong::NeverFree, Some(key), || {
                format!("handed on for {} ms, by gaps of {gap} ms", now - since)
            });
        }
    }

    /// A claim that is executed after its node forgot it is nobody's.
    fn watch_ghost(&mut self, key: usize, request: &Request, to: ClaimId) {
        let Some(&(slot, life)) = self.slots.get(&to.node) else {
            return;
        };
        if request.verb.creates()
            && self.is(slot, life)
            && !self.watch.stepped_back
            && !self.watch.twin
            && !self.nodes[slot].shard.knows_claim(&request.name, to)
        {
            self.wrong(Wrong::Orphan, Some(key), || {
                format!("{to} was executed when its node had forgotten it")
            });
        }
    }

    // Now and then.

    /// No fault, and none for long.
    pub(crate) fn is_calm(&self) -> bool {
        self.profile.storm.1 == 0 || self.now > self.calm_since()
    }

    /// When the calm began that there is.
    pub(crate) fn calm_since(&self) -> u64 {
        if self.profile.storm.1 == 0 {
            return 0;
        }
        self.watch.unrest.max(self.profile.storm.1) + SETTLE
    }

    /// Whatever was left with a session is answered or reported in the end.
    fn watch_requests(&mut self) {
        if self.profile.crowd {
            return;
        }
        let bound = 6 * self.profile.request_timeout.as_nanos() as u64 + 4_000 * MS;
        for slot in 0..self.nodes.len() {
            let node = &self.nodes[slot];
            if !node.alive || node.paused.is_some() {
                continue;
            }
            let now = self.now;
            let is_old = |since: u64| now - since > bound;
            let request = node.requests.iter().find(|(_, (since, _))| is_old(*since));
            if let Some((&(claim, seq), &(_, key))) = request {
                self.wrong(Wrong::Unanswered, Some(key), || {
                    format!("request {claim} #{seq} of node {slot} is neither answered nor reported")
                });
            }
            if let Some(probe) = self.nodes[slot].probes.iter().find(|(_, since)| is_old(**since)) {
                let text = format!("{probe:?} of node {slot} is neither answered nor reported");
                self.wrong(Wrong::Unanswered, None, || text);
            }
        }
    }

    /// A connection that nothing comes through is given up in the end. Until then there is no calm.
    fn watch_silence(&mut self) {
        let bound = 2 * (MAX_SILENCE + self.profile.request_timeout).as_nanos() as u64 + 8_000 * MS;
        for slot in 0..self.nodes.len() {
            let conns = self.nodes[slot].conns.iter();
            let silent = conns.filter_map(|(_, conn)| self.conns[*conn].silent).min();
            let Some(since) = silent else { continue };
            self.unrest(self.now);
            if self.now - since > bound && self.nodes[slot].paused.is_none() {
                self.wrong(Wrong::Unnoticed, None, || {
                    format!("node {slot} has had a silent connection since {} ms", since / MS)
                });
            }
        }
    }

    pub(crate) fn audit(&mut self) {
        self.after(20 * MS, Event::Audit);
        self.check_all();
        self.watch_requests();
        self.watch_silence();
        let calm = self.is_calm();
        if calm {
            self.saw(Seen::Calm);
            for key in 0..self.keys.len() {
                if Some(key) != self.latch {
                    self.watch_sleepers(key);
                }
            }
            self.watch_latch_sleepers();
            self.watch_orphans();
        }
        self.watch_elections();
        for key in self.jobs() {
            self.watch_pursuits(key, calm);
            self.watch_abandoned(key, calm);
        }
        if calm && !self.draining {
            self.kill_a_winner();
            self.kill_pursuers();
        }
        if self.now / (1_000 * MS) != self.watch.second {
            self.watch.second = self.now / (1_000 * MS);
            self.watch_storm(calm);
        }
        if self.draining {
            self.watch_end();
        }
    }

    /// In calm, no lock is free for longer than a third of a lease while somebody waits for it.
    fn watch_sleepers(&mut self, key: usize) {
        let is_election = self.elections.contains(&key);
        let waits = |(slot, node): (usize, &Node)| {
            let of_key = |caller: &usize| node.callers[*caller].key == key;
            let waiting = |caller: &usize| node.callers[*caller].state == State::Waiting;
            // Who observes waits for no lease, and who rests not yet.
            let stands = |caller: &usize| {
                !is_election || node.callers[*caller].asks.is_none() && !self.is_resting(slot, *caller)
            };
            let mut live = node.live.iter();
            node.alive && live.any(|caller| of_key(caller) && waiting(caller) && stands(caller))
        };
        let owned = self.owned(&self.keys[key]);
        let wanted = self.nodes.iter().filter(|node| node.alive).flat_map(|node| {
            let live = node.live.iter().map(|caller| &node.callers[*caller]);
            live.filter(|caller| caller.key == key && caller.state == State::Waiting)
                .map(|caller| weight(caller.want.mode))
        });
        // With permits for each of them somebody gets some.
        let room = PERMITS.checked_sub(owned.in_use() + wanted.max().unwrap_or_default());
        let has_permits = self.profile.permits && key < self.locks && room.is_some_and(|room| room > 0);
        let free = owned.is_free() || has_permits;
        if !free || !self.nodes.iter().enumerate().any(waits) {
            self.watch.free_since[key] = None;
            return;
        }
        let since = *self.watch.free_since[key].get_or_insert(self.now);
        let lease = self
            .profile
            .terms
            .iter()
            .map(|term| term.lease_ms)
            .max()
            .unwrap_or(0)
            * MS;
        let left_free = self.profile.poll_gap * MS;
        let bound = left_free + lease / 3 + lease / 100 + 6 * self.profile.delay.1 + 30 * MS;
        if self.now - since > bound {
            let (slept, state) = ((self.now - since) / MS, self.describe(key));
            self.wrong(Wrong::Asleep, Some(key), || {
                format!("free for {slept} ms: {state}")
            });
        }
    }

    /// In calm, each record and each living entry is some running engine's affair.
    fn watch_orphans(&mut self) {
        let us = self.server_us();
        let mut known: Vec<(usize, ClaimId)> = Vec::new();
        for (name, claim_id, dies) in self.server.ledger.entries() {
            if us / 1000 <= dies {
                known.push((self.index(name), claim_id));
            }
        }
        for key in 0..self.keys.len() {
            let owned = self.owned(&self.keys[key]);
            known.extend(owned.grants().map(|(claim_id, _)| (key, claim_id)));
        }
        known.retain(|(key, claim_id)| match self.slots.get(&claim_id.node) {
            Some(&(slot, life)) if self.is(slot, life) => {
                !self.nodes[slot].shard.knows_claim(&self.keys[*key], *claim_id)
                    && !self.is_on_its_way(*key, *claim_id)
            }
            _ => false,
        });
        self.watch.orphans.retain(|orphan, _| known.contains(orphan));
        let bound = 6 * self.profile.delay.1 + 60 * MS;
        for (key, claim_id) in known {
            let since = *self.watch.orphans.entry((key, claim_id)).or_insert(self.now);
            if self.now - since > bound {
                self.wrong(Wrong::Orphan, Some(key), || format!("nobody pursues {claim_id}"));
            }
        }
    }

    /// Requests are bounded by what callers want and by the timers.
    fn watch_storm(&mut self, calm: bool) {
        let lease = self
            .profile
            .terms
            .iter()
            .map(|term| term.lease_ms)
            .min()
            .unwrap_or(1000);
        // Each waiter looks every 30 ms where a key may be left free.
        let looks = if self.profile.poll_gap > 0 { 42 } else { 8 };
        let timers =
            self.keys.len() as u32 * (2 + self.profile.callers as u32) * (8_000 / lease as u32 + looks);
        for slot in 0..self.nodes.len() {
            let node = &mut self.nodes[slot];
            let (sends, asked) = (std::mem::take(&mut node.sends), std::mem::take(&mut node.asked));
            let opened = std::mem::take(&mut node.opened);
            if opened > 80 {
                self.wrong(Wrong::Storm, None, || {
                    format!("node {slot} opened {opened} connections and inboxes in a second")
                });
            }
            let bound = if calm {
                timers + 6 * asked
            } else {
                10 * (timers + 6 * asked)
            };
            if sends > bound {
                self.wrong(Wrong::Storm, None, || {
                    format!("node {slot} sent {sends} in a second, for {asked} callers")
                });
            }
        }
    }

    /// When nobody wants anything any more, nothing is left.
    fn watch_end(&mut self) {
        let us = self.server_us();
        let callers = self.nodes.iter().any(|node| node.alive && !node.live.is_empty());
        let engines = self.nodes.iter().any(|node| node.alive && !node.shard.is_empty());
        let records = self.keys.iter().any(|key| !self.owned(key).is_free());
        let entries = self.server.ledger.entries().any(|(_, _, dies)| us / 1000 <= dies);
        let is_known = |name: &Name| {
            let ledger = &self.server.ledger;
            ledger.latch(name, us).is_some() || ledger.watchers(name, us).next().is_some()
        };
        let latches = self.keys.iter().any(is_known);
        if callers || engines || records || entries || latches {
            if self.now > self.profile.drain + 40_000 * MS {
                let text = (0..self.keys.len())
                    .map(|key| self.describe(key))
                    .collect::<String>();
                self.wrong(Wrong::LeftOver, None, || {
                    format!(
                        "callers {callers}, engines {engines}, records {records}, entries {entries}, latches {latches}: {text}"
                    )
                });
                self.finished = true;
            }
            return;
        }
        // What is dead is swept when somebody looks.
        for name in self.keys.clone() {
            let claim_id = ClaimId {
                node: self.nodes[0].id,
                claim: ClaimNumber(0),
                nonce: 0,
            };
            let request = Request {
                name,
                claim_id,
                term: self.profile.terms[0],
                mode: Mode::Exclusive,
                when_behind: Default::default(),
                data: None,
                mark: None,
                verb: Verb::Renew,
            };
            let batch = Batch {
                highest: GrantNumber(0),
                not_after: u64::MAX,
                poll_gap_ms: self.profile.poll_gap,
                rule: Rule::Each,
                requests: vec![request],
            };
            self.server.ledger.apply(us, &batch, &mut Vec::new());
        }
        if !self.server.ledger.is_empty() {
            self.wrong(Wrong::LeftOver, None, || "the ledger is not empty".into());
        }
        self.finished = true;
    }

    pub(crate) fn describe(&self, key: usize) -> String {
        let mut text = format!("{:?}\n", self.owned(&self.keys[key]));
        for claim_id in self.server.ledger.waiters(&self.keys[key]) {
            text += &format!("waits {claim_id}\n");
        }
        for (slot, node) in self.nodes.iter().enumerate() {
            let state = node.shard.describe(&self.keys[key]);
            let live: Vec<_> = node.live.iter().map(|c| Ticket(*c as u64 + 1)).collect();
            text += &format!(
                "node {slot} alive {} life {} {live:?}: {state}\n",
                node.alive, node.life
            );
        }
        text
    }
}
