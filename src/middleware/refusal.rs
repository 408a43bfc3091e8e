//! How a request is answered that does not get its lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};

use crate::error::Error;
use crate::middleware::body::{RefusalBody, boxed};

/// Why the layer answered a request itself. It stands in the response's extensions, where layers outside can tell such
/// an answer from one of the handler's, count it, or put another in its place.
///
/// The answer is a [`Problem`], unless you [say otherwise](crate::LockLayer::on_refusal).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refused {
    /// Another request has the lock, and this one was not to wait ([`skip`](crate::LockLayer::skip), or a
    /// [`wait`](crate::LockLayer::wait) of nothing): 423.
    Busy,
    /// The wait was over before it was this request's turn ([`wait`](crate::LockLayer::wait)): 429 with `Retry-After`. No
    /// 503, for which a load balancer ejects a replica: one busy key says nothing about its other requests.
    WaitedTooLong,
    /// Too many requests wait already ([`max_waiters`](crate::LockLayer::max_waiters)): 429 with `Retry-After`.
    QueueFull,
    /// The store cannot be reached or refuses. Without it nobody knows who may run, so nobody runs: 503 with
    /// `Retry-After`.
    StoreFailed,
    /// The service shuts down: 503 with `Retry-After`.
    Closed,
    /// The lease was lost before the handler began, so nothing was done: 503 with `Retry-After`.
    Lost,
    /// The lease was lost while the handler ran, which was stopped ([`OnLost::Cancel`](crate::middleware::OnLost::Cancel))
    /// and may have done a part of its work: 500 without `Retry-After`, as proxies send again what was answered with 503.
    /// One that is told to repeat every 5xx (Envoy's `retry_on: 5xx`) repeats this as well.
    OutcomeUnknown,
    /// The request's key is empty, too long or malformed: 400.
    BadKey,
    /// The request lacks the header that its key is made of ([`keys`](crate::middleware::keys)): 400.
    NoKey,
    /// An option of the layer makes no sense, or the route has no such path parameter; an event says which: 500.
    BadOptions,
}

struct Row {
    status: StatusCode,
    name: &'static str,
    title: &'static str,
    detail: &'static str,
    retry: bool,
}

const fn row(
    status: StatusCode,
    name: &'static str,
    title: &'static str,
    detail: &'static str,
    retry: bool,
) -> Row {
    Row {
        status,
        name,
        title,
        detail,
        retry,
    }
}

impl Refused {
    /// The one table of what a client is told.
    #[allow(clippy::too_many_lines, reason = "a table")]
    fn row(self) -> Row {
        use StatusCode as S;
        match self {
            Refused::Busy => row(
                S::LOCKED,
                "Busy",
                "Locked",
                "Another request is at work on the same resource.",
                false,
            ),
            Refused::WaitedTooLong => row(
                S::TOO_MANY_REQUESTS,
                "WaitedTooLong",
                "Waited too long",
                "Other requests were at work on the same resource for as long as this one could wait. Nothing was done.",
                true,
            ),
            Refused::QueueFull => row(
                S::TOO_MANY_REQUESTS,
                "QueueFull",
                "Too many requests wait",
                "Too many requests wait for the same resource already. Nothing was done.",
                true,
            ),
            Refused::StoreFailed => row(
                S::SERVICE_UNAVAILABLE,
                "StoreFailed",
                "Locks are unavailable",
                "The service cannot make sure that this request is alone with its resource. Nothing was done.",
                true,
            ),
            Refused::Closed => row(
                S::SERVICE_UNAVAILABLE,
                "Closed",
                "Shutting down",
                "The service is shutting down. Nothing was done.",
                true,
            ),
            Refused::Lost => row(
                S::SERVICE_UNAVAILABLE,
                "Lost",
                "Interrupted",
                "The request lost its exclusive access before it began. Nothing was done.",
                true,
            ),
            Refused::OutcomeUnknown => row(
                S::INTERNAL_SERVER_ERROR,
                "OutcomeUnknown",
                "Outcome unknown",
                "The request lost its exclusive access and was stopped. It may have been done in part.",
                false,
            ),
            Refused::BadKey => row(
                S::BAD_REQUEST,
                "BadKey",
                "Bad key",
                "What the request would lock has a name that is empty, too long or malformed.",
                false,
            ),
            Refused::NoKey => row(
                S::BAD_REQUEST,
                "NoKey",
                "No key",
                "The request does not say what it would lock: a header is missing.",
                false,
            ),
            Refused::BadOptions => row(
                S::INTERNAL_SERVER_ERROR,
                "BadOptions",
                "Misconfigured",
                "The service is not set up to take this lock.",
                false,
            ),
        }
    }

    /// The answer's status.
    pub fn status(self) -> StatusCode {
        self.row().status
    }

    /// What a client may read of it, a sentence or two.
    pub fn detail(self) -> &'static str {
        self.row().detail
    }
}

impl From<&Error> for Refused {
    fn from(error: &Error) -> Refused {
        match error {
            Error::Busy { .. } => Refused::WaitedTooLong,
            Error::QueueFull { .. } | Error::NodeFull { .. } => Refused::QueueFull,
            Error::Store { .. } | Error::Connect { .. } => Refused::StoreFailed,
            Error::Closed { .. } => Refused::Closed,
            // Whoever held it may have begun.
            Error::Lost { .. } => Refused::OutcomeUnknown,
            Error::Key { .. } => Refused::BadKey,
            Error::Options(_) => Refused::BadOptions,
        }
    }
}

/// A request that gets no lock: why, and what it was.
#[derive(Debug)]
pub struct RefusedRequest<'a> {
    why: Refused,
    retry_after: Option<Duration>,
    parts: Option<&'a Parts>,
}

impl<'a> RefusedRequest<'a> {
    fn new(why: Refused, parts: Option<&'a Parts>) -> Self {
        // Not all at once: who was refused together would come back together.
        let retry_after = why.row().retry.then(|| Duration::from_secs(fastrand::u64(1..=3)));
        RefusedRequest {
            why,
            retry_after,
            parts,
        }
    }

    /// Why.
    pub fn why(&self) -> Refused {
        self.why
    }

    /// The status that a [`Problem`] would have.
    pub fn status(&self) -> StatusCode {
        self.why.status()
    }

    /// When the client might try again, in whole seconds; `None` where that is not for us to say.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The request's head. `None` where the handler has it: when the lease was lost while it ran,
    /// [`OutcomeUnknown`](Refused::OutcomeUnknown).
    pub fn parts(&self) -> Option<&'a Parts> {
        self.parts
    }
}

/// How to answer a request that gets no lock: what [`LockLayer::on_refusal`](crate::LockLayer::on_refusal) takes.
///
/// Every `Fn(&RefusedRequest) -> impl IntoAnswer` is one, and so is [`Problem`]. Write one by hand when it deserves a
/// name:
///
/// ```
/// use http::Response;
/// use tenure::middleware::{OnRefusal, RefusedRequest};
/// use tenure::{LockLayer, Locks};
///
/// struct Plain {
///     contact: &'static str,
/// }
///
/// impl OnRefusal for Plain {
///     type Answer = Response<String>;
///
///     fn answer(&self, request: &RefusedRequest) -> Response<String> {
///         let text = format!("{} Call {}.", request.why().detail(), self.contact);
///         Response::builder().status(request.status()).body(text).expect("it is a valid response")
///     }
/// }
///
/// # let locks = Locks::memory();
/// let layer = LockLayer::by(&locks, |_| "nightly").on_refusal(Plain { contact: "the night shift" });
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not answer refused requests",
    note = "it takes a closure `|request: &RefusedRequest|` with that type written out, that can be sent and shared, and that returns a response"
)]
pub trait OnRefusal: Send + Sync + 'static {
    /// What it answers with.
    type Answer: IntoAnswer;

    /// The answer to this request. It is given the [`Refused`] into its extensions.
    fn answer(&self, request: &RefusedRequest<'_>) -> Self::Answer;
}

impl<F, A> OnRefusal for F
where
    F: Fn(&RefusedRequest<'_>) -> A + Send + Sync + 'static,
    A: IntoAnswer,
{
    type Answer = A;

    fn answer(&self, request: &RefusedRequest<'_>) -> A {
        self(request)
    }
}

/// Answers with an `application/problem+json` (RFC 9457) whose `type` points to a variant of [`Refused`], and with
/// `Retry-After` where that helps. It names neither the key nor its holder: both may belong to somebody else. What a
/// layer does unless told otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub struct Problem;

impl OnRefusal for Problem {
    type Answer = Response<String>;

    fn answer(&self, request: &RefusedRequest<'_>) -> Response<String> {
        let Row {
            status,
            name,
            title,
            detail,
            ..
        } = request.why.row();
        let kind =
            format_args!("https://docs.rs/tenure/latest/tenure/middleware/enum.Refused.html#variant.{name}");
        let code = status.as_u16();
        let mut response = Response::new(format!(
            r#"{{"type":"{kind}","title":"{title}","status":{code},"detail":"{detail}"}}"#
        ));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = request.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs()));
        }
        response
    }
}

/// What can be an answer: with the feature `axum` anything that implements `IntoResponse`; without, an
/// [`http::Response`] with a body of [`Bytes`](bytes::Bytes).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an answer",
    note = "return an `http::Response` whose body can be sent; with the feature `axum`, anything that implements `IntoResponse`"
)]
pub trait IntoAnswer {
    /// The conversion.
    fn into_answer(self) -> Answer;
}

/// An answer of yours, with any body. Made by [`IntoAnswer`].
#[derive(Debug)]
pub struct Answer(pub(super) Response<RefusalBody>);

// `IntoResponse` covers every response that the other implementation takes, so that the feature only adds.
#[cfg(feature = "axum")]
impl<T: axum_core::response::IntoResponse> IntoAnswer for T {
    fn into_answer(self) -> Answer {
        Answer(self.into_response().map(boxed))
    }
}

#[cfg(not(feature = "axum"))]
impl<B> IntoAnswer for Response<B>
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<crate::middleware::body::BoxError>,
{
    fn into_answer(self) -> Answer {
        Answer(self.map(boxed))
    }
}

/// Handlers may return it: with a [`Problem`], as a layer answers whose request meets it.
#[cfg(feature = "axum")]
impl axum_core::response::IntoResponse for Error {
    fn into_response(self) -> axum_core::response::Response {
        let request = RefusedRequest::new(Refused::from(&self), None);
        Problem.answer(&request).map(axum_core::body::Body::from)
    }
}

/// A layer's [`OnRefusal`], whatever its type: the layer's would otherwise name it everywhere.
#[derive(Clone)]
pub(super) struct Refusals(Arc<dyn Fn(&RefusedRequest<'_>) -> Answer + Send + Sync>);

impl Refusals {
    pub(super) fn new(answer: impl OnRefusal) -> Self {
        Refusals(Arc::new(move |request| answer.answer(request).into_answer()))
    }

    pub(super) fn answer(&self, why: Refused, parts: Option<&Parts>) -> Response<RefusalBody> {
        let Answer(mut response) = self.0(&RefusedRequest::new(why, parts));
        response.extensions_mut().insert(why);
        response
    }
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refusals")
    }
}
