//! Two replicas of a service in one process, for several examples. Each has its own `Locks`, as each process has. They share
//! this process's memory, or the Redis that `REDIS_URL` names.

use std::error::Error;

use tenure::{Locks, MemoryStore};

pub(crate) type Trouble = Box<dyn Error + Send + Sync>;

pub(crate) struct Replicas {
    pub(crate) locks: [Locks; 2],
    /// The URL of the Redis; `None` if the locks are in memory.
    pub(crate) redis: Option<String>,
}

impl Replicas {
    /// Starts the replicas of `example`, which can have `what` on a Redis. With arguments, it prints the usage and exits.
    pub(crate) async fn start(example: &str, what: &str) -> Result<Replicas, Trouble> {
        if std::env::args().len() > 1 {
            eprintln!(
                "usage: cargo run --example {example}\nREDIS_URL=redis://127.0.0.1/ puts {what} on that Redis."
            );
            std::process::exit(2);
        }
        let redis = std::env::var("REDIS_URL").ok();
        let memory = MemoryStore::new();
        let locks = [
            replica(redis.as_deref(), &memory).await?,
            replica(redis.as_deref(), &memory).await?,
        ];
        Ok(Replicas { locks, redis })
    }

    /// Returns the place of the store, in words.
    pub(crate) fn place(&self) -> &'static str {
        if self.redis.is_some() {
            "on Redis"
        } else {
            "in memory"
        }
    }

    pub(crate) async fn shutdown(self) {
        for locks in self.locks {
            locks.shutdown().await;
        }
    }
}

async fn replica(redis: Option<&str>, memory: &MemoryStore) -> Result<Locks, Trouble> {
    match redis {
        None => Ok(Locks::builder().memory_shared(memory)?),
        #[cfg(feature = "redis")]
        Some(url) => Ok(Locks::builder().prefix(prefix()).redis(url).await?),
        #[cfg(not(feature = "redis"))]
        Some(_) => Err("REDIS_URL needs the feature `redis`".into()),
    }
}

/// Returns a key prefix of this process, so that two examples on one Redis share no keys.
#[cfg(feature = "redis")]
pub(crate) fn prefix() -> String {
    format!("example:{}:", std::process::id())
}
