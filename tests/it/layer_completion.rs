//! A handler that runs to completion keeps every lease of its request, whatever becomes of the layers that acquired them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::routing::any;
use http::{Method, StatusCode};
use tenure::middleware::{KeySource, Leases, OnLost, Refused, StoreFailure, Unlocked};
use tenure::{Error, Key, Lease, LockLayer, Locks, MemoryStore, MultiKey, MultiLease, Transfer};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, yield_now};
use tower::ServiceExt;
use tower_http::timeout::TimeoutLayer;

use crate::help::{ms, soon};
use crate::layer::{GatedHandler, by_path, request, send, status, steal, to, until};
use crate::layer_choices::without_store;
use crate::layer_several::replicas;
use crate::support::layer_storm::storm;

fn named(locks: &Locks, key: Option<&'static str>) -> LockLayer<impl KeySource> {
    LockLayer::by(locks, move |_| key)
}

fn completing(locks: &Locks, key: Option<&'static str>) -> LockLayer<impl KeySource> {
    named(locks, key).run_to_completion(true)
}

/// Ends the response when it is told to, as a timeout does.
fn cut(routes: Router, told: &Arc<Notify>) -> Router {
    let told = told.clone();
    routes.route_layer(from_fn(move |request: Request, next: Next| {
        let told = told.clone();
        async move {
            tokio::select! {
                answer = next.run(request) => answer,
                () = told.notified() => StatusCode::REQUEST_TIMEOUT.into_response(),
            }
        }
    }))
}

fn gated(handler: &GatedHandler) -> Router {
    let handler = handler.clone();
    Router::new().route("/", any(move || handler.serve("in".into())))
}

async fn leave(client: JoinHandle<http::Response<Body>>) {
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
}

/// Lets the background do what it would do.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

/// Returns whether neither the lock nor the permit of `a` is held, as another process sees it.
async fn is_free(other: &Locks) -> bool {
    let (mutex, permits) = (other.mutex("a"), other.semaphore("a", 1));
    mutex.try_lock().await.unwrap().is_some() && permits.try_acquire().await.unwrap().is_some()
}

type Stack = fn(Router, &Locks, &Arc<Notify>) -> Router;

/// What holds the lease of `a` around the layer that runs its handler to completion. Each is cut inside.
const STACKS: &[(&str, Stack)] = &[
    ("one key", |inner, locks, told| {
        cut(inner, told).route_layer(named(locks, Some("a")))
    }),
    ("several keys", |inner, locks, told| {
        cut(inner, told).route_layer(LockLayer::by(locks, |_| ["b", "a"]))
    }),
    ("a permit", |inner, locks, told| {
        cut(inner, told).route_layer(named(locks, Some("a")).permits(1))
    }),
    ("a reader", |inner, locks, told| {
        cut(inner, told).route_layer(LockLayer::by(locks, |_| MultiKey::read("a")))
    }),
    ("the key twice", |inner, locks, told| {
        let inner = cut(inner, told).route_layer(named(locks, Some("a")));
        inner.route_layer(named(locks, Some("a")))
    }),
    ("one key, then several with it", |inner, locks, told| {
        let inner = cut(inner, told).route_layer(LockLayer::by(locks, |_| ["b", "a"]));
        inner.route_layer(named(locks, Some("a")))
    }),
    ("a layer without a key between", |inner, locks, told| {
        let inner = cut(inner, told).route_layer(named(locks, None));
        inner.route_layer(named(locks, Some("a")))
    }),
    ("a request that was built anew", |inner, locks, told| {
        let anew =
            from_fn(async |request: Request, next: Next| next.run(Request::new(request.into_body())).await);
        let inner = cut(inner, told).route_layer(anew);
        inner.route_layer(LockLayer::by(locks, |_| ["a", "b"]))
    }),
    ("a scope of the program", |inner, locks, told| {
        let mutex = locks.mutex("a");
        cut(inner, told).route_layer(from_fn(move |request: Request, next: Next| {
            let mutex = mutex.clone();
            async move { mutex.with(|_| next.run(request)).await.unwrap() }
        }))
    }),
];

#[tokio::test]
async fn a_lease_of_the_request_lasts_until_the_handler_ends() {
    for (name, stack) in STACKS {
        for is_cut in [false, true] {
            let (store, locks, other) = replicas();
            // The layer that completes has other locks.
            for inner_locks in [locks.clone(), Locks::memory()] {
                let (handler, mut seen) = GatedHandler::new();
                let told = Arc::new(Notify::new());
                let inner = gated(&handler).route_layer(completing(&inner_locks, Some("inner")));
                let app = stack(inner, &locks, &told);
                let client = send(&app, to("/"));
                seen.next().await;
                assert!(!is_free(&other).await, "{name}");
                if is_cut {
                    told.notify_one();
                    assert_eq!(soon(client).await.unwrap().status(), 408, "{name}");
                } else {
                    leave(client).await;
                }
                settle().await;
                assert!(
                    !is_free(&other).await,
                    "{name} was given up while the handler ran"
                );
                handler.let_go(1);
                soon(inner_locks.idle()).await;
                soon(locks.idle()).await;
                assert!(is_free(&other).await, "{name} was left behind");

                // A client that stays.
                let client = send(&app, to("/"));
                seen.next().await;
                handler.let_go(1);
                assert_eq!(soon(client).await.unwrap().status(), 200, "{name}");
                soon(locks.idle()).await;
            }
            soon(other.idle()).await;
            assert!(store.is_empty(), "{name}");
        }
    }
}

/// A request without a lock of its layer: it has no key, or the store failed.
#[tokio::test]
async fn a_handler_without_a_lock_runs_to_completion_too() {
    let away = without_store().await;
    let locks = Locks::memory();
    let unlocked = completing(&away, Some("a")).on_store_failure(StoreFailure::RunUnlocked);
    let passes = by_path(&locks).run_to_completion(true).only_unsafe();
    let ends = Arc::new(AtomicUsize::new(0));
    let (handler, mut seen) = GatedHandler::new();
    let routes = || {
        let (handler, ends) = (handler.clone(), ends.clone());
        let handle = async move |request: Request| {
            handler
                .serve(format!("{:?}", request.extensions().get::<Unlocked>()))
                .await;
            ends.fetch_add(1, Ordering::SeqCst);
        };
        Router::new().route("/", any(handle))
    };
    for (app, method, unlocked, completes) in [
        (routes().route_layer(unlocked), Method::POST, true, true),
        (
            routes().route_layer(completing(&locks, None)),
            Method::POST,
            false,
            true,
        ),
        (routes().route_layer(passes.clone()), Method::GET, false, false),
        (routes().route_layer(passes), Method::OPTIONS, false, false),
        (
            routes().route_layer(completing(&locks, Some("a")).dry_run()),
            Method::POST,
            false,
            false,
        ),
    ] {
        ends.store(0, Ordering::SeqCst);
        let client = send(&app, request(method.clone(), "/"));
        assert_eq!(seen.next().await == "Some(Unlocked)", unlocked);
        leave(client).await;
        settle().await;
        let runs = handler.inside.load(Ordering::SeqCst);
        assert_eq!(runs, usize::from(completes), "{method} {unlocked}");
        handler.let_go(runs);
        until(|| ends.load(Ordering::SeqCst) == runs).await;
        soon(locks.idle()).await;
    }
}

/// Otherwise the handler would run beside the next holder.
#[tokio::test]
async fn no_handler_begins_if_a_lease_of_its_request_is_over() {
    let store = MemoryStore::new();
    let locks = Locks::builder().memory_shared(&store).unwrap();
    for keys in [&["a"][..], &["a", "b"]] {
        let thief = store.clone();
        let lose = from_fn(move |request: Request, next: Next| {
            let thief = thief.clone();
            async move {
                steal(&thief, "a");
                let leases = Leases::of(request.extensions());
                leases.get(&Key::from("a")).unwrap().lost().await;
                next.run(request).await
            }
        });
        let outer = LockLayer::by(&locks, move |_| {
            keys.iter().copied().map(MultiKey::write).collect::<Vec<_>>()
        });
        let app = Router::new()
            .route("/", any(async || "not reached"))
            .route_layer(completing(&locks, Some("inner")))
            .route_layer(lose)
            .route_layer(outer.lease(ms(3_000)).on_lost(OnLost::Tell));
        let answer = soon(send(&app, to("/"))).await.unwrap();
        assert_eq!(answer.extensions().get(), Some(&Refused::Lost));
        assert_eq!(answer.status(), 503);
        soon(locks.idle()).await;
    }
}

/// The layer of the lost lease answers, and the handler learns of the loss.
#[tokio::test]
async fn the_loss_of_an_outer_lease_does_not_stop_the_handler() {
    for (on_lost, expected) in [(OnLost::Cancel, 500), (OnLost::Replace, 500), (OnLost::Tell, 200)] {
        let store = MemoryStore::new();
        let locks = Locks::builder().memory_shared(&store).unwrap();
        let (thief, finished) = (store.clone(), Arc::new(AtomicUsize::new(0)));
        let count = finished.clone();
        let handler = async move |leases: Leases| {
            steal(&thief, "a");
            let outer = leases.get(&Key::from("a")).unwrap();
            outer.lost().await;
            yield_now().await;
            assert!(!outer.is_held());
            count.fetch_add(1, Ordering::SeqCst);
        };
        let app = Router::new()
            .route("/", any(handler))
            .route_layer(completing(&locks, Some("inner")))
            .route_layer(named(&locks, Some("a")).lease(ms(3_000)).on_lost(on_lost));
        let answer = soon(send(&app, to("/"))).await.unwrap();
        assert_eq!(answer.status(), expected, "{on_lost:?}");
        until(|| finished.load(Ordering::SeqCst) == 1).await;
        soon(locks.idle()).await;
    }
}

/// Waits until its client has left, takes the guard of the outer layer and hands it on.
#[tokio::test]
async fn a_guard_is_taken_from_a_layer_that_has_ended() {
    let (store, locks, other) = replicas();
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (texts, mut text) = tokio::sync::mpsc::unbounded_channel();
    let handler = {
        let (begun, left) = (begun.clone(), left.clone());
        async move |leases: Leases| {
            begun.notify_one();
            left.notified().await;
            let outer = leases.get(&Key::from("a")).unwrap();
            let guard = outer.take_guard().unwrap();
            assert!(matches!(outer.take_guard(), Err(Error::Options(_))));
            let transfer = guard.into_transfer(Duration::from_secs(60)).await.unwrap();
            texts.send(transfer.to_string()).unwrap();
        }
    };
    let app = Router::new()
        .route("/", any(handler))
        .route_layer(completing(&locks, Some("inner")))
        .route_layer(named(&locks, Some("a")));
    let client = send(&app, to("/"));
    soon(begun.notified()).await;
    leave(client).await;
    settle().await;
    left.notify_one();
    let transfer: Transfer = soon(text.recv()).await.unwrap().parse().unwrap();
    soon(locks.idle()).await;
    let guard = other.adopt(&transfer).await.unwrap();
    assert_eq!(guard.key(), &Key::from("a"));
    drop(guard);
    soon(other.idle()).await;
    assert!(store.is_empty());
}

/// The keys of a layer of several are taken together, also from the task of a handler.
#[tokio::test]
async fn several_guards_are_taken_from_a_layer_that_has_ended() {
    let (store, locks, other) = replicas();
    let (begun, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (guards, mut guard) = tokio::sync::mpsc::unbounded_channel();
    let (outer, mut outer_lease) = tokio::sync::mpsc::unbounded_channel::<MultiLease>();
    let handler = {
        let (begun, left) = (begun.clone(), left.clone());
        async move |leases: Leases| {
            begun.notify_one();
            left.notified().await;
            assert!(leases.iter().all(Lease::is_held));
            let one = leases.get(&Key::from("a")).unwrap().take_guard();
            assert!(matches!(one, Err(Error::Options(_))), "they are taken together");
        }
    };
    let show = from_fn(move |request: Request, next: Next| {
        let lease = request.extensions().get::<MultiLease>().unwrap().clone();
        outer.send(lease).unwrap();
        next.run(request)
    });
    let app = Router::new()
        .route("/", any(handler))
        .route_layer(completing(&locks, Some("inner")))
        .route_layer(show)
        .route_layer(LockLayer::by(&locks, |_| ["a", "b"]));
    let client = send(&app, to("/"));
    soon(begun.notified()).await;
    let lease = soon(outer_lease.recv()).await.unwrap();
    leave(client).await;
    settle().await;
    guards.send(lease.take_guard().unwrap()).unwrap();
    assert!(matches!(lease.take_guard(), Err(Error::Options(_))));
    left.notify_one();
    until(|| locks.key_count() == 2).await;
    assert!(!is_free(&other).await, "the guard is the caller's");
    drop(soon(guard.recv()).await.unwrap());
    soon(locks.idle()).await;
    soon(other.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_handler_does_not_wait_for_the_locks_of_its_outer_layers() {
    let locks = Locks::memory();
    let inside = locks.clone();
    let handler = async move || {
        for key in ["inner", "a", "b"] {
            let locked = inside.mutex(key).lock().await;
            assert!(matches!(locked, Err(Error::WouldDeadlock { .. })), "{locked:?}");
        }
    };
    let app = Router::new()
        .route("/", any(handler))
        .route_layer(completing(&locks, Some("inner")))
        .route_layer(LockLayer::by(&locks, |_| ["a", "b"]));
    assert_eq!(status(&app, to("/")).await, 200);
    soon(locks.idle()).await;
}

/// Also the shutdown of locks whose layer does not run handlers to completion.
#[tokio::test]
async fn a_shutdown_of_any_of_the_locks_waits_for_the_handler() {
    let (inner, outer) = (Locks::memory(), Locks::memory());
    let (handler, mut seen) = GatedHandler::new();
    let app = gated(&handler)
        .route_layer(completing(&inner, Some("inner")))
        .route_layer(named(&outer, Some("a")));
    let client = send(&app, to("/"));
    seen.next().await;
    leave(client).await;
    let endings = [inner, outer].map(|locks| tokio::spawn(async move { locks.shutdown().await }));
    settle().await;
    for ending in &endings {
        assert!(
            !ending.is_finished(),
            "shutdown took a lock from a handler at work"
        );
    }
    handler.let_go(1);
    for ending in endings {
        soon(ending).await.unwrap();
    }
}

/// A lease that is lost holds up no shutdown, although the handler hangs.
#[tokio::test]
async fn a_lost_outer_lease_does_not_hold_up_a_shutdown() {
    let (inner, outer) = (Locks::memory(), Locks::memory());
    let (handler, mut seen) = GatedHandler::new();
    let app = gated(&handler)
        .route_layer(completing(&inner, Some("inner")))
        .route_layer(named(&outer, Some("a")).lease(ms(450)).max_hold(ms(100)));
    let answer = soon(send(&app, to("/"))).await.unwrap();
    assert_eq!(answer.extensions().get(), Some(&Refused::OutcomeUnknown));
    seen.next().await;
    soon(outer.shutdown()).await;
    handler.let_go(1);
    soon(inner.idle()).await;
}

/// What bounds a handler that reads a body that never ends: a timeout between the layer and the handler, or `max_hold`.
/// A timeout outside ends the response only.
#[tokio::test]
async fn a_body_that_never_ends_is_bounded_between_the_layer_and_the_handler() {
    type Bounds = fn(Router, &Locks) -> Router;
    fn timeout(after: u64) -> TimeoutLayer {
        TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, ms(after))
    }
    let all: [(&str, Bounds, u16, bool); 3] = [
        (
            "timeout inside",
            |routes, locks| {
                routes
                    .route_layer(timeout(20))
                    .route_layer(completing(locks, Some("a")))
            },
            408,
            true,
        ),
        (
            "max_hold",
            |routes, locks| routes.route_layer(completing(locks, Some("a")).lease(ms(450)).max_hold(ms(50))),
            500,
            true,
        ),
        (
            "timeout outside",
            |routes, locks| {
                routes
                    .route_layer(completing(locks, Some("a")))
                    .route_layer(timeout(20))
            },
            408,
            false,
        ),
    ];
    for (name, bounds, expected, ends) in all {
        let (_, locks, other) = replicas();
        let (chunks, body) = tokio::sync::mpsc::unbounded_channel::<&'static str>();
        chunks.send("half").unwrap();
        let routes = Router::new().route("/", any(async |body: Bytes| body));
        let app = bounds(routes, &locks);
        let request = http::Request::post("/").body(Body::new(Slow(body))).unwrap();
        let answer = soon(app.clone().oneshot(request)).await.unwrap();
        assert_eq!(answer.status(), expected, "{name}");
        if ends {
            soon(locks.idle()).await;
        }
        settle().await;
        assert_eq!(is_free(&other).await, ends, "{name}");
        // The client leaves.
        drop(chunks);
        soon(locks.idle()).await;
    }
}

/// A body of the chunks that a test sends.
struct Slow(tokio::sync::mpsc::UnboundedReceiver<&'static str>);

impl http_body::Body for Slow {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let chunk = std::task::ready!(self.0.poll_recv(cx));
        std::task::Poll::Ready(
            chunk.map(|chunk| Ok(http_body::Frame::data(Bytes::from_static(chunk.as_bytes())))),
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sums_are_exact_whatever_the_order_of_the_layers() {
    let (store, one, other) = replicas();
    storm([one, other], 60).await;
    assert!(store.is_empty());
}
