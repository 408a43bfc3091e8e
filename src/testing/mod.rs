//! Tools for tests of services: a world with a clock that the test owns, with replicas, jobs and a store that fails on demand
//! ([`Simulation`], which has an example to copy), and a function that fires one tick of a job ([`fire_tick`]).
//!
//! Items that are not in the documentation serve the tests of this crate, and change without notice.

use crate::error::{StoreError, StoreErrorKind};

#[cfg(feature = "scheduler")]
mod engine;
#[cfg(feature = "scheduler")]
mod simulation;
#[cfg(feature = "scheduler")]
mod store;

#[cfg(feature = "scheduler")]
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
