//! Keys from a value that a request may spell in several ways.

use std::borrow::Cow;
use std::fmt::Display;
use std::future::Future;
use std::str::FromStr;

use http::request::Parts;

use crate::key::Key;
use crate::middleware::key::{KeySource, LockKey};
use crate::middleware::refusal::Refused;

/// A lock per value from one source, such as a header. `P` is the source.
///
/// ```
/// use tenure::{LockLayer, Locks, middleware::keys};
///
/// # let locks = Locks::memory();
/// let by_header = LockLayer::new(&locks, keys::header::<u64>("x-account").named("account"));
/// let by_query = LockLayer::new(&locks, keys::query_param::<u64>("account").named("account").optional()); // the same locks
/// # drop((by_header, by_query));
/// ```
#[derive(Debug, Clone)]
pub struct ByValue<P> {
    place: P,
    value: ValueReader,
}

/// The part of a request that contains the value.
pub trait ValueSource: Clone + Send + Sync + 'static {
    /// Returns the key of the value in this request.
    #[doc(hidden)]
    fn key(&self, parts: &mut Parts, value: &ValueReader) -> impl Future<Output = LockKey> + Send;
}

/// A source that may be absent from a valid request. For other sources, a missing value is a fault of the program.
pub trait OptionalSource: ValueSource {}

impl<P: ValueSource> ByValue<P> {
    pub(super) fn new(place: P, value: ValueReader) -> Self {
        ByValue { place, value }
    }

    /// Sets the beginning of the key. The key is the name, a colon and the value: `account:42`. The name is used
    /// unchanged. In the value, `:` and `%` are escaped, as in a tuple. So the key is that of `("account", 42)`, and
    /// other routes, jobs and [`Locks::mutex`](crate::Locks::mutex) can share the lock.
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

/// Returns the beginning of a key with a name.
pub(super) fn named(name: impl Into<Cow<'static, str>>) -> Cow<'static, str> {
    name.into() + ":"
}

/// Returns the normalized value, or `None` if the value is malformed.
type NormalizeFn = for<'a> fn(&'a [u8]) -> Option<Cow<'a, [u8]>>;

/// Converts a value into a key.
#[derive(Debug, Clone)]
pub struct ValueReader {
    /// The beginning of the key, if the value has a name.
    prefix: Option<Cow<'static, str>>,
    read: NormalizeFn,
    optional: bool,
}

impl ValueReader {
    /// Returns a reader for which all texts that parse as the same `T` are one value.
    pub(super) fn typed<T: FromStr + Display>() -> ValueReader {
        ValueReader::new(|value| {
            let value: T = str::from_utf8(value).ok()?.parse().ok()?;
            Some(value.to_string().into_bytes().into())
        })
    }

    /// Returns a reader for which different bytes are different values.
    pub(super) fn text() -> ValueReader {
        ValueReader::new(|value| Some(value.into()))
    }

    /// Returns a reader for which different texts in UTF-8 are different values.
    pub(super) fn utf8() -> ValueReader {
        ValueReader::new(|value| str::from_utf8(value).ok().map(|_| value.into()))
    }

    fn new(read: NormalizeFn) -> ValueReader {
        ValueReader {
            prefix: None,
            read,
            optional: false,
        }
    }

    /// Returns the key of this value. Without a name, the key begins with the text of `unnamed`.
    pub(super) fn key(&self, value: &[u8], unnamed: impl FnOnce() -> String) -> LockKey {
        let key = (self.read)(value)
            .filter(|value| !value.is_empty())
            .map(|value| match &self.prefix {
                Some(prefix) => Key::prefixed(prefix, &value),
                None => Key::prefixed(&unnamed(), &value),
            });
        key.map_or_else(|| LockKey::refuse(Refused::BadKey), LockKey::lock)
    }

    /// Returns the key of the only value in the request.
    pub(super) fn only<'a>(
        &self,
        values: impl Iterator<Item = Cow<'a, [u8]>>,
        unnamed: impl FnOnce() -> String,
    ) -> LockKey {
        single_key(values, self.optional, |value| self.key(&value, unnamed))
    }
}

/// Returns the key that `read` makes of the only value. Two values are refused, because the handler might read the
/// other one.
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
