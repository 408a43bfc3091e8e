//! The end of a service with a server and jobs, as shown in the README.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use tenure::{CancellationToken, Locks};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::help::{ms, soon, until};

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
    let mut scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async("* * * * * *", locks.job("each second", work).unwrap()).unwrap();
    scheduler.add(job).await.unwrap();
    scheduler.start().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let app = Router::new().route("/events", get(events));
    let client = listening(&listener).await;
    let (signal, sigterm) = oneshot::channel::<()>();

    // From here on as in the README.
    let stop = CancellationToken::new();
    let serving = axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned());
    let serving = tokio::spawn(serving.into_future());
    let _client = soon(client).await.unwrap();
    until("the job runs", || begun.load(Ordering::SeqCst) > 0).await;
    signal.send(()).unwrap();
    sigterm.await.unwrap();
    let began = Instant::now();
    stop.cancel();
    let grace = ms(3_000);
    let (drained, served) = tokio::join!(locks.drain(grace), tokio::time::timeout(grace, serving));
    let at_the_end = begun.load(Ordering::SeqCst);
    scheduler.shutdown().await.unwrap();
    soon(locks.shutdown()).await;

    assert_eq!(drained, Ok(()));
    assert!(served.is_err(), "the stream was open to the end");
    assert_eq!(at_the_end, 1, "no tick begins after the signal");
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "what ran was cancelled");
    // Before the fix it took twice the grace period.
    assert!(began.elapsed() < 2 * grace, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_takes_no_longer_than_it_may_cancelling_included() {
    for (timeout, yields) in [(3_000, true), (3_000, false), (0, true)] {
        let locks = Locks::memory();
        let scheduler = JobScheduler::new().await.unwrap();
        let job = Job::new_async("0 0 0 1 1 *", |_, _| Box::pin(async {})).unwrap();
        let id = scheduler.add(job).await.unwrap();
        let (ends, end) = std::sync::mpsc::channel::<()>();
        let end = Arc::new(std::sync::Mutex::new(end));
        let (begins, begin) = oneshot::channel();
        let begins = std::sync::Mutex::new(Some(begins));
        let work = move |_| {
            let _ = begins.lock().unwrap().take().map(|begins| begins.send(()));
            let end = end.clone();
            async move {
                if !yields {
                    let _ = end.lock().unwrap().recv();
                }
                std::future::pending::<()>().await;
            }
        };
        let mut fire = locks.job("drained", work).unwrap();
        let pursuit = tokio::spawn(fire(id, scheduler));
        soon(begin).await.unwrap();
        let (began, timeout) = (Instant::now(), ms(timeout));
        let drained = soon(locks.drain(timeout)).await;
        let took = began.elapsed();
        assert_eq!(drained.is_ok(), yields, "{drained:?}");
        let bound = timeout.max(ms(1_000));
        // A busy machine is late by a little. Before the fix it took twice the timeout.
        assert!(
            took < bound + Duration::from_millis(1_500),
            "{took:?} of {timeout:?}"
        );
        drop(ends);
        soon(pursuit).await.unwrap();
    }
}
