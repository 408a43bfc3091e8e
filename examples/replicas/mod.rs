//! What the stages of the examples share: the store that `TENURE_URL` names, two replicas in one process, and replicas that are
//! processes.

#![allow(dead_code, reason = "no example uses all of it")]

#[cfg(feature = "redis")]
pub(crate) mod data;
pub(crate) mod process;
pub(crate) mod store;

use std::error::Error;

use tenure::Locks;

use store::Store;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Two replicas of a service in one process. Each has its own `Locks`, as each process has.
pub(crate) struct Replicas {
    pub(crate) locks: [Locks; 2],
    pub(crate) store: Store,
}

impl Replicas {
    /// Starts the replicas of `example`, which can have `subject` on a Redis. With arguments, it prints the usage and exits.
    pub(crate) async fn start(example: &str, subject: &str) -> Result<Replicas, BoxError> {
        if std::env::args().len() > 1 {
            eprintln!(
                "usage: cargo run --example {example}\nTENURE_URL=redis://127.0.0.1/ puts {subject} on that Redis."
            );
            std::process::exit(2);
        }
        let store = Store::from_env();
        let locks = [store.connect().await?, store.connect().await?];
        Ok(Replicas { locks, store })
    }

    pub(crate) async fn shutdown(self) {
        for locks in self.locks {
            locks.shutdown().await;
        }
    }
}
