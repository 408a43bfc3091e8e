//! What a handler sees of its lease, and what happens to it when the lease is lost.

use crate::help::{ms, soon};
use crate::layer::{GatedHandler, by_path, refused, send, status, steal, text, to, until};
use crate::layer_choices::without_store;
use crate::support::events::Watch;
use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use std::future::ready;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tenure::error::LostCause;
use tenure::middleware::{OnLost, Refused, StoreFailure};
use tenure::testing::Clock;
use tenure::{Key, Lease, LockLayer, Locks, MemoryStore, MultiKey, MultiLease};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, ServiceBuilder, ServiceExt};

// The lease.

#[tokio::test]
async fn the_handler_sees_the_lease() {
    let locks = Locks::memory();
    let (sender, mut leases) = mpsc::unbounded_channel();
    let handler = move |lease: Lease, request: Request<Body>| async move {
        assert!(lease.is_held());
        assert_eq!(
            request.extensions().get::<Lease>().unwrap().fence(),
            lease.fence()
        );
        sender.send(lease).unwrap();
    };
    let app = Router::new()
        .route("/a", get(handler))
        .route_layer(by_path(&locks));
    let mut fences = Vec::new();
    for _ in 0..3 {
        assert_eq!(status(&app, to("/a")).await, 200);
        let lease = leases.recv().await.unwrap();
        assert_eq!(lease.key(), &Key::from("/a"));
        assert!(!lease.is_held(), "it ends with the answer");
        assert_eq!(soon(lease.lost()).await, LostCause::Released);
        fences.push(lease.fence());
    }
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

#[tokio::test]
async fn a_missing_layer_is_reported() {
    let app = Router::new().route("/", get(|_: Lease| async {})).route(
        "/maybe",
        get(|lease: Option<Lease>| async move { assert!(lease.is_none()) }),
    );
    let response = soon(send(&app, to("/"))).await.unwrap();
    assert_eq!(response.status(), 500);
    assert_eq!(text(response).await, "LockLayer is missing on this route");
    assert_eq!(status(&app, to("/maybe")).await, 200);
}

/// One ERROR a minute for each route says what the layer did, and which extractor fits.
#[tokio::test]
async fn a_handler_without_its_lease_is_told_what_is_there() {
    let locks = Locks::memory();
    let away = without_store().await;
    let wants_one = get(async |_: Lease| ());
    let wants_all = get(async |_: MultiLease| ());
    let unlocked = by_path(&away).on_store_failure(StoreFailure::RunUnlocked);
    let optional = "extract an `Option<Lease>`";
    let several = LockLayer::by(&locks, |_| ["a", "b"].map(MultiKey::write).to_vec());
    for (path, app, expected) in [
        ("/lacks/none", wants_one.clone(), ["missing on this route", ""]),
        (
            "/lacks/dry",
            wants_one.clone().layer(by_path(&locks).dry_run()),
            ["dry run", optional],
        ),
        (
            "/lacks/method",
            wants_one.clone().layer(by_path(&locks).only_unsafe()),
            ["no requests of this method", optional],
        ),
        (
            "/lacks/key",
            wants_one.clone().layer(LockLayer::by(&locks, |_| None::<String>)),
            ["no key", optional],
        ),
        (
            "/lacks/store",
            wants_one.clone().layer(unlocked),
            ["the store failed", optional],
        ),
        (
            "/lacks/several",
            wants_one.layer(several),
            ["several keys", "extract a `MultiLease`"],
        ),
        (
            "/lacks/all",
            wants_all.clone().layer(by_path(&locks)),
            ["one key", "extract a `Lease`"],
        ),
        (
            "/lacks/all/dry",
            wants_all.layer(by_path(&locks).dry_run()),
            ["dry run", "extract an `Option<MultiLease>`"],
        ),
    ] {
        let watch = Watch::of(path);
        let app = Router::new().route(path, app);
        for _ in 0..2 {
            let response = soon(send(&app, to(path))).await.unwrap();
            assert_eq!(response.status(), 500, "{path}");
            let text = text(response).await;
            assert!(expected.iter().all(|part| text.contains(part)), "{path}: {text}");
        }
        let told = watch
            .told()
            .into_iter()
            .filter(|told| told.event == "lease_missing");
        let told: Vec<_> = told.map(|told| (told.level.to_string(), told.text)).collect();
        let levels: Vec<_> = told.iter().map(|(level, _)| &**level).collect();
        assert_eq!(levels, ["ERROR", "DEBUG"], "{path}: {told:?}");
        assert!(expected.iter().all(|part| told[0].1.contains(part)), "{told:?}");
    }
}

#[tokio::test]
async fn the_inner_lease_of_nested_layers_is_seen() {
    let locks = Locks::memory();
    let app = Router::new()
        .route("/", get(|lease: Lease| async move { lease.key().to_string() }))
        .route_layer(LockLayer::by(&locks, |_| "inner"))
        .route_layer(LockLayer::by(&locks, |_| "outer"));
    assert_eq!(text(soon(send(&app, to("/"))).await.unwrap()).await, "inner");
}

#[tokio::test]
async fn a_lost_lease_is_reported() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let thief = store.clone();
    let handler = |lease: Lease| async move {
        steal(&thief, "/");
        format!("{:?} {}", lease.lost().await, lease.is_held())
    };
    let app = Router::new()
        .route("/", get(handler))
        .route_layer(by_path(&locks).lease(ms(3_000)).on_lost(OnLost::Tell));
    let response = soon(send(&app, to("/"))).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(text(response).await, "Gone false");
}

#[tokio::test]
async fn a_lost_lease_cancels() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).lease(ms(3_000)));
    let answer = send(&app, to("/o/secret"));
    seen.next().await;
    steal(&store, "/o/secret");
    refused(soon(answer).await.unwrap(), Refused::OutcomeUnknown, 500, false).await;
    assert_eq!(
        handler.inside.load(Ordering::SeqCst),
        0,
        "the handler's future is dropped"
    );
    soon(locks.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_handler_that_slept_past_its_lease_takes_no_other_step() {
    for (on_lost, expected) in [(OnLost::Cancel, 500), (OnLost::Replace, 500), (OnLost::Tell, 200)] {
        let clock = Clock::new();
        let locks = Locks::builder().clock(clock.clone()).memory().unwrap();
        // No timer has fired yet when the handler ends.
        let handler = move || {
            clock.jump(Duration::from_secs(11));
            ready(())
        };
        let app = Router::new()
            .route("/", get(handler))
            .route_layer(by_path(&locks).on_lost(on_lost));
        assert_eq!(status(&app, to("/")).await, expected);
    }
}

#[tokio::test]
async fn no_handler_starts_with_a_lost_lease() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let (handler, mut seen) = GatedHandler::new();
    // Not by `Router::layer`: a route of axum is always ready, and an inner service waits in the handler's future.
    let service = ServiceBuilder::new()
        .layer(by_path(&locks).lease(ms(3_000)))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(handler.routes());
    let send = |uri| {
        let answer = service.clone().oneshot(to(uri));
        tokio::spawn(async move { answer.await.unwrap().map(Body::new) })
    };
    let first = send("/o/a");
    seen.next().await;
    // This request has its lock, and waits for the slot.
    let second = send("/o/secret");
    until(|| store.len() == 2).await;
    steal(&store, "/o/secret");
    refused(soon(second).await.unwrap(), Refused::Lost, 503, true).await;
    assert!(seen.is_empty());
    handler.let_go(1);
    assert_eq!(soon(first).await.unwrap().status(), 200);
}

/// A handler that hangs is told and then stopped; so is a wait for a service that never becomes ready.
#[tokio::test]
async fn max_hold_bounds_handlers_and_services_that_hang() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let limited = ConcurrencyLimitLayer::new(1).layer(handler.routes());
    let layer = by_path(&locks).lease(ms(900)).max_hold(ms(500));
    let service = layer.layer(limited.clone());
    let send = async |uri| {
        let answer = service.clone().oneshot(to(uri));
        soon(answer).await.unwrap().map(Body::new)
    };
    // The slot is free: the handler runs, and hangs.
    refused(send("/o/a").await, Refused::OutcomeUnknown, 500, false).await;
    seen.next().await;
    // A request beside the layer has the slot: the service never becomes ready.
    let beside = tokio::spawn(limited.oneshot(to("/o/beside")));
    seen.next().await;
    refused(send("/o/b").await, Refused::Lost, 503, true).await;
    assert!(seen.is_empty());
    handler.let_go(1);
    assert_eq!(soon(beside).await.unwrap().unwrap().status(), 200);
    soon(locks.idle()).await;
}

// Ends without an answer.

#[tokio::test]
async fn a_client_that_leaves_gives_up_its_place_and_its_lock() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks));
    let handled = send(&app, to("/o/a"));
    seen.next().await;
    let waiting = send(&app, to("/o/a"));
    until(|| locks.waiter_count() == 1).await;
    waiting.abort();
    until(|| locks.waiter_count() == 0).await;
    handled.abort();
    assert!(soon(handled).await.unwrap_err().is_cancelled());
    assert_eq!(handler.inside.load(Ordering::SeqCst), 0);
    soon(locks.idle()).await;
    assert!(store.is_empty());
    assert!(seen.is_empty());
}

#[tokio::test]
async fn a_connection_that_is_closed_is_a_client_that_left() {
    let locks = Locks::memory();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let ask = async || {
        let mut client = TcpStream::connect(address).await.unwrap();
        client
            .write_all(b"GET /o/a HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        client
    };
    let handled = ask().await;
    seen.next().await;
    let waiting = ask().await;
    until(|| locks.waiter_count() == 1).await;
    drop(waiting);
    until(|| locks.waiter_count() == 0).await;
    drop(handled);
    soon(locks.idle()).await;

    let mut client = ask().await;
    seen.next().await;
    handler.let_go(1);
    let mut answer = [0; 12];
    soon(client.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    server.abort();
}

#[tokio::test]
async fn a_handler_that_panics_gives_the_lock_back() {
    let locks = Locks::memory();
    let handler = |lease: Lease| async move {
        assert!(!lease.is_held(), "on purpose");
    };
    let app = Router::new()
        .route("/", get(handler))
        .route_layer(by_path(&locks));
    assert!(soon(send(&app, to("/"))).await.unwrap_err().is_panic());
    soon(locks.idle()).await;
    drop(locks.mutex("/").try_lock().await.unwrap().expect("it is free"));
}

#[tokio::test]
async fn the_lock_outlives_the_handlers_future() {
    /// Reports, when it is dropped, whether the lease was still held.
    struct Last(Lease, mpsc::UnboundedSender<bool>);

    impl Drop for Last {
        fn drop(&mut self) {
            self.1.send(self.0.is_held()).unwrap();
        }
    }

    let locks = Locks::memory();
    let (sender, mut held) = mpsc::unbounded_channel();
    let (handler, mut seen) = GatedHandler::new();
    let served = {
        let handler = handler.clone();
        move |lease: Lease| async move {
            let _last = Last(lease, sender);
            handler.serve("a".into()).await
        }
    };
    let app = Router::new().route("/", get(served)).route_layer(by_path(&locks));
    let dropped = send(&app, to("/"));
    seen.next().await;
    dropped.abort();
    assert!(
        soon(held.recv()).await.unwrap(),
        "the work is dropped before the lease that protects it"
    );
    handler.let_go(1);
    assert_eq!(status(&app, to("/")).await, 200);
    assert!(soon(held.recv()).await.unwrap(), "done");
}
