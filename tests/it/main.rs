//! The suite that needs no server: `cargo test`. One binary, so that touching `lib.rs` relinks one.

// Tests play the outside world: they may look at its clock.
#![allow(clippy::too_many_lines, reason = "a test tells one story")]
#![allow(clippy::disallowed_methods)]
#![allow(unreachable_pub, reason = "a test binary exports nothing")]

#[path = "../support/mod.rs"]
mod support;

mod architecture;
mod bounds;
mod cancellation;
mod debug;
mod errors;
mod events;
mod help;
mod interop;
mod key_machine;
#[cfg(feature = "axum")]
mod layer;
#[cfg(feature = "axum")]
mod layer_keys;
#[cfg(feature = "axum")]
mod layer_refusals;
mod leases;
mod locking;
mod loss;
mod machine;
mod map;
#[cfg(feature = "metrics")]
mod metrics;
mod nonce;
mod outages;
mod paused_clock;
mod proxy;
mod scenarios;
mod session;
mod subscribers;
#[cfg(feature = "scheduler")]
mod ticks;
mod waiters;
