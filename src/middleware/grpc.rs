//! Refusals for clients of gRPC.

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};

use crate::middleware::refusal::{OnRefusal, Refused, RefusedRequest};

/// Answers refused requests as a gRPC server does: with the headers alone, status 200, and a
/// [code](https://grpc.io/docs/guides/status-codes/) in `grpc-status` ("Trailers-Only" of the gRPC protocol over HTTP/2).
///
/// | [`Refused`] | code |
/// |---|---|
/// | `Busy`, `InFlight`, `WaitedTooLong` | `ABORTED` |
/// | `QueueFull` | `RESOURCE_EXHAUSTED` |
/// | `StoreFailed`, `Recovering`, `Closed`, `Lost` | `UNAVAILABLE` |
/// | `OutcomeUnknown` | `UNKNOWN` |
/// | `BadKey`, `NoKey` | `INVALID_ARGUMENT` |
/// | `BadOptions`, `StoreRefused` | `INTERNAL` |
///
/// Clients repeat a call that was `UNAVAILABLE`, and by the guide not one that was `ABORTED` or `UNKNOWN`. No dependency on
/// tonic is needed. [`status`](crate::LockLayer::status) and [`retry_after`](crate::LockLayer::retry_after) have no effect.
///
/// ```
/// # let locks = tenure::Locks::memory();
/// use tenure::{LockLayer, middleware::{Grpc, keys}};
///
/// let layer = LockLayer::new(&locks, keys::header::<u64>("x-account")).on_refusal(Grpc);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Grpc;

impl OnRefusal for Grpc {
    type Answer = Response<String>;

    fn answer(&self, request: &RefusedRequest<'_>) -> Response<String> {
        let mut response = Response::new(String::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from(code(request.why())));
        // The texts contain neither a percent sign nor other characters that must be encoded.
        headers.insert("grpc-message", HeaderValue::from_static(request.why().detail()));
        response
    }
}

/// Returns the code of a refusal.
fn code(why: Refused) -> u16 {
    match why {
        Refused::Busy | Refused::InFlight | Refused::WaitedTooLong => 10,
        Refused::QueueFull => 8,
        Refused::StoreFailed | Refused::Recovering | Refused::Closed | Refused::Lost => 14,
        Refused::OutcomeUnknown => 2,
        Refused::BadKey | Refused::NoKey => 3,
        Refused::BadOptions | Refused::StoreRefused => 13,
    }
}
