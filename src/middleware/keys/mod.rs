//! Ready-made keys, to be given to [`LockLayer::new`](crate::LockLayer::new).
//!
//! ```
//! use tenure::{LockLayer, Locks, middleware::{KeySource, keys}};
//!
//! # #[derive(Clone)]
//! # struct User { id: u64 }
//! # let locks = Locks::memory();
//! # let secret = "0123456789abcdef";
//! # #[cfg(feature = "axum")] {
//! let per_account = LockLayer::new(&locks, keys::path_param::<u64>("id").named("account")); // account:42
//! # drop(per_account); }
//! let per_tenant = LockLayer::new(&locks, keys::header_text("x-tenant").named("tenant")); // tenant:acme
//! let per_user = LockLayer::new(&locks, keys::extension(|user: &User| ("user", user.id))); // user:7
//! let retries = LockLayer::new(&locks, keys::idempotency_key()); // POST /payments 8e03978e-40d5-43dd
//! let of_each = LockLayer::new(&locks, keys::idempotency_key().per(keys::extension(|user: &User| user.id)));
//! let per_path = LockLayer::new(&locks, keys::path()); // /accounts/42/statement
//! let private = LockLayer::new(&locks, keys::header_text("x-email").hashed(secret)); // hashed:5f0c…
//! let alone = LockLayer::new(&locks, keys::fixed("nightly")); // nightly
//! ```
//!
//! # A key is a resource, not a spelling
//! A service takes `/accounts/42`, `/accounts/042` and `/accounts/+42` for one account, and a UUID in capitals for the one
//! in small letters. A lock per text would let them in beside each other. So a key is made of a value that was parsed,
//! with the type that the handler uses. Where that is text, the functions that end in `_text` take it as it is.
//!
//! | source | the key | when it is missing | when it is bad |
//! |---|---|---|---|
#![cfg_attr(
    feature = "axum",
    doc = "| [`path_param::<u64>(\"id\")`](path_param) | `/accounts/<id>/withdraw id=42` | 500 and an event: the route has none, or two | 400 |",
    doc = "| …[`.named(\"account\")`](PathParam::named) | `account:42` | 500 and an event | 400 |"
)]
//! | [`header::<u64>("x-account")`](header) | `x-account:42` | 400; with [`optional`](Header::optional) no lock | 400 |
//! | …[`.named("account")`](Header::named) | `account:42` | likewise | 400 |
//! | [`query_param::<u64>("id")`](query_param) | `?id=42` | 400; with [`optional`](QueryParam::optional) no lock | 400 |
//! | …[`.named("account")`](QueryParam::named) | `account:42` | likewise | 400 |
//! | [`host()`](host) | `host:example.com` | 400; with [`optional`](Host::optional) no lock | 400 |
//! | [`extension(⎮user: &User⎮ user.id)`](extension) | `42` | 500 and an event: the order of the layers | |
//! | …[`.named("user")`](Extension::named) | `user:42` | 500 and an event | |
//! | [`idempotency_key()`](idempotency_key) | `POST /payments 8e03978e-40d5-43dd` | 400; with [`optional`](IdempotencyKey::optional) no lock | 400 |
//! | [`path()`](path) | `/accounts/42` | | |
//! | [`fixed("nightly")`](fixed) | `nightly` | | |
//! | any …[`.per(scope)`](KeySource::per) | the scope, `:`, the key | of the scope: 400 | |
//! | any …[`.hashed(secret)`](KeySource::hashed) | `hashed:5f0c…` | | |
//!
//! A request that lacks its key is refused, as one without a lock would run beside the others: whoever leaves the header
//! out would be past the lock.
//!
//! No two rows meet by accident, whatever clients send: paths begin with `/`, only behind a route's template or a method
//! stands a space, and within a value `:` and `%` are escaped. What you [name](Header::named) yourself or [fix](fixed) is
//! the very key of [`Locks::mutex`](crate::Locks::mutex), to share a lock with other routes and with jobs:
//! `locks.mutex(("account", 42))`. The space is that of the store and the [prefix](crate::Builder::prefix): two services
//! on one store whose routes look alike need a prefix each.
//!
//! # A key is a contract between releases
//! While a new release is rolled out, replicas of both run, and exclude each other only where both make the same key.
//! Renaming `{id}` in a route, or the route, changes the key of a path parameter that has no name; renaming a header, a
//! parameter of the query or [a job](crate::Locks) changes theirs; so does the type of a value whose `Display` differs.
//! [Name](Header::named) what a value stands for, and keep the name.
//!
//! For several parameters at once, and all else, see [`LockLayer::by`](crate::LockLayer::by)
#![cfg_attr(
    feature = "axum",
    doc = "and [`LockLayer::from_extractors`](crate::LockLayer::from_extractors)."
)]
#![cfg_attr(not(feature = "axum"), doc = "and the feature `axum`.")]

use std::future::{Future, ready};

use http::request::Parts;

use crate::key::Key;
use crate::middleware::key::KeySource;

pub use self::extension::{Extension, extension};
pub use self::field::{Header, QueryParam, header, header_text, query_param, query_text};
pub use self::host::{Host, host};
pub use self::idempotency::{IdempotencyKey, idempotency_key};
#[cfg(feature = "axum")]
pub use self::param::{PathParam, path_param, path_text};
pub use self::path::{WholePath, path};
pub use self::value::ByValue;

mod extension;
mod field;
mod host;
mod idempotency;
#[cfg(feature = "axum")]
mod param;
mod path;
mod route_throttle;
mod value;

/// One lock for all requests: the key is `key`, that of [`Locks::mutex`](crate::Locks::mutex).
pub fn fixed(key: impl Into<Key>) -> Fixed {
    Fixed { key: key.into() }
}

/// One lock for all requests. Made by [`fixed`].
#[derive(Debug, Clone)]
pub struct Fixed {
    key: Key,
}

impl KeySource for Fixed {
    type Key = Key;

    fn key(&self, _: &mut Parts) -> impl Future<Output = Key> + Send {
        ready(self.key.clone())
    }
}
