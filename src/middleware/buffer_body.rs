//! A layer that reads the request's body, so that a lock is not held, or waited for, while a client sends.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::mem::take;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tower_layer::Layer;
use tower_service::Service;

use crate::middleware::body::{BoxError, RefusalBody, ResponseBody, boxed};

/// Reads the request's body before the inner service gets the request.
///
/// Outside of a [`LockLayer`](crate::LockLayer), a slow upload holds no lock, and the connection of a request that waits is
/// read to its end, so hyper notices a client that leaves, and the request leaves the queue. The key may be made of the body:
/// [`keys::body`](crate::middleware::keys::body).
///
/// The inner service gets a body of the same bytes, and [`BufferedBody`] in the extensions. Trailers are dropped. A body of more
/// than `limit` bytes is answered with 413, and at once if its length is known. A body that ends before its end gets 400. Each
/// request that is read holds up to `limit` bytes of memory, in one buffer, however the client cuts its body into chunks. So shed
/// load outside, too. A layer that decompresses bodies belongs outside, or `limit` counts the compressed bytes. Without this layer, a
/// refusal that is sent while a large body still arrives may reach the client as a broken connection only.
///
/// The body of a request must be made of [`Bytes`], as axum's `Body` is:
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::{Json, Router, routing::post};
/// use bytes::Bytes;
/// use tenure::{LockLayer, Locks, middleware::{BufferBody, keys}};
///
/// # let locks = Locks::memory();
/// let layer = LockLayer::new(&locks, keys::body(|body: &Bytes| Some(("import", body.first().copied()?))));
/// let app: Router = Router::new()
///     .route("/imports", post(async |body: String| body))
///     .route_layer(layer)
///     .route_layer(BufferBody::new(64 * 1024)); // outside of the layer before it
/// # drop(app); }
/// ```
///
/// hyper's `Incoming` is not. Map it: `service.map_request(|request: Request<Incoming>| request.map(axum::body::Body::new))` with
/// tower's `ServiceExt`.
#[derive(Debug, Clone, Copy)]
pub struct BufferBody {
    limit: usize,
}

impl BufferBody {
    /// Reads bodies of at most `limit` bytes. Zero admits only requests without a body.
    pub fn new(limit: usize) -> Self {
        BufferBody { limit }
    }
}

/// The body of a request that a [`BufferBody`] has read, in the extensions of the request.
///
/// ```
/// use http::Request;
/// use tenure::middleware::BufferedBody;
///
/// /// In a layer between: returns the length of the body without taking it from the handler.
/// fn length<B>(request: &Request<B>) -> Option<usize> {
///     let body = request.extensions().get::<BufferedBody>()?;
///     Some(body.bytes().len())
/// }
/// # assert_eq!(length(&Request::new(())), None);
/// ```
#[derive(Debug, Clone)]
pub struct BufferedBody(Bytes);

impl BufferedBody {
    /// Returns the bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

/// A service behind a [`BufferBody`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use bytes::Bytes;
/// use tenure::middleware::{BufferBody, BufferBodyService};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// let handler = service_fn(|_: Request<Full<Bytes>>| async { Ok::<_, Infallible>(Response::new(String::from("done"))) });
/// let service: BufferBodyService<_> = BufferBody::new(4).layer(handler);
/// let response = service.oneshot(Request::new(Full::from("too long"))).await.unwrap();
/// assert_eq!(response.status(), 413);
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct BufferBodyService<S> {
    inner: S,
    limit: usize,
}

impl<S> Layer<S> for BufferBody {
    type Service = BufferBodyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BufferBodyService {
            inner,
            limit: self.limit,
        }
    }
}

impl<S, B, R> Service<Request<B>> for BufferBodyService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    /// Returns ready at once, as [`LockService`](crate::middleware::LockService) does: requests that are read occupy no slot of
    /// the inner service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut inner, limit) = (self.inner.clone(), self.limit);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let bytes = match read(body, limit).await {
                Ok(bytes) => bytes,
                Err(status) => return Ok(refusal(status).map(ResponseBody::refusal)),
            };
            parts.extensions.insert(BufferedBody(bytes.clone()));
            poll_fn(|cx| inner.poll_ready(cx)).await?;
            let response = inner.call(Request::from_parts(parts, B::from(bytes))).await?;
            Ok(response.map(ResponseBody::handler))
        })
    }
}

/// Reads a body of at most `limit` bytes. Returns the status of the answer if that fails.
async fn read<B>(body: B, limit: usize) -> Result<Bytes, StatusCode>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    // A client that announces too much is not asked to send it.
    if body.size_hint().lower() > limit as u64 {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let mut body = pin!(body);
    let (mut first, mut buffer) = (Bytes::new(), Vec::new());
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(chunk) = frame.map_err(|_| StatusCode::BAD_REQUEST)?.into_data() else {
            continue;
        };
        let length = first.len() + buffer.len();
        if chunk.len() > limit - length {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        if length == 0 {
            // A body of one chunk is not copied.
            first = chunk;
            continue;
        }
        if buffer.is_empty() {
            // A length that is announced is no reason to take that much memory before the bytes come.
            reserve(&mut buffer, length + chunk.len(), limit);
            buffer.extend_from_slice(&take(&mut first));
        }
        reserve(&mut buffer, length + chunk.len(), limit);
        buffer.extend_from_slice(&chunk);
    }
    Ok(if buffer.is_empty() { first } else { buffer.into() })
}

/// Makes room for `length` bytes, of which no body has more than `limit`. A buffer that grows doubles, up to that limit.
fn reserve(buffer: &mut Vec<u8>, length: usize, limit: usize) {
    if length > buffer.capacity() {
        let capacity = length.max(buffer.capacity().saturating_mul(2)).min(limit);
        buffer.reserve_exact(capacity - buffer.len());
    }
}

/// Answers a request whose body was not read, with a problem without a type of its own (RFC 9457, section 4.2.1).
fn refusal(status: StatusCode) -> Response<RefusalBody> {
    let title = status.canonical_reason().unwrap_or_default();
    let text = format!(
        r#"{{"type":"about:blank","title":"{title}","status":{}}}"#,
        status.as_u16()
    );
    let body = Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {});
    let mut response = Response::new(boxed(body));
    *response.status_mut() = status;
    let problem = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, problem);
    response
}
