//! The primitives that callers use: thin faces over one key machine.

pub(crate) mod acquire;
pub(crate) mod blocking;
pub(crate) mod call;
pub(crate) mod denial;
pub(crate) mod election;
pub(crate) mod guard;
pub(crate) mod held;
pub(crate) mod holdings;
pub mod inspect;
pub(crate) mod latch;
pub(crate) mod multi;
pub(crate) mod multi_guard;
pub(crate) mod mutex;
#[cfg(feature = "tower")]
pub(crate) mod offer;
pub(crate) mod proclaimed;
pub(crate) mod rw_lock;
pub(crate) mod scope;
pub(crate) mod semaphore;
pub(crate) mod target;
#[cfg(feature = "scheduler")]
pub(crate) mod tick;
pub(crate) mod transfer;
pub(crate) mod within;
#[cfg(feature = "redis")]
pub(crate) mod write;
