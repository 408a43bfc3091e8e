//! Which server a node connects to, and what happens when its connection opens at a server that may have lost grants.

use tenure::error::StoreErrorKind;
use tenure::protocol::flaw::Flaw;
use tenure::protocol::message::{LinkRequest, RecoveryCause};
use tenure::protocol::sentinels::{NamedMaster, Reign};
use tenure::protocol::session::step::SessionInput;

use crate::coverage::Case;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::connection::error;
use crate::world::event::Event;
use crate::world::sentinels::SENTINELS;
use crate::world::signal::Signal;

/// How often a node asks the Sentinels while its connection is open, in ns.
const ASK_INTERVAL: u64 = 1_000 * MS;

impl World {
    /// Returns the server that a node now takes for the master, and the reign in which the Sentinels name it.
    pub(crate) fn locate_master(&mut self, slot: usize) -> (usize, Reign) {
        let Some(named) = self.ask_sentinels(slot) else {
            return (self.supposed_master(), Reign::Ignored);
        };
        self.nodes[slot].sentinels.known.note_link(named.address);
        (named.address, named.reign(self.setup.plant()))
    }

    /// Returns the server of a node's next subscription: where the node took the master to be.
    pub(crate) fn inbox_master(&mut self, slot: usize) -> usize {
        if self.sentinels.is_none() {
            return self.supposed_master();
        }
        let known = self.nodes[slot].sentinels.known.address().copied();
        known.unwrap_or(self.master)
    }

    /// Returns the server that a node takes for the master whose name moves from one server to the next.
    pub(crate) fn supposed_master(&mut self) -> usize {
        match self.old_master {
            Some((old, _)) if self.rng.bool() => old,
            _ => self.master,
        }
    }

    /// Asks the Sentinels. Returns `None` if there are none, or if none has ever answered.
    fn ask_sentinels(&mut self, slot: usize) -> Option<NamedMaster<usize>> {
        let at = (self.now, !self.in_fault_period());
        let sentinels = self.sentinels.as_mut()?;
        let seen = &mut self.nodes[slot].sentinels;
        let answers = sentinels.answers(at, seen);
        seen.known.decide(&answers, SENTINELS)
    }

    /// The server's first answer reaches the node, which asks the Sentinels again and then compares run and reign.
    pub(crate) fn greeted(&mut self, conn: usize) {
        let of = &self.conns[conn];
        let (slot, client, to) = (of.slot, of.client, of.to);
        if !client || of.silent.is_some() {
            return;
        }
        if self.sentinels.is_some() && !self.setup.plant().is(Flaw::SentinelsAskedBefore) {
            let named = self.ask_sentinels(slot);
            if named.as_ref().is_some_and(|named| named.address != to) {
                self.cover(Case::LinkElsewhere);
                return self.connect_failed(conn, error(StoreErrorKind::Unreachable));
            }
            let reign = named.map_or(Reign::Unconfirmed, |named| named.reign(self.setup.plant()));
            self.conns[conn].reign = reign;
        }
        if self.conns[conn].reign == Reign::Unconfirmed {
            self.cover(Case::LinkUnconfirmed);
        }
        let way = self.delay();
        self.after(way, Event::Link { conn });
    }

    /// The server compares what the node knows. A connection that was killed meanwhile is dead.
    pub(crate) fn link(&mut self, conn: usize) {
        if !self.conns[conn].server {
            return;
        }
        if self.server.stall > self.now {
            return self.at(self.server.stall, Event::Link { conn });
        }
        self.compare_run(conn);
        let (time, back) = (self.server_us(), self.delay());
        self.after(back, Event::Connected { conn, time });
    }

    /// Returns whether a server recovers after each restart and promotion.
    pub(crate) fn recovers(&self) -> bool {
        (self.profile.failover_lag.is_some() || self.is_quorum()) && !self.setup.no_recovery
    }

    /// Compares the run and the reign of the server with the recorded ones, as a client does when its connection opens.
    pub(crate) fn compare_run(&mut self, conn: usize) {
        if !self.recovers() {
            return;
        }
        let (slot, session, reign) = {
            let of = &self.conns[conn];
            (of.slot, of.session, of.reign)
        };
        let run = self.server.run();
        let link = LinkRequest {
            run: &run,
            epoch: reign.epoch(),
            number: self.nodes[slot].sessions[session].session.highest(),
            recovery_ms: self.profile.recovery().as_millis() as u64,
        };
        let now_us = self.server_us();
        let before = self.server.ledger.recovering(now_us);
        let reply = self.server.ledger.link(now_us, &link);
        self.conns[conn].link = reply;
        let begins = reply
            .recovering
            .filter(|(left, _)| before.is_none_or(|before| *left > before));
        if let Some((left, why)) = begins {
            let at = self.at;
            self.note(Some(slot), None, || {
                format!("server {at} recovers for {left} ms: {why:?}")
            });
            let reign = self.is_clock_ahead().then_some(self.promotions);
            let is_again =
                reign.is_some() && std::mem::replace(&mut self.server.recovered_after, reign) == reign;
            if at != self.master {
                // The clock of a former master may now be ahead of the master's.
                self.server_at_mut(self.master).recovered_after = None;
            }
            if is_again && why == RecoveryCause::Number {
                self.report(Violation::RecoveryRepeated, None, || {
                    format!("server {at} begins a recovery for a number of an earlier reign")
                });
            }
        }
    }

    /// Returns whether no wall clock is ahead of that of the master at hand. A recovery that begins now then sets its clock
    /// above every number of an earlier reign.
    fn is_clock_ahead(&self) -> bool {
        let offsets = (0..self.servers.len()).map(|server| self.server_at(server).offset);
        self.at == self.master && offsets.max() <= Some(self.server.offset)
    }

    /// Lets a node ask the Sentinels from time to time.
    pub(crate) fn watch_sentinels(&mut self, slot: usize) {
        let Some(sentinels) = &mut self.sentinels else {
            return;
        };
        let (life, pause) = (self.nodes[slot].life, sentinels.rng.u64(0..ASK_INTERVAL));
        self.after(pause, Event::SentinelsAsked { slot, life });
    }

    /// A node asks the Sentinels, and ends a connection to a former master or from an earlier reign.
    pub(crate) fn sentinels_asked(&mut self, slot: usize) {
        let life = self.nodes[slot].life;
        self.after(ASK_INTERVAL, Event::SentinelsAsked { slot, life });
        let Some(conn) = self.open_conn(slot) else { return };
        let Some(named) = self.ask_sentinels(slot) else {
            return;
        };
        let of = &self.conns[conn];
        if named.address != of.to || named.ends(of.reign, self.setup.plant()) {
            self.end_link(conn);
        }
    }

    /// A connection ends because its server is no longer the master, or because of another reign.
    pub(crate) fn end_link(&mut self, conn: usize) {
        self.cover(Case::LinkEnded);
        let of = &self.conns[conn];
        let (slot, session, attempt) = (of.slot, of.session, of.attempt);
        self.raise(Signal::Session {
            slot,
            session,
            input: SessionInput::ConnectionEnded(attempt),
        });
    }
}
