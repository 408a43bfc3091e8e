//! The leases of a request behind nested layers.

use http::Extensions;
use http::request::Parts;

use crate::key::Key;
use crate::locks::Locks;
use crate::middleware::request_guard::HeldView;
use crate::primitives::guard::Lease;
use crate::primitives::scope;
use crate::protocol::message::Name;

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

/// Returns the leases of the request with these extensions, the outermost first.
pub(super) fn each(extensions: &Extensions) -> impl Iterator<Item = &Lease> {
    let list = extensions.get::<Leases>();
    // A single layer inserts its lease without a list.
    let single = extensions.get::<Lease>().filter(|_| list.is_none());
    list.into_iter().flatten().chain(single)
}

/// Returns the lease that the request already has on this name, from an outer layer. The extensions know that lease, even behind a
/// `Buffer`. The scope of the running code knows it too, even if the extensions were not copied.
pub(super) fn held(parts: &Parts, locks: &Locks, name: &Name) -> Option<Lease> {
    let node = locks.handle().node();
    let of_request = each(&parts.extensions).find(|lease| lease.held.is_on(node, name));
    of_request
        .cloned()
        .or_else(|| scope::find(node, name).map(|held| Lease { held }))
}

/// Returns whether an outer layer holds one of the locks of this node for the request.
pub(super) fn has_any(parts: &Parts, locks: &Locks) -> bool {
    let node = locks.handle().node();
    each(&parts.extensions).any(|lease| lease.held.is_of(node)) || scope::any(node)
}

/// Why a layer admitted a request without a lock; kept in the request's extensions, for a handler that asks for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
pub(super) enum WithoutLock {
    #[strum(to_string = "the LockLayer of this route is a dry run, which locks nothing")]
    DryRun,
    #[strum(to_string = "the LockLayer of this route locks no requests of this method")]
    Method,
    #[strum(to_string = "the request has no key for the LockLayer of this route")]
    NoKey,
    #[strum(
        to_string = "the store failed, and the LockLayer of this route admits requests without their lock then"
    )]
    StoreFailed,
}

/// Inserts what the layer holds into the request. The leases of outer layers stay in the list.
pub(super) fn insert(parts: &mut Parts, own: &HeldView) {
    put(parts, Some(own));
}

/// Notes that the layer holds nothing. The list keeps the leases of outer layers, and the request shows no other lease.
pub(super) fn insert_none(parts: &mut Parts, why: WithoutLock) {
    put(parts, None);
    parts.extensions.insert(why);
}

fn put(parts: &mut Parts, own: Option<&HeldView>) {
    let mut leases = Leases::of(&parts.extensions);
    match own {
        Some(HeldView::One(lease)) if !leases.is_empty() => leases.0.push(lease.clone()),
        Some(HeldView::Several(several)) => leases.0.extend(several.each()),
        Some(HeldView::One(_)) | None => {}
    }
    let extensions = &mut parts.extensions;
    if !leases.is_empty() {
        extensions.insert(leases);
    }
    let (one, several) = match own {
        Some(HeldView::One(lease)) => (Some(lease), None),
        Some(HeldView::Several(lease)) => (None, Some(lease)),
        None => (None, None),
    };
    replace(extensions, one);
    replace(extensions, several);
}

fn replace<T: Clone + Send + Sync + 'static>(extensions: &mut Extensions, value: Option<&T>) {
    match value {
        Some(value) => extensions.insert(value.clone()),
        None => extensions.remove::<T>(),
    };
}
