//! The tower layer, on the memory store.

use crate::help::{ms, soon};
use crate::support::events::Watch;
use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Path};
use axum::routing::{get, post};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tenure::middleware::{KeySource, LockKey, LockService, Refused, StoreFailure};
use tenure::protocol::message::Name;
use tenure::{Key, Lease, LockLayer, Locks, MemoryStore};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

pub(crate) async fn until(what: impl Fn() -> bool) {
    soon(async {
        while !what() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub(crate) fn request(method: Method, uri: &str) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri(uri)
        .body(Body::empty())
        .unwrap()
}

pub(crate) fn to(uri: &str) -> Request<Body> {
    request(Method::GET, uri)
}

pub(crate) async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// A handler that reports when it is entered, and waits until it is let go.
#[derive(Clone)]
pub(crate) struct GatedHandler {
    pub(crate) entered: mpsc::UnboundedSender<String>,
    pub(crate) go: Arc<Semaphore>,
    pub(crate) inside: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
}

pub(crate) struct Seen(pub(crate) mpsc::UnboundedReceiver<String>);

impl Seen {
    pub(crate) async fn next(&mut self) -> String {
        soon(self.0.recv()).await.unwrap()
    }

    pub(crate) fn is_empty(&mut self) -> bool {
        self.0.try_recv().is_err()
    }
}

/// Counts a handler that leaves, also if it is dropped.
pub(crate) struct Leaves(pub(crate) Arc<AtomicUsize>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl GatedHandler {
    pub(crate) fn new() -> (GatedHandler, Seen) {
        let (entered, seen) = mpsc::unbounded_channel();
        let handler = GatedHandler {
            entered,
            go: Arc::new(Semaphore::new(0)),
            inside: Arc::default(),
            most: Arc::default(),
        };
        (handler, Seen(seen))
    }

    pub(crate) async fn serve(self, name: String) -> &'static str {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        let _leaves = Leaves(self.inside.clone());
        self.most.fetch_max(inside, Ordering::SeqCst);
        self.entered.send(name).unwrap();
        self.go.acquire().await.unwrap().forget();
        "done"
    }

    pub(crate) fn let_go(&self, how_many: usize) {
        self.go.add_permits(how_many);
    }

    /// Returns a router with this handler and without a layer.
    pub(crate) fn routes(&self) -> Router {
        let handler = self.clone();
        Router::new().route(
            "/o/{id}",
            get({
                let handler = handler.clone();
                move |Path(id): Path<String>| handler.serve(id)
            })
            .post(move |Path(id): Path<String>| handler.serve(id)),
        )
    }

    pub(crate) fn app(&self, layer: LockLayer<impl KeySource>) -> Router {
        self.routes().route_layer(layer)
    }
}

pub(crate) fn by_path(locks: &Locks) -> LockLayer<impl KeySource> {
    LockLayer::by(locks, |parts| parts.uri.path().to_owned())
}

pub(crate) fn send(app: &Router, request: Request<Body>) -> JoinHandle<Response<Body>> {
    let app = app.clone();
    tokio::spawn(async move { app.oneshot(request).await.unwrap() })
}

pub(crate) async fn status(app: &Router, request: Request<Body>) -> StatusCode {
    soon(send(app, request)).await.unwrap().status()
}

// Exclusion.

#[tokio::test]
async fn one_at_a_time_per_key_and_keys_in_parallel() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks));
    let first = send(&app, to("/o/a"));
    assert_eq!(seen.next().await, "a");
    let second = send(&app, to("/o/a"));
    until(|| locks.waiter_count() == 1).await;
    let other = send(&app, to("/o/b"));
    assert_eq!(seen.next().await, "b");
    assert!(seen.is_empty(), "the second one is inside beside the first");
    assert_eq!(handler.inside.load(Ordering::SeqCst), 2);

    handler.let_go(2);
    assert_eq!(soon(first).await.unwrap().status(), 200);
    assert_eq!(soon(other).await.unwrap().status(), 200);
    assert_eq!(seen.next().await, "a");
    handler.let_go(1);
    assert_eq!(text(soon(second).await.unwrap()).await, "done");
    soon(locks.idle()).await;
    assert_eq!(locks.key_count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_are_one_at_a_time() {
    let store = MemoryStore::new();
    let (handler, mut seen) = GatedHandler::new();
    let replicas: Vec<(Locks, Router)> = (0..2)
        .map(|_| {
            let locks = Locks::builder().memory_shared(&store).unwrap();
            let app = handler.app(by_path(&locks).wait(Duration::from_secs(30)));
            (locks, app)
        })
        .collect();
    let answers: Vec<_> = (0..40).map(|i| send(&replicas[i % 2].1, to("/o/a"))).collect();
    for _ in 0..answers.len() {
        seen.next().await;
        handler.let_go(1);
    }
    for answer in answers {
        assert_eq!(soon(answer).await.unwrap().status(), 200);
    }
    assert_eq!(handler.most.load(Ordering::SeqCst), 1);
    for (locks, _) in &replicas {
        soon(locks.idle()).await;
    }
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_client_with_the_answer_finds_the_lock_free() {
    let store = MemoryStore::new();
    let (one, other) = (
        Locks::builder().memory_shared(&store).unwrap(),
        Locks::builder().memory_shared(&store).unwrap(),
    );
    let app = |locks| {
        Router::new()
            .route("/", get(|| async {}))
            .route_layer(by_path(locks).skip())
    };
    let (one, other) = (app(&one), app(&other));
    for _ in 0..200 {
        assert_eq!(status(&one, to("/")).await, 200);
        assert_eq!(status(&other, to("/")).await, 200);
    }
}

#[tokio::test]
async fn head_and_get_share_a_lock() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).skip());
    let first = send(&app, to("/o/a"));
    seen.next().await;
    assert_eq!(status(&app, request(Method::HEAD, "/o/a")).await, 423);
    handler.let_go(1);
    soon(first).await.unwrap();
}

// Policies and their answers.

/// Checks a response that the layer itself gave.
pub(crate) async fn refused(response: Response<Body>, why: Refused, status: u16, retry: bool) {
    assert_eq!(response.status(), status);
    assert_eq!(response.extensions().get::<Refused>(), Some(&why));
    assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    let after = response
        .headers()
        .get(RETRY_AFTER)
        .map(|after| after.to_str().unwrap().parse::<u64>().unwrap());
    assert_eq!(after.is_some(), retry);
    assert!(
        after.is_none_or(|seconds| (1..=3).contains(&seconds)),
        "{after:?}"
    );
    let body = text(response).await;
    assert!(
        body.starts_with(r#"{"type":"https://"#) && body.ends_with(r#""}"#),
        "{body}"
    );
    for part in [
        format!("#variant.{why:?}\""),
        r#""title":""#.into(),
        format!(r#""status":{status},"detail":""#),
    ] {
        assert!(body.contains(&part), "{part} is not in {body}");
    }
    assert!(
        !body.contains("secret"),
        "the key must not be in the answer: {body}"
    );
}

#[tokio::test]
async fn skipping_answers_423_at_once() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).skip());
    let first = send(&app, to("/o/secret"));
    seen.next().await;
    refused(
        soon(send(&app, to("/o/secret"))).await.unwrap(),
        Refused::Busy,
        423,
        false,
    )
    .await;
    handler.let_go(1);
    assert_eq!(soon(first).await.unwrap().status(), 200);
    handler.let_go(1);
    assert_eq!(status(&app, to("/o/secret")).await, 200);
}

/// A request that does not wait is answered that the lock is held, and not that its wait ended.
#[tokio::test]
async fn a_wait_of_zero_skips() {
    let locks = Locks::memory();
    let _held = locks.mutex("/o/secret").lock().await.unwrap();
    let (handler, _seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).wait(Duration::ZERO));
    let answer = soon(send(&app, to("/o/secret"))).await.unwrap();
    refused(answer, Refused::Busy, 423, false).await;
}

#[tokio::test]
async fn a_wait_that_is_over_answers_429() {
    let locks = Locks::memory();
    let _held = locks.mutex("/o/secret").lock().await.unwrap();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).wait(ms(20)));
    refused(
        soon(send(&app, to("/o/secret"))).await.unwrap(),
        Refused::WaitedTooLong,
        429,
        true,
    )
    .await;
    assert!(seen.is_empty());
}

#[tokio::test]
async fn a_full_queue_answers_429() {
    let locks = Locks::memory();
    let held = locks.mutex("/o/secret").lock().await.unwrap();
    let (handler, _seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).max_waiters(1));
    let waiter = send(&app, to("/o/secret"));
    until(|| locks.waiter_count() == 1).await;
    refused(
        soon(send(&app, to("/o/secret"))).await.unwrap(),
        Refused::QueueFull,
        429,
        true,
    )
    .await;
    handler.let_go(1);
    drop(held);
    assert_eq!(soon(waiter).await.unwrap().status(), 200);
}

#[tokio::test]
async fn shutdown_answers_503() {
    let locks = Locks::memory();
    let _held = locks.mutex("/o/secret").lock().await.unwrap();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks));
    let waiter = send(&app, to("/o/secret"));
    until(|| locks.waiter_count() == 1).await;
    soon(locks.shutdown()).await;
    refused(soon(waiter).await.unwrap(), Refused::Closed, 503, true).await;
    refused(
        soon(send(&app, to("/o/secret"))).await.unwrap(),
        Refused::Closed,
        503,
        true,
    )
    .await;
    assert!(seen.is_empty());
}

#[tokio::test]
async fn bad_keys_answer_400() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(LockLayer::by(&locks, |parts| {
        parts.uri.query().unwrap_or_default().to_owned()
    }));
    refused(
        soon(send(&app, to("/o/a"))).await.unwrap(),
        Refused::BadKey,
        400,
        false,
    )
    .await;
    let long = format!("/o/a?{}", "secret".repeat(100));
    refused(
        soon(send(&app, to(&long))).await.unwrap(),
        Refused::BadKey,
        400,
        false,
    )
    .await;
    assert!(seen.is_empty());
}

#[tokio::test]
async fn invalid_options_answer_500() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).lease(ms(1)));
    refused(
        soon(send(&app, to("/o/secret"))).await.unwrap(),
        Refused::BadOptions,
        500,
        false,
    )
    .await;
    assert!(seen.is_empty());
}

#[tokio::test]
async fn a_key_with_another_value_is_500_and_never_runs_unlocked() {
    use tenure::protocol::ledger::{Record, RecordOwner};
    let watch = Watch::of("/o/secret");
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let record = Record {
        owner: RecordOwner::WrongType,
        expires: None,
        may_keep: false,
    };
    store.with_ledger(|ledger, _| ledger.overwrite(&Name::lock("/o/secret".into()), Some(record)));
    for failure in [StoreFailure::Refuse, StoreFailure::RunUnlocked] {
        let (handler, mut seen) = GatedHandler::new();
        let app = handler.app(by_path(&locks).on_store_failure(failure));
        for _ in 0..2 {
            let answer = soon(send(&app, to("/o/secret"))).await.unwrap();
            refused(answer, Refused::StoreRefused, 500, false).await;
        }
        assert!(seen.is_empty());
        handler.let_go(1);
        assert_eq!(status(&app, to("/o/other")).await, 200, "other keys are served");
    }
    // Each layer reports it once a minute, with the key.
    let refusals = watch.told().into_iter().filter(|told| told.event == "refused");
    let levels: Vec<_> = refusals.map(|told| told.level.to_string()).collect();
    assert_eq!(levels, ["ERROR", "DEBUG", "ERROR", "DEBUG"]);
}

// Keys.

#[tokio::test]
async fn options_requests_pass_by_default() {
    let locks = Locks::memory();
    let _held = locks.mutex("/").lock().await.unwrap();
    let app = |layer| {
        Router::new()
            .route("/", axum::routing::any(|| async {}))
            .route_layer(layer)
    };
    assert_eq!(
        status(&app(by_path(&locks).skip()), request(Method::OPTIONS, "/")).await,
        200
    );
    assert_eq!(
        status(
            &app(by_path(&locks).skip().include_options()),
            request(Method::OPTIONS, "/")
        )
        .await,
        423
    );
    assert_eq!(
        status(&app(by_path(&locks).skip()), request(Method::GET, "/")).await,
        423
    );
}

#[tokio::test]
async fn without_a_key_there_is_no_lock() {
    let locks = Locks::memory();
    let _held = locks.mutex("a").lock().await.unwrap();
    let layer = LockLayer::by(&locks, |parts| parts.uri.query().map(str::to_owned)).skip();
    let app = Router::new().route(
        "/",
        get(|lease: Option<Lease>| async move { format!("{}", lease.is_some()) }),
    );
    let app = app.route_layer(layer);
    assert_eq!(text(soon(send(&app, to("/"))).await.unwrap()).await, "false");
    assert_eq!(text(soon(send(&app, to("/?b"))).await.unwrap()).await, "true");
    assert_eq!(status(&app, to("/?a")).await, 423);
}

#[tokio::test]
async fn a_closure_refuses_with_its_own_answer() {
    let locks = Locks::memory();
    let layer = LockLayer::by(&locks, |parts| match parts.headers.get("account") {
        Some(account) => Ok(Some(Key::from(account.as_bytes()))),
        None => Err((StatusCode::UNAUTHORIZED, [("x-why", "none")], "who are you?")),
    });
    let app = Router::new().route("/", get(|lease: Lease| async move { lease.key().to_string() }));
    let app = app.route_layer(layer);
    let response = soon(send(&app, to("/"))).await.unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers()["x-why"].to_str().unwrap()
        ),
        (401, "none")
    );
    assert!(response.extensions().get::<Refused>().is_none());
    assert_eq!(text(response).await, "who are you?");
    let mut known = to("/");
    known.headers_mut().insert("account", "7".parse().unwrap());
    assert_eq!(text(soon(send(&app, known)).await.unwrap()).await, "7");
}

#[tokio::test]
async fn extractors_make_keys_and_reject_for_themselves() {
    let locks = Locks::memory();
    let held = locks.mutex("order:7:-").lock().await.unwrap();
    let (handler, mut seen) = GatedHandler::new();
    let layer = LockLayer::from_extractors(&locks, |Path(id): Path<u64>, headers: HeaderMap| {
        let tenant = headers
            .get("tenant")
            .map_or("-", |tenant| tenant.to_str().unwrap());
        format!("order:{id}:{tenant}")
    });
    let app = handler.app(layer.skip());
    assert_eq!(status(&app, to("/o/7")).await, 423);
    drop(held);
    soon(locks.idle()).await;
    handler.let_go(1);
    assert_eq!(status(&app, to("/o/7")).await, 200);
    assert_eq!(seen.next().await, "7");
    let response = soon(send(&app, to("/o/seven"))).await.unwrap();
    assert_eq!(response.status(), 400);
    assert!(text(response).await.contains("Cannot parse"));
    assert!(seen.is_empty());
}

#[tokio::test]
async fn one_path_parameter_is_one_key_however_it_is_encoded() {
    let locks = Locks::memory();
    let _held = locks.mutex("a/b").lock().await.unwrap();
    let (handler, _seen) = GatedHandler::new();
    let app = handler.app(LockLayer::from_extractors(&locks, |Path(id): Path<String>| id).skip());
    for uri in ["/o/a%2Fb", "/o/a%2fb", "/o/%61%2fb"] {
        assert_eq!(status(&app, to(uri)).await, 423, "{uri}");
    }
}

#[tokio::test]
async fn the_matched_path_is_there_also_in_nests() {
    let locks = Locks::memory();
    let _held = locks.mutex("/api/o/{id}").lock().await.unwrap();
    let (handler, _seen) = GatedHandler::new();
    let layer = LockLayer::from_extractors(&locks, |path: MatchedPath| path.as_str().to_owned()).skip();
    let app = Router::new().nest("/api", handler.app(layer));
    assert_eq!(status(&app, to("/api/o/1")).await, 423);
    assert_eq!(status(&app, to("/api/o/2")).await, 423);
    assert_eq!(status(&app, to("/api/nowhere")).await, 404);
}

#[tokio::test]
async fn a_key_source_may_wait_and_have_a_name() {
    #[derive(Clone)]
    struct Sessions(Locks);

    impl KeySource for Sessions {
        type Key = LockKey;

        async fn key(&self, parts: &mut http::request::Parts) -> LockKey {
            self.0.ping().await.unwrap();
            match parts.uri.query() {
                Some("open") => LockKey::nothing(),
                Some(_) => LockKey::answer(Response::builder().status(418).body(String::new()).unwrap()),
                None => LockKey::lock("session"),
            }
        }
    }

    let locks = Locks::memory();
    let _held = locks.mutex("session").lock().await.unwrap();
    let app = Router::new().route("/", get(|| async {}));
    let app = app.route_layer(LockLayer::new(&locks, Sessions(locks.clone())).skip());
    assert_eq!(status(&app, to("/")).await, 423);
    assert_eq!(status(&app, to("/?open")).await, 200);
    assert_eq!(status(&app, to("/?else")).await, 418);
}

/// Removes the lock from under its holder, as a foreign client of the store can.
pub(crate) fn steal(store: &MemoryStore, key: &str) {
    store.with_ledger(|ledger, _| ledger.overwrite(&Name::lock(key.into()), None));
}

// Tower.

/// Is ready for one call after it was polled so often, and panics if it is called earlier. A clone was not polled
/// yet.
pub(crate) struct Probe<S> {
    pub(crate) inner: S,
    pub(crate) hesitates: u32,
    pub(crate) asked: u32,
    pub(crate) calls: Arc<AtomicUsize>,
}

impl<S> Probe<S> {
    pub(crate) fn around(inner: S, hesitates: u32) -> Probe<S> {
        Probe {
            inner,
            hesitates,
            asked: 0,
            calls: Arc::default(),
        }
    }
}

impl<S: Clone> Clone for Probe<S> {
    fn clone(&self) -> Self {
        Probe {
            inner: self.inner.clone(),
            hesitates: self.hesitates,
            asked: 0,
            calls: self.calls.clone(),
        }
    }
}

impl<R, S: Service<R>> Service<R> for Probe<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.asked += 1;
        if self.asked <= self.hesitates {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        let asked = std::mem::take(&mut self.asked);
        assert!(asked > self.hesitates, "called without being made ready");
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.inner.call(request)
    }
}

/// Not a `std::error::Error`, and not convertible into one.
#[derive(Debug, PartialEq)]
struct Boom;

/// A body type of the service.
#[derive(Debug)]
struct Once(Option<Bytes>);

impl http_body::Body for Once {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0.as_ref().map_or(0, Bytes::len) as u64)
    }
}

/// Compiles only if the layer keeps the error type and has no bounds on the bodies.
fn error_of<S: Service<Request<&'static str>, Error = Boom> + Clone + Send>(service: S) -> S
where
    S::Future: Send + 'static,
{
    service
}

#[tokio::test]
async fn a_service_keeps_its_body_and_its_error_type() {
    let locks = Locks::memory();
    let probe = Probe::around(
        service_fn(async |request: Request<&'static str>| match *request.body() {
            "boom" => Err(Boom),
            body => Ok(Response::new(Once(Some(body.into())))),
        }),
        1,
    );
    let calls = probe.calls.clone();
    let layer = LockLayer::by(&locks, |parts| parts.uri.path().to_owned()).wait(ms(20));
    let mut service = error_of(layer.layer(probe));
    let ask = |body| Request::builder().uri("/a").body(body).unwrap();

    // The layer is called again and again without `poll_ready`, by clones too: it is always ready.
    for _ in 0..3 {
        let response = service.call(ask("hello")).await.unwrap();
        assert_eq!(http_body::Body::size_hint(response.body()).exact(), Some(5));
        assert_eq!(text(response).await, "hello");
        let response = service.clone().oneshot(ask("hello")).await.unwrap();
        assert_eq!(text(response).await, "hello");
    }
    assert_eq!(service.call(ask("boom")).await.unwrap_err(), Boom);
    assert_eq!(calls.load(Ordering::SeqCst), 7);

    let _held = locks
        .mutex("/a")
        .try_lock()
        .await
        .unwrap()
        .expect("given back, also after an error");
    let response = service.call(ask("hello")).await.unwrap();
    assert_eq!(response.status(), 429);
    assert!(text(response).await.contains("WaitedTooLong"));
    assert_eq!(calls.load(Ordering::SeqCst), 7);
}

#[tokio::test]
async fn waiters_of_one_key_hold_no_slots_of_the_inner_service() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let served = {
        let handler = handler.clone();
        move |request: Request<Body>| {
            let handler = handler.clone();
            async move {
                let name = request.uri().path().to_owned();
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(handler.serve(name).await))))
            }
        }
    };
    let service = ServiceBuilder::new()
        .layer(LockLayer::by(&locks, |parts| parts.uri.path().to_owned()))
        .layer(ConcurrencyLimitLayer::new(2))
        .service(service_fn(served));
    let send = |uri| tokio::spawn(service.clone().oneshot(to(uri)));
    let mut hot: Vec<_> = vec![send("/hot")];
    assert_eq!(seen.next().await, "/hot");
    hot.extend((0..5).map(|_| send("/hot")));
    until(|| locks.waiter_count() == 5).await;
    let other = send("/other");
    assert_eq!(seen.next().await, "/other");
    handler.let_go(7);
    for answer in hot.into_iter().chain([other]) {
        assert_eq!(soon(answer).await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test]
async fn bodies_keep_their_length() {
    let locks = Locks::memory();
    let app = Router::new()
        .route("/", post(|body: String| async move { body }))
        .route_layer(by_path(&locks));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .build_http::<Full<Bytes>>();
    let ask = Request::post(format!("http://{address}/"))
        .body(Full::from("twelve bytes"))
        .unwrap();
    let response = soon(client.request(ask)).await.unwrap();
    assert_eq!(response.headers()[CONTENT_LENGTH], "12");
    assert_eq!(text(response).await, "twelve bytes");
    server.abort();
}

#[tokio::test]
async fn a_service_gives_access_to_the_one_inside() {
    let locks = Locks::memory();
    let mut service: LockService<u8, _> = Layer::layer(&LockLayer::by(&locks, |_| "key"), 7_u8);
    *service.get_mut() += 1;
    assert_eq!(*service.get_ref(), 8);
    assert!(format!("{service:?}").contains("LockLayer"));
    assert_eq!(service.into_inner(), 8);
    let mut pending = LockLayer::by(&locks, |_| "key").layer(service_fn(|_: Request<()>| {
        pending::<Result<Response<Body>, Infallible>>()
    }));
    let future = pending.call(Request::new(()));
    assert_eq!(format!("{future:?}"), "ResponseFuture::Entering");
}
