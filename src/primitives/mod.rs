//! What callers use: thin faces over one key machine.

pub(crate) mod acquire;
pub(crate) mod guard;
pub(crate) mod mutex;
#[cfg(feature = "scheduler")]
pub(crate) mod tick;
