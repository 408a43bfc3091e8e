//! The options of a layer: statuses, headers, and dry runs.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use http::header::RETRY_AFTER;
use tenure::middleware::{Refused, StoreFailure, keys};
use tenure::{LockLayer, Locks, MemoryStore, MultiKey};

use crate::help::{ms, soon};
use crate::layer::{GatedHandler, by_path, send, status, text, to, until};
use crate::support::events::Watch;

#[tokio::test]
async fn statuses_retry_after_and_problem_types_can_be_set() {
    let locks = Locks::memory();
    let layer = by_path(&locks)
        .wait(ms(1))
        .status(Refused::Busy, StatusCode::CONFLICT)
        .status(Refused::WaitedTooLong, StatusCode::IM_A_TEAPOT)
        .status(Refused::WaitedTooLong, StatusCode::SERVICE_UNAVAILABLE)
        .retry_after(Duration::from_millis(7_900))
        .problem_base("https://example.com/problems");
    let app = |layer| Router::new().route("/", get(async || ())).route_layer(layer);
    let guard = locks.mutex("/").lock().await.unwrap();

    let response = soon(send(&app(layer.clone()), to("/"))).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()[RETRY_AFTER], "8", "rounded up");
    let body = text(response).await;
    assert!(
        body.contains(r#""type":"https://example.com/problems#variant.WaitedTooLong""#),
        "{body}"
    );
    assert!(body.contains(r#""status":503"#), "{body}");

    let response = soon(send(&app(layer.clone().skip()), to("/"))).await.unwrap();
    assert_eq!(response.status(), 409);
    assert_eq!(response.headers()[RETRY_AFTER], "8", "as each 409");

    // A configured text may contain any character; the body is still valid JSON.
    let odd = layer.clone().problem_base("a\"b\\c\nd");
    let body = text(soon(send(&app(odd), to("/"))).await.unwrap()).await;
    let escaped = r#""type":"a\u0022b\u005cc\u000ad#variant.WaitedTooLong","#;
    assert!(body.contains(escaped), "{body}");

    // A retry time of zero becomes 1 s.
    let at_once = app(layer.retry_after(Duration::ZERO));
    let response = soon(send(&at_once, to("/"))).await.unwrap();
    assert_eq!(response.headers()[RETRY_AFTER], "1");
    drop(guard);
}

#[tokio::test]
async fn answers_report_the_wait_and_the_fence_on_request() {
    let locks = Locks::memory();
    let layer = by_path(&locks).server_timing().fence_header("x-fence");
    let handler = |lease: tenure::Lease| async move {
        ([("server-timing", "db;dur=1")], lease.fence().get().to_string())
    };
    let app = Router::new().route("/", get(handler)).route_layer(layer);
    let held = locks.mutex("/").lock().await.unwrap();
    let answer = send(&app, to("/"));
    until(|| locks.waiter_count() == 1).await;
    // The request waits at least this long, and its answer reports it.
    tokio::time::sleep(ms(20)).await;
    drop(held);
    let response = soon(answer).await.unwrap();
    let timings: Vec<_> = response.headers().get_all("server-timing").iter().collect();
    assert_eq!(timings.len(), 2, "that of the handler stays");
    let waited = timings[1].to_str().unwrap().strip_prefix("lock;dur=").unwrap();
    assert!(waited.parse::<f64>().unwrap() >= 20.0, "{waited}");
    let fence = response.headers()["x-fence"].to_str().unwrap().to_owned();
    assert_eq!(text(response).await, fence);

    let quiet = Router::new()
        .route("/", get(async || ()))
        .route_layer(by_path(&locks));
    let response = soon(send(&quiet, to("/"))).await.unwrap();
    assert!(!response.headers().contains_key("server-timing"));
}

/// The wait of a request that then runs without its lock is a wait, too.
#[tokio::test]
async fn answers_report_the_wait_of_requests_that_run_unlocked() {
    let locks = crate::layer_choices::without_store().await;
    let layer = by_path(&locks).on_store_failure(StoreFailure::RunUnlocked);
    let app = Router::new()
        .route("/", get(async || ()))
        .route_layer(layer.server_timing());
    let response = soon(send(&app, to("/"))).await.unwrap();
    assert_eq!(response.status(), 200);
    let timing = response.headers()["server-timing"].to_str().unwrap();
    let waited = timing.strip_prefix("lock;dur=").unwrap();
    assert!(waited.parse::<f64>().unwrap() > 0.0, "{waited}");
}

/// The limit of a layer replaces that of the node, also if it is larger.
#[tokio::test]
async fn a_limit_of_waiters_of_a_layer_replaces_that_of_the_node() {
    let locks = Locks::builder().max_waiters_per_key(1).memory().unwrap();
    let app = |layer| Router::new().route("/", get(async || ())).route_layer(layer);
    let (of_layer, of_node) = (app(by_path(&locks).max_waiters(2)), app(by_path(&locks)));
    let held = locks.mutex("/").lock().await.unwrap();
    let mut waiting = Vec::new();
    for number in [1, 2] {
        waiting.push(send(&of_layer, to("/")));
        until(|| locks.waiter_count() == number).await;
    }
    for app in [&of_layer, &of_node] {
        let refused = soon(send(app, to("/"))).await.unwrap();
        assert_eq!(refused.status(), 429);
        let text = text(refused).await;
        assert!(text.contains("QueueFull"), "{text}");
    }
    drop(held);
    for waiting in waiting {
        assert_eq!(soon(waiting).await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn a_dry_run_admits_every_request_and_reports_overlaps() {
    let watch = Watch::of("outcome=overlap");
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).dry_run());
    // A real lock does not make a dry run wait.
    let held = locks.mutex("/o/a").lock().await.unwrap();
    let first = send(&app, to("/o/a"));
    seen.next().await;
    until(|| store.len() == 2).await;
    let second = send(&app, to("/o/a"));
    seen.next().await;
    let told = watch.until("dry_run").await;
    assert!(told.text.contains("route=/o/{id}"), "{told:?}");
    handler.let_go(2);
    assert_eq!(soon(first).await.unwrap().status(), 200);
    assert_eq!(soon(second).await.unwrap().status(), 200);
    drop(held);
    soon(locks.idle()).await;
    assert!(store.is_empty());
    // The next request is alone.
    handler.let_go(1);
    assert_eq!(status(&app, to("/o/a")).await, 200);
    assert_eq!(watch.count("dry_run"), 1);
}

#[tokio::test]
async fn a_dry_run_refuses_no_request() {
    let watch = Watch::of("outcome=refused");
    let locks = Locks::memory();
    let app = Router::new()
        .route(
            "/",
            get(async |lease: Option<tenure::Lease>| assert!(lease.is_none())),
        )
        .route_layer(LockLayer::new(&locks, keys::idempotency_key()).dry_run());
    assert_eq!(status(&app, to("/")).await, 200);
    watch.until("dry_run").await;
    // A client that leaves takes its dry-run record with it.
    let (handler, mut seen) = GatedHandler::new();
    let app = handler.app(by_path(&locks).dry_run());
    let left = send(&app, to("/o/a"));
    seen.next().await;
    until(|| locks.key_count() == 1).await;
    left.abort();
    soon(locks.idle()).await;
}

/// Real nested layers with one key share its lease, and the longest key is valid.
#[tokio::test]
async fn a_dry_run_counts_no_request_against_itself() {
    let watch = Watch::of("route=/nested/");
    let locks = Locks::memory();
    let app = Router::new()
        .route("/nested/{id}", get(async || ()))
        .route_layer(by_path(&locks).dry_run())
        .route_layer(by_path(&locks).dry_run());
    for _ in 0..3 {
        assert_eq!(status(&app, to("/nested/a")).await, 200);
        soon(locks.idle()).await;
    }
    let longest = format!("/nested/{}", "x".repeat(512 - "/nested/".len()));
    assert_eq!(status(&app, to(&longest)).await, 200);
    soon(locks.idle()).await;
    assert_eq!(watch.count("dry_run"), 0);
    assert_eq!(status(&app, to(&format!("{longest}x"))).await, 200);
    soon(locks.idle()).await;
    assert_eq!(watch.count("dry_run"), 1);
}

#[tokio::test]
async fn a_misconfigured_layer_is_reported_once() {
    let watch = Watch::of("route=/wrongly");
    let locks = Locks::memory();
    let app = Router::new()
        .route("/wrongly", get(async || ()))
        .route_layer(by_path(&locks).lease(ms(1)));
    for _ in 0..3 {
        assert_eq!(status(&app, to("/wrongly")).await, 500);
    }
    let levels: Vec<String> = watch.told().iter().map(|told| told.level.to_string()).collect();
    assert_eq!(levels, ["ERROR", "DEBUG", "DEBUG"]);
}

/// Each request would be refused.
#[tokio::test]
async fn what_a_quorum_does_not_serve_is_refused_when_the_layer_is_made() {
    let masters = [
        "redis://127.0.0.1:1/",
        "redis://127.0.0.1:2/",
        "redis://127.0.0.1:3/",
    ];
    let masters = masters.map(|url| redis::Client::open(url).unwrap());
    let locks = Locks::builder()
        .lazy()
        .quorum(masters.into(), ms(10_000))
        .await
        .unwrap();
    let layer = || by_path(&locks);
    let makes: [(&str, &dyn Fn()); 2] = [
        ("semaphores", &|| drop(layer().permits(2))),
        ("fair locks", &|| drop(layer().fair())),
    ];
    for (what, make) in makes {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(make)).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains(&format!("a quorum serves no {what}")), "{text}");
    }
    // A key for reading is known only with the request.
    let reads = LockLayer::by(&locks, |_| MultiKey::read("a")).on_store_failure(StoreFailure::RunUnlocked);
    let app = Router::new()
        .route("/", get(async || "not reached"))
        .route_layer(reads);
    assert_eq!(status(&app, to("/")).await, 500);
}
