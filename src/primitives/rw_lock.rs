//! A lock on one key that many read or one writes, across every process that uses the store.

use std::future::Future;
use std::time::Duration;

use crate::error::{Error, OptionsError};
use crate::key::Key;
use crate::primitives::acquire::Acquire;
use crate::primitives::guard::{Guard, Lease};
use crate::primitives::mutex::run_under;
use crate::primitives::target::Target;
use crate::primitives::transfer::TransferError;
use crate::protocol::message::{Kind, Mode};
use crate::protocol::primitive::Primitive;
use crate::protocol::step::Input;

/// A lock on one key that any number of readers hold at once, or one writer. Made by
/// [`Locks::rw_lock`](crate::Locks::rw_lock); cheap to make and to clone.
///
/// Its write side is the [`Mutex`](crate::Mutex) of the same key: they exclude each other. Clients of other libraries on that record see
/// readers as a lock that is held.
///
/// Waiting is in order, within a process and across processes, so neither side starves. A reader that comes while a writer
/// waits gets in after that writer. When readers are next, all of them get in, up to the next writer. Readers of one
/// process share a lease of their process for a burst ([`Builder::burst`](crate::Builder::burst)), and take no round trip
/// while the burst lasts.
///
/// A reader that dies blocks writers until its own lease ends, and no longer.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let prices = locks.rw_lock("prices");
/// let (one, other) = (prices.read().await?, prices.read().await?);
/// assert!(prices.try_write().await?.is_none());
/// drop((one, other));
/// let writer = prices.write().await?;
/// let reader = writer.downgrade().await?;
/// assert!(prices.try_read().await?.is_some());
/// # reader.release().await }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a read-write lock does nothing until it is locked"]
pub struct RwLock(Target);

impl RwLock {
    /// Returns the read-write lock with this write side.
    pub(crate) fn new(write: Target) -> Self {
        RwLock(write)
    }

    /// Sets the length of the leases of readers and writers, as [`Mutex::lease`](crate::Mutex::lease).
    pub fn lease(self, lease: Duration) -> Self {
        RwLock(self.0.lease(lease))
    }

    /// Sets fixed leases for readers and writers, as [`Mutex::fixed`](crate::Mutex::fixed). Each reader then has a lease of its own.
    pub fn fixed(self, lease: Duration) -> Self {
        RwLock(self.0.fixed(lease))
    }

    /// Serves readers and writers of all processes first come, first served, as [`Mutex::fair`](crate::Mutex::fair). Each reader then has a lease of
    /// its own.
    pub fn fair(self) -> Self {
        RwLock(self.0.fair())
    }

    /// Limits how many callers of this process may wait, readers and writers together, as [`Mutex::max_waiters`](crate::Mutex::max_waiters).
    pub fn max_waiters(self, limit: usize) -> Self {
        RwLock(self.0.max_waiters(limit))
    }

    /// Limits how long a reader or a writer may hold the lock, as [`Mutex::max_hold`](crate::Mutex::max_hold). Each reader then has a lease of its
    /// own.
    pub fn max_hold(self, max: Duration) -> Self {
        RwLock(self.0.max_hold(max))
    }

    /// Returns the key of the lock.
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// Acquires the lock for reading, beside other readers and no writer, until the guard is released or dropped.
    /// Code that is not async waits by [`block_on`](crate::block_on).
    ///
    /// In the [scope](Lease::scope) of a guard of this key `read` returns [`Error::WouldDeadlock`], also if that guard reads.
    /// Otherwise a writer that waits between the two waits for the first reader, and the second reader waits for the writer.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    #[doc(alias = "blocking_read")]
    pub fn read(&self) -> Acquire {
        self.0.enter(Mode::Read, true)
    }

    /// Acquires the lock for reading if no writer holds it or waits for it, else returns `None`.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn try_read(&self) -> Result<Option<Guard>, Error> {
        self.0.try_enter(Mode::Read).await
    }

    /// Acquires the lock for reading, and waits for at most `wait`. With zero it tries once.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Panics
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub async fn read_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        self.0.enter_timeout(Mode::Read, wait).await
    }

    /// Acquires the lock for reading, runs `work` under it, and releases it, as [`Mutex::with`](crate::Mutex::with) does.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// let prices = locks.rw_lock("prices");
    /// let total = prices.read_with(|_| async { 2 + 3 }).await?;
    /// prices.write_with(|lease| async move { assert!(lease.is_held()) }).await?;
    /// # assert_eq!(total, 5); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Cancel safety
    /// As [`Mutex::with`](crate::Mutex::with).
    pub async fn read_with<T, Fut>(&self, work: impl FnOnce(Lease) -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = T>,
    {
        run_under(self.read(), work).await
    }

    /// Acquires the lock for writing, alone, until the guard is released or dropped. This is [`Mutex::lock`](crate::Mutex::lock) on the same key.
    /// Code that is not async waits by [`block_on`](crate::block_on).
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock). In the [scope](Lease::scope) of a guard that reads, `write` returns [`Error::WouldDeadlock`], whose
    /// text says why a reader cannot become a writer.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    #[doc(alias = "blocking_write")]
    pub fn write(&self) -> Acquire {
        self.0.enter(Mode::Exclusive, true)
    }

    /// Acquires the lock for writing if it is free and no caller waits for it, else returns `None`.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn try_write(&self) -> Result<Option<Guard>, Error> {
        self.0.try_enter(Mode::Exclusive).await
    }

    /// Acquires the lock for writing, and waits for at most `wait`. With zero it tries once.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Panics
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub async fn write_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        self.0.enter_timeout(Mode::Exclusive, wait).await
    }

    /// Acquires the lock for writing, runs `work` under it, and releases it, as [`Mutex::with`](crate::Mutex::with) does.
    ///
    /// # Errors
    /// As [`Mutex::with`](crate::Mutex::with).
    ///
    /// # Cancel safety
    /// As [`Mutex::with`](crate::Mutex::with).
    pub async fn write_with<T, Fut>(&self, work: impl FnOnce(Lease) -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = T>,
    {
        run_under(self.write(), work).await
    }

    /// Returns whether the calling code runs under this lock, as a reader or as a writer. Otherwise as
    /// [`Mutex::is_held_here`](crate::Mutex::is_held_here).
    pub fn is_held_here(&self) -> bool {
        self.0.find_held().is_some()
    }

    /// Returns whether the calling code runs under this lock as the writer; see [`Mutex::is_held_here`](crate::Mutex::is_held_here).
    pub fn is_write_held_here(&self) -> bool {
        self.0.writes_here()
    }
}

impl Guard {
    /// Turns a writer into a reader. No other writer gets in between. Waiting readers get in, up to the first writer.
    ///
    /// The guard of a mutex is a writer's. A guard that reads, holds permits or is of a job's tick stays as it is.
    ///
    /// Takes one round trip. The new guard has a [fence](Lease::fence) of its own, larger than the writer's. A request
    /// without an answer is retried. A [fixed](crate::RwLock::fixed) lease keeps its end, and a
    /// [`max_hold`](crate::RwLock::max_hold) counts from the grant of the writer.
    ///
    /// # Errors
    /// [`TransferError::Refused`] with the guard, which still writes, in two cases. There are other guards of the lease
    /// ([clones](Guard), or of [`again`](Lease::again)), which would become readers without notice. Or the store refused or was not asked, and
    /// certainly did nothing. Then the guard keeps its fence and its deadline. Its [`lease`](Self::lease) reported a release
    /// when this was called, so call `lease` again.
    ///
    /// [`TransferError::Failed`] if the lease was lost, the store did not answer, or the [`Locks`](crate::Locks) are closed.
    /// Then nothing is held any more.
    ///
    /// # Cancel safety
    /// The lock counts as released from the first poll. Dropping the future releases the reader's lease, too.
    pub async fn downgrade(mut self) -> Result<Guard, TransferError> {
        self.held().not_forked().map_err(TransferError::Failed)?;
        if self.held().mode != Mode::Exclusive || self.held().name.kind != Kind::Lock {
            return Ok(self);
        }
        let key = self.key().clone();
        if let Some(source) = self.held().handle.node().servers.refusal(Primitive::Transfer) {
            return Err(TransferError::Refused(self, Error::Store { key, source }));
        }
        if !self.end_if_only() {
            let error = OptionsError(format!(
                "cannot downgrade `{key}`: there are other guards of the same lease, release them first"
            ));
            return Err(TransferError::Refused(self, Error::Options(error)));
        }
        let held = self.held().clone();
        self.pass(Mode::Read, held.fixed, |ticket| {
            Input::Downgrade(held.ticket, ticket)
        })
        .await
    }
}
