//! What is known of a Redis server before anything is connected.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Client, ConnectionAddr, RedisError};

use crate::store::redis::names::Names;
use crate::store::redis::tls;

/// Where the server is, and how things are called there.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) client: Client,
    pub(super) names: Names,
    pub(super) probe: bool,
    pub(super) timeout: Duration,
    /// What our connections are called in `CLIENT LIST`.
    pub(super) called: Box<str>,
    pub(super) said: Arc<Said>,
}

impl Config {
    /// Where the server is, without user and password.
    pub(super) fn address(&self) -> &ConnectionAddr {
        self.client.get_connection_info().addr()
    }

    /// What to look at when a connection does not open, until the first one did: from then on it is the network.
    pub(super) fn hint(&self, error: Option<&RedisError>) -> &'static str {
        if self.said.understood.load(Ordering::Relaxed) {
            return "";
        }
        tls::hint(self.address(), error)
    }
}

/// What the connections of a node are called: Redis takes no spaces and nothing that cannot be printed.
pub(super) fn called(node: Option<&str>) -> Box<str> {
    const LONGEST: usize = 64;
    let Some(node) = node.filter(|node| !node.is_empty()) else {
        return "tenure".into();
    };
    let plain = |sign: char| if sign.is_ascii_graphic() { sign } else { '_' };
    let node: String = node.chars().take(LONGEST).map(plain).collect();
    format!("tenure:{node}").into()
}

/// What was said once and needs no repeating on every new connection.
#[derive(Debug, Default)]
pub(super) struct Said {
    warnings: Mutex<HashSet<String>>,
    /// The server and we understood each other once.
    understood: AtomicBool,
}

impl Said {
    /// A connection is open. What is new of its warnings.
    pub(super) fn unsaid(&self, mut warnings: Vec<String>) -> Vec<String> {
        self.understood.store(true, Ordering::Relaxed);
        let mut said = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.retain(|warning| said.insert(warning.clone()));
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::called;

    #[test]
    fn a_connection_is_called_what_redis_takes() {
        for (node, expected) in [
            (None, "tenure"),
            (Some(""), "tenure"),
            (Some("web-1"), "tenure:web-1"),
            (Some("web 1\r\nFLUSHALL"), "tenure:web_1__FLUSHALL"),
            (Some("Zürich\u{7f}\0"), "tenure:Z_rich__"),
        ] {
            assert_eq!(&*called(node), expected);
        }
        assert_eq!(called(Some(&"x".repeat(1_000))).len(), "tenure:".len() + 64);
    }
}
