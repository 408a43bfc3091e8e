//! Ready-made keys, to be given to [`LockLayer::new`](crate::LockLayer::new).
//!
//! ```
//! use tenure::{LockLayer, Locks, middleware::keys};
//!
//! # let locks = Locks::memory();
//! # #[cfg(feature = "axum")] {
//! let per_account = LockLayer::new(&locks, keys::path_param("id").named("account")); // account:42
//! # drop(per_account); }
//! let per_tenant = LockLayer::new(&locks, keys::header("x-tenant")); // x-tenant:acme
//! let retries = LockLayer::new(&locks, keys::idempotency_key()); // POST /payments 8e03978e-40d5-43dd
//! let per_path = LockLayer::new(&locks, keys::path()); // /accounts/42/statement
//! let alone = LockLayer::new(&locks, keys::fixed("nightly")); // nightly
//! ```
//!
//! | source | the key | when it is missing | when it is bad |
//! |---|---|---|---|
#![cfg_attr(
    feature = "axum",
    doc = "| [`path_param(\"id\")`](path_param) | `/accounts/<id>/withdraw id=42` | 500 and an event: the route has none | 400 |",
    doc = "| …[`.named(\"account\")`](PathParam::named) | `account:42` | 500 and an event | 400 |"
)]
//! | [`header("x-tenant")`](header) | `x-tenant:acme` | 400; with [`optional`](Header::optional) no lock | 400 |
//! | …[`.named("tenant")`](Header::named) | `tenant:acme` | likewise | 400 |
//! | [`idempotency_key()`](idempotency_key) | `POST /payments 8e03978e-40d5-43dd` | 400; with [`optional`](IdempotencyKey::optional) no lock | 400 |
//! | [`path()`](path) | `/accounts/42` | | |
//! | [`fixed("nightly")`](fixed) | `nightly` | | |
//!
//! A request that lacks its key is refused, as one without a lock would run beside the others: whoever leaves the header
//! out would be past the lock.
//!
//! No two rows meet by accident, whatever clients send: paths begin with `/`, and only behind a route's template or a
//! method stands a space. What you [name](Header::named) yourself or [fix](fixed) is the very key of
//! [`Locks::mutex`](crate::Locks::mutex), to share a lock with other routes and with jobs. The space is that of the
//! store and the [prefix](crate::Builder::prefix): two services on one store whose routes look alike need a prefix each.
//!
//! For several parameters at once, and all else, see [`LockLayer::by`](crate::LockLayer::by)
#![cfg_attr(
    feature = "axum",
    doc = "and [`LockLayer::from_extractors`](crate::LockLayer::from_extractors)."
)]
#![cfg_attr(not(feature = "axum"), doc = "and the feature `axum`.")]

use std::borrow::Cow;
use std::fmt::{Debug, Write};
use std::future::{Future, ready};

use http::header::{HeaderName, HeaderValue};
use http::request::Parts;

use crate::key::Key;
use crate::middleware::key::{KeySource, LockKey};
use crate::middleware::refusal::Refused;

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

/// A lock per path, whatever the method and the query.
///
/// The key is the path in one of its spellings: `/o/%61%2fb`, `/o/a%2Fb` and `/o/a%2fb` are one key, `/o/a/b` is
/// another. Case and trailing slashes make a difference. Within nested routers of axum it is the whole path, as the
/// client sent it.
pub fn path() -> WholePath {
    WholePath
}

/// A lock per path. Made by [`path`].
#[derive(Debug, Clone, Copy)]
pub struct WholePath;

impl KeySource for WholePath {
    type Key = String;

    fn key(&self, parts: &mut Parts) -> impl Future<Output = String> + Send {
        ready(one_spelling(sent_path(parts)))
    }
}

/// A lock per value of a header.
///
/// The key is the header's name, a colon and the value's bytes as they are, on all routes alike: routes that look at the
/// same header wait for each other. A request without it is answered with 400 ([`NoKey`](Refused::NoKey)) unless it is
/// [`optional`](Header::optional). One with an empty value, or with the header twice, gets 400
/// ([`BadKey`](Refused::BadKey)): the handler might read the other one.
///
/// ```
/// # let locks = tenure::Locks::memory();
/// use http::header::HOST;
/// use tenure::{LockLayer, middleware::keys};
///
/// let per_host = LockLayer::new(&locks, keys::header(HOST)); // host:example.com
/// let per_account = LockLayer::new(&locks, keys::header("x-account").named("account").optional()); // account:42
/// ```
///
/// # Panics
/// If no header can have that name.
pub fn header<N>(name: N) -> Header
where
    N: TryInto<HeaderName>,
    N::Error: Debug,
{
    let header = name.try_into().expect("it is the name of a header");
    Header {
        namespace: header.as_str().to_owned().into(),
        header,
        optional: false,
    }
}

/// A lock per value of a header. Made by [`header`].
#[derive(Debug, Clone)]
pub struct Header {
    header: HeaderName,
    namespace: Cow<'static, str>,
    optional: bool,
}

impl Header {
    /// The key is this name, a colon and the value: the lock is shared with whoever else makes the same key.
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.namespace = name.into();
        self
    }

    /// Requests without the header pass without a lock.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }
}

impl KeySource for Header {
    type Key = LockKey;

    fn key(&self, parts: &mut Parts) -> impl Future<Output = LockKey> + Send {
        ready(the_only(&self.header, parts, self.optional, |value| {
            let value = value.as_bytes();
            (!value.is_empty()).then(|| named(&self.namespace, value))
        }))
    }
}

/// A lock per `Idempotency-Key`, method and path: a client's retry waits until its first attempt is done.
///
/// The header is that of [draft-ietf-httpapi-idempotency-key-header], a string of structured fields; what many clients
/// send instead is taken too, the same without quotes: `"8e03978e"` and `8e03978e` are one key. A request without it is
/// answered with 400 ([`NoKey`](Refused::NoKey)), as the draft asks, unless it is
/// [`optional`](IdempotencyKey::optional). One that cannot be read, is empty or is there twice gets 400
/// ([`BadKey`](Refused::BadKey)). Put the layer on the routes whose methods need such a key, or make it optional: a `GET`
/// is asked for one as well.
///
/// The lock keeps attempts apart; it does not remember them. What the first one answered is for the handler to write
/// down, and to look up before it does anything. With [`skip`](crate::LockLayer::skip) and
/// [`on_refusal`](crate::LockLayer::on_refusal) a retry that comes too early gets the 409 of the draft instead.
///
/// Clients are not told apart. Two that choose the same key for the same path wait for each other, no more.
///
/// [draft-ietf-httpapi-idempotency-key-header]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
pub fn idempotency_key() -> IdempotencyKey {
    IdempotencyKey { optional: false }
}

/// A lock per `Idempotency-Key`, method and path. Made by [`idempotency_key`].
#[derive(Debug, Clone, Copy)]
pub struct IdempotencyKey {
    optional: bool,
}

impl IdempotencyKey {
    /// Requests without the header pass without a lock.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }
}

impl KeySource for IdempotencyKey {
    type Key = LockKey;

    fn key(&self, parts: &mut Parts) -> impl Future<Output = LockKey> + Send {
        const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
        ready(the_only(&IDEMPOTENCY_KEY, parts, self.optional, |value| {
            let key = idempotency_text(value.as_bytes())?;
            // Neither a method nor a path that is spelled so holds a space.
            let path = one_spelling(sent_path(parts));
            Some(format!("{} {path} {key}", parts.method).into())
        }))
    }
}

/// A lock per value of a path parameter: `id` of `/accounts/{id}/withdraw`.
///
/// The key is the route as it was declared, the parameter's name and its decoded value, so that an account 42 and an
/// order 42 are two locks, and so are the same account's `withdraw` and `deposit`. To make several routes wait for each
/// other, [name](PathParam::named) what the parameter stands for. Other parameters of the route play no part.
///
/// A route that has no such parameter is a fault of the program: its requests get 500
/// ([`BadOptions`](Refused::BadOptions)) and an event names the path. It is the same around a whole `Router` and on paths
/// that lead nowhere, where no route is known: put the layer on routes with `route_layer`. A value that is no UTF-8 once
/// it is decoded gets 400 ([`BadKey`](Refused::BadKey)).
///
/// ```
/// use axum::{Router, routing::post};
/// use tenure::{LockLayer, Locks, middleware::keys};
///
/// # async fn withdraw() {}
/// # async fn deposit() {}
/// # let locks = Locks::memory();
/// let app: Router = Router::new()
///     .route("/accounts/{id}/withdraw", post(withdraw))
///     .route("/accounts/{id}/deposit", post(deposit))
///     // One lock per account for both, and for `locks.mutex("account:42")`.
///     .route_layer(LockLayer::new(&locks, keys::path_param("id").named("account")));
/// ```
#[cfg(feature = "axum")]
pub fn path_param(name: impl Into<Cow<'static, str>>) -> PathParam {
    PathParam {
        param: name.into(),
        namespace: None,
    }
}

/// A lock per value of a path parameter. Made by [`path_param`].
#[cfg(feature = "axum")]
#[derive(Debug, Clone)]
pub struct PathParam {
    param: Cow<'static, str>,
    namespace: Option<Cow<'static, str>>,
}

#[cfg(feature = "axum")]
impl PathParam {
    /// The key is this name, a colon and the value, on all routes alike: the lock is shared with whoever else makes the
    /// same key.
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.namespace = Some(name.into());
        self
    }

    fn of_route(&self, route: &str, value: &str) -> Key {
        // Redis Cluster would take `{id}` for a tag, and put all locks of the route on one node. A template with `<` or a
        // space in it is never matched.
        let route = route.replace('{', "<").replace('}', ">");
        format!("{route} {}={value}", self.param).into()
    }
}

#[cfg(feature = "axum")]
impl KeySource for PathParam {
    type Key = LockKey;

    async fn key(&self, parts: &mut Parts) -> LockKey {
        use axum::extract::rejection::RawPathParamsRejection;
        use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};

        let params = RawPathParams::from_request_parts(parts, &()).await;
        if let Err(RawPathParamsRejection::InvalidUtf8InPathParam(_)) = params {
            return LockKey::refuse(Refused::BadKey);
        }
        let route = parts.extensions.get::<MatchedPath>();
        let key = params.ok().and_then(|params| {
            let (_, value) = params.iter().find(|(name, _)| *name == self.param)?;
            match &self.namespace {
                Some(name) => Some(named(name, value.as_bytes())),
                None => Some(self.of_route(route?.as_str(), value)),
            }
        });
        key.map_or_else(
            || {
                crate::observe::parameter_missing(&self.param, parts.uri.path());
                LockKey::refuse(Refused::BadOptions)
            },
            LockKey::lock,
        )
    }
}

fn named(name: &str, value: &[u8]) -> Key {
    [name.as_bytes(), b":", value].concat().into()
}

/// The key of the one header with this name, where `read` finds one in it.
fn the_only(
    name: &HeaderName,
    parts: &Parts,
    optional: bool,
    read: impl FnOnce(&HeaderValue) -> Option<Key>,
) -> LockKey {
    let mut values = parts.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) if optional => LockKey::nothing(),
        (None, _) => LockKey::refuse(Refused::NoKey),
        (Some(value), None) => read(value).map_or_else(|| LockKey::refuse(Refused::BadKey), LockKey::lock),
        (Some(_), Some(_)) => LockKey::refuse(Refused::BadKey),
    }
}

/// The path before a nest of axum cut the beginning off.
fn sent_path(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(uri) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return uri.path();
    }
    parts.uri.path()
}

/// The path with each byte spelled in one way: as it is where RFC 3986 lets it stand in a segment, else as `%` and
/// capitals. An encoded slash stays encoded, as it divides no segments. The result is ASCII without spaces and braces.
fn one_spelling(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut spelled = String::with_capacity(path.len());
    let mut at = 0;
    while at < bytes.len() {
        let encoded = decoded(&bytes[at..]);
        let byte = encoded.unwrap_or(bytes[at]);
        at += if encoded.is_some() { 3 } else { 1 };
        match byte {
            b'/' if encoded.is_none() => spelled.push('/'),
            b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b','
            | b';' | b'=' | b':' | b'@' => spelled.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => spelled.push(char::from(byte)),
            byte => write!(spelled, "%{byte:02X}").expect("a string takes all"),
        }
    }
    spelled
}

/// The byte that `%` and two digits at the beginning stand for.
fn decoded(bytes: &[u8]) -> Option<u8> {
    let &[b'%', high, low, ..] = bytes else {
        return None;
    };
    let digit = |digit: u8| char::from(digit).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
}

/// The text of an `Idempotency-Key`: a string of structured fields (RFC 9651, 3.3.3), whose parameters mean nothing to
/// us, or bare. `None` if it is neither, or empty.
fn idempotency_text(value: &[u8]) -> Option<String> {
    let value = value.trim_ascii();
    let Some(quoted) = value.strip_prefix(b"\"") else {
        let bare = |byte: &u8| byte.is_ascii_graphic() && !br#"",;\"#.contains(byte);
        let fine = !value.is_empty() && value.iter().all(bare);
        return fine.then(|| value.iter().copied().map(char::from).collect());
    };
    let (mut text, mut rest) = (String::new(), quoted.iter());
    loop {
        match *rest.next()? {
            b'"' => break,
            b'\\' => match *rest.next()? {
                byte @ (b'"' | b'\\') => text.push(char::from(byte)),
                _ => return None,
            },
            byte @ b' '..=b'~' => text.push(char::from(byte)),
            _ => return None,
        }
    }
    let ends = matches!(rest.as_slice(), [] | [b';', ..]);
    (ends && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_spelling() {
        for (sent, spelled) in [
            ("/", "/"),
            ("*", "*"),
            ("", ""),
            ("/o/a%2Fb", "/o/a%2Fb"),
            ("/o/a%2fb", "/o/a%2Fb"),
            ("/o/%61%2fb", "/o/a%2Fb"),
            ("/o/a/b", "/o/a/b"),
            ("/o/a!b", "/o/a!b"),
            ("/o/a%21b", "/o/a!b"),
            ("/o/{x}", "/o/%7Bx%7D"),
            ("/o/%7bx%7D", "/o/%7Bx%7D"),
            ("/o/%20", "/o/%20"),
            ("/o/%", "/o/%25"),
            ("/o/%25", "/o/%25"),
            ("/o/%2", "/o/%252"),
            ("/o/%zz", "/o/%25zz"),
            ("/o/%+f", "/o/%25+f"),
            ("/o/%2561", "/o/%2561"),
            ("/o/ü", "/o/%C3%BC"),
            ("/o/%c3%bc", "/o/%C3%BC"),
            ("/o/%ff", "/o/%FF"),
            ("/O/A/", "/O/A/"),
        ] {
            assert_eq!(one_spelling(sent), spelled, "{sent}");
            assert_eq!(one_spelling(spelled), spelled, "{spelled} is one already");
        }
    }

    #[test]
    fn idempotency_keys_are_quoted_or_bare() {
        for (value, text) in [
            (r#""8e03978e-40d5""#, Some("8e03978e-40d5")),
            ("8e03978e-40d5", Some("8e03978e-40d5")),
            ("  \"a\"\t", Some("a")),
            (r#""a b, c; d""#, Some("a b, c; d")),
            (r#""say \"no\" \\""#, Some(r#"say "no" \"#)),
            (r#""a";v=1"#, Some("a")),
            ("YWJj+/=", Some("YWJj+/=")),
            ("", None),
            (r#""""#, None),
            (r#"""#, None),
            (r#""a"#, None),
            (r#""a\"#, None),
            (r#""a\""#, None),
            (r#""\a""#, None),
            (r#""a" x"#, None),
            (r#""a", "b""#, None),
            (r#""a"b"#, None),
            (r#"a"b"#, None),
            ("a, b", None),
            ("a,b", None),
            ("a;v=1", None),
            ("a b", None),
            (r"a\b", None),
            ("\"a\tb\"", None),
            ("ü", None),
            ("\"ü\"", None),
        ] {
            assert_eq!(idempotency_text(value.as_bytes()).as_deref(), text, "{value}");
        }
    }
}
