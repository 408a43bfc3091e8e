//! What the laws stop promising after a fault of the server.

use tenure::protocol::message::GrantNumber;

use crate::coverage::Case;
use crate::world::World;

impl World {
    /// The server forgot its marks.
    pub(crate) fn forget_ticks(&mut self) {
        let before = std::mem::take(&mut self.memory.ticks);
        // The server may know the ends of ticks, and a run that was granted before may begin.
        self.memory.ticks.cancelled = before.cancelled;
        self.memory.ticks.mended = before.mended;
    }

    /// Exempts the lease of the present owner from the laws.
    pub(crate) fn exempt(&mut self, key: usize) {
        let owned = self.key_records(&self.keys[key]);
        self.memory.exempt_grants.extend(owned.numbers());
    }

    /// Exempts the present leases of all keys.
    pub(crate) fn exempt_all(&mut self) {
        for key in 0..self.keys.len() {
            self.exempt(key);
        }
    }

    /// A server took over that lacks the latest grants, or the server before it can no longer grant. Until every lost
    /// lease is over, holders may lack a record, and claims may be granted again.
    pub(crate) fn note_loss(&mut self) {
        let lasts = 2 * self.profile.recovery().as_nanos() as u64;
        self.memory.lossy_until = self.now + lasts;
        self.extend_fault(self.now + lasts);
        self.memory.lossy_up_to = self.memory.highest;
        self.memory.granted.clear();
        self.memory.last_heard.clear();
        self.memory.handed_on.fill(None);
        // A leave is lost as other writes are, and its record ends by itself.
        self.memory.asserted_after_end.clear();
        self.memory.forgot = true;
        self.forget_ticks();
        for key in self.jobs() {
            let known = self.job(key);
            self.memory.ticks.restored(key, &known);
        }
    }

    /// Notes what the first requests show to a server that came back empty. A grant to a node that knew no number hides
    /// the loss, and nothing is promised of the lost leases then.
    pub(crate) fn note_evidence(&mut self, knows_number: bool, grants: bool) {
        if self.memory.emptied && knows_number {
            self.memory.emptied = false;
        } else if self.memory.emptied && grants {
            self.cover(Case::LossHidden);
            self.memory.emptied = false;
            self.memory.exempt_grants.extend(&self.memory.lost_grants);
        }
    }

    /// Returns whether some effects of a loss may still show.
    pub(crate) fn is_after_loss(&self) -> bool {
        self.now < self.memory.lossy_until
    }

    /// Returns whether a server may have lost a grant. The former master's grants are lost while it lasts.
    pub(crate) fn may_be_lost(&self, number: GrantNumber) -> bool {
        number <= self.memory.lossy_up_to || self.old_master.is_some()
    }

    /// The server lost its number, or its clock went back. After both, fences may be smaller.
    pub(crate) fn note_number_loss(&mut self, forgot: bool) {
        if forgot {
            self.memory.forgot = true;
            self.memory.handed_on.fill(None);
        } else {
            self.memory.stepped_back = true;
        }
        if self.memory.forgot && self.memory.stepped_back {
            self.memory.exempt_up_to = self.memory.highest;
        }
    }
}
