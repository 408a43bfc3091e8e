//! Nodes that watch a key: the store tells them once when the watched value changes.

use crate::protocol::ledger::record::Watcher;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{Push, Request};

impl Transaction<'_> {
    /// Records that the sender's node watches the key, for one of its leases from now on.
    pub(crate) fn watch(&mut self, request: &Request) {
        let (node, now) = (request.claim_id.node, self.now());
        let expires = now + request.term.lease_ms;
        self.state.watchers.retain(|watcher| now <= watcher.expires);
        let mut watchers = self.state.watchers.iter_mut();
        match watchers.find(|watcher| watcher.node == node) {
            Some(watcher) => watcher.expires = expires,
            None => self.state.watchers.push(Watcher { node, expires }),
        }
    }

    /// Tells all live watchers that the value changed, and removes them. A node must ask again before it is told
    /// again.
    pub(crate) fn tell_watchers(&mut self) {
        let (name, now) = (self.name, self.now());
        let watchers = self.state.watchers.drain(..);
        let told = watchers.filter(|watcher| now <= watcher.expires);
        self.pushes
            .extend(told.map(|watcher| Push::Changed(watcher.node, name.clone())));
    }
}
