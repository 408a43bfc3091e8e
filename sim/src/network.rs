//! Connections: ordered pipes that delay, stall, lose answers, break, and fall silent.

use std::collections::VecDeque;

use tenure::error::{StoreError, StoreErrorKind, StoreRefusal};
use tenure::protocol::flaw::{Flaw, Plant};
use tenure::protocol::message::{Batch, BatchReply, Call, Executed, Failure, Request, Verb};
use tenure::protocol::session::step::{Attempt, BatchId, SessionInput};

use crate::Wrong;
use crate::coverage::Seen;
use crate::planted::Planted;
use crate::world::{Event, MS, World};

/// An ordered pipe, each way.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) slot: usize,
    pub(crate) life: u32,
    attempt: Attempt,
    /// The client reads it.
    pub(crate) client: bool,
    /// The session was told that it is open.
    pub(crate) opened: bool,
    /// The server reads it. It may do so when the client has long given it up.
    pub(crate) server: bool,
    /// Nothing moves until then.
    pub(crate) stall: u64,
    /// Answers get lost.
    pub(crate) mute: bool,
    /// Since when nothing gets through and nobody is told, as when a firewall forgets it.
    pub(crate) silent: Option<u64>,
    /// The client's end is broken, and whoever writes hears of it.
    pub(crate) broken: bool,
    pub(crate) up: u64,
    pub(crate) down: u64,
    /// Under way, and whether the server executed it.
    pub(crate) flights: VecDeque<(BatchId, bool)>,
}

pub(crate) fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "simulated")
}

impl World {
    /// The connection that a node's session uses, if one is open.
    pub(crate) fn open_conn(&self, slot: usize) -> Option<usize> {
        let conns = self.nodes[slot].conns.iter().rev();
        conns.map(|(_, conn)| *conn).find(|conn| self.conns[*conn].opened)
    }

    // Opening and closing.

    pub(crate) fn connect(&mut self, slot: usize, attempt: Attempt) {
        let (life, conn) = (self.nodes[slot].life, self.conns.len());
        self.note(Some(slot), None, || {
            format!("   connects: {attempt:?} is connection {conn}")
        });
        self.conns.push(Conn {
            slot,
            life,
            attempt,
            client: true,
            opened: false,
            server: false,
            stall: 0,
            mute: false,
            silent: None,
            broken: false,
            up: self.now,
            down: self.now,
            flights: VecDeque::new(),
        });
        self.nodes[slot].conns.push((attempt, conn));
        self.nodes[slot].opened += 1;
        if self.nodes[slot].closing {
            self.saw(Seen::ConnectClosing);
        }
        let way = self.delay();
        self.after(way, Event::Handshake { conn });
    }

    /// Whoever wants a connection knocks at the server.
    pub(crate) fn handshake(&mut self, conn: usize) {
        let Conn {
            slot, life, client, ..
        } = self.conns[conn];
        if !client || !self.is(slot, life) {
            return;
        }
        let lost = self.in_storm() && self.chance(4);
        let cut = self.nodes[slot].cut_until;
        if lost || cut > self.now && self.rng.bool() {
            self.conns[conn].silent = Some(self.now);
            return self.saw(Seen::ConnectSilent);
        }
        let held = cut.max(self.server.stall);
        if held > self.now {
            return self.at(held, Event::Handshake { conn });
        }
        let back = self.delay();
        let refusal = if self.server.loading > self.now {
            Some(StoreErrorKind::Refused(StoreRefusal::Loading))
        } else if self.server.read_only > self.now && self.rng.bool() {
            Some(StoreErrorKind::Refused(StoreRefusal::ReadOnly))
        } else if self.server.locked > self.now {
            let full = StoreRefusal::Other("ERR max number of clients reached".into());
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
        self.server.knows_scripts = true;
        // What the connection says of the time is old when it gets there.
        let time = self.server_us();
        self.after(back, Event::Connected { conn, time });
    }

    pub(crate) fn connected(&mut self, conn: usize, time: u64) {
        let Conn {
            slot,
            life,
            attempt,
            client,
            silent,
            ..
        } = self.conns[conn];
        if !client && self.is(slot, life) && self.chance(30) {
            // Its news was on its way when it was given up.
            self.saw(Seen::OpenedTooLate);
            return self.tell_session(slot, SessionInput::Connected { attempt, time });
        }
        if !client || silent.is_some() {
            return;
        }
        if self.server.kills > self.now {
            self.saw(Seen::Killed);
            self.conns[conn].server = false;
            let soon = self.rng.u64(0..5 * MS);
            self.after(soon, Event::ResetSeen { conn });
        }
        let cut = self.nodes[slot].cut_until;
        if cut > self.now {
            return self.at(cut, Event::Connected { conn, time });
        }
        self.conns[conn].opened = true;
        if self.nodes[slot].newest_conn.replace(attempt).is_some() {
            self.saw(Seen::Reconnect);
        }
        self.tell_session(slot, SessionInput::Connected { attempt, time });
    }

    pub(crate) fn connect_failed(&mut self, conn: usize, error: StoreError) {
        let Conn {
            slot,
            attempt,
            client,
            silent,
            ..
        } = self.conns[conn];
        if !client || silent.is_some() {
            return;
        }
        self.saw(Seen::ConnectFailed);
        self.gone(slot, conn);
        self.tell_session(slot, SessionInput::ConnectFailed { attempt, error });
    }

    /// The session closes a connection, or gives up opening it.
    pub(crate) fn close_conn(&mut self, slot: usize, attempt: Attempt) {
        let found = self.nodes[slot].conns.iter().find(|(of, _)| *of == attempt);
        let Some(&(_, conn)) = found else { return };
        self.note(Some(slot), None, || format!("   closes connection {conn}"));
        self.gone(slot, conn);
        // A closed socket may still deliver what was written to it.
        self.conns[conn].server &= self.rng.u8(..) < 180;
    }

    fn gone(&mut self, slot: usize, conn: usize) {
        self.conns[conn].client = false;
        self.nodes[slot].conns.retain(|(_, of)| *of != conn);
    }

    // From the node to the server.

    pub(crate) fn write(&mut self, slot: usize, attempt: Attempt, id: BatchId, batch: Batch) {
        self.note(Some(slot), None, || {
            format!(
                "   sends {id:?} of {} on {attempt:?}, not after {}",
                batch.requests.len(),
                batch.not_after
            )
        });
        let Some(conn) = self.usable_conn(slot, attempt) else {
            return;
        };
        for request in &batch.requests {
            self.sends(slot, request);
        }
        if batch.requests.is_empty() {
            self.saw(Seen::Ping);
        }
        if batch.requests.len() > 1 {
            self.saw(Seen::BatchOfMany);
        }
        self.conns[conn].flights.push_back((id, false));
        if self.conns[conn].flights.len() >= 16 {
            self.saw(Seen::ManyUnderWay);
        }
        if self.conns[conn].broken {
            let failed = Err(self.interrupted());
            return self.after(
                1_000,
                Event::Reply {
                    conn,
                    id,
                    reply: Box::new(failed),
                },
            );
        }
        let proclaims = |request: &Request| matches!(request.verb, Verb::Call(Call::Proclaim { .. }));
        // What comes late must find the same leader, which has proclaimed something else.
        let percent = if batch.requests.iter().any(proclaims) {
            20
        } else {
            2
        };
        if self.in_storm() && self.chance(percent) {
            self.write_again(conn, &batch);
        }
        self.push_through(conn, id, batch, false);
    }

    /// The connection on which a session sends.
    pub(crate) fn usable_conn(&mut self, slot: usize, attempt: Attempt) -> Option<usize> {
        let found = self.nodes[slot].conns.iter().find(|(of, _)| *of == attempt);
        let found = found
            .map(|(_, conn)| *conn)
            .filter(|conn| self.conns[*conn].opened);
        if found.is_none() || self.nodes[slot].newest_conn != Some(attempt) {
            self.wrong(Wrong::Beside, None, || {
                format!("node {slot} sends on {attempt:?}, which is closed or has a successor")
            });
        }
        found
    }

    fn push_through(&mut self, conn: usize, id: BatchId, batch: Batch, reload: bool) {
        let arrives = (self.now + self.delay()).max(self.conns[conn].up);
        self.conns[conn].up = arrives;
        let batch = Box::new(batch);
        self.at(
            arrives,
            Event::Arrive {
                conn,
                id: Some(id),
                batch,
                reload,
            },
        );
    }

    /// Anything but a claim may be executed twice.
    fn write_again(&mut self, conn: usize, batch: &Batch) {
        let mut twin = batch.clone();
        twin.requests
            .retain(|request| !matches!(request.verb, Verb::Claim { .. }));
        if twin.requests.is_empty() {
            return;
        }
        self.saw(Seen::Duplicate);
        let yields = |verb| matches!(verb, Verb::Yield { .. } | Verb::Pass { .. });
        if twin.requests.iter().any(|request| yields(request.verb)) {
            self.saw(Seen::DuplicateYield);
        }
        let way = self.delay() + self.rng.u64(0..2_000 * MS);
        self.after(
            way,
            Event::Arrive {
                conn,
                id: None,
                batch: Box::new(twin),
                reload: true,
            },
        );
    }

    /// At the server.
    pub(crate) fn arrive(&mut self, conn: usize, id: Option<BatchId>, mut batch: Box<Batch>, reload: bool) {
        let is_dead = !self.conns[conn].server || self.conns[conn].silent.is_some();
        if self.server.down || is_dead && id.is_some() {
            return;
        }
        let held = self.server.stall.max(self.conns[conn].stall);
        if held > self.now {
            return self.at(
                held,
                Event::Arrive {
                    conn,
                    id,
                    batch,
                    reload,
                },
            );
        }
        if let Some(id) = id {
            if !reload && !self.server.knows_scripts {
                self.note(None, None, || format!("server: NOSCRIPT to {id:?}"));
                let back = self.way_back(conn);
                return self.at(back, Event::NoScript { conn, id, batch });
            }
            if let Some(refusal) = self.refusal_of_all(reload) {
                self.note(None, None, || format!("server: refuses {id:?}: {refusal:?}"));
                let failure = Failure {
                    executed: Executed::No,
                    error: StoreError::refused(refusal),
                };
                return self.answer(conn, id, Err(failure));
            }
            self.server.knows_scripts = true;
            if !self.conns[conn].client && !batch.requests.is_empty() {
                self.saw(Seen::LateExecution);
            }
        }
        for (_, executed) in self.conns[conn]
            .flights
            .iter_mut()
            .filter(|(of, _)| Some(*of) == id)
        {
            *executed = true;
        }
        self.watch.twin = id.is_none();
        let answer = self.execute(&mut batch);
        let (Some(id), true) = (id, self.conns[conn].client) else {
            return;
        };
        if self.conns[conn].mute {
            for request in &batch.requests {
                self.saw(match request.verb {
                    Verb::Claim { .. } => Seen::LostClaimAnswer,
                    Verb::Renew => Seen::LostRenewAnswer,
                    Verb::Leave => Seen::LostLeaveAnswer,
                    Verb::Finish { .. } => Seen::LostFinishAnswer,
                    Verb::Yield { .. } => Seen::LostYieldAnswer,
                    Verb::Pass { .. } => Seen::LostPassAnswer,
                    Verb::Call(_) => Seen::LostAnswerToQuestion,
                });
            }
            return;
        }
        self.answer(conn, id, Ok(answer));
    }

    /// Why the server executes nothing of a batch.
    fn refusal_of_all(&mut self, reload: bool) -> Option<StoreRefusal> {
        if reload && self.in_storm() && self.chance(20) {
            self.saw(Seen::ReloadInVain);
            self.server.knows_scripts = false;
            return Some(StoreRefusal::Other("NOSCRIPT No matching script".into()));
        }
        if self.server.loading > self.now {
            self.saw(Seen::Loading);
            return Some(StoreRefusal::Loading);
        }
        if self.server.read_only > self.now && self.rng.bool() {
            self.saw(Seen::ReadOnly);
            return Some(StoreRefusal::ReadOnly);
        }
        None
    }

    fn way_back(&mut self, conn: usize) -> u64 {
        let back = (self.now + self.delay()).max(self.conns[conn].down);
        self.conns[conn].down = back;
        back
    }

    fn answer(&mut self, conn: usize, id: BatchId, reply: Result<BatchReply, Failure>) {
        let back = self.way_back(conn);
        let reply = Box::new(reply);
        self.at(back, Event::Reply { conn, id, reply });
    }

    // Back at the node.

    pub(crate) fn reply(&mut self, conn: usize, id: BatchId, reply: Box<Result<BatchReply, Failure>>) {
        let Conn {
            slot,
            life,
            client,
            stall,
            silent,
            ..
        } = self.conns[conn];
        if !client {
            if self.is(slot, life) && self.chance(30) {
                self.saw(Seen::AnsweredTooLate);
                return self.tell_session(
                    slot,
                    SessionInput::Replied {
                        batch: id,
                        reply: *reply,
                    },
                );
            }
            return self.saw(Seen::AnswerDiscarded);
        }
        if silent.is_some() {
            return;
        }
        if stall > self.now {
            return self.at(stall, Event::Reply { conn, id, reply });
        }
        let flights = &mut self.conns[conn].flights;
        let Some(at) = flights.iter().position(|(waiting, _)| *waiting == id) else {
            return;
        };
        flights.remove(at);
        self.tell_session(
            slot,
            SessionInput::Replied {
                batch: id,
                reply: *reply,
            },
        );
    }

    /// The link itself loads the script and sends the batch again, which so overtakes nothing and is overtaken by
    /// whatever was sent meanwhile.
    pub(crate) fn no_script(&mut self, conn: usize, id: BatchId, mut batch: Box<Batch>) {
        let Conn {
            client,
            stall,
            silent,
            mute,
            ..
        } = self.conns[conn];
        if !client || silent.is_some() || mute || self.conns[conn].broken {
            return;
        }
        if stall > self.now {
            return self.at(stall, Event::NoScript { conn, id, batch });
        }
        self.saw(Seen::Reload);
        if Planted(self.setup.flaw).planted(Flaw::ReloadWithoutBound) {
            batch.not_after = u64::MAX;
        }
        if self.conns[conn].up > self.now {
            self.saw(Seen::ReloadOvertaken);
        }
        if self.in_storm() && self.chance(20) {
            let until = self.now + self.rng.u64(10 * MS..3_000 * MS);
            self.unrest(until);
            self.conns[conn].stall = until;
        }
        self.push_through(conn, id, *batch, true);
    }

    /// What a broken connection says of a batch. Some had not been written yet.
    pub(crate) fn interrupted(&mut self) -> Failure {
        let executed = if self.chance(30) {
            self.saw(Seen::NotWritten);
            Executed::No
        } else {
            Executed::Unknown
        };
        let error = error(StoreErrorKind::Interrupted);
        Failure { executed, error }
    }

    /// The client finds out that its connection is broken: when it waits for an answer or writes, not before.
    pub(crate) fn reset_seen(&mut self, conn: usize) {
        let Conn {
            slot, client, opened, ..
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
            self.tell_session(slot, SessionInput::Replied { batch: id, reply });
        }
    }
}
