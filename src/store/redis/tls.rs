//! What TLS connections need, and advice for connections that do not open.

use std::io;
use std::panic::resume_unwind;

use redis::{ConnectionAddr, ErrorKind, RedisError, RedisResult};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

/// Installs a TLS provider before a connection is opened, if the process has none.
///
/// rustls has one provider per process. redis-rs chooses none: if the enabled features leave the choice open, the first
/// connection panics. A provider that the process has installed stays.
pub(super) fn install_provider(address: &ConnectionAddr) {
    #[cfg(feature = "rustls")]
    if matches!(address, ConnectionAddr::TcpTls { .. })
        && rustls::crypto::CryptoProvider::get_default().is_none()
    {
        // Another thread may have installed a provider meanwhile; that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    #[cfg(not(feature = "rustls"))]
    let _ = address;
}

/// Opens a connection without blocking the current thread, which may be the thread that renews leases.
///
/// Before each TLS connection redis-rs reads and parses the system's certificates, without an await. A caller cannot
/// supply them. So a TLS connection is opened on another thread, and still belongs to the current runtime. Dropping the
/// future cancels the attempt.
pub(super) async fn open<T, F>(address: &ConnectionAddr, opening: F) -> RedisResult<T>
where
    F: Future<Output = RedisResult<T>> + Send + 'static,
    T: Send + 'static,
{
    if !matches!(address, ConnectionAddr::TcpTls { .. }) {
        return opening.await;
    }
    let (runtime, cancelled) = (Handle::current(), CancellationToken::new());
    let _cancel_on_drop = cancelled.clone().drop_guard();
    let opened = spawn_blocking(move || runtime.block_on(cancelled.run_until_cancelled(opening)));
    match opened.await {
        Ok(opened) => opened.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::Interrupted).into())),
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        Err(error) => Err(io::Error::other(error).into()),
    }
}

/// Returns advice for a peer that sends unexpected data, or, without an error, sends nothing.
pub(super) fn hint(address: &ConnectionAddr, error: Option<&RedisError>) -> &'static str {
    // A server without TLS waits for the end of a line, which a TLS client never sends.
    let is_silent = error.is_none();
    let hangs_up = error.is_some_and(|error| error.is_connection_dropped() && !error.is_connection_refusal());
    let is_gibberish = error.is_some_and(|error| {
        error.kind() == ErrorKind::Parse || error.to_string().contains("corrupt message")
    });
    match address {
        ConnectionAddr::TcpTls { .. } if is_silent || hangs_up || is_gibberish => {
            " (does the server speak TLS on this port?)"
        }
        ConnectionAddr::Tcp(..) if hangs_up || is_gibberish => " (if this port speaks TLS, use `rediss://`)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_hint_is_given_where_it_may_help() {
        let plain = ConnectionAddr::Tcp("host".into(), 6379);
        let tls = ConnectionAddr::TcpTls {
            host: "host".into(),
            port: 6379,
            insecure: false,
            tls_params: None,
        };
        let error = |kind, text: &str| RedisError::from(io::Error::new(kind, text.to_owned()));
        let hung_up = error(io::ErrorKind::ConnectionReset, "reset by peer");
        let gibberish = error(
            io::ErrorKind::InvalidData,
            "received corrupt message of type InvalidContentType",
        );
        for error in [&hung_up, &gibberish] {
            assert!(hint(&plain, Some(error)).contains("rediss://"), "{error}");
            assert!(hint(&tls, Some(error)).contains("speak TLS"), "{error}");
        }
        assert!(hint(&tls, None).contains("speak TLS"));
        // A network that drops every packet looks the same, and is more common.
        assert_eq!(hint(&plain, None), "");
        let refused = error(io::ErrorKind::ConnectionRefused, "refused");
        let unknown = error(io::ErrorKind::Other, "failed to lookup address");
        let untrusted = error(
            io::ErrorKind::InvalidData,
            "invalid peer certificate: UnknownIssuer",
        );
        for error in [&refused, &unknown, &untrusted] {
            assert_eq!(hint(&plain, Some(error)), "", "{error}");
            assert_eq!(hint(&tls, Some(error)), "", "{error}");
        }
    }
}
