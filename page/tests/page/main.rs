//! The page without a browser, on the store in memory.

#![allow(unreachable_pub, reason = "a test binary exports nothing")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests play the operator and the world around"
)]

mod tools;

mod acts;
mod hostile;
mod live;
mod routes;
mod tokens;
mod views;
