//! The laws: what must never happen. Each file checks one subject.

mod audit;
mod checkpoints;
mod elections;
mod exclusion;
mod execution;
mod fences;
mod groups;
mod latches;
mod leftovers;
mod open_ticks;
mod outcomes;
mod ownership;
mod queue;
pub(crate) mod quorum;
mod requests;
#[cfg(test)]
mod tests;
mod ticks;
