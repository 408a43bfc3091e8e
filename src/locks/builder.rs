//! How [`Locks`] are made: the constructors, and the [`Builder`] with all settings.

use std::sync::Arc;
use std::time::Duration;

use crate::driver::clock::Clock;
use crate::driver::driver;
use crate::driver::handle::Handle;
use crate::error::{Error, OptionsError, StoreError};
use crate::locks::entry::Locks;
use crate::observe;
use crate::options::{Options, Recovery};
#[cfg(doc)]
use crate::primitives::mutex::Mutex;
#[cfg(feature = "redis")]
use crate::protocol::step::InboxState;
use crate::store::Store;
use crate::store::memory::MemoryStore;
#[cfg(feature = "redis")]
use crate::store::redis::RedisStore;
#[cfg(feature = "redis")]
use crate::store::redis::credentials::Credentials;
#[cfg(feature = "redis")]
use crate::store::redis::run::RunPolicy;

/// Limits how long `redis`, `client` and `pool` wait for the inbox. Without an inbox waiters use timers.
#[cfg(feature = "redis")]
const MAX_INBOX_WAIT: Duration = Duration::from_millis(500);

impl Locks {
    /// Makes locks in this process's memory, with defaults. The callers of all clones exclude each other.
    ///
    /// # Panics
    /// If the operating system gives no thread.
    pub fn memory() -> Locks {
        Locks::builder()
            .memory()
            .expect("the defaults are valid, and the operating system gives a thread")
    }

    /// Makes locks on a Redis server, with defaults. The URL is `redis://user:password@host:port/db`, `rediss://` (feature
    /// `rustls`) or `unix:///path?db=0`.
    ///
    /// Connects, and checks the server: 6.2 or newer, a master, and no node of a Redis Cluster. An event of level WARN reports
    /// a server that may evict keys (`maxmemory-policy`).
    ///
    /// # Errors
    /// [`ConnectError`] if the URL is wrong, the server does not answer, or it refuses. `?` also converts the error into
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

    /// Makes locks on the server of a client, with the client's options. A client can have options that a URL cannot express,
    /// such as your own certificate authority or a certificate (`redis::Client::build_with_tls`), or socket settings.
    /// TCP_NODELAY is set.
    ///
    /// # Errors
    /// As [`redis`](Self::redis).
    #[cfg(feature = "redis")]
    pub async fn client(client: redis::Client) -> Result<Locks, ConnectError> {
        Locks::builder().client(client).await
    }

    /// Makes locks on the master that Sentinels watch under this name, with defaults. Each URL leads to a Sentinel, as
    /// `redis://:password@host:port`; without a port it means 26379. List all of them by their own addresses: a new connection
    /// grants only if a majority confirms the master.
    ///
    /// The master is used without a password, without TLS and with database 0. [`Builder::sentinel`] has other settings.
    ///
    /// After a failover the locks are at the new master. The Sentinels are asked for it once a second; while they are
    /// unreachable, open connections go on. A server that was just promoted grants nothing for a while, see [`Builder::recovery`].
    ///
    /// # Errors
    /// [`ConnectError`] if a URL is wrong, no Sentinel knows the name, or the master does not answer or refuses.
    #[cfg(feature = "redis")]
    pub async fn sentinel<U: AsRef<str>>(
        name: &str,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Locks, ConnectError> {
        let like = redis::Client::open("redis://127.0.0.1/");
        let like = like.map_err(|error| OptionsError(format!("the Redis client cannot be used: {error}")))?;
        Locks::builder().sentinel(name, urls, like).await
    }

    /// Makes locks on a Redis Cluster, with defaults. Each URL leads to one of its servers, as
    /// `redis://user:password@host:port`; one that answers is enough. The other servers are used with the settings of the
    /// first URL.
    ///
    /// Each lock lies in the slot of its record, `lock:` and the key, or of the text in the first braces of the key. A
    /// [multi-lock](Self::multi) takes its keys together if they share a slot, for example `{order:7}:stock` and
    /// `{order:7}:pay`, and otherwise one after the other.
    ///
    /// # Errors
    /// [`ConnectError`] if a URL is wrong, no server answers, a server is not part of a cluster, or a master does not answer
    /// or refuses.
    #[cfg(feature = "redis")]
    pub async fn cluster<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Locks, ConnectError> {
        let urls: Vec<U> = urls.into_iter().collect();
        let first = urls.first().map_or("redis://127.0.0.1/", AsRef::as_ref);
        let like = RedisStore::cluster_client(first)?;
        Locks::builder().cluster(urls, like).await
    }

    /// Makes locks on a quorum of 3, 5 or 7 independent Redis masters, with defaults. Each URL leads to one master, as
    /// `redis://user:password@host:port`.
    ///
    /// A lease stands on a majority of the masters, so it outlives the loss of the others, and no replication is trusted. This is
    /// Redlock (Redis docs, "Distributed Locks with Redis") with fences. A master that was restarted, or is used for the first
    /// time, has no vote until every earlier lease is over: 11 s with the defaults. A lease lasts 10 s at most;
    /// [`Builder::quorum`] sets another bound.
    ///
    /// All processes have the same list, in any order. Each master keeps it, and refuses a process with another one; a process
    /// that one master refuses uses none. In most cases one Redis is enough; the README says when.
    ///
    /// A quorum serves [`mutex`](Self::mutex), also with a [fixed](Mutex::fixed) lease, and [`multi`](Self::multi), whose keys are
    /// locked one after the other. Nothing waits in the masters: a waiter claims again after 15 to 250 ms, in no order between
    /// processes. Everything else answers [`Error::Store`] with [`StoreRefusal::Unsupported`](crate::error::StoreRefusal).
    ///
    /// # Errors
    /// [`ConnectError`] if a URL is wrong, there are not 3, 5 or 7, a server is named twice, no majority of the masters answers, or
    /// a master keeps another list. If two URLs lead to one server by different names, the second connection is refused.
    #[cfg(feature = "redis")]
    pub async fn quorum<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Locks, ConnectError> {
        let clients = urls.into_iter().map(|url| RedisStore::client_of(url.as_ref()));
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let builder = Locks::builder();
        let longest = builder.options.lease;
        builder.quorum(clients, longest).await
    }

    /// Makes locks on the Redis server behind a connection pool of yours.
    ///
    /// All connections come from `client`, as those of [`client`](Self::client) do. The pool's connections are shared with
    /// your own commands, and those of a pool that was made from a URL have Nagle's algorithm on. The pool is asked once
    /// whether it leads to the client's server and database: the locks must be where the rest of the service works. After
    /// that its connections are not used.
    ///
    /// # Errors
    /// As [`redis`](Self::redis). [`ConnectError::Options`] if pool and client lead to different servers or databases.
    #[cfg(feature = "bb8")]
    pub async fn pool(
        pool: bb8::Pool<bb8_redis::RedisConnectionManager>,
        client: redis::Client,
    ) -> Result<Locks, ConnectError> {
        Locks::builder().pool(pool, client).await
    }

    /// Returns a builder of locks with other settings than the defaults, which each method of the [`Builder`] documents.
    pub fn builder() -> Builder {
        Builder {
            options: Options::default(),
            clock: Clock::new(),
            #[cfg(feature = "redis")]
            credentials: None,
        }
    }

    fn log_built(&self) {
        let node = self.handle.node();
        node.note_built();
        let store = node.servers.text();
        observe::locks_built(node.events.label(), &store, &node.options.prefix);
    }

    #[cfg(feature = "redis")]
    async fn connect(&self) -> Result<(), StoreError> {
        let node = self.handle.node();
        node.ping(true).await?;
        if node.servers.inbox().is_none() {
            return Ok(());
        }
        let mut inbox = node.inbox();
        node.want_inbox();
        // Locks work without an inbox: waiters then use timers, and an event reports it.
        let is_decided = |state: &InboxState| *state != InboxState::Unconfirmed;
        let _ = tokio::time::timeout(MAX_INBOX_WAIT, inbox.wait_for(is_decided)).await;
        Ok(())
    }
}

/// An error of building [`Locks`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// An option is out of its bounds, or two options contradict each other. The text names the bound.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The store is unavailable or was refused. The text names the server, without its password.
    #[error("cannot use {store}: {source}")]
    #[non_exhaustive]
    Store {
        /// The address of the store, without a password.
        store: String,
        /// The error of the store or of its connection.
        source: StoreError,
    },
}

/// Lets the `?` of a service that connects and then locks use one type of error.
impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Error {
        match error {
            ConnectError::Options(error) => Error::Options(error),
            ConnectError::Store { store, source } => Error::Connect { store, source },
        }
    }
}

/// A builder of [`Locks`].
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
    #[cfg(feature = "redis")]
    credentials: Option<Credentials>,
}

impl Builder {
    /// Sets the prefix of every record's name; default `lock:`. Services that share a lock use the same prefix.
    ///
    /// A prefix has 1 to 128 bytes. It must not begin with `tenure`, nor be a beginning of `tenure`: those names are the
    /// crate's own records.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.options.prefix = prefix.as_ref().to_vec();
        self
    }

    /// Sets how long a lease lasts without renewal; default 10 s, 400 ms to 30 days.
    ///
    /// The locks of a process that died are free after a lease, the margin and a timer. Holders survive an outage of the store
    /// of up to two thirds of a lease.
    ///
    /// [`Mutex::lease`] sets the length for one lock. Jobs have their own default, 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Sets the time that the store adds to a lease before it grants the lock to another process; default a tenth of the
    /// lease, at least 250 ms. The margin covers clocks that run at different rates, and small steps of the server's clock.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.options.margin = Some(margin);
        self
    }

    /// Limits how often in a row, and for how long, a lease is handed on within the process before other processes get their
    /// turn; default 256 times or 20 ms. The number is 1 to 1,023.
    pub fn burst(mut self, hand_offs: u32, time: Duration) -> Self {
        self.options.burst = hand_offs;
        self.options.burst_time = time;
        self
    }

    /// Sets how long a lock may be held before the event `held_long` (level WARN) reports it; default 60 s.
    ///
    /// The event comes once for each holder, with a renewal, and does not end the lease: [`Mutex::max_hold`] does. Jobs,
    /// leaders and fixed leases are not reported.
    pub fn long_hold(mut self, long: Duration) -> Self {
        self.options.long_hold = long;
        self
    }

    /// Limits how many callers of this process may wait for one key; default 10,000. A caller over the limit gets
    /// [`Error::QueueFull`] at once. [`Mutex::max_waiters`] sets the limit for one lock.
    pub fn max_waiters_per_key(mut self, limit: usize) -> Self {
        self.options.max_waiters_per_key = limit;
        self
    }

    /// Limits how many callers of this process may wait for all keys together; default 100,000. A caller over the limit that
    /// must wait gets [`Error::NodeFull`] at once. Callers of a free key and ticks of jobs are not refused.
    pub fn max_waiters_per_node(mut self, limit: usize) -> Self {
        self.options.max_waiters_per_node = limit;
        self
    }

    /// Limits the length of a key, in bytes; default 512.
    pub fn max_key(mut self, bytes: usize) -> Self {
        self.options.max_key = bytes;
        self
    }

    /// Sets the name of this node that operators see. Events have it as `node_name`.
    ///
    /// In Redis the node's connection is `tenure:<name>` in `CLIENT LIST`, with a `_` for each character that Redis refuses
    /// there. Since Redis 7.2 the connection of its inbox has the same text as `lib-name`.
    pub fn node_name(mut self, name: impl Into<String>) -> Self {
        self.options.node_name = Some(name.into());
        self
    }

    /// Sets the name of the service whose replicas share the jobs. It must be the same on all replicas.
    ///
    /// Two services that use the same job name on one Redis take each other's ticks. The event `job_differs` (level WARN)
    /// reports it if their service names or their expressions differ.
    #[cfg(feature = "scheduler")]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.options.service = name.into();
        self
    }

    /// Limits how long a request may take before its connection is closed; default 2 s, 100 ms to one day. A request of a
    /// shorter lease waits for a quarter of the lease's remaining time.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.options.request_timeout = timeout;
        self
    }

    /// Sets a function that gives user and password before each connection to a server, for passwords that rotate and tokens that
    /// expire. It replaces those of the URL or the client, and holds for every server, but not for Sentinels. Open connections stay.
    ///
    /// An error or a panic of the function is a connection that failed: it is tried again, after a pause. The function runs on the
    /// thread that renews leases, so it must not block. It may take as long as the [`request_timeout`](Self::request_timeout).
    ///
    /// ```no_run
    /// # async fn token() -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # async fn connects() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = tenure::Locks::builder()
    ///     .credentials(|| async { Ok::<_, std::io::Error>(("shop".to_owned(), token().await?)) })
    ///     .redis("rediss://redis.example")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    pub fn credentials<F, Fut, E>(mut self, hook: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(String, String), E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.credentials = Some(Credentials::new(hook));
        self
    }

    /// Leaves a busy key free for `gap` now and then, for other libraries that poll the same record: 100 ms for redis-py. The
    /// default is zero, which never leaves a key free. A gap is 1 ms to 1 min.
    ///
    /// A release hands the record to the next waiter of tenure. So a library that polls gets nothing while callers of tenure
    /// always wait for the key. With a gap, a key that was handed on for eight times the gap is left free once.
    ///
    /// With 100 ms a library that polls gets a busy key once a second, and tenure loses about an eighth of its throughput on
    /// that key. Gaps below 30 ms cost more, a third of the throughput at 10 ms, because tenure's waiters poll every 30 ms.
    /// With a gap they poll as beside a foreign owner: every 30 ms in the first 2 s, every 250 ms after that.
    ///
    /// Set the same gap in all processes, on `Locks` for keys that are shared with other libraries.
    pub fn poll_gap(mut self, gap: Duration) -> Self {
        self.options.poll_gap = gap;
        self
    }

    /// Sets when a server grants nothing for a while, because it may have lost grants; see [`Recovery`]. The default is
    /// [`Recovery::OnEvidence`], behind Sentinels [`Recovery::Always`]. Set it to the same value in all processes: a process
    /// that recovers on evidence only is not bound by the longest lease of the others.
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.options.recovery = Some(recovery);
        self
    }

    /// Connects when the first lock is acquired, so that a service starts while its store is unavailable. By default building
    /// connects, and fails if the store is unavailable.
    pub fn lazy(mut self) -> Self {
        self.options.lazy = true;
        self
    }

    /// Sets whether this node tells operators of itself; default `true`. Its presence has its name, host, process, version,
    /// service and prefix, and how many keys and waiters it has. [`Inspection`](crate::inspect::Inspection) shows it.
    ///
    /// It costs one `SET` when the first lease is asked for, and every 20 s after that. It expires after a minute, and a
    /// [`shutdown`](Locks::shutdown) removes it.
    pub fn presence(mut self, tells: bool) -> Self {
        self.options.presence = tells;
        self
    }

    /// Makes nonces and jitter repeatable, for tests.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = Some(seed);
        self
    }

    /// Allows leases down to 50 ms, for tests of a loss. A short pause of the machine loses such a lease.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    pub fn short_leases(mut self) -> Self {
        self.options.short_leases = true;
        self
    }

    /// Sets the clock of the leases, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds locks in this process's memory.
    ///
    /// # Errors
    /// [`OptionsError`] for an option out of its bounds.
    pub fn memory(self) -> Result<Locks, OptionsError> {
        self.memory_shared(&MemoryStore::new())
    }

    /// Builds locks on a memory store that other nodes share. Two such nodes exclude each other as two processes on a Redis
    /// server do.
    ///
    /// # Errors
    /// [`OptionsError`] for an option out of its bounds.
    pub fn memory_shared(self, store: &MemoryStore) -> Result<Locks, OptionsError> {
        let locks = self.on(Arc::new(store.clone()))?;
        locks.log_built();
        Ok(locks)
    }

    /// Builds locks on a Redis server; see [`Locks::redis`].
    ///
    /// # Errors
    /// [`ConnectError`]. With [`lazy`](Self::lazy) only [`ConnectError::Options`], for an option or the URL.
    #[cfg(feature = "redis")]
    pub async fn redis(self, url: &str) -> Result<Locks, ConnectError> {
        self.options.check()?;
        self.connected(RedisStore::open(url)?).await
    }

    /// Builds locks on the server of a client; see [`Locks::client`].
    ///
    /// # Errors
    /// As [`redis`](Self::redis).
    #[cfg(feature = "redis")]
    pub async fn client(self, client: redis::Client) -> Result<Locks, ConnectError> {
        self.options.check()?;
        self.connected(RedisStore::new(client)?).await
    }

    /// Builds locks on the master that Sentinels watch under this name; see [`Locks::sentinel`].
    ///
    /// The connections to the master have the user, the password, the database, the TLS settings and the socket settings of
    /// `like`. Its address is replaced by the one that the Sentinels tell. The URLs have the settings of the connections to
    /// the Sentinels; with `rediss`, these have the authority and the certificate of `like`, too. With TLS the master's certificate
    /// must be for that address: an IP, unless the Sentinels announce host names.
    ///
    /// # Errors
    /// As [`Locks::sentinel`]. With [`lazy`](Self::lazy) only [`ConnectError::Options`], for an option or a URL.
    #[cfg(feature = "redis")]
    pub async fn sentinel<U: AsRef<str>>(
        self,
        name: &str,
        urls: impl IntoIterator<Item = U>,
        like: redis::Client,
    ) -> Result<Locks, ConnectError> {
        let mut builder = self;
        builder.options.recover_always();
        builder.options.check()?;
        builder.connected(RedisStore::behind(name, urls, like)?).await
    }

    /// Builds locks on the Redis Cluster of which the URLs name servers; see [`Locks::cluster`].
    ///
    /// The connections to all servers have the user, the password, the TLS settings and the socket settings of `like`. Its
    /// address is replaced by those that the cluster announces. A URL that names another user or password, or differs in TLS, is an
    /// options error.
    ///
    /// # Errors
    /// As [`Locks::cluster`]. With [`lazy`](Self::lazy) only [`ConnectError::Options`], for an option or a URL.
    /// [`Recovery::Always`] is an options error: a slot that moved looks like a promotion.
    #[cfg(feature = "redis")]
    pub async fn cluster<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
        like: redis::Client,
    ) -> Result<Locks, ConnectError> {
        self.options.check()?;
        self.options.check_cluster()?;
        self.connected(RedisStore::of_cluster(urls, like)?).await
    }

    /// Builds locks on a quorum of Redis masters; see [`Locks::quorum`]. A lease lasts at most `longest`, which must be the same
    /// in all processes: a master that was restarted has no vote for so long, and the margin. Each client is one master; user,
    /// password, database, TLS and socket settings are those of its client.
    ///
    /// # Errors
    /// As [`Locks::quorum`]. With [`lazy`](Self::lazy) only [`ConnectError::Options`], for an option or the masters.
    /// [`recovery`](Self::recovery) and [`poll_gap`](Self::poll_gap) are options errors: a quorum has its own.
    #[cfg(feature = "redis")]
    pub async fn quorum(self, clients: Vec<redis::Client>, longest: Duration) -> Result<Locks, ConnectError> {
        let mut builder = self;
        builder.options.recover_as_quorum(longest)?;
        builder.options.check()?;
        builder.connected(RedisStore::of_quorum(clients)?).await
    }

    /// Builds locks on the Redis server behind a pool; see [`Locks::pool`]. With [`lazy`](Self::lazy) the pool is not asked.
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
        let store = RedisStore::new(client)?
            .with_credentials(self.credentials.clone())
            .with_connect_timeout(self.options.request_timeout);
        if !self.options.lazy {
            let is_behind = store.is_behind(&pool).await;
            let failed = |source| ConnectError::Store {
                store: store.to_string(),
                source,
            };
            if !is_behind.map_err(failed)? {
                return Err(ConnectError::Options(OptionsError(format!(
                    "the pool leads to another server or database than {store}: use a pool and a client of one server and database"
                ))));
            }
        }
        self.connected(store).await
    }

    #[cfg(feature = "redis")]
    async fn connected(self, store: RedisStore) -> Result<Locks, ConnectError> {
        let timeout = self.options.request_timeout;
        let policy = RunPolicy {
            longest: self.options.longest_lease(),
            recovery: self.options.recovery_time(),
        };
        let store = store
            .with_prefix(&self.options.prefix)?
            .with_run_policy(policy)
            .with_credentials(self.credentials.clone())
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
        locks.log_built();
        Ok(locks)
    }

    pub(crate) fn on(self, store: Arc<dyn Store>) -> Result<Locks, OptionsError> {
        Ok(Locks {
            handle: Handle::new(driver::start(store, self.options, self.clock)?),
        })
    }
}
