//! Keys from the whole path.

use std::fmt::Write;
use std::future::{Future, ready};

use http::request::Parts;

use crate::middleware::key::KeySource;

/// A lock per path, for all methods and queries. For one parameter of the path, `{id}`, use
/// [`path_param`](crate::middleware::keys::path_param).
///
/// The key is the normalized path. `/o/%61%2fb`, `/o/a%2Fb` and `/o/a%2fb` are one key; `/o/a/b` is another. Case and
/// trailing slashes matter. Within nested routers of axum, the key is the whole path, as the client sent it.
pub fn path() -> WholePath {
    WholePath
}

/// A lock per path. Made by [`path`].
///
/// ```
/// use tenure::middleware::keys;
///
/// /// One request for each path: `/accounts/42/statement`.
/// fn source() -> keys::WholePath {
///     keys::path()
/// }
/// # let layer = tenure::LockLayer::new(&tenure::Locks::memory(), source());
/// # drop(layer);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct WholePath;

impl KeySource for WholePath {
    type Key = String;

    fn key(&self, parts: &mut Parts) -> impl Future<Output = String> + Send {
        ready(normalized_path(original_path(parts)))
    }
}

/// Returns the path as the client sent it: a nested router of axum removes the beginning.
pub(super) fn original_path(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(uri) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return uri.path();
    }
    parts.uri.path()
}

/// Returns the path with one spelling for each byte: unchanged if RFC 3986 permits it in a segment, otherwise `%` and
/// capital digits. An encoded slash stays encoded, because it does not separate segments. The result is ASCII without
/// spaces and braces.
pub(super) fn normalized_path(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut spelled = String::with_capacity(path.len());
    let mut at = 0;
    while at < bytes.len() {
        let encoded = percent_decoded(&bytes[at..]);
        let byte = encoded.unwrap_or(bytes[at]);
        at += if encoded.is_some() { 3 } else { 1 };
        match byte {
            b'/' if encoded.is_none() => spelled.push('/'),
            b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b','
            | b';' | b'=' | b':' | b'@' => spelled.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => spelled.push(char::from(byte)),
            byte => write!(spelled, "%{byte:02X}").expect("writing to a string cannot fail"),
        }
    }
    spelled
}

/// Returns the byte that a leading `%` and two digits stand for.
fn percent_decoded(bytes: &[u8]) -> Option<u8> {
    let &[b'%', high, low, ..] = bytes else {
        return None;
    };
    let digit = |digit: u8| char::from(digit).to_digit(16);
    Some((digit(high)? * 16 + digit(low)?) as u8)
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
            assert_eq!(normalized_path(sent), spelled, "{sent}");
            assert_eq!(
                normalized_path(spelled),
                spelled,
                "{spelled} is already normalized"
            );
        }
    }
}
