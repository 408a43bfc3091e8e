//! The laws: what must never happen. Each file checks one subject.
//!
//! `sim/src/laws/` looks for the damage in simulated worlds, and `tests/live/torture.rs` in real processes.
//!
//! 1. Two guards of one exclusive key answer *held* at the same instant, although the four conditions of `docs/guarantees.md` are met.
//! 2. A new fence does not exceed every earlier fence of its key, although the server kept its counter or its clock did not go
//!    back.
//! 3. A claim that is not the owner releases, renews or hands over a lease.
//! 4. A lock or a queue entry stays behind. The bounds are:
//!    * If a caller is cancelled, panics or is aborted, its lock stays no longer than a release takes.
//!    * A queue entry outlives its node's last heartbeat by at most one lease.
//!    * Dead nodes delay live nodes by at most two leases, the margin and one timer.
//! 5. The lock is free, and a waiter sleeps longer than its timer. The timer is at most a third of the waiter's lease.
//! 6. Memory in Redis or in the process grows without a bound, for each key that was ever used, or for waiters beyond a limit.
//! 7. A key made from user input reaches the state of another key.
//! 8. An unreachable store, a lost lease or a failed release stays unreported. Each must cause an error, an event and a metric.

mod audit;
mod checkpoints;
mod elections;
mod exclusion;
mod execution;
mod fences;
mod groups;
mod history;
mod keeping;
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
mod triggers;
