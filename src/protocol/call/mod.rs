//! The calls of one key: they ask or act, and are never granted. A call has one typed
//! [answer](crate::protocol::step::CallAnswer).
//!
//! Most calls are *repeated*: a request without an answer is sent again under the same id, by which the store
//! recognizes what it has done. Guarded writes and `forget_job` are *sent once*.
//!
//! Reading order: `pending_call`, `calls`, `watch`, `actions`.

pub(crate) mod actions;
pub(crate) mod calls;
pub(crate) mod pending_call;
pub(crate) mod watch;
