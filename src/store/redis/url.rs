//! URLs of servers: the checks that redis-rs does not make, and errors without passwords.

use redis::{Client, ConnectionAddr, ConnectionInfo};

use crate::error::OptionsError;

/// The port of a Sentinel whose URL has none.
const SENTINEL_PORT: u16 = 26379;

/// Returns a client for the server at `url`.
///
/// # Errors
///
/// Returns an error if the URL cannot be parsed, asks for TLS without the feature `rustls`, or turns off the
/// verification of certificates. The error text never contains the password.
pub(super) fn client(url: &str) -> Result<Client, OptionsError> {
    let refused = |why: &str| OptionsError(format!("the Redis URL `{}` {why}", redacted(url)));
    let fragment = url.rsplit_once('#').map(|(_, fragment)| fragment);
    if fragment.is_some_and(|fragment| fragment.eq_ignore_ascii_case("insecure")) {
        return Err(refused(
            "turns off the verification of certificates: remove `#insecure`",
        ));
    }
    if let Some(instead) = unsupported(url) {
        return Err(refused(&format!("cannot be used: {instead}")));
    }
    let client = Client::open(url).map_err(|error| {
        let is_tls = url.starts_with("rediss:") || url.starts_with("valkeys:");
        if is_tls && !cfg!(feature = "rustls") {
            return refused("asks for TLS: enable tenure's feature `rustls`");
        }
        // The detail, at the end of the text, may be a part of the URL.
        let (text, detail) = (error.to_string(), error.detail().unwrap_or_default());
        let text = text.strip_suffix(detail).unwrap_or_default();
        refused(&format!("cannot be used: {}", text.trim_end_matches(": ")))
    })?;
    let settings = client.get_connection_info().redis_settings();
    if settings.username().is_some() && settings.password().is_none_or(str::is_empty) {
        return Err(refused(
            "names a user without a password, and neither would be sent: write both, or the password alone for the user `default`",
        ));
    }
    Ok(client)
}

/// Returns a client for the Sentinel at `url`. Without a port the URL means port 26379.
///
/// # Errors
///
/// Returns an error as [`client`] does, or if the URL names a database.
pub(super) fn sentinel(url: &str) -> Result<Client, OptionsError> {
    let client = client(url)?;
    let info = client.get_connection_info();
    let refused = |why: &str| OptionsError(format!("the URL `{}` of a Sentinel {why}", redacted(url)));
    if info.redis_settings().db() != 0 {
        return Err(refused("names a database: a Sentinel has none, remove it"));
    }
    let addr = match info.addr().clone() {
        ConnectionAddr::Tcp(host, _) if !has_port(url) => ConnectionAddr::Tcp(host, SENTINEL_PORT),
        ConnectionAddr::TcpTls {
            host,
            insecure,
            tls_params,
            ..
        } if !has_port(url) => ConnectionAddr::TcpTls {
            host,
            port: SENTINEL_PORT,
            insecure,
            tls_params,
        },
        addr => addr,
    };
    Client::open(info.clone().set_addr(addr)).map_err(|error| refused(&format!("cannot be used: {error}")))
}

/// Returns a client with these settings.
pub(super) fn open(info: ConnectionInfo) -> Result<Client, OptionsError> {
    Client::open(info).map_err(|error| OptionsError(format!("the Redis client cannot be used: {error}")))
}

/// Returns the client with these certificates.
#[cfg(feature = "rustls")]
pub(super) fn with_certificates(
    client: Client,
    certificates: &redis::TlsCertificates,
) -> Result<Client, OptionsError> {
    let info = client.get_connection_info().clone();
    if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        return Err(OptionsError(
            "`Builder::tls` has no effect without TLS: write `rediss://`, or `rediss+…://` for several servers".to_owned(),
        ));
    }
    let client = Client::build_with_tls(info, certificates.clone());
    client.map_err(|error| {
        OptionsError(format!(
            "the certificates of `Builder::tls` cannot be used: {error}"
        ))
    })
}

/// Returns the client with the authority and the certificate of `like`, if both use TLS: a URL cannot name them.
pub(super) fn with_certificates_of(like: &Client, client: &Client) -> Result<Client, OptionsError> {
    let info = client.get_connection_info();
    let (known, mut addr) = (like.get_connection_info().addr(), info.addr().clone());
    if let (
        ConnectionAddr::TcpTls {
            tls_params: of_like, ..
        },
        ConnectionAddr::TcpTls { tls_params, .. },
    ) = (known, &mut addr)
    {
        *tls_params = tls_params.take().or_else(|| of_like.clone());
    }
    open(info.clone().set_addr(addr))
}

/// Returns a client for the server of a cluster at `url`, which may ask for nothing but what the connections have: they have the
/// settings of `like`.
///
/// # Errors
///
/// Returns an error as [`cluster`] does, if only one of both uses TLS, or if the URL names another user or password.
pub(super) fn seed(url: &str, like: &Client) -> Result<Client, OptionsError> {
    let client = cluster(url)?;
    let (info, known) = (client.get_connection_info(), like.get_connection_info());
    let is_tls = |addr: &ConnectionAddr| matches!(addr, ConnectionAddr::TcpTls { .. });
    let (settings, known_settings) = (info.redis_settings(), known.redis_settings());
    let differs = |of_url: Option<&str>, of_like: Option<&str>| of_url.is_some() && of_url != of_like;
    let why = if is_tls(info.addr()) != is_tls(known.addr()) {
        "differ in TLS"
    } else if differs(settings.username(), known_settings.username())
        || differs(settings.password(), known_settings.password())
    {
        "name different users or passwords"
    } else {
        return Ok(client);
    };
    Err(OptionsError(format!(
        "the Redis URL `{}` and the client for the connections {why}: all connections have the settings of that client, so make \
         them equal",
        redacted(url)
    )))
}

/// Returns a client for the server of a cluster at `url`.
///
/// # Errors
///
/// Returns an error as [`client`] does, or if the URL names a database other than 0.
pub(super) fn cluster(url: &str) -> Result<Client, OptionsError> {
    let client = client(url)?;
    let db = client.get_connection_info().redis_settings().db();
    if db != 0 {
        return Err(OptionsError(format!(
            "the Redis URL `{}` names database {db}: a cluster has database 0 only, remove it",
            redacted(url)
        )));
    }
    Ok(client)
}

/// Returns whether the URL has a port. Otherwise redis-rs uses the default port of Redis.
fn has_port(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    // An IPv6 address stands in brackets, and the text behind its last colon ends with one.
    host.rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// Returns advice for a URL of a set-up that is not supported yet.
fn unsupported(url: &str) -> Option<&'static str> {
    let Some((scheme, _)) = url.split_once("://") else {
        let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
        // `redis:`, `unix:` and the like are left to redis-rs.
        let is_known =
            ["redis", "rediss", "valkey", "valkeys"].contains(&&*scheme) || scheme.ends_with("unix");
        return (!is_known).then_some("it lacks a scheme: put `redis://` in front of the host");
    };
    scheme.contains('+').then_some(
        "it is the URL of a whole store: give it to `Locks::connect`, or give the URL of one server",
    )
}

/// Returns the URL without user and password, and without its query: the query of a socket's URL contains the password.
fn redacted(url: &str) -> String {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    let is_socket = scheme.is_some_and(|scheme| scheme.ends_with("unix"));
    // A password in the query of a socket's URL may have a `@`.
    let until = if is_socket { url.find('?') } else { None };
    let shown = match url[..until.unwrap_or(url.len())].rsplit_once('@') {
        Some((head, host)) => match head.split_once("://") {
            Some((scheme, _)) => format!("{scheme}://…@{host}"),
            None => format!("…@{host}"),
        },
        None => url.to_owned(),
    };
    match shown.split_once('?') {
        Some((before, _)) => format!("{before}?…"),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_scheme_says_what_to_add() {
        for url in ["localhost:6379", "localhost", "10.0.0.1:6379/2"] {
            let error = client(url).unwrap_err().to_string();
            assert!(
                error.contains("lacks a scheme") && error.contains("`redis://`"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_sentinel_has_a_port_of_its_own() {
        for (url, address) in [
            ("redis://one", "one:26379"),
            ("redis://:pass@one/", "one:26379"),
            ("redis://user:p%40ss@one?protocol=resp3", "one:26379"),
            ("redis://one:6379/0", "one:6379"),
            ("redis://[::1]", "::1:26379"),
            ("redis://[::1]:7000", "::1:7000"),
        ] {
            let client = sentinel(url).expect(url);
            assert_eq!(client.get_connection_info().addr().to_string(), address, "{url}");
        }
    }

    #[test]
    fn the_url_of_a_sentinel_names_no_database() {
        let error = sentinel("redis://:hunter2@one:26379/1").unwrap_err().to_string();
        assert!(
            error.contains("one:26379/1") && error.contains("database"),
            "{error}"
        );
        assert!(!error.contains("hunter2"), "{error}");
    }
}
