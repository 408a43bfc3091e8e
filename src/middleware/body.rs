//! The body of an answer: the handler's, or that of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use pin_project::pin_project;

/// The same type as `tower::BoxError`, without a dependency on all of tower.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a refusal: ours, or any that a key source answers with.
pub(super) type RefusalBody = UnsyncBoxBody<Bytes, BoxError>;

/// The body of an answer from behind a [`LockLayer`](crate::LockLayer). A type of its own, so that the layer can refuse
/// whatever the inner service's body is.
#[pin_project]
#[derive(Debug)]
pub struct ResponseBody<B> {
    #[pin]
    source: Source<B>,
}

#[pin_project(project = Project)]
#[derive(Debug)]
enum Source<B> {
    Handler(#[pin] B),
    Refusal(#[pin] RefusalBody),
}

/// Any body as that of a refusal.
pub(super) fn boxed<B>(body: B) -> RefusalBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

impl<B> ResponseBody<B> {
    pub(super) fn handler(body: B) -> Self {
        ResponseBody {
            source: Source::Handler(body),
        }
    }

    pub(super) fn refusal(body: RefusalBody) -> Self {
        ResponseBody {
            source: Source::Refusal(body),
        }
    }
}

/// Empty; for layers outside that answer by themselves, such as a timeout.
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
        match self.project().source.project() {
            Project::Handler(body) => body.poll_frame(cx).map_err(Into::into),
            Project::Refusal(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Handler(body) => body.is_end_stream(),
            Source::Refusal(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Handler(body) => body.size_hint(),
            Source::Refusal(body) => body.size_hint(),
        }
    }
}
