//! What the laws stop promising after a fault of the server.

use tenure::protocol::ledger::{Record, RecordOwner};

use crate::world::World;
use crate::world::tick_memory::Ticks;

impl World {
    /// The server forgot its marks.
    pub(crate) fn ticks_forgotten(&mut self) {
        self.watch.ticks = Ticks::default();
    }

    /// Exempts the lease of the present owner from the laws.
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

    pub(crate) fn taint_all(&mut self) {
        for key in 0..self.keys.len() {
            self.taint(key);
        }
    }

    /// The server lost its number, or its clock went back. After both, fences may be smaller.
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
}
