//! The key machine: the state of one key, kept while a caller or a claim of this process needs it.
//!
//! # Where to look
//!
//! In reading order. What concerns one claim alone (its deadline, its renewals, its leave) is decided in
//! `protocol/claim/`; the key calls it, and does for callers and other claims what its
//! event (`protocol/claim/answers.rs`) means.
//!
//! * [`shard`]: the keys of a shard, their timers, and the quorum.
//! * `line`: the callers of this process that wait, in order.
//! * [`claims`]: the claims of a key, and the callers that each is for.
//! * [`key_state`]: what a caller does: it enters, or is refused at once; it cancels, releases, or the node closes.
//! * `requests`: which callers need a claim, which claims no caller needs any more, and the steps of the timers.
//! * `holding`: a grant, the next caller after a release, shared reading, and a loss.
//! * `readers`: the callers that read.
//! * `transfer`: a lease that changes its owner.
//! * [`replies`]: what an answer means for the callers and for other claims.
//! * `pushes`: pushed grants, for unknown claims, too; a lease that an operator asks for or revokes.
//! * [`failures`]: which callers keep waiting after a failure, and requests that another server must execute.

pub mod claims;
pub mod failures;
pub(crate) mod holding;
mod keeping;
pub mod key_state;
pub mod line;
mod pushes;
pub(crate) mod readers;
pub mod replies;
pub(crate) mod requests;
pub mod shard;
pub(crate) mod transfer;
