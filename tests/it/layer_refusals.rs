//! Refusals that the user defines.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::MatchedPath;
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use tenure::middleware::{LockKey, OnLost, OnRefusal, Problem, Refused, RefusedRequest};
use tenure::{LockLayer, Locks, MemoryStore};
use tower::limit::ConcurrencyLimitLayer;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::help::{ms, soon};
use crate::layer::{GatedHandler, by_path, send, status, steal, text, to, until};
use crate::support::events::Watch;

/// Returns everything that a refused request shows.
fn told(request: &RefusedRequest<'_>) -> (StatusCode, String) {
    let after = request.retry_after().map(|after| {
        assert!((1..=3).contains(&after.as_secs()) && after.subsec_nanos() == 0);
        "later"
    });
    let head = request
        .parts()
        .map(|parts| format!("{} {}", parts.method, parts.uri));
    (
        StatusCode::IM_A_TEAPOT,
        format!(
            "{:?} {} {after:?} {head:?}",
            request.why(),
            request.status().as_u16()
        ),
    )
}

#[tokio::test]
async fn a_closure_answers_refused_requests() {
    let locks = Locks::memory();
    let held = locks.mutex("/o/a").lock().await.unwrap();
    let (handler, _seen) = GatedHandler::new();
    for (layer, expected) in [
        (by_path(&locks).skip(), r#"Busy 423 None Some("GET /o/a?b")"#),
        (
            by_path(&locks).wait(ms(10)),
            r#"WaitedTooLong 429 Some("later") Some("GET /o/a?b")"#,
        ),
        (
            by_path(&locks).lease(ms(1)),
            r#"BadOptions 500 None Some("GET /o/a?b")"#,
        ),
    ] {
        // The closure answers whatever else is set on the layer.
        let response = soon(send(&handler.app(layer.on_refusal(told)), to("/o/a?b")))
            .await
            .unwrap();
        assert_eq!(response.status(), 418);
        assert!(response.extensions().get::<Refused>().is_some());
        assert!(!response.headers().contains_key(RETRY_AFTER));
        assert_eq!(text(response).await, expected);
    }
    drop(held);
    handler.let_go(1);
    let app = handler.app(by_path(&locks).on_refusal(told));
    assert_eq!(
        status(&app, to("/o/a")).await,
        200,
        "an admitted request is not touched"
    );
    soon(locks.shutdown()).await;
    assert_eq!(
        text(soon(send(&app, to("/o/a"))).await.unwrap()).await,
        r#"Closed 503 Some("later") Some("GET /o/a")"#
    );
}

#[tokio::test]
async fn a_full_queue_is_answered_by_the_closure() {
    let locks = Locks::memory();
    let held = locks.mutex("/o/a").lock().await.unwrap();
    let (handler, _seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).max_waiters(1).on_refusal(told));
    let waiter = send(&app, to("/o/a"));
    until(|| locks.waiter_count() == 1).await;
    assert_eq!(
        text(soon(send(&app, to("/o/a"))).await.unwrap()).await,
        r#"QueueFull 429 Some("later") Some("GET /o/a")"#
    );
    handler.let_go(1);
    drop(held);
    assert_eq!(soon(waiter).await.unwrap().status(), 200);
}

/// Counts refusals, and answers in the language of the client.
struct House {
    name: &'static str,
    refused: Arc<AtomicUsize>,
}

impl OnRefusal for House {
    type Answer = axum::response::Response;

    fn answer(&self, request: &RefusedRequest<'_>) -> axum::response::Response {
        self.refused.fetch_add(1, Ordering::SeqCst);
        let accepts = request.parts().and_then(|parts| parts.headers.get(ACCEPT));
        let mut response = if accepts.is_some_and(|accepts| accepts == "text/html") {
            (request.status(), Html(format!("<p>{}", request.why().detail()))).into_response()
        } else {
            Problem.answer(request).into_response()
        };
        response
            .headers_mut()
            .insert("x-house", HeaderValue::from_static(self.name));
        response
    }
}

#[tokio::test]
async fn a_type_answers_refused_requests() {
    let locks = Locks::memory();
    let _held = locks.mutex("/o/a").lock().await.unwrap();
    let (handler, _seen) = GatedHandler::new();
    let refused = Arc::new(AtomicUsize::new(0));
    let house = House {
        name: "ours",
        refused: refused.clone(),
    };
    let app = handler.app(by_path(&locks).skip().on_refusal(house));
    let mut html = to("/o/a");
    html.headers_mut().insert(ACCEPT, "text/html".parse().unwrap());
    for (request, kind, body) in [
        (html, "text/html; charset=utf-8", "<p>Another request"),
        (to("/o/a"), "application/problem+json", r#"{"type":"https://"#),
    ] {
        let response = soon(send(&app, request)).await.unwrap();
        assert_eq!(response.status(), 423);
        assert_eq!(response.extensions().get(), Some(&Refused::Busy));
        assert_eq!(response.headers()[CONTENT_TYPE], kind);
        assert_eq!(response.headers()["x-house"], "ours");
        assert!(text(response).await.starts_with(body));
    }
    assert_eq!(refused.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn key_sources_refuse_as_the_layer_does() {
    let locks = Locks::memory();
    let layer = LockLayer::by(&locks, |parts| match parts.uri.query() {
        Some("own") => Err((StatusCode::PAYMENT_REQUIRED, "own")),
        _ => Ok(LockKey::refuse(Refused::NoKey)),
    });
    let app = |layer: LockLayer<_>| Router::new().route("/", get(|| async {})).route_layer(layer);
    let plain = app(layer.clone());
    let response = soon(send(&plain, to("/"))).await.unwrap();
    assert_eq!(response.status(), 400);
    let body = text(response).await;
    assert!(body.contains("enum.Refused.html#variant.NoKey"), "{body}");
    let app = app(layer.on_refusal(told));
    assert_eq!(
        text(soon(send(&app, to("/"))).await.unwrap()).await,
        r#"NoKey 400 None Some("GET /")"#
    );
    let response = soon(send(&app, to("/?own"))).await.unwrap();
    assert_eq!(response.status(), 402);
    assert!(response.extensions().get::<Refused>().is_none());
}

#[tokio::test]
async fn extractors_reject_for_themselves() {
    let layer = LockLayer::from_extractors(
        &Locks::memory(),
        |axum::extract::Path(id): axum::extract::Path<u64>| format!("{id}"),
    );
    let (handler, _seen) = GatedHandler::new();
    assert_eq!(
        status(&handler.app(layer.on_refusal(told)), to("/o/x")).await,
        400
    );
}

#[tokio::test]
async fn a_lease_that_is_lost_is_told() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let (handler, mut seen) = GatedHandler::new();
    // The lease is lost while the handler runs: the closure has the request's head.
    let layer = by_path(&locks)
        .lease(ms(3_000))
        .on_lost(OnLost::Cancel)
        .on_refusal(told);
    let answer = send(&handler.app(layer.clone()), to("/o/a"));
    seen.next().await;
    steal(&store, "/o/a");
    assert_eq!(
        text(soon(answer).await.unwrap()).await,
        r#"OutcomeUnknown 500 None None"#
    );

    // The lease is lost before the handler began.
    let service = ServiceBuilder::new()
        .layer(layer)
        .layer(ConcurrencyLimitLayer::new(1))
        .service(handler.routes());
    let first = tokio::spawn(service.clone().oneshot(to("/o/b")));
    seen.next().await;
    let second = tokio::spawn(service.clone().oneshot(to("/o/c")));
    until(|| store.len() == 2).await;
    steal(&store, "/o/c");
    assert_eq!(
        text(soon(second).await.unwrap().unwrap()).await,
        r#"Lost 503 Some("later") Some("GET /o/c")"#
    );
    handler.let_go(1);
    assert_eq!(soon(first).await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn a_refused_request_has_the_extensions_of_axum() {
    let locks = Locks::memory();
    let _held = locks.mutex("/o/a").lock().await.unwrap();
    let (handler, _seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).skip().on_refusal(|request: &RefusedRequest| {
        let path = request
            .parts()
            .and_then(|parts| parts.extensions.get::<MatchedPath>());
        path.unwrap().as_str().to_owned()
    }));
    assert_eq!(text(soon(send(&app, to("/o/a"))).await.unwrap()).await, "/o/{id}");
}

#[tokio::test]
async fn answers_may_have_any_body_and_errors_stay_as_they_were() {
    let locks = Locks::memory();
    let _held = locks.mutex("key").lock().await.unwrap();
    let layer = LockLayer::by(&locks, |_| "key").skip();
    let inner =
        service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) });
    let full = layer
        .clone()
        .on_refusal(|_: &RefusedRequest| Response::new(Full::new(Bytes::from("full"))));
    let service = ServiceBuilder::new().layer(full).service(inner);
    let Ok(response) = service.oneshot(Request::new(())).await;
    assert_eq!(text(response).await, "full");
    let string = layer.on_refusal(|_: &RefusedRequest| Response::new(String::from("string")));
    let service = ServiceBuilder::new().layer(string).service(inner);
    let Ok(response) = service.oneshot(Request::new(())).await;
    assert_eq!(text(response).await, "string");
}

/// A crowd at one key is one event each minute.
#[tokio::test(start_paused = true)]
async fn requests_that_are_refused_as_busy_are_an_event_a_minute() {
    let locks = Locks::memory();
    let _held = locks.mutex("crowded").lock().await.unwrap();
    let layer = LockLayer::by(&locks, |_| "crowded").skip();
    let app = Router::new()
        .route("/crowded/{id}", get(async || "in"))
        .route_layer(layer);
    let refused = async || {
        let answer = app.clone().oneshot(to("/crowded/7")).await.unwrap();
        assert_eq!(answer.status(), 423);
    };
    let watch = Watch::of("route=/crowded/{id} ");
    let counts = || -> Vec<u64> {
        let told = watch
            .told()
            .into_iter()
            .filter(|told| told.event == "refused_busy");
        told.map(|told| {
            assert_eq!(told.level, tracing::Level::INFO, "the limit is intended");
            let (_, count) = told.text.split_once("count=").unwrap();
            count.split(' ').next().unwrap().parse().unwrap()
        })
        .collect()
    };
    for _ in 0..5 {
        refused().await;
    }
    assert_eq!(counts(), [1], "the first at once");
    tokio::time::sleep(Duration::from_secs(59)).await;
    refused().await;
    assert_eq!(counts(), [1]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(counts(), [1, 5], "and what followed, once a minute");
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(counts(), [1, 5]);
    refused().await;
    assert_eq!(counts(), [1, 5, 1]);
}

/// Each layer counts for itself, full queues too, and names the route of the latest request.
#[tokio::test(start_paused = true)]
async fn each_layer_tells_its_own_refusals_with_the_latest_route() {
    let locks = Locks::memory();
    let _held = locks.mutex("twice").lock().await.unwrap();
    let busy = LockLayer::by(&locks, |_| "twice").skip();
    let full = LockLayer::by(&locks, |_| "twice").max_waiters(0);
    let busy = Router::new()
        .route("/busy-first/{id}", get(async || "in"))
        .route("/busy-last/{id}", get(async || "in"))
        .route_layer(busy);
    let full = Router::new()
        .route("/full/{id}", get(async || "in"))
        .route_layer(full);
    let app = busy.merge(full);
    let refused = async |path: &str, status: u16| {
        let answer = app.clone().oneshot(to(path)).await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
    };
    let watches = ["/busy-first/{id}", "/busy-last/{id}", "/full/{id}"];
    let watches = watches.map(|route| Watch::of(format!("route={route} ")));
    let told = || watches.each_ref().map(|watch| watch.count("refused_busy"));
    refused("/busy-first/1", 423).await;
    refused("/full/1", 429).await;
    assert_eq!(told(), [1, 0, 1], "a layer does not count for another");
    refused("/busy-first/2", 423).await;
    refused("/busy-last/2", 423).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(told(), [1, 1, 1], "the latest of two");
}

/// The refusals of `skip` are what a layer is for; a crowd that waits in vain is trouble.
#[tokio::test(start_paused = true)]
async fn only_requests_that_waited_in_vain_are_a_warning() {
    let locks = Locks::memory();
    let _held = locks.mutex("intended").lock().await.unwrap();
    let layer = LockLayer::by(&locks, |_| "intended").wait(ms(10));
    let layer = layer.wait_by(|parts| parts.uri.path().ends_with("/0").then_some(Duration::ZERO));
    let app = Router::new()
        .route("/intended/{id}", get(async || "in"))
        .route_layer(layer);
    let watch = Watch::of("route=/intended/{id} ");
    let levels = || -> Vec<String> {
        let told = watch.told().into_iter();
        let told = told.filter(|told| told.event == "refused_busy");
        told.map(|told| told.level.to_string()).collect()
    };
    for (id, status) in [(0, 423), (0, 423), (1, 429), (0, 423)] {
        let answer = app.clone().oneshot(to(&format!("/intended/{id}"))).await.unwrap();
        assert_eq!(answer.status(), status);
    }
    assert_eq!(levels(), ["INFO"], "the first was not allowed to wait");
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(levels(), ["INFO", "WARN"], "one of the next three waited in vain");
}

/// A status that asks a client to come back says when.
#[tokio::test]
async fn retry_after_follows_the_status_that_is_sent() {
    let locks = Locks::memory();
    let _held = locks.mutex("/").lock().await.unwrap();
    let skip = || by_path(&locks).skip();
    let wait = || by_path(&locks).wait(ms(1));
    let lost = || LockLayer::by(&locks, |_| LockKey::refuse(Refused::OutcomeUnknown));
    let bad = || LockLayer::by(&locks, |_| LockKey::refuse(Refused::BadKey));
    let app = |layer| Router::new().route("/", get(async || ())).route_layer(layer);
    for (app, status, retries) in [
        (app(skip()), 423, false),
        (
            app(skip().status(Refused::Busy, StatusCode::TOO_MANY_REQUESTS)),
            429,
            true,
        ),
        (app(skip().status(Refused::Busy, StatusCode::CONFLICT)), 409, true),
        (
            app(wait().status(Refused::WaitedTooLong, StatusCode::LOCKED)),
            423,
            false,
        ),
    ] {
        let answer = soon(send(&app, to("/"))).await.unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers().contains_key(RETRY_AFTER), retries, "{status}");
    }
    // A retry of these does not help, whatever the status is.
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    for app in [
        Router::new().route(
            "/",
            get(async || ()).layer(lost().status(Refused::OutcomeUnknown, unavailable)),
        ),
        Router::new().route(
            "/",
            get(async || ()).layer(bad().status(Refused::BadKey, unavailable)),
        ),
    ] {
        let answer = soon(send(&app, to("/"))).await.unwrap();
        assert_eq!(answer.status(), 503);
        assert!(!answer.headers().contains_key(RETRY_AFTER));
    }
}
