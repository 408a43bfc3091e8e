//! The tokio side of the engine: what the engine wants sent is sent, what time brings is told to it.
//!
//! Two sides send. The *callers'* side is driven by the tasks that wait for locks, on their runtime, where a claim or
//! an awaited release is fastest. The *keeper* is a thread of our own with a connection of its own: renewals,
//! deadlines, the inbox, and releases that come from `Drop`. A blocked or ended runtime of the user's cannot lose a
//! lease or leave one behind.

pub(crate) mod carriage;
pub(crate) mod clock;
pub(crate) mod courier;
pub(crate) mod handle;
pub(crate) mod helper;
pub(crate) mod keeper;
pub(crate) mod node;
pub(crate) mod server;
pub(crate) mod slot;
pub(crate) mod traffic;
