//! A proxy in front of the replicas. What a replica answers with 503, or does not answer as nobody listens, it sends to
//! the other one, twice at most: nothing was done, or so it is told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Version};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// In an answer of the proxy's own.
pub const BAD_GATEWAY: &str = "no replica answered";
const REPEATS: usize = 2;

type Http = Client<HttpConnector, Body>;

#[derive(Clone)]
struct Upstream {
    replicas: [SocketAddr; 2],
    one: Http,
    two: Http,
    turn: Arc<AtomicUsize>,
    repeats: Arc<AtomicU64>,
}

pub struct Repeater {
    addr: SocketAddr,
    repeats: Arc<AtomicU64>,
    serving: JoinHandle<()>,
}

impl Drop for Repeater {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Repeater {
    pub async fn start(replicas: [SocketAddr; 2]) -> Repeater {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let repeats = Arc::<AtomicU64>::default();
        let upstream = Upstream {
            replicas,
            one: Client::builder(TokioExecutor::new()).build_http(),
            two: Client::builder(TokioExecutor::new())
                .http2_only(true)
                .build_http(),
            turn: Arc::default(),
            repeats: repeats.clone(),
        };
        let app = Router::new().fallback(pass).with_state(upstream);
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Repeater {
            addr,
            repeats,
            serving,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }
}

/// Whoever leaves takes its request back: what it is waiting for is dropped.
async fn pass(State(upstream): State<Upstream>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let body = body.to_bytes();
    let http = match parts.version {
        Version::HTTP_2 => &upstream.two,
        _ => &upstream.one,
    };
    let first = upstream.turn.fetch_add(1, Ordering::Relaxed);
    for attempt in 0..=REPEATS {
        let replica = upstream.replicas[(first + usize::from(attempt > 0)) % 2];
        let path = parts.uri.path();
        let mut again = Request::builder()
            .method(parts.method.clone())
            .uri(format!("http://{replica}{path}"))
            .version(parts.version)
            .body(Body::from(body.clone()))
            .unwrap();
        for name in [IDEMPOTENCY_KEY, CONTENT_TYPE] {
            let value = parts.headers.get(&name).cloned();
            again.headers_mut().extend(value.map(|value| (name, value)));
        }
        match http.request(again).await {
            Ok(answer) if answer.status() != StatusCode::SERVICE_UNAVAILABLE || attempt == REPEATS => {
                return answer.map(Body::new);
            }
            Ok(_) => {}
            Err(error) if error.is_connect() => {}
            // It may have been done.
            Err(_) => break,
        }
        upstream.repeats.fetch_add(1, Ordering::Relaxed);
    }
    (StatusCode::BAD_GATEWAY, BAD_GATEWAY).into_response()
}

const IDEMPOTENCY_KEY: axum::http::HeaderName = axum::http::HeaderName::from_static("idempotency-key");
