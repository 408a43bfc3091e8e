//! What callers have written under their leases: each write is one message, sent once, and done by the server if the ledger
//! says that all its leases are current.
//!
//! Only in some worlds, and with random numbers of their own: in all others the same seed is the same world as without them.

use std::sync::Arc;
use std::time::Duration;

use tenure::protocol::message::{BatchReply, Fence, Mode, Reply, WriteAnswer};
use tenure::protocol::session::step::{Attempt, BatchId};
use tenure::protocol::step::{AcquireError, Input, OutgoingAction, Ticket};
use tenure::protocol::write::{Action, GuardedWrite, Precondition, WriteBody};

use crate::Wrong;
use crate::callers::{Act, Caller, Fetches, State};
use crate::coverage::Seen;
use crate::world::{Event, World};

/// The holder of one of the leases of a write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer {
    key: usize,
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
        let (mut writers, mut leases, mut shortest) = (Vec::new(), Vec::new(), Duration::MAX);
        for caller in callers {
            let Some((writer, precondition, lease)) = self.begin_write_of(slot, caller) else {
                for (writer, lease) in writers.iter().zip(leases) {
                    let Writer { key, .. } = *writer;
                    self.feed(slot, key, Input::WriteEnded(lease, false));
                }
                return self.saw(Seen::WriteTooLate);
            };
            writers.push(writer);
            leases.push(precondition);
            shortest = shortest.min(lease);
        }
        let (Writer { key, .. }, want) = (writers[0], self.nodes[slot].callers[caller].want);
        let (ticket, caller) = self.new_caller(slot, key, want, Fetches::Never);
        self.nodes[slot].callers[caller].state = State::Writing;
        self.note(Some(slot), Some(key), || {
            format!("ticket {} writes as {writers:?}", ticket.0)
        });
        // What is written is its own number.
        let write = GuardedWrite {
            leases: leases.into(),
            body: WriteBody::Script {
                text: self.written.len().to_string(),
                keys: Vec::new(),
                args: Vec::new(),
            },
        };
        self.written.push(writers);
        let act = Input::Act(ticket, shortest, Action::Write(Arc::new(write)));
        self.feed(slot, key, act);
    }

    /// What the write of one holder is checked against, and the length of the lease.
    fn begin_write_of(&mut self, slot: usize, caller: usize) -> Option<(Writer, Precondition, Duration)> {
        let key = self.nodes[slot].callers[caller].key;
        let (local, ticket) = (self.local(slot), Ticket(caller as u64 + 1));
        let (node, name) = (&mut self.nodes[slot], &self.keys[key]);
        let (precondition, lease) = node.shard.begin_write(local, name, ticket)?;
        let fence = node.shard.holding(local, name, ticket)?.fence;
        Some((Writer { key, fence }, precondition, lease))
    }

    /// Leaves an action with the session, which the driver steps soon.
    pub(crate) fn queue_action(&mut self, slot: usize, action: OutgoingAction) {
        let (key, tag) = (self.index(&action.name), action.tag);
        self.note(Some(slot), Some(key), || format!("   -> action {tag:?}"));
        let now = self.now;
        let node = &mut self.nodes[slot];
        node.requests.insert((tag.claim, tag.seq), (now, key));
        node.session.queue_action(action);
        self.step_soon(slot);
    }

    /// The session sends it.
    pub(crate) fn send_action(&mut self, slot: usize, attempt: Attempt, id: BatchId, action: Action) {
        let Action::Write(write) = action else { return };
        self.note(Some(slot), None, || {
            format!("   sends a write as {id:?} on {attempt:?}")
        });
        let Some(conn) = self.usable_conn(slot, attempt) else {
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
        self.at(arrives, Event::Write { conn, id, write });
    }

    /// At the server, where it may arrive when its sender has long given it up.
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
        let writers = self.written[text.parse::<usize>().expect("its number")].clone();
        let refused = self.server.ledger.not_current(self.server_us(), &write.leases);
        self.note(None, Some(writers[0].key), || {
            format!("server: {id:?} of {writers:?}: not current {refused:?}")
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
        if writers.len() > 1 {
            self.saw(if is_current {
                Seen::WriteOfSeveralDone
            } else {
                Seen::WriteOfSeveralRefused
            });
        }
        if is_current {
            let writers = writers.into_iter().zip(&*write.leases);
            writers.for_each(|(writer, lease)| self.watch_write(writer, lease.mode));
        }
        if self.conns[conn].client && !self.conns[conn].mute {
            let (low, high) = self.profile.delay;
            let back = (self.now + self.of_writes.u64(low..=high)).max(self.conns[conn].down);
            self.conns[conn].down = back;
            let answer = if is_current {
                WriteAnswer::Done(Box::default())
            } else {
                WriteAnswer::NotCurrent(refused)
            };
            let reply = Box::new(Ok(BatchReply {
                time: 0,
                replies: vec![Reply::Written(answer)],
            }));
            self.at(back, Event::Reply { conn, id, reply });
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

    /// A caller is told that its write was not done, or that the outcome is unknown.
    pub(crate) fn write_denied(&mut self, denial: &AcquireError) {
        self.saw(match denial {
            AcquireError::Unanswered(_) => Seen::WriteUnanswered,
            _ => Seen::WriteNotSent,
        });
    }
}
