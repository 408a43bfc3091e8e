//! The rules, as pure state machines: no runtime, no clock, no input or output. Time is an argument.
//!
//! Three machines run in every process. The *key machine* ([`key`]) knows one key: which callers wait here, which claims this
//! node pursues, until when it holds. The *calls* ([`call`]) of a key ask or act, and are never granted. The *session*
//! ([`session`]) knows one server: what is queued for it, the batches in flight, their deadlines, and whether it is known to be
//! down. The [`ledger`] is the fourth: the rules of a store, which the Lua scripts follow.
//!
//! Reading order: [`message`] (the vocabulary), [`step`] (what goes into a key machine and comes out), [`write`](mod@write),
//! then a folder each: [`key`], [`call`], [`session`], [`ledger`].

pub mod call;
mod failed_request;
pub mod flaw;
pub mod key;
pub mod ledger;
pub mod message;
pub mod session;
pub mod step;
pub mod time;
pub mod write;
