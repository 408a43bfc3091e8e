//! What a layer does that only observes: the work of a lock, beside the request and never in its way.

use http::request::Parts;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::key::Key;
use crate::locks::Locks;
use crate::middleware::refusal::route;
use crate::observe;

/// Drawn once. With it a shadow is no lock that anybody can name.
const SHADOW: [u8; 16] = *b"\x9e\x07\x5d\xc3\x11\xe8\xb4\x2a\xf6\x60\x8b\x3d\xd2\x47\x95\x1c";

/// Lives as long as the request. Its end gives the shadow back.
pub(super) struct DryRun {
    _ends: oneshot::Sender<()>,
}

impl DryRun {
    /// Tries the shadow of `key`, and holds it until the request is over. `None` if it is no key, or one that a layer outside
    /// observes already: real layers with one key share its lease.
    pub(super) fn spawn(locks: &Locks, key: Key, parts: &mut Parts) -> Option<DryRun> {
        let tried = parts.extensions.get_or_insert_default::<DryRunKeys>();
        if tried.0.contains(&key) {
            return None;
        }
        tried.0.push(key.clone());
        let (length, longest) = (key.as_bytes().len(), locks.handle().options().max_key);
        if length == 0 || length > longest {
            observe::dry_run("refused", route(parts));
            return None;
        }
        let shadow = Sha256::new()
            .chain_update(SHADOW)
            .chain_update(key.as_bytes())
            .finalize();
        let mutex = locks.mutex(&shadow[..shadow.len().min(longest)]);
        let route = route(parts).map(str::to_owned);
        let (ends, ended) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let outcome = match mutex.try_lock().await {
                Ok(Some(guard)) => {
                    observe::dry_run("alone", route.as_deref());
                    let _ = ended.await;
                    return drop(guard);
                }
                Ok(None) => "overlap",
                // What cannot be asked would have been refused.
                Err(_) => "refused",
            };
            observe::dry_run(outcome, route.as_deref());
        });
        Some(DryRun { _ends: ends })
    }
}

/// In a request's extensions: the keys that are observed for it already.
#[derive(Debug, Clone, Default)]
struct DryRunKeys(Vec<Key>);
