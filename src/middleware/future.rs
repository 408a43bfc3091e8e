//! The future of one request: acquires the lock, runs the handler, returns the response.

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use pin_project::pin_project;
use tower_service::Service;

use crate::middleware::body::{RefusalBody, ResponseBody};
use crate::middleware::completion::run_to_completion;
use crate::middleware::kept_leases::{KeptLeases, LostBefore};
use crate::middleware::layer::LayerSettings;
use crate::middleware::refusal::Refused;
use crate::middleware::request_guard::{DryRun, Finished, RequestGuard};
use crate::protocol::message::Fence;

pub(super) type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The result of acquiring the lock: the request with its admission, or the response that refuses the request.
pub(super) type EnterResult = ControlFlow<Response<RefusalBody>, (Parts, Admission)>;

/// What an admitted request holds. It is empty if the request has no key.
#[derive(Default)]
pub(super) struct Admission {
    pub(super) guard: Option<RequestGuard>,
    pub(super) report: LockReport,
    pub(super) dry_run: Option<DryRun>,
    /// The handler runs to completion, with or without a guard.
    pub(super) completes: bool,
}

impl Admission {
    /// Admits a request that got no lock from its layer: it has no key, or the store failed.
    pub(super) fn without_lock(settings: &LayerSettings) -> Self {
        Admission {
            completes: settings.to_completion,
            ..Admission::default()
        }
    }
}

/// The future that a [`LockService`](crate::middleware::LockService) returns.
///
/// # Cancel safety
/// Dropping the future gives up the place in the queue. If the handler already runs, the handler's future is dropped,
/// and the lock is then released in the background. A handler that [runs to
/// completion](crate::LockLayer::run_to_completion) continues, with its lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use tenure::{LockLayer, Locks, middleware::{ResponseFuture, keys}};
/// use tower::{Layer, Service, service_fn};
///
/// let handler = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::from("done"))) });
/// let mut service = LockLayer::new(&Locks::memory(), keys::fixed("import")).layer(handler);
/// let answer: ResponseFuture<_, _> = service.call(Request::new(String::new()));
/// assert_eq!(answer.await.unwrap().status(), 200);
/// # }
/// ```
#[pin_project]
#[must_use = "futures do nothing until they are awaited"]
pub struct ResponseFuture<S: Service<Request<B>>, B> {
    #[pin]
    state: RequestState<S, B>,
    settings: Arc<LayerSettings>,
    report: LockReport,
    /// Ends with the request, however that ends.
    dry_run: Option<DryRun>,
}

/// The facts about the lock that the response headers report.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct LockReport {
    /// How long the request waited for its lock.
    pub(super) waited: Duration,
    pub(super) fence: Option<Fence>,
    /// A response to this method with a status of 2xx is an upgrade (RFC 9110, section 9.3.6).
    pub(super) is_connect: bool,
}

// The large variants hold the request or the handler's future. A box for them would cost each request an allocation.
#[allow(clippy::large_enum_variant)]
#[pin_project(project = RequestStateProjection)]
enum RequestState<S: Service<Request<B>>, B> {
    /// The key is read, and the request waits for its lock. The inner service and the body wait in `inside`.
    Entering {
        entering: BoxedFuture<EnterResult>,
        inside: Option<(S, B)>,
    },
    /// The request is admitted, with its lock if it has a key. Only now does the inner service become ready and take
    /// the request.
    Readying {
        inner: S,
        request: Option<Request<B>>,
        guard: Option<RequestGuard>,
        completes: bool,
    },
    /// The handler runs. The fields are dropped in this order: first the handler, then the guard that protects it.
    Handling {
        #[pin]
        handler: S::Future,
        guard: Option<RequestGuard>,
    },
    /// The handler runs in a task of its own. Or the handler has ended, and its response waits until the lock is
    /// free, so that the client finds the lock free. The future returns `None` if the outcome is unknown.
    Finishing(BoxedFuture<Option<Finished<S::Response, S::Error>>>),
    /// The response was returned.
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

    #[allow(clippy::too_many_lines, reason = "the states stand in the order of a request")]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (mut state, settings, report) = (this.state, &**this.settings, this.report);
        let dry_run = this.dry_run;
        let refused = |why, parts: Option<&Parts>| {
            let response = settings.refusals.refuse(why, None, parts);
            Poll::Ready(Ok(response.map(ResponseBody::refusal)))
        };
        let answered = |(answer, guard): Finished<Response<R>, S::Error>, report: &LockReport, dry_run| {
            Poll::Ready(answer.map(|mut response| {
                settings.add_headers(response.headers_mut(), report.waited, report.fence);
                let status = response.status();
                // The lock of an upgraded connection ends with the head.
                let is_upgrade =
                    status == StatusCode::SWITCHING_PROTOCOLS || report.is_connect && status.is_success();
                let response = response.map(ResponseBody::handler);
                if !settings.hold_until_body_end || is_upgrade {
                    return response;
                }
                response.map(|body| body.holds(guard, settings.replaces_on_loss(), dry_run))
            }))
        };
        loop {
            match state.as_mut().project() {
                RequestStateProjection::Entering { entering, inside } => {
                    let entered = ready!(entering.as_mut().poll(cx));
                    let (inner, body) = inside.take().expect("a request enters once");
                    match entered {
                        ControlFlow::Continue((parts, admission)) => {
                            *report = admission.report;
                            *dry_run = admission.dry_run;
                            state.set(RequestState::Readying {
                                inner,
                                request: Some(Request::from_parts(parts, body)),
                                guard: admission.guard,
                                completes: admission.completes,
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
                    completes,
                } => {
                    // The inner service runs in the scope of the lock, so that the service can find it.
                    let scope = guard.as_ref().map(|guard| guard.enter());
                    let ready = inner.poll_ready(cx);
                    // No handler starts without its lock, whatever `on_lost` says.
                    let mut is_lost = guard.as_mut().is_some_and(|guard| guard.poll_lost(cx).is_ready());
                    let (completes, mut kept) = (*completes, KeptLeases::default());
                    if !is_lost {
                        if let Err(error) = ready!(ready) {
                            state.set(RequestState::Done);
                            return Poll::Ready(Err(error));
                        }
                        if let Some(request) = request.as_ref().filter(|_| completes) {
                            match KeptLeases::of(request.extensions(), guard.as_ref()) {
                                Ok(all) => kept = all,
                                Err(LostBefore) => is_lost = true,
                            }
                        }
                    }
                    if is_lost {
                        drop(scope);
                        let request = request.take();
                        state.set(RequestState::Done);
                        return refused(
                            Refused::Lost,
                            request.map(|request| request.into_parts().0).as_ref(),
                        );
                    }
                    let handler =
                        inner.call(request.take().expect("the inner service takes the request once"));
                    drop(scope);
                    let guard = guard.take();
                    state.set(if completes {
                        RequestState::Finishing(Box::pin(run_to_completion(handler, guard, kept, settings)))
                    } else {
                        RequestState::Handling { handler, guard }
                    });
                }
                RequestStateProjection::Handling { handler, guard } => {
                    // The lease is checked before each poll of the handler. So a process that slept past the deadline
                    // does not poll the handler again.
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
                        Some(guard) if guard.releases_before_answer && !settings.hold_until_body_end => {
                            state.set(RequestState::Finishing(Box::pin(async {
                                guard.release().await;
                                Some((answer, None))
                            })));
                        }
                        guard => {
                            state.set(RequestState::Done);
                            return answered((answer, guard), report, dry_run.take());
                        }
                    }
                }
                RequestStateProjection::Finishing(answer) => {
                    let answer = ready!(answer.as_mut().poll(cx));
                    state.set(RequestState::Done);
                    return match answer {
                        Some(answer) => answered(answer, report, dry_run.take()),
                        None => refused(Refused::OutcomeUnknown, None),
                    };
                }
                RequestStateProjection::Done => panic!("the future was polled after it was ready"),
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
