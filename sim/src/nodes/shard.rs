//! The shard of a node, and how its effects are carried out.

use tenure::protocol::key::shard::Effects;
use tenure::protocol::message::Name;
use tenure::protocol::session::step::SessionInput;
use tenure::protocol::step::{Effect, InboxState, Input, Outgoing, OutgoingAction};

use crate::coverage::Case;
use crate::violation::Violation;
use crate::world::World;
use crate::world::signal::Signal;

impl World {
    /// Gives an input to a node's shard.
    pub(crate) fn feed(&mut self, slot: usize, key: usize, input: Input) {
        self.inputs += 1;
        self.log.mix((slot as u64) << 8 | key as u64);
        self.note(Some(slot), Some(key), || format!("<- {input:?}"));
        // Time alone may have ended a lease, and an answer must not revive it.
        if matches!(input, Input::Answered { .. } | Input::Pushed(_)) {
            self.raise(Signal::KeyChanged { key });
        }
        if let Input::Recalled(of) = input {
            self.memory.recalled.insert(of);
        }
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        let (shard, name) = (&mut self.nodes[slot].shard, &self.keys[key]);
        effects.extend_from_slice(&shard.handle(local, name, input));
        self.carry_out(slot, effects);
        self.raise(Signal::KeyChanged { key });
    }

    /// Fires the due timers: first the keys, then the session, as the driver does.
    pub(crate) fn wake(&mut self, slot: usize) {
        self.nodes[slot].wake_at = None;
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        let mut woken = 0;
        let mut keep = |(name, woke): (Name, Effects<'_>)| {
            effects.extend_from_slice(&woke);
            name
        };
        while let Some(name) = self.nodes[slot].shard.wake_next(local).map(&mut keep) {
            woken += 1;
            // With a planted mistake a lease may outlive its timer. Only a sound machine must come to rest.
            if woken > 4 * self.keys.len() {
                let key = self.key_index(&name);
                self.report(Violation::EndlessRequests, Some(key), || {
                    format!("a timer of node {slot} fires without end")
                });
                break;
            }
        }
        self.carry_out(slot, effects);
        if woken > 0 {
            self.raise(Signal::AllKeysChanged);
        }
        self.step_session(slot);
    }

    /// Tells all keys of a node the state of its inbox.
    pub(crate) fn inbox_state(&mut self, slot: usize, state: InboxState) {
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        self.note(Some(slot), None, || format!("<- inbox {state:?}"));
        let keep = |_: &Name, effect: &Effect| effects.push(effect.clone());
        self.nodes[slot].shard.inbox(local, state, keep);
        self.carry_out(slot, effects);
        self.raise(Signal::AllKeysChanged);
    }

    /// Tells all keys of a node that the server is reachable again.
    pub(crate) fn reachable(&mut self, slot: usize, session: usize, is_elsewhere: bool) {
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        self.note(Some(slot), None, || "<- reachable".into());
        let keep = |_: &Name, effect: &Effect| effects.push(effect.clone());
        let (keys, map) = (&self.keys, self.sessions_of_slots(slot));
        let is_served = |name: &Name| {
            let key = keys.iter().position(|key| key == name);
            map.is_empty() || key.is_some_and(|key| map[key % map.len()] == session)
        };
        self.nodes[slot]
            .shard
            .reachable(local, is_elsewhere, is_served, keep);
        self.carry_out(slot, effects);
        self.raise(Signal::AllKeysChanged);
    }

    /// Closes all keys of a node. The runs of its jobs may go on.
    pub(crate) fn close(&mut self, slot: usize, runs_go_on: bool) {
        let local = self.local(slot);
        let mut effects = std::mem::take(&mut self.effects);
        self.note(Some(slot), None, || "<- close".into());
        let keep = |_: &Name, effect: &Effect| effects.push(effect.clone());
        self.nodes[slot].shard.close(local, runs_go_on, keep);
        self.carry_out(slot, effects);
        self.raise(Signal::AllKeysChanged);
    }

    /// Carries out the effects of a shard.
    pub(crate) fn carry_out(&mut self, slot: usize, mut effects: Vec<Effect>) {
        let mut missed = false;
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(outgoing) => {
                    let session = if self.is_quorum() {
                        usize::from(outgoing.tag.master)
                    } else {
                        self.session_of(slot, &outgoing.request.name)
                    };
                    self.queue(slot, session, outgoing);
                }
                Effect::Act(action) => self.queue_action(slot, action),
                Effect::WriteEnded(lease, is_refused) => {
                    let key = self.key_index(&lease.name);
                    self.feed(slot, key, Input::WriteEnded(lease, is_refused));
                }
                Effect::Granted(ticket, fence) => {
                    if fence.is_first() && !self.has_several() {
                        self.nodes[slot].sessions[0].session.note_grant(fence.number());
                    }
                    self.raise(Signal::Granted { slot, ticket, fence });
                }
                Effect::Answered(ticket, answer) => self.raise(Signal::Answered {
                    slot,
                    ticket,
                    answer: &answer,
                }),
                Effect::Denied(ticket, denial) => self.raise(Signal::Denied {
                    slot,
                    ticket,
                    denial: &denial,
                }),
                Effect::Asked(ticket, ..) => self.raise(Signal::Asked { slot, ticket }),
                Effect::Overdue(ticket) => self.raise(Signal::Overdue { slot, ticket }),
                Effect::Lost(ticket, cause) => self.raise(Signal::Lost { slot, ticket, cause }),
                Effect::Released(ticket, outcome) => self.raise(Signal::Released {
                    slot,
                    ticket,
                    outcome: &outcome,
                }),
                Effect::PushMissed => {
                    self.cover(Case::PushMissed);
                    missed = true;
                }
                Effect::Event(notice) => {
                    self.note(Some(slot), None, || format!("   -> {notice:?}"));
                    if let Some(seen) = Case::notice(&notice) {
                        self.cover(seen);
                    }
                }
            }
        }
        self.effects = effects;
        self.schedule_wake(slot);
        if missed {
            self.tell_session(slot, self.nodes[slot].inbox_session(), SessionInput::PushMissed);
        }
    }

    /// Queues a request with the session, which the driver steps soon.
    pub(crate) fn queue(&mut self, slot: usize, session: usize, outgoing: Outgoing) {
        self.raise(Signal::RequestQueued {
            slot,
            outgoing: &outgoing,
        });
        self.nodes[slot].sessions[session].session.queue(&outgoing);
        self.schedule_step(slot);
    }

    /// Gives a node's shard the callers of several free keys that lock together.
    pub(crate) fn feed_group(&mut self, slot: usize, callers: &[(usize, Input)]) {
        let mut claims = Vec::new();
        for (key, input) in callers {
            self.inputs += 1;
            self.log.mix((slot as u64) << 8 | *key as u64);
            self.note(Some(slot), Some(*key), || format!("<- together {input:?}"));
            let local = self.local(slot);
            let mut effects = Vec::new();
            let name = self.keys[*key].clone();
            let shard = &mut self.nodes[slot].shard;
            effects.extend_from_slice(&shard.handle(local, &name, input.clone()));
            // A kept lease is left first.
            let is_sent = |effect: &Effect| matches!(effect, Effect::Send(_));
            if effects.is_empty() || !effects.iter().all(is_sent) {
                self.report(Violation::WrongAnswer, Some(*key), || {
                    format!("a free key has the effects {effects:?}")
                });
            }
            claims.extend(effects.into_iter().filter_map(|effect| match effect {
                Effect::Send(outgoing) => Some(outgoing),
                _ => None,
            }));
        }
        for claim in &claims {
            self.raise(Signal::RequestQueued {
                slot,
                outgoing: claim,
            });
        }
        let session = claims
            .first()
            .map_or(0, |claim| self.session_of(slot, &claim.request.name));
        self.nodes[slot].sessions[session].session.queue_together(claims);
        self.schedule_step(slot);
        self.schedule_wake(slot);
    }

    /// Queues an action with the session, which the driver steps soon.
    pub(crate) fn queue_action(&mut self, slot: usize, action: OutgoingAction) {
        let (key, tag) = (self.key_index(&action.name), action.tag);
        self.note(Some(slot), Some(key), || format!("   -> action {tag:?}"));
        let (now, session) = (self.now, self.session_of(slot, &action.name));
        let node = &mut self.nodes[slot];
        node.requests.insert((tag.claim, tag.seq), (now, key));
        node.sessions[session].session.queue_action(action);
        self.schedule_step(slot);
    }
}
