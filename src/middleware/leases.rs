//! What a request holds, when layers are nested.

use http::Extensions;
use http::request::Parts;

use crate::key::Key;
use crate::locks::Locks;
use crate::primitives::guard::Lease;
use crate::primitives::mutex::Mutex;
use crate::primitives::scope;

/// All leases that a request holds, the outermost first.
///
/// A handler behind one [`LockLayer`](crate::LockLayer) has its [`Lease`]. Behind nested layers that is the lease of the
/// innermost, or none where that one took no lock; all of them are here.
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
    /// What the request with these extensions holds.
    pub fn of(extensions: &Extensions) -> Leases {
        match extensions.get::<Leases>() {
            Some(leases) => leases.clone(),
            // One layer alone puts in no list.
            None => Leases(extensions.get::<Lease>().cloned().into_iter().collect()),
        }
    }

    /// The lease on this key.
    pub fn get(&self, key: &Key) -> Option<&Lease> {
        self.iter().find(|lease| lease.key() == key)
    }

    /// The outermost first.
    pub fn iter(&self) -> std::slice::Iter<'_, Lease> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// No layer took a lock for the request.
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

/// What the request holds already of what `mutex` locks: a layer outside took it. The extensions know it, also behind a
/// `Buffer`; what is being polled does, also where the extensions were left out.
pub(super) fn held(parts: &Parts, mutex: &Mutex) -> Option<Lease> {
    let leases = Leases::of(&parts.extensions);
    let of_request = leases.iter().find(|lease| mutex.is_of(lease)).cloned();
    of_request.or_else(|| mutex.held_here())
}

/// The request is inside of another layer that took one of these locks for it.
pub(super) fn has_any(parts: &Parts, locks: &Locks) -> bool {
    let leases = Leases::of(&parts.extensions);
    let node = locks.handle().node();
    leases.iter().any(|lease| lease.held.is_of(node)) || scope::any(node)
}

/// Gives the request what the layer took for it. What layers outside took stays in the list, but is not shown as this
/// one's.
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
