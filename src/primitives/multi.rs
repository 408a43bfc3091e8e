//! Several locks at once: all of them, or none.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::driver::handle::Handle;
use crate::error::{Error, OptionsError};
use crate::key::Key;
use crate::options::Options;
use crate::primitives::acquire::{self, LockFuture};
use crate::primitives::blocking::block_on;
use crate::primitives::denial::{self, unless_busy};
use crate::primitives::guard::Guards;
use crate::primitives::multi_guard::{MultiGuard, MultiLease};
use crate::primitives::within::within;
use crate::protocol::message::{Mode, Name};
use crate::protocol::step::LockOptions;

/// So many keys at most.
const MOST: usize = 64;

/// One of the locks of a [`Multi`]: a key, and whether it is written or read. Whatever is a [`Key`] is one that is written,
/// which is the lock of a [`Mutex`](crate::Mutex).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::MultiKey;
///
/// // A payment changes an account by the rates of the day, which many may read meanwhile.
/// let payment = locks.multi([MultiKey::write("account:1"), MultiKey::read("rates")]);
/// let guard = payment.lock().await?;
/// assert!(locks.rw_lock("rates").try_read().await?.is_some());
/// assert!(locks.rw_lock("rates").try_write().await?.is_none());
/// # guard.release().await }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultiKey {
    name: Name,
    mode: Mode,
}

impl MultiKey {
    /// A key that is read: beside other readers, as [`RwLock::read`](crate::RwLock::read).
    pub fn read(key: impl Into<Key>) -> MultiKey {
        MultiKey {
            name: Name::lock(key.into()),
            mode: Mode::Read,
        }
    }

    /// A key that is written: beside nobody, as [`RwLock::write`](crate::RwLock::write) and
    /// [`Mutex::lock`](crate::Mutex::lock).
    pub fn write(key: impl Into<Key>) -> MultiKey {
        MultiKey {
            name: Name::lock(key.into()),
            mode: Mode::Exclusive,
        }
    }

    /// Which lock it is.
    pub fn key(&self) -> &Key {
        &self.name.key
    }
}

impl<K: Into<Key>> From<K> for MultiKey {
    fn from(key: K) -> MultiKey {
        MultiKey::write(key)
    }
}

/// Locks on 1 to 64 keys, each written or [read](MultiKey::read), taken together. Made by [`Locks::multi`](crate::Locks::multi); cheap to clone.
///
/// Where all keys can be had and nobody waits for any of them, one request takes them all: what is written is free, and
/// what is read is free or held by readers of other processes. The store grants every one of
/// them, or none; so does a process where callers of its own are in the way. Else they are taken one after the other, in
/// the order of their bytes, each with the patience of a [`Mutex`](crate::Mutex) or a reader's: whoever waits holds only
/// smaller keys than the one that it waits for, so callers of `multi` never wait for each other in a circle, whatever they
/// want. A key that is named twice is one, and written if it is written once.
///
/// The argument ends where a task that *holds* something waits for more. A `lock` inside of a held multi-lock, of a key that
/// is smaller than one that is held, can be one side of a deadlock: take all keys at once. In the
/// [scope](MultiGuard::scope) of the guard a key that it holds is [`Error::WouldDeadlock`].
///
/// A multi-lock, a mutex and an [`RwLock`](crate::RwLock) of one key are one lock, with one queue.
///
/// What it costs: one trip for free keys, and one to give them back. Beside others a trip for each key, and a wait for
/// each that is held, with the smaller ones held meanwhile. Each lease is renewed, unless it is [`fixed`](Self::fixed).
#[derive(Clone)]
#[must_use = "a multi-lock does nothing until it is locked"]
pub struct Multi {
    /// Of one `Locks` each.
    groups: Vec<Group>,
}

/// The keys of one `Locks`, in order, each once.
#[derive(Clone)]
struct Group {
    handle: Handle,
    keys: Vec<MultiKey>,
    options: LockOptions,
}

impl Group {
    /// Others of the same `Locks` join it.
    fn add(&mut self, keys: impl IntoIterator<Item = MultiKey>) {
        /// What is written comes before the same that is read, so that it stays.
        fn rank(key: &MultiKey) -> (&Name, bool) {
            (&key.name, key.mode == Mode::Read)
        }
        self.keys.extend(keys);
        self.keys
            .sort_unstable_by(|one, other| rank(one).cmp(&rank(other)));
        self.keys.dedup_by(|later, first| later.name == first.name);
    }

    fn options(&self, key: &MultiKey, wait: bool) -> LockOptions {
        LockOptions {
            mode: key.mode,
            wait,
            ..self.options
        }
    }
}

impl Multi {
    pub(crate) fn new(handle: Handle, keys: impl IntoIterator<Item = MultiKey>) -> Self {
        let options = handle.options().lock();
        let mut group = Group {
            handle,
            keys: Vec::new(),
            options,
        };
        group.add(keys);
        Multi { groups: vec![group] }
    }

    /// And those of other [`Locks`](crate::Locks), which are taken after these, with the options that they were given. Keys
    /// of a `Locks` that is named already join its keys.
    ///
    /// Callers that name the same `Locks` in the same order never wait for each other in a circle. Two `Locks` on one
    /// store are two processes to each other: a key that both name is waited for without end.
    pub fn and(mut self, others: Multi) -> Self {
        for other in others.groups {
            let mut groups = self.groups.iter_mut();
            match groups.find(|group| Arc::ptr_eq(group.handle.node(), other.handle.node())) {
                Some(group) => group.add(other.keys),
                None => self.groups.push(other),
            }
        }
        self
    }

    /// Leases of this length, as [`Mutex::lease`](crate::Mutex::lease).
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|options, limits| (options.term, options.fixed) = (limits.times(lease), false))
    }

    /// Leases of exactly this length, never renewed, as [`Mutex::fixed`](crate::Mutex::fixed). Each begins when its key is
    /// granted: one that was granted while others had to be waited for ends first, and may be over before all are held
    /// ([`Error::Lost`]).
    pub fn fixed(self, lease: Duration) -> Self {
        self.set(|options, limits| (options.term, options.fixed) = (limits.times(lease), true))
    }

    /// First come, first served at each key, as [`Mutex::fair`](crate::Mutex::fair), at the same price.
    pub fn fair(self) -> Self {
        self.set(|options, _| options.solo = true)
    }

    /// Refuse with [`Error::QueueFull`] when so many callers of this process already wait for a key that is waited for, as
    /// [`Mutex::max_waiters`](crate::Mutex::max_waiters).
    pub fn max_waiters(self, limit: usize) -> Self {
        self.set(|options, _| options.limit = limit)
    }

    /// Renew the leases no longer than this, as [`Mutex::max_hold`](crate::Mutex::max_hold): each from the grant of its key, so
    /// the wait for the keys after it counts. The holder is told when the first is renewed no more
    /// ([`MultiLease::overdue`]).
    pub fn max_hold(self, most: Duration) -> Self {
        self.set(|options, _| options.max_hold = Some(most))
    }

    fn set(mut self, set: impl Fn(&mut LockOptions, &Options)) -> Self {
        for Group { handle, options, .. } in &mut self.groups {
            set(options, handle.options());
        }
        self
    }

    /// What it locks, in the order in which it is locked.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.multi_keys().map(MultiKey::key)
    }

    fn multi_keys(&self) -> impl Iterator<Item = &MultiKey> {
        self.groups.iter().flat_map(|group| &group.keys)
    }

    /// Waits until it holds all of them.
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock), about the first key that failed; what was taken by then is given back.
    /// [`Error::Options`] for no key, and for more than 64. [`Error::Lost`] when a lease was lost while others were waited
    /// for: nothing was done, try again.
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives up the place in the line, and what was granted meanwhile, in the background.
    pub fn lock(&self) -> impl Future<Output = Result<MultiGuard, Error>> + Send + use<> {
        let mut pursuit = Pursuit::new(self, true);
        async move { pursuit.run().await }
    }

    /// Takes all of them if each is free, or read where it is read, and nobody waits for it; `None` if not.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); that somebody else has one of them is no error.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        unless_busy(Pursuit::new(self, false).run().await)
    }

    /// Waits until it holds all of them, but no longer than `wait`.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout), about a key that was waited for when the wait was over; else
    /// as [`lock`](Self::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// Where it has to wait, outside of a tokio runtime with time enabled.
    pub async fn lock_timeout(&self, wait: Duration) -> Result<MultiGuard, Error> {
        let mut pursuit = Pursuit::new(self, !wait.is_zero());
        if wait.is_zero() {
            return pursuit.run().await;
        }
        let nodes = self.groups.iter().map(|group| group.handle.node());
        let answer = within(nodes, wait, pin!(pursuit.run())).await;
        answer.unwrap_or_else(|| Err(pursuit.gave_up(wait)))
    }

    /// As [`lock`](Self::lock), for code that is not async: the thread sleeps until it holds all of them.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// As [`Mutex::blocking_lock`](crate::Mutex::blocking_lock).
    #[track_caller]
    pub fn blocking_lock(&self) -> Result<MultiGuard, Error> {
        block_on(self.lock())
    }

    /// As [`try_lock`](Self::try_lock), for code that is not async: the thread sleeps until the store has answered.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock).
    ///
    /// # Panics
    /// As [`Mutex::blocking_lock`](crate::Mutex::blocking_lock).
    #[track_caller]
    pub fn blocking_try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        block_on(self.try_lock())
    }

    /// As [`lock_timeout`](Self::lock_timeout), for code that is not async: the thread sleeps, but no longer than `wait`.
    ///
    /// # Errors
    /// As [`lock_timeout`](Self::lock_timeout).
    ///
    /// # Panics
    /// As [`Mutex::blocking_lock`](crate::Mutex::blocking_lock).
    #[track_caller]
    pub fn blocking_lock_timeout(&self, wait: Duration) -> Result<MultiGuard, Error> {
        block_on(self.lock_timeout(wait))
    }

    /// Runs `work` under all locks and releases them. The work's future is dropped when one of the leases is lost.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// let fences = locks
    ///     .multi(["account:1", "account:2"])
    ///     .with(|lease| async move { lease.fences().map(|(_, fence)| fence).collect::<Vec<_>>() })
    ///     .await?;
    /// # assert_eq!(fences.len(), 2); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] when exclusivity did not hold to the end, even if the work was done; else as
    /// [`lock`](Self::lock) and [`MultiGuard::release`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the locks in the background.
    pub async fn with<T, Fut>(&self, work: impl FnOnce(MultiLease) -> Fut) -> Result<T, Error>
    where
        Fut: Future<Output = T>,
    {
        let guard = self.lock().await?;
        let done = guard.run(work(guard.lease())).await?;
        guard.release().await?;
        Ok(done)
    }
}

impl fmt::Debug for Multi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multi")
            .field("keys", &self.multi_keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// The way to all of them. Dropping it gives up.
struct Pursuit {
    groups: Vec<Group>,
    wait: bool,
    guards: Guards,
    /// Those that are not answered. Dropped last, so that the guards are given back first.
    asked: Vec<LockFuture>,
}

impl Pursuit {
    fn new(multi: &Multi, wait: bool) -> Self {
        Pursuit {
            groups: multi.groups.clone(),
            wait,
            guards: Guards::default(),
            asked: Vec::new(),
        }
    }

    async fn run(&mut self) -> Result<MultiGuard, Error> {
        self.check()?;
        for group in std::mem::take(&mut self.groups) {
            let before = self.guards.0.len();
            if !self.take_together(&group).await? {
                self.take_in_turn(&group).await?;
            }
            // As they are answered in any order.
            self.guards.0[before..].sort_by(|one, other| one.key().cmp(other.key()));
        }
        // One may have been lost while others were waited for.
        match self.guards.0.iter().find(|guard| !guard.is_held()) {
            None => Ok(MultiGuard::new(std::mem::take(&mut self.guards))),
            Some(guard) => Err(match guard.held().lost() {
                Error::Lost { key, cause } => denial::lost(key, cause),
                closed => closed,
            }),
        }
    }

    /// Bad input is told before anything is asked.
    fn check(&self) -> Result<(), Error> {
        let keys: usize = self.groups.iter().map(|group| group.keys.len()).sum();
        if !(1..=MOST).contains(&keys) {
            return Err(Error::Options(OptionsError(format!(
                "a multi-lock has 1 to {MOST} keys, not {keys}: name what is locked, or lock something that stands for many"
            ))));
        }
        for group in &self.groups {
            for key in &group.keys {
                acquire::check(&group.handle, &key.name, group.options(key, self.wait))?;
            }
        }
        Ok(())
    }

    /// All of a group by one request. False when somebody is in the way, and others are to be waited for.
    async fn take_together(&mut self, group: &Group) -> Result<bool, Error> {
        let wanted = group.keys.iter().map(|key| {
            let options = LockOptions {
                together: true,
                has_fallback: self.wait,
                ..group.options(key, false)
            };
            (key.name.clone(), options)
        });
        let Some(asked) = LockFuture::together(&group.handle, wanted)? else {
            return Ok(false);
        };
        let before = self.guards.0.len();
        self.asked = asked;
        match self.answers().await {
            Ok(()) => Ok(true),
            // Where an answer was lost some may have been granted on a second try.
            Err(Error::Busy { .. }) if self.wait => {
                drop(Guards(self.guards.0.split_off(before)));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// One after the other, in order: whoever waits holds only what comes before.
    async fn take_in_turn(&mut self, group: &Group) -> Result<(), Error> {
        for key in &group.keys {
            self.asked = vec![LockFuture::new(
                &group.handle,
                &key.name,
                group.options(key, self.wait),
            )];
            self.answers().await?;
        }
        Ok(())
    }

    /// Until all that are asked for are answered.
    async fn answers(&mut self) -> Result<(), Error> {
        let Pursuit { asked, guards, .. } = self;
        let mut refused: Option<Error> = None;
        poll_fn(|cx| {
            asked.retain_mut(|lock| {
                match Pin::new(lock).poll(cx) {
                    Poll::Pending => return true,
                    Poll::Ready(Ok(guard)) => guards.0.push(guard),
                    Poll::Ready(Err(error)) => {
                        // That a key is busy says least.
                        let says_more = |before: &Error| before.is_busy() && !error.is_busy();
                        if refused.as_ref().is_none_or(says_more) {
                            refused = Some(error);
                        }
                    }
                }
                false
            });
            if asked.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        refused.map_or(Ok(()), Err)
    }

    /// What to tell a caller who gives up now, while something is asked for.
    fn gave_up(&self, waited: Duration) -> Error {
        let asked = self.asked.first().expect("who waits has asked");
        asked.gave_up(waited)
    }
}
