//! The key machine: the state of one key, kept while a caller or a claim of this process needs it.
//!
//! Reading order: [`shard`], `line`, [`claims`], [`key_state`], `requests`, `holding`, `readers`,
//! `shared_lease`, `transfer`, `revocation`, [`replies`], [`failures`], [`renewal`].

pub mod claims;
pub mod failures;
pub(crate) mod holding;
pub mod key_state;
pub mod line;
pub(crate) mod readers;
pub(crate) mod redirected_requests;
pub mod renewal;
pub mod replies;
pub(crate) mod requests;
mod revocation;
pub mod shard;
pub(crate) mod shared_lease;
pub(crate) mod transfer;
