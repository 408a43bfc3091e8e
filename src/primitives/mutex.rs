//! An exclusive lock on one key, across every process that uses the store.

use std::future::Future;
use std::time::Duration;

use crate::error::Error;
use crate::key::Key;
use crate::primitives::acquire::Acquire;
use crate::primitives::guard::{Guard, Lease};
use crate::primitives::target::Target;
use crate::protocol::message::Mode;

/// A lock on one key. Made by [`Locks::mutex`](crate::Locks::mutex); cheap to make and to clone.
///
/// Waiting is in order: callers of one process wait in a local queue, and processes wait in the store's queue. A lease
/// that is handed on within the process goes to other processes after a burst, so no process starves.
/// [`fair`](Self::fair) serves all callers in the store's order instead.
///
/// A lease lasts for [`Builder::lease`](crate::Builder::lease), 10 s by default, and is renewed while the guard lives: it
/// does not limit how long the lock is held. [`lease`](Self::lease) and [`fixed`](Self::fixed) change that for one lock.
///
/// The lock is not reentrant: a task that locks a key that it holds waits for itself. [`Lease::again`] makes another guard
/// on the same lease. In the [scope](Lease::scope) of a guard, and behind a layer, such a `lock` returns
/// [`Error::WouldDeadlock`] at once.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let account = locks.mutex(("account", 42));       // the key `account:42`
/// let guard = account.lock().await?;                // waits for its turn
/// assert!(account.try_lock().await?.is_none());     // `None` if the key is busy; an `Err` is a failure
/// println!("fence {}", guard.fence());              // let the resource refuse smaller fences
/// guard.release().await?;                           // or drop it
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a mutex does nothing until it is locked"]
pub struct Mutex(pub(crate) Target);

impl Mutex {
    /// Sets the length of the leases, 400 ms to 30 days. They are renewed while the guard lives.
    ///
    /// With shorter leases other processes get the lock sooner after this process died, and renewals are more frequent.
    /// With longer leases this process survives a longer outage of the store.
    ///
    /// Callers of one process share a lease, one after the other. A caller that wants a longer lease than its process has
    /// waits for the next lease. A caller that wants a shorter lease may get the lease of its process.
    pub fn lease(self, lease: Duration) -> Self {
        Mutex(self.0.lease(lease))
    }

    /// Sets leases of exactly this length, 400 ms to 30 days, which the background thread never renews: "ten seconds, then
    /// let go". The guard is [lost](Lease::lost) at the end. With [`Recovery::Always`](crate::Recovery::Always) no lease is
    /// longer than its `longest`, and a quorum has a bound of its own.
    #[doc(alias = "ttl")]
    pub fn fixed(self, lease: Duration) -> Self {
        Mutex(self.0.fixed(lease))
    }

    /// Serves callers of all processes first come, first served. Each call waits with a place of its own in the store's
    /// queue, and the lease is never handed on within the process.
    ///
    /// Every program that locks the key must set it. A caller without it gets the lease from other callers of its process,
    /// before callers of other processes that came earlier.
    ///
    /// The order is that in which the store sees the calls. A process that is silent for a lease loses its places. A
    /// process that is silent for two thirds of a lease is passed over, and keeps its places.
    ///
    /// Costs: each hand-over takes a round trip and a push. Without `fair` up to 256 callers of a process are served for one
    /// round trip. Each waiting call is an entry in the store's queue, with a renewal of its own each third of a lease;
    /// without `fair` the whole process has one entry. So use `fair` for tens of waiters of a key, not for thousands. Without
    /// `fair` another process may wait for a burst of 20 ms at each turn ([`Builder::burst`](crate::Builder::burst)).
    pub fn fair(self) -> Self {
        Mutex(self.0.fair())
    }

    /// Limits how many callers of this process may wait for the key ([`Error::QueueFull`]).
    ///
    /// This limit replaces [`Builder::max_waiters_per_key`](crate::Builder::max_waiters_per_key) for calls of this handle,
    /// and may be smaller or larger. A caller that is the first of its process is never refused, not even with zero.
    /// [`Builder::max_waiters_per_node`](crate::Builder::max_waiters_per_node) applies to all calls.
    pub fn max_waiters(self, limit: usize) -> Self {
        Mutex(self.0.max_waiters(limit))
    }

    /// Stops the renewal of the lease when it was held for `max`, counted from the grant: a limit for work that hangs.
    ///
    /// At that moment [`Lease::overdue`] resolves, and an event is logged. The holder then has the rest of the lease to come
    /// to an end, two thirds of the lease or more while the store answers. After that the lease is [lost](Lease::lost). By
    /// default there is no limit. A [fixed](Self::fixed) lease has its own.
    pub fn max_hold(self, max: Duration) -> Self {
        Mutex(self.0.max_hold(max))
    }

    /// Sets how long the lease stays with this process after its last release, in place of
    /// [`Builder::keep`](crate::Builder::keep). Zero: it is given back at once.
    pub fn keep(self, keep: Duration) -> Self {
        Mutex(self.0.keep(keep))
    }

    /// Returns the key of the lock.
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// Acquires the lock, and holds it until the guard is released or dropped. Waits while the lock is held.
    /// Code that is not async waits by [`block_on`](crate::block_on).
    ///
    /// # Errors
    /// [`Error::Store`] if the store cannot be reached or refuses; [an outage](crate::error#unavailable) does not end a wait at
    /// once. [`Error::QueueFull`], [`Error::NodeFull`], [`Error::WouldDeadlock`], [`Error::Key`], [`Error::Options`],
    /// [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives up the place in the queue. A lock that was granted meanwhile is released in
    /// the background.
    #[doc(alias = "blocking_lock")]
    pub fn lock(&self) -> Acquire {
        self.0.enter(Mode::Exclusive, true)
    }

    /// Acquires the lock if it is free and no caller waits for it, else returns `None`. Takes no round trip if this process
    /// holds the lock.
    ///
    /// # Errors
    /// As [`lock`](Self::lock). A lock that is held is no error.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.0.try_enter(Mode::Exclusive).await
    }

    /// Acquires the lock, and waits for at most `wait`. The wait does not limit how long the lock is held. With zero it
    /// tries once.
    ///
    /// # Errors
    /// [`Error::Busy`] or [`Error::Store`] when the wait ends: [which of the two](crate::error#busy). [`Error::Store`] at once if
    /// the store [recovers](crate::Locks::recovering) for longer than the wait. Other errors as of [`lock`](Self::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled, if it must wait.
    ///
    /// # Under a paused clock
    /// The wait uses tokio's clock, and the store uses its own. If tokio's clock is paused (`start_paused`), it jumps to the
    /// end of the wait as soon as all tasks are idle, which is at once on Redis. Use
    /// [`Locks::memory`](crate::Locks::memory) in such tests: it answers in the caller's own thread.
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        self.0.enter_timeout(Mode::Exclusive, wait).await
    }

    /// Acquires the lock, runs `work` under it, and releases it. The work's future is dropped if the lease is lost.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// let fence = locks.mutex("account:42").with(|lease| async move { lease.fence() }).await?;
    /// # assert!(fence.get() > 0); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before the end, even if the work was done. Other errors as of
    /// [`lock`](Self::lock) and [`Guard::release`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock in the background.
    pub async fn with<T, Fut>(&self, work: impl FnOnce(Lease) -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = T>,
    {
        run_under(self.lock(), work).await
    }

    /// Returns whether the calling code runs under this lock: a check for functions that only a holder may call. Takes no
    /// round trip.
    ///
    /// Code runs under the lock while it is polled inside [`with`](Self::with), [`Lease::run`], [`Lease::scope`] or a handler
    /// behind a `LockLayer`, with a lease on this key that is still held. The lease may be that of a mutex, of the write side
    /// of an [`RwLock`](crate::RwLock), or of a [`MultiLock`](crate::MultiLock) that writes the key. It must come from the same
    /// [`Locks`](crate::Locks) or a clone of them.
    ///
    /// Returns `false` in all other code, even if its task owns a guard: a guard alone is no scope. A task or thread that is
    /// started under the lock does not run under it; run its code in [`Lease::scope`] instead. Permits of a semaphore, the
    /// leadership of an election and the tick of a job are no locks.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// fn book(account: &tenure::Mutex) {
    ///     assert!(account.is_held_here(), "only under the lock of the account");
    ///     // …
    /// }
    ///
    /// let account = locks.mutex("account:42");
    /// account.with(async |_| book(&account)).await?;
    /// assert!(!account.is_held_here());
    /// # Ok(()) }
    /// ```
    pub fn is_held_here(&self) -> bool {
        self.0.writes_here()
    }
}

/// Acquires by `lock`, runs `work` under the guard, and releases it.
///
/// # Errors
/// As [`Mutex::with`].
pub(crate) async fn run_under<T, Fut>(lock: Acquire, work: impl FnOnce(Lease) -> Fut) -> Result<T, Error>
where
    Fut: Future<Output = T>,
{
    let guard = lock.await?;
    let done = guard.run(work(guard.lease())).await?;
    guard.release().await?;
    Ok(done)
}
