//! Bodies that are read before the lock, and keys that are made of them.

use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Path, Request as AxumRequest, State};
use axum::routing::{any, post};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tenure::middleware::{BufferBody, BufferedBody, Refused, keys};
use tenure::{Lease, LockLayer, Locks};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::help::soon;
use crate::layer::{by_path, send, status, text, to, until};
use crate::support::events::Watch;

fn with_body(body: impl Into<Body>) -> Request<Body> {
    Request::builder()
        .method(Method::POST)
        .uri("/")
        .body(body.into())
        .unwrap()
}

/// A body without a known length: its chunks, and an error at its end or none.
fn stream(chunks: &[&'static str], breaks: bool) -> Body {
    let chunks: Vec<_> = chunks
        .iter()
        .map(|chunk| Ok(Bytes::from_static(chunk.as_bytes())))
        .collect();
    let end = breaks.then(|| Err(std::io::Error::other("the client left")));
    Body::from_stream(items(chunks.into_iter().chain(end)))
}

fn items<T: Unpin>(items: impl Iterator<Item = T>) -> impl futures_core::Stream<Item = T> {
    struct Items<I>(I);
    impl<I: Iterator + Unpin> futures_core::Stream for Items<I> {
        type Item = I::Item;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<I::Item>> {
            std::task::Poll::Ready(self.0.next())
        }
    }
    Items(items.collect::<Vec<_>>().into_iter())
}

#[tokio::test]
async fn a_body_is_read_up_to_its_limit() {
    let app = |limit| {
        let echo = async |request: Request<Body>| {
            let buffered = request
                .extensions()
                .get::<BufferedBody>()
                .unwrap()
                .bytes()
                .clone();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(buffered, body);
            body
        };
        Router::new()
            .route("/", any(echo))
            .route_layer(BufferBody::new(limit))
    };
    for (limit, body, expected) in [
        (5, Body::from("12345"), Ok("12345")),
        (5, Body::from("123456"), Err(413)),
        (5, stream(&["12", "345"], false), Ok("12345")),
        (5, stream(&["12", "345", "6"], false), Err(413)),
        (5, stream(&["12"], true), Err(400)),
        (5, stream(&["12", "3456"], true), Err(413)),
        (5, Body::empty(), Ok("")),
        (0, Body::empty(), Ok("")),
        (0, Body::from("1"), Err(413)),
        (usize::MAX, stream(&["a", "", "b"], false), Ok("ab")),
    ] {
        let answer = soon(send(&app(limit), with_body(body))).await.unwrap();
        let status = answer.status().as_u16();
        let problem = answer.headers().get("content-type").cloned();
        let text = text(answer).await;
        match expected {
            Ok(expected) => assert_eq!((status, &*text), (200, expected)),
            Err(expected) => {
                assert_eq!(status, expected, "{text}");
                assert_eq!(problem.unwrap(), "application/problem+json");
                assert!(text.contains(&format!(r#""status":{expected}"#)), "{text}");
            }
        }
    }
}

/// On hyper's types, and with an inner service that becomes ready later.
#[tokio::test]
async fn any_body_of_bytes_is_read() {
    let inner = service_fn(async |request: Request<Full<Bytes>>| {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, Infallible>(Response::new(Full::new(body)))
    });
    let service = ServiceBuilder::new()
        .layer(BufferBody::new(10))
        .concurrency_limit(1)
        .service(inner);
    let request = || Request::new(Full::new(Bytes::from("hello")));
    for _ in 0..3 {
        let answer = soon(service.clone().oneshot(request())).await.unwrap();
        assert_eq!(text(answer).await, "hello");
    }
}

async fn key_of(lease: Option<Lease>, body: Bytes) -> String {
    let key = lease.map_or("none".into(), |lease| lease.key().to_string());
    format!("{key} {}", String::from_utf8_lossy(&body))
}

#[tokio::test]
async fn a_body_makes_a_key() {
    let locks = Locks::memory();
    let account = |body: &Bytes| {
        let text = str::from_utf8(body).map_err(|_| (StatusCode::UNPROCESSABLE_ENTITY, "no text"))?;
        Ok::<_, (StatusCode, &str)>(text.parse::<u64>().ok())
    };
    let layer = LockLayer::new(&locks, keys::body(account).named("account"));
    let app = Router::new()
        .route("/", post(key_of))
        .route_layer(layer.clone())
        .route_layer(BufferBody::new(100));
    for (body, expected) in [
        ("42", "account:42 42"),
        ("042", "account:42 042"),
        ("all of them", "none all of them"),
    ] {
        let answer = soon(send(&app, with_body(body))).await.unwrap();
        assert_eq!(text(answer).await, expected);
    }
    assert_eq!(status(&app, with_body(&b"\xff"[..])).await, 422);
    assert_eq!(status(&app, with_body("x".repeat(101))).await, 413);
    // Without a layer that reads the body, no request passes.
    let watch = Watch::of("extension_missing");
    let app = Router::new().route("/", post(key_of)).route_layer(layer);
    let answer = soon(send(&app, with_body("42"))).await.unwrap();
    assert_eq!(answer.status(), 500);
    assert_eq!(answer.extensions().get(), Some(&Refused::BadOptions));
    until(|| watch.told().iter().any(|told| told.text.contains("BufferedBody"))).await;
}

/// An extractor that reads the body, as `Json` does.
struct Order {
    id: u64,
}

impl<S: Send + Sync> FromRequest<S> for Order {
    type Rejection = (StatusCode, String);

    async fn from_request(request: AxumRequest, state: &S) -> Result<Self, Self::Rejection> {
        let refused = |text: String| (StatusCode::UNPROCESSABLE_ENTITY, text);
        let text = String::from_request(request, state)
            .await
            .map_err(|error| refused(error.to_string()))?;
        let id = text
            .parse()
            .map_err(|_| refused(format!("`{text}` is no order")))?;
        Ok(Order { id })
    }
}

#[tokio::test]
async fn extractors_that_read_the_body_make_a_key() {
    #[derive(Clone)]
    struct App(&'static str);
    let locks = Locks::memory();
    let to_shop = |body: &'static str| {
        let request = Request::builder().method(Method::POST).uri("/7/orders");
        request.body(Body::from(body)).unwrap()
    };
    let app = Router::new()
        .route("/{shop}/orders", post(key_of))
        .route_layer(LockLayer::from_request(
            &locks,
            |Path(shop): Path<u64>, order: Order| ("order", shop, order.id),
        ))
        .route_layer(BufferBody::new(100));
    let answer = soon(send(&app, to_shop("042"))).await.unwrap();
    assert_eq!(
        text(answer).await,
        "order:7:42 042",
        "the handler reads the body again"
    );
    let answer = soon(send(&app, to_shop("x"))).await.unwrap();
    assert_eq!(answer.status(), 422);
    assert_eq!(text(answer).await, "`x` is no order");
    // The last extractor need not read the body.
    let state = App("eu");
    let app = Router::new()
        .route("/{shop}/orders", post(key_of))
        .route_layer(LockLayer::from_request_with_state(
            &locks,
            state,
            |State(App(region)): State<App>, Path(shop): Path<u64>| ("shop", region, shop),
        ))
        .route_layer(BufferBody::new(100));
    let answer = soon(send(&app, to_shop("x"))).await.unwrap();
    assert_eq!(text(answer).await, "shop:eu:7 x");
    // Without a layer that reads the body.
    let app = Router::new()
        .route("/{shop}/orders", post(key_of))
        .route_layer(LockLayer::from_request(&locks, |order: Order| order.id));
    assert_eq!(status(&app, to_shop("1")).await, 500);
}

/// A client that sends slowly holds no lock.
#[tokio::test]
async fn a_slow_upload_holds_no_lock() {
    let locks = Locks::memory();
    let app = Router::new()
        .route("/", any(key_of))
        .route_layer(by_path(&locks))
        .route_layer(BufferBody::new(100));
    let (sends, receives) = tokio::sync::oneshot::channel::<()>();
    let slow = Body::new(SlowBody(Some(receives)));
    let waits = send(&app, with_body(slow));
    for _ in 0..10 {
        assert_eq!(status(&app, to("/")).await, 200);
    }
    sends.send(()).unwrap();
    assert_eq!(text(soon(waits).await.unwrap()).await, "/ done");
}

/// A body that comes when it is told to.
struct SlowBody(Option<tokio::sync::oneshot::Receiver<()>>);

impl http_body::Body for SlowBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        let Some(waits) = &mut self.0 else {
            return std::task::Poll::Ready(None);
        };
        std::task::ready!(std::future::Future::poll(std::pin::Pin::new(waits), cx)).unwrap();
        self.0 = None;
        std::task::Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from("done")))))
    }
}

/// The length that a client announces is that of its body, or the request is refused.
#[tokio::test]
async fn a_body_that_does_not_match_its_length_is_refused() {
    let echo = async |body: Bytes| body;
    let app = Router::new()
        .route("/", any(echo))
        .route_layer(BufferBody::new(10));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let answer = async |request: &str| {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        soon(client.read_to_string(&mut answer)).await.unwrap();
        answer
    };
    for (request, status, body) in [
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
            "200",
            "hello",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\nhello",
            "400",
            "",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 11\r\n\r\nhello",
            "413",
            "",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n",
            "200",
            "helloworld",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\nworld!\r\n0\r\n\r\n",
            "413",
            "",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "400",
            "",
        ),
    ] {
        let answer = answer(request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{request}: {answer}"
        );
        assert!(answer.ends_with(body), "{request}: {answer}");
    }
    server.abort();
}
