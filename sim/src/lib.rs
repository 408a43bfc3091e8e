//! A simulator: many nodes, one server or a cluster of some, a faulty network and a virtual clock, all from one seed.
//!
//! The seed decides everything, so a failure is replayed exactly. Key machines, sessions and the ledger run as they ship. The
//! rest is modelled: driver, connections, inboxes, the server's process and wall clock, and the callers. The model is unkind:
//! abandoned batches are executed late, pushes arrive after newer answers, and processes stop for longer than their leases.
//!
//! The layers, from the bottom. A layer imports and calls only itself and the layers below it; `tests/it/architecture.rs`
//! checks both.
//!
//! 1. Values: `time`, [`violation`] (what must never happen), [`coverage`] (what must happen), [`setup`] (input and result of
//!    a world), `log`, `profile` (the kind of world that a seed makes).
//! 2. `world`: the state of all parts, the queue of events, and what the laws remember.
//! 3. `network`: connections, inboxes and the server.
//! 4. `nodes`: processes, with the shard and the session of each.
//! 5. `callers`: one file for each primitive, and three files that all callers share: `caller`, `answers` and `locks`.
//! 6. `faults`: what goes wrong.
//! 7. `laws`: the checks, one file for each subject.
//! 8. [`run`]: the run of one world. [`explore`]: many worlds.
//!
//! Upwards there are two ways, both in [`run`]. An event (`world/event.rs`) happens later, at its time. A signal
//! (`world/signal.rs`) is handled at once: a node signals a grant to its callers, and the server signals each executed batch
//! to the laws.

#![allow(
    clippy::too_many_lines,
    reason = "the tables of events and signals, and the beginning of a world"
)]

mod callers;
pub mod coverage;
pub mod explore;
mod faults;
mod laws;
mod log;
mod network;
mod nodes;
mod profile;
pub mod run;
pub mod setup;
mod time;
pub mod violation;
mod world;

pub use coverage::Coverage;
pub use run::run;
pub use setup::{Failure, Line, Run, Setup};
pub use violation::Violation;
