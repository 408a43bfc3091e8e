//! The calls of one key: they ask or act, and are never granted. A call has one typed [answer](crate::protocol::step::Answer).
//!
//! These calls are *repeated*: a request without an answer is sent again under the same id, by which the store recognizes what
//! it has done. Guarded writes, probes and `forget_job` are *sent once*: they do not come here, and one without an answer ends
//! with an error that says that the outcome is unknown.
//!
//! Reading order: `pending`, `calls`, `watch`.

pub(crate) mod calls;
pub(crate) mod pending;
pub(crate) mod watch;
