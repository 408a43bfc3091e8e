//! The rules, as pure state machines without a runtime, a clock, or I/O. Time is an argument.
//!
//! These machines run in every process. A [`claim`] pursues one lease: its requests, its deadline, its end. The *key
//! machine* ([`key`]) knows one key: the callers that wait here, and the claims of this node. The *calls* ([`call`]) of a key ask or act, and are never
//! granted. The *session* ([`session`]) knows one server: its queued requests, its batches in flight with their
//! deadlines, and whether the server is known to be down. Another machine is the [`ledger`]: the rules of a store,
//! which the Lua scripts follow. On a quorum of masters, the *quorum* stands between the key machines of a shard and the
//! sessions.
//!
//! Reading order: [`message`] (the vocabulary), [`step`] (the inputs and effects of a key machine),
//! [`write`](mod@write), [`view`] (what operators see), then one folder each: [`claim`], [`key`], [`call`], [`session`], [`ledger`].

pub mod call;
pub mod claim;
pub mod cluster;
pub mod context;
pub(crate) mod exchange;
pub mod failed_request;
pub mod finding;
pub mod flaw;
pub mod job_act;
pub mod key;
pub mod ledger;
pub mod message;
pub mod primitive;
pub(crate) mod quorum;
pub mod redirects;
pub mod sentinels;
pub mod session;
pub mod steal;
pub mod step;
pub mod time;
pub mod view;
pub mod write;
