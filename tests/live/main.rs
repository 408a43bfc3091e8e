//! Tests against a real Redis. They start their own servers: `apt-get install redis-server`.

mod differential;
mod server;
mod store;
#[path = "../support/mod.rs"]
mod support;
mod tools;
mod torture;
