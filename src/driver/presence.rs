//! The presence of a node: what it tells operators of itself, once it has asked for a lease.
//!
//! Presence decides nothing. It costs one SET every 20 s, and one every 2 s while its notes change. It expires a minute after the
//! node has ended. A node that shuts down removes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::driver::node::Node;
use crate::driver::waiter::lock;
use crate::error::{StoreError, StoreErrorKind, StoreRefusal};
use crate::observe;
use crate::protocol::session::step::SessionRole;
use crate::protocol::view::{NoteView, Presence};
use crate::store::Link;

/// How often a node tells of itself. The store keeps it for three times as long.
const INTERVAL: Duration = Duration::from_secs(20);
/// The pause before each look at the notes, while there are any.
const NOTES_INTERVAL: Duration = Duration::from_secs(2);
/// The pause after an attempt without a connection.
const RETRY: Duration = Duration::from_secs(1);
/// How long a shutdown waits for the removal. A busy machine needs some time.
const MAX_REMOVAL: Duration = Duration::from_secs(2);

/// Tells of the node again and again, from the first request for a lease to the shutdown. Tells earlier if the notes differ from
/// those that a server has.
pub(crate) async fn keep(node: Arc<Node>) {
    let state = &node.presence;
    state.wanted.notified().await;
    let (mut told, mut due) = (Vec::new(), Instant::now());
    while !state.is_over.load(Ordering::Acquire) {
        let notes = state.notes.notes_to_tell(node.clock.now());
        if notes != told || due <= Instant::now() {
            let has_answer = node.tell(Some(notes.clone())).await;
            due = Instant::now() + if has_answer { INTERVAL } else { RETRY };
            if has_answer {
                told = notes;
            }
        }
        if told.is_empty() && state.notes.is_empty() {
            tokio::select! {
                () = sleep_until(due) => continue,
                () = state.notes.first_note.notified() => {}
            }
        }
        sleep(NOTES_INTERVAL).await;
    }
}

impl Node {
    /// Removes the presence, if the store can be reached. Runs on the driver, which has timers.
    pub(crate) async fn end_presence(self: &Arc<Self>) {
        self.presence.is_over.store(true, Ordering::SeqCst);
        if !self.presence.may_be_told.load(Ordering::SeqCst) {
            return;
        }
        let node = self.clone();
        let removal = async move { timeout(MAX_REMOVAL, node.tell(None)).await };
        if let Some(runtime) = self.runtime.get() {
            let _ = runtime.spawn(removal).await;
        }
    }

    /// Tells the store of this node, with these notes, or removes what was told. Returns whether a server answered.
    async fn tell(&self, notes: Option<Vec<NoteView>>) -> bool {
        let presence = notes.map(|notes| self.presence(notes));
        // A shutdown that comes first sees this, or this sees the shutdown.
        if presence.is_some() {
            self.presence.may_be_told.store(true, Ordering::SeqCst);
            if self.presence.is_over.load(Ordering::SeqCst) {
                return true;
            }
        }
        if let Some(store) = self.servers.immediate() {
            store.tell(self.id, presence);
            return true;
        }
        // The links are not kept: the end of a link means something.
        let mut tellings = JoinSet::new();
        for link in self.links() {
            tellings.spawn(timeout(
                self.options.request_timeout,
                link.tell(self.id, presence.clone()),
            ));
        }
        let mut has_answer = false;
        while let Some(told) = tellings.join_next().await {
            match told {
                Ok(Ok(Ok(()))) => has_answer = true,
                Ok(Ok(Err(error))) => has_answer |= self.note_refusal(&error),
                Ok(Err(_)) | Err(_) => {}
            }
        }
        has_answer
    }

    /// Warns once of a server that refuses presences. Returns whether the error is such a refusal, and no state that passes.
    fn note_refusal(&self, error: &StoreError) -> bool {
        let is_refusal = matches!(
            error.kind(),
            StoreErrorKind::Refused(StoreRefusal::NoPermission | StoreRefusal::OutOfMemory)
        );
        if is_refusal && !self.presence.has_warned.swap(true, Ordering::Relaxed) {
            let text = format!(
                "the store refuses what this node tells operators of itself: {error}. Locks work; `presence(false)` tells nothing"
            );
            self.events.push(observe::server_warning(text));
        }
        is_refusal
    }

    /// Returns a connection to the store, or to each master of a quorum, as far as they are open.
    fn links(&self) -> Vec<Arc<dyn Link>> {
        let servers = self
            .servers
            .all()
            .filter(|server| server.role != SessionRole::Inbox);
        let links = servers.filter_map(|server| {
            let io = lock(&server.io);
            io.connections.values().next().map(|open| open.link.clone())
        });
        let count = if self.servers.is_quorum() { usize::MAX } else { 1 };
        links.take(count).collect()
    }

    fn presence(&self, notes: Vec<NoteView>) -> Presence {
        let options = &self.options;
        Presence {
            name: options.node_name.clone().unwrap_or_default(),
            host: host(),
            pid: std::process::id(),
            started_ms: self.presence.started_ms,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            service: options.service.clone(),
            prefix: options.prefix.clone(),
            keys: self.keys() as u64,
            waiting: self.waiting() as u64,
            notes,
        }
    }
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
