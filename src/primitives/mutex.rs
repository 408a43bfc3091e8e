//! An exclusive lock on one key, across every process that uses the store.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::driver::handle::Handle;
use crate::error::Error;
use crate::key::Key;
use crate::primitives::acquire::LockFuture;
use crate::primitives::blocking::block_on;
use crate::primitives::call::{self, CallFuture};
use crate::primitives::denial::unless_busy;
use crate::primitives::guard::{Guard, Lease};
#[cfg(feature = "tower")]
use crate::primitives::scope;
use crate::protocol::message::{Call, Mode, Name};
use crate::protocol::step::{CallAnswer, CallOptions, LockOptions};

/// A lock on one key. Made by [`Locks::mutex`](crate::Locks::mutex); cheap to make and to clone.
///
/// Waiting is in order: within a process callers wait in one line, and processes wait in the store's queue. A lease
/// that is handed on within the process goes to other processes after a burst, so nobody starves.
/// [`fair`](Self::fair) serves everybody in the store's order instead.
///
/// A lease lasts as long as [`Builder::lease`](crate::Builder::lease) says, 10 s unless set, and is renewed while the
/// guard lives: it does not limit how long the lock is held. [`lease`](Self::lease) and [`fixed`](Self::fixed) say
/// otherwise.
///
/// There is no reentrancy: a task that locks what it holds waits for itself; [`Guard::again`] is another guard on the
/// same lease. In the [scope](Guard::scope) of a guard, behind a layer too, such a `lock` is
/// [`Error::WouldDeadlock`] at once.
#[derive(Clone)]
#[must_use = "a mutex does nothing until it is locked"]
pub struct Mutex {
    pub(crate) handle: Handle,
    pub(crate) name: Name,
    pub(crate) options: LockOptions,
}

impl Mutex {
    /// The line for what `name` names, of any kind.
    pub(crate) fn new(handle: Handle, name: Name) -> Self {
        let options = handle.options().lock();
        Mutex {
            handle,
            name,
            options,
        }
    }

    /// Leases of this length, 400 ms to 30 days, instead of the default. They are renewed while the guard lives.
    /// Shorter: others get in sooner after this process died, and renewals are more frequent. Longer: a longer outage
    /// of the store is survived.
    ///
    /// Callers of one process share a lease, one after the other. One that wants a longer lease than its process has
    /// waits for the next; one that wants a shorter lease may be given what its process has.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.term = self.handle.options().times(lease);
        self.options.fixed = false;
        self
    }

    /// Leases of exactly this length, 400 ms to 30 days, never renewed: "ten seconds, then let go". The guard is
    /// [lost](Guard::lost) at the end.
    pub fn fixed(mut self, lease: Duration) -> Self {
        self.options.term = self.handle.options().times(lease);
        self.options.fixed = true;
        self
    }

    /// First come, first served across all processes: each call waits with a place of its own in the store's queue, and
    /// the lease is never handed on within the process. To be set by everybody who locks the key: who does not set it
    /// is handed the lease by others of its process, before those who came earlier elsewhere.
    ///
    /// The order is that in which the store sees the calls. A place is lost when its process was not heard of for a lease, and
    /// passed over, but kept, when it was not for two thirds of one.
    ///
    /// What it costs: each hand-over is a trip to the store and a push, where the default serves up to 256 callers of a
    /// process for one trip; each waiting call is an entry in the store's queue, and is renewed each third of a lease in
    /// a request of its own, where the default has one for the whole process. For tens of waiters of a key, not for
    /// thousands. What the default costs: another process may wait for a burst, 20 ms, at each turn
    /// ([`Builder::burst`](crate::Builder::burst)).
    pub fn fair(mut self) -> Self {
        self.options.solo = true;
        self
    }

    /// Refuse with [`Error::QueueFull`] when so many callers of this process already wait for the key. The smaller
    /// of this and the limit of the [`Locks`](crate::Locks) counts.
    pub fn max_waiters(mut self, limit: usize) -> Self {
        self.options.limit = limit.min(self.handle.options().max_waiters_per_key);
        self
    }

    /// Renew the lease no longer than this, counted from the grant, as a bound for work that hangs. At that moment the
    /// holder is told ([`Lease::overdue`]), with an event, and has what is left of the lease, two thirds of it or more
    /// while the store answers, to come to an end; then the lease is [lost](Guard::lost). Unless set there is no bound. A
    /// [fixed](Self::fixed) lease has its own.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.options.max_hold = Some(most);
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
    /// of up to a lease. [`Error::QueueFull`], [`Error::NodeFull`], [`Error::WouldDeadlock`], [`Error::Key`], [`Error::Options`],
    /// [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives up the place in the line, or the lock if it was granted meanwhile. The
    /// claim is withdrawn in the background.
    pub fn lock(&self) -> LockFuture {
        self.enter(Mode::Exclusive, true)
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
        self.try_enter(Mode::Exclusive).await
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
    /// Where it has to wait, outside of a tokio runtime with time enabled.
    ///
    /// # Under a paused clock
    /// The wait goes by tokio's clock, the store by its own. Where tokio's is paused (`start_paused`) it jumps to the
    /// end of the wait as soon as nothing else is to be done, which is at once on Redis. Use
    /// [`Locks::memory`](crate::Locks::memory) in such tests: it answers in the caller's own thread.
    pub async fn lock_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        self.enter_timeout(Mode::Exclusive, wait).await
    }

    /// As [`lock`](Self::lock), for code that is not async: the thread sleeps until it holds the lock.
    ///
    /// ```
    /// # fn main() -> Result<(), tenure::Error> {
    /// let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("account:42").blocking_lock()?;
    /// guard.blocking_release()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// In async code, as tokio's own `blocking_lock`: the thread drives other tasks, too. Call [`lock`](Self::lock) there, or
    /// this one inside of `spawn_blocking`.
    #[track_caller]
    pub fn blocking_lock(&self) -> Result<Guard, Error> {
        block_on(self.lock())
    }

    /// As [`try_lock`](Self::try_lock), for code that is not async: the thread sleeps for a round trip.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    ///
    /// # Panics
    /// As [`blocking_lock`](Self::blocking_lock).
    #[track_caller]
    pub fn blocking_try_lock(&self) -> Result<Option<Guard>, Error> {
        block_on(self.try_lock())
    }

    /// As [`lock_timeout`](Self::lock_timeout), for code that is not async: the thread sleeps, but no longer than `wait`.
    ///
    /// # Errors
    /// As [`lock_timeout`](Self::lock_timeout).
    ///
    /// # Panics
    /// As [`blocking_lock`](Self::blocking_lock).
    #[track_caller]
    pub fn blocking_lock_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        block_on(self.lock_timeout(wait))
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

    /// The lease is one of this lock's, whether or not it is over.
    #[cfg(feature = "tower")]
    pub(crate) fn is_of(&self, lease: &Lease) -> bool {
        lease.held.is_on(self.handle.node(), &self.name) && lease.held.mode == Mode::Exclusive
    }

    /// What is held of it by the code that is being polled.
    #[cfg(feature = "tower")]
    pub(crate) fn held_here(&self) -> Option<Lease> {
        let held = scope::find(self.handle.node(), &self.name)?;
        (held.mode == Mode::Exclusive).then_some(Lease { held })
    }

    pub(crate) async fn try_enter(&self, mode: Mode) -> Result<Option<Guard>, Error> {
        unless_busy(self.enter(mode, false).await)
    }

    pub(crate) async fn enter_timeout(&self, mode: Mode, wait: Duration) -> Result<Guard, Error> {
        if wait.is_zero() {
            return self.enter(mode, false).await;
        }
        self.enter(mode, true).within(wait).await
    }

    pub(crate) fn enter(&self, mode: Mode, wait: bool) -> LockFuture {
        let options = LockOptions {
            mode,
            wait,
            ..self.options
        };
        LockFuture::new(&self.handle, &self.name, options)
    }

    /// Asks about what the line is for. `set` adds what the question needs, and `read` takes the value out of an answer of the
    /// kind that the question has.
    ///
    /// # Errors
    /// Bad input, and a forked process.
    pub(crate) fn ask<T>(
        &self,
        call: Call,
        set: impl FnOnce(&mut CallOptions),
        read: fn(CallAnswer) -> Option<T>,
    ) -> Result<CallFuture<T>, Error> {
        let (handle, name) = (&self.handle, &self.name);
        let mut options = call::check(handle, name, self.options.term, call)?;
        set(&mut options);
        Ok(CallFuture::new(handle, name, options, read))
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("key", self.key())
            .field("lease", &self.options.lease())
            .field("fixed", &self.options.fixed)
            .field("fair", &self.options.solo)
            .finish_non_exhaustive()
    }
}
