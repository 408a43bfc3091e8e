//! What callers use: thin faces over one engine.

pub(crate) mod guard;
pub(crate) mod mutex;
