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
mod before;
mod cancellation;
mod child;
mod differential;
mod help;
mod interop;
#[cfg(feature = "scheduler")]
mod jobs;
mod loss;
#[cfg(feature = "metrics")]
mod metrics;
mod quiet;
mod runtimes;
mod scenarios;
mod server;
mod store;
mod tools;
mod torture;
