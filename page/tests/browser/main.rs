//! The page in a browser: `page/browser` installs Chromium and axe-core, and runs this. Each test starts its own browser and servers.

#![allow(
    unreachable_pub,
    reason = "a test binary exports nothing, and `server` is included from elsewhere"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests play the operator and the world around"
)]

mod browser;
mod command;
mod driver;
#[path = "../../../tests/live/server.rs"]
mod server;
mod stage;

mod acts;
mod endurance;
mod hostile;
mod keyboard;
mod live;
mod refusals;
mod views;
