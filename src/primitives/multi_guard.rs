//! The guard of a multi-lock, and views of its leases.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, LostCause};
use crate::key::Key;
#[cfg(feature = "tower")]
use crate::primitives::guard::{Guard, not_offered};
use crate::primitives::guard::{Guards, Lease, release};
use crate::primitives::held::{Held, HeldGroup, StealNotice};
use crate::primitives::holdings::{self, Holdings};
#[cfg(feature = "redis")]
use crate::primitives::write::Atomically;
use crate::protocol::message::Fence;

/// The guard of a [`MultiLock`](crate::MultiLock). All its locks are held while the guard lives and [`is_held`](MultiLease::is_held). The
/// methods of [`MultiLease`] are methods of the guard, too.
///
/// Dropping it releases the locks in the background, as with a [`Guard`](crate::Guard).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let guard = locks.multi(["account:1", "account:2"]).lock().await?;
/// let work = async { /* … move money between the accounts … */ };
/// guard.run(work).await?; // drops the work if one of the leases is lost
/// guard.release().await?; // releases all locks in one request
/// # Ok(()) }
/// ```
#[must_use = "the locks are released as soon as the guard is dropped: `let _ =` drops it at once, so bind it to a name, as `_guard`"]
pub struct MultiGuard {
    lease: MultiLease,
    guards: Guards,
}

/// A view of the leases of a [`MultiGuard`], for tasks that work under it. Cheap to clone. A view does not keep the locks.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// let guard = locks.multi(["account:1", "account:2"]).lock().await?;
/// let lease = guard.lease();
/// for (key, fence) in lease.fences() {
///     println!("write {key} with the fence {fence}");
/// }
/// drop(guard);
/// assert!(!lease.is_held());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MultiLease(pub(crate) Arc<HeldGroup>);

impl MultiLease {
    /// Returns the keys, in the order in which they were locked, and the fencing token of each; see
    /// [`Lease::fence`](crate::Lease::fence).
    pub fn fences(&self) -> impl Iterator<Item = (&Key, Fence)> {
        self.0.all.iter().map(|held| (&held.name.key, held.fence))
    }

    /// Returns the fencing token of a key, or `None` if the key is not locked here. If several [`Locks`](crate::Locks) have the
    /// key, returns the token of the first.
    pub fn fence(&self, key: impl Into<Key>) -> Option<Fence> {
        let key = key.into();
        let mut fences = self.fences();
        fences.find(|(locked, _)| **locked == key).map(|(_, fence)| fence)
    }

    /// Returns whether all locks are held at this moment; see [`Lease::is_held`](crate::Lease::is_held). Keys for reading may
    /// have other readers.
    pub fn is_held(&self) -> bool {
        self.0.all.iter().all(|held| held.is_held())
    }

    /// Returns how long all locks are still held if no renewal succeeds. Zero if one of them is no longer held.
    pub fn remaining(&self) -> Duration {
        let left = self.0.all.iter().map(|held| held.remaining());
        left.min().unwrap_or_default()
    }

    /// Waits until one of the locks is no longer held: its lease was lost or released.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> impl Future<Output = LostCause> + Send + Sync + use<> {
        holdings::lost(self)
    }

    /// Returns a token that is cancelled when one of the locks is no longer held. Each call returns a token of its own.
    pub fn lost_token(&self) -> CancellationToken {
        self.end_token().child_token()
    }

    /// Waits until one of the leases is no longer renewed: it was held for as long as [`max_hold`](crate::MultiLock::max_hold)
    /// allows, or it has ended. In the first case the work must end within [`remaining`](Self::remaining).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn overdue(&self) -> impl Future<Output = ()> + Send + Sync + 'static {
        let tokens = self.0.all.iter().map(|held| held.overdue_token());
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

    /// Waits until an operator [asks](crate::inspect::Inspection::steal) for one of the leases. `None`: one of them ended without
    /// that. See [`Lease::asked`](crate::Lease::asked).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn asked(&self) -> impl Future<Output = Option<StealNotice>> + Send + Sync + 'static {
        let each = self.0.all.iter().cloned();
        let each = each.map(|held| Box::pin(async move { held.asked().await }));
        let mut all: Vec<_> = each.collect();
        poll_fn(move |cx| {
            let mut answers = all.iter_mut().map(|one| one.as_mut().poll(cx));
            answers.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
    }

    /// Says what holds these leases; see [`Lease::note`](crate::Lease::note).
    pub fn note(&self, text: impl AsRef<str>) {
        let text = text.as_ref();
        self.0.all.iter().for_each(|held| held.note(text));
    }

    /// Begins a write to the Redis server of the locks, which is executed only if *each* of these leases is current.
    ///
    /// The server checks the leases and executes the write in one atomic step, as [`Lease::atomically`](crate::Lease::atomically)
    /// does for one lease. This example moves money between two accounts:
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
    /// The locks may be for reading, for writing, or both. Takes one round trip for any number of keys. The shortest lease
    /// limits how long this waits for the answer.
    ///
    /// # Errors
    /// As [`Lease::atomically`](crate::Lease::atomically). [`Error::Lost`] names the first key whose lease is not current; the
    /// other leases stay. [`Error::Unsupported`] also if the leases are of several [`Locks`](crate::Locks), or in several slots
    /// of a cluster. All other errors name the first key.
    #[cfg(feature = "redis")]
    pub fn atomically(&self) -> Atomically {
        Atomically::new(self.0.all.iter())
    }

    /// Renews all leases now, in one round trip; see [`Lease::renew`](crate::Lease::renew).
    ///
    /// # Errors
    /// As [`Lease::renew`](crate::Lease::renew), about the first lease that was not renewed. The others are.
    ///
    /// # Cancel safety
    /// As [`Lease::renew`](crate::Lease::renew).
    pub async fn renew(&self) -> Result<(), Error> {
        holdings::renew(self).await
    }

    /// Returns a guard of these leases, for a task that continues the work after the other guards are dropped; see
    /// [`Lease::again`](crate::Lease::again).
    ///
    /// # Errors
    /// [`Error::Lost`] if one of the leases has ended, or its last guard was dropped.
    pub fn again(&self) -> Result<MultiGuard, Error> {
        let guards: Result<Vec<_>, _> = self.each().map(|lease| lease.again()).collect();
        Ok(MultiGuard {
            lease: self.clone(),
            guards: Guards(guards?),
        })
    }

    /// Takes the guard from the [`LockLayer`](crate::LockLayer) that acquired the leases; see
    /// [`Lease::take_guard`](crate::Lease::take_guard).
    ///
    /// # Errors
    /// As [`Lease::take_guard`](crate::Lease::take_guard), about the first key.
    #[cfg(feature = "tower")]
    pub fn take_guard(&self) -> Result<MultiGuard, Error> {
        if let Some(lost) = self.0.all.iter().find(|held| !held.is_held()) {
            return Err(lost.lost());
        }
        if !self.0.offer.take() {
            return Err(not_offered(&self.0.all[0].name.key));
        }
        Ok(MultiGuard {
            lease: self.clone(),
            guards: self.counted_guards(),
        })
    }

    /// Returns the guards that count already, of a layer that has ended.
    #[cfg(feature = "tower")]
    pub(crate) fn counted_guards(&self) -> Guards {
        Guards(self.0.all.iter().map(Guard::taken).collect())
    }

    /// Returns the leases one by one.
    pub(crate) fn each(&self) -> impl Iterator<Item = Lease> {
        self.0.all.iter().map(|held| Lease { held: held.clone() })
    }

    /// Runs `work` in the scope of these locks; see [`Lease::scope`](crate::Lease::scope).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    pub fn scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        holdings::scope(self, work)
    }

    /// Runs `work` while all locks are held. The future of the work is dropped when one of the leases is lost. The work runs
    /// in [`scope`](Self::scope).
    ///
    /// # Errors
    /// [`Error::Lost`] as [`Lease::run`](crate::Lease::run), about the first lease that was lost.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        holdings::run(self, work).await
    }
}

impl Holdings for MultiLease {
    fn all(&self) -> &[Arc<Held>] {
        &self.0.all
    }

    fn end_token(&self) -> CancellationToken {
        if let Some(forked) = self.0.all.iter().find(|held| held.is_forked()) {
            return forked.end_token();
        }
        let end = self.0.end.get_or_init(|| {
            let token = CancellationToken::new();
            for held in self.0.all.iter() {
                held.waiter.add_group_token(&token);
            }
            token
        });
        end.clone()
    }
}

impl Deref for MultiGuard {
    type Target = MultiLease;

    fn deref(&self) -> &MultiLease {
        &self.lease
    }
}

/// Another guard of the same leases, which end with their last guard. They may have ended: see [`MultiLease::is_held`].
impl Clone for MultiGuard {
    fn clone(&self) -> Self {
        MultiGuard {
            lease: self.lease.clone(),
            guards: Guards(self.guards.0.clone()),
        }
    }
}

impl MultiGuard {
    pub(crate) fn new(guards: Guards) -> Self {
        let held = guards.0.iter().map(|guard| guard.held().clone()).collect();
        MultiGuard {
            lease: MultiLease(HeldGroup::new(held)),
            guards,
        }
    }

    /// Returns a view of the leases for other tasks. The view may outlive the guard, and then reports that the locks are not
    /// held.
    pub fn lease(&self) -> MultiLease {
        self.lease.clone()
    }

    /// Returns the guards one by one.
    #[cfg(feature = "tower")]
    pub(crate) fn into_guards(mut self) -> Vec<Guard> {
        std::mem::take(&mut self.guards.0)
    }

    /// As [`Guard::disown`].
    #[cfg(feature = "tower")]
    pub(crate) fn disown(&mut self) {
        self.guards.0.iter_mut().for_each(Guard::disown);
    }

    /// Returns the holdings.
    #[cfg(feature = "tower")]
    pub(crate) fn group(&self) -> &Arc<HeldGroup> {
        &self.lease.0
    }

    /// Offers the guard to the handler of the layer that acquired it, and to tasks that keep it.
    #[cfg(feature = "tower")]
    pub(crate) fn offer(&self) {
        let group = self.group();
        group.offer.open();
        let acquired = self.guards.0.iter().filter(|guard| !guard.is_shared());
        acquired.for_each(|guard| guard.held().join(group));
    }

    /// Releases all locks in one request, and reports whether each of them was held until this call.
    ///
    /// # Errors
    /// As [`Guard::release`], about the first lock that failed. All locks are released.
    ///
    /// # Cancel safety
    /// The locks count as released from the first poll. Dropping the future only loses the answer.
    #[doc(alias = "unlock")]
    pub async fn release(mut self) -> Result<(), Error> {
        release(&mut self.guards.0).await
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
