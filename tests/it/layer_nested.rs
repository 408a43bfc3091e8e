//! The same key twice: in nested layers, and in a handler behind one.

use std::sync::Arc;
use std::sync::Mutex;

use axum::Router;
use axum::routing::get;
use tenure::middleware::{Leases, Refused};
use tenure::{Error, Guard, Key, Lease, LockLayer, Locks, MemoryStore};
use tower::ServiceBuilder;
use tower::buffer::BufferLayer;
use tower::{ServiceExt, service_fn};

use crate::help::soon;
use crate::layer::{by_path, send, steal, text, to, until};

fn named(locks: &Locks, key: Option<&'static str>) -> LockLayer<impl tenure::middleware::KeySource> {
    LockLayer::by(locks, move |_| key)
}

#[tokio::test]
async fn nested_layers_with_one_key_share_the_lease() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let other = Locks::builder().memory_shared(&store).unwrap();
    let handler = move |lease: Lease, leases: Leases| {
        let other = other.clone();
        async move {
            assert!(leases.iter().all(|held| held.fence() == lease.fence()));
            let busy = other.mutex("a").try_lock().await.unwrap().is_none();
            format!("{} {} {busy}", leases.len(), lease.is_held())
        }
    };
    let app = Router::new()
        .route("/", get(handler))
        .route_layer(named(&locks, Some("a")))
        .route_layer(named(&locks, Some("a")));
    let response = soon(send(&app, to("/"))).await.unwrap();
    assert_eq!(text(response).await, "2 true true");
    soon(locks.idle()).await;
    assert!(store.is_empty());
}

/// The check of the lock in a handler is true only under the layer's key, also if the handler runs to completion.
#[tokio::test]
async fn a_handler_behind_a_layer_runs_under_the_lock_of_its_key() {
    let locks = Locks::memory();
    let held = {
        let locks = locks.clone();
        move || {
            let is_held = |key| locks.mutex(key).is_held_here();
            let is_read = locks.rw_lock("a").is_held_here();
            format!("{} {} {is_read}", is_held("a"), is_held("b"))
        }
    };
    for layer in [
        named(&locks, Some("a")),
        named(&locks, Some("a")).run_to_completion(true),
    ] {
        let held = held.clone();
        let handler = async move || {
            let before = held();
            tokio::task::yield_now().await;
            format!("{before}, {}", held())
        };
        let app = Router::new().route("/", get(handler)).route_layer(layer);
        let response = soon(send(&app, to("/"))).await.unwrap();
        assert_eq!(text(response).await, "true false true, true false true");
    }
    assert_eq!(held(), "false false false");
}

#[tokio::test]
async fn a_buffer_between_them_makes_no_difference() {
    let locks = Locks::memory();
    let service = ServiceBuilder::new()
        .layer(named(&locks, Some("a")))
        .layer(BufferLayer::new(4))
        .layer(named(&locks, Some("a")).skip())
        .service(service_fn(async |request: http::Request<()>| {
            let leases = Leases::of(request.extensions());
            Ok::<_, std::convert::Infallible>(http::Response::new(leases.len().to_string()))
        }));
    let response = soon(service.oneshot(http::Request::new(()))).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(text(response.map(axum::body::Body::new)).await, "2");
}

/// A layer between them may build a new request, without the extensions.
#[tokio::test]
async fn a_nested_lease_is_known_without_the_request_extensions() {
    let locks = Locks::memory();
    let inner = ServiceBuilder::new()
        .layer(named(&locks, Some("a")).skip())
        .service(service_fn(async |_: http::Request<()>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
        }));
    let service = ServiceBuilder::new()
        .layer(named(&locks, Some("a")))
        .service(service_fn(move |_: http::Request<()>| {
            inner.clone().oneshot(http::Request::new(()))
        }));
    let response = soon(service.oneshot(http::Request::new(()))).await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn an_inner_layer_without_a_key_does_not_show_the_outer_lease() {
    let locks = Locks::memory();
    let handler = |lease: Option<Lease>, leases: Leases| async move {
        let outer = leases.get(&Key::from("outer")).is_some_and(Lease::is_held);
        format!("{} {outer}", lease.is_some())
    };
    let app = Router::new()
        .route("/", get(handler))
        .route_layer(named(&locks, None))
        .route_layer(named(&locks, Some("outer")));
    assert_eq!(text(soon(send(&app, to("/"))).await.unwrap()).await, "false true");
}

#[tokio::test]
async fn all_leases_are_listed_by_key() {
    let locks = Locks::memory();
    let handler = |leases: Leases| async move {
        let keys: Vec<String> = leases.iter().map(|lease| lease.key().to_string()).collect();
        keys.join(" ")
    };
    let app = Router::new()
        .route("/", get(handler))
        .route_layer(named(&locks, Some("c")))
        .route_layer(named(&locks, Some("b")))
        .route_layer(named(&locks, Some("a")));
    assert_eq!(text(soon(send(&app, to("/"))).await.unwrap()).await, "a b c");
}

#[tokio::test]
async fn a_handler_that_locks_its_own_key_is_refused_at_once() {
    let locks = Locks::memory();
    for to_completion in [false, true] {
        let inside = locks.clone();
        let handler = move |lease: Lease| {
            let mutex = inside.mutex(lease.key());
            async move {
                let locked = mutex.lock().await;
                assert!(matches!(locked, Err(Error::WouldDeadlock { .. })), "{locked:?}");
                let patient = mutex.lock_timeout(crate::help::ms(60_000)).await;
                assert!(matches!(patient, Err(Error::WouldDeadlock { .. })), "{patient:?}");
                // A try reports that the key is busy.
                assert!(mutex.try_lock().await.unwrap().is_none());
                // A spawned task is not checked: the handler may not wait for it.
                let spawned = tokio::spawn(async move { mutex.lock().await.unwrap().key().to_string() });
                lease.key().to_string() + &format!(" {}", spawned.is_finished())
            }
        };
        let layer = by_path(&locks).run_to_completion(to_completion);
        let app = Router::new().route("/", get(handler)).route_layer(layer);
        let response = soon(send(&app, to("/"))).await.unwrap();
        assert_eq!(text(response).await, "/ false");
        soon(locks.idle()).await;
    }
}

#[tokio::test]
async fn a_lease_that_was_lost_is_not_passed_on() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let thief = store.clone();
    let app = Router::new()
        .route("/", get(async || "not reached"))
        .route_layer(named(&locks, Some("a")).lease(crate::help::ms(3_000)))
        .route_layer(axum::middleware::from_fn(
            move |request: axum::extract::Request, next: axum::middleware::Next| {
                let thief = thief.clone();
                async move {
                    steal(&thief, "a");
                    let lease: Lease = request.extensions().get().cloned().unwrap();
                    lease.lost().await;
                    next.run(request).await
                }
            },
        ))
        .route_layer(
            named(&locks, Some("a"))
                .lease(crate::help::ms(3_000))
                .on_lost(tenure::middleware::OnLost::Tell),
        );
    let response = soon(send(&app, to("/"))).await.unwrap();
    assert_eq!(response.extensions().get(), Some(&Refused::Lost));
    assert_eq!(response.status(), 503);
}

/// A stream, an upgraded connection or a task keeps the lock for as long as it holds the lease.
#[tokio::test]
async fn a_lease_lives_on_in_work_that_outlives_the_handler() {
    let locks = Locks::memory();
    let kept: Arc<Mutex<Option<Guard>>> = Arc::default();
    let keep = kept.clone();
    let handler = move |lease: Lease| {
        *keep.lock().unwrap() = Some(lease.again().unwrap());
        async {}
    };
    let app = Router::new()
        .route("/", get(handler))
        .route_layer(by_path(&locks));
    assert_eq!(soon(send(&app, to("/"))).await.unwrap().status(), 200);
    let guard = kept.lock().unwrap().take().unwrap();
    assert!(guard.is_held());
    let next = send(&app, to("/"));
    until(|| locks.waiter_count() == 1).await;
    guard.release().await.unwrap();
    assert_eq!(soon(next).await.unwrap().status(), 200);
    drop(kept.lock().unwrap().take());
    soon(locks.idle()).await;
}
