//! The connection to the store that the arguments name.

use std::path::Path;
use std::time::Duration;

use redis::{Client, ClientTlsConfig, TlsCertificates};
use tenure::Locks;

use crate::args::StoreArgs;
use crate::failure::Failure;
use crate::text::shown;

const DEFAULT_URL: &str = "redis://127.0.0.1/";
/// How long the store may take to answer. Longer than a service waits: a busy store is what operators look at.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns locks that connect when they are asked, and do not tell the store of themselves.
pub(crate) async fn connect(args: &StoreArgs) -> Result<Locks, Failure> {
    let builder = Locks::builder();
    let builder = builder
        .prefix(args.prefix.as_encoded_bytes())
        .request_timeout(PATIENCE)
        .lazy()
        .presence(false);
    let urls = urls(args);
    let tls = certificates(args)?;
    let like = args.like.as_deref().unwrap_or(&urls[0]);
    let locks = match (&args.sentinel, args.is_cluster) {
        (Some(_), true) => {
            return usage("--sentinel and --cluster are two kinds of stores: give one of them");
        }
        (Some(name), false) => builder.sentinel(name, &urls, client(like, tls)?).await?,
        (None, true) => builder.cluster(&urls, client(like, tls)?).await?,
        (None, false) if urls.len() > 1 => {
            return usage(
                "several URLs are those of Sentinels or of a cluster: add --sentinel NAME or --cluster",
            );
        }
        (None, false) if args.like.is_some() => return usage("--like needs --sentinel or --cluster"),
        (None, false) if tls.is_some() => builder.client(client(like, tls)?).await?,
        (None, false) => builder.redis(like).await?,
    };
    Ok(locks)
}

fn usage<T>(text: &str) -> Result<T, Failure> {
    Err(Failure::Usage(text.to_owned()))
}

/// Returns the URLs: at least one. An empty variable counts as unset.
fn urls(args: &StoreArgs) -> Vec<String> {
    let given: Vec<String> = args.urls.iter().filter(|url| !url.is_empty()).cloned().collect();
    if !given.is_empty() {
        return given;
    }
    let url = std::env::var("REDIS_URL").ok().filter(|url| !url.is_empty());
    vec![url.unwrap_or_else(|| DEFAULT_URL.to_owned())]
}

fn client(url: &str, tls: Option<TlsCertificates>) -> Result<Client, Failure> {
    let client = match tls {
        Some(tls) => Client::build_with_tls(url, tls),
        None => Client::open(url),
    };
    // The URL may have a password, so the text has no URL.
    client.map_err(|error| Failure::Usage(format!("the URL cannot be used: {}", shown(error.to_string()))))
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
