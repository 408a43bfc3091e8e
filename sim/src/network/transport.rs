//! The way of a batch: to the server, and back with its replies.

use tenure::error::{StoreError, StoreRefusal};
use tenure::protocol::flaw::Flaw;
use tenure::protocol::message::{Batch, BatchReply, Call, Executed, Failure, Request, Verb};
use tenure::protocol::session::step::{Attempt, BatchId, SessionInput};

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::connection::Connection;
use crate::world::event::Event;
use crate::world::signal::Signal;

impl World {
    /// Sends a batch on a connection.
    pub(crate) fn send_on(
        &mut self,
        (slot, session): (usize, usize),
        attempt: Attempt,
        id: BatchId,
        batch: Batch,
    ) {
        self.note(Some(slot), None, || {
            format!(
                "   sends {id:?} of {} on {attempt:?}, not after {}",
                batch.requests.len(),
                batch.not_after
            )
        });
        let Some(conn) = self.usable_conn(slot, session, attempt) else {
            return;
        };
        for request in &batch.requests {
            self.raise(Signal::RequestSent { slot, request });
        }
        if batch.requests.is_empty() {
            self.cover(Case::Ping);
        }
        if batch.requests.len() > 1 {
            self.cover(Case::BatchOfMany);
        }
        self.conns[conn].flights.push_back((id, false));
        if self.conns[conn].flights.len() >= 16 {
            self.cover(Case::ManyInFlight);
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
        // A late proclamation matters only if the same leader has proclaimed another value since.
        let percent = if batch.requests.iter().any(proclaims) {
            20
        } else {
            2
        };
        if self.in_fault_period() && self.chance(percent) {
            self.send_copy(conn, &batch);
        }
        self.send_batch(conn, id, batch, false);
    }

    /// Puts a batch into the pipe to the server.
    pub(crate) fn send_batch(&mut self, conn: usize, id: BatchId, batch: Batch, reload: bool) {
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

    /// Sends a copy of a batch. All requests but claims may be executed twice.
    pub(crate) fn send_copy(&mut self, conn: usize, batch: &Batch) {
        let mut twin = batch.clone();
        twin.requests.retain(|request| {
            !matches!(
                request.verb,
                Verb::Claim { .. } | Verb::Propose { .. } | Verb::Restore { .. }
            )
        });
        if twin.requests.is_empty() {
            return;
        }
        self.cover(Case::Duplicate);
        let yields = |verb| matches!(verb, Verb::Yield { .. } | Verb::Pass { .. });
        if twin.requests.iter().any(|request| yields(request.verb)) {
            self.cover(Case::DuplicateYield);
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

    /// Executes a batch at the server.
    pub(crate) fn arrive(&mut self, conn: usize, id: Option<BatchId>, mut batch: Box<Batch>, reload: bool) {
        let is_dead = !self.conns[conn].server || self.conns[conn].silent.is_some();
        if self.conns[conn].stranger && !is_dead {
            // Only for a planted mistake. A server of another cluster grants what it is asked for.
            let answer = self.execute(&mut batch);
            if let Some(id) = id {
                self.answer(conn, id, Ok(answer));
            }
            return;
        }
        if self.server.down || is_dead && (id.is_some() || self.conns[conn].killed) {
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
                self.cover(Case::LateExecution);
            }
        }
        for (_, executed) in self.conns[conn]
            .flights
            .iter_mut()
            .filter(|(of, _)| Some(*of) == id)
        {
            *executed = true;
        }
        self.memory.is_copy = id.is_none();
        if id.is_none() {
            self.remove_refused_passes(&mut batch);
        }
        let parts = self.is_cluster().then(|| self.execute_parts(&batch));
        let answer = match parts {
            Some(_) => None,
            None => Some(self.execute(&mut batch)),
        };
        let (Some(id), true) = (id, self.conns[conn].client) else {
            return;
        };
        if self.conns[conn].mute {
            for request in &batch.requests {
                self.cover(match request.verb {
                    Verb::Claim { .. } | Verb::Propose { .. } => Case::LostClaimAnswer,
                    Verb::Renew { .. } | Verb::Assert { .. } | Verb::Restore { .. } => Case::LostRenewAnswer,
                    Verb::Leave => Case::LostLeaveAnswer,
                    Verb::Finish { .. } => Case::LostFinishAnswer,
                    Verb::Yield { .. } => Case::LostYieldAnswer,
                    Verb::Pass { .. } => Case::LostPassAnswer,
                    Verb::Call(_) => Case::LostCallAnswer,
                });
            }
            return;
        }
        if let Some(parts) = parts {
            self.answer_parts(conn, id, *batch, parts);
        } else if let Some(answer) = answer {
            self.answer(conn, id, Ok(answer));
        }
    }

    /// Removes each pass from a copy that the server has refused or not executed yet. If all attempts of a pass
    /// are refused, the holder continues under its old number, because the store never executes such a pass.
    /// Nothing between a node and a server sends a refused request again.
    fn remove_refused_passes(&self, copy: &mut Batch) {
        copy.requests.retain(|request| {
            !matches!(request.verb, Verb::Pass { .. }) || self.memory.ended.contains(&request.claim_id)
        });
    }

    /// Returns why the server refuses a whole batch.
    pub(crate) fn refusal_of_all(&mut self, reload: bool) -> Option<StoreRefusal> {
        if reload && self.in_fault_period() && self.chance(20) {
            self.cover(Case::ReloadFailed);
            self.server.knows_scripts = false;
            return Some(StoreRefusal::Other("NOSCRIPT No matching script".into()));
        }
        if self.server.loading > self.now {
            self.cover(Case::Loading);
            return Some(StoreRefusal::Loading);
        }
        if self.server.read_only > self.now && self.rng.bool() {
            self.cover(Case::ReadOnly);
            return Some(StoreRefusal::ReadOnly);
        }
        None
    }

    /// Returns when an answer arrives that is sent now.
    pub(crate) fn way_back(&mut self, conn: usize) -> u64 {
        let back = (self.now + self.delay()).max(self.conns[conn].down);
        self.conns[conn].down = back;
        back
    }

    /// Puts an answer into the pipe to the node.
    pub(crate) fn answer(&mut self, conn: usize, id: BatchId, reply: Result<BatchReply, Failure>) {
        let back = self.way_back(conn);
        let reply = Box::new(reply);
        self.at(back, Event::Reply { conn, id, reply });
    }

    /// Delivers an answer to the node.
    pub(crate) fn reply(&mut self, conn: usize, id: BatchId, reply: Box<Result<BatchReply, Failure>>) {
        let Connection {
            slot,
            life,
            session,
            client,
            stall,
            silent,
            ..
        } = self.conns[conn];
        if !client {
            if self.is_alive(slot, life) && self.chance(30) {
                self.cover(Case::AnsweredTooLate);
                return self.raise(Signal::Session {
                    slot,
                    session,
                    input: SessionInput::Replied {
                        batch: id,
                        reply: *reply,
                    },
                });
            }
            return self.cover(Case::AnswerDiscarded);
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
        self.raise(Signal::Session {
            slot,
            session,
            input: SessionInput::Replied {
                batch: id,
                reply: *reply,
            },
        });
    }

    /// Loads the script and sends the batch again, as the link does. Batches that were sent meanwhile arrive
    /// before it.
    pub(crate) fn no_script(&mut self, conn: usize, id: BatchId, mut batch: Box<Batch>) {
        let Connection {
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
        self.cover(Case::Reload);
        if self.setup.plant().is(Flaw::ReloadWithoutBound) {
            batch.not_after = u64::MAX;
        }
        if self.conns[conn].up > self.now {
            self.cover(Case::ReloadOvertaken);
        }
        if self.in_fault_period() && self.chance(20) {
            let until = self.now + self.rng.u64(10 * MS..3_000 * MS);
            self.extend_fault(until);
            self.conns[conn].stall = until;
        }
        self.send_batch(conn, id, *batch, true);
    }
}
