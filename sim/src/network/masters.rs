//! Which server a node connects to, and what a client does when its connection opens at a server that may have lost grants.

use crate::world::World;

impl World {
    /// Returns the server that a node now takes for the master.
    pub(crate) fn supposed_master(&mut self) -> usize {
        match self.old_master {
            Some((old, _)) if self.rng.bool() => old,
            _ => self.master,
        }
    }

    /// Returns whether a server recovers after each restart and promotion.
    pub(crate) fn recovers(&self) -> bool {
        (self.profile.failover_lag.is_some() || self.is_quorum()) && !self.setup.no_recovery
    }

    /// Compares the run of the server with the one that was noted, as a client does when its connection opens.
    pub(crate) fn compare_run(&mut self) {
        if self.recovers() && self.server.noted_run != self.server.run {
            let lasts = self.profile.recovery().as_millis() as u64;
            let at = self.at;
            self.note(None, None, || format!("server {at} recovers for {lasts} ms"));
            let now_us = self.server_us();
            self.server.ledger.begin_recovery(now_us, lasts);
            self.server.noted_run = self.server.run;
        }
    }
}
