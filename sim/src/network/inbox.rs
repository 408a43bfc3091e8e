//! Inboxes: subscriptions through which grants are pushed.

use tenure::error::{StoreError, StoreErrorKind, StoreRefusal};
use tenure::protocol::message::{Kind, NodeId, Push};
use tenure::protocol::session::step::{Attempt, SessionInput};
use tenure::protocol::step::Input;

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::connection::{Connection, error};
use crate::world::event::Event;
use crate::world::inbox::MissedPushes;
use crate::world::server::Server;
use crate::world::signal::Signal;

impl World {
    /// Starts to open a subscription.
    pub(crate) fn subscribe(&mut self, slot: usize, sub: Attempt) {
        let life = self.nodes[slot].life;
        let to = if self.is_cluster() {
            self.next_inbox_server(slot)
        } else {
            self.inbox_master(slot)
        };
        let inbox = &mut self.nodes[slot].inbox;
        (inbox.sub, inbox.open, inbox.silent, inbox.to) = (Some(sub), false, None, to);
        (inbox.asked, inbox.doubtful_since) = (false, None);
        self.nodes[slot].opened += 1;
        let way = self.delay();
        self.after(way, Event::Subscribe { slot, life, sub });
    }

    /// Returns whether the node uses this subscription.
    pub(crate) fn is_current_subscription(&self, slot: usize, sub: Attempt) -> bool {
        self.nodes[slot].inbox.sub == Some(sub)
    }

    /// Closes a subscription at the node.
    pub(crate) fn close_inbox(&mut self, slot: usize, sub: Attempt) {
        if self.is_current_subscription(slot, sub) {
            self.nodes[slot].inbox.sub = None;
            self.nodes[slot].inbox.open = false;
        }
        // The server may notice much later.
        let life = self.nodes[slot].life;
        let notice = self.rng.u64(0..500 * MS);
        self.after(notice, Event::Unsubscribed { slot, life, sub });
    }

    /// Opens a subscription at the server.
    pub(crate) fn subscribe_arrives(&mut self, slot: usize, life: u32, sub: Attempt) {
        if !self.is_alive(slot, life) || !self.is_current_subscription(slot, sub) {
            return;
        }
        if self.in_fault_period() && self.chance(4) {
            return self.cover(Case::SubscribeSilent);
        }
        let held = self.server.stall.max(self.nodes[slot].cut_until);
        if held > self.now {
            return self.at(
                Server::look_at(self.now, held),
                Event::Subscribe { slot, life, sub },
            );
        }
        let way = self.delay();
        let refusal = if self.server.down {
            Some(error(StoreErrorKind::Unreachable))
        } else if self.server.loading > self.now {
            Some(StoreError::refused(StoreRefusal::Loading))
        } else {
            let refused = self.profile.no_inbox;
            refused.then(|| StoreError::refused(StoreRefusal::NoPermission))
        };
        if let Some(error) = refusal {
            return self.after(
                way,
                Event::InboxFailed {
                    slot,
                    life,
                    sub,
                    error,
                },
            );
        }
        self.listens(self.nodes[slot].id, true);
        self.server.listening.insert(slot, (life, sub, true));
        self.nodes[slot].inbox.last = self.now + way;
        self.after(way, Event::InboxOpened { slot, life, sub });
    }

    /// Tells the ledger whether a node listens, in worlds whose server knows that.
    pub(crate) fn listens(&mut self, node: NodeId, open: bool) {
        if self.profile.probe {
            self.server.ledger.set_listening(node, open);
        }
    }

    /// Handles an opened subscription at the node.
    pub(crate) fn inbox_opened(&mut self, slot: usize, sub: Attempt) {
        if !self.is_current_subscription(slot, sub) {
            return;
        }
        let inbox = &mut self.nodes[slot].inbox;
        inbox.open = true;
        if std::mem::replace(&mut inbox.had_one, true) {
            self.cover(Case::Resubscribed);
        }
        let kills = match self.is_cluster() {
            true => self.server_at(self.nodes[slot].inbox.to).kills,
            false => self.server.kills,
        };
        if kills > self.now {
            self.cover(Case::Killed);
            let (life, soon) = (self.nodes[slot].life, self.rng.u64(0..5 * MS));
            let error = error(StoreErrorKind::Interrupted);
            self.after(
                soon,
                Event::InboxFailed {
                    slot,
                    life,
                    sub,
                    error,
                },
            );
        }
        self.raise(Signal::Session {
            slot,
            session: self.nodes[slot].inbox_session(),
            input: SessionInput::InboxOpened {
                attempt: sub,
                address: self.address(self.nodes[slot].inbox.to),
            },
        });
    }

    /// Asks a subscription for a sign of life.
    pub(crate) fn ping_inbox(&mut self, slot: usize, sub: Attempt) {
        self.cover(Case::InboxPing);
        let inbox = &mut self.nodes[slot].inbox;
        (inbox.asked, inbox.doubtful_since) = (true, None);
        let life = self.nodes[slot].life;
        let way = self.delay() + self.delay();
        self.after(way, Event::InboxPong { slot, life, sub });
    }

    /// Handles a sign of life of a subscription.
    pub(crate) fn inbox_pong(&mut self, slot: usize, sub: Attempt) {
        let life = self.nodes[slot].life;
        let server = self.server_at(self.nodes[slot].inbox.to);
        let is_whole = server.listening.get(&slot) == Some(&(life, sub, true));
        let stall = server.stall;
        if !is_whole || !self.is_current_subscription(slot, sub) {
            return;
        }
        let held = self.inbox_held(slot).max(stall);
        if held > self.now {
            return self.at(held, Event::InboxPong { slot, life, sub });
        }
        self.cover(Case::InboxPong);
        self.nodes[slot].inbox.asked = false;
        self.raise(Signal::Session {
            slot,
            session: self.nodes[slot].inbox_session(),
            input: SessionInput::InboxHeard(sub),
        });
    }

    /// Asks the server of a connection for a subscription. Where masters are never replaced, the user may not ask.
    pub(crate) fn seek_inbox(
        &mut self,
        (slot, session): (usize, usize),
        inbox: Attempt,
        connection: Attempt,
    ) {
        let answer = |is_there| SessionInput::InboxSought {
            inbox,
            connection,
            is_there,
        };
        if self.profile.failover_lag.is_none() {
            let input = answer(None);
            return self.raise(Signal::Session { slot, session, input });
        }
        if let Some(conn) = self.usable_conn(slot, session, connection) {
            let way = self.delay();
            self.after(way, Event::InboxSought { conn, sub: inbox });
        }
    }

    /// The question for a subscription reaches the server.
    pub(crate) fn inbox_sought(&mut self, conn: usize, sub: Attempt) {
        let Connection {
            slot, life, server, ..
        } = self.conns[conn];
        if self.server.stall > self.now && server {
            let held = Server::look_at(self.now, self.server.stall);
            self.conns[conn].seeks_until = held;
            return self.at(held, Event::InboxSought { conn, sub });
        }
        if server {
            let found = self.server.listening.get(&slot);
            let is_there = found.is_some_and(|(of, at, _)| (*of, *at) == (life, sub));
            let back = self.delay();
            self.after(back, Event::InboxFound { conn, sub, is_there });
        }
    }

    /// The answer about a subscription reaches the node.
    pub(crate) fn inbox_found(&mut self, conn: usize, sub: Attempt, is_there: bool) {
        let of = &mut self.conns[conn];
        let (slot, session, connection) = (of.slot, of.session, of.attempt);
        if !of.client || of.silent.is_some() || of.mute {
            return;
        }
        let held = of.stall;
        if held > self.now {
            of.seeks_until = held;
            return self.at(held, Event::InboxFound { conn, sub, is_there });
        }
        let input = SessionInput::InboxSought {
            inbox: sub,
            connection,
            is_there: Some(is_there),
        };
        self.raise(Signal::Session { slot, session, input });
    }

    /// Handles a broken subscription at the node.
    pub(crate) fn inbox_failed(&mut self, slot: usize, sub: Attempt, error: StoreError) {
        if !self.is_current_subscription(slot, sub) {
            return;
        }
        if matches!(error.kind(), StoreErrorKind::Refused(StoreRefusal::NoPermission)) {
            self.cover(Case::InboxRefused);
        }
        self.nodes[slot].inbox.sub = None;
        self.nodes[slot].inbox.open = false;
        self.raise(Signal::Session {
            slot,
            session: self.nodes[slot].inbox_session(),
            input: SessionInput::InboxFailed(sub, error),
        });
    }

    /// The server notices that a subscription has no reader.
    pub(crate) fn unsubscribed(&mut self, slot: usize, life: u32, sub: Attempt) {
        let of = self.server.listening.get(&slot);
        if of.is_none_or(|(l, s, _)| (*l, *s) != (life, sub)) {
            return;
        }
        self.server.listening.remove(&slot);
        let mut slots = self.slots.iter();
        let node = slots.find(|(_, at)| **at == (slot, life)).map(|(node, _)| *node);
        if let Some(node) = node {
            self.listens(node, false);
        }
    }

    /// Returns the time until which the pushes to a node are delayed.
    pub(crate) fn inbox_held(&self, slot: usize) -> u64 {
        self.nodes[slot].inbox.held_until.max(self.nodes[slot].cut_until)
    }

    /// Returns the subscriptions of a node that a push reaches, and whether it reaches them twice. In a cluster it travels over
    /// the bus to all servers.
    fn reached_subscriptions(&mut self, slot: usize, life: u32) -> Vec<(Attempt, bool)> {
        let mut reached = Vec::new();
        for server in 0..self.cluster.servers.max(1) {
            let (from, server) = (self.at, if self.is_cluster() { server } else { self.at });
            let of = self.server_at(server);
            let is_cut = of.bus_cut > self.now || self.server.bus_cut > self.now;
            let is_reached = server == from || !is_cut && !of.down;
            if let Some(&(at, sub, true)) = of.listening.get(&slot)
                && at == life
                && is_reached
            {
                // redis#6575: the bus may deliver twice.
                let is_twice = server != from && self.cluster.rng.u8(0..100) < 3;
                reached.push((sub, is_twice));
            }
        }
        reached
    }

    /// Returns the server for the next subscription of a node: another one than for the last.
    fn next_inbox_server(&mut self, slot: usize) -> usize {
        let servers = self.cluster.servers;
        let last = self.nodes[slot].inbox.to;
        (last + self.cluster.rng.usize(1..servers)) % servers
    }

    /// Sends a push to a node: lost, late or twice during the faults.
    pub(crate) fn push(&mut self, push: Push) {
        let Some(&(slot, life)) = self.slots.get(&push.node()) else {
            return;
        };
        let key = self.key_index(push.name());
        self.note(None, Some(key), || match &push {
            Push::Granted(grant) => format!(
                "server: pushes {} to {} of node {slot}",
                grant.number, grant.claim_id.claim
            ),
            Push::Changed(..) => format!("server: pushes news to node {slot}"),
            Push::Asked(_, of, _) => format!("server: asks node {slot} for {}", of.claim),
            Push::Revoked(_, of, _) => format!("server: tells node {slot} that {} is revoked", of.claim),
            Push::Recalled(_, of) => format!("server: recalls {} of node {slot}", of.claim),
        });
        let subs = self.reached_subscriptions(slot, life);
        if subs.is_empty() {
            // A push to a process that has ended is missed by no process.
            let node = &mut self.nodes[slot];
            let silent = node.inbox.silent.as_mut().filter(|_| node.life == life);
            if let (Push::Granted(grant), Some(silent)) = (&push, silent) {
                silent.grants.insert(grant.claim_id.claim, self.now);
            }
            return self.cover(Case::PushLost);
        }
        for (sub, is_twice) in subs {
            self.push_to(slot, life, sub, push.clone());
            if is_twice {
                self.cover(Case::PushedTwiceOverBus);
                self.push_to(slot, life, sub, push.clone());
            }
        }
    }

    /// Sends a push to a subscription.
    fn push_to(&mut self, slot: usize, life: u32, sub: Attempt, push: Push) {
        let way = self.delay();
        let inbox = &mut self.nodes[slot].inbox;
        let mut at = (self.now + way).max(inbox.last).max(inbox.held_until);
        inbox.last = at;
        let event = |push| Event::Push {
            slot,
            life,
            sub,
            push: Box::new(push),
        };
        if self.in_fault_period() && self.chance(3) {
            self.cover(Case::PushTwice);
            let again = at + self.rng.u64(0..4_000 * MS);
            self.at(again, event(push.clone()));
        }
        if self.in_fault_period() && self.chance(2) {
            self.cover(Case::PushHeld);
            at += self.rng.u64(50 * MS..4_000 * MS);
            self.nodes[slot].inbox.last = at;
        }
        self.at(at, event(push));
    }

    /// Delivers a push to a node.
    pub(crate) fn push_arrives(&mut self, slot: usize, sub: Attempt, push: Push) {
        let held = self.inbox_held(slot);
        if held > self.now {
            let life = self.nodes[slot].life;
            let push = Box::new(push);
            return self.at(
                held,
                Event::Push {
                    slot,
                    life,
                    sub,
                    push,
                },
            );
        }
        if !self.is_current_subscription(slot, sub) {
            return self.cover(Case::PushLost);
        }
        let key = self.key_index(push.name());
        let grant = match push {
            Push::Granted(grant) => grant,
            Push::Changed(_, name) if name.kind == Kind::Job => {
                return self.at(self.now, Event::JobActed { slot, key });
            }
            Push::Changed(..) => {
                self.cover(Case::NewsPushed);
                return self.raise(Signal::Input {
                    slot,
                    key,
                    input: Input::Changed,
                });
            }
            Push::Asked(_, of, asking) => {
                let input = Input::Asked(of, asking);
                return self.raise(Signal::Input { slot, key, input });
            }
            Push::Revoked(_, of, mode) => {
                let input = Input::Revoked(of, mode);
                return self.raise(Signal::Input { slot, key, input });
            }
            Push::Recalled(_, of) => {
                let input = Input::Recalled(of);
                return self.raise(Signal::Input { slot, key, input });
            }
        };
        let claim = grant.claim_id.claim;
        let mut asked = self.nodes[slot].requests.range((claim, 0)..=(claim, u32::MAX));
        let is_in_flight = asked.next().is_some();
        if is_in_flight
            && self.nodes[slot]
                .shard
                .knows_claim(&self.keys[key], grant.claim_id)
        {
            self.cover(Case::PushBeforeAnswer);
        }
        self.raise(Signal::Input {
            slot,
            key,
            input: Input::Pushed(grant),
        });
    }

    /// Silences a subscription. The server still counts it, and no error is reported.
    pub(crate) fn silence_inbox(&mut self, slot: usize) {
        let to = self.nodes[slot].inbox.to;
        let life = self.nodes[slot].life;
        if let Some((of, _, whole)) = self.server_at_mut(to).listening.get_mut(&slot)
            && *of == life
        {
            *whole = false;
            self.nodes[slot].inbox.silent = Some(MissedPushes::default());
            self.cover(Case::InboxSilent);
            self.note(Some(slot), None, || "subscription falls silent".into());
        }
    }
}
