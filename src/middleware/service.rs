//! Finds the key, acquires the lock, and admits the request.
//!
//! # The way of one request
//!
//! 1. The layer's service starts a future for the request (`middleware/service.rs` `call`, `enter`).
//! 2. A key source in `middleware/keys/` finds the key, or several, each to be written or read (`middleware/key.rs`
//!    `Keys`).
//! 3. If the request already holds a key, the layer uses that lease (`middleware/leases.rs` `held`). Otherwise the layer
//!    acquires the lock with its options (`middleware/acquire.rs` `acquire`): one key by its mutex, reader or permit,
//!    several by a multi-lock.
//! 4. The lease is added to the extensions of the request (`middleware/leases.rs` `insert`). If the layer is set to do so,
//!    the request is noted for operators (`middleware/note.rs` `note`).
//! 5. Only now the future makes the inner service ready and calls the handler (`middleware/future.rs` `poll`).
//! 6. The future watches for the loss of the lease while the handler runs (`middleware/request_guard.rs` `poll_lost`). If
//!    the layer runs handlers to completion, the handler runs in a task of its own and is not cancelled
//!    (`middleware/completion.rs` `run_to_completion`). The task keeps every other lease of the request too
//!    (`middleware/kept_leases.rs` `keep`): the last of a layer and the tasks releases the layer's guard
//!    (`primitives/offer.rs` `close`, `leave`). A handler may take the guard (`primitives/guard.rs` `take_guard`). Then
//!    layers and tasks leave the lease alone (`primitives/offer.rs` `take`, `is_taken`).
//! 7. If the layer is set to do so, the lock is released before the response is returned. The response waits for the
//!    release for at most 250 ms (`middleware/request_guard.rs` `release`). Or the body of the response has the guard until
//!    it ends (`middleware/body.rs` `poll_frame`).
//! 8. Code in the handler that asks for the same key finds the lease (`primitives/scope.rs` `enter`, `find`).
//! 9. A refusal is a response. The layer finds the reason, for example a busy key (423) or a wait that was too long (429)
//!    (`middleware/acquire.rs` `denial`). The reason has a status and becomes the response (`middleware/refusal.rs`
//!    `status`, `refuse`).

use std::fmt;
use std::future::{Future, ready};
use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{Method, Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::error::Error;
use crate::middleware::body::ResponseBody;

use crate::middleware::future::{Admission, BoxedFuture, EnterResult, LockReport, ResponseFuture};
use crate::middleware::key::{Choice, IntoLockKey, KeySource};
use crate::middleware::layer::{LockLayer, Unlocked};
use crate::middleware::leases::{self, WithoutLock};
use crate::middleware::note::note;
use crate::middleware::refusal::{Answer, Refused};
use crate::middleware::request_guard::{DryRun, RequestGuard};
use crate::middleware::route::route;
use crate::observe;

/// A service behind a [`LockLayer`]. See the [module](crate::middleware).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use tenure::{LockLayer, Locks, middleware::{LockService, keys}};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// let handler = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::from("done"))) });
/// let layer = LockLayer::new(&Locks::memory(), keys::fixed("import"));
/// let service: LockService<_, keys::Fixed> = layer.layer(handler);
/// let response = service.oneshot(Request::new(String::new())).await.unwrap();
/// assert_eq!(response.status(), 200);
/// # }
/// ```
#[derive(Clone)]
pub struct LockService<S, K> {
    inner: S,
    layer: Arc<LockLayer<K>>,
}

impl<S, K> LockService<S, K> {
    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service for changes.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service, without the lock.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, K: KeySource> Layer<S> for LockLayer<K> {
    type Service = LockService<S, K>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService {
            inner,
            layer: Arc::new(self.clone()),
        }
    }
}

impl<S, K, B, R> Service<Request<B>> for LockService<S, K>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Send + 'static,
    K: KeySource,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    /// Returns ready at once. If the layer asked the inner service, each request that waits for a lock would occupy a
    /// slot of that service. Then the waiters of one busy key would starve all other requests.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // This clone is not ready yet. The future makes it ready when the lock is held.
        let inner = self.inner.clone();
        let settings = self.layer.settings.clone();
        let layer = self.layer.clone();
        let (mut parts, body) = request.into_parts();
        let entering: BoxedFuture<EnterResult> = if settings.passes(&parts.method) {
            leases::insert_none(&mut parts, WithoutLock::Method);
            Box::pin(ready(Continue((parts, Admission::default()))))
        } else if settings.dry_run {
            Box::pin(dry_run(layer, parts))
        } else {
            Box::pin(enter(layer, parts))
        };
        ResponseFuture::new(entering, inner, body, settings)
    }
}

#[allow(
    clippy::manual_async_fn,
    reason = "an async function would hold the parts twice, and its future is allocated for each request"
)]
fn enter<K: KeySource>(layer: Arc<LockLayer<K>>, mut parts: Parts) -> impl Future<Output = EnterResult> {
    async move {
        let choice = layer.key.key(&mut parts).await.into_lock_key().0;
        let refuse = |why, error: Option<&Error>, parts: &Parts| {
            Break(layer.settings.refusals.refuse(why, error, Some(parts)))
        };
        let keys = match choice {
            Choice::Lock(keys) => keys,
            Choice::Nothing => {
                leases::insert_none(&mut parts, WithoutLock::NoKey);
                return Continue((parts, Admission::without_lock(&layer.settings)));
            }
            Choice::Answer(Answer(response)) => return Break(response),
            Choice::Refuse(why) => return refuse(why, None, &parts),
        };
        if let Some(error) = layer.settings.contradiction() {
            return refuse(Refused::BadOptions, Some(&error), &parts);
        }
        // A shutdown waits for the handlers that run, and they may need other locks to finish. A request that arrives
        // during a shutdown is refused, or the shutdown might never end.
        let handle = layer.locks.handle();
        let is_closing = |parts: &Parts| handle.tasks().is_closed() && !leases::has_any(parts, &layer.locks);
        if is_closing(&parts) {
            return refuse(Refused::Closed, None, &parts);
        }
        let (clock, wait) = (&handle.node().clock, layer.settings.wait_of(&parts));
        let since = layer.settings.server_timing.then(|| clock.now());
        let entered = layer.settings.acquire(&layer.locks, keys, &parts, wait).await;
        let waited = since.map_or(Duration::ZERO, |since| clock.now().since(since));
        match entered {
            // The shutdown began while this request waited.
            Ok(_) if is_closing(&parts) => refuse(Refused::Closed, None, &parts),
            Ok(guard) => {
                let guard = RequestGuard::new(guard, layer.settings.releases_before_answer(wait));
                show_lease(&mut parts, &guard, layer.settings.noted);
                let report = LockReport {
                    waited,
                    fence: guard.fence(),
                    is_connect: parts.method == Method::CONNECT,
                };
                let admission = Admission {
                    guard: Some(guard),
                    report,
                    ..Admission::without_lock(&layer.settings)
                };
                Continue((parts, admission))
            }
            Err((why, error)) if layer.settings.runs_unlocked(why, error.as_ref()) => {
                observe::unlocked(route(&parts), error.as_ref());
                leases::insert_none(&mut parts, WithoutLock::StoreFailed);
                parts.extensions.insert(Unlocked);
                let report = LockReport {
                    waited,
                    ..LockReport::default()
                };
                let admission = Admission {
                    report,
                    ..Admission::without_lock(&layer.settings)
                };
                Continue((parts, admission))
            }
            Err((why, error)) => refuse(why, error.as_ref(), &parts),
        }
    }
}

/// Shows the handler its lease, and operators which request holds it if the layer `notes` requests.
fn show_lease(parts: &mut Parts, guard: &RequestGuard, notes: bool) {
    leases::insert(parts, &guard.held());
    if notes {
        guard.all().iter().for_each(|held| note(held, parts));
    }
}

/// Admits every request, and counts those that would have waited.
async fn dry_run<K: KeySource>(layer: Arc<LockLayer<K>>, mut parts: Parts) -> EnterResult {
    parts.extensions.insert(WithoutLock::DryRun);
    let choice = layer.key.key(&mut parts).await.into_lock_key().0;
    let dry_run = match choice {
        Choice::Lock(keys) => DryRun::spawn(&layer, keys, &mut parts),
        Choice::Nothing => None,
        Choice::Answer(_) | Choice::Refuse(_) => {
            observe::dry_run("refused", route(&parts));
            None
        }
    };
    let admission = Admission {
        dry_run,
        ..Admission::default()
    };
    Continue((parts, admission))
}

impl<S: fmt::Debug, K> fmt::Debug for LockService<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService")
            .field("inner", &self.inner)
            .field("layer", &self.layer)
            .finish()
    }
}
