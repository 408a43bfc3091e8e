//! The body of a response: the body of the handler, or of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Empty};
use pin_project::pin_project;

/// The same type as `tower::BoxError`, without a dependency on all of tower.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a refusal: the body of a problem, or any body that a key source answers with.
pub(super) type RefusalBody = UnsyncBoxBody<Bytes, BoxError>;

/// The body of a response from behind a [`LockLayer`](crate::LockLayer). It has a type of its own, so that the layer
/// can refuse requests whatever the inner service's body is.
#[pin_project]
#[derive(Debug)]
pub struct ResponseBody<B>(#[pin] Either<B, RefusalBody>);

/// Converts any body into the body of a refusal.
pub(super) fn boxed<B>(body: B) -> RefusalBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

impl<B> ResponseBody<B> {
    pub(super) fn handler(body: B) -> Self {
        ResponseBody(Either::Left(body))
    }

    pub(super) fn refusal(body: RefusalBody) -> Self {
        ResponseBody(Either::Right(body))
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
        self.project().0.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
