//! Faults of connections and inboxes.

use tenure::error::StoreErrorKind;

use crate::coverage::Case;
use crate::time::MS;
use crate::world::World;
use crate::world::connection::error;
use crate::world::event::Event;

impl World {
    /// Cuts a node off the network for a while.
    pub(crate) fn cut_off(&mut self, slot: usize) {
        self.cover(Case::Partition);
        let until = self.now + self.rng.u64(10 * MS..3_000 * MS);
        self.note(Some(slot), None, || format!("cut off until {} ms", until / MS));
        self.inbox_lags(slot, until);
        self.nodes[slot].cut_until = until;
        if let Some(conn) = self.open_conn(slot) {
            self.conns[conn].stall = until;
        }
    }

    /// Cuts a node off the master at hand for a while.
    pub(crate) fn cut_link(&mut self, slot: usize) {
        let (at, life) = (self.at, self.nodes[slot].life);
        let until = self.now + self.rng.u64(100 * MS..3_000 * MS);
        self.cover(Case::LinkCut);
        self.note(Some(slot), None, || {
            format!("cut off server {at} until {} ms", until / MS)
        });
        self.extend_fault(until);
        self.server.cut_links.insert(slot, until);
        for conn in self.conns.iter_mut() {
            if (conn.slot, conn.life, conn.to) == (slot, life, at) && conn.client {
                conn.stall = conn.stall.max(until);
            }
        }
    }

    /// Delays a node's pushes longer than its answers, as each connection recovers on its own. Most mistakes
    /// of the protocol are found by an old push after a young answer.
    pub(crate) fn inbox_lags(&mut self, slot: usize, until: u64) {
        let lag = if self.rng.bool() {
            self.rng.u64(0..300 * MS)
        } else {
            0
        };
        self.extend_fault(until + lag);
        if lag > 0 {
            self.nodes[slot].inbox.held_until = until + lag;
        }
    }

    /// Stalls a connection for a while.
    pub(crate) fn stall(&mut self, slot: usize) {
        let Some(conn) = self.open_conn(slot) else {
            return;
        };
        self.cover(Case::Stall);
        let until = self.now + self.rng.u64(10 * MS..4_000 * MS);
        self.note(Some(slot), None, || {
            format!("connection {conn} stalls until {} ms", until / MS)
        });
        self.extend_fault(until);
        self.conns[conn].stall = until;
    }

    /// Breaks a connection for its node alone. What the node has sent is executed a little later.
    pub(crate) fn abandon(&mut self, slot: usize) {
        let Some(conn) = self.open_conn(slot) else {
            return;
        };
        self.cover(Case::Abandoned);
        self.note(Some(slot), None, || format!("connection {conn} is abandoned"));
        let until = self.now + self.rng.u64(10 * MS..300 * MS);
        self.extend_fault(until);
        self.conns[conn].stall = until;
        let notice = self.rng.u64(0..20 * MS);
        self.after(notice, Event::ResetSeen { conn });
    }

    /// Resets a connection. With `mute`, its requests were executed and only the answers are lost.
    pub(crate) fn reset(&mut self, slot: usize, mute: bool) {
        let Some(conn) = self.open_conn(slot) else {
            return;
        };
        self.cover(Case::Reset);
        self.note(Some(slot), None, || format!("connection {conn} breaks"));
        self.conns[conn].mute = true;
        self.conns[conn].server &= mute || self.rng.bool();
        let notice = self.rng.u64(0..if mute { 600 * MS } else { 5 * MS });
        self.extend_fault(self.now + notice);
        self.after(notice, Event::ResetSeen { conn });
    }

    /// Delays the pushes to a node.
    pub(crate) fn hold_inbox(&mut self, slot: usize) {
        self.cover(Case::PushHeld);
        let until = self.now + self.rng.u64(10 * MS..4_000 * MS);
        self.extend_fault(until);
        self.nodes[slot].inbox.held_until = until;
    }

    /// Breaks a subscription. The server notices at once or not at all; the node notices some time later.
    pub(crate) fn cut_inbox(&mut self, slot: usize) {
        let (life, Some(sub)) = (self.nodes[slot].life, self.nodes[slot].inbox.sub) else {
            return;
        };
        if !self.nodes[slot].alive {
            return;
        }
        let to = self.nodes[slot].inbox.to;
        if let Some((_, _, whole)) = self.server_at_mut(to).listening.get_mut(&slot) {
            *whole = false;
        }
        if self.rng.bool() {
            self.visit(to, |world| world.unsubscribed(slot, life, sub));
        }
        if self.chance(30) {
            // The node gets no error and must ask.
            return self.cover(Case::InboxSilent);
        }
        let notice = self.rng.u64(0..2_000 * MS);
        self.extend_fault(self.now + notice);
        let error = error(StoreErrorKind::Interrupted);
        self.after(
            notice,
            Event::InboxFailed {
                slot,
                life,
                sub,
                error,
            },
        );
    }

    /// Silences a connection: a firewall dropped it, and neither end gets an error.
    pub(crate) fn silence(&mut self, slot: usize) {
        let Some(conn) = self.open_conn(slot) else {
            return;
        };
        self.cover(Case::Silent);
        self.note(Some(slot), None, || format!("connection {conn} falls silent"));
        self.conns[conn].silent = Some(self.now);
    }
}
