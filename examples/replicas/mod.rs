//! Two replicas of a service in one process, for several examples. Each has its own `Locks`, as each process has. They share
//! this process's memory, or the store that `TENURE_URL` names.

use std::error::Error;

use tenure::Locks;

pub(crate) type Trouble = Box<dyn Error + Send + Sync>;

pub(crate) struct Replicas {
    pub(crate) locks: [Locks; 2],
    /// The URL of the store of the locks.
    url: String,
    /// The URL of the Redis for the data, if the locks are on a single one. Otherwise the data are in this process's memory.
    #[allow(dead_code, reason = "some examples have no data")]
    pub(crate) redis: Option<String>,
}

impl Replicas {
    /// Starts the replicas of `example`, which can have `what` on a Redis. With arguments, it prints the usage and exits.
    pub(crate) async fn start(example: &str, what: &str) -> Result<Replicas, Trouble> {
        if std::env::args().len() > 1 {
            eprintln!(
                "usage: cargo run --example {example}\nTENURE_URL=redis://127.0.0.1/ puts {what} on that Redis."
            );
            std::process::exit(2);
        }
        let url = std::env::var("TENURE_URL").unwrap_or_else(|_| "memory://".to_owned());
        let replica = || Locks::builder().prefix(prefix()).connect(&url);
        let locks = [replica().await?, replica().await?];
        let redis = ["redis:", "rediss:", "unix:"];
        let redis = redis
            .iter()
            .any(|scheme| url.starts_with(scheme))
            .then(|| url.clone());
        Ok(Replicas { locks, url, redis })
    }

    /// Returns the place of the store, in words.
    pub(crate) fn place(&self) -> &'static str {
        if self.url.starts_with("memory:") {
            "in memory"
        } else {
            "on Redis"
        }
    }

    pub(crate) async fn shutdown(self) {
        for locks in self.locks {
            locks.shutdown().await;
        }
    }
}

/// Returns a key prefix of this process, so that two examples on one Redis share no keys.
pub(crate) fn prefix() -> String {
    format!("example:{}:", std::process::id())
}
