//! Leases.
#![forbid(unsafe_code)]
pub mod claim;
pub mod engine;
pub mod error;
pub mod key;
pub mod store;
pub use key::Key;
