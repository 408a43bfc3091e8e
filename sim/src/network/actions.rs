//! Actions, which a session sends once: writes under leases.

use std::sync::Arc;

use tenure::protocol::message::{BatchReply, CallAnswer, Redirect, WriteAnswer};
use tenure::protocol::redirects::SlotRefusal;
use tenure::protocol::session::step::{Attempt, BatchId};
use tenure::protocol::write::{Action, GuardedWrite, WriteBody};

use crate::coverage::Case;
use crate::network::cluster_link::elsewhere;
use crate::world::World;
use crate::world::event::Event;
use crate::world::signal::Signal;

impl World {
    /// Sends an action on a connection.
    pub(crate) fn send_action(
        &mut self,
        (slot, session): (usize, usize),
        attempt: Attempt,
        id: BatchId,
        action: Action,
    ) {
        let Action::Write(write) = action else { return };
        self.note(Some(slot), None, || {
            format!("   sends a write as {id:?} on {attempt:?}")
        });
        let Some(conn) = self.usable_conn(slot, session, attempt) else {
            return;
        };
        self.conns[conn].flights.push_back((id, false));
        if self.conns[conn].broken {
            let failed = Err(self.interrupted());
            let reply = Box::new(failed);
            return self.after(1_000, Event::Reply { conn, id, reply });
        }
        let (low, high) = self.profile.delay;
        let arrives = (self.now + self.write_rng.u64(low..=high)).max(self.conns[conn].up);
        self.conns[conn].up = arrives;
        self.at(arrives, Event::Write { conn, id, write });
    }

    /// Executes a write at the server. The sender may have given it up long before.
    pub(crate) fn write_arrives(&mut self, conn: usize, id: BatchId, write: Arc<GuardedWrite>) {
        if self.server.down || !self.conns[conn].server || self.conns[conn].silent.is_some() {
            return;
        }
        let held = self.server.stall.max(self.conns[conn].stall);
        if held > self.now {
            return self.at(held, Event::Write { conn, id, write });
        }
        let flights = &mut self.conns[conn].flights;
        for (_, executed) in flights.iter_mut().filter(|(of, _)| *of == id) {
            *executed = true;
        }
        let WriteBody::Script { text, .. } = &write.body else {
            return;
        };
        let writers = self.written[text.parse::<usize>().expect("the number of the write")].clone();
        if let Some(hash) = self.hash_slot(writers[0].key)
            && let Some((said, server)) = self.slot_refusal(hash)
        {
            self.cover(Case::RedirectedWrite);
            let is_moved = said == SlotRefusal::Moved;
            let redirect = if is_moved {
                Redirect::Moved
            } else {
                Redirect::Pending
            };
            if self.conns[conn].client && !self.conns[conn].mute {
                let back = self.way_back(conn);
                if is_moved {
                    self.at(back, Event::MovedSeen { conn, hash, server });
                }
                let reply = Box::new(Err(elsewhere(redirect)));
                self.at(back, Event::Reply { conn, id, reply });
            }
            return;
        }
        let (ledger, us) = match self.hash_slot(writers[0].key) {
            Some(hash) => (&self.cluster.slots[hash].ledger, self.server_us()),
            None => (&self.server.ledger, self.server_us()),
        };
        let refused = ledger.not_current(us, &write.leases);
        self.note(None, Some(writers[0].key), || {
            format!("server: {id:?} of {writers:?}: not current {refused:?}")
        });
        let is_current = refused.is_empty();
        self.log.mix(u64::from(is_current));
        if !self.conns[conn].client {
            self.cover(Case::WriteLate);
        }
        self.cover(if is_current {
            Case::WriteDone
        } else {
            Case::WriteRefused
        });
        if writers.len() > 1 {
            self.cover(if is_current {
                Case::WriteOfSeveralDone
            } else {
                Case::WriteOfSeveralRefused
            });
        }
        if is_current {
            let writers = writers.into_iter().zip(&*write.leases);
            for (writer, lease) in writers {
                let mode = lease.mode;
                self.raise(Signal::WriteExecuted { writer, mode });
            }
        }
        if self.conns[conn].client && !self.conns[conn].mute {
            let (low, high) = self.profile.delay;
            let back = (self.now + self.write_rng.u64(low..=high)).max(self.conns[conn].down);
            self.conns[conn].down = back;
            let answer = if is_current {
                WriteAnswer::Done(Box::default())
            } else {
                WriteAnswer::NotCurrent(refused)
            };
            let reply = Box::new(Ok(BatchReply {
                time: 0,
                replies: vec![CallAnswer::Written(answer).into()],
            }));
            self.at(back, Event::Reply { conn, id, reply });
        }
    }
}
