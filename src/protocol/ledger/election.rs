//! Elections in the store. An election is a lock of its own kind; the owner leads. This file answers what observers
//! ask about the leader.

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::Proclaimed;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{
    Call, ClaimId, GrantNumber, Kind, LeaderReport, NodeId, Payload, Reply, Request, Version,
};

impl<P: Plant> Transaction<'_, P> {
    /// Returns the node that leads and its grant, if this is an election.
    pub(crate) fn current_leader(&self) -> Option<(NodeId, GrantNumber)> {
        let owner = self.state.owner().filter(|_| self.name.kind == Kind::Election);
        owner.map(|(claim_id, number)| (claim_id.node, number))
    }

    /// Removes the value of the previous leader after the leader changed, and tells the watchers. A value that the
    /// new leader proclaimed in the same step stays.
    pub(crate) fn leader_changed(&mut self) {
        let leads = self.current_leader().map(|(_, number)| number);
        if !self.planted(Flaw::ProclaimedOutlivesLeader) {
            let proclaimed = &mut self.state.proclaimed;
            proclaimed.take_if(|proclaimed| Some(proclaimed.number) != leads);
        }
        self.tell_watchers();
    }

    /// Answers a call about an election.
    pub(crate) fn ask_election(&mut self, request: &Request, call: Call) -> Reply {
        // Every verb settles the key first. A call has no claim, so the key is never granted to its sender.
        self.settle(None);
        if let Call::Proclaim { of, seq } = call {
            return self.proclaim(of, seq, request.data.as_ref());
        }
        let report = self.leader_report();
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

    /// Returns what observers learn of the present leader.
    fn leader_report(&self) -> Option<LeaderReport> {
        let (node, number) = self.current_leader()?;
        let outlives = self.planted(Flaw::ProclaimedOutlivesLeader);
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
    fn proclaim(&mut self, of: ClaimId, seq: u64, value: Option<&Payload>) -> Reply {
        let (Some(number), Some(value)) = (self.owned_by(of), value) else {
            self.branches.push(Branch::ProclaimRefused);
            return Reply::Gone;
        };
        let is_later = |kept: &Proclaimed| kept.number == number && kept.seq >= seq;
        if self.state.proclaimed.as_deref().is_some_and(is_later) && !self.planted(Flaw::ProclaimedLate) {
            // The request was slow, or is a retry.
            self.branches.push(Branch::ProclaimedBefore);
            return Reply::Done;
        }
        let version = Version(self.next_number().0);
        self.state.proclaimed = Some(Box::new(Proclaimed {
            number,
            version,
            seq,
            value: value.clone(),
        }));
        self.branches.push(Branch::Proclaimed);
        self.tell_watchers();
        Reply::Done
    }
}
