//! Code shared by several test binaries: `#[path = "../support/mod.rs"] mod support;`.

// Each binary uses a part of this code, and `pub` marks the parts.
#![allow(dead_code, unreachable_pub)]

pub mod alone;
pub mod elections;
pub mod events;
pub mod inspect;
#[cfg(feature = "scheduler")]
pub mod jobs;
pub mod latches;
pub mod laws;
#[cfg(feature = "axum")]
pub mod layer_storm;
pub mod mutexes;

#[cfg(feature = "metrics")]
pub mod meter;
pub mod permits;
pub mod proxy;
pub mod slow_callers;
pub mod steal;
pub mod transfers;
pub mod two_locks;
pub mod zero_wait;
