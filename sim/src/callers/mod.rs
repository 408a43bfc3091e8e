//! Callers, with one file for each primitive.

mod answers;
mod caller;
mod checkpoints;
pub(crate) mod elections;
mod groups;
mod jobs;
mod latches;
mod locks;
pub(crate) mod open_ticks;
mod permits;
mod renewals;
mod transfers;
mod writes;
