//! The tokio side: one background thread per `Locks` owns every connection, keeps the timers and wakes the waiters.
//!
//! Reading order: [`node`] (the operations of callers), [`steps`] (of keys, on any thread), [`lookups`] (without a
//! step), [`driver`] (the thread), [`servers`], [`inbox`], [`immediate`] (stores in memory), [`waiter`], [`events`],
//! [`outage`] and [`session_events`] (a server that fails, and its events), [`pulse`] and [`pause`] (a process that
//! stood still), `jobs`, [`presence`], [`notes`] and
//! [`inspector`] (for operators), [`clock`], [`handle`], [`throttle`]. `process` is part of simulations.

pub(crate) mod clock;
#[allow(clippy::module_inception, reason = "the thread that the folder is about")]
pub(crate) mod driver;
pub(crate) mod events;
pub(crate) mod handle;
pub(crate) mod immediate;
pub(crate) mod inbox;
pub(crate) mod inspector;
#[cfg(feature = "scheduler")]
pub(crate) mod jobs;
pub(crate) mod lookups;
pub(crate) mod node;
pub(crate) mod notes;
pub(crate) mod outage;
pub(crate) mod pause;
pub(crate) mod presence;
pub(crate) mod presence_state;
#[cfg(all(feature = "scheduler", feature = "testing"))]
pub(crate) mod process;
pub(crate) mod pulse;
pub(crate) mod servers;
pub(crate) mod session_events;
pub(crate) mod steps;
pub(crate) mod throttle;
pub(crate) mod waiter;
