//! Values with a name: the values of headers, of cookies and of query parameters.

use std::borrow::Cow;
use std::fmt::{Debug, Display};
use std::future::{Future, ready};
use std::str::FromStr;

use http::header::{COOKIE, HeaderName};
use http::request::Parts;
use percent_encoding::percent_decode;

use crate::middleware::key::LockKey;
use crate::middleware::keys::value::{ByValue, OptionalSource, ValueReader, ValueSource};
#[cfg(doc)]
use crate::middleware::refusal::Refused;

/// A lock per value of a header that is parsed as a `T`. All texts that parse as the same `T` are one key, as `T` is
/// displayed. `42`, `042` and `+42` are one `u64`; a `Uuid` has four spellings or more.
///
/// The key is the header's name, a colon and the value. It is the same on all routes, so routes with the same header
/// wait for each other. A request without the header gets 400 ([`NoKey`](Refused::NoKey)), unless the key is
/// [`optional`](Header::optional). A request with a malformed value, or with the header twice, gets 400
/// ([`BadKey`](Refused::BadKey)): the handler might read the other value.
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
/// Panics if `name` is not a valid header name.
pub fn header<T: FromStr + Display>(name: impl TryInto<HeaderName, Error: Debug>) -> Header {
    ByValue::new(InHeader::of(name), ValueReader::typed::<T>())
}

/// A lock per value of a header, without a type: the text is the value. See [`header`] for values with a type.
///
/// **Every spelling is a lock of its own.** If the service treats `acme` and `ACME`, or `42` and `042`, as the same
/// value, a client with another spelling bypasses the lock. Use it for opaque values: a token, or a name that is
/// looked up byte by byte. White space around the value is removed. An empty value gets 400
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
/// Panics if `name` is not a valid header name.
pub fn header_text(name: impl TryInto<HeaderName, Error: Debug>) -> Header {
    ByValue::new(InHeader::of(name), ValueReader::text())
}

/// A lock per value of a header. Made by [`header`] and [`header_text`].
///
/// ```
/// use tenure::middleware::keys;
///
/// /// The source of all routes that change an account: `account:42`.
/// fn source() -> keys::Header {
///     keys::header::<u64>("x-account").named("account")
/// }
/// # let layer = tenure::LockLayer::new(&tenure::Locks::memory(), source());
/// # drop(layer);
/// ```
pub type Header = ByValue<InHeader>;

/// The source of a value: a header.
#[derive(Debug, Clone)]
pub struct InHeader(HeaderName);

impl InHeader {
    fn of(name: impl TryInto<HeaderName, Error: Debug>) -> InHeader {
        InHeader(name.try_into().expect("the name is a valid header name"))
    }
}

impl OptionalSource for InHeader {}

impl ValueSource for InHeader {
    fn key(&self, parts: &mut Parts, value: &ValueReader) -> impl Future<Output = LockKey> + Send {
        let InHeader(name) = self;
        // HTTP/2 permits white space around a value, HTTP/1 does not.
        let values = parts
            .headers
            .get_all(name)
            .iter()
            .map(|value| value.as_bytes().trim_ascii());
        ready(value.only(values.map(Cow::Borrowed), || format!("{name}:")))
    }
}

/// A lock per value of a cookie: per session. Name and value are percent-decoded, as by the crate `cookie`, which axum-extra,
/// tower-cookies and actix-web use; then the text is the value, without the quotes around it (RFC 6265, section 4.2.1). So
/// `sid=abc`, `sid="%61bc"` and `%73id=abc` are one lock. A handler that does not decode waits for more requests than it must.
///
/// The key is `cookie:`, the cookie's name, a colon and the value, the same on all routes. All `Cookie` fields are read: HTTP/2
/// splits them. A request without the cookie gets 400 ([`NoKey`](Refused::NoKey)), unless the key is
/// [`optional`](Cookie::optional). A cookie that is empty or no UTF-8, or that is named twice, in any spelling, gets 400
/// ([`BadKey`](Refused::BadKey)): the handler might read the other one.
///
/// The value of a session's cookie is a secret. [Hash](crate::middleware::KeySource::hashed) it, so that it reaches neither the
/// store nor a log:
///
/// ```
/// # let locks = tenure::Locks::memory();
/// # let secret = "0123456789abcdef";
/// use tenure::{LockLayer, middleware::{KeySource, keys}};
///
/// let layer = LockLayer::new(&locks, keys::cookie_text("sid").hashed(secret)); // hashed:5f0c…
/// ```
pub fn cookie_text(name: impl Into<Cow<'static, str>>) -> Cookie {
    ByValue::new(InCookie(name.into()), ValueReader::utf8())
}

/// A lock per value of a cookie. Made by [`cookie_text`].
///
/// ```
/// use tenure::middleware::keys;
///
/// /// One request for each cart, and no lock for a client without one: `cart:8e03978e`.
/// fn source() -> keys::Cookie {
///     keys::cookie_text("cart").named("cart").optional()
/// }
/// # let layer = tenure::LockLayer::new(&tenure::Locks::memory(), source());
/// # drop(layer);
/// ```
pub type Cookie = ByValue<InCookie>;

/// The source of a value: a cookie.
#[derive(Debug, Clone)]
pub struct InCookie(Cow<'static, str>);

impl OptionalSource for InCookie {}

impl ValueSource for InCookie {
    fn key(&self, parts: &mut Parts, value: &ValueReader) -> impl Future<Output = LockKey> + Send {
        let InCookie(cookie) = self;
        let fields = parts.headers.get_all(COOKIE).iter();
        let pairs = fields.flat_map(|field| field.as_bytes().split(|byte| *byte == b';'));
        let values = pairs.filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (pair[..at].trim_ascii(), pair[at + 1..].trim_ascii());
            // Most frameworks decode the name, and some do not.
            let is_named = name == cookie.as_bytes() || percent_decode(name).eq(cookie.bytes());
            is_named.then(|| unquoted(percent_decode(value).into()))
        });
        ready(value.only(values, || format!("cookie:{cookie}:")))
    }
}

/// Returns the value without the quotes around it, as the crate `cookie` does it after the decoding.
fn unquoted(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let inner = value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""));
    match inner.map(<[u8]>::to_vec) {
        Some(inner) => Cow::Owned(inner),
        None => value,
    }
}

/// A lock per value of a query parameter that is parsed as a `T`. All texts that parse as the same `T` are one key,
/// as `T` is displayed. `?id=42`, `?id=042` and `?%69d=%34%32` are one `u64`.
///
/// The key is a question mark, the parameter's name, `=` and the value, the same on all routes.
/// [Name](QueryParam::named) what the value stands for. A request without the parameter gets 400
/// ([`NoKey`](Refused::NoKey)), unless the key is [`optional`](QueryParam::optional). A request with a malformed
/// value, or with the parameter twice, gets 400 ([`BadKey`](Refused::BadKey)): the handler might read the other
/// value.
///
/// The query is decoded as a form (`+` is a space), as axum's `Query` and most other libraries do.
///
/// ```
/// # let locks = tenure::Locks::memory();
/// use tenure::{LockLayer, middleware::keys};
///
/// let layer = LockLayer::new(&locks, keys::query_param::<u64>("id")); // ?id=42
/// let layer = LockLayer::new(&locks, keys::query_param::<u64>("id").named("account")); // account:42
/// ```
pub fn query_param<T: FromStr + Display>(name: impl Into<Cow<'static, str>>) -> QueryParam {
    ByValue::new(InQuery(name.into()), ValueReader::typed::<T>())
}

/// A lock per value of a query parameter, without a type: the decoded text is the value. See [`query_param`] for
/// values with a type.
///
/// **Every spelling is a lock of its own.** If the service treats `acme` and `ACME`, or `42` and `042`, as the same
/// value, a client with another spelling bypasses the lock. Use it for opaque values. An empty value gets 400
/// ([`BadKey`](Refused::BadKey)).
pub fn query_text(name: impl Into<Cow<'static, str>>) -> QueryParam {
    ByValue::new(InQuery(name.into()), ValueReader::text())
}

/// A lock per value of a query parameter. Made by [`query_param`] and [`query_text`].
///
/// ```
/// use tenure::middleware::keys;
///
/// /// The key of `?id=42`: `account:42`.
/// fn source() -> keys::QueryParam {
///     keys::query_param::<u64>("id").named("account")
/// }
/// # let layer = tenure::LockLayer::new(&tenure::Locks::memory(), source());
/// # drop(layer);
/// ```
pub type QueryParam = ByValue<InQuery>;

/// The source of a value: a query parameter.
#[derive(Debug, Clone)]
pub struct InQuery(Cow<'static, str>);

impl OptionalSource for InQuery {}

impl ValueSource for InQuery {
    fn key(&self, parts: &mut Parts, value: &ValueReader) -> impl Future<Output = LockKey> + Send {
        let InQuery(param) = self;
        let query = parts.uri.query().unwrap_or_default();
        let values = form_urlencoded::parse(query.as_bytes())
            .filter(|(name, _)| name == param)
            .map(|(_, value)| Cow::Owned(value.into_owned().into_bytes()));
        ready(value.only(values, || format!("?{param}=")))
    }
}
