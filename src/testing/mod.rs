//! For tests: a world whose clock the test owns, with replicas, a store that fails on demand and jobs, and what fires
//! one tick of a job ([`fire_tick`]). And what our own tests are made of, which changes without notice.
//!
//! [`Simulation`] has an example to copy.

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

/// Waits until everything that happened in the background so far was told to subscriber and recorder.
#[doc(hidden)]
pub fn flush_events() {
    crate::driver::events::flush();
}

/// What a batch without an answer ends with.
#[doc(hidden)]
pub fn timed_out() -> StoreError {
    StoreError::new(StoreErrorKind::TimedOut, "no answer in time")
}
