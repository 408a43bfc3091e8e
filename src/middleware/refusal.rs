//! How a request is answered that does not get its lock.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;

use crate::error::Error;
use crate::middleware::body::{RefusalBody, boxed};

/// Why the layer answered a request itself. It stands in the response's extensions, where layers outside can tell such
/// an answer from one of the handler's, count it, or put another in its place.
///
/// The body is an `application/problem+json` (RFC 9457) whose `type` points to a variant below. It names neither the key
/// nor its holder: both may belong to somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refused {
    /// Another request has the lock, and this one was not to wait ([`skip`](crate::LockLayer::skip)): 423.
    Busy,
    /// The wait was over before it was this request's turn ([`wait`](crate::LockLayer::wait)): 503 with `Retry-After`.
    WaitedTooLong,
    /// Too many requests wait already ([`max_waiters`](crate::LockLayer::max_waiters)): 429 with `Retry-After`.
    QueueFull,
    /// The store cannot be reached or refuses. Without it nobody knows who may run, so nobody runs: 503 with
    /// `Retry-After`.
    StoreFailed,
    /// The service shuts down: 503 with `Retry-After`.
    Closed,
    /// The lease was lost before the handler was done ([`OnLost::Cancel`](crate::middleware::OnLost::Cancel)), or before
    /// it began: 503 with `Retry-After`.
    Lost,
    /// The request's key is empty or too long: 400.
    BadKey,
    /// An option of the layer makes no sense; an event says which: 500.
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
                S::SERVICE_UNAVAILABLE,
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
                "The request lost its exclusive access and was stopped. It may have been done in part.",
                true,
            ),
            Refused::BadKey => row(
                S::BAD_REQUEST,
                "BadKey",
                "Bad key",
                "What the request would lock has an empty name, or one that is too long.",
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

    /// The answer.
    pub(super) fn response(self) -> Response<RefusalBody> {
        let Row {
            status,
            name,
            title,
            detail,
            retry,
        } = self.row();
        let kind =
            format_args!("https://docs.rs/tenure/latest/tenure/middleware/enum.Refused.html#variant.{name}");
        let code = status.as_u16();
        let problem = format!(r#"{{"type":"{kind}","title":"{title}","status":{code},"detail":"{detail}"}}"#);
        let mut response = Response::new(boxed(Full::from(problem)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if retry {
            // Not all at once: who was refused together would come back together.
            headers.insert(RETRY_AFTER, HeaderValue::from(fastrand::u16(1..=3)));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<&Error> for Refused {
    fn from(error: &Error) -> Refused {
        match error {
            Error::Busy { .. } => Refused::WaitedTooLong,
            Error::QueueFull { .. } => Refused::QueueFull,
            Error::Store { .. } => Refused::StoreFailed,
            Error::Closed { .. } => Refused::Closed,
            Error::Lost { .. } => Refused::Lost,
            Error::Key { .. } => Refused::BadKey,
            Error::Options(_) => Refused::BadOptions,
        }
    }
}
