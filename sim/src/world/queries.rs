//! Questions about the state of a world, which every layer may ask.

use tenure::protocol::claim::held_lease::Holding;
use tenure::protocol::ledger::JobRecord;
use tenure::protocol::message::{Batch, ClaimId, Fence, GrantNumber, LeaseTimes, Name};
use tenure::protocol::step::Ticket;
use tenure::protocol::time::Instant;

use crate::time::{MS, SETTLE_NS};
use crate::world::World;
use crate::world::records::KeyRecords;
use crate::world::transfer::TransferMessage;

impl World {
    /// Returns whether a node has candidates. Every third node only observes.
    pub(crate) fn has_candidates(&self, slot: usize) -> bool {
        slot % 3 != 2
    }

    /// Returns whether a caller must still rest.
    pub(crate) fn is_resting(&self, slot: usize, caller: usize) -> bool {
        let rest = self
            .memory
            .elections
            .rests
            .get(&(slot, self.nodes[slot].life, caller));
        rest.is_some_and(|rest| self.local(slot) < rest.earliest)
    }

    /// Returns how long the timer of a standby may take, and how long a takeover. Both include the round
    /// trips and the delays of two batches.
    pub(crate) fn bounds_of_ticks(&self) -> (u64, u64) {
        let term = self.profile.terms[0];
        let timer = (term.lease_ms / 3 + term.lease_ms / 50) * MS + 6 * self.profile.delay.1 + 100 * MS;
        (timer, timer + (term.hold_ms() + term.lease_ms / 50) * MS)
    }

    /// Returns what the server knows of a job.
    pub(crate) fn job(&self, key: usize) -> JobRecord {
        let (ledger, _) = self.ledger_of(key);
        ledger.job(&self.keys[key]).cloned().unwrap_or_default()
    }

    /// Returns the connection that a node's session uses, if one is open.
    pub(crate) fn open_conn(&self, slot: usize) -> Option<usize> {
        let sessions = &self.nodes[slot].sessions;
        // Derived, not drawn: any of the servers of a cluster.
        let first = (self.now / 1_000) as usize % sessions.len();
        let (before, after) = sessions.split_at(first);
        let conns = after.iter().chain(before).flat_map(|of| of.conns.iter().rev());
        conns.map(|(_, conn)| *conn).find(|conn| self.conns[*conn].opened)
    }

    /// Returns whether that life of the slot is running or stopped, but not over.
    pub(crate) fn is_alive(&self, slot: usize, life: u32) -> bool {
        self.nodes[slot].life == life && self.nodes[slot].alive
    }

    /// Returns what a node's clock shows now.
    pub(crate) fn local(&self, slot: usize) -> Instant {
        self.nodes[slot].clock.local(self.now)
    }

    /// Returns what a caller of a node holds, by the node's clock.
    pub(crate) fn holding(&self, slot: usize, key: usize, ticket: Ticket) -> Option<Holding> {
        let local = self.local(slot);
        self.nodes[slot].shard.holding(local, &self.keys[key], ticket)
    }

    /// Returns the index of a key.
    pub(crate) fn key_index(&self, name: &Name) -> usize {
        self.keys
            .iter()
            .position(|key| key == name)
            .expect("a key of this world")
    }

    /// Returns what the server's wall clock shows, in µs.
    pub(crate) fn server_us(&self) -> u64 {
        self.server.clock_us(self.now)
    }

    /// Returns whether a transfer message names the owner, which no node pursues then.
    pub(crate) fn is_on_its_way(&self, key: usize, claim_id: ClaimId) -> bool {
        let is_its = |message: &TransferMessage| message.key == key && message.of == claim_id;
        self.transfer_messages.iter().any(is_its)
    }

    /// Returns whether the server at hand grants nothing: it recovers, or it executes a batch of an unconfirmed link.
    pub(crate) fn holds_back(&self) -> bool {
        self.memory.is_unconfirmed || self.server.ledger.recovering(self.server_us()).is_some()
    }

    /// Returns whether a fence is exempt from the order of fences.
    pub(crate) fn is_exempt_fence(&self, fence: Fence) -> bool {
        fence.number() <= self.memory.exempt_up_to || self.memory.exempt_grants.contains(&fence.number())
    }

    /// Returns whether a grant is exempt from the laws.
    pub(crate) fn is_exempt_grant(&self, number: GrantNumber) -> bool {
        self.memory.exempt_grants.contains(&number)
    }

    /// Returns whether the grant of a claim is exempt from the laws, or its lease was revoked.
    pub(crate) fn is_exempt_claim(&self, claim: Option<ClaimId>) -> bool {
        let number = claim.and_then(|claim| self.memory.granted.get(&claim));
        number.is_some_and(|number| self.memory.exempt_grants.contains(number))
            || claim.is_some_and(|claim| self.memory.revoked.contains(&claim))
    }

    /// Returns the records of each request's key.
    pub(crate) fn records_of_batch(&self, batch: &Batch) -> Vec<KeyRecords> {
        let names = batch.requests.iter().map(|request| &request.name);
        names.map(|name| self.key_records(name)).collect()
    }

    /// Returns the server's records of a key.
    pub(crate) fn key_records(&self, name: &Name) -> KeyRecords {
        let (ledger, us) = self.ledger_of(self.key_index(name));
        KeyRecords {
            record: ledger.record(name, us).cloned(),
            shares: ledger.shares(name, us).copied().collect(),
            waiters: ledger.waiters(name),
            latch: ledger.latch(name, us).cloned(),
        }
    }

    /// Returns whether no fault happened for so long that the world must be in order.
    pub(crate) fn is_calm(&self) -> bool {
        self.is_calm_but_for_moves() && self.now >= self.cluster.settles_at()
    }

    /// Returns whether no fault happened for so long that the world must be in order, except for slots that moved just now.
    pub(crate) fn is_calm_but_for_moves(&self) -> bool {
        let faults = self.memory.fault_until.max(self.profile.fault_period.1);
        self.profile.fault_period.1 == 0 || self.now > faults + SETTLE_NS
    }

    /// Returns whether a renewal is answered before it is given up, after a quarter of the lease. In a half-moved slot a
    /// renewal takes three round trips: its script, and its record alone at the source and at the target.
    pub(crate) fn renews_in_time(&self, term: LeaseTimes) -> bool {
        let three_trips = 6 * self.profile.delay.1;
        self.now >= self.cluster.settles_at() || three_trips < term.lease_ms * MS / 4
    }

    /// Returns when the present calm began, or will begin.
    pub(crate) fn calm_since(&self) -> u64 {
        let settles_at = self.cluster.settles_at();
        if self.profile.fault_period.1 == 0 {
            return settles_at;
        }
        settles_at.max(self.memory.fault_until.max(self.profile.fault_period.1) + SETTLE_NS)
    }

    /// Returns the state of a key as text.
    pub(crate) fn describe_key(&self, key: usize) -> String {
        let mut text = format!("{:?}\n", self.key_records(&self.keys[key]));
        for claim_id in self.ledger_of(key).0.waiters(&self.keys[key]) {
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
