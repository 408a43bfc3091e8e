//! Keys from the header `Idempotency-Key`.

use std::fmt::Debug;
use std::future::{Future, ready};

use http::header::HeaderName;
use http::request::Parts;

use crate::middleware::key::{KeySource, LockKey};
use crate::middleware::keys::path::{normalized_path, original_path};
use crate::middleware::keys::value::single_key;
use crate::middleware::refusal::Refused;

/// A lock per `Idempotency-Key`, method and path: a client's retry waits until its first attempt has ended.
///
/// The header is that of [draft-ietf-httpapi-idempotency-key-header], a string of structured fields. The same text
/// without quotes, which many clients send, is accepted too: `"8e03978e"` and `8e03978e` are one key. A request
/// without the header gets 400 ([`NoKey`](Refused::NoKey)), as the draft asks, unless the key is
/// [`optional`](IdempotencyKey::optional). A header that is malformed, empty or present twice gets 400
/// ([`BadKey`](Refused::BadKey)). Put the layer on routes whose methods need such a key, or make it optional: a `GET`
/// needs the header as well.
///
/// The lock separates attempts; it does not remember them. The handler must store the result of the first attempt,
/// and look it up before it does any work. With [`skip`](crate::LockLayer::skip), a retry that comes too early gets
/// the 409 of the draft ([`InFlight`](Refused::InFlight)). An attempt runs to its end even if its client leaves, so
/// that no retry runs beside it ([`run_to_completion`](crate::LockLayer::run_to_completion)).
///
/// Clients are not distinguished. If two clients choose the same key for the same path, one waits for the other. With
/// [`per`](KeySource::per), each user or tenant has its own keys.
///
/// [draft-ietf-httpapi-idempotency-key-header]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
pub fn idempotency_key() -> IdempotencyKey {
    IdempotencyKey {
        header: HeaderName::from_static("idempotency-key"),
        optional: false,
    }
}

/// A lock per `Idempotency-Key`, method and path. Made by [`idempotency_key`].
///
/// ```
/// use tenure::middleware::keys;
///
/// /// The source for clients that repeat a request with its id: `POST /payments 8e03978e-40d5-43dd`.
/// fn source() -> keys::IdempotencyKey {
///     keys::idempotency_key().header("x-request-id").optional()
/// }
/// # let layer = tenure::LockLayer::new(&tenure::Locks::memory(), source());
/// # drop(layer);
/// ```
#[derive(Debug, Clone)]
pub struct IdempotencyKey {
    header: HeaderName,
    optional: bool,
}

impl IdempotencyKey {
    /// Reads another header in place of `Idempotency-Key`, such as `X-Request-Id` of clients that repeat it in a retry. Its name
    /// is no part of the key.
    ///
    /// # Panics
    /// Panics if `name` is not a valid header name.
    pub fn header(mut self, name: impl TryInto<HeaderName, Error: Debug>) -> Self {
        self.header = name.try_into().expect("the name is a valid header name");
        self
    }

    /// Requests without the header pass without a lock.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }
}

impl KeySource for IdempotencyKey {
    type Key = LockKey;

    const RETRIES: bool = true;

    fn key(&self, parts: &mut Parts) -> impl Future<Output = LockKey> + Send {
        let values = parts.headers.get_all(&self.header).iter();
        ready(single_key(values, self.optional, |value| {
            let Some(key) = idempotency_text(value.as_bytes()) else {
                return LockKey::refuse(Refused::BadKey);
            };
            // Neither a method nor a normalized path contains a space.
            let path = normalized_path(original_path(parts));
            LockKey::lock(format!("{} {path} {key}", parts.method))
        }))
    }
}

/// Returns the text of an `Idempotency-Key`: a string of structured fields (RFC 9651, section 3.3.3), whose
/// parameters are ignored, or a bare text. Returns `None` if the value is malformed or empty.
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
