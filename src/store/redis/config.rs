//! The configuration of a Redis server, which exists before any connection.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Client, ConnectionAddr, RedisError, RedisResult};

use crate::store::ServerId;
use crate::store::redis::credentials::Credentials;
use crate::store::redis::masters::Masters;
use crate::store::redis::names::Names;
use crate::store::redis::run::RunPolicy;
use crate::store::redis::script::{LuaScript, SCRIPTS, VOTE};
use crate::store::redis::sentinel::{Address, Sentinels};
use crate::store::redis::slot_map::Cluster;
use crate::store::redis::tls;

/// The address of a server, the names of its keys, and the options of its connections.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) client: Client,
    pub(super) names: Names,
    pub(super) probe: bool,
    pub(super) timeout: Duration,
    /// The name of the store's connections in `CLIENT LIST`.
    pub(super) connection_name: Box<str>,
    pub(super) warned: Arc<WarnedOnce>,
    pub(super) topology: Topology,
    /// What is done about a server that was restarted or promoted. `None`: nothing, and no contract is compared or left.
    pub(super) run_policy: Option<RunPolicy>,
    /// What gives user and password before each connection. `None`: the client has them.
    pub(super) credentials: Option<Credentials>,
}

/// How the server of a [`Config`] is found.
#[derive(Clone)]
pub(super) enum Topology {
    /// At the address of the client.
    Single,
    /// By the Sentinels that know where the master is. The address of the client is not used.
    Sentinels(Arc<Sentinels>),
    /// By the map of the cluster of which it is one. The address of the client may be that of any of its servers.
    Cluster(Arc<Cluster>),
    /// By its place among the masters of a quorum.
    Quorum(Arc<Masters>),
}

impl Topology {
    pub(super) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match self {
            Topology::Sentinels(sentinels) => Some(sentinels),
            _ => None,
        }
    }

    pub(super) fn cluster(&self) -> Option<&Arc<Cluster>> {
        match self {
            Topology::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }

    pub(super) fn masters(&self) -> Option<&Arc<Masters>> {
        match self {
            Topology::Quorum(masters) => Some(masters),
            _ => None,
        }
    }
}

impl Config {
    /// Returns the server's address, without user and password.
    pub(super) fn address(&self) -> &ConnectionAddr {
        self.client.get_connection_info().addr()
    }

    /// Returns the server's host and port, unless it is reached by a socket file.
    pub(super) fn tcp_address(&self) -> Option<Address> {
        match self.address() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host.clone(), *port))
            }
            _ => None,
        }
    }

    /// Returns the name of the server in errors, without user and password.
    pub(super) fn server(&self) -> String {
        match &self.topology {
            Topology::Sentinels(sentinels) => sentinels.to_string(),
            _ => self.address().to_string(),
        }
    }

    /// Returns the scripts that apply batches at the server.
    pub(super) fn scripts(&self) -> Vec<&'static LuaScript> {
        if self.topology.masters().is_none() {
            SCRIPTS.iter().map(|script| &**script).collect()
        } else {
            vec![&VOTE]
        }
    }

    /// Returns the configuration for a server of the store: for a master, if the store is a quorum.
    pub(super) fn master(self: &Arc<Self>, server: ServerId) -> Arc<Config> {
        match self.topology.masters() {
            Some(masters) => Arc::new(Config {
                client: masters.clients[usize::from(server.0)].clone(),
                ..(**self).clone()
            }),
            None => self.clone(),
        }
    }

    /// Returns the configuration for the server at this address.
    pub(super) fn with_addr(&self, addr: ConnectionAddr) -> RedisResult<Config> {
        let info = self.client.get_connection_info().clone();
        Ok(Config {
            client: Client::open(info.set_addr(addr))?,
            topology: match &self.topology {
                Topology::Sentinels(_) => Topology::Single,
                topology => topology.clone(),
            },
            ..self.clone()
        })
    }

    /// Returns the configuration for the server at this host and port.
    pub(super) fn at(&self, (host, port): Address) -> RedisResult<Config> {
        let info = self.client.get_connection_info();
        let addr = match info.addr().clone() {
            ConnectionAddr::TcpTls {
                insecure, tls_params, ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.with_addr(addr)
    }

    /// Returns advice for a connection that does not open. Returns nothing after the first success: then the network is
    /// at fault.
    pub(super) fn hint(&self, error: Option<&RedisError>) -> &'static str {
        if self.warned.has_connected.load(Ordering::Relaxed) {
            return "";
        }
        tls::hint(self.address(), error)
    }
}

/// Returns the name of a node's connections. Redis allows no spaces and only printable characters.
pub(super) fn connection_name(node: Option<&str>) -> Box<str> {
    const MAX_NODE_CHARS: usize = 64;
    let Some(node) = node.filter(|node| !node.is_empty()) else {
        return "tenure".into();
    };
    let printable = |sign: char| if sign.is_ascii_graphic() { sign } else { '_' };
    let node: String = node.chars().take(MAX_NODE_CHARS).map(printable).collect();
    format!("tenure:{node}").into()
}

/// The warnings that were reported already, so that a new connection does not repeat them.
#[derive(Debug, Default)]
pub(super) struct WarnedOnce {
    warnings: Mutex<HashSet<String>>,
    /// Whether a connection to the server was opened at least once.
    has_connected: AtomicBool,
}

impl WarnedOnce {
    /// Notes that a connection is open, and returns those of its `warnings` that were not reported yet.
    pub(super) fn new_warnings(&self, mut warnings: Vec<String>) -> Vec<String> {
        self.has_connected.store(true, Ordering::Relaxed);
        let mut reported = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.retain(|warning| reported.insert(warning.clone()));
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::connection_name;

    #[test]
    fn a_connection_name_has_only_characters_that_redis_allows() {
        for (node, expected) in [
            (None, "tenure"),
            (Some(""), "tenure"),
            (Some("web-1"), "tenure:web-1"),
            (Some("web 1\r\nFLUSHALL"), "tenure:web_1__FLUSHALL"),
            (Some("Zürich\u{7f}\0"), "tenure:Z_rich__"),
        ] {
            assert_eq!(&*connection_name(node), expected);
        }
        assert_eq!(
            connection_name(Some(&"x".repeat(1_000))).len(),
            "tenure:".len() + 64
        );
    }
}
