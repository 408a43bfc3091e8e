//! Locks that outlive the handler: to the end of the response's body, or with a guard that the handler takes.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex as StdMutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::any;
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tenure::middleware::{KeySource, OnLost, Refused, keys};
use tenure::testing::Clock;
use tenure::{Error, Guard, Lease, LockLayer, Locks, MemoryStore, MultiGuard, MultiLease, TransferError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_http::compression::CompressionLayer;

use crate::help::{ms, soon};
use crate::layer::{by_path, send, status, steal, text, to, until};
use crate::layer_several::replicas;

/// A body of the frames that a test sends. It ends when the sender is dropped.
struct Stream(mpsc::UnboundedReceiver<&'static str>);

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = std::task::ready!(self.0.poll_recv(cx));
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(Bytes::from_static(chunk.as_bytes())))))
    }
}

type Chunks = mpsc::UnboundedSender<&'static str>;

/// Serves one stream for each path, and one text.
fn streams(layer: LockLayer<impl KeySource>) -> (Router, mpsc::UnboundedReceiver<Chunks>) {
    let (started, chunks) = mpsc::unbounded_channel();
    let stream = move || {
        let (chunks, body) = mpsc::unbounded_channel();
        started.send(chunks).unwrap();
        async { Body::new(Stream(body)) }
    };
    let app = Router::new()
        .route("/stream", any(stream))
        .route("/text", any(async || "hello"))
        .route("/empty", any(async || StatusCode::NO_CONTENT))
        .route("/upgrade", any(async || StatusCode::SWITCHING_PROTOCOLS))
        .route_layer(layer);
    (app, chunks)
}

async fn is_free(locks: &Locks, key: &'static str) -> bool {
    // Another process asks: the requests of this one are answered in their order.
    locks.mutex(key).try_lock().await.unwrap().is_some()
}

#[tokio::test]
async fn a_lock_is_held_until_the_body_ends() {
    let (store, locks, other) = replicas();
    for to_completion in [false, true] {
        let layer = by_path(&locks).hold_until_body_end().release_before_answer();
        let (app, mut started) = streams(layer.run_to_completion(to_completion));
        let answer = soon(send(&app, to("/stream"))).await.unwrap();
        let chunks = started.recv().await.unwrap();
        let mut body = answer.into_body();
        chunks.send("one").unwrap();
        assert_eq!(
            soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(),
            "one"
        );
        assert!(!is_free(&other, "/stream").await);
        drop(chunks);
        assert!(soon(body.frame()).await.is_none());
        soon(locks.idle()).await;
        assert!(
            is_free(&other, "/stream").await,
            "the body is still there, and has ended"
        );
        drop(body);

        // A body that is dropped.
        let answer = soon(send(&app, to("/stream"))).await.unwrap();
        let _chunks = started.recv().await.unwrap();
        assert!(!is_free(&other, "/stream").await);
        drop(answer);
        soon(locks.idle()).await;
        assert!(is_free(&other, "/stream").await);
    }
    soon(other.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_body_of_one_frame_frees_the_lock_with_it() {
    let (_, locks, other) = replicas();
    let (app, _) = streams(by_path(&locks).hold_until_body_end());
    let answer = soon(send(&app, to("/text"))).await.unwrap();
    let mut body = answer.into_body();
    assert_eq!(http_body::Body::size_hint(&body).exact(), Some(5));
    assert!(!is_free(&other, "/text").await);
    soon(body.frame()).await.unwrap().unwrap();
    assert!(http_body::Body::is_end_stream(&body));
    soon(locks.idle()).await;
    assert!(is_free(&other, "/text").await);
    // The lock of an upgraded connection ends with the head.
    let answer = soon(send(&app, to("/upgrade"))).await.unwrap();
    soon(locks.idle()).await;
    drop(answer);
    let connect = Request::builder()
        .method("CONNECT")
        .uri("/stream")
        .body(Body::empty())
        .unwrap();
    let (app, mut started) = streams(by_path(&locks).hold_until_body_end());
    let answer = soon(send(&app, connect)).await.unwrap();
    let _chunks = started.recv().await.unwrap();
    soon(locks.idle()).await;
    drop(answer);
}

#[tokio::test]
async fn a_loss_cuts_the_body_off_unless_the_layer_only_tells() {
    for to_completion in [false, true] {
        for (on_lost, is_cut) in [
            (OnLost::Cancel, true),
            (OnLost::Replace, true),
            (OnLost::Tell, false),
        ] {
            let store = MemoryStore::new();
            let locks = Locks::builder().memory_shared(&store).unwrap();
            let layer = by_path(&locks)
                .lease(ms(3_000))
                .hold_until_body_end()
                .on_lost(on_lost);
            let (app, mut started) = streams(layer.run_to_completion(to_completion));
            let mut body = soon(send(&app, to("/stream"))).await.unwrap().into_body();
            let chunks = started.recv().await.unwrap();
            chunks.send("one").unwrap();
            soon(body.frame()).await.unwrap().unwrap();
            // The loss wakes a body that waits.
            let waits = tokio::spawn(async move { (body.frame().await, body) });
            tokio::task::yield_now().await;
            steal(&store, "/stream");
            if is_cut {
                let (frame, mut body) = soon(waits).await.unwrap();
                let error = frame.unwrap().unwrap_err();
                assert!(format!("{error:?}").contains("Lost"), "{error:?}");
                assert!(soon(body.frame()).await.is_none());
                assert!(chunks.is_closed(), "the handler's body is dropped");
            } else {
                chunks.send("two").unwrap();
                let (frame, _) = soon(waits).await.unwrap();
                assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "two");
            }
        }
    }
}

/// On a connection: the length, HEAD, a pipelined request, and clients that leave in several ways.
#[tokio::test]
async fn a_server_frees_the_lock_with_the_response() {
    let (store, locks, other) = replicas();
    let (app, mut started) = streams(by_path(&locks).hold_until_body_end());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let ask = async |text: &str| {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(text.as_bytes()).await.unwrap();
        client
    };
    async fn read(client: &mut TcpStream, end: &str) -> String {
        let mut text = Vec::new();
        while !String::from_utf8_lossy(&text).ends_with(end) {
            let byte = soon(client.read_u8()).await.unwrap();
            text.push(byte);
        }
        String::from_utf8(text).unwrap().to_lowercase()
    }
    let request = |method: &str, path: &str| format!("{method} {path} HTTP/1.1\r\nhost: a\r\n\r\n");

    let mut client = ask(&request("GET", "/text")).await;
    assert!(read(&mut client, "hello").await.contains("content-length: 5\r\n"));
    let mut client = ask(&request("HEAD", "/text")).await;
    assert!(
        read(&mut client, "\r\n\r\n")
            .await
            .contains("content-length: 5\r\n")
    );
    let mut client = ask(&request("GET", "/empty")).await;
    assert!(read(&mut client, "\r\n\r\n").await.starts_with("http/1.1 204"));
    soon(locks.idle()).await;
    // HEAD on a stream: no body is read.
    let mut client = ask(&request("HEAD", "/stream")).await;
    let _chunks = started.recv().await.unwrap();
    read(&mut client, "\r\n\r\n").await;
    soon(locks.idle()).await;

    // A second request on the connection is served when the first body has ended.
    let mut client = ask(&(request("GET", "/stream") + &request("GET", "/text"))).await;
    let chunks = started.recv().await.unwrap();
    chunks.send("one").unwrap();
    read(&mut client, "one\r\n").await;
    assert!(!is_free(&other, "/stream").await);
    drop(chunks);
    read(&mut client, "hello").await;
    soon(locks.idle()).await;

    // A client that closes its half is one that leaves, for this server. The lock ends with the body.
    let mut client = ask(&request("GET", "/stream")).await;
    let chunks = started.recv().await.unwrap();
    read(&mut client, "\r\n\r\n").await;
    client.shutdown().await.unwrap();
    soon(chunks.closed()).await;
    soon(locks.idle()).await;

    let mut client = ask(&request("GET", "/stream")).await;
    let chunks = started.recv().await.unwrap();
    chunks.send("one").unwrap();
    read(&mut client, "one\r\n").await;
    assert!(!is_free(&other, "/stream").await);
    // A client that leaves while the body waits, and one that stops to read and then leaves.
    drop(client);
    soon(locks.idle()).await;
    let client = ask(&request("GET", "/stream")).await;
    let chunks = started.recv().await.unwrap();
    static MUCH: [u8; 1 << 20] = [b'x'; 1 << 20];
    for _ in 0..16 {
        chunks.send(std::str::from_utf8(&MUCH).unwrap()).unwrap();
    }
    assert!(!is_free(&other, "/stream").await);
    drop(client);
    soon(locks.idle()).await;
    soon(other.idle()).await;
    assert!(store.is_empty());
    server.abort();
}

/// Compression outside replaces the body, and drops it at its end.
#[tokio::test]
async fn compression_outside_holds_the_lock_as_long() {
    let (_, locks, other) = replicas();
    let much = "hello ".repeat(10_000);
    let inner = service_fn(move |_: Request<Body>| {
        ready(Ok::<_, Infallible>(Response::new(Body::from(much.clone()))))
    });
    let service = ServiceBuilder::new()
        .layer(CompressionLayer::new())
        .layer(by_path(&locks).hold_until_body_end())
        .service(inner);
    let mut request = to("/");
    request
        .headers_mut()
        .insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    let answer = soon(service.oneshot(request)).await.unwrap();
    assert_eq!(answer.headers()[CONTENT_ENCODING], "gzip");
    assert!(!is_free(&other, "/").await);
    let body = soon(answer.into_body().collect()).await.unwrap().to_bytes();
    assert!(body.len() < 1_000);
    soon(locks.idle()).await;
    assert!(is_free(&other, "/").await);
}

#[tokio::test]
async fn bodies_that_hold_a_lock_keep_their_length() {
    let locks = Locks::memory();
    struct Sized;
    impl http_body::Body for Sized {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(None)
        }
        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(7)
        }
        fn is_end_stream(&self) -> bool {
            true
        }
    }
    let app = Router::new()
        .route("/", any(async || Response::new(Body::new(Sized))))
        .route_layer(by_path(&locks).hold_until_body_end());
    let answer = soon(send(&app, to("/"))).await.unwrap();
    assert_eq!(http_body::Body::size_hint(answer.body()).exact(), Some(7));
    assert!(http_body::Body::is_end_stream(answer.body()));
    assert_eq!(answer.headers().get(CONTENT_LENGTH).unwrap(), "7");
    drop(answer);
    soon(locks.idle()).await;
}

/// Where handlers put the guards that they took.
type Shelf<G> = Arc<StdMutex<Option<G>>>;

#[tokio::test]
async fn a_guard_that_is_taken_is_the_handlers() {
    let (store, locks, other) = replicas();
    for layer in [
        by_path(&locks),
        by_path(&locks).skip(),
        by_path(&locks).run_to_completion(true),
        by_path(&locks).hold_until_body_end(),
    ] {
        let shelf: Shelf<Guard> = Arc::default();
        let kept = shelf.clone();
        let handler = move |lease: Lease| {
            *kept.lock().unwrap() = Some(lease.take_guard().unwrap());
            let again = lease.take_guard();
            async move { assert!(matches!(again, Err(Error::Options(_))), "{again:?}") }
        };
        let app = Router::new().route("/", any(handler)).route_layer(layer);
        assert_eq!(status(&app, to("/")).await, 200);
        let guard = shelf.lock().unwrap().take().unwrap();
        assert!(guard.is_held());
        assert!(!is_free(&other, "/").await);
        soon(guard.release()).await.unwrap();
        soon(locks.idle()).await;
        assert!(is_free(&other, "/").await);
    }
    soon(other.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_lost_lease_whose_guard_was_taken_neither_cancels_nor_replaces() {
    for on_lost in [OnLost::Cancel, OnLost::Replace] {
        for to_completion in [false, true] {
            let store = MemoryStore::new();
            let locks = Locks::builder().memory_shared(&store).unwrap();
            let thief = store.clone();
            let handler = move |lease: Lease| {
                let thief = thief.clone();
                async move {
                    let guard = lease.take_guard().unwrap();
                    steal(&thief, "/");
                    lease.lost().await;
                    // The task is polled again after the loss.
                    tokio::task::yield_now().await;
                    assert!(matches!(lease.take_guard(), Err(Error::Lost { .. })));
                    drop(guard);
                }
            };
            let layer = by_path(&locks)
                .lease(ms(3_000))
                .on_lost(on_lost)
                .run_to_completion(to_completion);
            let app = Router::new().route("/", any(handler)).route_layer(layer);
            assert_eq!(status(&app, to("/")).await, 200);
        }
    }
}

#[tokio::test]
async fn a_handler_passes_its_lease_on_and_answers() {
    let (store, locks, other) = replicas();
    let handler = async |lease: Lease| -> Result<(StatusCode, String), Error> {
        let transfer = lease.take_guard()?.into_transfer(Duration::from_secs(60)).await?;
        Ok((StatusCode::ACCEPTED, transfer.to_string()))
    };
    for layer in [
        by_path(&locks),
        by_path(&locks).run_to_completion(true),
        by_path(&locks).skip(),
    ] {
        let app = Router::new().route("/", any(handler)).route_layer(layer);
        let answer = soon(send(&app, to("/"))).await.unwrap();
        assert_eq!(answer.status(), 202);
        let transfer = text(answer).await.parse().unwrap();
        assert!(!is_free(&other, "/").await, "the message travels");
        let guard = soon(other.adopt(&transfer)).await.unwrap();
        assert!(!is_free(&locks, "/").await);
        soon(guard.release()).await.unwrap();
    }
    soon(locks.idle()).await;
    soon(other.idle()).await;
    assert!(store.is_empty());
}

#[tokio::test]
async fn guards_of_others_stay() {
    let locks = Locks::memory();
    // Behind nested layers of one key a transfer is refused, and the inner layer gives its guard back.
    let handler = async |lease: Lease| {
        let guard = lease.take_guard().unwrap();
        let refused = guard.into_transfer(Duration::from_secs(60)).await.unwrap_err();
        let TransferError::Refused(guard, _) = refused else {
            panic!("{refused:?}")
        };
        drop(guard);
        assert!(lease.is_held(), "the inner layer still has its guard");
    };
    let app = Router::new()
        .route("/", any(handler))
        .route_layer(by_path(&locks))
        .route_layer(by_path(&locks));
    assert_eq!(status(&app, to("/")).await, 200);
    soon(locks.idle()).await;
    // A lease that no layer has.
    let guard = locks.mutex("a").lock().await.unwrap();
    assert!(matches!(guard.lease().take_guard(), Err(Error::Options(_))));
    assert!(guard.is_held());
    // A lease after its request.
    let shelf: Shelf<Lease> = Arc::default();
    let kept = shelf.clone();
    let keep = move |lease: Lease| {
        *kept.lock().unwrap() = Some(lease);
        std::future::ready(())
    };
    let app = Router::new().route("/", any(keep)).route_layer(by_path(&locks));
    assert_eq!(status(&app, to("/")).await, 200);
    let lease = shelf.lock().unwrap().take().unwrap();
    assert!(matches!(lease.take_guard(), Err(Error::Lost { .. })));
}

#[tokio::test]
async fn guards_of_several_keys_are_taken_together() {
    let (store, locks, other) = replicas();
    let shelf: Shelf<MultiGuard> = Arc::default();
    let kept = shelf.clone();
    let handler = move |lease: MultiLease, Path(_): Path<u64>| {
        *kept.lock().unwrap() = Some(lease.take_guard().unwrap());
        assert!(matches!(lease.take_guard(), Err(Error::Options(_))));
        std::future::ready(())
    };
    let source = keys::fixed("a").and(keys::fixed("b"));
    let app = Router::new()
        .route("/{id}", any(handler))
        .route_layer(LockLayer::new(&locks, source));
    assert_eq!(status(&app, to("/1")).await, 200);
    let guard = shelf.lock().unwrap().take().unwrap();
    assert!(guard.is_held() && !is_free(&other, "a").await && !is_free(&other, "b").await);
    soon(guard.release()).await.unwrap();
    soon(locks.idle()).await;
    // Without it, the layer gives both back.
    let refused = Router::new()
        .route("/", any(async || Refused::Busy.status()))
        .route_layer(LockLayer::by(&locks, |_| ["a", "b"]));
    assert_eq!(status(&refused, to("/")).await, 423);
    soon(locks.idle()).await;
    assert!(store.is_empty());
    soon(until(|| store.is_empty())).await;
}

/// A guard that another task takes and releases at once is never taken for a loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_is_taken_and_released_elsewhere_is_no_loss() {
    let locks = Locks::memory();
    for to_completion in [false, true] {
        let handler = async |lease: Lease| {
            let done = tokio::spawn(async move { lease.take_guard().unwrap().release().await });
            while !done.is_finished() {
                tokio::task::yield_now().await;
            }
            done.await.unwrap().unwrap();
        };
        let layer = by_path(&locks).run_to_completion(to_completion);
        let app = Router::new().route("/{client}", any(handler)).route_layer(layer);
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let app = app.clone();
                tokio::spawn(async move {
                    for _ in 0..5_000 {
                        let answer = app.clone().oneshot(to(&format!("/{client}"))).await;
                        assert_eq!(answer.unwrap().status(), 200);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
    }
    soon(locks.idle()).await;
}

/// A shutdown waits for a handler as long as its lease lasts, also if the handler took the guard.
#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_handler_whose_guard_was_taken_and_released() {
    let locks = Locks::memory();
    let (released, mut waits) = mpsc::unbounded_channel();
    let handler = move |lease: Lease| {
        let released = released.clone();
        async move {
            lease.take_guard().unwrap().release().await.unwrap();
            released.send(()).unwrap();
            std::future::pending::<()>().await;
        }
    };
    let layer = by_path(&locks).run_to_completion(true);
    let app = Router::new().route("/", any(handler)).route_layer(layer);
    let request = send(&app, to("/"));
    soon(waits.recv()).await.unwrap();
    soon(locks.shutdown()).await;
    request.abort();
}

/// A body whose process slept past the deadline in its last frame.
#[tokio::test]
async fn a_body_that_ends_after_its_lease_is_cut_off() {
    struct Sleeps(Clock);
    impl http_body::Body for Sleeps {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.jump(Duration::from_secs(11));
            Poll::Ready(None)
        }
    }
    for (on_lost, is_cut) in [(OnLost::Cancel, true), (OnLost::Tell, false)] {
        let clock = Clock::new();
        let locks = Locks::builder().clock(clock.clone()).memory().unwrap();
        let handler = move || ready(Body::new(Sleeps(clock.clone())));
        let layer = by_path(&locks).hold_until_body_end().on_lost(on_lost);
        let app = Router::new().route("/", any(handler)).route_layer(layer);
        let answer = soon(send(&app, to("/"))).await.unwrap();
        assert_eq!(
            soon(answer.into_body().collect()).await.is_err(),
            is_cut,
            "{on_lost:?}"
        );
    }
}
