//! How long an answer takes on a Redis behind a slow wire, in round trips of that wire.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::get;
use tenure::middleware::{Refused, keys};
use tenure::{LockLayer, Locks};
use tower::ServiceExt;

use crate::help::{addr, ms, now, soon, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

/// Each way. Long, as a busy machine adds tens of milliseconds to each trip.
const WAY: Duration = ms(60);
/// A machine that is busy answers some requests late.
const TRIES: usize = 60;

/// Returns the shortest time that a request takes, or the first that is short enough.
async fn least(app: &Router, path: impl Fn() -> String, enough: Duration) -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..TRIES {
        if least <= enough {
            break;
        }
        let request = Request::get(path()).body(Body::empty()).unwrap();
        let began = now();
        let answer = soon(app.clone().oneshot(request)).await.unwrap();
        least = least.min(now() - began);
        assert_eq!(answer.status(), 200);
    }
    least
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_does_not_wait_for_the_release() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let locks = Locks::redis(&url(proxy.addr())).await.unwrap();
    let next = AtomicU64::new(0);
    let own = || format!("/{}", next.fetch_add(1, Ordering::Relaxed));
    let one = || "/0".to_owned();
    let layer = || LockLayer::new(&locks, keys::path_param::<u64>("id").named("account"));
    let app = || Router::new().route("/{id}", get(async || ()));
    proxy.set(Direction::Both, Flow::Delay(WAY));
    let bare = least(&app(), own, ms(5)).await;
    let enough = |bound: i32| bare + (2 * WAY).mul_f64(f64::from(bound) + 0.5);
    let mut added = Vec::new();
    for (layer, bound) in [
        (layer(), 1),
        (layer().run_to_completion(true), 1),
        (layer().release_before_answer(), 2),
        (layer().release_before_answer().run_to_completion(true), 2),
        (layer().skip(), 2),
    ] {
        let app = app().route_layer(layer);
        let took = least(&app, own, enough(bound)).await;
        added.push((bound, (took - bare).div_duration_f64(2 * WAY)));
    }
    // The next claim of a key does not wait for the last leave of it to be answered.
    let again = least(&app().route_layer(layer()), one, enough(1)).await;
    added.push((1, (again - bare).div_duration_f64(2 * WAY)));
    println!("round trips, expected and measured: {added:.2?}");
    for (expected, trips) in &added {
        let least = f64::from(*expected);
        assert!((least - 0.01..least + 0.6).contains(trips), "{added:.2?}");
    }
}

/// Nobody knows who has the lock, so it is not the client's fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_says_nothing_is_told_as_one() {
    let server = RedisServer::start();
    let locks = Locks::redis(&server.url()).await.unwrap();
    let layer = LockLayer::new(&locks, keys::path_param::<u64>("id").named("account")).wait(ms(300));
    let app = Router::new().route("/{id}", get(async || ())).route_layer(layer);
    let ask = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        soon(app.clone().oneshot(request)).await.unwrap()
    };
    assert_eq!(ask("/1").await.status(), 200);
    server.freeze();
    for path in ["/1", "/2"] {
        let answer = ask(path).await;
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.extensions().get(), Some(&Refused::StoreFailed));
        assert!(answer.headers().contains_key("retry-after"));
    }
    server.thaw();
    let answered = async { while ask("/1").await.status() != 200 {} };
    soon(answered).await;
}
