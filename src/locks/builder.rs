//! How [`Locks`] are made: the constructors, and the [`Builder`] with all settings.

use std::sync::Arc;
use std::time::Duration;

use crate::driver::clock::Clock;
use crate::driver::driver;
use crate::driver::handle::Handle;
#[cfg(feature = "redis")]
use crate::error::StoreError;
use crate::error::{Error, OptionsError};
use crate::locks::entry::Locks;
use crate::locks::url::{StoreLocation, StoreUrl};
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

/// Limits how long a connecting caller waits for the inbox. Without an inbox waiters use timers.
#[cfg(feature = "redis")]
const MAX_INBOX_WAIT: Duration = Duration::from_millis(500);
/// Why `Builder::tls` is refused beside a client.
#[cfg(feature = "redis")]
const OWN_CERTIFICATES: &str = "a client has certificates of its own, so give these to the client";

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

    /// Makes locks on the store that a URL names, with defaults, and connects.
    ///
    /// ```no_run
    /// async fn charge() -> Result<(), tenure::Error> {
    ///     let locks = tenure::Locks::connect("redis://127.0.0.1/").await?;
    ///     let guard = locks.mutex("account:42").lock().await?;
    ///     guard.release().await
    /// }
    /// ```
    ///
    /// # The URL
    ///
    /// | URL | the store |
    /// |---|---|
    /// | `memory://name` | this process's memory; one store for each name, which may be empty |
    /// | `redis://user:password@host:6379/0` | a Redis server, or one that speaks its protocol |
    /// | `unix:///path?db=0&user=…&pass=…` | the same, by its socket |
    /// | `redis+sentinel://user:password@host:26379,host,[::1]/name/0` | the master that these Sentinels know by this name |
    /// | `redis+cluster://user:password@host:6379,host` | a Redis Cluster; one host that answers is enough |
    /// | `redis+quorum://user:password@host:6379,host,host/0` | a quorum of 3, 5 or 7 independent masters |
    ///
    /// * **Scheme.** `rediss://` and `rediss+…://` use TLS to all servers and Sentinels (feature `rustls`; `Builder::tls` names
    ///   an authority). `valkey`, `valkeys`, `valkey+unix` and `redis+unix` are other names of `redis`, `rediss` and `unix`.
    /// * **User and password** are those of the servers. They stand once, in front of the first host. `:password@` is the user
    ///   `default`; a user without a password is refused. In both, `%40` is `@`, `%2F` is `/`, `%3F` is `?`, `%23` is `#`, `%2C`
    ///   is `,` and `%25` is `%`. [`Builder::credentials`] takes them apart from the URL.
    /// * **Hosts** are names or addresses. An IPv6 address stands in brackets. The default port is 6379, for Sentinels 26379.
    /// * **Path.** The number is that of the database, 0 if it is missing. A cluster has database 0 only.
    /// * **Options** follow after `?`, joined by `&`. An option that is unknown, empty, given twice or without effect is refused.
    ///   So is a `#`, also as `#insecure`.
    ///
    /// The options of a URL are what all processes must have alike. They win over the [`Builder`], because the command `tenure`
    /// gets the same URL:
    ///
    /// | option | as |
    /// |---|---|
    /// | `prefix=shop:` | [`Builder::prefix`] |
    /// | `recovery=evidence`, `recovery=always` | [`Builder::recovery`]; not on a cluster or a quorum |
    /// | `longest=30s`, `lag=3s` | [`Recovery::Always`], which is the default behind Sentinels; on a quorum `longest` alone |
    /// | `protocol=resp3` | the protocol of the connections |
    /// | `sentinel_username`, `sentinel_password` | user and password of the Sentinels |
    ///
    /// # The store
    ///
    /// A server is 6.2 or newer, a master, and no node of a cluster. What each store may lose, what is different there and what to
    /// set stands in its guide: [one server](crate::guide::redis), [Sentinels](crate::guide::sentinel),
    /// [a cluster](crate::guide::cluster), [a quorum](crate::guide::quorum).
    ///
    /// # Errors
    /// [`Error::Options`] if the URL is wrong; the text says what to write, and has no user, password or text of an option.
    /// [`Error::Connect`] if the store does not answer or refuses, so also during a failover: start the process again, or use
    /// [`Builder::lazy`].
    pub async fn connect(url: &str) -> Result<Locks, Error> {
        Locks::builder().connect(url).await
    }

    /// Returns a builder of locks with other settings than the defaults, which each method of the [`Builder`] documents.
    pub fn builder() -> Builder {
        Builder {
            options: Options::default(),
            clock: Clock::new(),
            #[cfg(feature = "redis")]
            credentials: None,
            #[cfg(feature = "rustls")]
            tls: None,
        }
    }

    fn log_built(&self) {
        let node = self.handle.node();
        node.note_built();
        let store = node.servers.text();
        observe::locks_built(node.events.label(), &store, &node.options.prefix);
    }

    #[cfg(feature = "redis")]
    async fn reach(&self) -> Result<(), StoreError> {
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
    #[cfg(feature = "rustls")]
    tls: Option<redis::TlsCertificates>,
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

    /// Sets how long a lease lasts without renewal; default 10 s, or the `longest` of [`Recovery::Always`] or of a quorum if that is
    /// shorter; 400 ms to 30 days.
    ///
    /// The locks of a process that died are free after a lease, the margin and a timer. Holders survive an outage of the store
    /// of up to two thirds of a lease.
    ///
    /// [`Mutex::lease`] sets the length for one lock. Jobs have their own default, 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = Some(lease);
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

    /// Limits how many callers of this process may wait for one key ([`Error::QueueFull`]); default 10,000.
    /// [`Mutex::max_waiters`] sets the limit for one lock.
    pub fn max_waiters_per_key(mut self, limit: usize) -> Self {
        self.options.max_waiters_per_key = limit;
        self
    }

    /// Limits how many callers of this process may wait for all keys together ([`Error::NodeFull`]); default 100,000. Callers
    /// of a free key and ticks of jobs are not refused.
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
    /// expire, and for a password that is kept out of the URL. Nothing in the password is percent-encoded here. It replaces those
    /// of the URL or the client, and holds for every server, but not for Sentinels. The user of a server with a password only is
    /// `default`. Open connections stay.
    ///
    /// An error or a panic of the function is a connection that failed: it is tried again, after a pause. The function runs on the
    /// thread that renews leases, so it must not block. It may take as long as the [`request_timeout`](Self::request_timeout).
    ///
    /// ```no_run
    /// # async fn token() -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # async fn connects() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = tenure::Locks::builder()
    ///     .credentials(|| async { Ok::<_, std::io::Error>(("shop".to_owned(), token().await?)) })
    ///     .connect("rediss://redis.example")
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

    /// Sets the certificate authority, and the certificate of this process, for the servers and Sentinels of a
    /// [`rediss…` URL](Locks::connect). Without it the authorities of the system are trusted.
    ///
    /// ```no_run
    /// # async fn connects() -> Result<(), Box<dyn std::error::Error>> {
    /// let certificates = tenure::TlsCertificates {
    ///     root_cert: Some(std::fs::read("ca.pem")?),
    ///     client_tls: None,
    /// };
    /// let url = "rediss+sentinel://:secret@one,two,three/shop";
    /// let locks = tenure::Locks::builder().tls(certificates).connect(url).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// A server's certificate must be for the name by which the server is reached. Sentinels and clusters tell addresses, so it
    /// must be for the IP, unless they announce host names (`sentinel announce-hostnames`, `cluster-preferred-endpoint-type`).
    ///
    /// A client of yours has its own certificates: with this option [`client`](Self::client) and the like are refused.
    #[cfg(feature = "rustls")]
    pub fn tls(mut self, certificates: redis::TlsCertificates) -> Self {
        self.tls = Some(certificates);
        self
    }

    /// Leaves a busy key free for `gap` now and then, for other libraries that poll the same record: 100 ms for redis-py. The
    /// default is zero, which never leaves a key free. A gap is 1 ms to 1 min.
    ///
    /// The guide [`other_clients`](crate::guide::other_clients#a-busy-key-poll_gap) says what it costs. Gaps below 30 ms cost more, a
    /// third of the throughput at 10 ms, because tenure's waiters poll every 30 ms.
    pub fn poll_gap(mut self, gap: Duration) -> Self {
        self.options.poll_gap = gap;
        self
    }

    /// Sets how long a lease stays with this process after the last release of a [`Mutex`] or of a
    /// [`LockLayer`](crate::LockLayer) with one key; default zero: it is given back at once.
    ///
    /// The next caller of this process then takes the lock without a round trip. Another process that wants it *recalls* the
    /// lease, which costs that process about two round trips more. If a share p of the locks comes from the process of the lock
    /// before, a lock takes about 3(1−p)/(2−p) round trips instead of one: 0.27 for p = 0.9, one for p = 0.5, and 1.5 for p = 0.
    /// So it pays where requests for one key mostly meet one process: sticky sessions, a partition for each consumer.
    ///
    /// A lease is kept for a third of its length at most, and only if it was granted at once to a caller that waits. A process
    /// keeps at most 16,384 leases. What it costs:
    ///
    /// * A process that dies blocks the keys that it kept for a lease and the margin, as those that it held.
    /// * A `try_lock` of another process finds a kept lock busy at first.
    /// * Clients of other libraries wait for the end of the keep. Until then a `DEL` by hand is not noticed.
    /// * A snapshot of a virtual machine that is resumed twice may give a fence twice.
    ///
    /// [`RwLock`](crate::RwLock), [`Mutex::fair`], [`Mutex::fixed`], multi-locks, permits, elections and ticks keep none. With
    /// [`poll_gap`](Self::poll_gap), or on a quorum, it is [`Error::Options`].
    pub fn keep(mut self, keep: Duration) -> Self {
        self.options.keep = keep;
        self
    }

    /// Sets when a server grants nothing for a while, because it may have lost grants; see [`Recovery`]. The default is
    /// [`Recovery::OnEvidence`], behind Sentinels [`Recovery::Always`].
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
    /// service and prefix, how many keys and waiters it has, and the [notes](crate::Lease::note) of the leases that it has held for
    /// longest. [`Inspection`](crate::inspect::Inspection) shows it.
    ///
    /// It costs one `SET` when the first lease is asked for, and every 20 s after that; while notes change, at most every 2 s. It
    /// expires after a minute, and a [`shutdown`](Locks::shutdown) removes it.
    pub fn presence(mut self, tells: bool) -> Self {
        self.options.presence = tells;
        self
    }

    /// Makes nonces and jitter repeatable, for tests.
    #[doc(hidden)]
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

    /// Sets the clock of the leases, for tests: a [jump](Clock::jump) ends leases without a wait. The clock of a paused tokio runtime
    /// is another one, and ends none.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use tenure::{Error, Locks, testing::Clock};
    ///
    /// let clock = Clock::new();
    /// let locks = Locks::builder().clock(clock.clone()).memory()?;
    /// let guard = locks.mutex("account:42").lock().await?;
    /// let work = guard.run(std::future::pending::<()>()); // the code under test
    /// clock.jump(Duration::from_secs(60));
    /// assert!(matches!(work.await, Err(Error::Lost { .. })));
    /// # Ok(()) }
    /// ```
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
    /// server do: if their [`prefix`](Self::prefix) is the same.
    ///
    /// # Errors
    /// [`OptionsError`] for an option out of its bounds.
    pub fn memory_shared(self, store: &MemoryStore) -> Result<Locks, OptionsError> {
        #[cfg(feature = "redis")]
        {
            self.no_certificates("memory has no connections")?;
            if self.credentials.is_some() {
                let why = "`Builder::credentials` has no effect: memory has no connections";
                return Err(OptionsError(why.to_owned()));
            }
        }
        let store = store.with_prefix(&self.options.prefix);
        let locks = self.on(Arc::new(store))?;
        locks.log_built();
        Ok(locks)
    }

    /// Builds locks on the store that a URL names; see [`Locks::connect`].
    ///
    /// # Errors
    /// As [`Locks::connect`]. With [`lazy`](Self::lazy) only [`Error::Options`], for an option or the URL.
    pub async fn connect(mut self, url: &str) -> Result<Locks, Error> {
        let url = StoreUrl::parse(url)?;
        if let Some(prefix) = &url.prefix {
            self.options.prefix.clone_from(prefix);
        }
        #[cfg(feature = "redis")]
        return self.connect_to(url).await;
        #[cfg(not(feature = "redis"))]
        match url.location {
            StoreLocation::Memory(name) => Ok(self.memory_shared(&MemoryStore::named(&name))?),
            _ => Err(Error::Options(OptionsError(
                "the URL names a Redis: enable tenure's feature `redis`".to_owned(),
            ))),
        }
    }

    #[cfg(feature = "redis")]
    async fn connect_to(mut self, url: StoreUrl) -> Result<Locks, Error> {
        // The longest lease of a quorum is no recovery of a server.
        if !matches!(url.location, StoreLocation::Quorum(_)) {
            self.options.recover_as(url.recovers, (url.longest, url.lag));
        }
        match &url.location {
            StoreLocation::Memory(name) => Ok(self.memory_shared(&MemoryStore::named(name))?),
            StoreLocation::Server(url) => {
                let client = self.clients(std::slice::from_ref(url))?.remove(0);
                self.client(client).await
            }
            StoreLocation::Sentinels { name, urls, like } => {
                let like = self.clients(std::slice::from_ref(like))?.remove(0);
                self.sentinel(name, urls, like).await
            }
            StoreLocation::Cluster(urls) => {
                let like = self.clients(&urls[..1])?.remove(0);
                self.cluster(urls, like).await
            }
            StoreLocation::Quorum(urls) => {
                let clients = self.clients(urls)?;
                let longest = url.longest.unwrap_or_else(|| self.options.lease());
                self.quorum(clients, longest).await
            }
        }
    }

    /// Makes the clients of servers. They take the certificates of this builder.
    #[cfg(feature = "redis")]
    fn clients(&mut self, urls: &[String]) -> Result<Vec<redis::Client>, OptionsError> {
        let clients = urls.iter().map(|url| RedisStore::client_of(url));
        #[cfg(feature = "rustls")]
        if let Some(certificates) = self.tls.take() {
            return clients
                .map(|client| RedisStore::with_certificates(client?, &certificates))
                .collect();
        }
        clients.collect()
    }

    /// Refuses certificates that would have no effect.
    #[cfg(feature = "redis")]
    fn no_certificates(&self, why: &str) -> Result<(), OptionsError> {
        #[cfg(feature = "rustls")]
        if self.tls.is_some() {
            return Err(OptionsError(format!("`Builder::tls` has no effect: {why}")));
        }
        let _ = why;
        Ok(())
    }

    /// Builds locks on the server of a client, with the client's options, and connects. A client can have options that a URL cannot
    /// express, such as socket settings. TCP_NODELAY is set.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    #[cfg(feature = "redis")]
    pub async fn client(self, client: redis::Client) -> Result<Locks, Error> {
        self.no_certificates(OWN_CERTIFICATES)?;
        self.options.check()?;
        self.connected(RedisStore::new(client)?).await
    }

    /// Builds locks on the master that Sentinels watch under this name, and connects; see [`Locks::connect`]. Each URL leads to a
    /// Sentinel, as `redis://:password@host:port`; without a port it means 26379.
    ///
    /// The connections to the master have the user, the password, the database, the TLS settings and the socket settings of
    /// `like`. Its address is replaced by the one that the Sentinels tell. The URLs have the settings of the connections to
    /// the Sentinels; with `rediss`, these have the authority and the certificate of `like`, too. With TLS the master's certificate
    /// must be for that address: an IP, unless the Sentinels announce host names.
    ///
    /// # Errors
    /// As [`connect`](Self::connect). [`Error::Connect`] if no Sentinel knows the name.
    #[cfg(feature = "redis")]
    pub async fn sentinel<U: AsRef<str>>(
        mut self,
        name: &str,
        urls: impl IntoIterator<Item = U>,
        like: redis::Client,
    ) -> Result<Locks, Error> {
        self.no_certificates(OWN_CERTIFICATES)?;
        self.options.recover_always();
        self.options.check()?;
        self.connected(RedisStore::behind(name, urls, like)?).await
    }

    /// Builds locks on the Redis Cluster of which the URLs name servers, and connects; see [`Locks::connect`].
    ///
    /// The connections to all servers have the user, the password, the TLS settings and the socket settings of `like`. Its
    /// address is replaced by those that the cluster announces. A URL that names another user or password, or differs in TLS, is an
    /// options error.
    ///
    /// # Errors
    /// As [`connect`](Self::connect). [`Recovery::Always`] is an options error.
    #[cfg(feature = "redis")]
    pub async fn cluster<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
        like: redis::Client,
    ) -> Result<Locks, Error> {
        self.no_certificates(OWN_CERTIFICATES)?;
        self.options.check()?;
        self.options.check_cluster()?;
        self.connected(RedisStore::of_cluster(urls, like)?).await
    }

    /// Builds locks on a quorum of Redis masters, and connects; see [`Locks::connect`]. A lease lasts at most `longest`, which must be
    /// the same in all processes: a master that was restarted has no vote for so long, and the margin. Each client is one master;
    /// user, password, database, TLS and socket settings are those of its client.
    ///
    /// A lease goes on while a majority of the masters has it. Until its first renewal, after a third of the lease, it may be at a
    /// bare majority only. If one of these masters dies then, and other callers contend for the key, the lease may be
    /// [lost](crate::Lease::lost), although a majority of the masters answers. It is never held twice.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), also if there are not 3, 5 or 7 masters, a server is named twice, no majority answers, or a
    /// master keeps another list. If two clients lead to one server by different names, the second connection is refused.
    /// [`recovery`](Self::recovery) and [`poll_gap`](Self::poll_gap) are options errors: a quorum has its own.
    #[cfg(feature = "redis")]
    pub async fn quorum(mut self, clients: Vec<redis::Client>, longest: Duration) -> Result<Locks, Error> {
        self.no_certificates(OWN_CERTIFICATES)?;
        self.options.recover_as_quorum(longest)?;
        self.options.check()?;
        self.connected(RedisStore::of_quorum(clients)?).await
    }

    /// Builds locks on the Redis server behind a connection pool of yours, and connects.
    ///
    /// All connections come from `client`, as those of [`client`](Self::client) do. The pool's connections are shared with
    /// your own commands, and those of a pool that was made from a URL have no TCP_NODELAY. Under load this costs your own
    /// commands a second trip. To avoid that, give the pool's manager a `redis::ConnectionInfo` whose `TcpSettings` have
    /// `set_nodelay(true)`.
    ///
    /// The pool is asked once whether it leads to the client's server and database: the locks must be where the rest of the
    /// service works. After that its connections are not used. With [`lazy`](Self::lazy) the pool is not asked.
    ///
    /// # Errors
    /// As [`connect`](Self::connect). [`Error::Options`] if pool and client lead to different servers or databases.
    #[cfg(feature = "bb8")]
    pub async fn pool(
        self,
        pool: bb8::Pool<bb8_redis::RedisConnectionManager>,
        client: redis::Client,
    ) -> Result<Locks, Error> {
        self.no_certificates(OWN_CERTIFICATES)?;
        self.options.check()?;
        let store = RedisStore::new(client)?
            .with_credentials(self.credentials.clone())
            .with_connect_timeout(self.options.request_timeout);
        if !self.options.lazy {
            let is_behind = store.is_behind(&pool).await;
            let failed = |source| Error::Connect {
                store: store.to_string(),
                source,
            };
            if !is_behind.map_err(failed)? {
                return Err(Error::Options(OptionsError(format!(
                    "the pool leads to another server or database than {store}: use a pool and a client of one server and database"
                ))));
            }
        }
        self.connected(store).await
    }

    #[cfg(feature = "redis")]
    async fn connected(self, store: RedisStore) -> Result<Locks, Error> {
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
                .reach()
                .await
                .map_err(|source| Error::Connect { store: shown, source })?;
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
