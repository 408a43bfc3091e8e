//! The store of an example, which `TENURE_URL` names.

#![allow(dead_code, reason = "no example uses all of it")]

use tenure::Locks;

/// The schemes of a single Redis.
const SINGLE: [&str; 7] = [
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "redis+unix",
    "valkey+unix",
];

/// The URL of the locks.
pub(crate) struct Store {
    url: String,
}

impl Store {
    /// Returns the store that `TENURE_URL` names, or this process's memory if the variable is unset or empty.
    pub(crate) fn from_env() -> Store {
        let url = std::env::var("TENURE_URL").unwrap_or_default();
        let url = if url.is_empty() {
            "memory://".to_owned()
        } else {
            url
        };
        Store { url }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the `Locks` of one replica. Each replica has its own, as each process has.
    pub(crate) async fn connect(&self) -> Result<Locks, tenure::Error> {
        Locks::builder().prefix(prefix()).connect(&self.url).await
    }

    fn scheme(&self) -> &str {
        self.url.split_once(':').map_or("", |(scheme, _)| scheme)
    }

    pub(crate) fn is_memory(&self) -> bool {
        self.scheme() == "memory"
    }

    /// Returns the URL for the data of the example if the store is a single Redis. Otherwise the data are in this process's
    /// memory: a cluster or a quorum keeps only the locks.
    pub(crate) fn data_url(&self) -> Option<&str> {
        SINGLE.contains(&self.scheme()).then_some(&*self.url)
    }

    /// Returns the place of the locks, in words.
    pub(crate) fn place(&self) -> &'static str {
        if self.is_memory() { "in memory" } else { "on Redis" }
    }

    /// Returns the place of `data` and `locks`, in words. Servers that keep only the locks are named by their scheme.
    pub(crate) fn place_of(&self, data: &str, locks: &str) -> String {
        if self.is_memory() || self.data_url().is_some() {
            format!("{data} and {locks} {}", self.place())
        } else {
            format!("{locks} on {}", self.scheme())
        }
    }
}

/// Returns a key prefix of this process, so that two examples on one Redis share no keys.
pub(crate) fn prefix() -> String {
    format!("example:{}:", std::process::id())
}
