//! A store on one Redis server, alone or behind a Sentinel, on a Redis Cluster, or on a quorum of independent masters.
//!
//! Lua scripts (`lua/`) contain all rules, and give the replies of the [ledger](crate::protocol::ledger). The Rust files
//! contain the names in Redis, the connections and the inbox.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Client;

use crate::error::{OptionsError, StoreError};
use crate::options::is_prefix;
use crate::protocol::message::{GrantNumber, Name, NodeId};
use crate::store::redis::config::{Config, Topology};
use crate::store::redis::credentials::Credentials;
use crate::store::redis::inspector::RedisInspector;
use crate::store::redis::link::RedisLink;
use crate::store::redis::masters::Masters;
use crate::store::redis::names::Names;
#[cfg(feature = "bb8")]
pub(crate) use crate::store::redis::pool::Pool;
use crate::store::redis::run::RunPolicy;
use crate::store::redis::sentinel::Sentinels;
use crate::store::redis::slot_map::Cluster;
use crate::store::{Abilities, BoxFuture, Inbox, Inspect, Link, MapSink, ServerId, Sink, Store, sealed};

mod cluster;
mod config;
mod connection;
mod contract;
pub(crate) mod credentials;
mod decode;
mod encode;
mod format;
mod greeting;
mod inbox;
mod inspector;
pub(crate) mod job_record;
mod link;
mod map_answer;
mod masters;
mod names;
#[cfg(feature = "bb8")]
mod pool;

pub(crate) mod run;
mod script;
mod sentinel;
mod slot_map;
mod slots;
mod tls;
mod url;
mod write;

/// A store of leases on a Redis server, 6.2 or newer. It connects at the first use. Clones are the same store.
#[derive(Clone)]
pub(crate) struct RedisStore {
    inner: Arc<Config>,
}

impl RedisStore {
    /// Creates a store on the server of a client, and uses the client's options: a certificate authority and a
    /// certificate (`Client::build_with_tls`), and socket settings. `TCP_NODELAY` is always set.
    ///
    /// # Errors
    ///
    /// Returns an error if the client's own settings contradict each other.
    pub(crate) fn new(client: Client) -> Result<Self, OptionsError> {
        // Without TCP_NODELAY a second command waits for the first answer: 42 ms instead of 22 ms on a link of 20 ms.
        // redis 2.0 sets it by default (redis-rs#2196). Remove this then.
        let info = client.get_connection_info();
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let client = url::open(info.clone().set_tcp_settings(tcp))?;
        Ok(RedisStore {
            inner: Arc::new(Config {
                client,
                names: Names::new(b"lock:"),
                probe: true,
                timeout: Duration::from_secs(2),
                connection_name: config::connection_name(None),
                warned: Arc::default(),
                topology: Topology::Single,
                run_policy: None,
                credentials: None,
            }),
        })
    }

    /// Creates a store on the master that these Sentinels know by this name. The connections to the master have the
    /// settings of `like`, whose address is not used.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no URL or no name, or if a URL cannot be used for a Sentinel.
    pub(crate) fn behind<U: AsRef<str>>(
        name: &str,
        urls: impl IntoIterator<Item = U>,
        like: Client,
    ) -> Result<Self, OptionsError> {
        let sentinels = Sentinels::new(name, urls, &like)?;
        let mut store = RedisStore::new(like)?;
        store.edit().topology = Topology::Sentinels(Arc::new(sentinels));
        Ok(store)
    }

    /// Returns a client for the server at `url`.
    pub(crate) fn client_of(url: &str) -> Result<Client, OptionsError> {
        url::client(url)
    }

    /// Returns the client with these certificates.
    ///
    /// # Errors
    ///
    /// Returns an error if the client is without TLS, or if the certificates cannot be read.
    #[cfg(feature = "rustls")]
    pub(crate) fn with_certificates(
        client: Client,
        certificates: &redis::TlsCertificates,
    ) -> Result<Client, OptionsError> {
        url::with_certificates(client, certificates)
    }

    /// Creates a store on the cluster of which the URLs name servers. The connections have the settings of `like`, whose
    /// address is not used.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no URL, if one cannot be used, or if `like` names a database.
    pub(crate) fn of_cluster<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        like: Client,
    ) -> Result<Self, OptionsError> {
        let db = like.get_connection_info().redis_settings().db();
        if db != 0 {
            return Err(OptionsError(format!(
                "the client for a cluster names database {db}: a cluster has database 0 only"
            )));
        }
        let cluster = Cluster::new(urls, &like)?;
        let mut store = RedisStore::new(like)?;
        let config = store.edit();
        config.topology = Topology::Cluster(Arc::new(cluster));
        config.names.has_slots = true;
        // Each server knows its own subscribers only.
        config.probe = false;
        Ok(store)
    }

    /// Creates a store on a quorum of independent masters.
    ///
    /// # Errors
    ///
    /// Returns an error if there are not 3, 5 or 7 masters, or if two of them are one server.
    pub(crate) fn of_quorum(clients: Vec<Client>) -> Result<Self, OptionsError> {
        let stores = clients.into_iter().map(RedisStore::new);
        let stores = stores.collect::<Result<Vec<_>, _>>()?;
        let clients = stores.iter().map(|store| store.inner.client.clone());
        let masters = Masters::new(clients.collect())?;
        let mut store = stores[0].clone();
        let config = store.edit();
        config.topology = Topology::Quorum(Arc::new(masters));
        // Each slot has a clock of its own, so that the numbers of one key are seldom raised by other keys.
        config.names.has_slots = true;
        Ok(store)
    }

    /// Sets the prefix of every lock's record in Redis. The default is `lock:`. Services with the same prefix share
    /// their locks.
    ///
    /// # Errors
    ///
    /// Returns an error if the prefix is empty or too long, begins with `tenure`, or is a beginning of `tenure`. Queues and the
    /// clock have names that begin with `tenure`, and a key could complete such a prefix.
    pub(crate) fn with_prefix(mut self, prefix: impl AsRef<[u8]>) -> Result<Self, OptionsError> {
        let prefix = prefix.as_ref();
        if !is_prefix(prefix) {
            return Err(OptionsError(format!(
                "the prefix of records is `{}`: it must not be empty, begin with `tenure` or be a beginning of `tenure`",
                prefix.escape_ascii()
            )));
        }
        let names = &mut self.edit().names;
        names.prefix = prefix.into();
        Ok(self)
    }

    /// Sets how long connecting and subscribing may take. The default is 2 s.
    ///
    /// With a longer timeout, a slow network is not treated as a dead one. With a shorter one, a dead network is noticed
    /// earlier.
    pub(crate) fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.edit().timeout = timeout;
        self
    }

    /// Sets what the store does about a server that was restarted or promoted. By default nothing.
    pub(crate) fn with_run_policy(mut self, policy: RunPolicy) -> Self {
        self.edit().run_policy = Some(policy);
        self
    }

    /// Sets the function that gives user and password before each connection to a server. Sentinels are not servers.
    pub(crate) fn with_credentials(mut self, credentials: Option<Credentials>) -> Self {
        self.edit().credentials = credentials;
        self
    }

    /// Names the store's connections after the node, for operators that read `CLIENT LIST`.
    ///
    /// Since Redis 7.2 a connection also has a library name. An inbox can have no other name, because it sends no
    /// command. A library name that the user's client sets already stays.
    pub(crate) fn with_node_name(mut self, node: Option<&str>) -> Result<Self, OptionsError> {
        let inner = self.edit();
        inner.connection_name = config::connection_name(node);
        let mut masters = inner.topology.masters().map(|masters| masters.clients.clone());
        for client in [&mut inner.client]
            .into_iter()
            .chain(masters.iter_mut().flatten())
        {
            let info = client.get_connection_info();
            let settings = info.redis_settings().clone();
            if settings.lib_name().is_none() && !settings.skip_set_lib_name() {
                let settings = settings.set_lib_name(&*inner.connection_name, env!("CARGO_PKG_VERSION"));
                *client = url::open(info.clone().set_redis_settings(settings))?;
            }
        }
        if let Some(masters) = masters {
            inner.topology = Topology::Quorum(Arc::new(Masters::new(masters)?));
        }
        Ok(self)
    }

    /// Returns whether a pool leads to this store's server and database, as far as the Redis users may ask.
    #[cfg(feature = "bb8")]
    pub(crate) async fn is_behind(&self, pool: &Pool) -> Result<bool, StoreError> {
        let inner = &self.inner;
        let asking = async {
            let client = connection::client_of_now(inner).await?;
            let asked = pool::is_same_server(pool, &client).await;
            asked.map_err(|error| connection::cannot_open(inner, error))
        };
        let asked = tokio::time::timeout(inner.timeout, asking).await;
        asked.unwrap_or_else(|_| Err(connection::too_slow(inner)))
    }

    fn edit(&mut self) -> &mut Config {
        Arc::make_mut(&mut self.inner)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("server", &format_args!("{}", self.inner.server()))
            .field(
                "prefix",
                &format_args!("{}", self.inner.names.prefix.escape_ascii()),
            )
            .finish_non_exhaustive()
    }
}

/// Writes the server's address for messages, without a password.
impl fmt::Display for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.inner.topology {
            Topology::Single => write!(f, "the Redis at {}", self.inner.address()),
            Topology::Sentinels(sentinels) => write!(f, "{sentinels}"),
            Topology::Cluster(cluster) => write!(f, "{cluster}"),
            Topology::Quorum(masters) => write!(f, "the quorum of {}", masters.addresses()),
        }
    }
}

impl sealed::Sealed for RedisStore {}

impl Store for RedisStore {
    fn abilities(&self) -> Abilities {
        Abilities {
            // Each master would hand over in an order of its own.
            queues: self.inner.topology.masters().is_none(),
            final_push: true,
            remote: true,
        }
    }

    fn server(&self, name: &Name) -> ServerId {
        match self.inner.topology.cluster() {
            Some(cluster) => cluster.server(self.inner.names.slot(name)),
            None => ServerId(0),
        }
    }

    fn slot(&self, name: &Name) -> u16 {
        self.inner.names.slot(name)
    }

    fn slot_of_key(&self, key: &[u8]) -> u16 {
        self.inner.names.slot_of_key(key)
    }

    fn servers(&self) -> Vec<ServerId> {
        match self.inner.topology.cluster() {
            Some(cluster) => cluster.masters(),
            None => (0..self.masters().max(1)).map(ServerId).collect(),
        }
    }

    fn masters(&self) -> u16 {
        let masters = self.inner.topology.masters();
        masters.map_or(0, |masters| masters.clients.len() as u16)
    }

    fn inbox_server(&self) -> Option<ServerId> {
        match self.inner.topology.cluster() {
            Some(_) => Some(slot_map::INBOX),
            None => self.inner.topology.masters().is_none().then_some(ServerId(0)),
        }
    }

    fn watch_map(&self, changed: MapSink) -> Option<BoxFuture<'static, ()>> {
        let cluster = self.inner.topology.cluster()?.clone();
        Some(Box::pin(cluster.watch(self.inner.clone(), changed)))
    }

    fn describe(&self, server: ServerId) -> String {
        match self.inner.topology.cluster() {
            Some(cluster) => match cluster.address(server) {
                Some((host, port)) => format!("{host}:{port}"),
                None => cluster.to_string(),
            },
            None => self.inner.master(server).server(),
        }
    }

    fn for_trial(&self) -> Option<Arc<dyn Store>> {
        let mut store = self.clone();
        let config = store.edit();
        config.run_policy = None;
        // What its connections see and end is no news for the other node.
        config.topology = match &config.topology {
            Topology::Cluster(cluster) => {
                Topology::Cluster(Arc::new(Cluster::with_seeds(cluster.seeds.clone())))
            }
            Topology::Quorum(masters) => Topology::Quorum(Arc::new(masters.unseen())),
            alone => alone.clone(),
        };
        Some(Arc::new(store))
    }

    fn connect(
        &self,
        server: ServerId,
        highest: Option<GrantNumber>,
    ) -> BoxFuture<'static, Result<Arc<dyn Link>, StoreError>> {
        let inner = self.inner.master(server);
        Box::pin(async move {
            let link = match inner.topology.cluster() {
                Some(cluster) => cluster::open(cluster, &inner, server).await?,
                None => RedisLink::open(inner, highest).await?,
            };
            Ok(Arc::new(link) as Arc<dyn Link>)
        })
    }

    fn inspector(&self) -> Option<Arc<dyn Inspect>> {
        Some(Arc::new(RedisInspector::new(self.inner.clone())))
    }

    fn inbox(&self, _: ServerId, node: NodeId, sink: Sink) -> BoxFuture<'static, Result<Inbox, StoreError>> {
        let inner = self.inner.clone();
        Box::pin(async move {
            let config = match inner.topology.cluster() {
                Some(cluster) => cluster.next_inbox(&inner).await?,
                None => inner,
            };
            inbox::open(config, node, sink).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(url: &str) -> Result<RedisStore, OptionsError> {
        RedisStore::new(RedisStore::client_of(url)?)
    }

    #[test]
    fn the_error_for_a_bad_url_hides_the_password() {
        for url in [
            "redis://user:hunter2@",
            "http://user:hunter2@host/",
            "redis://user:hunter2@host/x",
            "user:hunter2@host",
            "rediss://user:hunter2@host/#insecure",
            "redis://user:hunter2@0.0.0.0/",
            "unix:///socket?user=me&pass=hunter2&db=x",
            "UNIX:///socket?pass=x@hunter2&db=x",
            "redis+unix:///socket?p%61ss=hunter2&db=x",
            "unix://user:hunter2@/socket",
            "unix://:hunter2@host/socket",
            "redis://host?protocol=hunter2",
            "redis://hunter2@host",
        ] {
            let error = open(url).expect_err(url).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    /// A pool that was made from a URL leaves Nagle's algorithm on, which makes the second of two requests wait for the
    /// answer to the first. No connection of a store does.
    #[test]
    fn no_connection_waits_for_the_answer_to_the_request_before() {
        let client = Client::open("redis://host/").unwrap();
        let of_client = client.get_connection_info().tcp_settings();
        assert!(!of_client.nodelay(), "redis-rs sets it by now: remove ours");
        let store = RedisStore::new(client.clone()).unwrap();
        let sentinel = RedisStore::behind("main", ["redis://sentinel/"], client).unwrap();
        for store in [store, sentinel, open("redis://host/").unwrap()] {
            let at = store.inner.at(("other".to_owned(), 1)).unwrap();
            for client in [&store.inner.client, &at.client] {
                assert!(client.get_connection_info().tcp_settings().nodelay());
            }
        }
    }

    #[test]
    fn debug_shows_the_server_and_hides_the_password() {
        let store = open("redis://user:hunter2@host:1234/").unwrap();
        let text = format!("{store:?}");
        assert!(text.contains("host:1234") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    #[cfg(not(feature = "rustls"))]
    fn tls_without_the_feature_names_the_feature() {
        let error = open("rediss://host/").unwrap_err().to_string();
        assert!(error.contains("feature `rustls`"), "{error}");
    }

    #[test]
    fn a_prefix_cannot_collide_with_the_names_of_queues_and_clock() {
        let store = || open("redis://host/").unwrap();
        for prefix in ["", "t", "tenur", "tenure", "tenure1:q:"] {
            store().with_prefix(prefix).unwrap_err();
        }
        store().with_prefix("my:").unwrap();
    }
}
