//! Failovers: a lagging replica becomes the master, and some nodes still use the former master for a while.

use tenure::error::StoreErrorKind;
use tenure::protocol::ledger::Ledger;

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::connection::error;
use crate::world::event::Event;
use crate::world::server::{Replica, STOPPED, Server};

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
        self.cut_nodes_off_sentinels();
        let returning = self.sentinels.as_mut().and_then(|sentinels| {
            let returns = sentinels.rng.u8(0..3) > 0 || sentinels.is_staged;
            sentinels.retired.take_if(|_| returns)
        });
        self.replica = Some(match returning {
            Some(server) => Replica::Returning(server),
            None => {
                self.note(None, None, || "the replica stops to follow".into());
                Replica::Copy(Box::new(self.server.ledger.clone()))
            }
        });
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
        let old = self.master;
        let new = match replica {
            Replica::Copy(ledger) => self.add_replica(*ledger),
            Replica::Returning(server) => {
                self.cover(Case::MasterReturned);
                server
            }
        };
        self.promotions += 1;
        self.take_in_hand(new);
        self.master = new;
        (self.server.down, self.server.stall) = (false, 0);
        self.note(None, None, || format!("server {new} becomes the master"));
        self.kill_connections(new);
        for slot in 0..self.nodes.len() {
            self.listens(self.nodes[slot].id, false);
        }
        let is_staged = self.tell_sentinels(new, old);
        self.retire_old_master(old);
        self.note_loss();
        if is_staged {
            self.stage_return();
        } else if self
            .sentinels
            .as_mut()
            .is_some_and(|sentinels| sentinels.rng.bool())
        {
            self.replace_process();
        }
    }

    /// Adds a replica with this data, which becomes a master. Returns its index.
    fn add_replica(&mut self, ledger: Ledger) -> usize {
        self.runs += 1;
        // The clocks of two servers differ by less than the longest lease, which `docs/sentinel.md` demands for growing fences.
        let longest = self.profile.terms.iter().map(|term| term.lease_ms).max();
        let band = [0, 200, longest.unwrap_or_default() as i64][self.rng.usize(0..3)] * 1000;
        let offset = self.rng.i64(-band / 2..=band / 2);
        let mut server = Server::new(self.setup.plant());
        server.ledger = ledger;
        (server.run, server.offset) = (self.runs, offset);
        self.servers.push(server);
        self.servers.len() - 1
    }

    /// Sentinel promotes a server and kills its clients' connections in one step. A connection that the server has not accepted
    /// yet goes on.
    fn kill_connections(&mut self, server: usize) {
        for conn in 0..self.conns.len() {
            let of = &mut self.conns[conn];
            of.killed |= of.to == server;
            if of.to == server && of.server {
                of.server = false;
                let notice = self.rng.u64(0..20 * MS);
                self.after(notice, Event::ResetSeen { conn });
            }
        }
    }

    /// The former master accepts writes for a while.
    fn retire_old_master(&mut self, old: usize) {
        let lag = self.profile.failover_lag.unwrap_or_default();
        let lasts = if self.setup.late_demotion {
            lag + 4 * self.profile.longest().as_millis() as u64
        } else {
            lag
        };
        let early = self.early_node();
        let lasts = match early {
            Some(_) => lasts * MS,
            None => self.rng.u64(0..=lasts * MS),
        };
        self.old_master = Some((old, self.now + lasts));
        self.after(lasts, Event::Demoted);
        if let Some((slot, learns)) = early {
            let life = self.nodes[slot].life;
            return self.after(learns, Event::MasterMoved { slot, life });
        }
        for slot in 0..self.nodes.len() {
            if self.chance(60) {
                let life = self.nodes[slot].life;
                let learns = self.rng.u64(0..=lasts + 200 * MS);
                self.after(learns, Event::MasterMoved { slot, life });
            }
        }
    }

    /// The former master accepts nothing any more. Its inboxes may stay open, as it follows the new master.
    pub(crate) fn demote(&mut self) {
        let Some((old, _)) = self.old_master.take() else {
            return;
        };
        self.note(None, None, || format!("server {old} accepts nothing any more"));
        // A stopped server still completes connections, which it accepts when it goes on.
        let is_stopped = self.sentinels.as_mut().is_some_and(|sentinels| {
            sentinels.retired = Some(old);
            sentinels.rng.bool() || sentinels.is_staged
        });
        self.visit(old, |world| match is_stopped {
            true => world.server.stall = STOPPED,
            false => world.server.down = true,
        });
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
        self.end_link(conn);
    }
}
