//! The body of a response: the body of the handler, or of a refusal.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Empty};
use pin_project::pin_project;

use crate::middleware::request_guard::{DryRun, RequestGuard};

/// The same type as `tower::BoxError`, without a dependency on all of tower.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a refusal: the body of a problem, or any body that a key source answers with.
pub(super) type RefusalBody = UnsyncBoxBody<Bytes, BoxError>;

/// The body of a response from behind a [`LockLayer`](crate::LockLayer). It has a type of its own, so that the layer
/// can refuse requests whatever the inner service's body is.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use http_body_util::BodyExt;
/// use tenure::{LockLayer, Locks, middleware::{ResponseBody, keys}};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// let handler = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::from("done"))) });
/// let service = LockLayer::new(&Locks::memory(), keys::fixed("import")).layer(handler);
/// let response = service.oneshot(Request::new(String::new())).await.unwrap();
/// let body: ResponseBody<String> = response.into_body();
/// assert_eq!(body.collect().await.unwrap().to_bytes(), "done");
/// # }
/// ```
#[pin_project]
pub struct ResponseBody<B> {
    #[pin]
    body: Either<B, RefusalBody>,
    /// The guard of a lock that is held until the body ends.
    guard: Option<RequestGuard>,
    /// The body ends with an error if the lease is lost.
    fails_on_loss: bool,
    /// Dropped with the body.
    dry_run: Option<DryRun>,
}

/// The error of a body that ended because the lease was lost.
#[derive(Debug, thiserror::Error)]
#[error("the lease was lost while the response was sent: its body is cut off")]
struct LostMeanwhile;

/// Converts any body into the body of a refusal.
pub(super) fn boxed<B>(body: B) -> RefusalBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

impl<B> ResponseBody<B> {
    /// Returns the handler's body.
    pub(super) fn handler(body: B) -> Self {
        ResponseBody::new(Either::Left(body))
    }

    fn new(body: Either<B, RefusalBody>) -> Self {
        ResponseBody {
            body,
            guard: None,
            fails_on_loss: false,
            dry_run: None,
        }
    }

    /// Holds the guard, or the shadow of a dry run, until the body ends.
    pub(super) fn holds(
        self,
        guard: Option<RequestGuard>,
        fails_on_loss: bool,
        dry_run: Option<DryRun>,
    ) -> Self {
        ResponseBody {
            guard,
            fails_on_loss,
            dry_run,
            ..self
        }
    }

    pub(super) fn refusal(body: RefusalBody) -> Self {
        ResponseBody::new(Either::Right(body))
    }
}

/// Returns an empty body, for outer layers that answer by themselves, such as a timeout.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        ResponseBody::refusal(boxed(Empty::new()))
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        let Some(guard) = this.guard else {
            return this.body.poll_frame(cx);
        };
        let mut is_lost = *this.fails_on_loss && guard.poll_lost(cx).is_ready();
        if !is_lost {
            let scope = guard.enter();
            let frame = ready!(this.body.as_mut().poll_frame(cx));
            drop(scope);
            // A server may not poll a body again after its last frame. A process that slept past the deadline has not woken this.
            let is_last = !matches!(frame, Some(Ok(_))) || this.body.is_end_stream();
            is_lost = *this.fails_on_loss && is_last && !guard.is_held();
            if !is_lost {
                if is_last {
                    *this.guard = None;
                }
                return Poll::Ready(frame);
            }
        }
        this.body.set(Either::Right(boxed(Empty::new())));
        *this.guard = None;
        Poll::Ready(Some(Err(LostMeanwhile.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: fmt::Debug> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody")
            .field("body", &self.body)
            .field("holds", &self.guard.is_some())
            .finish()
    }
}
