//! The session of a node, and how its effects are carried out.

use tenure::protocol::flaw::Flaw;
use tenure::protocol::session::step::{InboxEffect, SessionEffect, SessionEvent, SessionInput};
use tenure::protocol::time::Instant;

use crate::coverage::Case;
use crate::time::MS;
use crate::violation::Violation;
use crate::world::World;
use crate::world::event::Event;
use crate::world::signal::Signal;

impl World {
    /// Gives an input to a node's session, and carries out the effects.
    pub(crate) fn tell_session(&mut self, slot: usize, session: usize, input: SessionInput) {
        self.note(Some(slot), None, || format!("<= session {session} {input:?}"));
        let local = self.local(slot);
        let mut effects = Vec::new();
        let of = &mut self.nodes[slot].sessions[session];
        of.at = local;
        of.session.handle(local, input, &mut effects);
        self.perform_all(slot, session, effects);
        if self.profile.lag == 0 {
            self.step_session(slot);
        } else {
            self.schedule_step(slot);
        }
    }

    /// Tells the session that has the inbox what another session of the node found out.
    fn tell_inbox(&mut self, slot: usize, input: SessionInput) {
        if !self.setup.plant().is(Flaw::InboxNotTold) && !self.is_quorum() {
            self.tell_session(slot, self.nodes[slot].inbox_session(), input);
        }
    }

    /// Opens the inbox of a node, as a node does whose callers may wait soon.
    pub(crate) fn want_inbox(&mut self, slot: usize) {
        // In a cluster every second process waits for its first waiter.
        if self.is_quorum() {
            return;
        }
        if !self.is_cluster() || (slot as u32 + self.nodes[slot].life).is_multiple_of(2) {
            self.tell_session(slot, self.nodes[slot].inbox_session(), SessionInput::InboxWanted);
        }
    }

    /// Asks the servers of a node for a sign of life.
    pub(crate) fn want_sign(&mut self, slot: usize) {
        for session in 0..self.cluster.servers.max(1) {
            self.tell_session(slot, session, SessionInput::SignWanted);
        }
    }

    /// Wakes the driver, which comes a little later.
    pub(crate) fn schedule_step(&mut self, slot: usize) {
        if self.nodes[slot].step_at.is_none() {
            let life = self.nodes[slot].life;
            let at = self.now + self.rng.u64(500..50_000.max(self.profile.lag));
            self.nodes[slot].step_at = Some(at);
            self.at(at, Event::Step { slot, life });
        }
    }

    /// Steps all sessions of a node.
    pub(crate) fn step_session(&mut self, slot: usize) {
        for session in 0..self.nodes[slot].sessions.len() {
            self.step_one(slot, session);
        }
        self.schedule_wake(slot);
    }

    /// Steps a session until it has no more effects.
    fn step_one(&mut self, slot: usize, session: usize) {
        let mut rounds = 0;
        loop {
            let local = self.clock_reading(slot, session);
            let mut effects = Vec::new();
            let of = &mut self.nodes[slot].sessions[session].session;
            of.step(local, &mut effects);
            if effects.is_empty() {
                break;
            }
            self.perform_all(slot, session, effects);
            rounds += 1;
            if rounds > 1000 {
                self.report(Violation::EndlessRequests, None, || {
                    format!("the session of node {slot} does not stop having effects")
                });
                break;
            }
        }
        let of = &self.nodes[slot].sessions[session];
        if of.session.next_due().is_some_and(|due| due <= of.at) {
            self.report(Violation::EndlessRequests, None, || {
                format!("a timer of node {slot}'s session fires without end")
            });
        }
    }

    /// Returns the driver's clock reading from before it locked the session. A caller may have come after the
    /// reading.
    pub(crate) fn clock_reading(&mut self, slot: usize, session: usize) -> Instant {
        let now = self.local(slot);
        let age = if self.profile.old_reading {
            self.reading_rng.u64(0..200_000)
        } else {
            0
        };
        let of = &mut self.nodes[slot].sessions[session];
        let reading = Instant::from_nanos(now.as_nanos().saturating_sub(age));
        of.at = reading.max(of.at);
        of.at
    }

    /// Carries out the effects of a session.
    pub(crate) fn perform_all(&mut self, slot: usize, session: usize, effects: Vec<SessionEffect>) {
        for effect in effects {
            self.perform(slot, session, effect);
        }
    }

    /// Carries out one effect of a session.
    pub(crate) fn perform(&mut self, slot: usize, session: usize, effect: SessionEffect) {
        match effect {
            SessionEffect::Connect(attempt) => self.connect(slot, session, attempt),
            SessionEffect::Close(attempt) => self.close_conn(slot, session, attempt),
            SessionEffect::Send {
                connection,
                id,
                batch,
            } => self.send_on((slot, session), connection, id, batch),
            SessionEffect::Act {
                connection,
                id,
                action,
                ..
            } => self.send_action((slot, session), connection, id, action),
            SessionEffect::Tell(name, input) => {
                let key = self.key_index(&name);
                self.raise(Signal::RequestReported {
                    slot,
                    key,
                    input: &input,
                });
                self.feed(slot, key, input);
            }
            SessionEffect::TellInbox(input) => self.tell_inbox(slot, input),
            SessionEffect::Reachable {
                is_elsewhere,
                former,
                clock,
            } => {
                self.nodes[slot].shard.note_former_master(former);
                if let Some(clock) = clock {
                    self.nodes[slot].shard.note_clock(session, clock);
                }
                self.reachable(slot, session, is_elsewhere);
            }
            SessionEffect::Inbox(InboxEffect::Open(attempt)) => self.subscribe(slot, attempt),
            SessionEffect::Inbox(InboxEffect::Ping(attempt)) => self.ping_inbox(slot, attempt),
            SessionEffect::Inbox(InboxEffect::Seek { inbox, connection }) => {
                self.seek_inbox((slot, session), inbox, connection);
            }
            SessionEffect::Inbox(InboxEffect::Close(attempt)) => self.close_inbox(slot, attempt),
            SessionEffect::InboxState(state) => self.inbox_state(slot, state),
            SessionEffect::Probed(probe, answer) => {
                self.cover(match answer {
                    Ok(()) => Case::ProbeAnswered,
                    Err(_) => Case::ProbeFailed,
                });
                if self.nodes[slot].probes.remove(&probe).is_none() {
                    self.report(Violation::WrongAnswer, None, || {
                        format!("{probe:?} is answered twice")
                    });
                }
            }
            SessionEffect::Event(event) => self.session_event(slot, session, event),
        }
    }

    /// Logs and counts an event of a session.
    pub(crate) fn session_event(&mut self, slot: usize, session: usize, event: SessionEvent) {
        self.note(Some(slot), None, || format!("   => session {session} {event:?}"));
        if let Some(seen) = Case::of_session(&event) {
            self.cover(seen);
        }
    }

    /// Schedules the next timer of a node. Timers fire late.
    pub(crate) fn schedule_wake(&mut self, slot: usize) {
        let node = &self.nodes[slot];
        let due = node
            .shard
            .next_due()
            .into_iter()
            .chain(node.sessions.iter().filter_map(|of| of.session.next_due()))
            .min();
        let Some(due) = due else { return };
        let due = node.clock.truth(due).max(self.now);
        if node.wake_at.is_none_or(|at| at > due + 2 * MS) {
            let life = node.life;
            let at = due + self.rng.u64(1_000..2 * MS);
            self.nodes[slot].wake_at = Some(at);
            self.at(at, Event::Wake { slot, life });
        }
    }
}
