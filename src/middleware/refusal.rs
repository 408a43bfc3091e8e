//! The response to a request that does not get its lock.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};

use crate::error::{Error, LostCause, Trouble};
use crate::middleware::body::{RefusalBody, boxed};
use crate::middleware::busy_refusals::BusyRefusals;
use crate::middleware::route::{RouteThrottle, route};
use crate::observe;

/// The page that explains the outcomes, with an anchor for each variant.
const PROBLEM_BASE: &str = "https://docs.rs/tenure/latest/tenure/middleware/enum.Refused.html";

/// The longest `Retry-After`, in seconds: one day.
const MAX_RETRY_AFTER: u64 = 86_400;

/// The reason why the layer answered a request itself. It is in the response's extensions. So an outer layer can
/// distinguish a refusal from a response of the handler, count it, or replace it.
///
/// The response is a [`Problem`], unless [`on_refusal`](crate::LockLayer::on_refusal) sets another one.
///
/// ```
/// use http::Response;
/// use tenure::middleware::Refused;
///
/// /// In a layer outside: counts the responses that are no answer of the handler.
/// fn outcome<B>(response: &Response<B>) -> &'static str {
///     match response.extensions().get::<Refused>() {
///         None => "handled",
///         Some(Refused::OutcomeUnknown) => "perhaps done",
///         Some(_) => "refused, and nothing was done",
///     }
/// }
/// # assert_eq!(outcome(&Response::new(())), "handled");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refused {
    /// Another request has the lock, and this request may not wait ([`skip`](crate::LockLayer::skip), or a
    /// [`wait`](crate::LockLayer::wait) of zero): 423.
    Busy,
    /// The request that this [`Idempotency-Key`](crate::middleware::keys::idempotency_key) names is in flight, and
    /// this request may not wait. The status is 409 with `Retry-After`, as the draft of that header asks.
    InFlight,
    /// The [`wait`](crate::LockLayer::wait) ended before the lock was free: 429 with `Retry-After`. The status is not
    /// 503, because a load balancer ejects a replica that answers 503, and one busy key says nothing about other
    /// requests.
    WaitedTooLong,
    /// Too many requests already wait for the key ([`max_waiters`](crate::LockLayer::max_waiters)): 429 with
    /// `Retry-After`.
    QueueFull,
    /// The store cannot be reached, or refuses for now. Without the store no request may run: 503 with `Retry-After`.
    StoreFailed,
    /// The store may have lost leases, and grants none until the earlier ones have ended
    /// ([`Locks::recovering`](crate::Locks::recovering)), which is later than this request can wait: 503. `Retry-After` is the
    /// rest of that time and up to 2 s.
    Recovering,
    /// The store refuses this lock until the key, the rights or the layer is corrected: 500. An event names the key, or has the
    /// server's words. See [`Trouble::Key`] and [`Trouble::Service`].
    StoreRefused,
    /// The service is shutting down: 503 with `Retry-After`.
    Closed,
    /// The lease was lost before the handler began, so nothing was done: 503 with `Retry-After`.
    Lost,
    /// The lease was lost while the handler ran. The handler was stopped after a part of its work, or it finished
    /// while another holder may have run ([`OnLost`](crate::middleware::OnLost)). The status is 500 without
    /// `Retry-After`, because proxies repeat a request that was answered with 503. A proxy that repeats every 5xx
    /// (Envoy's `retry_on: 5xx`) repeats this one too.
    OutcomeUnknown,
    /// The request's key is empty, too long or malformed: 400.
    BadKey,
    /// The request lacks a part that its key needs, such as a header ([`keys`](crate::middleware::keys)): 400.
    NoKey,
    /// An option of the layer is invalid, or the route has no such path parameter, or the request lacks an extension:
    /// 500. An event names the cause.
    BadOptions,
}

impl Refused {
    /// Returns the status of the response, unless [`LockLayer::status`](crate::LockLayer::status) sets another one.
    pub fn status(self) -> StatusCode {
        match self {
            Refused::Busy => StatusCode::LOCKED,
            Refused::InFlight => StatusCode::CONFLICT,
            Refused::WaitedTooLong | Refused::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Refused::StoreFailed | Refused::Recovering | Refused::Closed | Refused::Lost => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Refused::OutcomeUnknown | Refused::BadOptions | Refused::StoreRefused => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Refused::BadKey | Refused::NoKey => StatusCode::BAD_REQUEST,
        }
    }

    /// Returns whether the same request may be sent again later.
    fn is_passing(self) -> bool {
        match self {
            Refused::Busy
            | Refused::InFlight
            | Refused::WaitedTooLong
            | Refused::QueueFull
            | Refused::StoreFailed
            | Refused::Recovering
            | Refused::Closed
            | Refused::Lost => true,
            Refused::StoreRefused
            | Refused::OutcomeUnknown
            | Refused::BadKey
            | Refused::NoKey
            | Refused::BadOptions => false,
        }
    }

    /// Returns the title of a [`Problem`].
    fn title(self) -> &'static str {
        match self {
            Refused::Busy => "Locked",
            Refused::InFlight => "In flight",
            Refused::WaitedTooLong => "Waited too long",
            Refused::QueueFull => "Too many requests wait",
            Refused::StoreFailed => "Locks are unavailable",
            Refused::Recovering => "Locks are recovering",
            Refused::StoreRefused => "Locks are refused",
            Refused::Closed => "Shutting down",
            Refused::Lost => "Interrupted",
            Refused::OutcomeUnknown => "Outcome unknown",
            Refused::BadKey => "Bad key",
            Refused::NoKey => "No key",
            Refused::BadOptions => "Misconfigured",
        }
    }

    /// Returns the value of the metric's label `why`.
    fn label(self) -> &'static str {
        match self {
            Refused::Busy => "busy",
            Refused::InFlight => "in_flight",
            Refused::WaitedTooLong => "waited_too_long",
            Refused::QueueFull => "queue_full",
            Refused::StoreFailed => "store_failed",
            Refused::Recovering => "recovering",
            Refused::StoreRefused => "store_refused",
            Refused::Closed => "closed",
            Refused::Lost => "lost",
            Refused::OutcomeUnknown => "outcome_unknown",
            Refused::BadKey => "bad_key",
            Refused::NoKey => "no_key",
            Refused::BadOptions => "bad_options",
        }
    }

    /// Returns an explanation for the client, of one or two sentences.
    pub fn detail(self) -> &'static str {
        match self {
            Refused::Busy => "Another request uses the same resource.",
            Refused::InFlight => {
                "A request with the same Idempotency-Key is in flight. Nothing was done for this one."
            }
            Refused::WaitedTooLong => {
                "Other requests used the same resource for as long as this request could wait. Nothing was done."
            }
            Refused::QueueFull => "Too many requests already wait for the same resource. Nothing was done.",
            Refused::StoreFailed => {
                "The service cannot make sure that only this request uses its resource. Nothing was done."
            }
            Refused::Recovering => {
                "The store of the locks recovers, and grants none for a while. Nothing was done."
            }
            Refused::StoreRefused => {
                "The service cannot take this lock before its operator corrects something. Nothing was done."
            }
            Refused::Closed => "The service is shutting down. Nothing was done.",
            Refused::Lost => "The request lost its exclusive access before it began. Nothing was done.",
            Refused::OutcomeUnknown => {
                "The request lost its exclusive access while it ran. Its work may have been done, in part or completely."
            }
            Refused::BadKey => "The key of the request's lock is empty, too long or malformed.",
            Refused::NoKey => "The request has no key for its lock: a header or a parameter is missing.",
            Refused::BadOptions => "The service is not configured to take this lock.",
        }
    }
}

impl From<&Error> for Refused {
    fn from(error: &Error) -> Refused {
        match error {
            Error::Busy { .. } => Refused::WaitedTooLong,
            Error::QueueFull { .. } | Error::NodeFull { .. } => Refused::QueueFull,
            Error::Store { source, .. } | Error::Connect { source, .. } => match source.trouble() {
                Trouble::Unanswered | Trouble::Passing => Refused::StoreFailed,
                Trouble::Recovering => Refused::Recovering,
                Trouble::Key | Trouble::Service => Refused::StoreRefused,
            },
            Error::Closed { .. } => Refused::Closed,
            Error::Lost {
                cause: LostCause::Unfetched,
                ..
            } => Refused::Lost,
            Error::StillHeld { source, .. } => Refused::from(&**source),
            Error::InUse { .. } => Refused::StoreFailed,
            // The earlier holder may have begun, and may have done a part of its work.
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

/// A request that gets no lock, and the reason.
///
/// ```
/// use http::Response;
/// use tenure::{LockLayer, Locks, middleware::{RefusedRequest, keys}};
///
/// # let locks = Locks::memory();
/// let layer = LockLayer::new(&locks, keys::fixed("import")).on_refusal(|request: &RefusedRequest| {
///     let path = request.parts().map_or("?", |parts| parts.uri.path());
///     let text = format!("{path}: {}", request.why().detail());
///     Response::builder().status(request.status()).body(text).expect("it is a valid response")
/// });
/// # drop(layer);
/// ```
#[derive(Debug)]
pub struct RefusedRequest<'a> {
    why: Refused,
    status: StatusCode,
    retry_after: Option<Duration>,
    base: &'a str,
    parts: Option<&'a Parts>,
}

impl<'a> RefusedRequest<'a> {
    /// Returns the reason.
    pub fn why(&self) -> Refused {
        self.why
    }

    /// Returns the status that a [`Problem`] would have.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns when the client may try again, in whole seconds. Returns `None` if the layer cannot know that.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the request's head. Returns `None` if the handler has taken it: the lease was lost while the handler
    /// ran, [`OutcomeUnknown`](Refused::OutcomeUnknown).
    pub fn parts(&self) -> Option<&'a Parts> {
        self.parts
    }
}

/// Answers a request that gets no lock. [`LockLayer::on_refusal`](crate::LockLayer::on_refusal) takes a value of this
/// trait.
///
/// Every `Fn(&RefusedRequest) -> impl IntoAnswer` implements it, and so does [`Problem`]. Implement it by hand if the
/// answer deserves a name:
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
    /// The type of the answer.
    type Answer: IntoAnswer;

    /// Returns the answer to this request. The layer adds the [`Refused`] to its extensions.
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
/// `Retry-After` where a retry helps. The answer names neither the key nor its holder: both may belong to another
/// client. This is the default of a layer.
///
/// ```
/// use http::HeaderValue;
/// use tenure::{LockLayer, Locks, middleware::{OnRefusal, Problem, RefusedRequest, keys}};
///
/// # let locks = Locks::memory();
/// let layer = LockLayer::new(&locks, keys::fixed("import")).on_refusal(|request: &RefusedRequest| {
///     let mut response = Problem.answer(request);
///     response.headers_mut().insert("x-contact", HeaderValue::from_static("night shift"));
///     response
/// });
/// # drop(layer);
/// ```
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

/// A value that can be an answer. With the feature `axum`, this is any type that implements `IntoResponse`. Without
/// it, this is an [`http::Response`] with a body of [`Bytes`](bytes::Bytes).
///
/// ```
/// use http::Response;
/// use tenure::middleware::{IntoAnswer, OnRefusal, RefusedRequest};
///
/// /// Answers in any way that a response can be made.
/// struct With<F>(F);
///
/// impl<A: IntoAnswer, F: Fn() -> A + Send + Sync + 'static> OnRefusal for With<F> {
///     type Answer = A;
///
///     fn answer(&self, _: &RefusedRequest) -> A {
///         self.0()
///     }
/// }
///
/// let answer = With(|| Response::new(String::from("try later")));
/// # let locks = tenure::Locks::memory();
/// # let layer = tenure::LockLayer::by(&locks, |_| "import").on_refusal(answer);
/// # drop(layer);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an answer",
    note = "return an `http::Response` whose body can be sent; with the feature `axum`, anything that implements `IntoResponse`"
)]
pub trait IntoAnswer {
    /// Converts the value into an answer.
    fn into_answer(self) -> Answer;
}

/// A response with any body. Made by [`IntoAnswer`].
///
/// ```
/// use http::Response;
/// use tenure::middleware::{Answer, IntoAnswer};
///
/// let answer: Answer = Response::new(String::from("one import at a time")).into_answer();
/// # drop(answer);
/// ```
#[derive(Debug)]
pub struct Answer(pub(super) Response<RefusalBody>);

// Every response that the other implementation takes also implements `IntoResponse`. So the feature only adds types.
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

/// A handler may return an [`Error`](enum@Error): it becomes the [`Problem`] with which a layer answers that error.
#[cfg(feature = "axum")]
impl axum_core::response::IntoResponse for Error {
    fn into_response(self) -> axum_core::response::Response {
        let refusals = RefusalPolicy::default();
        let request = refusals.request(Refused::from(&self), recovery(Some(&self)), None);
        Problem.answer(&request).map(axum_core::body::Body::from)
    }
}

/// Escapes the text for a JSON string (RFC 8259, section 7).
fn escape_json(text: Cow<'static, str>) -> Cow<'static, str> {
    let must_be_escaped = |c: char| matches!(c, '"' | '\\' | '\0'..='\x1f');
    if !text.contains(must_be_escaped) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if must_be_escaped(c) {
            write!(escaped, "\\u{:04x}", u32::from(c)).expect("writing to a string cannot fail");
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

/// The settings of a layer for its refusals.
#[derive(Clone)]
pub(super) struct RefusalPolicy {
    /// The layer's [`OnRefusal`], boxed. Otherwise its type would be a parameter of the layer.
    answer: Arc<AnswerFn>,
    /// The statuses that replace [`Refused::status`].
    statuses: HashMap<Refused, StatusCode>,
    retry_after: Option<Duration>,
    /// The base of the problem's `type`, escaped for JSON.
    base: Cow<'static, str>,
    /// Limits the reports of a layer that is misconfigured, because every request of a route has the same fault.
    faults: RouteThrottle,
    /// Limits the reports of locks that the store refuses.
    store_refusals: RouteThrottle,
    busy: BusyRefusals,
}

impl Default for RefusalPolicy {
    fn default() -> Self {
        RefusalPolicy {
            answer: answer_fn(Problem),
            statuses: HashMap::new(),
            retry_after: None,
            base: Cow::Borrowed(PROBLEM_BASE),
            faults: RouteThrottle::default(),
            store_refusals: RouteThrottle::default(),
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
        self.retry_after = Some(Duration::from_secs(seconds.clamp(1, MAX_RETRY_AFTER)));
    }

    pub(super) fn set_base(&mut self, base: Cow<'static, str>) {
        self.base = escape_json(base);
    }

    /// Describes a refusal. `recovery` is how long the server still recovers.
    fn request<'a>(
        &'a self,
        why: Refused,
        recovery: Option<Duration>,
        parts: Option<&'a Parts>,
    ) -> RefusedRequest<'a> {
        // A random pause, so that clients that were refused together do not return together.
        let jittered = || Duration::from_secs(fastrand::u64(1..=3));
        // The layer's own time is no shorter than a recovery.
        let after = || match recovery.map(after_recovery) {
            Some(end) => self.retry_after.map_or(end, |after| after.max(end)),
            None => self.retry_after.unwrap_or_else(jittered),
        };
        let status = self.statuses.get(&why).copied().unwrap_or(why.status());
        let invites = matches!(
            status,
            StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        RefusedRequest {
            why,
            status,
            retry_after: (why.is_passing() && invites).then(after),
            base: &self.base,
            parts,
        }
    }

    /// Answers a request that gets no lock, and reports the refusal.
    pub(super) fn refuse(
        &self,
        why: Refused,
        error: Option<&Error>,
        parts: Option<&Parts>,
    ) -> Response<RefusalBody> {
        let request = self.request(why, recovery(error), parts);
        let Answer(mut response) = (self.answer)(&request);
        let throttle = match why {
            Refused::BadOptions => Some(&self.faults),
            Refused::StoreRefused => Some(&self.store_refusals),
            _ => None,
        };
        let is_news = throttle
            .zip(parts)
            .is_some_and(|(throttle, parts)| throttle.allow(parts));
        let route = parts.and_then(route);
        let refusal = observe::Refusal {
            why: &format!("{why:?}"),
            label: why.label(),
            status: response.status().as_u16(),
            route,
            is_news,
        };
        observe::refused(&refusal, error);
        match why {
            Refused::Busy | Refused::InFlight => self.busy.count_refusal(false, route),
            Refused::WaitedTooLong | Refused::QueueFull => self.busy.count_refusal(true, route),
            _ => {}
        }
        response.extensions_mut().insert(why);
        response
    }
}

/// Returns when a client may try again that was refused for a recovery: after its end, in whole seconds.
fn after_recovery(left: Duration) -> Duration {
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    Duration::from_secs(seconds.min(MAX_RETRY_AFTER) + fastrand::u64(0..=2))
}

/// Returns how long the server still recovers that refused with this error.
fn recovery(error: Option<&Error>) -> Option<Duration> {
    match error {
        Some(Error::Store { source, .. }) => source.retry_after(),
        _ => None,
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
