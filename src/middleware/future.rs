//! A request's way through the layer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use pin_project::pin_project;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower_service::Service;

use crate::middleware::body::{RefusalBody, ResponseBody};
use crate::middleware::layer::OnLost;
use crate::middleware::refusal::{Refusals, Refused};
use crate::observe;
use crate::primitives::guard::Guard;

/// How long an answer waits at most until the store knows that the lock is free.
const RELEASE_WAIT: Duration = Duration::from_millis(250);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What comes of a request at the door.
pub(super) enum Entered {
    /// It goes in; with a guard if it has a key.
    In(Parts, Option<Guard>),
    /// This is its answer.
    Refused(Response<RefusalBody>),
}

/// The answer of a [`LockService`](crate::middleware::LockService).
///
/// # Cancel safety
/// Dropping it gives up the place in the line; or drops the handler's future, and after it gives back the lock in the
/// background.
#[pin_project]
#[must_use = "futures do nothing until they are awaited"]
pub struct ResponseFuture<S: Service<Request<B>>, B> {
    #[pin]
    state: State<S, B>,
    refusals: Refusals,
}

// The large ones hold the request or the handler's future: boxing those would cost each request an allocation.
#[allow(clippy::large_enum_variant)]
#[pin_project(project = Step, project_replace = Past)]
enum State<S: Service<Request<B>>, B> {
    /// At the door: the key is looked for, then its lock is waited for.
    Entering {
        door: Boxed<Entered>,
        inner: S,
        body: B,
        on_lost: OnLost,
    },
    /// Inside, with the lock if there is a key. The inner service is made ready only now.
    Readying {
        inner: S,
        request: Request<B>,
        guard: Option<Guard>,
        #[pin]
        lost: Lost,
        on_lost: OnLost,
    },
    /// The handler runs. Dropped in this order: first the work, then what protects it.
    Handling {
        #[pin]
        handler: S::Future,
        guard: Option<Guard>,
        #[pin]
        lost: Lost,
    },
    /// The handler is done. Its answer waits for the lock to be free, so that whoever has the answer finds it free.
    Releasing {
        release: Boxed<()>,
        answer: Result<S::Response, S::Error>,
    },
    /// Answered.
    Done,
}

/// Watches over a lease; nothing to watch when `None`.
type Lost = Option<WaitForCancellationFutureOwned>;

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(super) fn locked(
        door: Boxed<Entered>,
        inner: S,
        body: B,
        on_lost: OnLost,
        refusals: Refusals,
    ) -> Self {
        ResponseFuture {
            state: State::Entering {
                door,
                inner,
                body,
                on_lost,
            },
            refusals,
        }
    }

    pub(super) fn unlocked(inner: S, request: Request<B>, refusals: Refusals) -> Self {
        let state = State::Readying {
            inner,
            request,
            guard: None,
            lost: None,
            on_lost: OnLost::Tell,
        };
        ResponseFuture { state, refusals }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    #[allow(
        clippy::too_many_lines,
        reason = "its states one after the other, in the order of a request"
    )]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (mut state, refusals) = (this.state, &*this.refusals);
        loop {
            match state.as_mut().project() {
                Step::Entering { door, .. } => {
                    let entered = ready!(door.as_mut().poll(cx));
                    let Past::Entering {
                        inner, body, on_lost, ..
                    } = state.as_mut().project_replace(State::Done)
                    else {
                        unreachable!("it was at the door")
                    };
                    match entered {
                        Entered::In(parts, guard) => {
                            let (request, lost) = (Request::from_parts(parts, body), watch(guard.as_ref()));
                            state.set(State::Readying {
                                inner,
                                request,
                                guard,
                                lost,
                                on_lost,
                            });
                        }
                        Entered::Refused(response) => {
                            return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                        }
                    }
                }
                Step::Readying {
                    inner, guard, lost, ..
                } => {
                    let ready = inner.poll_ready(cx);
                    // Whatever the option says: no handler starts without its lock.
                    if is_lost(guard.as_ref(), lost, cx) {
                        let Past::Readying { request, .. } = state.as_mut().project_replace(State::Done)
                        else {
                            unreachable!("it was made ready")
                        };
                        let (parts, _) = request.into_parts();
                        return Poll::Ready(Ok(lost_answer(refusals, Refused::Lost, Some(&parts))));
                    }
                    if let Err(error) = ready!(ready) {
                        state.set(State::Done);
                        return Poll::Ready(Err(error));
                    }
                    let Past::Readying {
                        mut inner,
                        request,
                        guard,
                        on_lost,
                        ..
                    } = state.as_mut().project_replace(State::Done)
                    else {
                        unreachable!("it was made ready")
                    };
                    let lost = if on_lost == OnLost::Cancel {
                        watch(guard.as_ref())
                    } else {
                        None
                    };
                    state.set(State::Handling {
                        handler: inner.call(request),
                        guard,
                        lost,
                    });
                }
                Step::Handling {
                    handler,
                    guard,
                    mut lost,
                } => {
                    // Asked before each step, and after the last one: whoever slept past the deadline takes no other.
                    let watched = lost.is_some();
                    if watched && is_lost(guard.as_ref(), lost.as_mut(), cx) {
                        state.set(State::Done);
                        return Poll::Ready(Ok(lost_answer(refusals, Refused::OutcomeUnknown, None)));
                    }
                    let answer = ready!(handler.poll(cx));
                    if watched && is_lost(guard.as_ref(), lost, cx) {
                        state.set(State::Done);
                        return Poll::Ready(Ok(lost_answer(refusals, Refused::OutcomeUnknown, None)));
                    }
                    let guard = guard.take();
                    state.set(match guard {
                        Some(guard) => State::Releasing {
                            release: Box::pin(release(guard)),
                            answer,
                        },
                        None => {
                            state.set(State::Done);
                            return Poll::Ready(answer.map(|response| response.map(ResponseBody::handler)));
                        }
                    });
                }
                Step::Releasing { release, .. } => {
                    ready!(release.as_mut().poll(cx));
                    let Past::Releasing { answer, .. } = state.as_mut().project_replace(State::Done) else {
                        unreachable!("it was releasing")
                    };
                    return Poll::Ready(answer.map(|response| response.map(ResponseBody::handler)));
                }
                Step::Done => panic!("polled after it was ready"),
            }
        }
    }
}

fn watch(guard: Option<&Guard>) -> Lost {
    guard.map(|guard| guard.lease().end_token().cancelled_owned())
}

fn is_lost(guard: Option<&Guard>, lost: Pin<&mut Lost>, cx: &mut Context<'_>) -> bool {
    let told = lost.as_pin_mut().is_some_and(|lost| lost.poll(cx).is_ready());
    told || guard.is_some_and(|guard| !guard.is_held())
}

fn lost_answer<R>(refusals: &Refusals, why: Refused, parts: Option<&Parts>) -> Response<ResponseBody<R>> {
    observe::refused(&why, why.status().as_u16(), None);
    refusals.answer(why, parts).map(ResponseBody::refusal)
}

/// Gives the lock back. A lease that was lost meanwhile has been told of, by the event and the [`Lease`](crate::Lease);
/// a store that does not answer is told in the background.
async fn release(guard: Guard) {
    let _ = tokio::time::timeout(RELEASE_WAIT, guard.release()).await;
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            State::Entering { .. } => "ResponseFuture::Entering",
            State::Readying { .. } => "ResponseFuture::Readying",
            State::Handling { .. } => "ResponseFuture::Handling",
            State::Releasing { .. } => "ResponseFuture::Releasing",
            State::Done => "ResponseFuture::Done",
        })
    }
}
