//! The leases of a request that its handler keeps to its end, even if their layers end before.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use http::Extensions;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::middleware::leases;
use crate::middleware::request_guard::{HeldView, RequestGuard};
use crate::primitives::guard::{Guard, Lease};
use crate::primitives::held::Held;
use crate::primitives::scope::{self, Scope};

/// The leases of outer layers and of the scope, which a handler keeps that runs to completion. They may be of several
/// [`Locks`](crate::Locks). The lease of the handler's own layer is not among them.
#[derive(Default)]
pub(super) struct KeptLeases(Vec<KeptLease>);

/// One lease, or several that a layer acquired together.
struct KeptLease {
    view: HeldView,
    /// Another guard of a lease whose first guard no layer has; `None` if the task keeps the guard of a layer.
    guard: Option<Guard>,
    /// A shutdown waits for the handler as long as the handler has this lease.
    tracked: Option<TaskTrackerToken>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// A lease of the request is over before the handler began.
pub(super) struct LostBefore;

impl KeptLeases {
    /// Keeps the leases of the request with these extensions, without those of `own`.
    ///
    /// # Errors
    /// [`LostBefore`] if one of them is over.
    pub(super) fn of(extensions: &Extensions, own: Option<&RequestGuard>) -> Result<KeptLeases, LostBefore> {
        let own = own.map_or(&[][..], RequestGuard::all);
        let is_other = |held: &Arc<Held>| !own.iter().any(|own| Arc::ptr_eq(own, held));
        let mut kept = KeptLeases::default();
        for lease in leases::each(extensions).filter(|lease| is_other(&lease.held)) {
            kept.keep(&lease.held)?;
        }
        // Code between two layers may have built a new request, or hold a lock of its own.
        for held in scope::all(is_other) {
            kept.keep(&held)?;
        }
        Ok(kept)
    }

    fn keep(&mut self, held: &Arc<Held>) -> Result<(), LostBefore> {
        if self.all().any(|known| Arc::ptr_eq(known, held)) {
            return Ok(());
        }
        let view = HeldView::of(held.clone());
        let guard = match view.offer() {
            offer if offer.keep() => None,
            // It is the concern of the code that took it.
            offer if offer.is_taken() => return Ok(()),
            _ => {
                let lease = Lease { held: held.clone() };
                Some(lease.again().map_err(|_| LostBefore)?)
            }
        };
        let kept = KeptLease {
            guard,
            tracked: Some(held.handle.tasks().token()),
            ended: Box::pin(view.end_token().cancelled_owned()),
            view,
        };
        // Asked only now: from here on, the layer does not release the lease.
        let is_held = kept.view.all().iter().all(|held| held.is_held());
        if !is_held && !kept.view.offer().is_taken() {
            return Err(LostBefore);
        }
        self.0.push(kept);
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Held>> {
        self.0.iter().flat_map(|kept| kept.view.all())
    }

    /// Enters the scope of the leases for the code that is polled next.
    pub(super) fn enter(&self) -> Option<Scope> {
        (!self.0.is_empty()).then(|| scope::enter(self.all()))
    }

    /// Ends the waiting of a shutdown for the leases that are over.
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) {
        for kept in &mut self.0 {
            if kept.tracked.is_some() && kept.ended.as_mut().poll(cx).is_ready() {
                kept.tracked = None;
            }
        }
    }
}

impl Drop for KeptLease {
    fn drop(&mut self) {
        if self.guard.is_none() && self.view.offer().leave() {
            // The layer has ended, and left its guard.
            drop(self.view.counted_guards());
        }
    }
}
