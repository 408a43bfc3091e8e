//! Other layers around and inside of this one: which layer sees which answer, and what each request holds meanwhile.
//!
//! The innermost service is a [`Probe`], which panics when it is called before it was ready.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_REQUEST_METHOD, CONTENT_ENCODING, ORIGIN,
};
use http::{Method, Request, Response, StatusCode};
use tenure::middleware::{BufferBody, KeySource};
use tenure::{LockLayer, Locks};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tower::load_shed::error::Overloaded;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::{Any, CorsLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::help::{ms, soon};
use crate::layer::{Probe, until};

/// The duration of work that must not end by itself.
const FOR_EVER: Duration = ms(60_000);
/// The number of callers queued for the hot key.
const CROWD: usize = 3;

type Stack = BoxCloneSyncService<Request<Body>, Response<Body>, BoxError>;
type Answer = Result<Result<Response<Body>, BoxError>, JoinError>;

/// What stacks are made of.
#[derive(Clone)]
struct World {
    locks: Locks,
    to_completion: bool,
    wait: Duration,
    timeout: Duration,
    entered: mpsc::UnboundedSender<()>,
    go: Arc<Semaphore>,
    /// The number of answers that a trace has seen.
    traced: Arc<AtomicUsize>,
}

impl World {
    fn lock(&self) -> LockLayer<impl KeySource> {
        LockLayer::by(&self.locks, |parts| parts.uri.path().to_owned())
            .wait(self.wait)
            .run_to_completion(self.to_completion)
    }

    fn timeout(&self) -> TimeoutLayer {
        TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, self.timeout)
    }

    /// A handler that does what the query says, and is not ready at once.
    fn handler(&self) -> Stack {
        self.probe(1)
    }

    /// The handler for layers that shed every request if the service is not ready at once.
    fn prompt(&self) -> Stack {
        self.probe(0)
    }

    fn probe(&self, hesitates: u32) -> Stack {
        let World { entered, go, .. } = self.clone();
        let serve = move |request: Request<Body>| {
            let (entered, go) = (entered.clone(), go.clone());
            async move {
                entered.send(()).unwrap();
                match request.uri().query() {
                    Some("hangs") => go.acquire().await.unwrap().forget(),
                    Some("panics") => panic!("on purpose"),
                    _ => {}
                }
                Ok::<_, Infallible>(Response::new(Body::from("done ".repeat(100))))
            }
        };
        stack(Probe::around(service_fn(serve), hesitates))
    }

    fn trace(&self, inner: Stack) -> Stack {
        let traced = self.traced.clone();
        let count = move |_: &Response<Body>, _: Duration, _: &tracing::Span| {
            traced.fetch_add(1, Ordering::SeqCst);
        };
        stack(TraceLayer::new_for_http().on_response(count).layer(inner))
    }
}

/// Gives all stacks one type.
fn stack<S, B>(service: S) -> Stack
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = service.map_response(|response: Response<B>| response.map(Body::new));
    BoxCloneSyncService::new(service.map_err(Into::into))
}

/// The answers to requests in different situations.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    /// The key is free.
    free: &'static str,
    /// The key is locked for longer than the request waits.
    busy: &'static str,
    /// The handler hangs until the client leaves, unless a layer answers earlier. The flags tell whether its lock is
    /// free then, without and with running to completion.
    hangs: (&'static str, [bool; 2]),
    /// The handler panics.
    panics: &'static str,
    /// The request has its own key while a crowd waits for another.
    other: &'static str,
}

const ALONE: Row = Row {
    free: "200",
    busy: "429",
    hangs: ("no answer", [true, false]),
    panics: "panic",
    other: "200",
};

/// The layer is inside of the lock and sees only handled requests.
const fn marked(answer: &'static str) -> Row {
    Row {
        free: answer,
        other: answer,
        ..ALONE
    }
}

/// The layer is outside of the lock and sees refused requests, too.
const fn outside(answer: &'static str, refusal: &'static str) -> Row {
    Row {
        busy: refusal,
        ..marked(answer)
    }
}

const fn crowded(other: &'static str) -> Row {
    Row { other, ..ALONE }
}

const CAUGHT: Row = Row {
    panics: "500",
    ..ALONE
};

/// A handler that is timed out from outside continues if it runs to completion. A timeout inside is part of the
/// locked handler.
const TIMED_OUT: Row = Row {
    busy: "408",
    hangs: ("408", [true, false]),
    ..ALONE
};
const TIMED_OUT_INSIDE: Row = Row {
    hangs: ("408", [true, true]),
    ..ALONE
};

type Table = [(&'static str, fn(&World) -> Stack, Row); 19];

const fn builder() -> ServiceBuilder<tower::layer::util::Identity> {
    ServiceBuilder::new()
}

#[rustfmt::skip]
const TABLE: Table = [
    ("alone", |w| stack(w.lock().layer(w.handler())), ALONE),
    ("trace outside", |w| w.trace(stack(w.lock().layer(w.handler()))), outside("200 traced", "429 traced")),
    ("trace inside", |w| stack(w.lock().layer(w.trace(w.handler()))), marked("200 traced")),
    ("timeout outside", |w| stack(builder().layer(w.timeout()).layer(w.lock()).service(w.handler())), TIMED_OUT),
    ("timeout inside", |w| stack(builder().layer(w.lock()).layer(w.timeout()).service(w.handler())), TIMED_OUT_INSIDE),
    ("compression outside", |w| stack(builder().layer(CompressionLayer::new()).layer(w.lock()).service(w.handler())), outside("200 gzip", "429 gzip")),
    ("compression inside", |w| stack(builder().layer(w.lock()).layer(CompressionLayer::new()).service(w.handler())), marked("200 gzip")),
    ("CORS outside", |w| stack(builder().layer(cors()).layer(w.lock()).service(w.handler())), outside("200 cors", "429 cors")),
    ("CORS inside", |w| stack(builder().layer(w.lock()).layer(cors()).service(w.handler())), marked("200 cors")),
    ("catch panic outside", |w| stack(builder().layer(CatchPanicLayer::new()).layer(w.lock()).service(w.handler())), CAUGHT),
    ("catch panic inside", |w| stack(builder().layer(w.lock()).layer(CatchPanicLayer::new()).service(w.handler())), CAUGHT),
    ("limit outside", |w| stack(builder().concurrency_limit(CROWD).layer(w.lock()).service(w.handler())), crowded("late")),
    ("limit inside", |w| stack(builder().layer(w.lock()).concurrency_limit(1).service(w.handler())), ALONE),
    ("load shed outside", |w| stack(builder().load_shed().concurrency_limit(CROWD).layer(w.lock()).service(w.handler())), crowded("overloaded")),
    ("load shed inside", |w| stack(builder().layer(w.lock()).load_shed().concurrency_limit(1).service(w.prompt())), ALONE),
    ("buffer outside", |w| stack(builder().buffer(8).layer(w.lock()).service(w.handler())), ALONE),
    ("buffer inside", |w| stack(builder().layer(w.lock()).buffer(8).service(w.handler())), ALONE),
    ("body buffer outside", |w| stack(builder().layer(BufferBody::new(9)).layer(w.lock()).service(w.handler())), ALONE),
    ("body buffer inside", |w| stack(builder().layer(w.lock()).layer(BufferBody::new(9)).service(w.handler())), ALONE),
];

fn cors() -> CorsLayer {
    CorsLayer::new().allow_origin(Any)
}

fn ask(stack: &Stack, method: Method, uri: &str) -> JoinHandle<Result<Response<Body>, BoxError>> {
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header(ACCEPT_ENCODING, "gzip")
        .header(ORIGIN, "https://shop.example")
        .header(ACCESS_CONTROL_REQUEST_METHOD, "POST");
    tokio::spawn(stack.clone().oneshot(request.body(Body::empty()).unwrap()))
}

fn named(answer: Answer) -> String {
    let response = match answer {
        Ok(Ok(response)) => response,
        Ok(Err(error)) if error.is::<Overloaded>() => return "overloaded".into(),
        Ok(Err(error)) => return format!("an error: {error}"),
        Err(ended) if ended.is_panic() => return "panic".into(),
        Err(_) => return "no answer".into(),
    };
    let (mut name, headers) = (response.status().as_str().to_owned(), response.headers());
    let marks = [
        (CONTENT_ENCODING, " gzip"),
        (ACCESS_CONTROL_ALLOW_ORIGIN, " cors"),
    ];
    let marks = marks.iter().filter(|(header, _)| headers.contains_key(header));
    name.extend(marks.map(|(_, mark)| *mark));
    name
}

/// One stack, and the requests sent to it.
struct StackTest {
    world: World,
    entered: mpsc::UnboundedReceiver<()>,
    stack: Stack,
}

impl StackTest {
    fn new(build: fn(&World) -> Stack, to_completion: bool, wait: Duration, timeout: Duration) -> StackTest {
        let (sender, entered) = mpsc::unbounded_channel();
        let world = World {
            locks: Locks::memory(),
            to_completion,
            wait,
            timeout,
            entered: sender,
            go: Arc::new(Semaphore::new(0)),
            traced: Arc::default(),
        };
        StackTest {
            stack: build(&world),
            world,
            entered,
        }
    }

    fn ask(&self, uri: &str) -> JoinHandle<Result<Response<Body>, BoxError>> {
        ask(&self.stack, Method::POST, uri)
    }

    async fn answer(&self, uri: &str) -> String {
        let name = named(soon(self.ask(uri)).await);
        match self.world.traced.swap(0, Ordering::SeqCst) {
            0 => name,
            1 => name + " traced",
            more => format!("{name} traced {more} times"),
        }
    }

    /// Ends the test, and checks that nothing is left behind.
    async fn ends(self) {
        soon(self.world.locks.idle()).await;
    }
}

async fn busy(test: StackTest) -> String {
    let _held = test.world.locks.mutex("/busy").lock().await.unwrap();
    test.answer("/busy").await
}

/// Returns the answer, and whether the lock is free.
async fn hangs(mut test: StackTest, is_answered: bool) -> (String, bool) {
    let answer = test.ask("/a?hangs");
    soon(test.entered.recv()).await.unwrap();
    if !is_answered {
        answer.abort();
    }
    let name = named(soon(answer).await);
    let locks = test.world.locks.clone();
    let is_free = tokio::time::timeout(ms(500), locks.idle()).await.is_ok();
    assert!(is_free || locks.key_count() == 1);
    test.world.go.add_permits(1);
    test.ends().await;
    (name, is_free)
}

async fn other(test: StackTest, is_late: bool) -> String {
    let locks = test.world.locks.clone();
    let held = locks.mutex("/hot").lock().await.unwrap();
    let crowd: Vec<_> = (0..CROWD).map(|_| test.ask("/hot")).collect();
    until(|| locks.waiter_count() == CROWD).await;
    let answer = if is_late {
        let other = test.ask("/other");
        // A free lock is answered within a few milliseconds.
        tokio::time::sleep(ms(100)).await;
        assert!(!other.is_finished());
        soon(held.release()).await.unwrap();
        assert_eq!(named(soon(other).await), "200");
        "late".to_owned()
    } else {
        let answer = test.answer("/other").await;
        assert_eq!(locks.waiter_count(), CROWD);
        soon(held.release()).await.unwrap();
        answer
    };
    for one in crowd {
        assert!(named(soon(one).await).starts_with("200"));
    }
    test.ends().await;
    answer
}

/// Checks one stack in all situations.
async fn compare(name: &'static str, build: fn(&World) -> Stack, row: Row, to_completion: bool) {
    let name = format!("{name}, completes: {to_completion}");
    let test = |wait, timeout| StackTest::new(build, to_completion, wait, timeout);
    let free = test(FOR_EVER, FOR_EVER);
    assert_eq!(free.answer("/free").await, row.free, "{name}: free");
    free.ends().await;
    // Either the wait has ended, or a layer outside has timed out.
    let (wait, timeout) = match row.busy {
        "408" => (FOR_EVER, ms(50)),
        _ => (ms(50), FOR_EVER),
    };
    assert_eq!(busy(test(wait, timeout)).await, row.busy, "{name}: busy");
    let (answer, is_free) = row.hangs;
    let seen = hangs(test(FOR_EVER, ms(500)), answer != "no answer").await;
    let expected = (answer.to_owned(), is_free[usize::from(to_completion)]);
    assert_eq!(seen, expected, "{name}: hangs");
    let panics = test(FOR_EVER, FOR_EVER);
    assert_eq!(panics.answer("/a?panics").await, row.panics, "{name}: panics");
    assert_eq!(panics.answer("/a").await, row.free, "{name}: after a panic");
    panics.ends().await;
    let seen = other(test(FOR_EVER, FOR_EVER), row.other == "late").await;
    assert_eq!(seen, row.other, "{name}: another key");
}

#[tokio::test]
async fn the_layers_of_others_outside_and_inside() {
    let mut all = JoinSet::new();
    for (name, build, row) in TABLE {
        for to_completion in [false, true] {
            all.spawn(compare(name, build, row.clone(), to_completion));
        }
    }
    while let Some(compared) = all.join_next().await {
        compared.unwrap();
    }
}

#[tokio::test]
async fn a_preflight_waits_for_no_lock_wherever_it_is_answered() {
    for (name, build, _) in TABLE.iter().filter(|(name, ..)| name.starts_with("CORS")) {
        let test = StackTest::new(*build, false, FOR_EVER, FOR_EVER);
        let _held = test.world.locks.mutex("/busy").lock().await.unwrap();
        let answer = soon(ask(&test.stack, Method::OPTIONS, "/busy")).await;
        assert_eq!(named(answer), "200 cors", "{name}");
    }
}

/// A request that is shed behind the lock gives it back.
#[tokio::test]
async fn a_request_shed_behind_the_lock_gives_it_back() {
    let (_, build, _) = TABLE
        .iter()
        .find(|(name, ..)| *name == "load shed inside")
        .unwrap();
    let mut test = StackTest::new(*build, false, FOR_EVER, FOR_EVER);
    let inside = test.ask("/a?hangs");
    soon(test.entered.recv()).await.unwrap();
    assert_eq!(test.answer("/b").await, "overloaded");
    until(|| test.world.locks.key_count() == 1).await;
    test.world.go.add_permits(1);
    assert_eq!(named(soon(inside).await), "200");
    test.ends().await;
}
