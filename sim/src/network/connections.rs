//! Connections: ordered pipes that delay, stall, lose answers, break and fall silent.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure::error::{StoreError, StoreErrorKind, StoreRefusal};
use tenure::protocol::message::{Executed, Failure, LinkReply};
use tenure::protocol::sentinels::Reign;
use tenure::protocol::session::step::{Attempt, Opened, Place, SessionInput};

use crate::coverage::Case;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::cluster::Cluster;
use crate::world::connection::{Connection, error};
use crate::world::event::Event;
use crate::world::server::Server;
use crate::world::signal::Signal;

impl World {
    /// Starts to open a connection.
    pub(crate) fn connect(&mut self, slot: usize, session: usize, attempt: Attempt) {
        let (life, conn) = (self.nodes[slot].life, self.conns.len());
        self.note(Some(slot), None, || {
            format!("   connects: {attempt:?} is connection {conn}")
        });
        let (to, reign) = if self.has_several() {
            (session, Reign::Ignored)
        } else {
            self.locate_master(slot)
        };
        self.conns.push(Connection {
            slot,
            life,
            session,
            to,
            run: 0,
            reign,
            link: LinkReply::default(),
            stranger: false,
            killed: false,
            attempt,
            client: true,
            opened: false,
            server: false,
            stall: 0,
            seeks_until: 0,
            mute: false,
            silent: None,
            broken: false,
            up: self.now,
            down: self.now,
            flights: VecDeque::new(),
        });
        self.nodes[slot].sessions[session].conns.push((attempt, conn));
        self.nodes[slot].opened += 1;
        if self.nodes[slot].closing {
            self.cover(Case::ConnectClosing);
        }
        let way = self.delay();
        self.after(way, Event::Handshake { conn });
    }

    /// Asks the server for a connection.
    pub(crate) fn handshake(&mut self, conn: usize) {
        let Connection {
            slot, life, client, ..
        } = self.conns[conn];
        if !client || !self.is_alive(slot, life) {
            return;
        }
        let lost = self.in_fault_period() && self.chance(4);
        let of_link = self.server.cut_links.get(&slot).copied().unwrap_or(0);
        let cut = self.nodes[slot].cut_until.max(of_link);
        if lost || cut > self.now && self.rng.bool() {
            self.conns[conn].silent = Some(self.now);
            return self.cover(Case::ConnectSilent);
        }
        let held = cut.max(self.server.stall);
        if held > self.now {
            return self.at(Server::look_at(self.now, held), Event::Handshake { conn });
        }
        let back = self.delay();
        if self.server.stranger {
            self.conns[conn].stranger = true;
            self.conns[conn].server = true;
            let time = self.server_us();
            return self.after(back, Event::Connected { conn, time });
        }
        let refusal = if self.server.loading > self.now {
            Some(StoreErrorKind::Refused(StoreRefusal::Loading))
        } else if self.server.read_only > self.now && self.rng.bool() {
            Some(StoreErrorKind::Refused(StoreRefusal::ReadOnly))
        } else if self.server.locked > self.now {
            let full = StoreRefusal::Unready("ERR max number of clients reached".into());
            let refusal = [StoreRefusal::WrongPassword, full][self.rng.usize(0..2)].clone();
            Some(StoreErrorKind::Refused(refusal))
        } else {
            self.server.down.then_some(StoreErrorKind::Unreachable)
        };
        if let Some(kind) = refusal {
            let error = error(kind);
            return self.after(back, Event::ConnectFailed { conn, error });
        }
        self.conns[conn].server = true;
        self.conns[conn].run = self.server.run;
        self.server.knows_scripts = true;
        // Behind Sentinels, and where an address moves, the comparison is a step of its own.
        if self.profile.failover_lag.is_some() {
            return self.after(back, Event::Greeted { conn });
        }
        self.compare_run(conn);
        // The time in the answer is old when it arrives.
        let time = self.server_us();
        self.after(back, Event::Connected { conn, time });
    }

    /// Handles an opened connection at the node.
    pub(crate) fn connected(&mut self, conn: usize, time: u64) {
        let Connection {
            slot,
            life,
            session,
            attempt,
            client,
            silent,
            ..
        } = self.conns[conn];
        if !client && self.is_alive(slot, life) && self.chance(30) {
            // The news was in flight when the connection was given up.
            self.cover(Case::OpenedTooLate);
            return self.raise(Signal::Session {
                slot,
                session,
                input: SessionInput::Connected {
                    attempt,
                    opened: self.opened(conn, time),
                },
            });
        }
        if !client || silent.is_some() {
            return;
        }
        let kills = match self.has_several() {
            true => self.server_at(self.conns[conn].to).kills,
            false => self.server.kills,
        };
        if kills > self.now {
            self.cover(Case::Killed);
            self.conns[conn].server = false;
            let soon = self.rng.u64(0..5 * MS);
            self.after(soon, Event::ResetSeen { conn });
        }
        let cut = self.nodes[slot].cut_until;
        if cut > self.now {
            return self.at(cut, Event::Connected { conn, time });
        }
        if !self.is_confirmed(conn) {
            self.conns[conn].server = false;
            return self.connect_failed(conn, error(StoreErrorKind::Unreachable));
        }
        self.conns[conn].opened = true;
        // Assertions are sent now. Some are executed after the node has given them up.
        let has_moved = self.profile.failover_lag.is_some() && self.conns[conn].to > 0;
        if has_moved && self.in_fault_period() && self.chance(20) {
            let until = self.now + self.rng.u64(10 * MS..1_000 * MS);
            self.extend_fault(until);
            self.conns[conn].stall = until;
            if self.rng.bool() {
                self.after(20 * MS, Event::ResetSeen { conn });
            }
        }
        if self.nodes[slot].sessions[session]
            .newest_conn
            .replace(attempt)
            .is_some()
        {
            self.cover(Case::Reconnect);
        }
        self.raise(Signal::Session {
            slot,
            session,
            input: SessionInput::Connected {
                attempt,
                opened: self.opened(conn, time),
            },
        });
    }

    /// Returns what a node learns when its connection opens.
    fn opened(&self, conn: usize, time: u64) -> Opened {
        let Connection {
            to, run, reign, link, ..
        } = self.conns[conn];
        Opened {
            time,
            place: Place {
                address: self.address(to),
                run: run.to_string().into(),
                epoch: reign.epoch(),
                node_id: self.node_id(conn),
            },
            link,
            is_unconfirmed: reign == Reign::Unconfirmed,
        }
    }

    /// Returns the address of a server. Without Sentinels each master has the same.
    pub(crate) fn address(&self, server: usize) -> Arc<str> {
        match self.profile.failover_lag.is_some() && self.sentinels.is_none() {
            true => "the master".into(),
            false => server.to_string().into(),
        }
    }

    /// Returns the node id that a server of a cluster gives on a connection.
    fn node_id(&self, conn: usize) -> Arc<str> {
        let Connection { to, stranger, .. } = self.conns[conn];
        let member = match (self.is_cluster(), stranger) {
            (false, _) => None,
            (true, false) => Some(Cluster::member(to)),
            (true, true) => Some(Cluster::stranger(to)),
        };
        member.map(|member| member.node_id).unwrap_or_default()
    }

    /// Returns whether a connection leads to the server of the map. If it does not, the node reads the map.
    fn is_confirmed(&mut self, conn: usize) -> bool {
        if !self.is_cluster() {
            return true;
        }
        let (name, plant) = (self.node_id(conn), self.setup.plant());
        let Connection { slot, to, .. } = self.conns[conn];
        let map = &mut self.nodes[slot].map;
        let known = map.at(&Cluster::member(to).address);
        let is_confirmed = known.is_none_or(|known| map.confirm(known, &name, plant));
        if !is_confirmed {
            self.cover(Case::StrangerRefused);
            self.raise(Signal::StrangerMet { slot });
        }
        is_confirmed
    }

    /// Handles a refused connection at the node.
    pub(crate) fn connect_failed(&mut self, conn: usize, error: StoreError) {
        let Connection {
            slot,
            session,
            attempt,
            client,
            silent,
            ..
        } = self.conns[conn];
        if !client || silent.is_some() {
            return;
        }
        self.cover(Case::ConnectFailed);
        self.nodes[slot].sentinels.known.note_link_failed();
        self.forget_connection(slot, conn);
        self.raise(Signal::Session {
            slot,
            session,
            input: SessionInput::ConnectFailed { attempt, error },
        });
    }

    /// Closes a connection, or gives up opening it.
    pub(crate) fn close_conn(&mut self, slot: usize, session: usize, attempt: Attempt) {
        let found = self.nodes[slot].sessions[session]
            .conns
            .iter()
            .find(|(of, _)| *of == attempt);
        let Some(&(_, conn)) = found else { return };
        self.note(Some(slot), None, || format!("   closes connection {conn}"));
        let (now, inbox) = (self.now, &mut self.nodes[slot].inbox);
        if self.conns[conn].opened && inbox.open && !inbox.asked {
            inbox.doubtful_since = Some(now);
        }
        self.forget_connection(slot, conn);
        // A closed socket may still deliver what was written to it.
        self.conns[conn].server &= self.rng.u8(..) < 180;
    }

    /// Ends the client's part of a connection.
    pub(crate) fn forget_connection(&mut self, slot: usize, conn: usize) {
        self.conns[conn].client = false;
        let session = self.conns[conn].session;
        self.nodes[slot].sessions[session]
            .conns
            .retain(|(_, of)| *of != conn);
    }

    /// Returns the connection on which a session sends. It must be open and the newest.
    pub(crate) fn usable_conn(&mut self, slot: usize, session: usize, attempt: Attempt) -> Option<usize> {
        let of = &self.nodes[slot].sessions[session];
        let (newest, found) = (of.newest_conn, of.conns.iter().find(|(of, _)| *of == attempt));
        let found = found
            .map(|(_, conn)| *conn)
            .filter(|conn| self.conns[*conn].opened);
        if found.is_none() || newest != Some(attempt) {
            self.report(Violation::OldConnectionUsed, None, || {
                format!("node {slot} sends on {attempt:?}, which is closed or has a successor")
            });
        }
        found
    }

    /// Returns the failure of a batch on a broken connection. Some batches were not written.
    pub(crate) fn interrupted(&mut self) -> Failure {
        let executed = if self.chance(30) {
            self.cover(Case::NotWritten);
            Executed::No
        } else {
            Executed::Unknown
        };
        let error = error(StoreErrorKind::Interrupted);
        Failure { executed, error }
    }

    /// The client notices that its connection is broken: when it writes or waits for an answer, not before.
    pub(crate) fn reset_seen(&mut self, conn: usize) {
        let Connection {
            slot,
            session,
            client,
            opened,
            ..
        } = self.conns[conn];
        if !client {
            return;
        }
        self.conns[conn].broken = true;
        if !opened {
            return self.connect_failed(conn, error(StoreErrorKind::Unreachable));
        }
        for (id, executed) in std::mem::take(&mut self.conns[conn].flights) {
            let mut failure = self.interrupted();
            // What was executed, or may still be, was written.
            if executed || self.conns[conn].server {
                failure.executed = Executed::Unknown;
            }
            let reply = Err(failure);
            self.raise(Signal::Session {
                slot,
                session,
                input: SessionInput::Replied { batch: id, reply },
            });
        }
    }
}
