//! The command on real servers. They are started here: `apt-get install redis-server`.

#![allow(
    unreachable_pub,
    reason = "a test binary exports nothing, and `server` is included from elsewhere"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests play the operator and the world around"
)]

#[path = "../../../tests/live/server.rs"]
mod server;
mod tools;

mod connections;
mod hostile;
mod jobs;
mod listings;
mod refusals;
mod steals;
mod watches;
