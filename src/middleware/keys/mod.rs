//! Ready-made key sources for [`LockLayer::new`](crate::LockLayer::new).
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
//! A service treats `/accounts/42`, `/accounts/042` and `/accounts/+42` as one account, and a UUID in capitals as the
//! same UUID in small letters. A lock per text would admit them beside each other. So a key is built from a parsed
//! value, with the type that the handler uses. Functions that end in `_text` use the text unchanged.
//!
//! | source | the key | when it is missing | when it is bad |
//! |---|---|---|---|
#![cfg_attr(
    feature = "axum",
    doc = "| [`path_param::<u64>(\"id\")`](path_param) | `/accounts/<id>/withdraw id=42` | 500 and an event: the route lacks it, or has it twice | 400 |",
    doc = "| …[`.named(\"account\")`](PathParam::named) | `account:42` | 500 and an event | 400 |"
)]
//! | [`header::<u64>("x-account")`](header) | `x-account:42` | 400; with [`optional`](Header::optional) no lock | 400 |
//! | …[`.named("account")`](Header::named) | `account:42` | the same | 400 |
//! | [`query_param::<u64>("id")`](query_param) | `?id=42` | 400; with [`optional`](QueryParam::optional) no lock | 400 |
//! | …[`.named("account")`](QueryParam::named) | `account:42` | the same | 400 |
//! | [`cookie_text("sid")`](cookie_text) | `cookie:sid:5f0c…` | 400; with [`optional`](Cookie::optional) no lock | 400 |
//! | [`host()`](host) | `host:example.com` | 400; with [`optional`](Host::optional) no lock | 400 |
//! | [`extension(⎮user: &User⎮ user.id)`](extension) | `42` | 500 and an event: the layers are in the wrong order | |
//! | …[`.named("user")`](Extension::named) | `user:42` | 500 and an event | |
//! | [`body(⎮body: &Bytes⎮ …)`](body) | what the closure returns | 500 and an event: no [`BufferBody`](crate::middleware::BufferBody) is outside | |
//! | [`idempotency_key()`](idempotency_key) | `POST /payments 8e03978e-40d5-43dd` | 400; with [`optional`](IdempotencyKey::optional) no lock | 400 |
//! | [`path()`](path) | `/accounts/42` | | |
//! | [`fixed("nightly")`](fixed) | `nightly` | | |
//! | any …[`.per(scope)`](KeySource::per) | the scope, `:`, the key | 400 if the scope is missing | |
//! | any …[`.hashed(secret)`](KeySource::hashed) | `hashed:5f0c…` | | |
//!
//! A request without its key is refused. Otherwise a client that omits the header bypasses the lock.
//!
//! Keys of two rows never collide, whatever clients send. Only paths begin with `/`, and only a route's template or a
//! method is followed by a space. Within a value, `:` and `%` are escaped. A key that you [name](Header::named) or
//! [fix](fixed) is the key of [`Locks::mutex`](crate::Locks::mutex), so that other routes and jobs can share the
//! lock: `locks.mutex(("account", 42))`. All services with the same store and [prefix](crate::Builder::prefix) share
//! one space of keys. Two services with similar routes need different prefixes.
//!
//! # A key is a contract between releases
//! During a rollout, replicas of both releases run, and exclude each other only if both build the same key. Renaming
//! `{id}` in a route, or the route, changes the key of a path parameter without a name. Renaming a header, a query
//! parameter or [a job](crate::Locks) changes its key, and so does a type with another `Display`.
//! [Name](Header::named) what a value stands for, and keep the name.
//!
//! For several parameters at once, and for all other keys, see [`LockLayer::by`](crate::LockLayer::by)
#![cfg_attr(
    feature = "axum",
    doc = "and [`LockLayer::from_extractors`](crate::LockLayer::from_extractors), and with the body",
    doc = "[`LockLayer::from_request`](crate::LockLayer::from_request)."
)]
#![cfg_attr(not(feature = "axum"), doc = "and the feature `axum`.")]

use std::future::{Future, ready};

use http::request::Parts;

use crate::key::Key;
use crate::middleware::key::KeySource;

pub use self::extension::{Extension, body, extension};
pub use self::field::{
    Cookie, Header, QueryParam, cookie_text, header, header_text, query_param, query_text,
};
pub use self::host::{Host, host};
pub use self::idempotency::{IdempotencyKey, idempotency_key};
#[cfg(feature = "axum")]
pub use self::param::{PathParam, path_param, path_text};
pub use self::path::{WholePath, path};
pub use self::value::ByValue;

pub(super) mod extension;
mod field;
mod host;
mod idempotency;
#[cfg(feature = "axum")]
mod param;
mod path;
mod value;

/// One lock for all requests. The key is the same as for [`Locks::mutex`](crate::Locks::mutex).
pub fn fixed(key: impl Into<Key>) -> Fixed {
    Fixed { key: key.into() }
}

/// One lock for all requests. Made by [`fixed`].
///
/// ```
/// use tenure::middleware::keys;
///
/// /// The lock that the nightly job takes, too: `locks.mutex("nightly")`.
/// fn source() -> keys::Fixed {
///     keys::fixed("nightly")
/// }
/// # let layer = tenure::LockLayer::new(&tenure::Locks::memory(), source());
/// # drop(layer);
/// ```
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
