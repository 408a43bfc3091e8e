//! The layer under real servers: axum's router, hyper alone, tonic. Also checks the bounds of its types.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tenure::middleware::{Grpc, LockKey, LockService, Refused, keys};
use tenure::{Key, Lease, LockLayer, Locks};
use tokio::net::TcpListener;
use tonic::Code;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::help::{ms, soon};
use crate::layer::request;

fn sendable<T: Send + 'static>(value: T) -> T {
    value
}

/// Requires what a router requires of a layer and of its service.
fn shareable<T: Clone + Send + Sync + 'static>(value: T) -> T {
    value
}

/// Runs `service` on hyper alone, on its own port, and returns the address.
async fn served<S, B>(service: S) -> SocketAddr
where
    S: Service<Request<hyper::body::Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn layers_services_and_futures_go_where_routers_take_them() {
    let locks = Locks::memory();
    let ask = || Request::get("/a").body(Body::empty()).unwrap();
    let inner = service_fn(|_: Request<Body>| ready(Ok::<_, Infallible>(Response::new(Body::empty()))));
    let by = shareable(LockLayer::by(&locks, |parts| parts.uri.path().to_owned()));
    let typed = shareable(LockLayer::new(
        &locks,
        keys::path_param::<u64>("id").named("account"),
    ));
    let mut service: LockService<_, _> = shareable(by.layer(inner));
    assert_eq!(sendable(service.call(ask())).await.unwrap().status(), 200);
    // This works even if the closure's key is a reference, and the future is awaited within a task.
    let fixed = LockLayer::by(&locks, |_| "a").layer(inner);
    let answer = async move { fixed.oneshot(ask()).await.unwrap().status() };
    assert_eq!(soon(tokio::spawn(answer)).await.unwrap(), 200);
    let routes = Router::new().route("/{id}", get(async |lease: Lease| lease.key().to_string()));
    let app = shareable(routes.route_layer(typed).layer(by.skip()));
    let answer = sendable(app.oneshot(request(Method::GET, "/042")));
    let body = answer.await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "account:42");
}

/// HTTP/1.1 and HTTP/2 on one port, without a router.
#[tokio::test]
async fn hyper_alone_serves_it() {
    let locks = Locks::memory();
    let service = ServiceBuilder::new()
        .layer(LockLayer::new(&locks, keys::path()).wait(ms(30)))
        .service(service_fn(async |request: Request<hyper::body::Incoming>| {
            let lease = request.extensions().get::<Lease>().expect("the layer's").clone();
            let version = request.version();
            // The body is read by the handler, under the lock.
            let sent = request.into_body().collect().await?.to_bytes();
            let text = format!("{version:?} {} {}", lease.key(), sent.len());
            Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(text))))
        }));
    let address = served(service).await;
    for (two, version) in [(false, Version::HTTP_11), (true, Version::HTTP_2)] {
        let mut client = Client::builder(TokioExecutor::new());
        let client = client.http2_only(two).build_http::<Full<Bytes>>();
        let ask = |path: &str| {
            let request = Request::post(format!("http://{address}{path}"));
            client.request(request.body(Full::from("twelve bytes")).unwrap())
        };
        let answer = soon(ask("/a")).await.unwrap();
        assert_eq!(answer.version(), version);
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text, format!("{version:?} /a 12"));
        let _held = locks.mutex("/b").lock().await.unwrap();
        let answer = soon(ask("/b")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(answer.headers().contains_key("retry-after"));
    }
}

#[tokio::test]
async fn tonic_serves_it_and_its_clients_understand_refusals() {
    let locks = Locks::memory();
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("bank", ServingStatus::Serving).await;
    let layer = LockLayer::by(&locks, |parts| Key::from(parts.uri.path())).wait(ms(30));
    let address = served(layer.on_refusal(Grpc).layer(health)).await;
    let http = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<tonic::body::Body>();
    let origin = Uri::try_from(format!("http://{address}")).unwrap();
    let mut client = HealthClient::with_origin(http, origin);
    let ask = || HealthCheckRequest {
        service: "bank".into(),
    };
    let answer = soon(client.check(ask())).await.unwrap();
    assert_eq!(answer.into_inner().status, ServingStatus::Serving as i32);
    let held = locks.mutex("/grpc.health.v1.Health/Check").lock().await.unwrap();
    let refused = soon(client.check(ask())).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert!(refused.message().contains("Nothing was done."), "{refused:?}");
    drop(held);
    assert!(soon(client.check(ask())).await.is_ok(), "it is free");
    // The lock ends with the head of the response: a streamed body is not under the lock.
    let watch = soon(client.watch(ask())).await.unwrap();
    soon(locks.idle()).await;
    drop(watch);
}

/// The code of each refusal, as a client of tonic reads it.
#[tokio::test]
async fn a_tonic_client_reads_the_code_of_each_refusal() {
    let http = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<tonic::body::Body>();
    for (why, code) in [
        (Refused::Busy, Code::Aborted),
        (Refused::InFlight, Code::Aborted),
        (Refused::WaitedTooLong, Code::Aborted),
        (Refused::QueueFull, Code::ResourceExhausted),
        (Refused::StoreFailed, Code::Unavailable),
        (Refused::Recovering, Code::Unavailable),
        (Refused::Closed, Code::Unavailable),
        (Refused::Lost, Code::Unavailable),
        (Refused::OutcomeUnknown, Code::Unknown),
        (Refused::BadKey, Code::InvalidArgument),
        (Refused::NoKey, Code::InvalidArgument),
        (Refused::BadOptions, Code::Internal),
        (Refused::StoreRefused, Code::Internal),
    ] {
        let (_, health) = tonic_health::server::health_reporter();
        let layer = LockLayer::by(&Locks::memory(), move |_| LockKey::refuse(why));
        let address = served(layer.on_refusal(Grpc).layer(health)).await;
        let origin = Uri::try_from(format!("http://{address}")).unwrap();
        let mut client = HealthClient::with_origin(http.clone(), origin);
        let refused = soon(client.check(HealthCheckRequest::default()))
            .await
            .unwrap_err();
        assert_eq!((refused.code(), refused.message()), (code, why.detail()));
    }
}
