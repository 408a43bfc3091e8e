//! [`Locks`]: the primitives on one store, and the end of a node.

use std::fmt;
use std::time::Duration;

use crate::driver::handle::Handle;
use crate::error::{ClosedCause, Error};
use crate::key::Key;
use crate::primitives::election::Election;
use crate::primitives::guard::Guard;
use crate::primitives::inspect::Inspection;
use crate::primitives::latch::Latch;
use crate::primitives::multi::{MultiKey, MultiLock};
use crate::primitives::mutex::Mutex;
use crate::primitives::rw_lock::RwLock;
use crate::primitives::semaphore::Semaphore;
use crate::primitives::target::Target;
use crate::primitives::transfer::Transfer;
use crate::protocol::message::{Call, Name, NodeId};

/// Locks on one store. Make one per process and clone it: clones share connections, renewals and local queues.
///
/// Works from any tokio runtime, from several at once, and from several one after the other. When the last clone is dropped,
/// and the last guard and mutex made from it, the background thread releases what is still held or requested, and ends. A
/// drop does not wait: a program that must leave nothing behind calls [`shutdown`](Self::shutdown).
///
/// Wakers are called on the background thread, which renews all leases. A waker that panics does no harm. A waker that
/// blocks stops all renewals.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// use tenure::Locks;
///
/// let locks = Locks::memory(); // or `Locks::connect("redis://127.0.0.1/").await?`
/// let guard = locks.mutex("account:42").lock().await?;
/// guard.release().await?;
/// locks.shutdown().await;
/// # Ok(()) }
/// ```
///
/// # How to make them
///
/// | constructor | the store |
/// |---|---|
/// | [`Locks::memory`] | this process; [`Builder::memory_shared`](crate::Builder::memory_shared) for several nodes on one [`MemoryStore`](crate::MemoryStore) |
/// | [`Locks::connect`] | any store, named by a URL |
/// | [`Locks::builder`] and [`connect`](crate::Builder::connect) | any store, with other settings than the defaults |
/// | [`Locks::builder`] and `client`, `sentinel`, `cluster`, `quorum` | a server, or several, with a `redis::Client` of yours for what a URL cannot say |
/// | [`Locks::builder`] and `pool` | the server of your bb8 pool (feature `bb8`) |
///
/// # Which one for what
///
/// The guide [`choosing`](crate::guide::choosing) has a row for each primitive, with its cost, and says which store serves which. The
/// layer is in the module `middleware`, and cron jobs are in the module `scheduler`.
#[derive(Clone)]
pub struct Locks {
    pub(super) handle: Handle,
}

impl Locks {
    /// Returns the lock on `key`. Takes no round trip until it is locked.
    #[doc(alias = "lock")]
    pub fn mutex(&self, key: impl Into<Key>) -> Mutex {
        Mutex(self.target(Name::lock(key.into())).keep_as_built())
    }

    /// Returns the read-write lock on `key`: many readers, or one writer. Takes no round trip until it is locked. Its write
    /// side is the [`mutex`](Self::mutex) of the same key.
    pub fn rw_lock(&self, key: impl Into<Key>) -> RwLock {
        RwLock::new(self.target(Name::lock(key.into())))
    }

    /// Takes over a lease that another holder [transferred](crate::Guard::into_transfer), and renews it from now on.
    ///
    /// The guard has the lease length of these locks. No other caller has the lock in between. Takes one round trip. The
    /// lease is not handed on within this process: other callers of this process wait as callers of other processes do.
    ///
    /// # Errors
    /// [`Error::Gone`] if the transfer was adopted or released before, or its time is over. [`Error::Options`] if the transfer
    /// was made under another prefix. Other errors as of [`Mutex::try_lock`].
    ///
    /// If the store did not answer, the lease may have been adopted. This process does not renew it then: it releases the
    /// lease in the background, or the lease ends by itself.
    ///
    /// # Cancel safety
    /// Dropping the future releases what it adopts.
    pub async fn adopt(&self, transfer: &Transfer) -> Result<Guard, Error> {
        transfer.adopt(&self.handle).await
    }

    /// Extends a transfer that is not adopted yet, from any process: it lasts for `lease` and the
    /// [margin](crate::Builder::margin) from now on.
    ///
    /// A transfer that lasts longer stays as it is. Takes one round trip.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("order:7").lock().await?;
    /// let transfer = guard.into_transfer(Duration::from_secs(60)).await?;
    /// // The queue is slow today.
    /// locks.extend_transfer(&transfer, Duration::from_secs(600)).await?;
    /// // The message cannot be sent.
    /// locks.release_transfer(&transfer).await?;
    /// assert!(locks.mutex("order:7").try_lock().await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Options`] and other errors as of [`adopt`](Self::adopt). If the store did not answer, the
    /// transfer may have been extended.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the extension.
    pub async fn extend_transfer(&self, transfer: &Transfer, lease: Duration) -> Result<(), Error> {
        let extend = |of| Call::Extend { of };
        transfer.call(&self.handle, lease, extend).await
    }

    /// Releases a transfer without adopting it, from any process.
    ///
    /// Takes one round trip. After `Ok` the transfer cannot be adopted any more. If an answer was lost and the call was
    /// retried, another process may have ended the transfer.
    ///
    /// # Errors
    /// As [`extend_transfer`](Self::extend_transfer). The second of two calls returns [`Error::Gone`]. [`Error::Closed`] as of a lock; if
    /// [`shutdown`](Self::shutdown) is called meanwhile, the transfer may have been released.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the release.
    pub async fn release_transfer(&self, transfer: &Transfer) -> Result<(), Error> {
        let lease = self.handle.options().lease();
        let release = |of| Call::Release { of, repeats: false };
        transfer.call(&self.handle, lease, release).await
    }

    /// Returns the semaphore of `key` with this number of permits. Takes no round trip until a permit is acquired. A
    /// semaphore and a lock of the same key are independent of each other.
    pub fn semaphore(&self, key: impl Into<Key>, permits: u32) -> Semaphore {
        Semaphore::new(self.target(Name::semaphore(key.into())), permits)
    }

    /// Returns the count-down latch of `key`: one process sets its number, any process counts down or waits for zero. Takes no
    /// round trip until it is used. A latch and a lock of the same key are independent of each other.
    pub fn latch(&self, key: impl Into<Key>) -> Latch {
        Latch::new(self.target(Name::latch(key.into())))
    }

    /// Returns the election of `key`: one of its candidates leads. Takes no round trip until a process campaigns or asks. An
    /// election and a lock of the same key are independent of each other.
    pub fn election(&self, key: impl Into<Key>) -> Election {
        Election::new(self.target(Name::election(key.into())))
    }

    /// Returns one lock on 1 to 64 keys, which are locked together: for work on several things, such as a transfer between
    /// two accounts. Each key is written; [`MultiKey::read`] names a key that is only read. Takes no round trip until it is
    /// locked.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// let locks = tenure::Locks::memory();
    /// let guard = locks.multi(["account:1", "account:2"]).lock().await?;
    /// // … work on both accounts; each has its own fence …
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn multi<K: Into<MultiKey>>(&self, keys: impl IntoIterator<Item = K>) -> MultiLock {
        MultiLock::new(self.handle.clone(), keys.into_iter().map(Into::into))
    }

    /// Checks that the store answers, for a readiness probe. Takes one round trip. Of a quorum, a majority of the masters is
    /// enough.
    ///
    /// A server that [recovers](Self::recovering) answers, so this is `Ok`: all replicas see the same recovery, and a probe that
    /// fails then takes all of them out of service at once. Holders go on, and requests that need a lock get 503.
    ///
    /// # Errors
    /// [`Error::Connect`] with the reason why the store does not answer, or with
    /// [`StoreErrorKind::TimedOut`](crate::error::StoreErrorKind::TimedOut) after the request timeout. A node of a Redis Cluster
    /// and a Sentinel are refused. After [`shutdown`](Self::shutdown) and in a forked child it returns [`Error::Closed`], with `ping`
    /// as its key.
    pub async fn ping(&self) -> Result<(), Error> {
        let key = Key::from("ping");
        self.handle.not_forked(&key)?;
        let node = self.handle.node();
        if node.is_closed() {
            let why = ClosedCause::Shutdown;
            return Err(Error::Closed { key, why });
        }
        node.ping(false).await.map_err(|source| Error::Connect {
            store: node.servers.text().to_string(),
            source,
        })
    }

    /// Returns how long the store still [recovers](crate::Recovery), and grants nothing, as far as this node knows. `None` if it
    /// does not recover, or if this node has not asked it yet. Takes no round trip.
    ///
    /// On a cluster it is the longest recovery of its servers, and on a quorum the time until a majority of the masters votes.
    /// Show it on a status page, or use it in the probe of a job that must not begin now. A readiness probe needs
    /// [`ping`](Self::ping).
    ///
    /// ```
    /// # let locks = tenure::Locks::memory();
    /// let status = match locks.recovering() {
    ///     Some(left) => format!("no locks for {} s", left.as_secs()),
    ///     None => "ok".to_owned(),
    /// };
    /// # assert_eq!(status, "ok");
    /// ```
    pub fn recovering(&self) -> Option<Duration> {
        self.handle.node().recovering()
    }

    /// Returns what operators see of the store: which nodes hold which keys, since when, and which nodes wait. A look
    /// changes nothing.
    pub fn inspect(&self) -> Inspection {
        Inspection::new(&self.handle)
    }

    /// Resolves when this process holds no lease, no caller waits, and no request is in flight.
    pub async fn idle(&self) {
        if !self.handle.node().is_forked() {
            self.handle.node().idle().await;
        }
    }

    /// Releases everything and refuses new calls: waiters get [`Error::Closed`], guards are lost, and leases are released in
    /// the store. Resolves when the store has answered. If the store is unavailable, it resolves when all leases have ended and the
    /// [request timeout](crate::Builder::request_timeout) has passed.
    ///
    /// First it waits for the handlers that a layer runs to completion, even if their clients have left. Meanwhile layers
    /// refuse other requests with 503. It also cancels the runs of jobs, and waits until each has ended: call
    /// `drain` (feature `scheduler`) before, to give them time. If a handler or a run may never end, put a timeout around this
    /// call. When the future is dropped, everything is released in the background, including the leases of those handlers. A run
    /// that has not ended keeps its lease until it ends, or until the process does. Such a handler or run must not wait for
    /// `shutdown` itself.
    pub async fn shutdown(&self) {
        /// Closes the node, also when the future of `shutdown` is dropped.
        struct Close<'a>(&'a Handle);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.close();
            }
        }
        if self.handle.node().is_forked() {
            return;
        }
        let close = Close(&self.handle);
        #[cfg(feature = "scheduler")]
        {
            self.handle.jobs().close();
            self.handle.jobs().cancel();
        }
        #[cfg(feature = "tower")]
        {
            self.handle.tasks().close();
            self.handle.tasks().wait().await;
        }
        #[cfg(feature = "scheduler")]
        {
            self.handle.jobs_withdrawn(Duration::from_secs(1)).await;
            // A run may wait for a lock of this process.
            self.handle.close();
            self.handle.jobs().ended().await;
        }
        drop(close);
        self.idle().await;
        self.handle.node().end_outage_counts();
        self.handle.node().end_presence().await;
    }

    /// Returns the id of this process in the store. Each `Locks` that is built has a new one.
    pub fn node_id(&self) -> NodeId {
        self.handle.node().id
    }

    /// Returns the [name](crate::Builder::node_name) that the builder gave this node, otherwise its id.
    pub fn node_name(&self) -> String {
        let given = &self.handle.options().node_name;
        given.clone().unwrap_or_else(|| self.node_id().to_string())
    }

    /// Returns how many keys have state in this process: a lease, a waiter, or a request in flight.
    ///
    /// A key counts once for any number of guards and waiters. A lock and a semaphore of one key count as two. A latch
    /// counts while a caller waits for it, an election also while an [`Observer`](crate::Observer) waits for a change. A lease
    /// counts until the store has answered its release. A forked child counts none.
    pub fn key_count(&self) -> usize {
        self.handle.node().keys()
    }

    #[cfg(any(feature = "scheduler", feature = "tower"))]
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns how many callers wait in this process, for locks, permits, leaderships and latches.
    pub fn waiter_count(&self) -> usize {
        self.handle.node().waiting()
    }

    /// Returns the target of `name`, which may be of any kind.
    pub(crate) fn target(&self, name: Name) -> Target {
        Target::new(self.handle.clone(), name)
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("node", &self.node_name())
            .field("store", &self.handle.node().servers.store)
            .field("keys", &self.key_count())
            .finish()
    }
}
