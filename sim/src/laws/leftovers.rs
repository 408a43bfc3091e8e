//! Laws of leftovers: no record or entry without an owner, and an empty world at the end.

use tenure::protocol::ledger::Ledger;
use tenure::protocol::message::{Batch, ClaimId, ClaimNumber, GrantNumber, Mode, Request, Rule, Verb};

use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::connection::Connection;

impl World {
    /// Checks that in a calm each record and each live queue entry is pursued by a running node.
    pub(crate) fn watch_orphans(&mut self) {
        let mut known: Vec<(usize, ClaimId)> = Vec::new();
        for (ledger, us) in self.ledgers() {
            for (name, claim_id, dies) in ledger.entries() {
                if us / 1000 <= dies {
                    known.push((self.key_index(name), claim_id));
                }
            }
        }
        for key in 0..self.keys.len() {
            known.extend(self.owners(key).into_iter().map(|claim_id| (key, claim_id)));
        }
        known.retain(|(key, claim_id)| match self.slots.get(&claim_id.node) {
            Some(&(slot, life)) if self.is_alive(slot, life) => {
                !self.nodes[slot].shard.knows_claim(&self.keys[*key], *claim_id)
                    && !self.is_on_its_way(*key, *claim_id)
            }
            _ => false,
        });
        self.memory.orphans.retain(|orphan, _| known.contains(orphan));
        let bound = 6 * self.profile.delay.1 + 60 * MS;
        for (key, claim_id) in known {
            let since = *self.memory.orphans.entry((key, claim_id)).or_insert(self.now);
            if self.now - since > bound {
                self.report(Violation::OrphanRecord, Some(key), || {
                    format!("no node pursues {claim_id}")
                });
            }
        }
    }

    /// Checks that a lease that was asserted after its end is left again.
    pub(crate) fn watch_late_assertions(&mut self) {
        for (at, key, claim_id) in self.memory.asserted_after_end.clone() {
            let is_there = match self.is_quorum() {
                true => self.owner_at(at, key) == Some(claim_id),
                false => self.owners(key).contains(&claim_id),
            };
            let Some(&(slot, life)) = self.slots.get(&claim_id.node) else {
                continue;
            };
            let is_known = self.nodes[slot].shard.knows_claim(&self.keys[key], claim_id);
            if is_there && !is_known && self.is_alive(slot, life) {
                self.report(Violation::OrphanRecord, Some(key), || {
                    format!("{claim_id} was asserted after it was left, and is not left again")
                });
            }
        }
    }

    /// Checks that an inbox does not stay at another server than the connection.
    pub(crate) fn watch_inboxes(&mut self) {
        if self.is_cluster() {
            return self.watch_doubtful_inboxes();
        }
        for slot in 0..self.nodes.len() {
            let conn = self.open_conn(slot).map(|conn| &self.conns[conn]);
            // The question where the inbox leads has no answer yet.
            let is_asked = |conn: &&Connection| {
                let stall = conn.stall.max(self.server_at(conn.to).stall);
                let is_held = stall.max(conn.seeks_until) > self.now;
                !is_held && conn.silent.is_none() && !conn.mute && !conn.broken && conn.server
            };
            let to = conn.filter(is_asked).map(|conn| conn.to);
            let trips = self.profile.failover_lag.map_or(0, |_| 2_000 * MS);
            let node = &mut self.nodes[slot];
            let is_left = node.alive && node.inbox.open && to.is_some_and(|to| to != node.inbox.to);
            if !is_left || node.paused.is_some() {
                node.inbox.left_since = None;
                continue;
            }
            let since = *node.inbox.left_since.get_or_insert(self.now);
            if self.now - since > 100 * MS + trips {
                self.report(Violation::InboxLeftBehind, None, || {
                    format!("the inbox of node {slot} leads to another server than its connection")
                });
            }
        }
    }

    /// Checks that an inbox is asked for a sign of life when another session of its node lost a connection.
    fn watch_doubtful_inboxes(&mut self) {
        for slot in 0..self.nodes.len() {
            let node = &self.nodes[slot];
            let is_trusted =
                node.inbox.open && node.inbox.doubtful_since.is_some_and(|since| since < self.now);
            if node.alive && node.paused.is_none() && is_trusted {
                self.report(Violation::LostInboxTrusted, None, || {
                    format!(
                        "a connection of node {slot} was lost, and its inbox is not asked for a sign of life"
                    )
                });
            }
        }
    }

    /// Checks that nothing is left when all callers are gone.
    pub(crate) fn watch_end(&mut self) {
        let callers = self.nodes.iter().any(|node| node.alive && !node.live.is_empty());
        let engines = self.nodes.iter().any(|node| node.alive && !node.shard.is_empty());
        let records = (0..self.keys.len())
            .any(|key| !self.key_records(&self.keys[key]).is_free() || !self.owners(key).is_empty());
        let lives = |(ledger, us): (&Ledger, u64)| {
            let mut entries = ledger.entries();
            entries.any(|(_, _, dies)| us / 1000 <= dies)
        };
        let entries = self.ledgers().any(lives);
        let is_known = |key: usize| {
            let ((ledger, us), name) = (self.ledger_of(key), &self.keys[key]);
            ledger.latch(name, us).is_some() || ledger.watchers(name, us).next().is_some()
        };
        let latches = (0..self.keys.len()).any(is_known);
        // A recovery ends by itself. Meanwhile dead entries stay.
        let recovers =
            self.ledgers().any(|(ledger, us)| ledger.recovering(us).is_some()) || self.old_master.is_some();
        if callers || engines || records || entries || latches || recovers {
            if self.now > self.profile.drain + 40_000 * MS {
                let text = (0..self.keys.len())
                    .map(|key| self.describe_key(key))
                    .collect::<String>();
                self.report(Violation::LeftOver, None, || {
                    format!(
                        "callers {callers}, engines {engines}, records {records}, entries {entries}, latches {latches}: {text}"
                    )
                });
                self.finished = true;
            }
            return;
        }
        // A request sweeps what is dead.
        for key in 0..self.keys.len() {
            let name = self.keys[key].clone();
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
                may_keep: false,
                data: None,
                mark: None,
                verb: Verb::HEARTBEAT,
            };
            let batch = Batch {
                highest: GrantNumber(0),
                not_after: u64::MAX,
                poll_gap_ms: self.profile.poll_gap,
                is_unconfirmed: false,
                recovery_ms: self.profile.recovery().as_millis() as u64,
                rule: Rule::Each,
                requests: vec![request],
            };
            let sweep = |world: &mut World| {
                let us = world.server_us();
                world.server.ledger.apply(us, &batch, &mut Vec::new());
            };
            self.with_key(key, sweep);
            for master in 0..self.profile.quorum {
                self.visit(master, sweep);
            }
        }
        if self.ledgers().any(|(ledger, _)| !ledger.is_empty()) {
            self.report(Violation::LeftOver, None, || "the ledger is not empty".into());
        }
        self.finished = true;
    }
}
