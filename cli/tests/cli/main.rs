//! The command on real servers. They are started here: `apt-get install redis-server`.

#![allow(
    unreachable_pub,
    reason = "a test binary exports nothing, and `server` is included from elsewhere"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests play the operator and the world around"
)]

#[allow(dead_code, reason = "other tests need the rest of it")]
#[path = "../../../tests/support/proxy.rs"]
mod proxy;
#[path = "../../../tests/live/server.rs"]
mod server;
mod tools;
#[path = "../../../tests/live/wall_clock.rs"]
mod wall_clock;

mod connections;
mod doctor;
mod hostile;
mod job_acts;
mod jobs;
mod listings;
mod refusals;
mod run;
mod serve;
mod steals;
mod watches;
