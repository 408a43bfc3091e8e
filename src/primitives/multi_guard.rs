//! What a caller holds of several locks.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, LostCause};
use crate::key::Key;
use crate::primitives::blocking::block_on;
use crate::primitives::guard::{Guard, Guards, release};
use crate::primitives::held::Held;
use crate::primitives::holdings::{self, Holdings};
#[cfg(feature = "redis")]
use crate::primitives::write::Atomically;
use crate::protocol::message::Fence;

/// All locks of a [`Multi`](crate::Multi) are held while this lives and [`is_held`](Self::is_held).
///
/// Dropping it releases them in the background, as a [`Guard`] does.
#[must_use = "the locks are released as soon as the guard is dropped"]
pub struct MultiGuard {
    lease: MultiLease,
    guards: Guards,
}

/// Sees several locks that somebody else holds: for tasks that work under a [`MultiGuard`]. Cheap to clone. It does not keep
/// the locks.
#[derive(Clone)]
pub struct MultiLease {
    held: Arc<[Arc<Held>]>,
    /// Cancelled when one of them is over. Made when it is asked for.
    end: Arc<OnceLock<CancellationToken>>,
}

impl MultiLease {
    /// What is locked, in the order in which it was locked, and the fencing token of each: see [`Lease::fence`](crate::Lease::fence).
    pub fn fences(&self) -> impl Iterator<Item = (&Key, Fence)> {
        self.held.iter().map(|held| (&held.name.key, held.fence))
    }

    /// The fencing token of a key. `None` for a key that is none of these. Of several [`Locks`](crate::Locks) that have the
    /// key, the first one's.
    pub fn fence(&self, key: impl Into<Key>) -> Option<Fence> {
        let key = key.into();
        let mut fences = self.fences();
        fences.find(|(of, _)| **of == key).map(|(_, fence)| fence)
    }

    /// Nobody else holds any of the locks at this moment, but for others who read what this reads; see [`Lease::is_held`](crate::Lease::is_held).
    pub fn is_held(&self) -> bool {
        self.held.iter().all(|held| held.is_held())
    }

    /// How long all of them would still be held if no renewal came through; zero when one of them is held no more.
    pub fn remaining(&self) -> Duration {
        let left = self.held.iter().map(|held| held.remaining());
        left.min().unwrap_or_default()
    }

    /// Waits until one of them is held no more: lost, or released.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + Sync + use<> {
        holdings::lost(self)
    }

    /// The same as a token: cancelled when one of them is held no more. Each call makes one of its own.
    pub fn lost_token(&self) -> CancellationToken {
        self.end_token().child_token()
    }

    /// Waits until one of them is renewed no more: it was held for as long as [`max_hold`](crate::Multi::max_hold) allows, or
    /// it is over. In the first case [`remaining`](Self::remaining) is what is left to come to an end.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn overdue(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        let tokens = self.held.iter().map(|held| held.overdue_token());
        let each = tokens.map(|token| Box::pin(token.cancelled_owned()));
        let mut all: Vec<_> = each.collect();
        poll_fn(move |cx| {
            if all.iter_mut().any(|one| one.as_mut().poll(cx).is_ready()) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }

    /// Begins a write to the locks' own Redis that is done only while *each* of these leases is current: checked and done in
    /// one step, as [`Lease::atomically`](crate::Lease::atomically) does it for one lease. Say, a transfer between two accounts:
    ///
    /// ```no_run
    /// # async fn of(locks: tenure::Locks) -> Result<(), tenure::Error> {
    /// let guard = locks.multi(["account:1", "account:2"]).lock().await?;
    /// let (from, to): (i64, i64) = guard
    ///     .atomically()
    ///     .command("DECRBY")
    ///     .key("balance:1")
    ///     .arg(10)
    ///     .command("INCRBY")
    ///     .key("balance:2")
    ///     .arg(10)
    ///     .query()
    ///     .await?;
    /// # let _ = (from, to); Ok(()) }
    /// ```
    ///
    /// Keys that are read and keys that are written may be mixed. One trip does it, whatever the number of keys. An answer is
    /// waited for by the shortest of the leases.
    ///
    /// # Errors
    /// As [`Lease::atomically`](crate::Lease::atomically). [`Error::Lost`] names the first key whose lease is not current; the leases that are, stay.
    /// [`Error::Unsupported`] if the leases are of several [`Locks`](crate::Locks). All other errors name the first key.
    #[cfg(feature = "redis")]
    pub fn atomically(&self) -> Atomically {
        Atomically::new(self.held.iter())
    }

    /// Runs `work` with the knowledge that these locks are held; see [`Lease::scope`](crate::Lease::scope).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    pub fn scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        holdings::scope(self, work)
    }

    /// Runs `work` as long as all locks are held; its future is dropped when one of the leases is lost. The work is in
    /// [`scope`](Self::scope).
    ///
    /// # Errors
    /// [`Error::Lost`], as [`Lease::run`](crate::Lease::run), about the first that was lost.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        holdings::run(self, work).await
    }
}

impl Holdings for MultiLease {
    fn all(&self) -> &[Arc<Held>] {
        &self.held
    }

    fn end_token(&self) -> CancellationToken {
        if let Some(forked) = self.held.iter().find(|held| held.is_forked()) {
            return forked.end_token();
        }
        let end = self.end.get_or_init(|| {
            let token = CancellationToken::new();
            for held in self.held.iter() {
                held.waiter.set_group_token(&token);
            }
            token
        });
        end.clone()
    }
}

impl MultiGuard {
    pub(crate) fn new(guards: Guards) -> Self {
        let held = guards.0.iter().map(|guard| guard.held().clone()).collect();
        let end = Arc::default();
        MultiGuard {
            lease: MultiLease { held, end },
            guards,
        }
    }

    /// A view of it, for others. It outlives the guard, and says so.
    pub fn lease(&self) -> MultiLease {
        self.lease.clone()
    }

    /// Another guard on the same leases, which then end with the last of their guards; see [`Lease::again`](crate::Lease::again).
    ///
    /// # Errors
    /// [`Error::Lost`] when one of the leases is over.
    pub fn again(&self) -> Result<MultiGuard, Error> {
        let guards: Result<Vec<_>, _> = self.guards.0.iter().map(Guard::again).collect();
        Ok(MultiGuard {
            lease: self.lease(),
            guards: Guards(guards?),
        })
    }

    /// See [`MultiLease::fences`].
    pub fn fences(&self) -> impl Iterator<Item = (&Key, Fence)> {
        self.lease.fences()
    }

    /// See [`MultiLease::fence`].
    pub fn fence(&self, key: impl Into<Key>) -> Option<Fence> {
        self.lease.fence(key)
    }

    /// See [`MultiLease::is_held`].
    pub fn is_held(&self) -> bool {
        self.lease.is_held()
    }

    /// See [`MultiLease::remaining`].
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// See [`MultiLease::lost`].
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + Sync + use<> {
        self.lease.lost()
    }

    /// See [`MultiLease::lost_token`].
    pub fn lost_token(&self) -> CancellationToken {
        self.lease.lost_token()
    }

    /// See [`MultiLease::overdue`].
    pub fn overdue(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        self.lease.overdue()
    }

    /// See [`MultiLease::scope`].
    pub fn scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.lease.scope(work)
    }

    /// See [`MultiLease::atomically`].
    #[cfg(feature = "redis")]
    pub fn atomically(&self) -> Atomically {
        self.lease.atomically()
    }

    /// See [`MultiLease::run`].
    ///
    /// # Errors
    /// [`Error::Lost`], as there.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        self.lease.run(work).await
    }

    /// Gives all locks back by one request, and says whether exclusivity held to this call for each of them.
    ///
    /// # Errors
    /// As [`Guard::release`], about the first that failed. All of them are given back.
    ///
    /// # Cancel safety
    /// The locks count as given back from the first poll; dropping the future only loses the answer.
    pub async fn release(mut self) -> Result<(), Error> {
        release(&mut self.guards.0).await
    }

    /// As [`release`](Self::release), for code that is not async: the thread sleeps until the store has answered.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    ///
    /// # Panics
    /// As [`Mutex::blocking_lock`](crate::Mutex::blocking_lock).
    #[track_caller]
    pub fn blocking_release(self) -> Result<(), Error> {
        block_on(self.release())
    }
}

impl MultiLease {
    fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fences = self.fences().map(|(key, fence)| (key, fence.get()));
        f.debug_struct(name)
            .field("fences", &fences.collect::<Vec<_>>())
            .field("remaining", &self.remaining())
            .finish()
    }
}

impl fmt::Debug for MultiLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("MultiLease", f)
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease.fmt_as("MultiGuard", f)
    }
}
