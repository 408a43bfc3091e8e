//! Elections in the store. An election is a lock of its own kind; the owner leads. This file answers what observers
//! ask about the leader.
//!
//! # The way of one election
//!
//! An election is a lock of its own kind; the owner leads.
//!
//! 1. A campaign acquires the election as a fair lock (`primitives/election.rs` `campaign`). A leading loop campaigns again after each
//!    leadership (`primitives/election.rs` `lead`).
//! 2. After a lost lease, the candidate rests before the node claims for it again (`protocol/key/key_state.rs` `lock`,
//!    `protocol/key/requests.rs` `claim_for_solos`).
//! 3. The ledger answers the question for the leader (`protocol/ledger/election.rs` `ask_election`). On Redis:
//!    `store/redis/lua/elect.lua`.
//! 4. A leader proclaims a value, and the ledger keeps the value under the leader's grant (`protocol/ledger/election.rs` `proclaim`).
//! 5. The value of a candidate travels with its claim (`primitives/election.rs` `value`). The ledger keeps the value while the claim
//!    waits, and proclaims the value in the step in which the claim is granted (`protocol/ledger/election.rs` `keep_value`,
//!    `proclaim_value`).
//! 6. After each request, the ledger checks whether the leader has changed. If it has, the watchers get a push
//!    (`protocol/ledger/transaction.rs` `execute`, `protocol/ledger/election.rs` `leader_changed`).
//! 7. An observer watches the election as a waiter watches a latch. It remembers the version that it saw last (`primitives/election.rs`
//!    `observe`, `poll_leader`).
//! 8. A node knows from its own key machine whether it leads, without a round trip (`primitives/election.rs` `is_leader`,
//!    `protocol/key/shard.rs` `held_alone`).

use crate::protocol::flaw::Flaw;
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::Proclaimed;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{
    Call, CallAnswer, CallReply, ClaimId, GrantNumber, Kind, LeaderReport, NodeId, Payload, Request, Verb,
    Version,
};

impl Transaction<'_> {
    /// Returns the node that leads and its grant, if this is an election.
    pub(crate) fn current_leader(&self) -> Option<(NodeId, GrantNumber)> {
        let owner = self.state.owner().filter(|_| self.name.kind == Kind::Election);
        owner.map(|(claim_id, number)| (claim_id.node, number))
    }

    /// Keeps the value of a candidate that waits, or that this request made the leader. `led`: the leader before the request.
    pub(crate) fn keep_value(&mut self, request: &Request, led: Option<(NodeId, GrantNumber)>) {
        let (Verb::Claim { .. }, Some(value)) = (request.verb, &request.data) else {
            return;
        };
        let claim_id = request.claim_id;
        self.state.candidate_values.retain(|(of, _)| *of != claim_id);
        let waits = self.is_queued(claim_id) && !self.plant.is(Flaw::QueuedValueForgotten);
        let is_new_leader = self.current_leader() != led && self.owned_by(claim_id).is_some();
        if self.name.kind == Kind::Election && (waits || is_new_leader) {
            self.state.candidate_values.push((claim_id, value.clone()));
        }
    }

    fn is_queued(&self, claim_id: ClaimId) -> bool {
        self.state.queue.iter().any(|entry| entry.claim_id == claim_id)
    }

    /// Proclaims the value of the new leader, if it campaigned with one. A request that makes a leader and asks about it finds the
    /// value, too.
    fn proclaim_value(&mut self) {
        let mut values = std::mem::take(&mut self.state.candidate_values);
        if let Some((leader, number)) = self.state.owner()
            && let Some(at) = values.iter().position(|(of, _)| *of == leader)
        {
            self.branches.note(Branch::ProclaimedByWinner);
            self.state.proclaimed = Some(Box::new(Proclaimed {
                number,
                version: Version(number.0),
                seq: 0,
                value: values.swap_remove(at).1,
            }));
        }
        values.retain(|(of, _)| self.is_queued(*of));
        self.state.candidate_values = values;
    }

    /// Removes the value of the previous leader after the leader changed, and tells the watchers. The value with
    /// which the new leader campaigned is proclaimed now.
    pub(crate) fn leader_changed(&mut self) {
        let leads = self.current_leader().map(|(_, number)| number);
        if !self.plant.is(Flaw::ProclaimedOutlivesLeader) {
            let proclaimed = &mut self.state.proclaimed;
            proclaimed.take_if(|proclaimed| Some(proclaimed.number) != leads);
        }
        if !self.state.candidate_values.is_empty() {
            self.proclaim_value();
        }
        self.tell_watchers();
    }

    /// Answers a call about an election.
    pub(crate) fn ask_election(&mut self, request: &Request, call: Call) -> CallReply {
        // Every verb settles the key first. A call has no claim, so the key is never granted to its sender.
        self.settle(None);
        if !self.state.candidate_values.is_empty() {
            self.proclaim_value();
        }
        if let Call::Proclaim { of, seq } = call {
            return CallReply::Answer(self.proclaim(of, seq, request.data.as_ref()));
        }
        let report = self.leader_report();
        let version = report.as_ref().map_or(Version(0), |report| report.version);
        match call {
            Call::Leader { known: Some(known) } if known == version => {
                self.branches.note(Branch::LeaderWatched);
                self.watch(request);
                CallReply::Watching(version)
            }
            _ => CallReply::Answer(CallAnswer::Leader(report)),
        }
    }

    /// Returns what observers learn of the present leader.
    fn leader_report(&self) -> Option<LeaderReport> {
        let (node, number) = self.current_leader()?;
        let outlives = self.plant.is(Flaw::ProclaimedOutlivesLeader);
        let proclaimed = self.state.proclaimed.as_deref();
        let proclaimed = proclaimed.filter(|proclaimed| proclaimed.number == number || outlives);
        Some(LeaderReport {
            node,
            number,
            version: proclaimed.map_or(Version(number.0), |proclaimed| proclaimed.version),
            value: proclaimed.map(|proclaimed| proclaimed.value.clone()),
        })
    }

    /// Stores the leader's value and tells the watchers. Refuses a claim that does not lead, and drops an outdated
    /// value.
    fn proclaim(&mut self, of: ClaimId, seq: u64, value: Option<&Payload>) -> CallAnswer {
        let (Some(number), Some(value)) = (self.owned_by(of), value) else {
            self.branches.note(Branch::ProclaimRefused);
            return CallAnswer::Owned(false);
        };
        let is_later = |kept: &Proclaimed| kept.number == number && kept.seq >= seq;
        if self.state.proclaimed.as_deref().is_some_and(is_later) && !self.plant.is(Flaw::ProclaimedLate) {
            // The request was slow, or is a retry.
            self.branches.note(Branch::ProclaimedBefore);
            return CallAnswer::Owned(true);
        }
        let version = Version(self.next_number().0);
        self.state.proclaimed = Some(Box::new(Proclaimed {
            number,
            version,
            seq,
            value: value.clone(),
        }));
        self.branches.note(Branch::Proclaimed);
        self.tell_watchers();
        CallAnswer::Owned(true)
    }
}
