//! Elections in the store: an election is a lock of its own kind, and whoever has it leads. This is what others are told of it.

use crate::protocol::flaw::{Flaw, Plant};
use crate::protocol::ledger::branch::Branch;
use crate::protocol::ledger::record::Proclaimed;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{
    Call, ClaimId, GrantNumber, Kind, LeaderReport, NodeId, Payload, Reply, Request, Version,
};

impl<P: Plant> Transaction<'_, P> {
    /// Who leads, if this is an election.
    pub(crate) fn current_leader(&self) -> Option<(NodeId, GrantNumber)> {
        let owner = self.state.owner().filter(|_| self.name.kind == Kind::Election);
        owner.map(|(claim_id, number)| (claim_id.node, number))
    }

    /// Somebody else leads, or nobody: what the leader before proclaimed is over, and whoever watches is told. Who leads now may
    /// have proclaimed something in the same step.
    pub(crate) fn leader_changed(&mut self) {
        let leads = self.current_leader().map(|(_, number)| number);
        if !self.planted(Flaw::ProclaimedOutlivesLeader) {
            let proclaimed = &mut self.state.proclaimed;
            proclaimed.take_if(|proclaimed| Some(proclaimed.number) != leads);
        }
        self.tell_watchers();
    }

    pub(crate) fn ask_election(&mut self, request: &Request, call: Call) -> Reply {
        // As every verb does. Whoever asks is never whom it is handed to.
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

    fn proclaim(&mut self, of: ClaimId, seq: u64, value: Option<&Payload>) -> Reply {
        let (Some(number), Some(value)) = (self.owned_by(of), value) else {
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
            value: value.clone(),
        }));
        self.branches.push(Branch::Proclaimed);
        self.tell_watchers();
        Reply::Done
    }
}
