//! The connection to the store that the arguments name.

use std::path::Path;
use std::time::Duration;

use tenure::{Builder, Locks};
use tenure::{ClientTlsConfig, TlsCertificates};

use crate::args::StoreArgs;
use crate::failure::Failure;
use crate::text::shown;

const DEFAULT_URL: &str = "redis://127.0.0.1/";
/// How long the store may take to answer. Longer than a service waits: a busy store is what operators look at.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns locks that connect when they are asked, and do not tell the store of themselves.
pub(crate) async fn connect(args: &StoreArgs) -> Result<Locks, Failure> {
    let builder = builder(args)?.request_timeout(PATIENCE);
    Ok(builder.lazy().presence(false).connect(url(args)).await?)
}

/// Returns a builder with the prefix and the certificates.
pub(crate) fn builder(args: &StoreArgs) -> Result<Builder, Failure> {
    let builder = Locks::builder().prefix(args.prefix.as_encoded_bytes());
    Ok(match certificates(args)? {
        Some(certificates) => builder.tls(certificates),
        None => builder,
    })
}

pub(crate) fn url(args: &StoreArgs) -> &str {
    // An empty variable counts as unset.
    let url = args.url.as_deref().filter(|url| !url.is_empty());
    url.unwrap_or(DEFAULT_URL)
}

fn usage<T>(text: &str) -> Result<T, Failure> {
    Err(Failure::Usage(text.to_owned()))
}

/// Returns the certificates, or `None` if no file is given.
fn certificates(args: &StoreArgs) -> Result<Option<TlsCertificates>, Failure> {
    let client_tls = match (&args.cert, &args.cert_key) {
        (Some(cert), Some(key)) => Some(ClientTlsConfig {
            client_cert: read(cert)?,
            client_key: read(key)?,
        }),
        (None, None) => None,
        _ => return usage("--cert and --key belong together: give both"),
    };
    let root_cert = args.ca.as_deref().map(read).transpose()?;
    let is_given = client_tls.is_some() || root_cert.is_some();
    Ok(is_given.then_some(TlsCertificates {
        client_tls,
        root_cert,
    }))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let refused = |error| {
        Failure::Usage(format!(
            "cannot read {}: {error}",
            shown(path.as_os_str().as_encoded_bytes())
        ))
    };
    std::fs::read(path).map_err(refused)
}
