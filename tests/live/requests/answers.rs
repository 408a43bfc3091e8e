//! What an answer waits for, on a Redis whose answers do not come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::get;
use tenure::LockLayer;
use tenure::middleware::{Refused, keys};
use tower::ServiceExt;

use crate::help::{Eyes, HOUR, addr, ms, soon, until, url};
use crate::server::RedisServer;
use crate::support::proxy::{Direction, Flow, Proxy};

/// Returns whether the server keeps a lock of an account.
fn is_locked(eyes: &mut Eyes) -> bool {
    let keys: Vec<String> = eyes.text("KEYS lock:account*");
    !keys.is_empty()
}

/// The handler has run, and no answer of the server comes through any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_does_not_wait_for_the_release() {
    let server = RedisServer::start();
    let proxy = Arc::new(Proxy::start(addr(&server)));
    let locks = crate::help::builder().lease(HOUR).request_timeout(HOUR);
    let locks = locks.connect(&url(proxy.addr())).await.unwrap();
    let mut eyes = Eyes::on(&server);
    let layer = || LockLayer::new(&locks, keys::path_param::<u64>("id").named("account")).wait(HOUR);
    let request = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    for (layer, waits) in [
        (layer(), false),
        (layer().run_to_completion(true), false),
        (layer().release_before_answer(), true),
        (layer().release_before_answer().run_to_completion(true), true),
        (layer().skip(), true),
    ] {
        let ran = Arc::new(AtomicBool::new(false));
        let of_handler = (proxy.clone(), ran.clone());
        let handler = async move || {
            of_handler.0.set(Direction::Replies, Flow::Hold);
            of_handler.1.store(true, Ordering::SeqCst);
        };
        let app = Router::new().route("/{id}", get(handler)).route_layer(layer);
        let answer = tokio::spawn(app.clone().oneshot(request("/0")));
        until("it runs", || ran.load(Ordering::SeqCst)).await;
        until("it is released", || !is_locked(&mut eyes)).await;
        if waits {
            // Long enough for an answer that does not wait.
            tokio::time::sleep(ms(50)).await;
            assert!(
                !answer.is_finished(),
                "the answer came before that of the release"
            );
            proxy.heal();
        }
        assert_eq!(soon(answer).await.unwrap().unwrap().status(), 200);
        if !waits {
            // The next claim of a key does not wait for the last leave of it to be answered.
            let next = tokio::spawn(app.oneshot(request("/0")));
            until("it is locked again", || is_locked(&mut eyes)).await;
            proxy.heal();
            assert_eq!(soon(next).await.unwrap().unwrap().status(), 200);
        }
        proxy.heal();
        until("it is released again", || !is_locked(&mut eyes)).await;
    }
}

/// Nobody knows who has the lock, so it is not the client's fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_says_nothing_is_told_as_one() {
    let server = RedisServer::start();
    let locks = crate::help::connect(&server.url()).await.unwrap();
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
