//! Locks on several keys at once: a caller gets all of them, or none.

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
use crate::primitives::acquire::{self, Acquire};
use crate::primitives::denial::{self, unless_busy};
use crate::primitives::guard::Guards;
use crate::primitives::multi_guard::{MultiGuard, MultiLease};
use crate::primitives::scope;
use crate::primitives::within::within;
use crate::protocol::message::{Mode, Name};
use crate::protocol::step::LockOptions;
use crate::protocol::time::Instant;

/// The largest number of keys of a multi-lock.
pub(crate) const MAX_KEYS: usize = 64;

/// One lock of a [`MultiLock`]: a key, and whether it is locked for writing or for reading.
///
/// Every value that converts into a [`Key`] also converts into a `MultiKey` for writing. That is the lock of a
/// [`Mutex`](crate::Mutex).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::MultiKey;
///
/// // A payment changes an account and reads the rates of the day. Other processes may read the rates meanwhile.
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
    /// Returns a key for reading. Other readers may hold it too, as with [`RwLock::read`](crate::RwLock::read).
    pub fn read(key: impl Into<Key>) -> MultiKey {
        MultiKey {
            name: Name::lock(key.into()),
            mode: Mode::Read,
        }
    }

    /// Returns a key for writing. It has one holder, as with [`RwLock::write`](crate::RwLock::write) and
    /// [`Mutex::lock`](crate::Mutex::lock).
    pub fn write(key: impl Into<Key>) -> MultiKey {
        MultiKey {
            name: Name::lock(key.into()),
            mode: Mode::Exclusive,
        }
    }

    /// Returns the key.
    pub fn key(&self) -> &Key {
        &self.name.key
    }
}

#[cfg(feature = "tower")]
impl MultiKey {
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Replaces the key.
    pub(crate) fn map(self, key: impl FnOnce(Key) -> Option<Key>) -> Option<MultiKey> {
        let name = Name::lock(key(self.name.key)?);
        Some(MultiKey { name, ..self })
    }

    pub(crate) fn into_name(self) -> Name {
        self.name
    }

    /// Returns the same key for reading.
    pub(crate) fn into_read(self) -> MultiKey {
        MultiKey {
            mode: Mode::Read,
            ..self
        }
    }
}

impl<K: Into<Key>> From<K> for MultiKey {
    fn from(key: K) -> MultiKey {
        MultiKey::write(key)
    }
}

/// Locks on 1 to 64 keys, each for writing or for [reading](MultiKey::read), acquired together. Made by
/// [`Locks::multi`](crate::Locks::multi); cheap to clone.
///
/// First, one request tries all keys. The store grants all of them or none. It grants them if no caller waits for any key,
/// each key for writing is free, and each key for reading is free or has readers only. The request is not sent if the
/// keys are on several servers, or if a caller of this process holds or wants one of them, even as a reader.
///
/// Otherwise the keys are acquired one by one, in the order of their bytes. Each waits as a [`Mutex`](crate::Mutex) or a
/// reader does. A waiting caller holds only smaller keys than the key that it waits for. So callers of `multi` never wait for
/// each other in a circle, for any set of keys. A key that is named twice counts once, and is for writing if one of the two
/// is for writing.
///
/// A task that *holds* a lock and waits for another one is outside of this rule. If a task holds a multi-lock and locks a
/// smaller key, it can be one side of a deadlock: acquire all keys at once. In the [scope](MultiLease::scope) of the guard,
/// a lock of a key that it holds returns [`Error::WouldDeadlock`].
///
/// A multi-lock, a mutex and an [`RwLock`](crate::RwLock) of one key are one lock, with one queue.
///
/// Free keys take one round trip to acquire and one to release. If a key is not available, each key takes a round trip, and
/// a wait if it is held; the smaller keys are held meanwhile. Each lease is renewed, unless it is [`fixed`](Self::fixed).
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure::Locks::memory();
/// use tenure::MultiKey;
///
/// let transfer = locks.multi([MultiKey::write("account:2"), MultiKey::write("account:1"), MultiKey::read("rates")]);
/// let guard = transfer.lock().await?; // all keys, or none
/// assert!(locks.multi(["account:2", "account:3"]).try_lock().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a multi-lock does nothing until it is locked"]
pub struct MultiLock {
    /// One group for each `Locks`, in the order in which they are locked.
    groups: Vec<Group>,
}

/// The keys of one `Locks`, in the order of their bytes, each once.
#[derive(Clone)]
struct Group {
    handle: Handle,
    keys: Vec<MultiKey>,
    options: LockOptions,
}

impl Group {
    /// Adds keys of the same `Locks`.
    fn add(&mut self, keys: impl IntoIterator<Item = MultiKey>) {
        /// Sorts a key for writing before the same key for reading, because only the first of the two is kept.
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

impl MultiLock {
    pub(crate) fn new(handle: Handle, keys: impl IntoIterator<Item = MultiKey>) -> Self {
        let options = handle.options().lock();
        let mut group = Group {
            handle,
            keys: Vec::new(),
            options,
        };
        group.add(keys);
        MultiLock { groups: vec![group] }
    }

    /// Adds keys of other [`Locks`](crate::Locks), which are acquired after these keys, with the options of `others`. Keys of
    /// a `Locks` that this multi-lock has already are added to its group, and get its options.
    ///
    /// Callers that name the same `Locks` in the same order never wait for each other in a circle. Two `Locks` on one
    /// store are like two processes: if both name one key, the second acquisition waits for the first without end.
    pub fn and(mut self, others: MultiLock) -> Self {
        for other in others.groups {
            let mut groups = self.groups.iter_mut();
            match groups.find(|group| Arc::ptr_eq(group.handle.node(), other.handle.node())) {
                Some(group) => group.add(other.keys),
                None => self.groups.push(other),
            }
        }
        self
    }

    /// Sets the length of the leases, as [`Mutex::lease`](crate::Mutex::lease) does.
    pub fn lease(self, lease: Duration) -> Self {
        self.set(|options, limits| (options.term, options.fixed) = (limits.times(lease), false))
    }

    /// Sets leases of exactly this length, which are never renewed, as [`Mutex::fixed`](crate::Mutex::fixed) does.
    ///
    /// Each lease begins when its key is granted. If one lease ends while this waits for another key, the result is
    /// [`Error::Lost`].
    pub fn fixed(self, lease: Duration) -> Self {
        self.set(|options, limits| (options.term, options.fixed) = (limits.times(lease), true))
    }

    /// Serves the callers of each key in the order in which they came, as [`Mutex::fair`](crate::Mutex::fair) does, at the same
    /// cost.
    pub fn fair(self) -> Self {
        self.set(|options, _| options.solo = true)
    }

    /// Limits how many callers of this process may wait for a key, as [`Mutex::max_waiters`](crate::Mutex::max_waiters) does.
    /// A further caller that must wait for that key gets [`Error::QueueFull`].
    pub fn max_waiters(self, limit: usize) -> Self {
        self.set(|options, _| options.limit = limit)
    }

    /// Limits how long each lease is renewed, as [`Mutex::max_hold`](crate::Mutex::max_hold) does.
    ///
    /// The time counts from the grant of each key, so it includes the wait for the keys after it. When the first lease is no
    /// longer renewed, [`MultiLease::overdue`] resolves.
    pub fn max_hold(self, max: Duration) -> Self {
        self.set(|options, _| options.max_hold = Some(max))
    }

    fn set(mut self, set: impl Fn(&mut LockOptions, &Options)) -> Self {
        for Group { handle, options, .. } in &mut self.groups {
            set(options, handle.options());
        }
        self
    }

    /// Returns the keys, in the order in which they are locked.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.multi_keys().map(MultiKey::key)
    }

    pub(crate) fn multi_keys(&self) -> impl Iterator<Item = &MultiKey> {
        self.groups.iter().flat_map(|group| &group.keys)
    }

    /// Removes the keys for which `keep` returns false.
    #[cfg(feature = "tower")]
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&MultiKey) -> bool) {
        for group in &mut self.groups {
            group.keys.retain(&mut keep);
        }
    }

    /// Returns whether the calling code runs under all of these locks, each in the mode that this multi-lock names or as the
    /// writer; see [`Mutex::is_held_here`](crate::Mutex::is_held_here). The locks may be of several multi-locks, mutexes and
    /// layers.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure::Locks::memory();
    /// let accounts = locks.multi(["account:1", "account:2"]);
    /// assert!(!accounts.is_held_here());
    /// accounts.with(async |_| assert!(accounts.is_held_here())).await?;
    /// # Ok(()) }
    /// ```
    pub fn is_held_here(&self) -> bool {
        let mut keys = self.groups.iter().flat_map(|group| {
            let node = group.handle.node();
            group.keys.iter().map(move |key| (node, key))
        });
        keys.all(|(node, key)| {
            let held = scope::find(node, &key.name);
            held.is_some_and(|held| [Mode::Exclusive, key.mode].contains(&held.mode))
        })
    }

    /// Acquires all keys, and waits until it holds all of them.
    /// Code that is not async waits by [`block_on`](crate::block_on).
    ///
    /// # Errors
    /// As [`Mutex::lock`](crate::Mutex::lock), about the first key that failed; the keys acquired by then are released.
    /// [`Error::Options`] for no key, or for more than 64 keys. [`Error::Lost`] if a lease was lost while this waited for
    /// another key: no work was done, so try again.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue. Leases that were granted meanwhile are released in the background.
    #[doc(alias = "blocking_lock")]
    pub fn lock(&self) -> impl Future<Output = Result<MultiGuard, Error>> + Send + use<> {
        let mut attempt = MultiAcquire::new(self, true);
        async move { attempt.run().await }
    }

    /// Acquires all keys if each is available and no caller waits for it, else returns `None`.
    ///
    /// A key for reading is also available if it has only readers.
    ///
    /// # Errors
    /// As [`lock`](Self::lock). A key with another holder is not an error.
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>, Error> {
        unless_busy(MultiAcquire::new(self, false).run().await)
    }

    /// Acquires all keys, and waits for at most `wait`. With zero it tries once.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`](crate::Mutex::lock_timeout), about a key that this waits for when `wait` ends. Otherwise as
    /// [`lock`](Self::lock).
    ///
    /// # Cancel safety
    /// As [`lock`](Self::lock).
    ///
    /// # Panics
    /// If it must wait outside of a tokio runtime with time enabled.
    pub async fn lock_timeout(&self, wait: Duration) -> Result<MultiGuard, Error> {
        let mut attempt = MultiAcquire::new(self, !wait.is_zero());
        if wait.is_zero() {
            return attempt.run().await;
        }
        for Group { handle, options, .. } in &mut attempt.groups {
            options.until = Some(handle.node().clock.now() + wait);
        }
        let nodes = self.groups.iter().map(|group| group.handle.node());
        let begun: Vec<_> = nodes.clone().map(|node| node.clock.now()).collect();
        let answer = within(nodes, wait, pin!(attempt.run())).await;
        answer.unwrap_or_else(|| Err(attempt.timeout_error(self, &begun, wait)))
    }

    /// Acquires all keys, runs `work` and releases them. The future of the work is dropped when one of the leases is lost.
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
    /// [`Error::Lost`] if a lease was lost before the end, even if the work was done. Otherwise as [`lock`](Self::lock) and
    /// [`MultiGuard::release`].
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

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock")
            .field("keys", &self.multi_keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// The acquisition of all keys of a [`MultiLock`]. Dropping it releases what it holds and abandons its requests.
struct MultiAcquire {
    /// The keys; empty as soon as [`run`](Self::run) has taken them.
    groups: Vec<Group>,
    /// Whether the caller waits for keys that are held.
    wait: bool,
    /// A key that the store or this process named taken, after which the caller began to wait.
    taken: Option<Key>,
    /// The guards of the keys granted so far.
    guards: Guards,
    /// The acquisitions without an answer. Dropped last, so that the guards are released first.
    pending: Vec<Acquire>,
}

impl MultiAcquire {
    fn new(multi: &MultiLock, wait: bool) -> Self {
        MultiAcquire {
            groups: multi.groups.clone(),
            wait,
            taken: None,
            guards: Guards::default(),
            pending: Vec::new(),
        }
    }

    /// Acquires the keys of all groups, and waits if the caller waits.
    ///
    /// # Errors
    /// As [`MultiLock::lock`].
    async fn run(&mut self) -> Result<MultiGuard, Error> {
        self.check()?;
        for group in std::mem::take(&mut self.groups) {
            let before = self.guards.0.len();
            if !self.take_together(&group).await? {
                self.take_in_turn(&group).await?;
            }
            // The answers of a group come in any order.
            self.guards.0[before..].sort_by(|one, other| one.key().cmp(other.key()));
        }
        // A lease may have been lost while this waited for another key.
        match self.guards.0.iter().find(|guard| !guard.is_held()) {
            None => Ok(MultiGuard::new(std::mem::take(&mut self.guards))),
            Some(guard) => Err(match guard.held().lost() {
                Error::Lost { key, cause } => denial::lost(key, cause),
                closed => closed,
            }),
        }
    }

    /// Checks all input before the first request.
    ///
    /// # Errors
    /// Bad input.
    fn check(&self) -> Result<(), Error> {
        let keys: usize = self.groups.iter().map(|group| group.keys.len()).sum();
        if !(1..=MAX_KEYS).contains(&keys) {
            return Err(Error::Options(OptionsError(format!(
                "a multi-lock has 1 to {MAX_KEYS} keys, not {keys}: name at least one key, or use one key for many resources"
            ))));
        }
        for group in &self.groups {
            for key in &group.keys {
                acquire::check(&group.handle, &key.name, group.options(key, self.wait))?;
            }
        }
        Ok(())
    }

    /// Acquires all keys of a group by one request. Returns false if a key is not available, and the caller must acquire them
    /// one by one.
    ///
    /// # Errors
    /// [`Error::Busy`] if a key is not available and the caller does not wait; other errors as [`MultiLock::lock`].
    async fn take_together(&mut self, group: &Group) -> Result<bool, Error> {
        let wanted = group.keys.iter().map(|key| {
            let options = LockOptions {
                together: true,
                has_fallback: self.wait,
                ..group.options(key, false)
            };
            (key.name.clone(), options)
        });
        let Some(pending) = Acquire::together(&group.handle, wanted)? else {
            return Ok(false);
        };
        let before = self.guards.0.len();
        self.pending = pending;
        match self.await_answers().await {
            Ok(()) => Ok(true),
            // If an answer was lost, a retry may have granted some of the keys.
            Err(Error::Busy { key, .. }) if self.wait => {
                self.taken = Some(key);
                drop(Guards(self.guards.0.split_off(before)));
                Ok(false)
            }
            // One by one, the keys wait for the end of the recovery, if the caller does.
            Err(Error::Store { source, .. }) if self.wait && source.is_recovering() => {
                drop(Guards(self.guards.0.split_off(before)));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Acquires the keys of a group one by one, in order, so that a waiting caller holds only smaller keys.
    ///
    /// # Errors
    /// As [`MultiLock::lock`].
    async fn take_in_turn(&mut self, group: &Group) -> Result<(), Error> {
        for key in &group.keys {
            if group.handle.node().held_alone(&key.name).is_some() {
                self.taken = Some(key.key().clone());
            }
            self.pending = vec![Acquire::new(
                &group.handle,
                &key.name,
                group.options(key, self.wait),
            )];
            self.await_answers().await?;
        }
        Ok(())
    }

    /// Waits until every pending acquisition is answered, and keeps the guards.
    ///
    /// # Errors
    /// A refusal of one key; another reason comes before a busy key.
    async fn await_answers(&mut self) -> Result<(), Error> {
        let MultiAcquire { pending, guards, .. } = self;
        let mut refused: Option<Error> = None;
        poll_fn(|cx| {
            pending.retain_mut(|lock| {
                match Pin::new(lock).poll(cx) {
                    Poll::Pending => return true,
                    Poll::Ready(Ok(guard)) => guards.0.push(guard),
                    Poll::Ready(Err(error)) => {
                        // A busy key is the least informative reason.
                        let says_more = |before: &Error| before.is_busy() && !error.is_busy();
                        if refused.as_ref().is_none_or(says_more) {
                            refused = Some(error);
                        }
                    }
                }
                false
            });
            if pending.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        refused.map_or(Ok(()), Err)
    }

    /// Returns the error of a caller whose timeout ends while an acquisition is pending. The key of that one may have no answer yet,
    /// after the caller waited for another key.
    fn timeout_error(&self, multi: &MultiLock, begun: &[Instant], waited: Duration) -> Error {
        let pending = self.pending.first();
        let pending = pending.expect("a waiting caller has a pending acquisition");
        match self.taken_key(multi, begun) {
            Some(key) if !pending.is_known_taken() => Error::Busy { key, waited },
            _ => pending.gave_up(waited),
        }
    }

    /// Returns a key that was named taken since the call began. `None` if a server of the call is silent, because the caller may
    /// have waited for that server.
    fn taken_key(&self, multi: &MultiLock, begun: &[Instant]) -> Option<Key> {
        let mut taken = None;
        for (group, since) in multi.groups.iter().zip(begun) {
            let names = group.keys.iter().map(|key| &key.name);
            let first = group.handle.node().first_taken(names, *since).ok()?;
            taken = taken.or(first);
        }
        taken.map(|name| name.key.clone()).or_else(|| self.taken.clone())
    }
}
