//! A number of permits on one key, across every process that uses the store.

use std::time::Duration;

use crate::error::Error;
use crate::key::Key;
use crate::primitives::acquire::{LockFuture, check_permits};
use crate::primitives::guard::Guard;
use crate::primitives::mutex::Mutex;
use crate::primitives::transfer::Transfer;
use crate::protocol::message::{Call, Mode, Permits};
use crate::protocol::step::CallAnswer;

/// So many permits, held by callers of all processes together: "at most ten calls to the bank at a time". Made by
/// [`Locks::semaphore`](crate::Locks::semaphore); cheap to make and to clone.
///
/// Each holder has a lease of its own, which is renewed while its guard lives. The permits of a process that dies are free
/// again when its leases have ended; nobody has to give them back.
///
/// Waiting is in order, within a process and across processes: a request for many is not overtaken by requests for few, which
/// wait behind it even where there are permits for them. Of one process and key one request waits in the store, for whoever
/// is first here; a permit that is given back goes to who is first here, if it wants as many, for a burst
/// ([`Builder::burst`](crate::Builder::burst)).
///
/// The number of permits is that of this handle, and goes with each request. Where processes differ, as while a deploy changes
/// it, each request is judged by its own number, and an event tells of it (`capacity_differs`): then as many may be held as the
/// largest number says.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let calls = locks.semaphore("bank", 3);
/// let (one, two) = (calls.acquire().await?, calls.acquire_many(2).await?);
/// assert!(calls.try_acquire().await?.is_none());
/// drop(two);
/// assert_eq!(calls.available_permits().await?, 2);
/// # one.release().await }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a semaphore does nothing until permits are acquired"]
pub struct Semaphore {
    /// The settings of both are the same.
    line: Mutex,
    permits: u32,
}

impl Semaphore {
    pub(crate) fn new(line: Mutex, permits: u32) -> Self {
        Semaphore { line, permits }
    }

    /// As [`Mutex::lease`].
    pub fn lease(self, lease: Duration) -> Self {
        let line = self.line.lease(lease);
        Semaphore { line, ..self }
    }

    /// As [`Mutex::fixed`].
    pub fn fixed(self, lease: Duration) -> Self {
        let line = self.line.fixed(lease);
        Semaphore { line, ..self }
    }

    /// As [`Mutex::fair`].
    pub fn fair(self) -> Self {
        let line = self.line.fair();
        Semaphore { line, ..self }
    }

    /// As [`Mutex::max_waiters`]. A request that was sent and is not answered yet counts as one that waits.
    pub fn max_waiters(self, limit: usize) -> Self {
        let line = self.line.max_waiters(limit);
        Semaphore { line, ..self }
    }

    /// As [`Mutex::max_hold`].
    pub fn max_hold(self, most: Duration) -> Self {
        let line = self.line.max_hold(most);
        Semaphore { line, ..self }
    }

    /// What it is called.
    pub fn key(&self) -> &Key {
        self.line.key()
    }

    /// How many permits there are for this handle, whoever holds them.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Waits for its turn and a permit, then holds it until the guard is released or dropped.
    ///
    /// A task that waits for a permit while it holds another of the same semaphore may wait for itself; take them together
    /// by [`acquire_many`](Self::acquire_many).
    ///
    /// # Errors
    /// As [`Mutex::lock`], but for [`Error::WouldDeadlock`]. [`Error::Options`] for a semaphore of no permits.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub fn acquire(&self) -> LockFuture {
        self.acquire_many(1)
    }

    /// Waits for its turn and so many permits at once, under one guard.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). [`Error::Options`] for no permits, and for more than there are.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub fn acquire_many(&self, permits: u32) -> LockFuture {
        self.line.enter(self.mode(permits), true)
    }

    /// Takes a permit, if there is one and nobody waits; `None` if not. A trip to the store, always.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`]. [`Error::Options`] for a semaphore of no permits.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.try_acquire_many(1).await
    }

    /// Takes so many permits at once, if there are as many and nobody waits; `None` if not.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire). [`Error::Options`] for no permits, and for more than there are.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>, Error> {
        self.line.try_enter(self.mode(permits)).await
    }

    /// Waits for its turn and a permit, but no longer than `wait`.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`], but for [`Error::WouldDeadlock`]. [`Error::Options`] for a semaphore of no permits.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Panics
    /// As [`Mutex::lock_timeout`].
    pub async fn acquire_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        self.acquire_many_timeout(1, wait).await
    }

    /// Waits for its turn and so many permits at once, but no longer than `wait`.
    ///
    /// # Errors
    /// As [`acquire_timeout`](Self::acquire_timeout). [`Error::Options`] for no permits, and for more than there are.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`].
    ///
    /// # Panics
    /// As [`Mutex::lock_timeout`].
    pub async fn acquire_many_timeout(&self, permits: u32, wait: Duration) -> Result<Guard, Error> {
        self.line.enter_timeout(self.mode(permits), wait).await
    }

    /// Waits for its turn and a permit that is not renewed: whoever has the [`Transfer`] gives it back
    /// ([`Locks::release`](crate::Locks::release)), or it is free again when `lease` and the margin are over, without anybody's help. They count
    /// from the second of two trips to the store.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). [`Error::Options`] for a lease that the [`Builder`](crate::Builder) would not take.
    ///
    /// # Cancel safety
    /// Dropping the future gives back what it acquires.
    pub async fn acquire_for(&self, lease: Duration) -> Result<Transfer, Error> {
        let guard = self.clone().fixed(lease).acquire().await?;
        Ok(guard.into_transfer(lease).await?)
    }

    /// Asks the store how many permits nobody holds. That may have changed when the answer arrives, and somebody may wait for
    /// them.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`].
    ///
    /// # Cancel safety
    /// Nothing is held or left behind.
    pub async fn available_permits(&self) -> Result<u32, Error> {
        let (line, permits) = (&self.line, self.weighing(self.permits));
        check_permits(self.key(), permits)?;
        let mode = Mode::Permits(permits);
        let asked = line.ask(Call::InUse, |call| call.mode = mode, CallAnswer::try_as_in_use);
        let in_use = asked?.await?;
        let in_use = in_use.map_or(u32::MAX, |permits| u32::try_from(permits).unwrap_or(u32::MAX));
        Ok(self.permits.saturating_sub(in_use))
    }

    fn mode(&self, permits: u32) -> Mode {
        Mode::Permits(self.weighing(permits))
    }

    fn weighing(&self, weight: u32) -> Permits {
        Permits {
            weight,
            capacity: self.permits,
        }
    }
}

impl Guard {
    /// How many permits of a semaphore it holds; 1 for what is none.
    pub fn num_permits(&self) -> u32 {
        match self.held().mode {
            Mode::Permits(permits) => permits.weight,
            Mode::Exclusive | Mode::Read => 1,
        }
    }
}
