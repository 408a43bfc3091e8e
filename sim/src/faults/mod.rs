//! Faults: what goes wrong with processes, connections, the server, its clock, and through foreign clients.

mod cluster;
mod failover;
mod kills;
mod links;
mod operator;
mod sentinels;
mod server;

use tenure::protocol::ledger::RecordOwner;
use tenure::protocol::message::Kind;

use crate::coverage::Case;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::caller::{CallerAction, CallerState};
use crate::world::event::Event;

impl World {
    /// Causes one fault, and schedules the next.
    pub(crate) fn fault(&mut self) {
        if self.now >= self.profile.fault_period.1 {
            return self.end_faults();
        }
        let pause = self.rng.u64(0..2 * self.profile.fault_pause);
        self.after(pause, Event::Fault);
        if (self.now / MS).is_multiple_of(8) {
            self.copy_jobs();
        }
        let slot = self.rng.usize(0..self.nodes.len());
        self.extend_fault(self.now);
        self.log.mix(0xfa);
        match self.cluster.servers {
            0 => self.cause_fault(slot),
            servers => {
                let server = self.cluster.rng.usize(0..servers);
                self.visit(server, |world| world.cause_fault(slot));
            }
        }
    }

    /// Causes one fault, at a node or at the server at hand.
    fn cause_fault(&mut self, slot: usize) {
        match self.rng.u8(0..100) {
            _ if self.profile.pauses_often && self.rng.u8(0..4) > 0 => match self.rng.bool() {
                true => self.pause(slot),
                false => self.hold_inbox(slot),
            },
            _ if self.profile.failover_lag.is_some() && self.rng.u8(0..10) == 0 => self.fail_over(),
            _ if self.profile.forgets_often && !self.is_after_loss() && self.rng.u8(0..6) == 0 => {
                self.restart(true)
            }
            // Old requests meet the recovery.
            _ if self.is_after_loss() && self.rng.u8(0..4) == 0 => match self.rng.bool() {
                true => self.stall(slot),
                false => self.abandon(slot),
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
                self.extend_fault(self.server.refuses);
            }
            86..91 => self.step_clock(),
            91..97 if self.is_quorum() => match self.rng.bool() {
                true => self.copy_master(),
                false => self.cut_link(slot),
            },
            91..97 => self.foreign_client(),
            97..100 => self.refuse_all(),
            _ => self.silence(slot),
        }
    }

    /// Crashes a process.
    pub(crate) fn crash(&mut self, slot: usize) {
        if !self.nodes[slot].alive {
            return;
        }
        self.note(Some(slot), None, || "crash".into());
        self.cover(Case::Crash);
        let node = &self.nodes[slot];
        if node
            .live
            .iter()
            .any(|caller| node.callers[*caller].state == CallerState::Holding)
        {
            self.cover(Case::CrashHolding);
        }
        self.crash_process(slot);
    }

    /// Stops a process for a while, half of the time for longer than its leases.
    pub(crate) fn pause(&mut self, slot: usize) {
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
        self.cover(if span < longest {
            Case::PauseShort
        } else {
            Case::PauseLong
        });
        let until = self.now + span * MS;
        self.note(Some(slot), None, || format!("stopped for {span} ms"));
        let life = self.nodes[slot].life;
        self.nodes[slot].paused = Some(until);
        self.nodes[slot].paused_at = self.now;
        self.inbox_lags(slot, until);
        self.at(until, Event::Resume { slot, life });
    }

    /// Continues a stopped process. Its callers look first; then all held-back events come at once, in order
    /// within each source.
    pub(crate) fn resume(&mut self, slot: usize) {
        if self.nodes[slot].paused.take().is_none() {
            return;
        }
        self.note(Some(slot), None, || "continues".into());
        let node = &mut self.nodes[slot];
        let span = self.now - node.paused_at;
        let requests = node.requests.values_mut().map(|(since, _)| since);
        for since in requests.chain(node.probes.values_mut()) {
            *since += span;
        }
        for caller in self.nodes[slot].live.clone() {
            if self.nodes[slot].callers[caller].state == CallerState::Holding && self.chance(70) {
                let held = self.look(slot, caller);
                self.cover(if held { Case::WokeHeld } else { Case::WokeLost });
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

    /// Returns the callers of a node that run a tick.
    fn runs(&mut self, slot: usize) -> Vec<usize> {
        let node = &self.nodes[slot];
        let holding = node.live.iter().copied().filter(|caller| {
            let caller = &node.callers[*caller];
            caller.state == CallerState::Holding && self.keys[caller.key].kind == Kind::Job
        });
        let holding: Vec<_> = holding.collect();
        holding
            .into_iter()
            .filter(|caller| self.look(slot, *caller))
            .collect()
    }

    /// Closes a node. The second time its process ends.
    pub(crate) fn closing(&mut self, slot: usize) {
        let node = &mut self.nodes[slot];
        if !node.alive || node.paused.is_some() {
            return;
        }
        if node.closing {
            // The node told the store what it could, and ends.
            return self.crash_process(slot);
        }
        node.closing = true;
        self.cover(Case::Close);
        let runs = self.runs(slot);
        let runs_go_on = !runs.is_empty() && self.chance(50);
        self.close(slot, runs_go_on);
        if runs_go_on {
            self.cover(Case::CloseBesideRuns);
            if let Some(run) = runs.iter().find(|run| !self.look(slot, **run)) {
                let key = self.nodes[slot].callers[*run].key;
                self.report(Violation::WrongAnswer, Some(key), || {
                    format!("the run of ticket {} was given up by the closing", run + 1)
                });
            }
        }
        let node = &self.nodes[slot];
        let unheard = node.live.iter().find(|c| match node.callers[**c].state {
            CallerState::Waiting => true,
            CallerState::Holding => !(node.callers[**c].was_lost || runs_go_on && runs.contains(c)),
            _ => false,
        });
        if let Some(caller) = unheard.copied() {
            let key = node.callers[caller].key;
            self.report(Violation::WrongAnswer, Some(key), || {
                format!("ticket {} was not told of the closing", caller + 1)
            });
        }
    }

    /// Ends all faults.
    pub(crate) fn end_faults(&mut self) {
        self.note(None, None, || "all faults end".into());
        self.extend_fault(self.now);
        for server in 0..self.cluster.servers.max(1) {
            let (now, at) = (self.now, if self.has_several() { server } else { self.at });
            let server = self.server_at_mut(at);
            server.stall = now;
            (server.refuses, server.loading) = (now, now);
            (server.read_only, server.locked, server.kills) = (now, now, now);
            server.bus_cut = now;
            server.cut_links.clear();
            self.member_up(at);
        }
        for slot in 0..self.nodes.len() {
            self.nodes[slot].cut_until = self.now;
            self.nodes[slot].inbox.held_until = self.now;
            if self.nodes[slot].closing && self.nodes[slot].alive {
                self.crash_process(slot);
            }
            self.resume(slot);
            self.restart_process(slot);
        }
        for conn in &mut self.conns {
            conn.stall = conn.stall.min(self.now);
        }
    }

    /// Stops new callers. Everything must come to an end.
    pub(crate) fn drain(&mut self) {
        self.end_faults();
        self.draining = true;
        for key in 0..self.keys.len() {
            let (ledger, us) = self.ledger_of(key);
            let strange = ledger.record(&self.keys[key], us).is_some_and(|record| {
                !matches!(record.owner, RecordOwner::Claim(..) | RecordOwner::Revoked(..))
            });
            if strange {
                self.overwrite(key, None);
            }
        }
        self.end_moves();
        self.note(None, None, || "drain".into());
        self.stop_observing();
        if !self.profile.crowd {
            return;
        }
        for slot in 0..self.nodes.len() {
            for caller in self.nodes[slot].live.clone() {
                self.act(slot, caller, CallerAction::GiveUp);
            }
        }
    }
}
