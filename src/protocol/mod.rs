//! The rules, as pure state machines: no runtime, no clock, no input or output. Time is an argument.
//!
//! Two machines run in every process. The *key machine* ([`shard`] to `renewal`) knows one key: who
//! waits here, which claims this node pursues, until when it holds. The *session* ([`session`]) knows one server: what
//! is queued for it, the batches under way, their deadlines, and whether it is known to be down. The [`ledger`] is the
//! third: the rules of a store, which the Lua scripts follow (`record`: what it keeps of a key; `transaction`: one
//! request; `hand_over`: who is next; `shares`: what several have at once; `ticks`, `question`: what is different with
//! jobs; `latch`, `election`: what is with those; `watchers`: who is told of news).
//!
//! Reading order: [`message`] (the vocabulary), [`step`] (what goes into a key machine and comes out), [`shard`], `timers`,
//! `line`, `claim`, `claims`, `key_state`, `asking`, `holding`, `readers`, `sharing`, `watch`, `watching`, `resting`, `replies`, `failing`, `failures`, `renewal`,
//! [`server_clock`], [`session`], `queue`, `in_flight`, `connection`, `connecting`, `inbox`, `backoff`, `batch_replies`,
//! [`write`](mod@write), `writing`, [`ledger`].

pub(crate) mod asking;
pub(crate) mod backoff;
pub(crate) mod batch_replies;
pub mod branch;
pub(crate) mod claim;
pub mod claims;
pub(crate) mod connecting;
pub(crate) mod connection;
pub mod context;
pub(crate) mod election;
mod failing;
pub mod failures;
pub mod flaw;
pub(crate) mod hand_over;
pub(crate) mod holding;
pub(crate) mod in_flight;
pub(crate) mod inbox;
pub mod key_state;
pub(crate) mod latch;
pub mod ledger;
pub mod line;
pub mod message;
pub(crate) mod passing;
pub(crate) mod question;
pub(crate) mod queue;
pub(crate) mod readers;
pub mod record;
pub mod renewal;
pub mod replies;
pub(crate) mod resting;
pub mod server_clock;
pub mod session;
pub mod session_step;
pub mod shard;
pub(crate) mod shares;
pub(crate) mod sharing;
pub mod step;
pub(crate) mod ticks;
pub mod time;
pub(crate) mod timers;
pub mod transaction;
pub(crate) mod transfer;
pub(crate) mod watch;
pub(crate) mod watchers;
pub(crate) mod watching;
pub mod write;
pub(crate) mod writing;
