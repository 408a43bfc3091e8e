//! What goes wrong: processes, connections, the server, its clock, and strangers.

use std::collections::HashMap;

use tenure::error::StoreErrorKind;
use tenure::protocol::ledger::{Record, RecordOwner};
use tenure::protocol::session::step::SessionInput;

use crate::Wrong;
use crate::callers::{Act, State};
use crate::coverage::Seen;
use crate::network::error;
use crate::world::{Event, MS, World};

impl World {
    /// One fault of many, then the next.
    pub(crate) fn fault(&mut self) {
        if self.now >= self.profile.storm.1 {
            return self.heal();
        }
        let pause = self.rng.u64(0..2 * self.profile.fault_pause);
        self.after(pause, Event::Fault);
        if (self.now / MS).is_multiple_of(8) {
            self.copy_jobs();
        }
        let slot = self.rng.usize(0..self.nodes.len());
        self.unrest(self.now);
        self.log.mix(0xfa);
        match self.rng.u8(0..100) {
            _ if self.profile.sleepy && self.rng.u8(0..4) > 0 => match self.rng.bool() {
                true => self.pause(slot),
                false => self.hold_inbox(slot),
            },
            0..8 => self.crash(slot),
            8..20 => self.pause(slot),
            20..23 => self.closing(slot),
            23..28 => self.cut_off(slot),
            28 => self.silence(slot),
            29..41 => self.stall(slot),
            41..49 => self.reset(slot, false),
            49..58 => self.reset(slot, true),
            58..64 => self.hold_inbox(slot),
            64..73 => self.cut_inbox(slot),
            73..77 => self.stall_server(),
            77..80 => self.restart(false),
            80..83 if self.profile.forgetful => self.restart(true),
            83..86 => {
                self.server.refuses = self.now + self.rng.u64(0..1_500 * MS);
                self.unrest(self.server.refuses);
            }
            86..91 => self.step_clock(),
            91..97 => self.stranger(),
            97..100 => self.refuse_all(),
            _ => self.silence(slot),
        }
    }

    fn crash(&mut self, slot: usize) {
        if !self.nodes[slot].alive {
            return;
        }
        self.note(Some(slot), None, || "crash".into());
        self.saw(Seen::Crash);
        let node = &self.nodes[slot];
        if node
            .live
            .iter()
            .any(|caller| node.callers[*caller].state == State::Holding)
        {
            self.saw(Seen::CrashHolding);
        }
        self.die(slot);
    }

    /// The process is gone, which is unrest until the server has learnt of it.
    pub(crate) fn die(&mut self, slot: usize) {
        let notice = self.kill(slot);
        self.unrest(self.now + notice);
    }

    /// The process is gone. What it wrote may still arrive; the server learns of it at once or after what is answered.
    pub(crate) fn kill(&mut self, slot: usize) -> u64 {
        let node = &mut self.nodes[slot];
        node.alive = false;
        node.paused = None;
        node.backlog = Default::default();
        node.live.clear();
        node.requests.clear();
        node.unsent.clear();
        node.probes.clear();
        let (life, sub) = (node.life, node.inbox.sub);
        for (_, conn) in std::mem::take(&mut node.conns) {
            self.conns[conn].client = false;
            self.conns[conn].server &= self.rng.bool();
        }
        let notice = if self.rng.bool() {
            0
        } else {
            self.rng.u64(0..3_000 * MS)
        };
        if let Some(sub) = sub {
            self.after(notice, Event::Unsubscribed { slot, life, sub });
        }
        let rise = self.rng.u64(0..1_500 * MS);
        self.after(rise, Event::Rise { slot });
        notice
    }

    pub(crate) fn rise(&mut self, slot: usize) {
        if self.nodes[slot].alive || self.draining {
            return;
        }
        let life = self.nodes[slot].life + 1;
        self.note(Some(slot), None, || format!("starts, life {life}"));
        self.nodes[slot] = self.born(slot, life);
        self.tell_session(slot, SessionInput::InboxWanted);
    }

    fn pause(&mut self, slot: usize) {
        if !self.nodes[slot].alive || self.nodes[slot].paused.is_some() {
            return;
        }
        let longest = self
            .profile
            .terms
            .iter()
            .map(|term| term.lease_ms)
            .max()
            .unwrap_or(0);
        let span = if self.rng.bool() {
            self.rng.u64(1..longest)
        } else {
            self.rng.u64(longest..2 * longest)
        };
        self.saw(if span < longest {
            Seen::PauseShort
        } else {
            Seen::PauseLong
        });
        let until = self.now + span * MS;
        self.note(Some(slot), None, || format!("stopped for {span} ms"));
        let life = self.nodes[slot].life;
        self.nodes[slot].paused = Some(until);
        self.nodes[slot].paused_at = self.now;
        self.inbox_lags(slot, until);
        self.at(until, Event::Resume { slot, life });
    }

    /// A stopped process goes on: its callers look first, then all that waited comes at once, each source in order.
    pub(crate) fn resume(&mut self, slot: usize) {
        if self.nodes[slot].paused.take().is_none() {
            return;
        }
        self.note(Some(slot), None, || "goes on".into());
        let node = &mut self.nodes[slot];
        let span = self.now - node.paused_at;
        let requests = node.requests.values_mut().map(|(since, _)| since);
        for since in requests.chain(node.probes.values_mut()) {
            *since += span;
        }
        for caller in self.nodes[slot].live.clone() {
            if self.nodes[slot].callers[caller].state == State::Holding && self.chance(70) {
                let held = self.look(slot, caller);
                self.saw(if held { Seen::WokeHeld } else { Seen::WokeLost });
            }
        }
        let backlog = std::mem::take(&mut self.nodes[slot].backlog);
        for source in backlog {
            let mut at = self.now;
            for event in source {
                at += self.rng.u64(0..50_000);
                self.at(at, event);
            }
        }
    }

    fn closing(&mut self, slot: usize) {
        let node = &mut self.nodes[slot];
        if !node.alive || node.paused.is_some() {
            return;
        }
        if node.closing {
            // It has told the store what it could, and ends.
            return self.die(slot);
        }
        node.closing = true;
        self.saw(Seen::Close);
        self.close(slot);
        let node = &self.nodes[slot];
        let unheard = node.live.iter().find(|c| match node.callers[**c].state {
            State::Waiting => true,
            State::Holding => !node.callers[**c].dark,
            _ => false,
        });
        if let Some(caller) = unheard.copied() {
            let key = node.callers[caller].key;
            self.wrong(Wrong::Outcome, Some(key), || {
                format!("ticket {} was not told of the closing", caller + 1)
            });
        }
    }

    fn cut_off(&mut self, slot: usize) {
        self.saw(Seen::Partition);
        let until = self.now + self.rng.u64(10 * MS..3_000 * MS);
        self.note(Some(slot), None, || format!("cut off until {} ms", until / MS));
        self.inbox_lags(slot, until);
        self.nodes[slot].cut_until = until;
        if let Some(conn) = self.open_conn(slot) {
            self.conns[conn].stall = until;
        }
    }

    /// When a node is back at `until`, its pushes may take longer to come than its answers: each connection recovers
    /// on its own. An old push after a young answer is what most mistakes of the protocol are found by.
    fn inbox_lags(&mut self, slot: usize, until: u64) {
        let lag = if self.rng.bool() {
            self.rng.u64(0..300 * MS)
        } else {
            0
        };
        self.unrest(until + lag);
        if lag > 0 {
            self.nodes[slot].inbox.held_until = until + lag;
        }
    }

    fn stall(&mut self, slot: usize) {
        let Some(conn) = self.open_conn(slot) else {
            return;
        };
        self.saw(Seen::Stall);
        let until = self.now + self.rng.u64(10 * MS..4_000 * MS);
        self.note(Some(slot), None, || {
            format!("connection {conn} stands still until {} ms", until / MS)
        });
        self.unrest(until);
        self.conns[conn].stall = until;
    }

    /// A connection ends. With `mute`, what it carried was executed and the answers are lost.
    fn reset(&mut self, slot: usize, mute: bool) {
        let Some(conn) = self.open_conn(slot) else {
            return;
        };
        self.saw(Seen::Reset);
        self.note(Some(slot), None, || format!("connection {conn} breaks"));
        self.conns[conn].mute = true;
        self.conns[conn].server &= mute || self.rng.bool();
        let notice = self.rng.u64(0..if mute { 600 * MS } else { 5 * MS });
        self.unrest(self.now + notice);
        self.after(notice, Event::ResetSeen { conn });
    }

    fn hold_inbox(&mut self, slot: usize) {
        self.saw(Seen::PushHeld);
        let until = self.now + self.rng.u64(10 * MS..4_000 * MS);
        self.unrest(until);
        self.nodes[slot].inbox.held_until = until;
    }

    /// The subscription breaks: at the server at once or unknown to it, and the node finds out some time later.
    fn cut_inbox(&mut self, slot: usize) {
        let (life, Some(sub)) = (self.nodes[slot].life, self.nodes[slot].inbox.sub) else {
            return;
        };
        if !self.nodes[slot].alive {
            return;
        }
        if let Some((_, _, whole)) = self.server.listening.get_mut(&slot) {
            *whole = false;
        }
        if self.rng.bool() {
            self.unsubscribed(slot, life, sub);
        }
        if self.chance(30) {
            // Nobody is told: it has to be asked.
            return self.saw(Seen::InboxSilent);
        }
        let notice = self.rng.u64(0..2_000 * MS);
        self.unrest(self.now + notice);
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

    /// A firewall forgets a connection: nothing comes through, and nobody is told.
    fn silence(&mut self, slot: usize) {
        let Some(conn) = self.open_conn(slot) else {
            return;
        };
        self.saw(Seen::Silent);
        self.note(Some(slot), None, || format!("connection {conn} falls silent"));
        self.conns[conn].silent = Some(self.now);
    }

    /// The server refuses everything for a while: it loads its data, became a replica, or changed its password. Or it
    /// forgets the scripts.
    fn refuse_all(&mut self) {
        let until = self.now + self.rng.u64(0..1_500 * MS);
        match self.rng.u8(0..8) {
            0 => self.server.loading = until,
            1 => self.server.read_only = until,
            2 => {
                self.server.locked = until;
                self.saw(Seen::Locked);
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
        self.unrest(until);
    }

    fn stall_server(&mut self) {
        self.saw(Seen::ServerStall);
        self.server.stall = self.now + self.rng.u64(10 * MS..2_000 * MS);
        self.note(None, None, || "server stands still".into());
        self.unrest(self.server.stall);
    }

    /// All connections end and come back. Empty: nothing granted before is promised any more.
    fn restart(&mut self, empty: bool) {
        self.note(None, None, || format!("server restarts, empty: {empty}"));
        if empty {
            self.saw(Seen::ServerForgot);
            self.taint_all();
            self.watch_number(true);
            self.server.ledger.forget();
            self.ticks_forgotten();
            // By the time, so that no other choice of the world is another for it.
            if (self.now / MS).is_multiple_of(2) {
                self.restore_jobs();
            }
        } else {
            self.saw(Seen::ServerRestart);
        }
        self.server.listening = HashMap::new();
        self.server.knows_scripts = false;
        for slot in 0..self.nodes.len() {
            let (id, life) = (self.nodes[slot].id, self.nodes[slot].life);
            self.listens(id, false);
            for (_, conn) in self.nodes[slot].conns.clone() {
                self.conns[conn].server = false;
                let notice = self.rng.u64(0..20 * MS);
                self.after(notice, Event::ResetSeen { conn });
            }
            if let Some(sub) = self.nodes[slot].inbox.sub {
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
        for conn in &mut self.conns {
            conn.server = false;
        }
        // Nobody is let in for a while; then it is up.
        self.server.down = true;
        let up = self.now + self.rng.u64(MS..400 * MS);
        self.unrest(up + 200 * MS);
        self.at(up, Event::ServerUp);
    }

    fn step_clock(&mut self) {
        let kind = self.rng.u8(0..5);
        let step_ms = match kind {
            0 if self.profile.wild_clock => {
                self.saw(Seen::ClockForward);
                self.taint_all();
                self.rng.i64(300..5_000)
            }
            1 if self.profile.wild_clock => {
                self.saw(Seen::ClockBack);
                self.watch_number(false);
                -self.rng.i64(300..3_000)
            }
            // Within the margin, and not so often that steps add up beyond it in one lease.
            _ if self.now > self.watch.stepped + 4_000 * MS => {
                self.saw(Seen::ClockSmall);
                self.watch.stepped = self.now;
                self.rng.i64(0..150)
            }
            _ => return,
        };
        self.note(None, None, || format!("server's clock steps by {step_ms} ms"));
        self.server.offset += step_ms * 1000;
        let lasting = step_ms.unsigned_abs() * MS;
        self.unrest(self.now + lasting);
    }

    /// Somebody who does not keep to the protocol.
    fn stranger(&mut self) {
        let key = self.rng.usize(0..self.keys.len());
        let kind = self.rng.u8(0..9);
        self.taint(key);
        let lasts = self.server_us() / 1000 + self.rng.u64(10..2_000);
        let (seen, record) = match kind {
            0..4 => (Seen::ForeignDelete, None),
            4..7 => (
                Seen::ForeignTake,
                Some(Record {
                    owner: RecordOwner::Foreign,
                    expires: Some(lasts),
                }),
            ),
            _ => (
                Seen::ForeignType,
                Some(Record {
                    owner: RecordOwner::WrongType,
                    expires: Some(lasts),
                }),
            ),
        };
        self.saw(seen);
        self.note(None, Some(key), || format!("stranger: {record:?}"));
        self.unrest(self.now + 2_000 * MS);
        self.server.ledger.overwrite(&self.keys[key], record);
        self.watch.handed_on[key] = None;
    }

    /// All faults end.
    pub(crate) fn heal(&mut self) {
        self.note(None, None, || "all faults end".into());
        self.unrest(self.now);
        self.server.stall = self.now;
        let server = &mut self.server;
        (server.refuses, server.loading) = (self.now, self.now);
        (server.read_only, server.locked, server.kills) = (self.now, self.now, self.now);
        self.server.down = false;
        for slot in 0..self.nodes.len() {
            self.nodes[slot].cut_until = self.now;
            self.nodes[slot].inbox.held_until = self.now;
            if self.nodes[slot].closing && self.nodes[slot].alive {
                self.die(slot);
            }
            self.resume(slot);
            self.rise(slot);
        }
        for conn in &mut self.conns {
            conn.stall = conn.stall.min(self.now);
        }
    }

    /// No caller comes any more; all must come to an end.
    pub(crate) fn drain(&mut self) {
        self.heal();
        self.draining = true;
        for key in 0..self.keys.len() {
            let us = self.server_us();
            let strange = self
                .server
                .ledger
                .record(&self.keys[key], us)
                .is_some_and(|record| !matches!(record.owner, RecordOwner::Claim(..)));
            if strange {
                self.server.ledger.overwrite(&self.keys[key], None);
            }
        }
        self.note(None, None, || "drain".into());
        self.stop_observing();
        if !self.profile.crowd {
            return;
        }
        for slot in 0..self.nodes.len() {
            for caller in self.nodes[slot].live.clone() {
                self.act(slot, caller, Act::GiveUp);
            }
        }
    }
}
