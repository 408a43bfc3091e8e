//! Clients that leave: by closing, by resetting the connection, by resetting their stream of HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::post;
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tenure::middleware::{BufferBody, keys};
use tenure::{LockLayer, Locks};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::help::{Eyes, held, locks, ms, soon, until};
use crate::server::RedisServer;

const KEY: &str = "account:42";

#[derive(Debug, Clone, Copy)]
enum Leaves {
    Closes,
    Resets,
    ResetsItsStream,
}

const ALL: [Leaves; 3] = [Leaves::Closes, Leaves::Resets, Leaves::ResetsItsStream];

enum Visitor {
    Connection(TcpStream, Leaves),
    Stream(JoinHandle<()>),
}

impl Visitor {
    async fn asks(addr: SocketAddr, leaves: Leaves) -> Visitor {
        Visitor::asks_with(addr, leaves, 0).await
    }

    /// Sends a request with a body of so many bytes.
    async fn asks_with(addr: SocketAddr, leaves: Leaves, body: usize) -> Visitor {
        let body = vec![b'x'; body];
        if let Leaves::ResetsItsStream = leaves {
            let request = axum::http::Request::post(format!("http://{addr}/accounts/042/withdraw"));
            let request = request.body(Full::<Bytes>::from(body)).unwrap();
            let client = Client::builder(TokioExecutor::new())
                .http2_only(true)
                .build_http();
            let answer = client.request(request);
            return Visitor::Stream(tokio::spawn(async move {
                // The connection is the client's, and stays with it.
                let _client = client;
                answer.await.unwrap();
            }));
        }
        let mut connection = TcpStream::connect(addr).await.unwrap();
        let length = body.len();
        let head =
            format!("POST /accounts/042/withdraw HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        connection
            .write_all(&[head.into_bytes(), body].concat())
            .await
            .unwrap();
        Visitor::Connection(connection, leaves)
    }

    fn leaves(self) {
        match self {
            Visitor::Connection(connection, Leaves::Resets) => connection.set_zero_linger().unwrap(),
            Visitor::Connection(..) => {}
            Visitor::Stream(answer) => answer.abort(),
        }
    }
}

/// What became of requests.
#[derive(Debug, Clone, Default)]
struct Fates(Arc<[AtomicUsize; 5]>);

const BEGUN: usize = 0;
const DROPPED: usize = 1;
const FINISHED: usize = 2;
const GIVEN_UP: usize = 3;
const ANSWERED: usize = 4;

impl Fates {
    fn count(&self, what: usize) {
        self.0[what].fetch_add(1, Ordering::SeqCst);
    }

    /// Handlers that have begun, were dropped, have finished; requests that the server gave up, and answered.
    fn all(&self) -> [usize; 5] {
        std::array::from_fn(|what| self.0[what].load(Ordering::SeqCst))
    }
}

/// Counts one thing when it is dropped.
struct Mark(Fates, usize);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.count(self.1);
    }
}

struct Service {
    locks: Locks,
    addr: SocketAddr,
    fates: Fates,
    go: Arc<Semaphore>,
    serving: JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Service {
    async fn start(server: &RedisServer, to_completion: bool) -> Service {
        let locks = locks(&server.url(), ms(60_000)).await;
        let (fates, go) = (Fates::default(), Arc::new(Semaphore::new(0)));
        let handler = {
            let (fates, go) = (fates.clone(), go.clone());
            async move || {
                fates.count(BEGUN);
                let mut mark = Mark(fates, DROPPED);
                go.acquire().await.unwrap().forget();
                mark.1 = FINISHED;
            }
        };
        let outside = {
            let fates = fates.clone();
            move |request: Request, next: Next| {
                let fates = fates.clone();
                async move {
                    let mut mark = Mark(fates, GIVEN_UP);
                    let answer = next.run(request).await;
                    mark.1 = ANSWERED;
                    answer
                }
            }
        };
        let layer = LockLayer::new(&locks, keys::path_param::<u64>("id").named("account"))
            .wait(ms(60_000))
            .run_to_completion(to_completion);
        let app = Router::new()
            .route("/accounts/{id}/withdraw", post(handler))
            .route_layer(layer)
            .route_layer(BufferBody::new(20_000))
            .route_layer(from_fn(outside));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Service {
            locks,
            addr,
            fates,
            go,
            serving,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_while_it_waits_leaves_nothing() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let other = locks(&server.url(), ms(60_000)).await;
    for to_completion in [false, true] {
        let service = Service::start(&server, to_completion).await;
        for leaves in ALL {
            let guard = held(&other, KEY).await;
            let visitor = Visitor::asks(service.addr, leaves).await;
            until("it waits", || eyes.queue(KEY) == 1).await;
            assert_eq!(service.locks.waiter_count(), 1);
            visitor.leaves();
            soon(service.locks.idle()).await;
            assert_eq!(
                (service.locks.key_count(), service.locks.waiter_count()),
                (0, 0),
                "{leaves:?}"
            );
            assert_eq!((eyes.queue(KEY), eyes.entries()), (0, 0), "{leaves:?}");
            assert!(guard.is_held());
            soon(guard.release()).await.unwrap();
            soon(other.idle()).await;
            assert!(eyes.left_behind().is_empty(), "{leaves:?}");
        }
        until("they are given up", || {
            service.fates.all() == [0, 0, 0, ALL.len(), 0]
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_its_handler_has_it_dropped() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let service = Service::start(&server, false).await;
    for (n, leaves) in (1..).zip(ALL) {
        let visitor = Visitor::asks(service.addr, leaves).await;
        until("it is inside", || service.fates.all()[BEGUN] == n).await;
        assert!(eyes.owner(KEY).is_some());
        visitor.leaves();
        soon(service.locks.idle()).await;
        // The layers outside are dropped after the lock is.
        until("it is given up", || service.fates.all() == [n, n, 0, n, 0]).await;
        assert!(eyes.left_behind().is_empty(), "{leaves:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_runs_to_completion_does_not_notice_who_leaves() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let service = Service::start(&server, true).await;
    for (n, leaves) in (1..).zip(ALL) {
        let visitor = Visitor::asks(service.addr, leaves).await;
        until("it is inside", || service.fates.all()[BEGUN] == n).await;
        visitor.leaves();
        until("it is given up", || service.fates.all()[GIVEN_UP] == 2 * n - 1).await;
        // A retry stands in line behind it.
        let retry = Visitor::asks(service.addr, Leaves::Closes).await;
        until("it waits", || service.locks.waiter_count() == 1).await;
        assert!(eyes.owner(KEY).is_some(), "{leaves:?}");
        assert_eq!(service.fates.all(), [n, 0, n - 1, 2 * n - 1, 0], "{leaves:?}");
        retry.leaves();
        until("it is given up", || service.fates.all()[GIVEN_UP] == 2 * n).await;
        service.go.add_permits(1);
        soon(service.locks.idle()).await;
        assert_eq!(service.fates.all(), [n, 0, n, 2 * n, 0], "{leaves:?}");
        assert!(eyes.left_behind().is_empty(), "{leaves:?}");
    }
}

/// The body is read before the request waits, so the server notices a client that leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_with_a_body_that_leave_while_they_wait_leave_nothing() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let other = locks(&server.url(), ms(60_000)).await;
    let service = Service::start(&server, false).await;
    let guard = held(&other, KEY).await;
    let mut visitors = Vec::new();
    for n in 0..10 {
        visitors.push(Visitor::asks_with(service.addr, ALL[n % 3], 20_000).await);
    }
    until("they wait", || service.locks.waiter_count() == 10).await;
    visitors.into_iter().for_each(Visitor::leaves);
    soon(service.locks.idle()).await;
    assert_eq!((service.locks.key_count(), service.locks.waiter_count()), (0, 0));
    assert_eq!((eyes.queue(KEY), eyes.entries()), (0, 0));
    until("they are given up", || service.fates.all() == [0, 0, 0, 10, 0]).await;
    soon(guard.release()).await.unwrap();
    soon(other.idle()).await;
    assert!(eyes.left_behind().is_empty());
}
