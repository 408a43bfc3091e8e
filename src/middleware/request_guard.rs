//! What an admitted request holds: the guard of one lease or of several, until the request ends or the handler takes it.

use std::future::Future;
use std::pin::Pin;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;

use crate::error::LostCause;
use crate::primitives::guard::{Guard, Guards, Lease};
use crate::primitives::held::Held;
use crate::primitives::holdings::Holdings;
use crate::primitives::multi_guard::{MultiGuard, MultiLease};
use crate::primitives::offer::Offer;
use crate::primitives::scope::{self, Scope};
use crate::protocol::message::{Fence, Mode};

/// How long a response waits at most until the store knows that the lock is free.
const MAX_RELEASE_WAIT: Duration = Duration::from_millis(250);

/// What was acquired for a request.
pub(super) enum Acquired {
    One(Guard),
    /// Another guard of a lease that an outer layer acquired, and the mode that this layer wants.
    Again(Guard, Mode),
    Several(MultiGuard),
}

/// The guard of a request. It wakes the task of its request when the lease ends, and releases the lease when it is dropped, unless
/// the handler has [taken](Lease::take_guard) the guard.
pub(super) struct RequestGuard {
    /// `None` after a release.
    guard: Option<Acquired>,
    /// The response waits until the store knows that the lock is free.
    pub(super) releases_before_answer: bool,
    /// Resolves when a lease ends, for all but the first guard of a lease: these guards may be in different tasks.
    ended: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

/// Lives as long as a request in a dry run. When it is dropped, the shadow of its lock is released.
pub(super) struct DryRun(
    #[allow(dead_code, reason = "its drop is the signal")] pub(super) oneshot::Sender<()>,
);

/// The answer of a handler that has ended, and the guard, unless it was released.
pub(super) type Finished<R, E> = (Result<R, E>, Option<RequestGuard>);

/// A view of what a request holds.
pub(super) enum HeldView {
    One(Lease),
    Several(MultiLease),
}

impl Acquired {
    /// Returns the holdings.
    fn all(&self) -> &[Arc<Held>] {
        match self {
            Acquired::One(guard) | Acquired::Again(guard, _) => slice::from_ref(guard.held()),
            Acquired::Several(guard) => &guard.group().all,
        }
    }

    /// Returns which of the layer that acquired the leases, its handler and tasks has the guard.
    fn offer(&self) -> &Offer {
        match self {
            Acquired::One(guard) | Acquired::Again(guard, _) => &guard.held().offer,
            Acquired::Several(guard) => &guard.group().offer,
        }
    }
}

impl RequestGuard {
    pub(super) fn new(guard: Acquired, releases_before_answer: bool) -> Self {
        match &guard {
            Acquired::One(guard) => guard.held().offer.open(),
            Acquired::Several(guard) => guard.offer(),
            Acquired::Again(..) => {}
        }
        RequestGuard {
            guard: Some(guard),
            releases_before_answer,
            ended: None,
        }
    }

    fn guard(&self) -> &Acquired {
        self.guard.as_ref().expect("a guard is released once")
    }

    /// Enters the scope of the leases for the code that is polled next.
    pub(super) fn enter(&self) -> Scope {
        scope::enter(self.all())
    }

    /// Returns whether each lease is held, or is the handler's concern.
    pub(super) fn is_held(&self) -> bool {
        // Read last, as in `poll_lost`.
        self.holds() || self.guard().offer().is_taken()
    }

    fn holds(&self) -> bool {
        self.all().iter().all(|held| held.is_held())
    }

    /// Returns the holdings.
    pub(super) fn all(&self) -> &[Arc<Held>] {
        self.guard().all()
    }

    /// Returns a view of the leases.
    pub(super) fn held(&self) -> HeldView {
        match self.guard() {
            Acquired::One(guard) | Acquired::Again(guard, _) => HeldView::One(guard.lease()),
            Acquired::Several(guard) => HeldView::Several(guard.lease()),
        }
    }

    /// Returns the fence of the layer's only key, if the layer writes it: it orders all holders.
    pub(super) fn fence(&self) -> Option<Fence> {
        let (guard, mode) = match self.guard() {
            Acquired::One(guard) => (guard, guard.held().mode),
            Acquired::Again(guard, wanted) => (guard, *wanted),
            Acquired::Several(_) => return None,
        };
        (mode == Mode::Exclusive).then(|| guard.fence())
    }

    /// Returns the tracker for work that outlives its caller.
    pub(super) fn tasks(&self) -> &TaskTracker {
        self.all()[0].handle.tasks()
    }

    /// Resolves when a lease has ended that the handler has not taken.
    pub(super) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_over = self.poll_over(cx).is_ready();
        // Read last: a guard that another task takes may be released at once.
        if is_over && !self.guard().offer().is_taken() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Resolves when a lease has ended. The first guard of a lease needs no token.
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.holds() {
            return Poll::Ready(());
        }
        if let Acquired::One(guard) = self.guard()
            && let Some(polled) = guard.poll_over(cx)
        {
            return polled;
        }
        if self.ended.is_none() {
            self.ended = Some(Box::pin(self.held().end_token().cancelled_owned()));
        }
        let ended = self.ended.as_mut().expect("it was just set");
        ended.as_mut().poll(cx)
    }

    /// Releases the leases, and waits for at most [`MAX_RELEASE_WAIT`]. A lost lease was already reported, by an event and
    /// by the [`Lease`]. If the store does not answer, the background reports it.
    pub(super) async fn release(mut self) {
        let Some(guard) = self.still_owned() else { return };
        let release = async {
            match guard {
                Acquired::One(guard) | Acquired::Again(guard, _) => guard.release().await,
                Acquired::Several(guard) => guard.release().await,
            }
        };
        let _ = tokio::time::timeout(MAX_RELEASE_WAIT, release).await;
    }

    /// Returns the guard, unless the handler has taken it, a task keeps it, or it was released.
    fn still_owned(&mut self) -> Option<Acquired> {
        let mut guard = self.guard.take()?;
        if matches!(guard, Acquired::Again(..)) || guard.offer().close() {
            return Some(guard);
        }
        match &mut guard {
            Acquired::One(guard) | Acquired::Again(guard, _) => guard.disown(),
            Acquired::Several(guard) => guard.disown(),
        }
        None
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        drop(self.still_owned());
    }
}

impl HeldView {
    /// Returns the view of this holding, with the holdings that a layer acquired together with it.
    pub(super) fn of(held: Arc<Held>) -> HeldView {
        match held.group() {
            Some(group) => HeldView::Several(MultiLease(group)),
            None => HeldView::One(Lease { held }),
        }
    }

    /// Returns the holdings.
    pub(super) fn all(&self) -> &[Arc<Held>] {
        match self {
            HeldView::One(lease) => lease.all(),
            HeldView::Several(lease) => lease.all(),
        }
    }

    /// Returns which of layer, handler and tasks has the guard.
    pub(super) fn offer(&self) -> &Offer {
        match self {
            HeldView::One(lease) => &lease.held.offer,
            HeldView::Several(lease) => &lease.0.offer,
        }
    }

    /// Returns the guards that the layer left to the last task.
    pub(super) fn counted_guards(&self) -> Guards {
        match self {
            HeldView::One(lease) => Guards(vec![Guard::taken(&lease.held)]),
            HeldView::Several(lease) => lease.counted_guards(),
        }
    }

    /// Returns a token that is cancelled when a lease ends.
    pub(super) fn end_token(&self) -> CancellationToken {
        match self {
            HeldView::One(lease) => lease.end_token(),
            HeldView::Several(lease) => lease.end_token(),
        }
    }

    /// Waits for the end of a lease that the handler has not taken. Returns why it ended.
    pub(super) async fn lost(&self) -> LostCause {
        let cause = match self {
            HeldView::One(lease) => lease.lost().await,
            HeldView::Several(lease) => lease.lost().await,
        };
        if self.offer().is_taken() {
            return std::future::pending().await;
        }
        cause
    }
}
