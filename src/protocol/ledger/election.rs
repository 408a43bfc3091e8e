//! Elections in the store: an election is a lock of its own kind, and whoever has it leads. This is what others are told of it.

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::Proclaimed;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{
    Call, ClaimId, GrantNumber, Kind, LeaderReport, NodeId, Payload, Reply, Request, Verb, Version,
};

impl<P: Plant> Transaction<'_, P> {
    /// Who leads, if this is an election.
    pub(crate) fn leads(&self) -> Option<(NodeId, GrantNumber)> {
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
        let waits = self.is_queued(claim_id) && !self.planted(Flaw::QueuedValueForgotten);
        let is_new_leader = self.leads() != led && self.owned_by(claim_id).is_some();
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
            self.branches.push(Branch::ProclaimedByWinner);
            self.state.proclaimed = Some(Box::new(Proclaimed {
                number,
                version: Version(number.0),
                seq: 0,
                said: values.swap_remove(at).1,
            }));
        }
        values.retain(|(of, _)| self.is_queued(*of));
        self.state.candidate_values = values;
    }

    /// Somebody else leads, or nobody: what the leader before proclaimed is over, and whoever watches is told. Who leads now may
    /// have proclaimed something in the same step, or campaigned with a value.
    pub(crate) fn elected(&mut self) {
        let leads = self.leads().map(|(_, number)| number);
        if !self.planted(Flaw::ProclaimedOutlivesLeader) {
            let proclaimed = &mut self.state.proclaimed;
            proclaimed.take_if(|proclaimed| Some(proclaimed.number) != leads);
        }
        if !self.state.candidate_values.is_empty() {
            self.proclaim_value();
        }
        self.tell_watchers();
    }

    pub(crate) fn ask_election(&mut self, request: &Request, call: Call) -> Reply {
        // As every verb does. Whoever asks is never whom it is handed to.
        self.settle(None);
        if !self.state.candidate_values.is_empty() {
            self.proclaim_value();
        }
        if let Call::Proclaim { of, seq } = call {
            return self.proclaim(of, seq, request.data.as_ref());
        }
        let report = self.leader();
        let version = report.as_ref().map_or(Version(0), |report| report.version);
        match call {
            Call::Leader { known: Some(known) } if known == version => {
                self.branches.push(Branch::LeaderWatched);
                self.watch(request);
                Reply::Watching(version)
            }
            _ => Reply::Leader(report),
        }
    }

    fn leader(&self) -> Option<LeaderReport> {
        let (node, number) = self.leads()?;
        let outlives = self.planted(Flaw::ProclaimedOutlivesLeader);
        let proclaimed = self.state.proclaimed.as_deref();
        let proclaimed = proclaimed.filter(|proclaimed| proclaimed.number == number || outlives);
        Some(LeaderReport {
            node,
            number,
            version: proclaimed.map_or(Version(number.0), |proclaimed| proclaimed.version),
            said: proclaimed.map(|proclaimed| proclaimed.said.clone()),
        })
    }

    fn proclaim(&mut self, of: ClaimId, seq: u64, said: Option<&Payload>) -> Reply {
        let (Some(number), Some(said)) = (self.owned_by(of), said) else {
            self.branches.push(Branch::ProclaimRefused);
            return Reply::Gone;
        };
        let is_later = |kept: &Proclaimed| kept.number == number && kept.seq >= seq;
        if self.state.proclaimed.as_deref().is_some_and(is_later) && !self.planted(Flaw::ProclaimedLate) {
            // A request that was slow, or was asked for again.
            self.branches.push(Branch::ProclaimedBefore);
            return Reply::Done;
        }
        let version = Version(self.next_number().0);
        self.state.proclaimed = Some(Box::new(Proclaimed {
            number,
            version,
            seq,
            said: said.clone(),
        }));
        self.branches.push(Branch::Proclaimed);
        self.tell_watchers();
        Reply::Done
    }
}
