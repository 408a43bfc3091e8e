//! The leases of a request behind nested layers.

use http::Extensions;
use http::request::Parts;

use crate::key::Key;
use crate::locks::Locks;
use crate::primitives::guard::Lease;
use crate::primitives::mutex::Mutex;
use crate::primitives::scope;

/// All leases that a request holds, the outermost first.
///
/// A handler behind one [`LockLayer`](crate::LockLayer) has its [`Lease`]. Behind nested layers, the handler sees the
/// lease of the innermost layer, or none if that layer took no lock. This list has the leases of all layers.
///
/// ```
/// use http::Request;
/// use tenure::{Key, middleware::Leases};
///
/// # let request = Request::new(());
/// let leases = Leases::of(request.extensions());
/// if let Some(account) = leases.get(&Key::from("account:42")) {
///     println!("fence {}", account.fence());
/// }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Leases(Vec<Lease>);

impl Leases {
    /// Returns the leases of the request with these extensions.
    pub fn of(extensions: &Extensions) -> Leases {
        match extensions.get::<Leases>() {
            Some(leases) => leases.clone(),
            // A single layer inserts its lease without a list.
            None => Leases(extensions.get::<Lease>().cloned().into_iter().collect()),
        }
    }

    /// Returns the lease on this key.
    pub fn get(&self, key: &Key) -> Option<&Lease> {
        self.iter().find(|lease| lease.key() == key)
    }

    /// Returns the leases, the outermost first.
    pub fn iter(&self) -> std::slice::Iter<'_, Lease> {
        self.0.iter()
    }

    /// Returns the number of leases.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no layer took a lock for the request.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for &'a Leases {
    type Item = &'a Lease;
    type IntoIter = std::slice::Iter<'a, Lease>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Returns the lease that the request already has on the key of `mutex`, from an outer layer. The extensions know
/// that lease, even behind a `Buffer`. The scope of the running code knows it too, even if the extensions were not
/// copied.
pub(super) fn held(parts: &Parts, mutex: &Mutex) -> Option<Lease> {
    let leases = Leases::of(&parts.extensions);
    let of_request = leases.iter().find(|lease| mutex.is_of(lease)).cloned();
    of_request.or_else(|| mutex.held_here())
}

/// Returns whether an outer layer holds one of the locks of this node for the request.
pub(super) fn has_any(parts: &Parts, locks: &Locks) -> bool {
    let leases = Leases::of(&parts.extensions);
    let node = locks.handle().node();
    leases.iter().any(|lease| lease.held.is_of(node)) || scope::any(node)
}

/// Inserts the layer's lease into the request. The leases of outer layers stay in the list. If this layer has no
/// lease, the request shows none.
pub(super) fn insert(parts: &mut Parts, own: Option<&Lease>) {
    let mut leases = Leases::of(&parts.extensions);
    if !leases.is_empty() {
        if let Some(own) = own {
            leases.0.push(own.clone());
        }
        parts.extensions.insert(leases);
    }
    match own {
        Some(own) => parts.extensions.insert(own.clone()),
        None => parts.extensions.remove::<Lease>(),
    };
}
