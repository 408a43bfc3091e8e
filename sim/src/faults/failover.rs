//! Failovers: a lagging replica becomes the master, and some nodes still use the former master for a while.

use tenure::error::StoreErrorKind;
use tenure::protocol::session::step::SessionInput;

use crate::coverage::Case;
use crate::planted::Planted;
use crate::time::MS;
use crate::world::World;
use crate::world::connection::error;
use crate::world::event::Event;
use crate::world::server::{Replica, Server};
use crate::world::signal::Signal;

impl World {
    /// Takes the copy that a replica has, which becomes the master a little later. What the master does meanwhile is
    /// lost.
    pub(crate) fn fail_over(&mut self) {
        if self.replica.is_some() || self.old_master.is_some() || self.now < self.memory.next_failover {
            return;
        }
        // Often before the recovery of the last one has ended, and often after it.
        let recovery = self.profile.recovery().as_nanos() as u64;
        self.memory.next_failover = self.now + self.rng.u64(recovery / 4..3 * recovery);
        self.note(None, None, || "the replica stops to follow".into());
        self.replica = Some(Box::new(Replica {
            ledger: self.server.ledger.clone(),
            noted_run: self.server.noted_run,
        }));
        let behind = [0, 50, 800][self.rng.usize(0..3)] * MS;
        let behind = self.rng.u64(0..=behind);
        self.extend_fault(self.now + behind);
        self.after(behind, Event::Promote);
    }

    /// The replica becomes the master, with a clock of its own.
    pub(crate) fn promote(&mut self) {
        let Some(replica) = self.replica.take() else {
            return;
        };
        if self.draining {
            return;
        }
        self.cover(Case::FailedOver);
        self.runs += 1;
        // The clocks of two servers differ by less than the longest lease, which the README demands for growing fences.
        let longest = self.profile.terms.iter().map(|term| term.lease_ms).max();
        let band = [0, 200, longest.unwrap_or_default() as i64][self.rng.usize(0..3)] * 1000;
        let offset = self.rng.i64(-band / 2..=band / 2);
        let mut server = Server::new(Planted(self.setup.flaw));
        (server.ledger, server.noted_run) = (replica.ledger, replica.noted_run);
        (server.run, server.offset) = (self.runs, offset);
        let old = self.master;
        let new = self.servers.len();
        self.servers.push(server);
        self.take_in_hand(new);
        self.master = new;
        self.note(None, None, || format!("server {new} becomes the master"));
        for slot in 0..self.nodes.len() {
            self.listens(self.nodes[slot].id, false);
        }
        let lag = self.profile.failover_lag.unwrap_or_default();
        let lasts = if self.setup.late_demotion {
            lag + 4 * self.profile.longest().as_millis() as u64
        } else {
            lag
        };
        let lasts = self.rng.u64(0..=lasts * MS);
        self.old_master = Some((old, self.now + lasts));
        self.after(lasts, Event::Demoted);
        for slot in 0..self.nodes.len() {
            if self.chance(60) {
                let life = self.nodes[slot].life;
                let learns = self.rng.u64(0..=lasts + 200 * MS);
                self.after(learns, Event::MasterMoved { slot, life });
            }
        }
        self.note_loss();
    }

    /// The former master accepts nothing any more. Its inboxes may stay open, as it follows the new master.
    pub(crate) fn demote(&mut self) {
        let Some((old, _)) = self.old_master.take() else {
            return;
        };
        self.note(None, None, || format!("server {old} accepts nothing any more"));
        self.visit(old, |world| world.server.down = true);
        for slot in 0..self.nodes.len() {
            for conn in self.nodes[slot].conns() {
                if self.conns[conn].to == old {
                    let notice = self.rng.u64(0..300 * MS);
                    self.after(notice, Event::ResetSeen { conn });
                }
            }
            let (life, inbox) = (self.nodes[slot].life, &self.nodes[slot].inbox);
            if let Some(sub) = inbox.sub.filter(|_| inbox.to == old)
                && self.rng.bool()
            {
                let notice = self.rng.u64(0..600 * MS);
                let error = error(StoreErrorKind::Interrupted);
                self.after(
                    notice,
                    Event::InboxFailed {
                        slot,
                        life,
                        sub,
                        error,
                    },
                );
            }
        }
        for conn in self.conns.iter_mut().filter(|conn| conn.to == old) {
            conn.server = false;
        }
        self.note_loss();
    }

    /// A node learns that its connection leads to a former master.
    pub(crate) fn master_moved(&mut self, slot: usize) {
        let Some(conn) = self
            .open_conn(slot)
            .filter(|conn| self.conns[*conn].to != self.master)
        else {
            return;
        };
        self.cover(Case::LinkEnded);
        let (session, attempt) = (self.conns[conn].session, self.conns[conn].attempt);
        self.raise(Signal::Session {
            slot,
            session,
            input: SessionInput::ConnectionEnded(attempt),
        });
    }
}
