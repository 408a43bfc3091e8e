//! The key machine: the state of one key, kept while a caller or a claim of this process needs it.
//!
//! Reading order: [`shard`], `line`, [`claims`], [`key_state`], `requests`, `holding`, `readers`, `transfer`,
//! [`replies`], `pushes`, [`failures`].

pub mod claims;
pub mod failures;
pub(crate) mod holding;
pub mod key_state;
pub mod line;
mod pushes;
pub(crate) mod readers;
pub mod replies;
pub(crate) mod requests;
pub mod shard;
pub(crate) mod transfer;
