//! What must never happen, looked for after every step.

use std::collections::{HashMap, HashSet};

use crate::Wrong;
use crate::callers::State;
use crate::coverage::Seen;
use crate::jobs::Ticks;
use crate::node::Node;
use crate::world::{Event, MS, SETTLE, World};
use tenure::protocol::ledger::{Record, RecordOwner};
use tenure::protocol::message::{
    Batch, ClaimNumber, Fence, Grant, GrantNumber, Holder, LeaseTimes, Mode, Reply, Request, Verb,
};
use tenure::protocol::session_step::SILENCE;
use tenure::protocol::step::Ticket;

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
    pub(crate) forgot: bool,
    fences: Vec<Option<Fence>>,
    /// Grants that nothing is promised of any more.
    tainted: HashSet<GrantNumber>,
    highest: GrantNumber,
    /// Fences up to this number may come out of order: the server lost its number and its clock went back.
    amnesty: GrantNumber,
    granted: HashMap<Holder, GrantNumber>,
    heard: HashMap<Holder, (u64, LeaseTimes)>,
    free_since: Vec<Option<u64>>,
    orphans: HashMap<(usize, Holder), u64>,
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
            forgot: false,
            fences: vec![None; keys],
            tainted: HashSet::new(),
            highest: GrantNumber(0),
            amnesty: GrantNumber(0),
            granted: HashMap::new(),
            heard: HashMap::new(),
            free_since: vec![None; keys],
            orphans: HashMap::new(),
            second: 0,
        }
    }
}

impl World {
    // Exclusivity.

    /// Each guard that answers *held* is backed by the server's record, and is alone. A stopped process counts: its
    /// guards are asked as of now, by its own clock.
    pub(crate) fn check_key(&mut self, key: usize) {
        let us = self.server_us();
        let record = self.server.ledger.record(&self.keys[key], us);
        let mut first: Option<(usize, Fence)> = None;
        let mut found = None;
        for (slot, node) in self.nodes.iter_mut().enumerate() {
            if !node.alive {
                continue;
            }
            let local = node.clock.local(self.now);
            // More than one only when a stranger deleted the record of the first.
            let mut holds = Vec::new();
            for (name, ticket, claim, fence) in node.shard.holders(local) {
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
                if self.watch.tainted.contains(&fence.number()) {
                    continue;
                }
                if let Some((other, before)) = first.replace((slot, fence)) {
                    let text = format!(
                        "node {other} holds it by grant {} and node {slot} by grant {}",
                        before.number(),
                        fence.number()
                    );
                    found = Some((Wrong::TwoHolders, text));
                    break;
                }
                let backed = record.is_some_and(|record| match record.owner {
                    RecordOwner::Claim(holder, number) => holder == claim && number == fence.number(),
                    _ => false,
                });
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
        if let Some((wrong, text)) = found {
            self.wrong(wrong, Some(key), || text);
        }
    }

    pub(crate) fn check_all(&mut self) {
        for key in 0..self.keys.len() {
            self.check_key(key);
        }
    }

    pub(crate) fn watch_fence(&mut self, slot: usize, key: usize, fence: Fence) {
        let exempt = fence.number() <= self.watch.amnesty || self.watch.tainted.contains(&fence.number());
        if let (Some(before), false) = (self.watch.fences[key], exempt)
            && fence <= before
        {
            self.wrong(Wrong::Fence, Some(key), || {
                format!("node {slot} got fence {fence} after {before}")
            });
        }
        if !exempt {
            self.watch.fences[key] = Some(fence);
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
    }

    pub(crate) fn is_tainted(&self, number: GrantNumber) -> bool {
        self.watch.tainted.contains(&number)
    }

    pub(crate) fn is_tainted_claim(&self, claim: Option<Holder>) -> bool {
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
        } else {
            self.watch.stepped_back = true;
        }
        if self.watch.forgot && self.watch.stepped_back {
            self.watch.amnesty = self.watch.highest;
        }
    }

    // At the server.

    pub(crate) fn records(&self, batch: &Batch) -> Vec<Option<Record>> {
        let us = self.server_us();
        batch
            .requests
            .iter()
            .map(|request| self.server.ledger.record(&request.name, us).cloned())
            .collect()
    }

    /// Only the owner changed a record; each number was granted once; the grant went to one who is alive; and what
    /// was executed is still wanted.
    pub(crate) fn watch_execution(
        &mut self,
        batch: &Batch,
        replies: &[Reply],
        before: &[Option<Record>],
        pushes: &[Grant],
    ) {
        let us = self.server_us();
        let now = us / 1000;
        for ((request, reply), before) in batch.requests.iter().zip(replies).zip(before) {
            let key = self.index(&request.name);
            let after = self.server.ledger.record(&request.name, us).cloned();
            self.watch_owner(key, request, before.as_ref(), after.as_ref());
            self.watch_tick(key, request, reply, before.is_some() || after.is_some());
            if before.is_some() || after.is_some() {
                self.watch.free_since[key] = None;
            }
            let to = match request.verb {
                Verb::Yield { to } => to,
                _ => request.holder,
            };
            if let Some(Record {
                owner: RecordOwner::Claim(holder, number),
                ..
            }) = after
                && before
                    .as_ref()
                    .is_none_or(|before| before.owner != RecordOwner::Claim(holder, number))
            {
                self.watch.highest = self.watch.highest.max(number);
                if self
                    .watch
                    .granted
                    .insert(holder, number)
                    .is_some_and(|earlier| earlier != number)
                {
                    self.wrong(Wrong::NumberTwice, Some(key), || {
                        format!("claim {holder} is granted again")
                    });
                }
                if holder != to {
                    let heard = self.watch.heard.get(&holder).copied();
                    if heard.is_none_or(|(at, term)| now.saturating_sub(at) > term.stale_ms()) {
                        self.wrong(Wrong::DeadGranted, Some(key), || {
                            format!("{holder} was last heard at {heard:?}")
                        });
                    }
                    if !pushes
                        .iter()
                        .any(|grant| grant.holder == holder && grant.number == number)
                    {
                        self.wrong(Wrong::Outcome, Some(key), || {
                            format!("{holder} is not told of its grant")
                        });
                    }
                }
            }
            if matches!(
                reply,
                Reply::Granted(_) | Reply::Won(..) | Reply::Queued(_) | Reply::QueuedBehindForeign(_)
            ) {
                self.watch.heard.insert(to, (now, request.term));
                self.watch_ghost(key, request, to);
            }
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
            RecordOwner::Claim(holder, _) if after.is_some_and(|after| after.owner == before.owner) => {
                let (old, new) = (before.expires, after.and_then(|after| after.expires));
                // The owner's to the full lease, also when the clock went back and that is less.
                let full = self.server_us() / 1000 + request.term.hold_ms();
                old == new || holder == request.holder && new == Some(full)
            }
            RecordOwner::Claim(holder, _) => {
                holder == request.holder
                    && matches!(request.verb, Verb::Leave | Verb::Finish | Verb::Yield { .. })
            }
            _ => after == Some(before),
        };
        if !fair {
            self.wrong(Wrong::NotTheOwner, Some(key), || {
                format!(
                    "{:?} of {} made {after:?} of {before:?}",
                    request.verb, request.holder
                )
            });
        }
    }

    /// A claim that is executed after its node forgot it is nobody's.
    fn watch_ghost(&mut self, key: usize, request: &Request, to: Holder) {
        let Some(&(slot, life)) = self.slots.get(&to.node) else {
            return;
        };
        let creates = matches!(request.verb, Verb::Claim { .. } | Verb::Yield { .. });
        if creates
            && self.is(slot, life)
            && !self.watch.stepped_back
            && !self.watch.twin
            && !self.nodes[slot].shard.pursues(&request.name, to)
        {
            self.wrong(Wrong::Orphan, Some(key), || {
                format!("{to} was executed when its node had forgotten it")
            });
        }
    }

    // Now and then.

    /// No fault, and none for long.
    pub(crate) fn is_calm(&self) -> bool {
        self.profile.storm.1 == 0 || self.now > self.watch.unrest.max(self.profile.storm.1) + SETTLE
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
        let bound = 2 * (SILENCE + self.profile.request_timeout).as_nanos() as u64 + 8_000 * MS;
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
                self.watch_sleepers(key);
            }
            self.watch_orphans();
        }
        for key in self.locks..self.keys.len() {
            self.watch_pursuits(key, calm);
        }
        if calm && !self.draining {
            self.kill_a_winner();
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
        let us = self.server_us();
        let waits = |node: &Node| {
            let of_key = |caller: &usize| node.callers[*caller].key == key;
            let waiting = |caller: &usize| node.callers[*caller].state == State::Waiting;
            node.alive && node.live.iter().any(|caller| of_key(caller) && waiting(caller))
        };
        let free = self.server.ledger.record(&self.keys[key], us).is_none();
        if !free || !self.nodes.iter().any(waits) {
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
        let bound = lease / 3 + lease / 100 + 6 * self.profile.delay.1 + 30 * MS;
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
        let mut known: Vec<(usize, Holder)> = Vec::new();
        for (name, holder, dies) in self.server.ledger.entries() {
            if us / 1000 <= dies {
                known.push((self.index(name), holder));
            }
        }
        for key in 0..self.keys.len() {
            if let Some(Record {
                owner: RecordOwner::Claim(holder, _),
                ..
            }) = self.server.ledger.record(&self.keys[key], us)
            {
                known.push((key, *holder));
            }
        }
        known.retain(|(key, holder)| match self.slots.get(&holder.node) {
            Some(&(slot, life)) if self.is(slot, life) => {
                !self.nodes[slot].shard.pursues(&self.keys[*key], *holder)
            }
            _ => false,
        });
        self.watch.orphans.retain(|orphan, _| known.contains(orphan));
        let bound = 6 * self.profile.delay.1 + 60 * MS;
        for (key, holder) in known {
            let since = *self.watch.orphans.entry((key, holder)).or_insert(self.now);
            if self.now - since > bound {
                self.wrong(Wrong::Orphan, Some(key), || format!("nobody pursues {holder}"));
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
        let timers = self.keys.len() as u32 * (2 + self.profile.callers as u32) * (8_000 / lease as u32 + 8);
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
        let records = self
            .keys
            .iter()
            .any(|key| self.server.ledger.record(key, us).is_some());
        let entries = self.server.ledger.entries().any(|(_, _, dies)| us / 1000 <= dies);
        if callers || engines || records || entries {
            if self.now > self.profile.drain + 40_000 * MS {
                let text = (0..self.keys.len())
                    .map(|key| self.describe(key))
                    .collect::<String>();
                self.wrong(Wrong::LeftOver, None, || {
                    format!(
                        "callers {callers}, engines {engines}, records {records}, entries {entries}: {text}"
                    )
                });
                self.finished = true;
            }
            return;
        }
        // What is dead is swept when somebody looks.
        for name in self.keys.clone() {
            let holder = Holder {
                node: self.nodes[0].id,
                claim: ClaimNumber(0),
                nonce: 0,
            };
            let request = Request {
                name,
                holder,
                term: self.profile.terms[0],
                mode: Mode::Exclusive,
                mark: None,
                verb: Verb::Renew,
            };
            let batch = Batch {
                highest: GrantNumber(0),
                not_after: u64::MAX,
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
        let us = self.server_us();
        let mut text = format!("record {:?}\n", self.server.ledger.record(&self.keys[key], us));
        for holder in self.server.ledger.waiters(&self.keys[key]) {
            text += &format!("waits {holder}\n");
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
