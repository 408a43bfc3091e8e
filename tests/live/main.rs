//! Tests against a real Redis. They start their own servers: `apt-get install redis-server`.

// Tests play the outside world: they may look at its clock, and sleep.
#![allow(clippy::disallowed_methods, unreachable_pub)]

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod cancellation;
mod child;
mod differential;
mod help;
mod loss;
mod quiet;
mod runtimes;
mod scenarios;
mod server;
mod store;
mod tools;
