//! A dry run of the layer: does the work of a lock beside the request, and never delays the request.

use http::request::Parts;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::key::Key;
use crate::middleware::key::{Choice, Keys};
use crate::middleware::layer::LockLayer;
use crate::middleware::request_guard::DryRun;
use crate::middleware::route::route;
use crate::observe;
use crate::primitives::multi::MultiKey;

/// A random constant. It separates the names of shadows from the names of all locks.
const SHADOW: [u8; 16] = *b"\x9e\x07\x5d\xc3\x11\xe8\xb4\x2a\xf6\x60\x8b\x3d\xd2\x47\x95\x1c";

impl DryRun {
    /// Tries to lock the shadows of `keys` in the same modes, and holds them until the request ends. Returns `None` if a key is
    /// invalid, or if outer layers already try the same keys: real layers with one key share its lease.
    pub(super) fn spawn<K>(layer: &LockLayer<K>, keys: Keys, parts: &mut Parts) -> Option<DryRun> {
        let (locks, settings) = (layer.locks.clone(), layer.settings.clone());
        let longest = locks.handle().options().max_key;
        let tried = parts.extensions.get_or_insert_default::<DryRunKeys>();
        let mut is_valid = true;
        let outer = tried.0.clone();
        let mut is_new = |key: &MultiKey| {
            let (key, length) = (key.key(), key.key().as_bytes().len());
            is_valid &= 0 < length && length <= longest;
            tried.0.push(key.clone());
            !outer.contains(key)
        };
        let keys = match keys {
            Keys::One(key) => is_new(&key).then_some(Keys::One(key)),
            Keys::Several(keys) => {
                let new: Vec<_> = keys.into_iter().filter(is_new).collect();
                (!new.is_empty()).then_some(Keys::Several(new))
            }
        }?;
        let shadow = |key: Key| {
            let hash = Sha256::new().chain_update(SHADOW).chain_update(key.as_bytes());
            let hash = hash.finalize();
            Some(Key::from(&hash[..hash.len().min(longest)]))
        };
        let Choice::Lock(shadows) = keys.map(shadow).0 else {
            return None;
        };
        if !is_valid || settings.contradiction().is_some() {
            observe::dry_run("refused", route(parts));
            return None;
        }
        let route = route(parts).map(str::to_owned);
        let (ends, ended) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let outcome = match settings.try_acquire(&locks, shadows).await {
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
        Some(DryRun(ends))
    }
}

/// The keys that a dry run already tries for a request; kept in the request's extensions.
#[derive(Debug, Clone, Default)]
struct DryRunKeys(Vec<Key>);
