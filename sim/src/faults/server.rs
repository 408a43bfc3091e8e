//! Faults of the server: refusals, stalls, restarts, clock steps and foreign writes.

use std::collections::HashMap;

use tenure::error::StoreErrorKind;
use tenure::protocol::ledger::{Record, RecordOwner};

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::connection::error;
use crate::world::event::Event;

impl World {
    /// The server refuses everything for a while (loading, replica, or changed password), or forgets its
    /// scripts.
    pub(crate) fn refuse_all(&mut self) {
        let until = self.now + self.rng.u64(0..1_500 * MS);
        match self.rng.u8(0..8) {
            0 => self.server.loading = until,
            1 => self.server.read_only = until,
            2 => {
                self.server.locked = until;
                self.cover(Case::Locked);
            }
            3 | 4 => self.server.kills = until,
            _ => {
                self.note(None, None, || "server forgets the scripts".into());
                self.server.knows_scripts = false;
                return;
            }
        }
        self.note(None, None, || {
            format!("server refuses all until {} ms", until / MS)
        });
        self.extend_fault(until);
    }

    /// Stalls the server for a while.
    pub(crate) fn stall_server(&mut self) {
        self.cover(Case::ServerStall);
        self.server.stall = self.now + self.rng.u64(10 * MS..2_000 * MS);
        self.note(None, None, || "server stalls".into());
        self.extend_fault(self.server.stall);
    }

    /// Restarts the server, which ends all connections. After an empty restart earlier grants are promised
    /// nothing.
    pub(crate) fn restart(&mut self, empty: bool) {
        let at = self.at;
        self.note(None, None, || format!("server {at} restarts, empty: {empty}"));
        if empty && self.is_quorum() {
            self.lose_master();
        } else if empty {
            self.cover(Case::ServerForgot);
            self.memory.lost_grants.extend(self.memory.granted.values());
            self.memory.emptied = !self.recovers();
            self.note_loss();
            self.note_number_loss(true);
            self.server.ledger.forget();
            self.forget_ticks();
            // Decided by the time, so the other choices of the seed stay the same.
            if (self.now / MS).is_multiple_of(2) {
                self.restore_jobs();
            }
        } else {
            self.cover(Case::ServerRestart);
        }
        self.runs += 1;
        self.server.run = self.runs;
        self.server.listening = HashMap::new();
        self.server.knows_scripts = false;
        for slot in 0..self.nodes.len() {
            let (id, life) = (self.nodes[slot].id, self.nodes[slot].life);
            self.listens(id, false);
            for conn in self.nodes[slot].conns() {
                if self.conns[conn].to != self.at {
                    continue;
                }
                self.conns[conn].server = false;
                let notice = self.rng.u64(0..20 * MS);
                self.after(notice, Event::ResetSeen { conn });
            }
            if let Some(sub) = self.nodes[slot]
                .inbox
                .sub
                .filter(|_| self.nodes[slot].inbox.to == self.at)
            {
                let notice = self.rng.u64(0..100 * MS);
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
        for conn in self.conns.iter_mut().filter(|conn| conn.to == self.at) {
            conn.server = false;
        }
        // The server refuses connections until it is up.
        self.server.down = true;
        let mut up = self.now + self.rng.u64(MS..400 * MS);
        if self.has_several() && self.cluster.rng.u8(0..4) == 0 {
            up += self
                .cluster
                .rng
                .u64(0..2 * self.profile.longest().as_nanos() as u64);
        }
        let recovers = match self.is_quorum() {
            true => self.profile.recovery().as_nanos() as u64,
            false => 0,
        };
        self.extend_fault(up + recovers + 200 * MS);
        let server = self.has_several().then_some(self.at);
        self.at(up, Event::ServerUp { server });
    }

    /// Saves a copy of a master's data.
    pub(crate) fn copy_master(&mut self) {
        self.server.saved = Some(self.server.ledger.clone());
    }

    /// A master of a quorum comes back empty, or with an older copy of its data.
    fn lose_master(&mut self) {
        match self.server.saved.clone().filter(|_| self.cluster.rng.bool()) {
            Some(saved) => {
                self.cover(Case::MasterWentBack);
                self.server.ledger = saved;
            }
            None => {
                self.cover(Case::MasterForgot);
                self.server.ledger.forget();
            }
        }
    }

    /// Moves the server's wall clock.
    pub(crate) fn step_clock(&mut self) {
        if self.has_several() {
            return self.step_clock_of_member();
        }
        let kind = self.rng.u8(0..5);
        let step_ms = match kind {
            0 if self.profile.wild_clock => {
                self.cover(Case::ClockForward);
                self.exempt_all();
                // A recovery ends too early, too.
                self.memory.exempt_grants.extend(&self.memory.lost_grants);
                self.rng.i64(300..5_000)
            }
            1 if self.profile.wild_clock => {
                self.cover(Case::ClockBack);
                self.note_number_loss(false);
                -self.rng.i64(300..3_000)
            }
            // The step is smaller than the margin, and too rare for two steps in one lease.
            _ if self.now > self.memory.small_step_at + 4_000 * MS => {
                self.cover(Case::ClockSmall);
                self.memory.small_step_at = self.now;
                self.rng.i64(0..150)
            }
            _ => return,
        };
        self.note(None, None, || format!("server's clock steps by {step_ms} ms"));
        self.server.offset += step_ms * 1000;
        self.memory.stepped_at = self.now;
        // What ends by this clock ends later after each step back.
        let from = if step_ms < 0 {
            self.memory.fault_until.max(self.now)
        } else {
            self.now
        };
        self.extend_fault(from + step_ms.unsigned_abs() * MS);
    }

    /// A client that ignores the protocol changes a record.
    pub(crate) fn foreign_client(&mut self) {
        let key = self.rng.usize(0..self.keys.len());
        let kind = self.rng.u8(0..9);
        self.exempt(key);
        let lasts = self.server_us() / 1000 + self.rng.u64(10..2_000);
        let (seen, record) = match kind {
            0..4 => (Case::ForeignDelete, None),
            4..7 => (
                Case::ForeignTake,
                Some(Record {
                    owner: RecordOwner::Foreign,
                    expires: Some(lasts),
                    may_keep: false,
                }),
            ),
            _ => (
                Case::ForeignType,
                Some(Record {
                    owner: RecordOwner::WrongType,
                    expires: Some(lasts),
                    may_keep: false,
                }),
            ),
        };
        self.cover(seen);
        self.note(None, Some(key), || format!("stranger: {record:?}"));
        self.extend_fault(self.now + 2_000 * MS);
        self.overwrite(key, record);
        self.memory.handed_on[key] = None;
    }

    /// Replaces the record of a key.
    pub(crate) fn overwrite(&mut self, key: usize, record: Option<Record>) {
        self.with_key(key, |world| {
            world.server.ledger.overwrite(&world.keys[key], record);
        });
    }

    /// Takes a backup of the jobs.
    pub(crate) fn copy_jobs(&mut self) {
        self.server.copy = self.jobs().map(|key| (key, self.job(key))).collect();
    }

    /// The server comes back with the backup of its jobs.
    pub(crate) fn restore_jobs(&mut self) {
        let known = self.server.copy.clone();
        for (key, job) in known.into_iter().filter(|(_, job)| job.mark.is_some()) {
            self.cover(Case::ServerWentBack);
            self.memory.ticks.restored(key, &job);
            self.server.ledger.set_job(&self.keys[key], job);
        }
    }
}
