//! A store in this process's memory: the [ledger](crate::protocol::ledger) behind a mutex.
//!
//! Exclusive between everybody who shares the handle, and between nobody else: the embedded default, for tests,
//! examples and services of one process.

use std::collections::HashMap;
use std::fmt;
use std::future::{pending, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::StoreError;
use crate::protocol::ledger::Ledger;
use crate::protocol::message::{Batch, BatchReply, Failure, InboxEvent, Name, NodeId};
use crate::store::{Abilities, BoxFuture, Link, ServerId, Sink, Store, sealed};

/// A store in memory. Clones share their state, so several [`Locks`](crate::locks::Locks) can be nodes of one store:
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// use tenure::{Locks, MemoryStore};
///
/// let store = MemoryStore::new();
/// let (one, other) = (Locks::builder().memory_shared(&store)?, Locks::builder().memory_shared(&store)?);
/// let guard = one.mutex("stock:7").lock().await?;
/// assert!(other.mutex("stock:7").try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    ledger: Ledger,
    inboxes: HashMap<NodeId, Sink>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        MemoryStore::default()
    }

    /// How many keys are held or waited for.
    pub fn len(&self) -> usize {
        self.lock().ledger.len()
    }

    /// Nothing is held or waited for.
    pub fn is_empty(&self) -> bool {
        self.lock().ledger.is_empty()
    }

    /// Reaches under the store, as a foreign client of a Redis would.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_ledger<T>(&self, f: impl FnOnce(&mut Ledger, u64) -> T) -> T {
        f(&mut self.lock().ledger, now_us())
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic in here would be a fault of the ledger, and no state of it is worse than a poisoned store.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store's clock. It plays the server's part, so it is not the clock that leases are judged by.
fn now_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Never zero: a number of a grant is above every number that was never given.
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000 + 1
}

/// What the nominal times of jobs are compared with. It may step; leases must not follow it.
fn date_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1000 + time.tv_nsec as u64 / 1_000_000
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("keys", &self.len()).finish()
    }
}

impl sealed::Sealed for MemoryStore {}

impl Store for MemoryStore {
    fn abilities(&self) -> Abilities {
        Abilities {
            queues: true,
            final_push: true,
        }
    }

    fn route(&self, _: &Name) -> ServerId {
        ServerId(0)
    }

    fn connect(&self, _: ServerId) -> BoxFuture<'static, Result<Arc<dyn Link>, StoreError>> {
        let link: Arc<dyn Link> = Arc::new(self.clone());
        Box::pin(ready(Ok(link)))
    }

    fn inbox(&self, node: NodeId, sink: Sink) -> BoxFuture<'static, StoreError> {
        let store = self.clone();
        Box::pin(async move {
            let _open = Inbox::open(store, node, sink);
            pending().await
        })
    }
}

/// A node that listens. Dropped with the future that serves it.
struct Inbox {
    store: MemoryStore,
    node: NodeId,
}

impl Inbox {
    fn open(store: MemoryStore, node: NodeId, sink: Sink) -> Self {
        {
            let mut shared = store.lock();
            shared.ledger.listens(node, true);
            shared.inboxes.insert(node, sink.clone());
        }
        sink(InboxEvent::Open);
        Inbox { store, node }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut shared = self.store.lock();
        shared.ledger.listens(self.node, false);
        shared.inboxes.remove(&self.node);
    }
}

impl Link for MemoryStore {
    fn apply(&self, batch: Batch) -> BoxFuture<'static, Result<BatchReply, Failure>> {
        let mut pushes = Vec::new();
        let (answer, calls) = {
            let mut shared = self.lock();
            shared.ledger.set_date(date_ms());
            let answer = shared.ledger.apply(now_us(), &batch, &mut pushes);
            let calls: Vec<_> = pushes
                .into_iter()
                .filter_map(|grant| Some((shared.inboxes.get(&grant.holder.node)?.clone(), grant)))
                .collect();
            (answer, calls)
        };
        // Outside of the store's mutex: a sink reaches into another node's engine.
        for (sink, grant) in calls {
            sink(InboxEvent::Granted(grant));
        }
        Box::pin(ready(Ok(answer)))
    }

    fn time(&self) -> u64 {
        now_us()
    }
}
