//! The front door: a store, and the locks on it.
//!
//! # Which one for what
//!
//! | what must not happen twice at once | take | what it costs, and what to know |
//! |---|---|---|
//! | work on one thing: an account, an order, a file | [`Locks::mutex`] and [`lock`](Mutex::lock) | a trip to lock and one to release; none where it is handed on within the process |
//! | the same, if somebody is at it already there is nothing to do | [`try_lock`](Mutex::try_lock) | a trip; none when this process holds it |
//! | the same, and the caller has not all day | [`lock_timeout`](Mutex::lock_timeout) | says *busy* only if somebody is known to have it |
//! | the same, for "ten seconds, then let go" | [`Mutex::fixed`] | never renewed, never handed on within the process |
//! | the same, in the order in which they came, across processes | [`Mutex::fair`] | a place in the store's queue, a trip and a renewal for each caller: for tens of waiters |
//! | many may read, while nobody changes it | [`Locks::rw_lock`] | as a mutex; readers of a process share one lease, and a writer waits for those that came before it |
//! | no more than so many at a time: calls to a partner, exports, jobs of a tenant | [`Locks::semaphore`] | as a mutex; each holder has a lease that is renewed on its own |
//! | one goes on when all others are through: parts of an import | [`Locks::latch`] | a trip to set it, to count down and to wait; who waits looks each third of a lease, all tasks of a process together. No lease: nobody holds it |
//! | one of several processes leads for as long as it lives: a relay, a poller, a cache warmer | [`Locks::election`] | a trip to lead and one to hand over; who stands by or observes looks each third of a lease |
//! | a write to Redis that must not come after the lease is over | [`Lease::atomically`](crate::Lease::atomically), under several leases [`MultiLease::atomically`](crate::MultiLease::atomically) | a trip, checked and done in one step; for SQL send the [fence](crate::Guard::fence) |
//! | work on several things together: a transfer between two accounts | [`Locks::multi`]; of what is only read [`MultiKey::read`] | one trip each way for keys that can be had; beside others a trip for each key, and no deadlock |
//! | work that one process begins and another finishes: a handler and a worker behind a queue | [`Guard::into_transfer`](crate::Guard::into_transfer) and [`Locks::adopt`] | a trip each; on its way nobody renews it, and it ends by itself |
//! | a handler of an HTTP service, for one account, order or `Idempotency-Key` | `LockLayer`, see [the front page](crate#the-layer) | as a mutex; refusals are responses |
//! | a cron job on several replicas | `Locks::cron`, see [the front page](crate#cron-jobs) | a mutex does not do it: replicas never fire at the same moment |
//!
//! Code that is not async calls [`blocking_lock`](Mutex::blocking_lock) and its like. A guard of each kind is renewed while it
//! lives, says when it is lost, and has a [fence](crate::Guard::fence) for what it writes.
//!
//! Something else serves better where [a lease is not needed](crate#when-not-to-use-it). To try them out:
//!
//! | example | the story |
//! |---|---|
//! | `cargo run --example flash_sale` | three hundred buyers of a hundred items, on a mutex |
//! | `cargo run --example prices` | forty readers of two prices and somebody who changes them, on a read-write lock |
//! | `cargo run --example orders` | orders taken by one process and shipped by another, a lock that travels with the message |
//! | `cargo run --example partner` | two replicas and a partner who answers three calls at a time, on a semaphore |
//! | `cargo run --example nightly_import` | an import in parts by two replicas, and books that are opened when all are in, on a latch |
//! | `cargo run --example leader` | a relay of three processes, of which the leader is killed, on an election |
//! | `cargo run --example transfers` | money between accounts, on a multi-lock, and a teller that sleeps too long |
//! | `cargo run --example accounts` | two replicas of a bank behind the layer |
//! | `cargo run --example reconcile` | three replicas and one cron job |

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::driver::clock::Clock;
use crate::driver::driver;
use crate::driver::handle::Handle;
#[cfg(feature = "scheduler")]
use crate::driver::waiter::lock;
use crate::error::{Error, OptionsError, StoreError};
use crate::key::Key;
use crate::observe;
use crate::options::Options;
#[cfg(feature = "scheduler")]
use crate::primitives::call::CallFuture;
use crate::primitives::election::Election;
use crate::primitives::guard::Guard;
use crate::primitives::latch::Latch;
use crate::primitives::multi::{Multi, MultiKey};
use crate::primitives::mutex::Mutex;
use crate::primitives::rw_lock::RwLock;
use crate::primitives::semaphore::Semaphore;
use crate::primitives::transfer::Transfer;
use crate::protocol::message::{Call, Name, NodeId};
#[cfg(feature = "scheduler")]
use crate::protocol::step::CallAnswer;
#[cfg(feature = "redis")]
use crate::protocol::step::InboxState;
#[cfg(feature = "scheduler")]
use crate::protocol::write::Action;
use crate::store::Store;
use crate::store::memory::MemoryStore;
#[cfg(feature = "redis")]
use crate::store::redis::RedisStore;

/// How long `redis` and `pool` wait for the inbox; without it waiting goes by timers.
#[cfg(feature = "redis")]
const INBOX_WAIT: Duration = Duration::from_millis(500);

/// Locks on one store. Make one per process and clone it: clones share connections, renewals and lines.
///
/// Works from any tokio runtime, from several, and from several in a row. Dropping the last clone, and the last guard
/// and mutex made from it, lets the background thread give back what is still under way, and end. It waits for nothing:
/// a program that must leave nothing behind calls [`shutdown`](Self::shutdown).
///
/// Wakers of yours run on the background thread, which renews. One that panics does no harm; one that blocks stops it.
#[derive(Clone)]
pub struct Locks {
    handle: Handle,
}

impl Locks {
    /// Locks in this process's memory, with defaults: exclusive between everybody who has a clone.
    ///
    /// # Panics
    /// When the operating system gives no thread.
    pub fn memory() -> Locks {
        Locks::builder()
            .memory()
            .expect("defaults are valid, and there is a thread to be had")
    }

    /// Locks on a Redis with defaults: `redis://user:password@host:port/db`, `rediss://` (feature `rustls`) or
    /// `unix:///path?db=0`. Connects, and checks the server: 6.2 or newer, a master, and no node of a Redis Cluster. An event of level WARN tells where it
    /// is set to evict keys (`maxmemory-policy`).
    ///
    /// # Errors
    /// [`ConnectError`] when the URL is wrong, nobody answers or the server refuses. `?` also converts it into
    /// [`Error`]:
    ///
    /// ```no_run
    /// async fn charge() -> Result<(), tenure::Error> {
    ///     let locks = tenure::Locks::redis("redis://127.0.0.1/").await?;
    ///     let guard = locks.mutex("account:42").lock().await?;
    ///     guard.release().await
    /// }
    /// ```
    #[cfg(feature = "redis")]
    pub async fn redis(url: &str) -> Result<Locks, ConnectError> {
        Locks::builder().redis(url).await
    }

    /// Locks on the server that a client knows, with the client's options: what a URL cannot say, such as an authority
    /// of your own and a certificate (`redis::Client::build_with_tls`), or settings of its sockets. TCP_NODELAY is set.
    ///
    /// # Errors
    /// As [`redis`](Self::redis).
    #[cfg(feature = "redis")]
    pub async fn client(client: redis::Client) -> Result<Locks, ConnectError> {
        Locks::builder().client(client).await
    }

    /// Locks on the Redis behind a pool of yours. All connections come from `client`, as those of
    /// [`client`](Self::client) do: a pool's connections are shared with your own commands, and those of a pool that was
    /// made from a URL have Nagle's algorithm on. The pool is asked once whether it leads to the client's server and
    /// database, so that nobody locks elsewhere than where the rest of the service works; nothing is checked out of it.
    ///
    /// # Errors
    /// As [`redis`](Self::redis), and when pool and client lead to different places.
    #[cfg(feature = "bb8")]
    pub async fn pool(
        pool: bb8::Pool<bb8_redis::RedisConnectionManager>,
        client: redis::Client,
    ) -> Result<Locks, ConnectError> {
        Locks::builder().pool(pool, client).await
    }

    /// Locks with other than the defaults. Each method of the [`Builder`] says its own; a lease lasts 10 s and is renewed
    /// while its guard lives.
    pub fn builder() -> Builder {
        Builder {
            options: Options::default(),
            clock: Clock::new(),
        }
    }

    /// A lock on `key`. Costs nothing until it is locked.
    pub fn mutex(&self, key: impl Into<Key>) -> Mutex {
        self.line(Name::lock(key.into()))
    }

    /// A lock on `key` that many read or one writes. Costs nothing until it is locked. Its write side is the
    /// [`mutex`](Self::mutex) of the same key.
    pub fn rw_lock(&self, key: impl Into<Key>) -> RwLock {
        RwLock::new(self.mutex(key))
    }

    /// Takes over a lease that another holder [transferred](crate::Guard::into_transfer), and renews it from now on.
    ///
    /// The guard has the lease length of these locks. No other caller has the lock in between. Takes one round trip. The
    /// lease is not handed on within this process: other callers of this process wait as callers of other processes do.
    ///
    /// # Errors
    /// [`Error::Gone`] if the transfer was adopted or released before, or its time is over. So a message that arrives twice
    /// is adopted once. `Gone` does not mean that the work was done: lock the [`mutex`](Self::mutex) of the key and look at
    /// the data. [`Error::Options`] if the transfer was made under another prefix. Other errors as of [`Mutex::try_lock`].
    ///
    /// If the store did not answer, the lease may have been adopted. This process does not renew it then: it releases the
    /// lease in the background, or the lease ends by itself.
    ///
    /// # Cancel safety
    /// Dropping the future releases what it adopts.
    pub async fn adopt(&self, transfer: &Transfer) -> Result<Guard, Error> {
        transfer.adopt(&self.handle).await
    }

    /// Extends a transfer that is not adopted yet, from any process: it lasts for `lease` and the
    /// [margin](Builder::margin) from now on.
    ///
    /// A transfer that lasts longer stays as it is. Takes one round trip.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let locks = tenure::Locks::memory();
    /// let guard = locks.mutex("order:7").lock().await?;
    /// let transfer = guard.into_transfer(Duration::from_secs(60)).await?;
    /// // The queue is slow today.
    /// locks.extend(&transfer, Duration::from_secs(600)).await?;
    /// // The message cannot be sent.
    /// locks.release(&transfer).await?;
    /// assert!(locks.mutex("order:7").try_lock().await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::Options`] and other errors as of [`adopt`](Self::adopt). If the store did not answer, the
    /// transfer may have been extended.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the extension.
    pub async fn extend(&self, transfer: &Transfer, lease: Duration) -> Result<(), Error> {
        let extend = |of| Call::Extend { of };
        transfer.call(&self.handle, lease, extend).await
    }

    /// Releases a transfer without adopting it, from any process.
    ///
    /// Takes one round trip. After `Ok` the transfer cannot be adopted any more. If an answer was lost and the call was
    /// retried, another process may have ended the transfer.
    ///
    /// # Errors
    /// As [`extend`](Self::extend). The second of two calls returns [`Error::Gone`]. [`Error::Closed`] as of a lock; if
    /// [`shutdown`](Self::shutdown) is called meanwhile, the transfer may have been released.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the release.
    pub async fn release(&self, transfer: &Transfer) -> Result<(), Error> {
        let lease = self.handle.options().lease;
        let release = |of| Call::Release { of, repeats: false };
        transfer.call(&self.handle, lease, release).await
    }

    /// So many permits under the name of `key`. Costs nothing until some are acquired. A lock of the same key is another
    /// thing: they know nothing of each other.
    pub fn semaphore(&self, key: impl Into<Key>, permits: u32) -> Semaphore {
        Semaphore::new(self.line(Name::semaphore(key.into())), permits)
    }

    /// A latch under the name of `key`: set to a number, counted down by one or more processes, and waited for. Costs nothing
    /// until it is used. A lock or a semaphore of the same key is another thing.
    pub fn latch(&self, key: impl Into<Key>) -> Latch {
        Latch::new(self.line(Name::latch(key.into())))
    }

    /// An election under the name of `key`: one of the processes that stand leads. Costs nothing until somebody stands or asks.
    /// A lock of the same key is another thing.
    pub fn election(&self, key: impl Into<Key>) -> Election {
        Election::new(self.line(Name::election(key.into())))
    }

    /// Locks on all of these keys, 1 to 64 of them, taken together: for what spans several things, as a transfer between two
    /// accounts does. Each is written, and [`MultiKey::read`] is one that is read. Costs nothing until it is locked.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure::Error> {
    /// let locks = tenure::Locks::memory();
    /// let guard = locks.multi(["account:1", "account:2"]).lock().await?;
    /// // … both accounts are ours; each has a fence of its own …
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn multi<K: Into<MultiKey>>(&self, keys: impl IntoIterator<Item = K>) -> Multi {
        Multi::new(self.handle.clone(), keys.into_iter().map(Into::into))
    }

    /// Asks the store for a sign of life, for a readiness probe.
    ///
    /// # Errors
    /// [`Error::Connect`] with what keeps the store from answering, or with
    /// [`StoreErrorKind::TimedOut`](crate::error::StoreErrorKind::TimedOut) after the request timeout. A node of a Redis Cluster
    /// and a Sentinel are refused. In a forked child [`Error::Closed`], with `ping` as its key.
    pub async fn ping(&self) -> Result<(), Error> {
        self.handle.not_forked(&Key::from("ping"))?;
        let node = self.handle.node();
        node.ping().await.map_err(|source| Error::Connect {
            store: node.servers.any().text.to_string(),
            source,
        })
    }

    /// Removes what the store knows of a job that is no more, which it would keep for ever: the tick that was granted
    /// last, and whether it ended well. Answers whether anything was known.
    ///
    /// For a job that no replica schedules any more. Who still does makes a new record with the next tick; and a replica
    /// that is late may run a tick again that was run already, as nothing is known of that.
    ///
    /// # Errors
    /// [`Error::Busy`] when somebody runs the job, or stands by for a tick of it: nothing was removed. [`Error::Store`]
    /// when the store cannot be reached, and [`Error::Closed`] in a fork or after a shutdown.
    #[cfg(feature = "scheduler")]
    pub async fn forget_job(&self, name: impl Into<Key>) -> Result<bool, Error> {
        let name = Name::job(name.into());
        self.handle.not_forked(&name.key)?;
        let time = 4 * self.handle.options().request_timeout;
        let forgotten = CallFuture::once(
            &self.handle,
            &name,
            (time, Action::ForgetJob),
            CallAnswer::try_as_owned,
        )
        .await;
        match forgotten {
            Ok(_) => drop(lock(&self.handle.jobs().over).remove(&name.key)),
            // Repeating it does no harm.
            Err(Error::Unanswered { key, source }) => return Err(Error::Store { key, source }),
            Err(_) => {}
        }
        forgotten
    }

    /// Resolves when nothing is held, waited for or under way in this process.
    pub async fn idle(&self) {
        if !self.handle.node().is_forked() {
            self.handle.node().idle().await;
        }
    }

    /// Gives everything back and takes no more: waiters get [`Error::Closed`], guards are lost, and the store is told.
    /// Resolves when it was told; or, if it cannot be reached, when everything has ended by itself.
    ///
    /// Before that it waits for the handlers that a layer runs to completion, whose clients may be gone. Layers let no other
    /// request in meanwhile, and answer with 503. Put a timeout around it if handlers may take for ever: when it is dropped
    /// everything is given up all the same, those handlers' leases too, and the store is told in the background. Such a
    /// handler must not wait for it itself.
    pub async fn shutdown(&self) {
        /// Also when nobody waits for the end.
        struct Close<'a>(&'a Handle);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.node().close();
            }
        }
        if self.handle.node().is_forked() {
            return;
        }
        let close = Close(&self.handle);
        #[cfg(feature = "tower")]
        {
            self.handle.tasks().close();
            self.handle.tasks().wait().await;
        }
        drop(close);
        self.idle().await;
    }

    /// This process's name in the store. A new one for each `Locks`.
    pub fn node(&self) -> NodeId {
        self.handle.node().id
    }

    /// What the builder called this node, or its id.
    pub fn node_name(&self) -> String {
        let given = &self.handle.options().node_name;
        given.clone().unwrap_or_else(|| self.node().to_string())
    }

    /// Returns how many keys have any state in this process: held, waited for, being released, or asked about.
    ///
    /// Locks, semaphores, latches, elections and jobs count. A lock and a semaphore of one key count as two. A key counts
    /// once, whatever the number of its guards, waiters and observers. A forked child returns 0.
    pub fn keys(&self) -> usize {
        self.handle.node().keys()
    }

    #[cfg(any(feature = "scheduler", feature = "tower"))]
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns how many callers wait in this process, for locks, permits, leaderships and latches.
    pub fn waiting(&self) -> usize {
        self.handle.node().waiting()
    }

    /// The line for what `name` names.
    fn line(&self, name: Name) -> Mutex {
        Mutex::new(self.handle.clone(), name)
    }

    fn tell_built(&self) {
        let node = self.handle.node();
        let server = &node.servers.any().text;
        observe::locks_built(node.events.label(), server, &node.options.prefix);
    }

    #[cfg(feature = "redis")]
    async fn connect(&self) -> Result<(), StoreError> {
        let node = self.handle.node();
        node.ping().await?;
        let mut inbox = node.inbox();
        node.want_inbox();
        // Not a condition: without an inbox waiting goes by timers, and an event tells.
        let decided = |state: &InboxState| *state != InboxState::Unconfirmed;
        let _ = tokio::time::timeout(INBOX_WAIT, inbox.wait_for(decided)).await;
        Ok(())
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("node", &self.node_name())
            .field("store", &self.handle.node().servers.store)
            .field("keys", &self.keys())
            .finish()
    }
}

/// Why no [`Locks`] could be made.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An option makes no sense.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The store is not to be had. The text names the server, without its password.
    #[error("cannot use {store}: {source}")]
    #[non_exhaustive]
    Store {
        /// Which store.
        store: String,
        /// What it said.
        source: StoreError,
    },
}

/// So that the first `?` of a service, and the next, need one type of error.
impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Error {
        match error {
            ConnectError::Options(error) => Error::Options(error),
            ConnectError::Store { store, source } => Error::Connect { store, source },
        }
    }
}

/// Makes [`Locks`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// let locks = tenure::Locks::builder()
///     .prefix("shop:lock:")
///     .lease(Duration::from_secs(5))
///     .max_waiters_per_key(100)
///     .memory()?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until a store is named"]
pub struct Builder {
    options: Options,
    clock: Clock,
}

impl Builder {
    /// What every record's name begins with; default `lock:`. Services that share a lock share the prefix. Not empty,
    /// not beginning with `tenure`, and no beginning of that.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.options.prefix = prefix.as_ref().to_vec();
        self
    }

    /// How long a lease lasts without renewal; default 10 s, 400 ms to 30 days. A dead process's locks are free after a
    /// lease, the margin and a timer; an outage of the store of up to two thirds of a lease is survived.
    ///
    /// [`Mutex::lease`] sets it for one lock. Jobs have a default of their own, 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// What the store adds to a lease before it lets others in; default a tenth of the lease, 250 ms at least. It pays
    /// for clocks that run at different rates and for small steps of the server's clock.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.options.margin = Some(margin);
        self
    }

    /// How often in a row, and for how long, a lease is handed on within the process before other processes get their
    /// turn; default 256 times or 20 ms. 1 to 1,023 times.
    pub fn burst(mut self, hand_offs: u32, time: Duration) -> Self {
        self.options.burst = hand_offs;
        self.options.burst_time = time;
        self
    }

    /// For how long a lock may be held before an event of level WARN, `held_long`, tells of it; default 60 s. It is told
    /// once for each holding, with one of its renewals, and changes nothing: for a bound see
    /// [`Mutex::max_hold`]. Jobs, leaders and fixed leases are not told of.
    pub fn long_hold(mut self, long: Duration) -> Self {
        self.options.long_hold = long;
        self
    }

    /// How many callers of this process may wait for one key; default 10,000. Over it they get
    /// [`Error::QueueFull`] at once.
    pub fn max_waiters_per_key(mut self, limit: usize) -> Self {
        self.options.max_waiters_per_key = limit;
        self
    }

    /// How many callers of this process may wait in all; default 100,000. Over it whoever would have to wait gets
    /// [`Error::NodeFull`] at once. Ticks and free keys are not refused for it.
    pub fn max_waiters_per_node(mut self, limit: usize) -> Self {
        self.options.max_waiters_per_node = limit;
        self
    }

    /// The longest key, in bytes; default 512.
    pub fn max_key(mut self, bytes: usize) -> Self {
        self.options.max_key = bytes;
        self
    }

    /// What this node is called, for people: in events, as `node_name`, and in Redis, where its connection is
    /// `tenure:<name>` in `CLIENT LIST`, with a `_` for each sign that Redis does not take there. Since Redis 7.2 its
    /// inbox shows the same as `lib-name`.
    pub fn node_name(mut self, name: impl Into<String>) -> Self {
        self.options.node_name = Some(name.into());
        self
    }

    /// What the service is called whose replicas share the jobs; the same on all of them. Two services that give a job one
    /// name on one Redis would run each other's ticks: where they say what they are called, or have another expression,
    /// a warning tells (`job_differs`).
    #[cfg(feature = "scheduler")]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.options.service = name.into();
        self
    }

    /// How long a request may take at most before its connection is given up; default 2 s, 100 ms to one day. A request
    /// of a shorter lease waits for a quarter of what is left of it.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.options.request_timeout = timeout;
        self
    }

    /// Leaves a lock free for so long now and then, for libraries on the same record that only look at an interval:
    /// 100 ms for redis-py. The default is never. A release hands the record to the next of our waiters, so beside a key
    /// for which some of ours always wait such a library would get nothing.
    ///
    /// With it, a key that was handed on for eight times as long without ever being free is left free once: who polls gets
    /// in once a second beside a busy key, and about an eighth of our throughput there is lost; much more with gaps below
    /// 30 ms, a third at 10 ms, as our waiters look no more often. Callers that wait look for
    /// themselves then, as beside a foreign owner: every 30 ms in the first 2 s and every 250 ms after that. Set it alike
    /// in all processes, on `Locks` for the keys that are shared with others.
    pub fn poll_gap(mut self, gap: Duration) -> Self {
        self.options.poll_gap = gap;
        self
    }

    /// Connect when the first lock is taken, so that a service starts while its store is away. The default is to fail
    /// at once.
    pub fn lazy(mut self) -> Self {
        self.options.lazy = true;
        self
    }

    /// Makes nonces and jitter repeatable, for tests.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = Some(seed);
        self
    }

    /// Allows leases down to 50 ms, which a machine that stands still for a moment loses. For tests that wait for it.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    pub fn short_leases(mut self) -> Self {
        self.options.short_leases = true;
        self
    }

    /// The clock that leases are judged by, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Locks in this process's memory.
    ///
    /// # Errors
    /// An option that makes no sense.
    pub fn memory(self) -> Result<Locks, OptionsError> {
        self.memory_shared(&MemoryStore::new())
    }

    /// Locks in memory that other nodes share: two of them exclude each other as two processes on a Redis do.
    ///
    /// # Errors
    /// An option that makes no sense.
    pub fn memory_shared(self, store: &MemoryStore) -> Result<Locks, OptionsError> {
        let locks = self.on(Arc::new(store.clone()))?;
        locks.tell_built();
        Ok(locks)
    }

    /// Locks on a Redis; see [`Locks::redis`].
    ///
    /// # Errors
    /// [`ConnectError`], and [`lazy`](Self::lazy) only leaves those about options and URL.
    #[cfg(feature = "redis")]
    pub async fn redis(self, url: &str) -> Result<Locks, ConnectError> {
        self.options.check()?;
        self.connected(RedisStore::open(url)?).await
    }

    /// Locks on the server that a client knows; see [`Locks::client`].
    ///
    /// # Errors
    /// As [`redis`](Self::redis).
    #[cfg(feature = "redis")]
    pub async fn client(self, client: redis::Client) -> Result<Locks, ConnectError> {
        self.options.check()?;
        self.connected(RedisStore::new(client)?).await
    }

    /// Locks on the Redis behind a pool; see [`Locks::pool`]. With [`lazy`](Self::lazy) the pool is not asked.
    ///
    /// # Errors
    /// As [`Locks::pool`].
    #[cfg(feature = "bb8")]
    pub async fn pool(
        self,
        pool: bb8::Pool<bb8_redis::RedisConnectionManager>,
        client: redis::Client,
    ) -> Result<Locks, ConnectError> {
        self.options.check()?;
        let store = RedisStore::new(client)?.with_connect_timeout(self.options.request_timeout);
        if !self.options.lazy {
            let is_behind = store.is_behind(&pool).await;
            let failed = |source| ConnectError::Store {
                store: store.to_string(),
                source,
            };
            if !is_behind.map_err(failed)? {
                return Err(ConnectError::Options(OptionsError(format!(
                    "the pool leads to another server or database than {store}: give it a client of the same"
                ))));
            }
        }
        self.connected(store).await
    }

    #[cfg(feature = "redis")]
    async fn connected(self, store: RedisStore) -> Result<Locks, ConnectError> {
        let timeout = self.options.request_timeout;
        let store = store
            .with_prefix(&self.options.prefix)?
            .with_node_name(self.options.node_name.as_deref())?
            .with_connect_timeout(timeout);
        let (lazy, shown) = (self.options.lazy, store.to_string());
        let locks = self.on(Arc::new(store))?;
        if !lazy {
            locks
                .connect()
                .await
                .map_err(|source| ConnectError::Store { store: shown, source })?;
        }
        locks.tell_built();
        Ok(locks)
    }

    pub(crate) fn on(self, store: Arc<dyn Store>) -> Result<Locks, OptionsError> {
        Ok(Locks {
            handle: Handle::new(driver::start(store, self.options, self.clock)?),
        })
    }
}
