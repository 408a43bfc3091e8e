//! The calls of one key: they ask or act, and are never granted. A call has one typed
//! [answer](crate::protocol::message::CallAnswer).
//!
//! Most calls are *repeated*: a request without an answer is sent again under the same id, by which the store
//! recognizes what it has done. Guarded writes and `forget_job` are *sent once*.
//!
//! Reading order: `pending_call`, `calls`, `watch`, `actions`.
//!
//! # The way of one call
//!
//! A call asks or acts, and is never granted. Calls are: job reports, checkpoints, latches, leader queries, permits in use, and the
//! extension or release of a transfer.
//!
//! 1. The caller's input is checked, and a future is created (`primitives/call.rs` `check`, `new`, `driver/steps.rs` `call`).
//! 2. The key machine forwards the input to the calls of the key (`protocol/key/key_state.rs` `handle`, `protocol/call/calls.rs` `call`,
//!    `send_all`).
//! 3. The request travels in a batch with the requests of claims. A call about a claim goes before the leave of that claim
//!    (`protocol/step.rs` `of_call`).
//! 4. The reply carries the number of its request, which identifies the call (`protocol/call/calls.rs` `handle`, `answered`).
//! 5. The caller gets the answer as a typed value (`driver/waiter.rs` `wake`, `primitives/call.rs` `poll`).
//! 6. Without an answer, the call is repeated under its id (`protocol/call/calls.rs` `failed`). If it cannot be repeated, the caller
//!    gets the error that the outcome is unknown.

pub(crate) mod actions;
pub(crate) mod calls;
pub(crate) mod pending_call;
pub(crate) mod watch;
