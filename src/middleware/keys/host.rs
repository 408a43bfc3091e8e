//! Keys from the host of a request.

use std::borrow::Cow;
use std::future::{Future, ready};
use std::net::Ipv6Addr;

use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;

use crate::middleware::key::LockKey;
use crate::middleware::keys::value::{ByValue, OptionalSource, ValueReader, ValueSource};
use crate::middleware::refusal::Refused;

/// A lock per host: `host:example.com`, in lower case, without the port and without a final dot. All spellings of an
/// IPv6 address are one key.
///
/// The host is the `:authority` of HTTP/2, the authority of a request line in absolute form, or the header `Host`, in
/// this order. A request without a host gets 400 ([`NoKey`](Refused::NoKey)), unless the key is
/// [`optional`](Host::optional). A request with two different hosts, in the request line and a header, or with two
/// `Host` headers, gets 400 ([`BadKey`](Refused::BadKey)): the handler might read the other host.
///
/// The client chooses the host. A proxy before the service should admit only known hosts. `Forwarded` and
/// `X-Forwarded-Host` are ignored.
///
/// ```
/// # let locks = tenure::Locks::memory();
/// use tenure::{LockLayer, middleware::keys};
///
/// let layer = LockLayer::new(&locks, keys::host()); // host:example.com
/// ```
pub fn host() -> Host {
    ByValue::new(InHost, ValueReader::text())
}

/// A lock per host. Made by [`host`].
///
/// ```
/// use tenure::middleware::keys;
///
/// /// One request for each host: `shop:example.com`.
/// fn source() -> keys::Host {
///     keys::host().named("shop")
/// }
/// # let layer = tenure::LockLayer::new(&tenure::Locks::memory(), source());
/// # drop(layer);
/// ```
pub type Host = ByValue<InHost>;

/// The source of a value: the request's host.
#[derive(Debug, Clone)]
pub struct InHost;

impl OptionalSource for InHost {}

impl ValueSource for InHost {
    fn key(&self, parts: &mut Parts, value: &ValueReader) -> impl Future<Output = LockKey> + Send {
        ready(match single_host(parts) {
            Some(host) => {
                let hosts = host.into_iter().map(|host| Cow::Owned(host.into_bytes()));
                value.only(hosts, || "host:".to_owned())
            }
            None => LockKey::refuse(Refused::BadKey),
        })
    }
}

/// Returns the host of the request, or `Some(None)` if the request has none. Returns `None` if the host is malformed
/// or ambiguous.
fn single_host(parts: &Parts) -> Option<Option<String>> {
    let mut headers = parts.headers.get_all(HOST).iter();
    let header = headers.next().map(|value| normalized_host(value.as_bytes()));
    let line = parts
        .uri
        .authority()
        .map(|line| normalized_host(line.as_str().as_bytes()));
    match (line, header, headers.next()) {
        (None, None, _) => Some(None),
        (Some(host), None, _) | (None, Some(host), None) => host.map(Some),
        (Some(Some(line)), Some(Some(header)), None) if line == header => Some(Some(line)),
        _ => None,
    }
}

fn normalized_host(authority: &[u8]) -> Option<String> {
    let authority = Authority::try_from(authority.trim_ascii()).ok()?;
    let host = authority.host();
    // `host` skips user information, which is not a part of the host. So its presence is an error.
    let port = authority.as_str().strip_prefix(host)?;
    if !port.is_empty() && !port.strip_prefix(':')?.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if let Some(address) = host.strip_prefix('[') {
        let address: Ipv6Addr = address.strip_suffix(']')?.parse().ok()?;
        return Some(format!("[{address}]"));
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_spelling() {
        for (spelling, host) in [
            ("example.com", Some("example.com")),
            ("Example.COM", Some("example.com")),
            ("example.com.", Some("example.com")),
            ("example.com:80", Some("example.com")),
            ("EXAMPLE.com.:8080", Some("example.com")),
            ("example.com:", Some("example.com")),
            (" example.com ", Some("example.com")),
            ("127.0.0.1:80", Some("127.0.0.1")),
            ("[::1]", Some("[::1]")),
            ("[0:0:0:0:0:0:0:1]:80", Some("[::1]")),
            ("[2001:DB8::0]", Some("[2001:db8::]")),
            ("example.com..", Some("example.com.")),
            ("xn--mnchen-3ya.de", Some("xn--mnchen-3ya.de")),
            ("", None),
            (".", None),
            (":80", None),
            ("example.com:http", None),
            ("me@example.com", None),
            ("example.com@example.com", None),
            ("a/b", None),
            ("a b", None),
            ("[::1", None),
            ("[::x]", None),
            ("::1", None),
            ("a%62", None),
            ("\u{fc}.de", None),
        ] {
            assert_eq!(
                normalized_host(spelling.as_bytes()).as_deref(),
                host,
                "{spelling}"
            );
        }
    }
}
