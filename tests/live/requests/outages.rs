//! Requests while Redis is away, and when it is back: refused, or run without a lock if the layer permits it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::response::Response;
use axum::routing::post;
use http_body_util::BodyExt;
use tenure::middleware::{Refused, StoreFailure, Unlocked, keys};
use tenure::{Lease, LockLayer, Locks};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::help::{Eyes, held, locks, ms, soon, until};
use crate::server::RedisServer;
use crate::support::events::Watch;
use crate::support::proxy::{Direction, Flow, Proxy};

/// Longer than a busy machine takes to serve all requests that are sent at once.
const WAIT: Duration = ms(20_000);

const WITH_LEASE: &str = "a lease";
const UNLOCKED: &str = "unlocked";

/// How often the handler ran for each request.
type Runs = Arc<Mutex<BTreeMap<usize, usize>>>;

#[derive(Clone)]
struct Service {
    app: Router,
    runs: Runs,
    sent: Arc<AtomicUsize>,
}

impl Service {
    fn new(locks: &Locks, failure: StoreFailure, wait: Duration) -> Service {
        let runs = Runs::default();
        let ran = runs.clone();
        let handler =
            async move |lease: Option<Lease>, Path((_, n)): Path<(u64, usize)>, request: Request| {
                *ran.lock().unwrap().entry(n).or_default() += 1;
                match (lease, request.extensions().get::<Unlocked>()) {
                    (Some(lease), None) => {
                        assert!(lease.is_held());
                        WITH_LEASE
                    }
                    (None, Some(Unlocked)) => UNLOCKED,
                    (lease, unlocked) => panic!("{lease:?} and {unlocked:?}"),
                }
            };
        let layer = LockLayer::new(locks, keys::path_param::<u64>("id").named("account"));
        let app = Router::new()
            .route("/{id}/{n}", post(handler))
            .route_layer(layer.on_store_failure(failure).wait(wait));
        Service {
            app,
            runs,
            sent: Arc::default(),
        }
    }

    /// Answers the number of the request, too.
    async fn ask(self, account: u64) -> (usize, Response) {
        let n = self.sent.fetch_add(1, Ordering::SeqCst);
        let request = Request::post(format!("/{account}/{n}"));
        let request = request.body(Body::empty()).unwrap();
        (n, soon(self.app.oneshot(request)).await.unwrap())
    }

    /// Asks several times at once, for one account and for others.
    async fn ask_often(&self) -> Vec<(usize, Response)> {
        let asked: JoinSet<_> = (0..20).map(|n| self.clone().ask(n % 5)).collect();
        asked.join_all().await
    }

    fn runs(&self, n: usize) -> usize {
        self.runs.lock().unwrap().get(&n).copied().unwrap_or(0)
    }

    /// Each answer is that of a handler that ran once.
    async fn are_served(&self, answers: Vec<(usize, Response)>, expected: &[&str]) {
        for (n, answer) in answers {
            assert_eq!((answer.status().as_u16(), self.runs(n)), (200, 1));
            let text = answer.into_body().collect().await.unwrap().to_bytes();
            let text = str::from_utf8(&text).unwrap();
            assert!(expected.contains(&text), "{text}");
        }
    }

    /// No handler ran.
    fn are_refused(&self, answers: Vec<(usize, Response)>) {
        self.are_refused_as(Refused::StoreFailed, answers);
    }

    fn are_refused_as(&self, why: Refused, answers: Vec<(usize, Response)>) {
        for (n, answer) in answers {
            assert_eq!((answer.status(), self.runs(n)), (why.status(), 0));
            assert_eq!(answer.extensions().get(), Some(&why));
            let may_retry = answer.headers().contains_key("retry-after");
            assert_eq!(may_retry, why != Refused::StoreRefused);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_run_unlocked_in_an_outage_if_the_layer_permits_it() {
    let mut server = RedisServer::start();
    // A server that comes back without its data may recover first.
    server.restart_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let watch = Watch::of(format!("127.0.0.1:{}", server.port()));
    // Requests wait for a dead server until it has not answered for a request timeout.
    let builder = crate::help::builder()
        .lease(ms(12_000))
        .request_timeout(ms(3_000));
    let locks = builder.connect(&server.url()).await.unwrap();
    let permits = Service::new(&locks, StoreFailure::RunUnlocked, WAIT);
    let refuses = Service::new(&locks, StoreFailure::default(), WAIT);
    for service in [&permits, &refuses] {
        service.are_served(service.ask_often().await, &[WITH_LEASE]).await;
    }
    // One after the other, also when the server dies, and when it is back.
    let stop = Arc::new(AtomicBool::new(false));
    let meanwhile = {
        let (permits, stop) = (permits.clone(), stop.clone());
        tokio::spawn(async move {
            let mut answers = Vec::new();
            while !stop.load(Ordering::SeqCst) {
                answers.push(permits.clone().ask(7).await);
            }
            answers
        })
    };

    server.kill();
    // The request that was in flight waits through the outage, and is served after it.
    watch.until("store_failing").await;
    permits.are_served(permits.ask_often().await, &[UNLOCKED]).await;
    refuses.are_refused(refuses.ask_often().await);
    assert_eq!(watch.count("store_recovered"), 0, "{:#?}", watch.told());

    server.restart();
    watch.until("store_recovered").await;
    for service in [&permits, &refuses] {
        service.are_served(service.ask_often().await, &[WITH_LEASE]).await;
    }
    stop.store(true, Ordering::SeqCst);
    let answers = soon(meanwhile).await.unwrap();
    permits.are_served(answers, &[WITH_LEASE, UNLOCKED]).await;
    assert_eq!(watch.count("server_recovering"), 0, "{:#?}", watch.told());
    soon(locks.idle()).await;
    Eyes::on(&server).until_empty().await;
}

/// Its earlier leases may be in use, so a request without a lock may run beside a holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_runs_unlocked_while_a_server_recovers() {
    let mut server = RedisServer::start();
    // A recovery lasts as long as a lease, so it ends after the test.
    let locks = locks(&server.url(), ms(60_000)).await;
    let permits = Service::new(&locks, StoreFailure::RunUnlocked, Duration::ZERO);
    let guard = held(&locks, "held").await;
    let served = vec![permits.clone().ask(1).await];
    permits.are_served(served, &[WITH_LEASE]).await;
    server.restart();
    let mut eyes = Eyes::on(&server);
    until("the lease is asserted", || eyes.owner("held").is_some()).await;
    for account in 1..=3 {
        let answer = permits.clone().ask(account).await;
        let after: u64 = answer.1.headers()["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!(after > 3, "the client is told of the recovery: {after}");
        permits.are_refused_as(Refused::Recovering, vec![answer]);
    }
    assert_eq!(eyes.text::<u8>("EXISTS tenure1:recovering"), 1);
    assert!(guard.is_held());
}

/// Otherwise a missing right would end all exclusion, on a store that is well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_runs_unlocked_if_the_refusal_lasts() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let locks = locks(&server.url(), ms(10_000)).await;
    let permits = Service::new(&locks, StoreFailure::RunUnlocked, WAIT);
    let _: u8 = eyes.text("HSET lock:account:1 field value");
    permits.are_refused_as(Refused::StoreRefused, vec![permits.clone().ask(1).await]);
    permits
        .are_served(vec![permits.clone().ask(2).await], &[WITH_LEASE])
        .await;
    let _: String = eyes.text("ACL SETUSER default -evalsha");
    permits.are_refused_as(Refused::StoreRefused, permits.ask_often().await);
    let _: String = eyes.text("ACL SETUSER default +evalsha");
    permits
        .are_served(vec![permits.clone().ask(2).await], &[WITH_LEASE])
        .await;
    // A refusal for now.
    let _: String = eyes.text("CONFIG SET maxmemory 1");
    permits
        .are_served(vec![permits.clone().ask(2).await], &[UNLOCKED])
        .await;
}

/// Otherwise a client that chooses a short wait would never wait for its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_before_an_answer_can_come_is_no_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into());
    let locks = locks(&format!("redis://{}/", proxy.addr()), ms(60_000)).await;
    let other = crate::help::locks(&server.url(), ms(60_000)).await;
    let permits = Service::new(&locks, StoreFailure::RunUnlocked, ms(1));
    let guard = held(&other, "account:1").await;
    proxy.set(Direction::Both, Flow::Delay(ms(200)));
    permits.are_refused(vec![permits.clone().ask(1).await]);
    soon(locks.idle()).await;
    assert!(guard.is_held());
}
