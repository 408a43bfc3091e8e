//! Finds the key, takes the lock, lets the request in.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Method, Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::error::Error;
use crate::middleware::body::{RefusalBody, ResponseBody};
use crate::middleware::future::{Entered, ResponseFuture};
use crate::middleware::key::{Choice, IntoLockKey, KeySource};
use crate::middleware::layer::LockLayer;
use crate::middleware::refusal::{Answer, Refusals, Refused};
use crate::observe;

/// A service behind a [`LockLayer`]. See the [module](crate::middleware).
#[derive(Clone)]
pub struct LockService<S, K> {
    inner: S,
    layer: Arc<LockLayer<K>>,
}

impl<S, K> LockService<S, K> {
    /// The service inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside, to change it.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside, without the lock.
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
    K: KeySource,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    /// Always ready. If it asked the inner service, each request that waits for a lock would sit on one of the inner
    /// service's slots, and the waiters of one busy key would starve all others.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // A clone that nobody made ready, as it should be: the future makes it ready, once the lock is held.
        let inner = self.inner.clone();
        let policy = self.layer.policy;
        if request.method() == Method::OPTIONS && !policy.include_options {
            return ResponseFuture::unlocked(inner, request, self.layer.refusals.clone());
        }
        let (parts, body) = request.into_parts();
        let door = Box::pin(enter(self.layer.clone(), parts));
        ResponseFuture::locked(door, inner, body, policy.on_lost, self.layer.refusals.clone())
    }
}

async fn enter<K: KeySource>(layer: Arc<LockLayer<K>>, mut parts: Parts) -> Entered {
    let choice = layer.key.key(&mut parts).await.into_lock_key().0;
    let key = match choice {
        Choice::Lock(key) => key,
        Choice::Nothing => return Entered::In(parts, None),
        Choice::Answer(Answer(response)) => return Entered::Refused(response),
        Choice::Refuse(why) => return Entered::Refused(refuse(&layer.refusals, why, None, &parts)),
    };
    match layer.policy.enter(layer.locks.mutex(key)).await {
        Ok(guard) => {
            parts.extensions.insert(guard.lease());
            Entered::In(parts, Some(guard))
        }
        Err((why, error)) => Entered::Refused(refuse(&layer.refusals, why, error.as_ref(), &parts)),
    }
}

fn refuse(refusals: &Refusals, why: Refused, error: Option<&Error>, parts: &Parts) -> Response<RefusalBody> {
    observe::refused(&why, why.status().as_u16(), error);
    refusals.answer(why, Some(parts))
}

impl<S: fmt::Debug, K> fmt::Debug for LockService<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService")
            .field("inner", &self.inner)
            .field("layer", &self.layer)
            .finish()
    }
}
