//! A client times out and tries again: its handler runs to the end, and never beside the next attempt.

use std::convert::Infallible;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, Response, StatusCode};
use tenure::middleware::{OnLost, Refused, keys};
use tenure::{Lease, LockLayer, Locks, MemoryStore};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt, service_fn};
use tracing::Instrument;

use crate::help::{ms, poll_once, soon};
use crate::layer::{GatedHandler, by_path, send, status, steal, text, to, until};

fn payment(key: &str) -> Request<Body> {
    let request = Request::post("/o/payments").header("idempotency-key", key);
    request.body(Body::empty()).unwrap()
}

#[tokio::test]
async fn a_retry_waits_for_the_attempt_whose_client_left() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(LockLayer::new(&locks, keys::idempotency_key()));
    let first = send(&app, payment("8e03"));
    seen.next().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let retry = send(&app, payment("8e03"));
    until(|| locks.waiter_count() == 1).await;
    assert!(seen.is_empty(), "the retry runs beside its first attempt");
    // Another key is another request.
    let other = send(&app, payment("77aa"));
    seen.next().await;
    handler.let_go(2);
    seen.next().await;
    handler.let_go(1);
    assert_eq!(soon(retry).await.unwrap().status(), 200);
    assert_eq!(soon(other).await.unwrap().status(), 200);
    soon(locks.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_retry_that_may_not_wait_is_answered_with_409() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(LockLayer::new(&locks, keys::idempotency_key()).skip());
    let first = send(&app, payment("8e03"));
    seen.next().await;
    first.abort();
    let retry = soon(send(&app, payment("8e03"))).await.unwrap();
    assert_eq!(retry.status(), StatusCode::CONFLICT);
    assert_eq!(retry.extensions().get(), Some(&Refused::InFlight));
    handler.let_go(1);
    // The lock is released at the end of the handler, whose client is gone.
    soon(locks.idle()).await;
    handler.let_go(1);
    assert_eq!(status(&app, payment("8e03")).await, 200);
}

#[tokio::test]
async fn any_key_may_run_to_completion_and_an_idempotency_key_need_not() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).run_to_completion(true));
    let first = send(&app, to("/o/a"));
    seen.next().await;
    first.abort();
    let _ = first.await;
    assert_eq!(locks.key_count(), 1, "it keeps its lock");
    handler.let_go(1);
    soon(locks.idle()).await;

    let layer = LockLayer::new(&locks, keys::idempotency_key()).run_to_completion(false);
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(layer);
    let first = send(&app, payment("8e03"));
    seen.next().await;
    first.abort();
    let _ = first.await;
    // The handler was dropped.
    soon(locks.idle()).await;
}

#[tokio::test]
async fn a_handler_that_runs_to_completion_is_told_of_a_lost_lease() {
    for (on_lost, expected) in [
        (OnLost::Cancel, StatusCode::INTERNAL_SERVER_ERROR),
        (OnLost::Replace, StatusCode::INTERNAL_SERVER_ERROR),
        (OnLost::Tell, StatusCode::OK),
    ] {
        let store = MemoryStore::new();
        let locks = Locks::builder().memory_shared(&store).unwrap();
        let finished = Arc::new(AtomicUsize::new(0));
        let (thief, count) = (store.clone(), finished.clone());
        let handler = move |lease: Lease| {
            let (thief, count) = (thief.clone(), count.clone());
            async move {
                steal(&thief, "/");
                lease.lost().await;
                tokio::task::yield_now().await;
                count.fetch_add(1, Ordering::SeqCst);
            }
        };
        let layer = by_path(&locks)
            .lease(ms(3_000))
            .run_to_completion(true)
            .on_lost(on_lost);
        let app = Router::new().route("/", post(handler)).route_layer(layer);
        let request = Request::post("/").body(Body::empty()).unwrap();
        let response = soon(send(&app, request)).await.unwrap();
        assert_eq!(response.status(), expected, "{on_lost:?}");
        // A client whose answer gets replaced does not wait for the end of the handler, which was not stopped.
        until(|| finished.load(Ordering::SeqCst) == 1).await;
        assert_eq!(
            finished.load(Ordering::SeqCst),
            1,
            "{on_lost:?}: it was not stopped"
        );
        let why = (expected != 200).then_some(&Refused::OutcomeUnknown);
        assert_eq!(response.extensions().get::<Refused>(), why);
    }
}

/// A handler whose lease is lost does not hold up a shutdown. A shutdown whose future is dropped still closes the node.
#[tokio::test]
async fn a_hanging_handler_holds_up_neither_its_client_nor_a_shutdown() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let layer = by_path(&locks).run_to_completion(true);
    let bounded = handler.app(layer.clone().lease(ms(450)).max_hold(ms(100)));
    let client = send(&bounded, to("/o/a"));
    seen.next().await;
    let response = soon(client).await.unwrap();
    assert_eq!(
        response.extensions().get::<Refused>(),
        Some(&Refused::OutcomeUnknown)
    );
    soon(locks.shutdown()).await;

    let locks = Locks::memory();
    let unbounded = handler.app(by_path(&locks).run_to_completion(true));
    let _client = send(&unbounded, to("/o/a"));
    seen.next().await;
    let other = locks.mutex("other").lock().await.unwrap();
    assert!(tokio::time::timeout(ms(50), locks.shutdown()).await.is_err());
    assert!(
        !other.is_held(),
        "a shutdown that was given up left everything as it was"
    );
    soon(locks.idle()).await;
}

#[tokio::test]
async fn shutdown_waits_for_handlers_that_run_to_completion() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).run_to_completion(true));
    let client = send(&app, to("/o/a"));
    seen.next().await;
    client.abort();
    let _ = client.await;
    let ending = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown().await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(
        !ending.is_finished(),
        "shutdown took the lock from a handler at work"
    );
    assert_eq!(locks.key_count(), 1);
    handler.let_go(1);
    soon(ending).await.unwrap();
    assert_eq!(locks.key_count(), 0);
}

/// Otherwise a shutdown never ends if the server is not stopped first.
#[tokio::test]
async fn a_shutdown_that_waits_for_handlers_lets_no_other_begin() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).run_to_completion(true));
    let first = send(&app, to("/o/a"));
    seen.next().await;
    let waits = send(&app, to("/o/a"));
    until(|| locks.waiter_count() == 1).await;
    let shutdown = locks.clone();
    let mut ending = pin!(shutdown.shutdown());
    assert!(poll_once(&mut ending).await.is_none());
    let new = soon(send(&app, to("/o/b"))).await.unwrap();
    assert_eq!(new.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(new.extensions().get(), Some(&Refused::Closed));
    handler.let_go(1);
    assert_eq!(soon(first).await.unwrap().status(), 200);
    let waited = soon(waits).await.unwrap();
    assert_eq!(waited.extensions().get(), Some(&Refused::Closed));
    soon(ending).await;
    assert!(seen.is_empty(), "a handler began");
}

/// A running handler comes to its end, and may need other locks for it.
#[tokio::test]
async fn a_handler_that_a_shutdown_waits_for_gets_its_locks() {
    let locks = Locks::memory();
    let handler = |_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new())));
    let inner = LockLayer::by(&locks, |_| "inner").layer(service_fn(handler));
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let outer = LockLayer::by(&locks, |_| "outer").run_to_completion(true).layer({
        let (begun, go) = (begun.clone(), go.clone());
        service_fn(move |_: Request<()>| {
            let (begun, go, inner) = (begun.clone(), go.clone(), inner.clone());
            async move {
                begun.notify_one();
                go.notified().await;
                inner.oneshot(Request::new(())).await
            }
        })
    });
    let answer = tokio::spawn(outer.oneshot(Request::new(())));
    soon(begun.notified()).await;
    let mut ending = pin!(locks.shutdown());
    assert!(poll_once(&mut ending).await.is_none());
    go.notify_one();
    assert_eq!(soon(answer).await.unwrap().unwrap().status(), 200);
    soon(ending).await;
}

#[tokio::test]
async fn a_panic_is_carried_over_and_the_lock_is_free() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    async fn fails() {
        tokio::task::yield_now().await;
        panic!("as planned");
    }
    let app = Router::new()
        .route("/", post(fails))
        .route_layer(by_path(&locks).run_to_completion(true));
    let request = Request::post("/").body(Body::empty()).unwrap();
    let ended = send(&app, request).await.unwrap_err();
    assert_eq!(ended.into_panic().downcast_ref(), Some(&"as planned"));
    soon(locks.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn spans_are_carried_over() {
    let locks = Locks::memory();
    let service = service_fn(async |_: Request<()>| {
        tokio::task::yield_now().await;
        let inside = tracing::Span::current().metadata().map(|span| span.name());
        Ok::<_, Infallible>(Response::new(inside.unwrap_or_default().to_owned()))
    });
    let service = LockLayer::by(&locks, |_| "a")
        .run_to_completion(true)
        .layer(service);
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry());
    let request = service.oneshot(Request::new(()));
    let response = request.instrument(tracing::info_span!("request")).await.unwrap();
    assert_eq!(text(response.map(Body::new)).await, "request");
}
