//! A request's way through the layer.

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use pin_project::pin_project;
use tower_service::Service;

use crate::middleware::body::{RefusalBody, ResponseBody};
use crate::middleware::completion::{release, run_to_completion};
use crate::middleware::dry_run::DryRun;
use crate::middleware::layer::LayerSettings;
use crate::middleware::refusal::Refused;
use crate::middleware::request_guard::RequestGuard;
use crate::protocol::message::Fence;

pub(super) type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What comes of a request at the entering: it goes in, or this is its answer.
pub(super) type EnterResult = ControlFlow<Response<RefusalBody>, (Parts, Admission)>;

/// With what a request goes in. Nothing at all if it has no key.
#[derive(Default)]
pub(super) struct Admission {
    pub(super) guard: Option<RequestGuard>,
    pub(super) report: LockReport,
    pub(super) dry_run: Option<DryRun>,
}

/// The answer of a [`LockService`](crate::middleware::LockService).
///
/// # Cancel safety
/// Dropping it gives up the place in the line; or drops the handler's future, and after it gives back the lock in the
/// background. A handler that [runs to completion](crate::LockLayer::run_to_completion) goes on, with its lock.
#[pin_project]
#[must_use = "futures do nothing until they are awaited"]
pub struct ResponseFuture<S: Service<Request<B>>, B> {
    #[pin]
    state: RequestState<S, B>,
    settings: Arc<LayerSettings>,
    report: LockReport,
    /// Sees the end of the request, however it ends.
    dry_run: Option<DryRun>,
}

/// What the answer tells of its lock.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct LockReport {
    /// How long the request waited.
    pub(super) waited: Duration,
    pub(super) fence: Option<Fence>,
}

// The large ones hold the request or the handler's future: boxing those would cost each request an allocation.
#[allow(clippy::large_enum_variant)]
#[pin_project(project = RequestStateProjection)]
enum RequestState<S: Service<Request<B>>, B> {
    /// At the entering: the key is looked for, then its lock is waited for. The service and the body are taken inside.
    Entering {
        entering: BoxedFuture<EnterResult>,
        inside: Option<(S, B)>,
    },
    /// Inside, with the lock if there is a key. The inner service is made ready only now, and then takes the request.
    Readying {
        inner: S,
        request: Option<Request<B>>,
        guard: Option<RequestGuard>,
    },
    /// The handler runs. Dropped in this order: first the work, then what protects it.
    Handling {
        #[pin]
        handler: S::Future,
        guard: Option<RequestGuard>,
    },
    /// The handler runs in a task of its own; or it is done, and its answer waits for the lock to be free, so that a client with
    /// the answer finds it free. `None`: the outcome is unknown.
    Finishing(BoxedFuture<Option<Result<S::Response, S::Error>>>),
    /// Answered.
    Done,
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(super) fn new(
        entering: BoxedFuture<EnterResult>,
        inner: S,
        body: B,
        settings: Arc<LayerSettings>,
    ) -> Self {
        let inside = Some((inner, body));
        ResponseFuture {
            state: RequestState::Entering { entering, inside },
            settings,
            report: LockReport::default(),
            dry_run: None,
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Send + 'static,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    #[allow(
        clippy::too_many_lines,
        reason = "its states one after the other, in the order of a request"
    )]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (mut state, settings, report) = (this.state, &**this.settings, this.report);
        let refused = |why, parts: Option<&Parts>| {
            let response = settings.refusals.refuse(why, None, parts);
            Poll::Ready(Ok(response.map(ResponseBody::refusal)))
        };
        let answered = |answer: Result<Response<R>, S::Error>, report: &LockReport| {
            Poll::Ready(answer.map(|mut response| {
                settings.add_headers(response.headers_mut(), report.waited, report.fence);
                response.map(ResponseBody::handler)
            }))
        };
        loop {
            match state.as_mut().project() {
                RequestStateProjection::Entering { entering, inside } => {
                    let entered = ready!(entering.as_mut().poll(cx));
                    let (inner, body) = inside.take().expect("the entering future has a service and a body");
                    match entered {
                        ControlFlow::Continue((parts, admission)) => {
                            *report = admission.report;
                            *this.dry_run = admission.dry_run;
                            state.set(RequestState::Readying {
                                inner,
                                request: Some(Request::from_parts(parts, body)),
                                guard: admission.guard,
                            });
                        }
                        ControlFlow::Break(response) => {
                            state.set(RequestState::Done);
                            return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                        }
                    }
                }
                RequestStateProjection::Readying {
                    inner,
                    request,
                    guard,
                } => {
                    // What the inner service does, it does with the knowledge of the lock.
                    let scope = guard.as_ref().map(|guard| guard.enter());
                    let ready = inner.poll_ready(cx);
                    // Whatever the option says: no handler starts without its lock.
                    if guard.as_mut().is_some_and(|guard| guard.poll_lost(cx).is_ready()) {
                        drop(scope);
                        let request = request.take();
                        state.set(RequestState::Done);
                        return refused(
                            Refused::Lost,
                            request.map(|request| request.into_parts().0).as_ref(),
                        );
                    }
                    if let Err(error) = ready!(ready) {
                        state.set(RequestState::Done);
                        return Poll::Ready(Err(error));
                    }
                    let handler = inner.call(request.take().expect("it was made ready"));
                    drop(scope);
                    let guard = guard.take();
                    state.set(match guard {
                        Some(guard) if settings.to_completion => {
                            RequestState::Finishing(Box::pin(run_to_completion(handler, guard, settings)))
                        }
                        guard => RequestState::Handling { handler, guard },
                    });
                }
                RequestStateProjection::Handling { handler, guard } => {
                    // Asked before each step, and after the last one: whoever slept past the deadline takes no other.
                    let cancels = guard.as_mut().filter(|_| settings.cancels_on_loss());
                    if cancels.is_some_and(|guard| guard.poll_lost(cx).is_ready()) {
                        state.set(RequestState::Done);
                        return refused(Refused::OutcomeUnknown, None);
                    }
                    let guarded = guard.as_ref();
                    let scope = guarded.map(|guard| guard.enter());
                    let answer = ready!(handler.poll(cx));
                    drop(scope);
                    let is_held = guarded.is_none_or(|guard| guard.is_held());
                    let guard = guard.take();
                    if !is_held && settings.replaces_on_loss() {
                        state.set(RequestState::Done);
                        return refused(Refused::OutcomeUnknown, None);
                    }
                    match guard {
                        Some(guard) if settings.releases_before_answer() => {
                            state.set(RequestState::Finishing(Box::pin(async {
                                release(guard.into_guard()).await;
                                Some(answer)
                            })));
                        }
                        guard => {
                            state.set(RequestState::Done);
                            drop(guard);
                            return answered(answer, report);
                        }
                    }
                }
                RequestStateProjection::Finishing(answer) => {
                    let answer = ready!(answer.as_mut().poll(cx));
                    state.set(RequestState::Done);
                    return match answer {
                        Some(answer) => answered(answer, report),
                        None => refused(Refused::OutcomeUnknown, None),
                    };
                }
                RequestStateProjection::Done => panic!("polled after it was ready"),
            }
        }
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            RequestState::Entering { .. } => "ResponseFuture::Entering",
            RequestState::Readying { .. } => "ResponseFuture::Readying",
            RequestState::Handling { .. } => "ResponseFuture::Handling",
            RequestState::Finishing(_) => "ResponseFuture::Finishing",
            RequestState::Done => "ResponseFuture::Done",
        })
    }
}
