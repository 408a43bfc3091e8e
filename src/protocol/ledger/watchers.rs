//! Who is told by a store that what it watches has changed.

use crate::protocol::flaw::Plant;
use crate::protocol::ledger::record::Watcher;
use crate::protocol::ledger::transaction::Transaction;
use crate::protocol::message::{Push, Request};

impl<P: Plant> Transaction<'_, P> {
    /// The asker's node is told of what changes, for as long as one of its leases.
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

    /// They have to look before they are told again.
    pub(crate) fn tell_watchers(&mut self) {
        let (name, now) = (self.name, self.now());
        let watchers = self.state.watchers.drain(..);
        let told = watchers.filter(|watcher| now <= watcher.expires);
        self.pushes
            .extend(told.map(|watcher| Push::Changed(watcher.node, name.clone())));
    }
}
