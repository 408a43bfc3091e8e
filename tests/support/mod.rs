//! What several test binaries share: `#[path = "../support/mod.rs"] mod support;`.

// Each binary uses its own part of it.
#![allow(dead_code)]

pub mod proxy;
