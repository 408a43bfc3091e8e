//! What TLS needs, and what it may have to do with a connection that does not open.

use std::io;
use std::panic::resume_unwind;

use redis::{ConnectionAddr, ErrorKind, RedisError, RedisResult};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

/// Sees to it that there are ciphers before a connection is opened.
///
/// rustls has one provider of them per process. redis-rs chooses none, and where features leave the choice open the
/// first connect panics. The process's own is kept.
pub(super) fn provide(address: &ConnectionAddr) {
    #[cfg(feature = "rustls")]
    if matches!(address, ConnectionAddr::TcpTls { .. })
        && rustls::crypto::CryptoProvider::get_default().is_none()
    {
        // Somebody may have been faster, and that one is kept.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    #[cfg(not(feature = "rustls"))]
    let _ = address;
}

/// Opens a connection without holding up the thread that this is called on, which may be the one that renews.
///
/// Before each TLS connection redis-rs reads the system's certificates from files and parses them, without an await.
/// They cannot be given to it, so such a connection is opened on another thread. It belongs to this runtime all the
/// same. Dropping the future gives the attempt up.
pub(super) async fn open<T, F>(address: &ConnectionAddr, opening: F) -> RedisResult<T>
where
    F: Future<Output = RedisResult<T>> + Send + 'static,
    T: Send + 'static,
{
    if !matches!(address, ConnectionAddr::TcpTls { .. }) {
        return opening.await;
    }
    let (runtime, given_up) = (Handle::current(), CancellationToken::new());
    let _give_up = given_up.clone().drop_guard();
    let opened = spawn_blocking(move || runtime.block_on(given_up.run_until_cancelled(opening)));
    match opened.await {
        Ok(opened) => opened.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::Interrupted).into())),
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        Err(error) => Err(io::Error::other(error).into()),
    }
}

/// What to look at when somebody is there and does not understand us, or, without an error, says nothing.
pub(super) fn hint(address: &ConnectionAddr, error: Option<&RedisError>) -> &'static str {
    // A server that expects plain words waits for the end of a line, which TLS never sends.
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
        for told in [&hung_up, &gibberish] {
            assert!(hint(&plain, Some(told)).contains("rediss://"), "{told}");
            assert!(hint(&tls, Some(told)).contains("speak TLS"), "{told}");
        }
        assert!(hint(&tls, None).contains("speak TLS"));
        // A network that loses everything looks the same, and is more common.
        assert_eq!(hint(&plain, None), "");
        let refused = error(io::ErrorKind::ConnectionRefused, "refused");
        let unknown = error(io::ErrorKind::Other, "failed to lookup address");
        let stranger = error(
            io::ErrorKind::InvalidData,
            "invalid peer certificate: UnknownIssuer",
        );
        for clear in [&refused, &unknown, &stranger] {
            assert_eq!(hint(&plain, Some(clear)), "", "{clear}");
            assert_eq!(hint(&tls, Some(clear)), "", "{clear}");
        }
    }
}
