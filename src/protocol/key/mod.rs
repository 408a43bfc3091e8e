//! The key machine: one key, as long as a caller or a claim of this process needs it.
//!
//! Reading order: [`shard`], `timers`, `line`, `claim`, [`claims`], [`key_state`], `asking`, `holding`, `readers`, `sharing`,
//! `transfer`, `resting`, [`replies`], [`failures`], [`renewal`].

pub(crate) mod asking;
pub(crate) mod claim;
pub mod claims;
pub mod context;
pub mod failures;
pub(crate) mod holding;
pub mod key_state;
pub mod line;
pub(crate) mod readers;
pub mod renewal;
pub mod replies;
pub(crate) mod resting;
pub mod shard;
pub(crate) mod sharing;
pub(crate) mod timers;
pub(crate) mod transfer;
