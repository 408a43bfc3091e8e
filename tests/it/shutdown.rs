//! The end of a service with a server and jobs, as `docs/operations.md` shows it.

mod recipe;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use tenure::scheduler::Retry;
use tenure::testing::fire_tick;
use tenure::{LockLayer, Locks, MemoryStore, Tick, block_on};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tokio_cron_scheduler::{Job, JobScheduler};

use self::recipe::serve;
use crate::help::{ms, poll_once, soon, until};
use crate::support::jobs::ByHand;

const MIDNIGHT: &str = "0 0 0 * * *";

/// An endless stream of events, such as a dashboard in a browser reads.
async fn events() -> Body {
    let (stream, mut writer) = {
        let (reader, writer) = tokio::io::duplex(64);
        (reader, writer)
    };
    tokio::spawn(async move {
        while writer.write_all(b"data: tick\n\n").await.is_ok() {
            sleep(ms(50)).await;
        }
    });
    Body::new(Endless(stream))
}

struct Endless(tokio::io::DuplexStream);

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        let mut space = [0; 64];
        let mut buffer = tokio::io::ReadBuf::new(&mut space);
        let read = tokio::io::AsyncRead::poll_read(std::pin::Pin::new(&mut self.0), cx, &mut buffer);
        read.map_ok(|()| http_body::Frame::data(Bytes::copy_from_slice(buffer.filled())))
            .map(Some)
    }
}

/// Returns a client that has received something and stays connected.
async fn listening(listener: &TcpListener) -> tokio::task::JoinHandle<TcpStream> {
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut client = TcpStream::connect(address).await.unwrap();
        client
            .write_all(b"GET /events HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let mut heard = Vec::new();
        while !String::from_utf8_lossy(&heard).contains("data: tick") {
            let mut part = [0; 256];
            let read = client.read(&mut part).await.unwrap();
            heard.extend_from_slice(&part[..read]);
        }
        client
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_open_stream_holds_up_neither_the_jobs_nor_the_end() {
    let locks = Locks::memory();
    let (begun, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (begins, drops) = (begun.clone(), dropped.clone());
    struct Noted(Arc<AtomicUsize>);
    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let work = move |_| {
        begins.fetch_add(1, Ordering::SeqCst);
        let noted = Noted(drops.clone());
        async move {
            let _noted = noted;
            std::future::pending::<()>().await;
        }
    };
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async("* * * * * *", locks.job("each second", work).unwrap()).unwrap();
    scheduler.add(job).await.unwrap();
    scheduler.start().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let app = Router::new().route("/events", get(events));
    let client = listening(&listener).await;
    let (signal, sigterm) = oneshot::channel::<()>();

    let server = serve(listener, app, sigterm, ms(3_000), locks.clone(), scheduler);
    let server = async { server.await.map_err(|error| error.to_string()) };
    let end = async {
        let client = soon(client).await.unwrap();
        until("the job runs", || begun.load(Ordering::SeqCst) > 0).await;
        signal.send(()).unwrap();
        client
    };
    let (served, _client) = soon(async { tokio::join!(server, end) }).await;
    assert_eq!(served, Ok(()));
    assert_eq!(begun.load(Ordering::SeqCst), 1, "no tick begins after the signal");
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "what ran was cancelled");
}

/// Requests, jobs and locks have one deadline: what hangs uses it up once. On a virtual clock.
#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_takes_the_grace_once() {
    let locks = Locks::memory();
    let scheduler = JobScheduler::new().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (signal, sigterm) = oneshot::channel::<()>();
    let signal = Arc::new(std::sync::Mutex::new(Some(signal)));
    let hangs = move || {
        let _ = signal.lock().unwrap().take().map(|signal| signal.send(()));
        std::future::pending::<()>()
    };
    let layer = LockLayer::by(&locks, |_| "a").run_to_completion(true);
    let app = Router::new().route("/", get(hangs)).route_layer(layer);
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    client.write_all(head).await.unwrap();
    let (grace, began) = (Duration::from_secs(20), Arc::new(std::sync::Mutex::new(None)));
    let begins = began.clone();
    let sigterm = async move {
        sigterm.await.unwrap();
        *begins.lock().unwrap() = Some(Instant::now());
    };
    let served = serve(listener, app, sigterm, grace, locks, scheduler).await;
    assert!(served.is_ok());
    let began = began.lock().unwrap().expect("the signal came");
    assert_eq!(Instant::now(), began + grace, "once, and to the end");
}

/// The guide shows the function that these tests run.
#[test]
fn the_guide_has_this_recipe() {
    let recipe = include_str!("shutdown/recipe.rs");
    let (_, recipe) = recipe.split_once("\n\n").expect("the imports end");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let recipe = words(recipe).replace("pub(super) async", "async");
    assert!(
        words(include_str!("../../docs/operations.md")).contains(&recipe),
        "docs/operations.md lacks tests/it/shutdown/recipe.rs"
    );
}

/// A job that waits is cancelled within the time, on a clock that is virtual from the begin of its run.
#[tokio::test]
async fn a_drain_takes_no_longer_than_it_may_cancelling_included() {
    for timeout in [3_000, 0] {
        let locks = Locks::memory();
        let (_job, pursuit, begin) = pursued(&locks, std::future::pending::<()>).await;
        soon(begin).await.unwrap();
        tokio::time::pause();
        let most = ms(timeout.max(1_000));
        let drained = tokio::time::timeout(most, locks.drain(ms(timeout))).await;
        assert_eq!(drained, Ok(Ok(())), "{timeout} ms");
        pursuit.await.unwrap();
        tokio::time::resume();
    }
}

/// A job that blocks its thread cannot be cancelled, and the drain says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_does_not_wait_for_a_job_that_blocks() {
    let locks = Locks::memory();
    let (ends, end) = std::sync::mpsc::channel::<()>();
    let end = Arc::new(std::sync::Mutex::new(end));
    let blocks = move || {
        let end = end.clone();
        async move {
            let _ = end.lock().unwrap().recv();
        }
    };
    let (_job, pursuit, begin) = pursued(&locks, blocks).await;
    soon(begin).await.unwrap();
    let drained = soon(locks.drain(Duration::ZERO)).await;
    assert!(drained.is_err(), "{drained:?}");
    drop(ends);
    soon(pursuit).await.unwrap();
}

/// Fires the job for a midnight that is over, and returns what says how the tick ended here.
fn fire(locks: &Locks, job: &'static str) -> tokio::task::JoinHandle<&'static str> {
    let (locks, midnight) = (
        locks.clone(),
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_792_627_200),
    );
    tokio::spawn(async move { fire_tick(&locks, job, midnight).await })
}

/// Returns the work of a job that blocks its thread, its runs, and what lets the thread go when it is dropped.
fn blocking() -> (
    impl Fn(Tick) + Send + Sync + 'static,
    mpsc::UnboundedReceiver<Tick>,
    impl Sized,
) {
    let (ends, end) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = mpsc::unbounded_channel();
    let end = std::sync::Mutex::new(end);
    let work = move |tick: Tick| {
        begins.send(tick).unwrap();
        let _ = end.lock().unwrap().recv();
    };
    (work, begun, ends)
}

/// A thread cannot be cancelled. So no other node begins its tick, neither while `shutdown` waits for the thread nor after the caller
/// gave `shutdown` up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_goes_on_keeps_its_tick_in_a_shutdown() {
    for is_given_up in [false, true] {
        let store = MemoryStore::default();
        let nodes = [(); 2].map(|()| Locks::builder().memory_shared(&store).unwrap());
        let (work, mut begun, ends) = blocking();
        let _blocks = nodes[0].cron("books", MIDNIGHT).run_blocking(work).unwrap();
        let _stands_by = nodes[1].cron("books", MIDNIGHT).run(async |_| {}).unwrap();
        let runs = fire(&nodes[0], "books");
        let tick = soon(begun.recv()).await.unwrap();
        let stands_by = fire(&nodes[1], "books");
        until("the other node stands by", || nodes[1].waiter_count() == 1).await;

        assert!(soon(nodes[0].drain(Duration::ZERO)).await.is_err());
        let mut shutdown = Some(Box::pin(nodes[0].shutdown()));
        let ended = poll_once(shutdown.as_mut().unwrap()).await;
        assert_eq!(ended, None, "the thread has not ended");
        if is_given_up {
            shutdown = None;
        }
        let stands_by_still = nodes[1].waiter_count() == 1;
        assert!(tick.is_held() && stands_by_still, "given up: {is_given_up}");
        drop(ends);
        assert_eq!(soon(runs).await.unwrap(), "done");
        assert_eq!(soon(stands_by).await.unwrap(), "elsewhere");
        if let Some(shutdown) = shutdown {
            soon(shutdown).await;
        }
    }
}

/// The runtime of a job may end before its thread.
#[test]
fn a_thread_keeps_its_tick_when_the_runtime_of_its_job_is_gone() {
    let runtimes = [(); 2].map(|()| tokio::runtime::Runtime::new().unwrap());
    let [of_jobs, own] = runtimes;
    let (store, (work, mut begun, ends)) = (MemoryStore::default(), blocking());
    let locks = Locks::builder().memory_shared(&store).unwrap();
    let (_job, _pursuit) = of_jobs.block_on(async {
        let job = locks.cron("books", MIDNIGHT).run_blocking(work).unwrap();
        (job, fire(&locks, "books"))
    });
    let tick = own.block_on(soon(begun.recv())).unwrap();
    of_jobs.shutdown_background();
    own.block_on(async {
        let mut shutdown = Box::pin(locks.shutdown());
        assert_eq!(poll_once(&mut shutdown).await, None, "the thread has not ended");
        assert!(tick.is_held());
        drop(ends);
        soon(shutdown).await;
    });
    assert!(!tick.is_held() && store.is_empty());
}

/// A thread that waits for a lock of its process is told of the end. A run that waits for nothing is cancelled, also in the pause
/// before its next try, and the tick is left to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_ends_runs_by_itself() {
    let locks = Locks::memory();
    let guard = locks.mutex("account").lock().await.unwrap();
    let (begins, mut begun) = mpsc::unbounded_channel();
    let begins = move || begins.send(()).unwrap();
    let (waits, tries, hangs) = (begins.clone(), begins.clone(), begins);
    let account = locks.mutex("account");
    let waits = move |_| {
        waits();
        block_on(account.lock()).map(drop)
    };
    let hangs = move |_| {
        hangs();
        std::future::pending::<()>()
    };
    let tries = move |_| {
        tries();
        async { Err::<(), _>("not yet") }
    };
    let pauses = Retry::times(3).pauses(ms(600_000), ms(600_000));
    let _jobs = [
        locks.cron("waits", MIDNIGHT).run_blocking(waits).unwrap(),
        locks.cron("hangs", MIDNIGHT).run(hangs).unwrap(),
        locks.cron("tries", MIDNIGHT).retry(pauses).run(tries).unwrap(),
    ];
    let runs = ["waits", "hangs", "tries"].map(|job| fire(&locks, job));
    for _ in &runs {
        soon(begun.recv()).await.unwrap();
    }
    until("a thread waits", || locks.waiter_count() == 1).await;
    soon(locks.shutdown()).await;
    assert!(!guard.is_held());
    for run in runs {
        assert_eq!(soon(run).await.unwrap(), "drained");
    }
}

/// Starts a tick of a job that does this. Returns the job, its pursuit, and what says that it runs.
async fn pursued<F: Future<Output = ()> + Send + 'static>(
    locks: &Locks,
    work: impl Fn() -> F + Send + Sync + 'static,
) -> (impl Sized, tokio::task::JoinHandle<()>, oneshot::Receiver<()>) {
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async("0 0 0 1 1 *", |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    let (begins, begin) = oneshot::channel();
    let begins = std::sync::Mutex::new(Some(begins));
    let work = move |_| {
        let _ = begins.lock().unwrap().take().map(|begins| begins.send(()));
        work()
    };
    let mut fire = locks.job("drained", work).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler));
    (fire, pursuit, begin)
}
