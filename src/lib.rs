//! Leases.
#![forbid(unsafe_code)]

pub mod claim;
pub mod engine;
pub mod error;
pub mod key;
pub mod locks;
#[cfg(feature = "tower")]
pub mod middleware;
pub mod observe;
pub mod options;
mod primitives;
mod runtime;
pub mod store;

pub use claim::{Fence, NodeId};
pub use error::Error;
pub use key::Key;
pub use locks::{Builder, Locks};
#[cfg(feature = "tower")]
pub use middleware::LockLayer;
pub use primitives::guard::{Guard, Lease};
pub use primitives::mutex::{Lock, Mutex};
#[cfg(feature = "testing")]
pub use runtime::clock::Clock;
pub use store::memory::MemoryStore;
