//! How a request is answered that does not get its lock.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};

use crate::error::{Error, LostCause};
use crate::middleware::body::{RefusalBody, boxed};
use crate::middleware::busy_refusals::BusyRefusals;
use crate::observe;

/// Where the outcomes are explained: an anchor for each variant.
const PROBLEM_BASE: &str = "https://docs.rs/tenure/latest/tenure/middleware/enum.Refused.html";

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
    /// The same where the key is an [`Idempotency-Key`](crate::middleware::keys::idempotency_key): the request that it
    /// names is under way. 409 with `Retry-After`, as the draft of that header asks.
    InFlight,
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
    /// The lease was lost while the handler ran. It was stopped and may have done a part of its work, or it finished and
    /// somebody else may have been at work beside it ([`OnLost`](crate::middleware::OnLost)): 500 without `Retry-After`, as
    /// proxies send again what was answered with 503.
    /// One that is told to repeat every 5xx (Envoy's `retry_on: 5xx`) repeats this as well.
    OutcomeUnknown,
    /// The request's key is empty, too long or malformed: 400.
    BadKey,
    /// The request lacks the header that its key is made of ([`keys`](crate::middleware::keys)): 400.
    NoKey,
    /// An option of the layer makes no sense, or the route has no such path parameter; an event says which: 500.
    BadOptions,
}

impl Refused {
    /// The answer's status, unless the layer was [told otherwise](crate::LockLayer::status).
    pub fn status(self) -> StatusCode {
        match self {
            Refused::Busy => StatusCode::LOCKED,
            Refused::InFlight => StatusCode::CONFLICT,
            Refused::WaitedTooLong | Refused::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Refused::StoreFailed | Refused::Closed | Refused::Lost => StatusCode::SERVICE_UNAVAILABLE,
            Refused::OutcomeUnknown | Refused::BadOptions => StatusCode::INTERNAL_SERVER_ERROR,
            Refused::BadKey | Refused::NoKey => StatusCode::BAD_REQUEST,
        }
    }

    /// Returns whether the same request may be sent again later: the answer then has a `Retry-After`.
    fn can_retry(self) -> bool {
        matches!(
            self.status(),
            StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        )
    }

    /// The title of a [`Problem`].
    fn title(self) -> &'static str {
        match self {
            Refused::Busy => "Locked",
            Refused::InFlight => "In flight",
            Refused::WaitedTooLong => "Waited too long",
            Refused::QueueFull => "Too many requests wait",
            Refused::StoreFailed => "Locks are unavailable",
            Refused::Closed => "Shutting down",
            Refused::Lost => "Interrupted",
            Refused::OutcomeUnknown => "Outcome unknown",
            Refused::BadKey => "Bad key",
            Refused::NoKey => "No key",
            Refused::BadOptions => "Misconfigured",
        }
    }

    /// The value of the metric's label `why`.
    fn label(self) -> &'static str {
        match self {
            Refused::Busy => "busy",
            Refused::InFlight => "in_flight",
            Refused::WaitedTooLong => "waited_too_long",
            Refused::QueueFull => "queue_full",
            Refused::StoreFailed => "store_failed",
            Refused::Closed => "closed",
            Refused::Lost => "lost",
            Refused::OutcomeUnknown => "outcome_unknown",
            Refused::BadKey => "bad_key",
            Refused::NoKey => "no_key",
            Refused::BadOptions => "bad_options",
        }
    }

    /// What a client may read of it, a sentence or two.
    pub fn detail(self) -> &'static str {
        match self {
            Refused::Busy => "Another request is at work on the same resource.",
            Refused::InFlight => {
                "A request with the same Idempotency-Key is in flight. Nothing was done for this one."
            }
            Refused::WaitedTooLong => {
                "Other requests were at work on the same resource for as long as this one could wait. Nothing was done."
            }
            Refused::QueueFull => "Too many requests wait for the same resource already. Nothing was done.",
            Refused::StoreFailed => {
                "The service cannot make sure that this request is alone with its resource. Nothing was done."
            }
            Refused::Closed => "The service is shutting down. Nothing was done.",
            Refused::Lost => "The request lost its exclusive access before it began. Nothing was done.",
            Refused::OutcomeUnknown => {
                "The request lost its exclusive access while it was at work. It may have been done, in part or wholly."
            }
            Refused::BadKey => "What the request would lock has a name that is empty, too long or malformed.",
            Refused::NoKey => {
                "The request does not say what it would lock: a header or a parameter is missing."
            }
            Refused::BadOptions => "The service is not set up to take this lock.",
        }
    }
}

impl From<&Error> for Refused {
    fn from(error: &Error) -> Refused {
        match error {
            Error::Busy { .. } => Refused::WaitedTooLong,
            Error::QueueFull { .. } | Error::NodeFull { .. } => Refused::QueueFull,
            Error::Store { .. } | Error::Connect { .. } => Refused::StoreFailed,
            Error::Closed { .. } => Refused::Closed,
            Error::Lost {
                cause: LostCause::Unfetched,
                ..
            } => Refused::Lost,
            Error::StillHeld { source, .. } => Refused::from(&**source),
            // Whoever held it may have begun, and what it wrote may have been done in part.
            Error::Lost { .. }
            | Error::Gone { .. }
            | Error::Uncertain { .. }
            | Error::Unanswered { .. }
            | Error::Failed { .. }
            | Error::Reply { .. } => Refused::OutcomeUnknown,
            Error::Key { .. } => Refused::BadKey,
            Error::Options(_)
            | Error::WouldDeadlock { .. }
            | Error::Unset { .. }
            | Error::Unsupported { .. } => Refused::BadOptions,
        }
    }
}

/// A request that gets no lock: why, and what it was.
#[derive(Debug)]
pub struct RefusedRequest<'a> {
    why: Refused,
    status: StatusCode,
    retry_after: Option<Duration>,
    base: &'a str,
    parts: Option<&'a Parts>,
}

impl<'a> RefusedRequest<'a> {
    /// Why.
    pub fn why(&self) -> Refused {
        self.why
    }

    /// The status that a [`Problem`] would have.
    pub fn status(&self) -> StatusCode {
        self.status
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
        let RefusedRequest {
            why, status, base, ..
        } = *request;
        let (title, code, detail) = (why.title(), status.as_u16(), why.detail());
        let mut response = Response::new(format!(
            r#"{{"type":"{base}#variant.{why:?}","title":"{title}","status":{code},"detail":"{detail}"}}"#
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
        let refusals = RefusalPolicy::default();
        let request = refusals.request(Refused::from(&self), None);
        Problem.answer(&request).map(axum_core::body::Body::from)
    }
}

/// The text as it stands between the quotes of a JSON string (RFC 8259, 7).
fn escape_json(text: Cow<'static, str>) -> Cow<'static, str> {
    let must_be_escaped = |c: char| matches!(c, '"' | '\\' | '\0'..='\x1f');
    if !text.contains(must_be_escaped) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if must_be_escaped(c) {
            write!(escaped, "\\u{:04x}", u32::from(c)).expect("a string takes all");
        } else {
            escaped.push(c);
        }
    }
    escaped.into()
}

type AnswerFn = dyn Fn(&RefusedRequest<'_>) -> Answer + Send + Sync;

fn answer_fn(on_refusal: impl OnRefusal) -> Arc<AnswerFn> {
    Arc::new(move |request| on_refusal.answer(request).into_answer())
}

/// How a layer refuses.
#[derive(Clone)]
pub(super) struct RefusalPolicy {
    /// The layer's [`OnRefusal`], whatever its type: the layer's would otherwise name it everywhere.
    answer: Arc<AnswerFn>,
    /// What the layer was told to answer with instead of [`Refused::status`].
    statuses: HashMap<Refused, StatusCode>,
    retry_after: Option<Duration>,
    /// As it stands in JSON.
    base: Cow<'static, str>,
    /// That the layer is set up wrongly is told once: every request of a route would tell it.
    told: Arc<AtomicBool>,
    busy: BusyRefusals,
}

impl Default for RefusalPolicy {
    fn default() -> Self {
        RefusalPolicy {
            answer: answer_fn(Problem),
            statuses: HashMap::new(),
            retry_after: None,
            base: Cow::Borrowed(PROBLEM_BASE),
            told: Arc::default(),
            busy: BusyRefusals::default(),
        }
    }
}

impl RefusalPolicy {
    pub(super) fn set_answer(&mut self, answer: impl OnRefusal) {
        self.answer = answer_fn(answer);
    }

    pub(super) fn set_status(&mut self, why: Refused, status: StatusCode) {
        self.statuses.insert(why, status);
    }

    pub(super) fn set_retry_after(&mut self, after: Duration) {
        let seconds = after.as_secs_f64().ceil() as u64;
        self.retry_after = Some(Duration::from_secs(seconds.clamp(1, 86_400)));
    }

    pub(super) fn set_base(&mut self, base: Cow<'static, str>) {
        self.base = escape_json(base);
    }

    fn request<'a>(&'a self, why: Refused, parts: Option<&'a Parts>) -> RefusedRequest<'a> {
        // Not all at once: who was refused together would come back together.
        let jittered = || Duration::from_secs(fastrand::u64(1..=3));
        RefusedRequest {
            why,
            status: self.statuses.get(&why).copied().unwrap_or(why.status()),
            retry_after: why.can_retry().then(|| self.retry_after.unwrap_or_else(jittered)),
            base: &self.base,
            parts,
        }
    }

    /// Answers a request that gets no lock, and tells of it.
    pub(super) fn refuse(
        &self,
        why: Refused,
        error: Option<&Error>,
        parts: Option<&Parts>,
    ) -> Response<RefusalBody> {
        let request = self.request(why, parts);
        let Answer(mut response) = (self.answer)(&request);
        let is_news = why == Refused::BadOptions && !self.told.swap(true, Ordering::Relaxed);
        let route = parts.and_then(route);
        let told = observe::Refusal {
            why: &format!("{why:?}"),
            label: why.label(),
            status: response.status().as_u16(),
            route,
            is_news,
        };
        observe::refused(&told, error);
        if matches!(
            why,
            Refused::Busy | Refused::InFlight | Refused::WaitedTooLong | Refused::QueueFull
        ) {
            self.busy.count_refusal(route);
        }
        response.extensions_mut().insert(why);
        response
    }
}

impl fmt::Debug for RefusalPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalPolicy")
            .field("statuses", &self.statuses)
            .field("retry_after", &self.retry_after)
            .finish_non_exhaustive()
    }
}

/// The route as it was declared, where axum knows it.
#[cfg_attr(not(feature = "axum"), allow(unused_variables))]
pub(super) fn route(parts: &Parts) -> Option<&str> {
    #[cfg(feature = "axum")]
    return parts
        .extensions
        .get::<axum::extract::MatchedPath>()
        .map(axum::extract::MatchedPath::as_str);
    #[cfg(not(feature = "axum"))]
    None
}
