//! What a request says once, in one of many spellings.

use std::borrow::Cow;
use std::fmt::Display;
use std::future::Future;
use std::str::FromStr;

use http::request::Parts;

use crate::key::Key;
use crate::middleware::key::{KeySource, LockKey};
use crate::middleware::refusal::Refused;

/// A lock per value that stands in one place of a request: `P` is the place.
#[derive(Debug, Clone)]
pub struct ByValue<P> {
    place: P,
    value: ValueReader,
}

/// Where in a request a value stands.
pub trait ValueSource: Clone + Send + Sync + 'static {
    /// The key of the value that stands there.
    #[doc(hidden)]
    fn key(&self, parts: &mut Parts, value: &ValueReader) -> impl Future<Output = LockKey> + Send;
}

/// A place where a request may have no value. Where this is missing, a request without a value is a fault of the program.
pub trait OptionalSource: ValueSource {}

impl<P: ValueSource> ByValue<P> {
    pub(super) fn new(place: P, value: ValueReader) -> Self {
        ByValue { place, value }
    }

    /// Chooses what stands in front of the value. The key is the name, a colon and the value: `account:42`. The name is
    /// taken as it is. In the value `:` and `%` are escaped, as in a tuple. So the key is that of `("account", 42)`, and
    /// the lock is shared with all that use this key: other routes, jobs, [`Locks::mutex`](crate::Locks::mutex).
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.value.prefix = Some(named(name));
        self
    }
}

impl<P: OptionalSource> ByValue<P> {
    /// Requests without the value pass without a lock.
    pub fn optional(mut self) -> Self {
        self.value.optional = true;
        self
    }
}

impl<P: ValueSource> KeySource for ByValue<P> {
    type Key = LockKey;

    fn key(&self, parts: &mut Parts) -> impl Future<Output = LockKey> + Send {
        self.place.key(parts, &self.value)
    }
}

/// What a key begins with that has a name.
pub(super) fn named(name: impl Into<Cow<'static, str>>) -> Cow<'static, str> {
    name.into() + ":"
}

/// The one spelling of a value; `None` if it is malformed.
type NormalizeFn = for<'a> fn(&'a [u8]) -> Option<Cow<'a, [u8]>>;

/// How a value becomes a key.
#[derive(Debug, Clone)]
pub struct ValueReader {
    /// What the key begins with if the value has a name.
    prefix: Option<Cow<'static, str>>,
    read: NormalizeFn,
    optional: bool,
}

impl ValueReader {
    /// Whatever spells the same `T` is one value.
    pub(super) fn typed<T: FromStr + Display>() -> ValueReader {
        ValueReader::new(|value| {
            let value: T = str::from_utf8(value).ok()?.parse().ok()?;
            Some(value.to_string().into_bytes().into())
        })
    }

    /// Other bytes are another value.
    pub(super) fn text() -> ValueReader {
        ValueReader::new(|value| Some(value.into()))
    }

    fn new(read: NormalizeFn) -> ValueReader {
        ValueReader {
            prefix: None,
            read,
            optional: false,
        }
    }

    /// The key of this value. Without a name it begins with what `unnamed` says.
    pub(super) fn key(&self, value: &[u8], unnamed: impl FnOnce() -> String) -> LockKey {
        let key = (self.read)(value)
            .filter(|value| !value.is_empty())
            .map(|value| match &self.prefix {
                Some(prefix) => Key::prefixed(prefix, &value),
                None => Key::prefixed(&unnamed(), &value),
            });
        key.map_or_else(|| LockKey::refuse(Refused::BadKey), LockKey::lock)
    }

    /// The key of the one value that the request has.
    pub(super) fn only<'a>(
        &self,
        values: impl Iterator<Item = Cow<'a, [u8]>>,
        unnamed: impl FnOnce() -> String,
    ) -> LockKey {
        single_key(values, self.optional, |value| self.key(&value, unnamed))
    }
}

/// The key that `read` finds in the only value. Of two the handler might read the other one.
pub(super) fn single_key<V>(
    mut values: impl Iterator<Item = V>,
    optional: bool,
    read: impl FnOnce(V) -> LockKey,
) -> LockKey {
    match (values.next(), values.next()) {
        (None, _) if optional => LockKey::nothing(),
        (None, _) => LockKey::refuse(Refused::NoKey),
        (Some(value), None) => read(value),
        (Some(_), Some(_)) => LockKey::refuse(Refused::BadKey),
    }
}
