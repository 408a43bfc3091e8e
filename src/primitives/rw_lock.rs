//! A lock on one key that many read or one writes, across every process that uses the store.

use std::time::Duration;

use crate::error::{Error, OptionsError};
use crate::key::Key;
use crate::primitives::acquire::LockFuture;
use crate::primitives::guard::Guard;
use crate::primitives::mutex::Mutex;
use crate::primitives::transfer::TransferError;
use crate::protocol::message::{Kind, Mode};
use crate::protocol::step::Input;

/// A lock on one key that any number of readers hold at once, or one writer. Made by
/// [`Locks::rw_lock`](crate::Locks::rw_lock); cheap to make and to clone.
///
/// Its write side is the [`Mutex`] of the same key: they exclude each other, and clients of other libraries on that record
/// see readers as a lock that is held.
///
/// Waiting is in order, within a process and across processes, so neither side starves: a reader that comes while a writer
/// waits gets in after it, and when it is the turn of readers all of them get in up to the next writer. Readers of one
/// process share a lease of their process for a burst ([`Builder::burst`](crate::Builder::burst)), and get in without
/// asking the store while it lasts.
///
/// A process of a version without read-write locks is refused ([`StoreRefusal::WrongType`](crate::error::StoreRefusal)) while
/// readers have the key: it never gets in beside them. Deploy this version everywhere before something reads.
///
/// A reader that dies keeps writers out until its own lease ends, and no longer.
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
pub struct RwLock(Mutex);

impl RwLock {
    /// Of which that is the write side.
    pub(crate) fn new(write: Mutex) -> Self {
        RwLock(write)
    }

    /// As [`Mutex::lease`], for readers and writers.
    pub fn lease(self, lease: Duration) -> Self {
        RwLock(self.0.lease(lease))
    }

    /// As [`Mutex::fixed`], for readers and writers. Each reader then has a lease of its own.
    pub fn fixed(self, lease: Duration) -> Self {
        RwLock(self.0.fixed(lease))
    }

    /// As [`Mutex::max_waiters`], for readers and writers together.
    pub fn max_waiters(self, limit: usize) -> Self {
        RwLock(self.0.max_waiters(limit))
    }

    /// As [`Mutex::max_hold`], for readers and writers. Each reader then has a lease of its own.
    pub fn max_hold(self, most: Duration) -> Self {
        RwLock(self.0.max_hold(most))
    }

    /// What it locks.
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// Waits for its turn, then reads until the guard is released or dropped: beside other readers, and no writer.
    ///
    /// In the [scope](Guard::scope) of a guard of this key it is [`Error::WouldDeadlock`], also when that guard reads: a
    /// writer that waits between the two would wait for the first, and the second for the writer.
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub fn read(&self) -> LockFuture {
        self.0.enter(Mode::Read, true)
    }

    /// Reads, if nobody writes or waits to write; `None` if somebody does.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`].
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub async fn try_read(&self) -> Result<Option<Guard>, Error> {
        self.0.try_enter(Mode::Read).await
    }

    /// Waits for its turn to read, but no longer than `wait`.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`].
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Panics
    /// As [`Mutex::lock_timeout`].
    pub async fn read_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        self.0.enter_timeout(Mode::Read, wait).await
    }

    /// Waits for its turn, then writes until the guard is released or dropped: beside nobody. The same as
    /// [`Mutex::lock`] on this key.
    ///
    /// # Errors
    /// As [`Mutex::lock`]. In the [scope](Guard::scope) of a guard that reads it is [`Error::WouldDeadlock`], which says
    /// why a reader cannot become a writer.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub fn write(&self) -> LockFuture {
        self.0.lock()
    }

    /// Writes, if nobody holds it or waits for it; `None` if not.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`].
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub async fn try_write(&self) -> Result<Option<Guard>, Error> {
        self.0.try_lock().await
    }

    /// Waits for its turn to write, but no longer than `wait`.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`].
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Panics
    /// As [`Mutex::lock_timeout`].
    pub async fn write_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        self.0.lock_timeout(wait).await
    }
}

impl Guard {
    /// A writer goes on as a reader: nobody writes in between, and readers that wait get in, up to the first writer. The
    /// guard of a mutex is a writer's. A guard that reads, holds permits or is of a job's tick stays as it is.
    ///
    /// It costs a trip to the store, and the new guard has a [fence](Self::fence) of its own, larger than that of the
    /// writer. A lost answer is asked for again. A [fixed](crate::RwLock::fixed) lease ends when it would have ended, and a
    /// [`max_hold`](crate::RwLock::max_hold) counts from when the writer was granted.
    ///
    /// # Errors
    /// [`TransferError::Refused`] with the guard, which still writes: there are other guards of the lease
    /// ([`again`](Self::again)), which would be readers without knowing it; or the store refused, or was not asked, and surely
    /// did nothing. Then the guard has its fence and its deadline as before. What watches the lease ([`lease`](Self::lease))
    /// was told that it is released when this was called, so take a new view of it. [`TransferError::Failed`] when the lease
    /// was lost, or the store did not answer, or the [`Locks`](crate::Locks) are closed: nothing is held any more.
    ///
    /// # Cancel safety
    /// The lock counts as given back from the first poll. Dropping the future gives up what it becomes, too.
    pub async fn downgrade(mut self) -> Result<Guard, TransferError> {
        self.held().not_forked().map_err(TransferError::Failed)?;
        if self.held().mode != Mode::Exclusive || self.held().name.kind != Kind::Lock {
            return Ok(self);
        }
        let key = self.key().clone();
        if !self.take() {
            let error = OptionsError(format!(
                "cannot downgrade `{key}`: there are other guards of the same lease, give them back first"
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
