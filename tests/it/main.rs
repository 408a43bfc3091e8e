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
mod core;
mod engine;
mod errors;
mod events_survive;
mod faults;
mod help;
mod lengths;
mod machine;
mod map;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "axum")]
mod middleware;
#[cfg(feature = "axum")]
mod middleware_keys;
#[cfg(feature = "axum")]
mod middleware_refusals;
mod neighbours;
mod nonce;
mod outages;
mod paused;
mod scenarios;
#[cfg(feature = "scheduler")]
mod scheduler;
mod session;
mod shown;
mod told;
mod waiters;
