//! Everything that needs no server, in one binary.
#![allow(clippy::disallowed_methods)]

mod core;
