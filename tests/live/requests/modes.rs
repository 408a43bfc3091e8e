//! Layers that admit readers and holders of permits, and handlers that take their guard, on two nodes of a Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::response::Response;
use axum::routing::any;
use http::Method;
use tenure::middleware::{KeySource, StoreFailure, keys};
use tenure::{Error, Lease, LockLayer, Locks};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use crate::help::{Eyes, locks, ms, soon, until};
use crate::server::RedisServer;

/// Requests wait in their handlers until they are let go.
#[derive(Clone)]
struct Gate {
    inside: Arc<AtomicUsize>,
    go: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Gate {
        Gate {
            inside: Arc::default(),
            go: Arc::new(Semaphore::new(0)),
        }
    }

    fn app(&self, layer: LockLayer<impl KeySource>) -> Router {
        let gate = self.clone();
        let handler = async move |_: Lease| {
            gate.inside.fetch_add(1, Ordering::SeqCst);
            gate.go.acquire().await.unwrap().forget();
            gate.inside.fetch_sub(1, Ordering::SeqCst);
        };
        Router::new()
            .route("/", any(handler))
            .route_layer(layer.wait(ms(60_000)))
    }

    fn inside(&self) -> usize {
        self.inside.load(Ordering::SeqCst)
    }
}

fn send(app: &Router, method: Method) -> JoinHandle<Response> {
    let request = Request::builder().method(method).uri("/").body(Body::empty());
    let (app, request) = (app.clone(), request.unwrap());
    tokio::spawn(async move { app.oneshot(request).await.unwrap() })
}

async fn are_served(requests: Vec<JoinHandle<Response>>) {
    for request in requests {
        assert_eq!(soon(request).await.unwrap().status(), 200);
    }
}

async fn nodes() -> (RedisServer, Locks, Locks) {
    let server = RedisServer::start();
    let one = locks(&server.url(), ms(60_000)).await;
    let other = locks(&server.url(), ms(60_000)).await;
    (server, one, other)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_layer_are_those_of_the_semaphore() {
    let (server, one, other) = nodes().await;
    let gate = Gate::new();
    let layer = |locks: &Locks| LockLayer::new(locks, keys::fixed("exports")).permits(2);
    let apps = [
        gate.app(layer(&one)),
        gate.app(layer(&other).on_store_failure(StoreFailure::RunUnlocked)),
    ];
    let mut requests: Vec<_> = (0..6).map(|at| send(&apps[at % 2], Method::GET)).collect();
    until("two are inside", || gate.inside() == 2).await;
    until("four wait", || one.waiter_count() + other.waiter_count() == 4).await;
    assert_eq!(gate.inside(), 2);
    let semaphore = other.semaphore("exports", 2);
    assert_eq!(soon(semaphore.available_permits()).await.unwrap(), 0);
    assert!(soon(semaphore.try_acquire()).await.unwrap().is_none());
    drop(
        soon(one.mutex("exports").try_lock())
            .await
            .unwrap()
            .expect("a lock is another thing"),
    );
    let skips = Router::new()
        .route("/", any(async || {}))
        .route_layer(layer(&one).skip());
    assert_eq!(soon(send(&skips, Method::GET)).await.unwrap().status(), 423);
    for _ in 0..4 {
        let before = one.waiter_count() + other.waiter_count();
        gate.go.add_permits(1);
        until("the next is inside", || {
            one.waiter_count() + other.waiter_count() < before
        })
        .await;
        assert!(gate.inside() <= 2);
    }
    gate.go.add_permits(2);
    are_served(std::mem::take(&mut requests)).await;
    // A layer that skips tries once, so no release may be under way.
    soon(one.idle()).await;
    soon(other.idle()).await;
    // Nested layers share one permit.
    let nested = gate.app(layer(&one)).route_layer(layer(&one).skip());
    let requests = vec![send(&nested, Method::GET)];
    until("it is inside", || gate.inside() == 1).await;
    assert_eq!(soon(semaphore.available_permits()).await.unwrap(), 1);
    gate.go.add_permits(1);
    are_served(requests).await;
    soon(one.idle()).await;
    soon(other.idle()).await;
    Eyes::on(&server).until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_two_nodes_are_inside_together_and_writers_alone() {
    let (server, one, other) = nodes().await;
    let gate = Gate::new();
    let layer = |locks: &Locks| LockLayer::new(locks, keys::fixed("account").by_method());
    let apps = [gate.app(layer(&one)), gate.app(layer(&other))];
    let mut requests: Vec<_> = apps.iter().map(|app| send(app, Method::GET)).collect();
    until("readers of both nodes are inside", || gate.inside() == 2).await;
    requests.push(send(&apps[1], Method::POST));
    until("the writer waits", || other.waiter_count() == 1).await;
    assert_eq!(gate.inside(), 2);
    gate.go.add_permits(2);
    until("the writer is inside", || {
        gate.inside() == 1 && other.waiter_count() == 0
    })
    .await;
    assert!(soon(one.rw_lock("account").try_read()).await.unwrap().is_none());
    gate.go.add_permits(1);
    are_served(requests).await;
    soon(one.idle()).await;
    soon(other.idle()).await;
    Eyes::on(&server).until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_that_a_handler_took_is_adopted_elsewhere() {
    let (server, one, other) = nodes().await;
    let handler = async |lease: Lease| -> Result<String, Error> {
        let transfer = lease.take_guard()?.into_transfer(ms(60_000)).await?;
        Ok(transfer.to_string())
    };
    let layer = LockLayer::new(&one, keys::fixed("exports")).permits(1);
    let app = Router::new().route("/", any(handler)).route_layer(layer);
    let answer = soon(send(&app, Method::POST)).await.unwrap();
    assert_eq!(answer.status(), 200);
    let text = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let transfer = str::from_utf8(&text).unwrap().parse().unwrap();
    let semaphore = one.semaphore("exports", 1);
    assert!(
        soon(semaphore.try_acquire()).await.unwrap().is_none(),
        "the message travels"
    );
    let guard = soon(other.adopt(&transfer)).await.unwrap();
    let again = soon(other.adopt(&transfer)).await.map(drop);
    assert!(matches!(again, Err(Error::Gone { .. })), "{again:?}");
    soon(guard.release()).await.unwrap();
    drop(soon(semaphore.try_acquire()).await.unwrap().unwrap());
    soon(one.idle()).await;
    soon(other.idle()).await;
    Eyes::on(&server).until_empty().await;
}
