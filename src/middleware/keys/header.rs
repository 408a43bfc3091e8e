//! A header's value.

use std::borrow::Cow;
use std::fmt::{Debug, Display};
use std::future::{Future, ready};
use std::str::FromStr;

use http::header::HeaderName;
use http::request::Parts;

use crate::middleware::key::LockKey;
use crate::middleware::keys::value::{ByValue, MayBeMissing, Place, Value};
#[cfg(doc)]
use crate::middleware::refusal::Refused;

/// A lock per value of a header, where the value is a `T`: all that is parsed as the same `T` is one key, as `T` is
/// displayed. `42`, `042` and `+42` are one `u64`; a `Uuid` has four spellings and more.
///
/// The key is the header's name, a colon and the value, on all routes alike: routes that look at the same header wait for
/// each other. A request without it is answered with 400 ([`NoKey`](Refused::NoKey)) unless it is
/// [`optional`](Header::optional). One whose value is no `T`, or with the header twice, gets 400
/// ([`BadKey`](Refused::BadKey)): the handler might read the other one.
///
/// ```
/// # let locks = tenure::Locks::memory();
/// use tenure::{LockLayer, middleware::keys};
///
/// let layer = LockLayer::new(&locks, keys::header::<u64>("x-account")); // x-account:42
/// let layer = LockLayer::new(&locks, keys::header::<u64>("x-account").named("account").optional()); // account:42
/// ```
///
/// # Panics
/// If no header can have that name.
pub fn header<T: FromStr + Display>(name: impl TryInto<HeaderName, Error: Debug>) -> Header {
    ByValue::new(InHeader::of(name), Value::typed::<T>())
}

/// A lock per value of a header, as it is: [`header`] where the value has no type.
///
/// **Every spelling is a lock of its own.** If the service takes `acme` and `ACME`, or `42` and `042`, for the same, then
/// a client who writes it differently is past the lock. It is for values that are opaque: a token, a name that is looked
/// up byte by byte. White space around the value does not count. An empty one gets 400
/// ([`BadKey`](Refused::BadKey)).
///
/// ```
/// # let locks = tenure::Locks::memory();
/// use tenure::{LockLayer, middleware::keys};
///
/// let layer = LockLayer::new(&locks, keys::header_text("x-tenant").named("tenant")); // tenant:acme
/// ```
///
/// # Panics
/// If no header can have that name.
pub fn header_text(name: impl TryInto<HeaderName, Error: Debug>) -> Header {
    ByValue::new(InHeader::of(name), Value::text())
}

/// A lock per value of a header. Made by [`header`] and [`header_text`].
pub type Header = ByValue<InHeader>;

/// The place of a value: a header.
#[derive(Debug, Clone)]
pub struct InHeader(HeaderName);

impl InHeader {
    fn of(name: impl TryInto<HeaderName, Error: Debug>) -> InHeader {
        InHeader(name.try_into().expect("it is the name of a header"))
    }
}

impl MayBeMissing for InHeader {}

impl Place for InHeader {
    fn key(&self, parts: &mut Parts, value: &Value) -> impl Future<Output = LockKey> + Send {
        let InHeader(name) = self;
        // HTTP/1 has no white space around a value, HTTP/2 can.
        let values = parts
            .headers
            .get_all(name)
            .iter()
            .map(|value| value.as_bytes().trim_ascii());
        ready(value.only(values.map(Cow::Borrowed), || format!("{name}:")))
    }
}
