//! Many requests of one HTTP/2 connection, as a proxy or a gRPC channel sends them.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tenure::LockLayer;
use tenure::middleware::keys;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::help::{HOUR, held, patient, soon, until};
use crate::server::RedisServer;
use crate::support::proxy::Proxy;

/// The waiters of a hot key leave streams to other keys: those beyond the limit are refused without a question to the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_beyond_the_limit_use_up_no_streams() {
    const STREAMS: usize = 250;
    const LIMIT: usize = 50;
    let server = RedisServer::start();
    let (locks, holder) = (patient(&server.url()).await, patient(&server.url()).await);
    let layer = LockLayer::new(&locks, keys::path()).max_waiters(LIMIT).wait(HOUR);
    let app = Router::new().route("/{key}", get(async || ())).route_layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let ask = |path: &str| {
        let uri = format!("http://{}{path}", proxy.addr());
        let answer = client.request(Request::get(uri).body(Empty::new()).unwrap());
        async move { answer.await.unwrap().map(Body::new).status() }
    };
    assert_eq!(soon(ask("/cold")).await, 200);

    let hot = held(&holder, "/hot").await;
    let mut asked = JoinSet::new();
    for _ in 0..STREAMS {
        asked.spawn(ask("/hot"));
    }
    let mut refused = 0;
    while refused < STREAMS - LIMIT {
        let status = soon(asked.join_next()).await.unwrap().unwrap();
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        refused += 1;
    }
    until("the others wait", || locks.waiter_count() == LIMIT).await;
    // A key of its own waits for none of them.
    assert_eq!(soon(ask("/cold")).await, 200);
    assert_eq!(locks.waiter_count(), LIMIT);
    soon(hot.release()).await.unwrap();
    while let Some(status) = soon(asked.join_next()).await {
        assert_eq!(status.unwrap(), 200);
    }
    assert_eq!(proxy.counts().connections, 1);
}
