//! What callers have written under their leases: each write is one message, sent once, and done by the server if the ledger
//! says that all its leases are current.
//!
//! Only in some worlds, and with random numbers of their own: in all others the same seed is the same world as without them.

use std::time::Duration;

use tenure::protocol::message::{BatchReply, Fence, Mode, Unanswered};
use tenure::protocol::session::step::{Attempt, BatchId, SessionInput};
use tenure::protocol::step::{Input, Ticket};
use tenure::protocol::write::{Precondition, WriteId};

use crate::Wrong;
use crate::callers::{Act, Caller, State};
use crate::coverage::Seen;
use crate::network::Conn;
use crate::world::{Event, World};

/// A write whose answer has not arrived.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    holders: Vec<Writer>,
    leases: Vec<Precondition>,
}

/// The holder of one of its leases.
#[derive(Debug, Clone, Copy)]
struct Writer {
    key: usize,
    ticket: Ticket,
    fence: Fence,
}

impl World {
    /// Somebody holds for so long, and has a few things written.
    pub(crate) fn plan_writes(&mut self, slot: usize, caller: usize, hold: u64) {
        if !self.profile.writes {
            return;
        }
        let life = self.nodes[slot].life;
        for _ in 0..self.of_writes.usize(0..3) {
            // Some just before it is given back.
            let pause = if self.of_writes.bool() {
                hold.saturating_sub(1_000)
            } else {
                self.of_writes.u64(0..=hold)
            };
            let act = Act::Write;
            self.after(
                pause,
                Event::Caller {
                    slot,
                    life,
                    caller,
                    act,
                },
            );
        }
    }

    /// A caller has something written, if it holds; half of the time under a lease of another caller of its node, too.
    pub(crate) fn begin_write(&mut self, slot: usize, caller: usize) {
        let mut callers = vec![caller];
        if self.of_writes.bool() {
            let node = &self.nodes[slot];
            let key = node.callers[caller].key;
            let is_other = |other: &&usize| {
                let Caller { key: of, state, .. } = node.callers[**other];
                of != key && state == State::Holding
            };
            // In front: the lease of the caller that writes has to be looked at, too.
            callers.splice(..0, node.live.iter().copied().find(|other| is_other(&other)));
        }
        let (mut holders, mut leases, mut shortest) = (Vec::new(), Vec::new(), Duration::MAX);
        for caller in callers {
            let Some((writer, precondition, lease)) = self.begin_write_of(slot, caller) else {
                self.end_write_of(slot, &holders);
                return self.saw(Seen::WriteTooLate);
            };
            holders.push(writer);
            leases.push(precondition);
            shortest = shortest.min(lease);
        }
        let node = &mut self.nodes[slot];
        node.written += 1;
        let id = WriteId(node.written);
        for Writer { key, ticket, fence } in &holders {
            self.note(Some(slot), Some(*key), || {
                format!("ticket {} writes: {id:?}, {fence}", ticket.0)
            });
        }
        let content = Write { holders, leases };
        self.nodes[slot].writes.insert(id, content);
        self.tell_session(slot, SessionInput::Write(id, shortest));
        // As the driver is woken.
        self.step_soon(slot);
    }

    /// What the write of one holder is checked against, and the length of the lease.
    fn begin_write_of(&mut self, slot: usize, caller: usize) -> Option<(Writer, Precondition, Duration)> {
        let key = self.nodes[slot].callers[caller].key;
        let (local, ticket) = (self.local(slot), Ticket(caller as u64 + 1));
        let (node, name) = (&mut self.nodes[slot], &self.keys[key]);
        let (precondition, lease) = node.shard.begin_write(local, name, ticket)?;
        let fence = node.shard.holding(local, name, ticket)?.fence;
        Some((Writer { key, ticket, fence }, precondition, lease))
    }

    /// The session sends it.
    pub(crate) fn send_write(&mut self, slot: usize, attempt: Attempt, id: BatchId, write: WriteId) {
        self.note(Some(slot), None, || {
            format!("   sends {write:?} as {id:?} on {attempt:?}")
        });
        let conn = self.usable_conn(slot, attempt);
        let (Some(conn), Some(content)) = (conn, self.nodes[slot].writes.get(&write).cloned()) else {
            return;
        };
        self.conns[conn].flights.push_back((id, false));
        if self.conns[conn].broken {
            let failed = Err(self.interrupted());
            let reply = Box::new(failed);
            return self.after(1_000, Event::Reply { conn, id, reply });
        }
        let (low, high) = self.profile.delay;
        let arrives = (self.now + self.of_writes.u64(low..=high)).max(self.conns[conn].up);
        self.conns[conn].up = arrives;
        let content = Box::new(content);
        self.at(
            arrives,
            Event::Write {
                conn,
                id,
                write,
                content,
            },
        );
    }

    /// At the server, where it may arrive when its sender has long given it up.
    pub(crate) fn write_arrives(&mut self, conn: usize, id: BatchId, write: WriteId, content: Box<Write>) {
        if self.server.down || !self.conns[conn].server || self.conns[conn].silent.is_some() {
            return;
        }
        let held = self.server.stall.max(self.conns[conn].stall);
        if held > self.now {
            return self.at(
                held,
                Event::Write {
                    conn,
                    id,
                    write,
                    content,
                },
            );
        }
        let flights = &mut self.conns[conn].flights;
        for (_, executed) in flights.iter_mut().filter(|(of, _)| *of == id) {
            *executed = true;
        }
        let refused = self.server.ledger.not_current(self.server_us(), &content.leases);
        self.note(None, Some(content.holders[0].key), || {
            format!(
                "server: {write:?} of {:?}: not current {refused:?}",
                content.holders
            )
        });
        let is_current = refused.is_empty();
        self.log.mix(u64::from(is_current));
        if !self.conns[conn].client {
            self.saw(Seen::WriteLate);
        }
        self.saw(if is_current {
            Seen::WriteDone
        } else {
            Seen::WriteRefused
        });
        if content.leases.len() > 1 {
            self.saw(if is_current {
                Seen::WriteOfSeveralDone
            } else {
                Seen::WriteOfSeveralRefused
            });
        }
        if is_current {
            let writers = content.holders.iter().zip(&content.leases);
            writers.for_each(|(writer, lease)| self.watch_write(*writer, lease.mode));
        }
        if self.conns[conn].client && !self.conns[conn].mute {
            let (low, high) = self.profile.delay;
            let back = (self.now + self.of_writes.u64(low..=high)).max(self.conns[conn].down);
            self.conns[conn].down = back;
            let wrote = Event::Wrote {
                conn,
                id,
                write,
                refused,
            };
            self.at(back, wrote);
        }
    }

    /// None is done when somebody else was granted what it was written under.
    fn watch_write(&mut self, write: Writer, mode: Mode) {
        // Readers go together.
        if mode != Mode::Exclusive || self.is_exempt(write.fence) {
            return;
        }
        if let Some(later) = self
            .watch
            .highest_fence(write.key)
            .filter(|later| *later > write.fence)
        {
            self.wrong(Wrong::WriteOrder, Some(write.key), || {
                format!(
                    "what was written under {} is done after {later} was granted",
                    write.fence
                )
            });
        }
    }

    /// Back at the node.
    pub(crate) fn wrote(&mut self, conn: usize, id: BatchId, write: WriteId, refused: Vec<usize>) {
        let Conn {
            slot,
            client,
            stall,
            silent,
            ..
        } = self.conns[conn];
        if !client || silent.is_some() {
            return;
        }
        if stall > self.now {
            let wrote = Event::Wrote {
                conn,
                id,
                write,
                refused,
            };
            return self.at(stall, wrote);
        }
        let flights = &mut self.conns[conn].flights;
        let Some(at) = flights.iter().position(|(waiting, _)| *waiting == id) else {
            return;
        };
        flights.remove(at);
        let content = self.nodes[slot].writes.get(&write).cloned();
        for (place, content) in refused.into_iter().zip(content.iter().cycle()) {
            let lease = &content.leases[place];
            let input = Input::Refuted(lease.holder, lease.number);
            self.feed(slot, content.holders[place].key, input);
        }
        self.end_write(slot, write);
        let reply = Ok(BatchReply {
            time: 0,
            replies: Vec::new(),
        });
        self.tell_session(slot, SessionInput::Replied { batch: id, reply });
    }

    /// The session gives it up, or never sent it.
    pub(crate) fn write_failed(&mut self, slot: usize, write: WriteId, why: Unanswered) {
        if !self.nodes[slot].writes.contains_key(&write) {
            return self.wrong(Wrong::Outcome, None, || {
                format!("{write:?} of node {slot} is told of twice")
            });
        }
        match why {
            Unanswered::No | Unanswered::Down => {
                self.saw(Seen::WriteNotSent);
                self.end_write(slot, write);
            }
            Unanswered::Unknown | Unanswered::Bystander => {
                self.saw(Seen::WriteUnanswered);
                self.nodes[slot].writes.remove(&write);
            }
        }
    }

    /// Nothing of it is under way any more. A late answer ends nothing.
    fn end_write(&mut self, slot: usize, write: WriteId) {
        if let Some(Write { holders, .. }) = self.nodes[slot].writes.remove(&write) {
            self.end_write_of(slot, &holders);
        }
    }

    fn end_write_of(&mut self, slot: usize, holders: &[Writer]) {
        let shard = &mut self.nodes[slot].shard;
        for Writer { key, ticket, .. } in holders {
            shard.end_write(&self.keys[*key], *ticket);
        }
    }
}
