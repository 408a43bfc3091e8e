//! What is known of a Redis server before anything is connected.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Client, ConnectionAddr};

use crate::store::redis::names::Names;

/// Where the server is, and how things are called there.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) client: Client,
    pub(super) names: Names,
    pub(super) prefix: Box<[u8]>,
    pub(super) probe: bool,
    pub(super) timeout: Duration,
    pub(super) said: Arc<Said>,
}

impl Config {
    /// Where the server is, without user and password.
    pub(super) fn address(&self) -> &ConnectionAddr {
        self.client.get_connection_info().addr()
    }
}

/// What was said once and needs no repeating on every new connection.
#[derive(Debug, Default)]
pub(super) struct Said(Mutex<HashSet<String>>);

impl Said {
    /// What is new of it.
    pub(super) fn unsaid(&self, mut warnings: Vec<String>) -> Vec<String> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.retain(|warning| said.insert(warning.clone()));
        warnings
    }
}
