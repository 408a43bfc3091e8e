//! An exclusive lock on one key, across every process that uses the store.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::driver::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::primitives::acquire::{Acquire, Wanted};
use crate::primitives::guard::{Guard, Lease};
use crate::protocol::message::Name;

/// A lock on one key. Made by [`Locks::mutex`](crate::Locks::mutex); cheap to make and to clone.
///
/// Waiting is in order: within a process callers wait in one line, and processes wait in the store's queue. A lease
/// that is handed on within the process goes to other processes after a burst, so nobody starves.
///
/// A lease lasts as long as [`Builder::lease`](crate::Builder::lease) says, 10 s unless set, and is renewed while the
/// guard lives: it does not limit how long the lock is held. [`lease`](Self::lease) and [`fixed`](Self::fixed) say
/// otherwise.
///
/// There is no reentrancy: a task that locks what it holds waits for itself.
#[derive(Clone)]
#[must_use = "a mutex does nothing until it is locked"]
pub struct Mutex {
    handle: Handle,
    name: Name,
    lease: Duration,
    fixed: bool,
    limit: usize,
}

impl Mutex {
    pub(crate) fn new(handle: Handle, key: Key) -> Self {
        let (lease, limit) = (handle.options().lease, handle.options().waiters_per_key);
        Mutex {
            handle,
            name: Name::lock(key),
            lease,
            fixed: false,
            limit,
        }
    }

    /// Leases of this length, 400 ms to 30 days, instead of the default. They are renewed while the guard lives.
    /// Shorter: others get in sooner after this process died, and renewals are more frequent. Longer: a longer outage
    /// of the store is survived.
    ///
    /// Callers of one process share a lease, one after the other. One that wants a longer lease than its process has
    /// waits for the next; one that wants a shorter lease may be given what its process has.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.fixed = false;
        self
    }

    /// Leases of exactly this length, 400 ms to 30 days, never renewed: "ten seconds, then let go". The guard is
    /// [lost](Guard::lost) at the end.
    pub fn fixed(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self.fixed = true;
        self
    }

    /// Refuse with [`Error::QueueFull`] when so many callers of this process already wait for the key. The smaller
    /// of this and the limit of the [`Locks`](crate::Locks) counts.
    pub fn max_waiters(mut self, limit: usize) -> Self {
        self.limit = limit.min(self.handle.options().waiters_per_key);
        self
    }

    /// What it locks.
    pub fn key(&self) -> &Key {
        &self.name.key
    }

    /// Waits for its turn, then holds the lock until the guard is released or dropped.
    ///
    /// # Errors
    /// [`Error::Store`] when the store cannot be reached or refuses; a caller that waits already rides out an outage
    /// of up to a lease. [`Error::QueueFull`], [`Error::NodeFull`], [`Error::Key`], [`Error::Options`], [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives up the place in the line, or the lock if it was granted meanwhile. The
    /// claim is withdrawn in the background.
    pub fn lock(&self) -> Lock {
        self.enter(true)
    }

    /// Takes the lock if it is free and nobody waits for it; `None` if not. Answers without a round trip when this
    /// very process holds it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); that somebody else has it is no error.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        match self.enter(false).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for its turn, but no longer than `wait`. The wait is patience; it has nothing to do with how long the
    /// lock is held.
    ///
    /// # Errors
    /// [`Error::Busy`] when the wait was over first and somebody else is known to have it; [`Error::Store`] when the
    /// store did not say so within the wait; else as [`lock`](Self::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    ///
    /// # Under a paused clock
    /// The wait goes by tokio's clock, the store by its own. Where tokio's is paused (`start_paused`) it jumps to the
    /// end of the wait as soon as nothing else is to be done, which is at once on Redis. Use
    /// [`Locks::memory`](crate::Locks::memory) in such tests: it answers in the caller's own thread.
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        if wait.is_zero() {
            return self.enter(false).await;
        }
        let mut lock = self.enter(true);
        match tokio::time::timeout(wait, &mut lock).await {
            Ok(result) => result,
            Err(_) => Err(lock.0.gave_up(wait)),
        }
    }

    /// Runs `work` under the lock and releases it. The work's future is dropped when the lease is lost.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// let fence = locks.mutex("account:42").with(|lease| async move { lease.fence() }).await?;
    /// # assert!(fence.get() > 0); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] when exclusivity did not hold to the end, even if the work was done; else as
    /// [`lock`](Self::lock) and [`Guard::release`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock in the background.
    pub async fn with<T, Fut>(&self, work: impl FnOnce(Lease) -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = T>,
    {
        let guard = self.lock().await?;
        let done = guard.run(work(guard.lease())).await?;
        guard.release().await?;
        Ok(done)
    }

    fn enter(&self, wait: bool) -> Lock {
        let wanted = Wanted {
            name: self.name.clone(),
            lease: self.lease,
            fixed: self.fixed,
            wait,
            limit: self.limit,
            tick: None,
        };
        Lock(Acquire::new(self.handle.clone(), wanted))
    }
}

/// The future of [`Mutex::lock`].
#[must_use = "futures do nothing until they are awaited"]
pub struct Lock(Acquire);

impl Future for Lock {
    type Output = Result<Guard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.0).poll(cx);
        polled.map_err(|refused| refused.into_error(self.0.key()))
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", self.0.key())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("key", self.key())
            .field("lease", &self.lease)
            .field("fixed", &self.fixed)
            .finish_non_exhaustive()
    }
}
