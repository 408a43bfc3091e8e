//! A dry run of the layer: does the work of a lock beside the request, and never delays the request.

use http::request::Parts;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::key::Key;
use crate::locks::Locks;
use crate::middleware::refusal::route;
use crate::observe;

/// A random constant. It separates the names of shadows from the names of all locks.
const SHADOW: [u8; 16] = *b"\x9e\x07\x5d\xc3\x11\xe8\xb4\x2a\xf6\x60\x8b\x3d\xd2\x47\x95\x1c";

/// Lives as long as the request. When it is dropped, the shadow is released.
pub(super) struct DryRun {
    _ends: oneshot::Sender<()>,
}

impl DryRun {
    /// Tries to lock the shadow of `key`, and holds it until the request ends. Returns `None` if `key` is invalid, or
    /// if an outer layer already tries the same key: real layers with one key share its lease.
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
                // If the store cannot be asked, a real layer would have refused the request.
                Err(_) => "refused",
            };
            observe::dry_run(outcome, route.as_deref());
        });
        Some(DryRun { _ends: ends })
    }
}

/// The keys that a dry run already tries for a request; kept in the request's extensions.
#[derive(Debug, Clone, Default)]
struct DryRunKeys(Vec<Key>);
