//! Two replicas of a service in one process, as several examples have them: each has `Locks` of its own, as each process
//! would. They share this process's memory, or the Redis that `REDIS_URL` names.

use std::error::Error;

use tenure::{Locks, MemoryStore};

pub(crate) type Trouble = Box<dyn Error + Send + Sync>;

pub(crate) struct Replicas {
    pub(crate) locks: [Locks; 2],
    /// Where they are, if not in memory.
    pub(crate) redis: Option<String>,
}

impl Replicas {
    /// For the example of that name, which can have `what` on a Redis. Ends the process where it is called in another way.
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

    /// In words.
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

/// So that two examples on one Redis know nothing of each other.
#[cfg(feature = "redis")]
pub(crate) fn prefix() -> String {
    format!("example:{}:", std::process::id())
}
