//! Laws of a quorum: each guard has a majority of the masters, and some waiter gets one.

use tenure::protocol::ledger::{Ledger, RecordOwner};
use tenure::protocol::message::ClaimId;

use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::CallerState;

/// What the masters of a quorum have of a key.
#[derive(Debug)]
pub(crate) struct Votes {
    masters: usize,
    /// The owner of each record.
    owners: Vec<ClaimId>,
    /// The masters that give no vote, because they may have lost records.
    recovering: usize,
}

impl Votes {
    /// Returns whether no other claim can have a majority.
    pub(crate) fn are_enough(&self, claim: ClaimId) -> bool {
        let own = self.owners.iter().filter(|owner| **owner == claim).count();
        own + self.recovering > self.masters / 2
    }
}

impl World {
    /// Returns the owner of a key's record at a master.
    pub(crate) fn owner_at(&self, master: usize, key: usize) -> Option<ClaimId> {
        let master = self.server_at(master);
        let record = master.ledger.record(&self.keys[key], master.clock_us(self.now))?;
        match record.owner {
            RecordOwner::Claim(claim_id, _) => Some(claim_id),
            _ => None,
        }
    }

    /// Returns the owner of each record of a key, at whatever server.
    pub(crate) fn owners(&self, key: usize) -> Vec<ClaimId> {
        let name = &self.keys[key];
        let of = |(ledger, us): (&Ledger, u64)| {
            let owner = match ledger.record(name, us).map(|record| &record.owner) {
                Some(RecordOwner::Claim(claim_id, _)) => Some(*claim_id),
                _ => None,
            };
            let shares: Vec<_> = ledger.shares(name, us).map(|share| share.claim_id).collect();
            owner.into_iter().chain(shares)
        };
        self.ledgers().flat_map(of).collect()
    }

    /// Returns what the masters have of a key.
    pub(crate) fn votes(&self, key: usize) -> Votes {
        let masters = self.profile.quorum;
        let recovers = |master: &usize| {
            let server = self.server_at(*master);
            let is_noted = server.ledger.recorded_run() == Some(&server.run());
            !is_noted || server.ledger.recovering(server.clock_us(self.now)).is_some()
        };
        Votes {
            masters,
            owners: self.owners(key),
            recovering: (0..masters).filter(recovers).count(),
        }
    }

    /// Checks that in a calm some caller holds a lock soon for which callers wait.
    pub(crate) fn watch_quorum_waiters(&mut self, key: usize, is_wanted: bool) {
        let holds = |slot: usize| {
            let node = &self.nodes[slot];
            let mut live = node.live.iter().map(|caller| &node.callers[*caller]);
            node.alive && live.any(|caller| caller.key == key && caller.state == CallerState::Holding)
        };
        if !is_wanted || (0..self.nodes.len()).any(holds) {
            self.memory.free_since[key] = None;
            return;
        }
        let since = *self.memory.free_since[key].get_or_insert(self.now);
        let longest = self.profile.longest().as_nanos() as u64;
        if self.now - since > 2 * longest + 3_000 * MS {
            let (slept, state) = ((self.now - since) / MS, self.describe_key(key));
            self.report(Violation::WaiterAsleep, Some(key), || {
                format!("held by no caller for {slept} ms: {state}")
            });
        }
    }
}
