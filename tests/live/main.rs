//! Tests against a real Redis. They start their own servers: `apt-get install redis-server`.

#![allow(
    clippy::disallowed_methods,
    reason = "waits for processes, and judges no lease"
)]
#![allow(
    unreachable_pub,
    reason = "a test binary exports nothing, and `server` is included elsewhere"
)]

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod cancellation;
mod child;
mod clocks;
mod contest;
mod differential;
mod fixed_crowd;
mod help;
mod interop;
#[cfg(feature = "scheduler")]
mod jobs;
mod loss;
#[cfg(feature = "metrics")]
mod metrics;
mod outage;
mod pools;
mod quiet;
mod runtimes;
mod scenarios;
mod server;
mod silence;
mod store;
#[cfg(feature = "rustls")]
mod tls;
mod tools;
mod torture;
