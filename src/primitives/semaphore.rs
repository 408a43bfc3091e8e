//! A number of permits on one key, across every process that uses the store.

use std::future::Future;
use std::time::Duration;

use crate::error::Error;
use crate::key::Key;
use crate::primitives::acquire::{Acquire, check_permits};
use crate::primitives::guard::{Guard, Lease};
use crate::primitives::mutex::run_under;
use crate::primitives::target::Target;
use crate::primitives::transfer::Transfer;
use crate::protocol::message::{Call, CallAnswer, Mode, Permits};

/// A number of permits that callers of all processes share: "at most ten calls to the bank at a time". Made by
/// [`Locks::semaphore`](crate::Locks::semaphore); cheap to make and to clone.
///
/// Each holder has a lease of its own, which is renewed while its guard lives. The permits of a process that dies are free
/// again when its leases have ended.
///
/// Waiting is in order, within a process and across processes. A request for many permits is not overtaken by requests for
/// few: they wait behind it, even if there are permits for them. One request of each process and key waits in the store,
/// for the first local caller. A released permit goes to the first local caller if that caller wants as many, for a burst
/// ([`Builder::burst`](crate::Builder::burst)).
///
/// The number of permits is that of this handle, and is sent with each request. Processes may differ in it, for example
/// during a deploy. Then each request is judged by its own number, and an event reports it (`capacity_differs`): as many
/// permits may be held as the largest number allows.
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
    /// The target of the key, with the options of all requests.
    target: Target,
    permits: u32,
}

impl Semaphore {
    pub(crate) fn new(target: Target, permits: u32) -> Self {
        Semaphore { target, permits }
    }

    /// Sets the length of the leases, as [`Mutex::lease`](crate::Mutex::lease).
    pub fn lease(self, lease: Duration) -> Self {
        let target = self.target.lease(lease);
        Semaphore { target, ..self }
    }

    /// Sets fixed leases, as [`Mutex::fixed`](crate::Mutex::fixed): the guard of a permit gives it back earlier. Without a guard, see
    /// [`acquire_transfer`](Self::acquire_transfer).
    #[doc(alias = "ttl")]
    pub fn fixed(self, lease: Duration) -> Self {
        let target = self.target.fixed(lease);
        Semaphore { target, ..self }
    }

    /// Serves callers of all processes first come, first served, as [`Mutex::fair`](crate::Mutex::fair).
    pub fn fair(self) -> Self {
        let target = self.target.fair();
        Semaphore { target, ..self }
    }

    /// Limits how many callers of this process may wait, as [`Mutex::max_waiters`](crate::Mutex::max_waiters). A request that was sent and is not
    /// answered yet counts as a waiter.
    pub fn max_waiters(self, limit: usize) -> Self {
        let target = self.target.max_waiters(limit);
        Semaphore { target, ..self }
    }

    /// Limits how long a holder may keep its permits, as [`Mutex::max_hold`](crate::Mutex::max_hold).
    pub fn max_hold(self, max: Duration) -> Self {
        let target = self.target.max_hold(max);
        Semaphore { target, ..self }
    }

    /// Returns the key of the semaphore.
    pub fn key(&self) -> &Key {
        self.target.key()
    }

    /// Returns the number of permits of this handle, held or free.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Acquires a permit, and holds it until the guard is released or dropped. Waits while no permit is free.
    /// Code that is not async waits by [`block_on`](crate::block_on).
    ///
    /// A task that waits for a permit while it holds another of the same semaphore may wait for itself. Acquire them
    /// together with [`acquire_many`](Self::acquire_many).
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock), except [`Error::WouldDeadlock`]. [`Error::Options`] if the semaphore has no permits.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    #[doc(alias = "blocking_acquire")]
    pub fn acquire(&self) -> Acquire {
        self.acquire_many(1)
    }

    /// Acquires `permits` permits at once, under one guard.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). [`Error::Options`] for zero permits, and for more than the semaphore has.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub fn acquire_many(&self, permits: u32) -> Acquire {
        self.target.enter(self.mode(permits), true)
    }

    /// Acquires a permit if one is free and no caller waits, else returns `None`. Always takes a round trip.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock). [`Error::Options`] if the semaphore has no permits.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.try_acquire_many(1).await
    }

    /// Acquires `permits` permits at once if as many are free and no caller waits, else returns `None`.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire). [`Error::Options`] for zero permits, and for more than the semaphore has.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>, Error> {
        self.target.try_enter(self.mode(permits)).await
    }

    /// Acquires a permit, and waits for at most `wait`. With zero it tries once.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout), except [`Error::WouldDeadlock`]. [`Error::Options`] if the semaphore has no permits.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Panics
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub async fn acquire_timeout(&self, wait: Duration) -> Result<Guard, Error> {
        self.acquire_many_timeout(1, wait).await
    }

    /// Acquires `permits` permits at once, and waits for at most `wait`. With zero it tries once.
    ///
    /// # Errors
    /// As [`acquire_timeout`](Self::acquire_timeout). [`Error::Options`] for zero permits, and for more than the semaphore
    /// has.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Panics
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub async fn acquire_many_timeout(&self, permits: u32, wait: Duration) -> Result<Guard, Error> {
        self.target.enter_timeout(self.mode(permits), wait).await
    }

    /// Acquires a permit, runs `work` under it, and releases it, as [`Mutex::with`](crate::Mutex::with) does.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// let bank = locks.semaphore("bank", 3);
    /// let answer = bank.acquire_with(|_| async { "paid" }).await?;
    /// # assert_eq!(answer, "paid"); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if the permit was lost before the end, even if the work was done. Other errors as of
    /// [`acquire`](Self::acquire) and [`Guard::release`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the permit in the background.
    pub async fn acquire_with<T, Fut>(&self, work: impl FnOnce(Lease) -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = T>,
    {
        run_under(self.acquire(), work).await
    }

    /// Acquires a permit that is not renewed. It is free again when a process [releases](crate::Locks::release_transfer) the
    /// [`Transfer`], or when `lease` and the margin have ended.
    ///
    /// Takes two round trips. `lease` and the margin count from the second one.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire). [`Error::Options`] for a lease that the [`Builder`](crate::Builder) refuses.
    ///
    /// # Cancel safety
    /// Dropping the future releases what it acquires.
    pub async fn acquire_transfer(&self, lease: Duration) -> Result<Transfer, Error> {
        let guard = self.clone().fixed(lease).acquire().await?;
        Ok(guard.into_transfer(lease).await?)
    }

    /// Asks the store how many permits are free. The number may have changed when the answer arrives, and other callers may
    /// wait for these permits.
    ///
    /// # Errors
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    /// Nothing is held or left behind.
    pub async fn available_permits(&self) -> Result<u32, Error> {
        let (target, permits) = (&self.target, self.request(self.permits));
        check_permits(self.key(), permits)?;
        let mode = Mode::Permits(permits);
        let asked = target.ask(Call::InUse, |call| call.mode = mode, CallAnswer::try_as_in_use);
        let in_use = asked?.await?;
        let in_use = in_use.map_or(u32::MAX, |permits| u32::try_from(permits).unwrap_or(u32::MAX));
        Ok(self.permits.saturating_sub(in_use))
    }

    fn mode(&self, permits: u32) -> Mode {
        Mode::Permits(self.request(permits))
    }

    fn request(&self, weight: u32) -> Permits {
        Permits {
            weight,
            capacity: self.permits,
        }
    }
}

impl Lease {
    /// Returns how many permits of a semaphore the lease is of; 1 for a lease of any other kind.
    pub fn num_permits(&self) -> u32 {
        match self.held.mode {
            Mode::Permits(permits) => permits.weight,
            Mode::Exclusive | Mode::Read => 1,
        }
    }
}
