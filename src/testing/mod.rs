//! Tools for tests of services: losses, operators, ticks of jobs, and whole replicas, without a wait.
//!
//! They need `cargo add --dev tenure --features testing`. Tests on a paused clock need `cargo add --dev tokio --features
//! full,test-util`, too.
//!
//! | in a test | write |
//! |---|---|
//! | a lease is lost while the work runs | [`Builder::clock`](crate::Builder::clock) and a [jump](Clock::jump) |
//! | an operator takes the lease away | [`steal`](crate::inspect::Inspection::steal), on `Locks::memory()` |
//! | one tick of a job, now | [`fire_tick`] |
//! | replicas, jobs, a store that goes away, and a clock that the test owns | [`Simulation`], which has an example to copy |
//!
//! The clock of a paused tokio runtime moves timers of the runtime, and no lease.
//!
//! ```
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tenure::{Error, Guard, Locks};
//!
//! /// The work of the service.
//! async fn import(guard: Guard) -> Result<(), Error> {
//!     guard.run(tokio::time::sleep(Duration::from_secs(3600))).await
//! }
//!
//! // The test: an operator takes the lease away.
//! let locks = Locks::memory();
//! let guard = locks.mutex("import").lock().await?;
//! let entry = locks.inspect().show("import").await?.entries.remove(0);
//! let steal = locks.inspect().steal(&entry).grace(Duration::ZERO);
//! let (imported, stolen) = tokio::join!(import(guard), steal.run(|_| {}));
//! assert!(imported.unwrap_err().is_lost());
//! # stolen?; Ok(()) }
//! ```
//!
//! Items that are not in the documentation serve the tests of this crate, and change without notice.

#[cfg(feature = "redis")]
use std::collections::HashMap;
#[cfg(feature = "redis")]
use std::sync::Arc;
#[cfg(feature = "redis")]
use std::time::Duration;

#[cfg(feature = "redis")]
use crate::error::OptionsError;
use crate::error::{StoreError, StoreErrorKind};
#[cfg(feature = "redis")]
use crate::protocol::ledger::JobRecord;
#[cfg(feature = "redis")]
use crate::protocol::message::{LinkReply, LinkRequest};
#[cfg(feature = "redis")]
use crate::store::Store;
#[cfg(feature = "redis")]
use crate::store::redis::RedisStore;
#[cfg(feature = "redis")]
use crate::store::redis::job_record;
#[cfg(feature = "redis")]
use crate::store::redis::run::{self, Comparison, RunPolicy};

#[cfg(feature = "scheduler")]
mod engine;
#[cfg(feature = "scheduler")]
mod simulation;
#[cfg(feature = "scheduler")]
mod store;

pub use crate::driver::clock::Clock;
#[cfg(feature = "scheduler")]
#[doc(hidden)]
pub use crate::testing::engine::{After, EngineModel, LOOKS_EVERY};
#[cfg(feature = "scheduler")]
pub use crate::testing::simulation::{Replica, ReplicaBuilder, Simulation, fire_tick};
#[cfg(feature = "scheduler")]
pub use crate::testing::store::{SimulatedStore, StoreCopy};

/// Waits until the subscriber and the recorder have all events that happened in the background so far.
#[doc(hidden)]
pub fn flush_events() {
    crate::driver::events::flush();
}

/// Returns the error of a batch without an answer.
#[doc(hidden)]
pub fn timed_out() -> StoreError {
    StoreError::new(StoreErrorKind::TimedOut, "no answer in time")
}

/// Returns the store of a Redis server, without locks on it. A connection opens within `timeout`.
///
/// # Errors
/// A URL that cannot be used.
#[cfg(feature = "redis")]
#[doc(hidden)]
pub fn redis_store(url: &str, timeout: Duration) -> Result<Arc<dyn Store>, OptionsError> {
    let store = RedisStore::new(RedisStore::client_of(url)?)?.with_connect_timeout(timeout);
    Ok(Arc::new(store))
}

/// Returns the store of a cluster, without locks on it. A connection opens within
/// `timeout`.
///
/// # Errors
/// A URL that cannot be used.
#[cfg(feature = "redis")]
#[doc(hidden)]
pub fn cluster_store(url: &str, timeout: Duration) -> Result<Arc<dyn Store>, OptionsError> {
    let like = RedisStore::client_of(url)?;
    let store = RedisStore::of_cluster([url], like)?.with_connect_timeout(timeout);
    Ok(Arc::new(store))
}

/// Returns the store of a quorum, without locks on it, and without recoveries of its
/// masters. A connection opens within `timeout`.
///
/// # Errors
/// A number of URLs that is not 3, 5 or 7, or a URL that cannot be used.
#[cfg(feature = "redis")]
#[doc(hidden)]
pub fn quorum_store(urls: &[&str], timeout: Duration) -> Result<Arc<dyn Store>, OptionsError> {
    let clients = urls.iter().map(|url| RedisStore::client_of(url));
    let store = RedisStore::of_quorum(clients.collect::<Result<_, _>>()?)?;
    Ok(Arc::new(store.with_connect_timeout(timeout)))
}

/// Reads the hash in which Redis keeps what is known of a job.
#[cfg(feature = "redis")]
#[doc(hidden)]
pub fn read_job(fields: HashMap<Vec<u8>, Vec<u8>>) -> JobRecord {
    job_record::read(fields)
}

/// Sends what the store sends when a link opens, to compare runs and epochs. `longest`: as in `Recovery::Always`; `None`: the
/// node recovers on evidence only. Returns the longest lease and the length of a recovery as the server has them, and its answer.
///
/// # Errors
/// The server refuses the script.
#[cfg(feature = "redis")]
#[doc(hidden)]
pub fn compare_run(
    connection: &mut redis::Connection,
    link: &LinkRequest<'_>,
    longest: Option<Duration>,
) -> redis::RedisResult<(String, LinkReply)> {
    let recovery = Duration::from_millis(link.recovery_ms);
    let comparison = Comparison {
        link: *link,
        master: Some("mymaster"),
        recorded: None,
    };
    let questions = run::compare(&comparison, RunPolicy { longest, recovery });
    let (_, answer): (String, redis::Value) = questions.query(connection)?;
    Ok(run::read(answer).expect("the answer of the script"))
}
