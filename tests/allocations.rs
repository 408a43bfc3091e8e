//! What the layer over the store in memory allocates for a request. A binary of its own, as the allocator that counts
//! is everybody's.

use std::alloc::System;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tenure::middleware::{BufferBody, BufferedBody, keys};
use tenure::{LockLayer, Locks};
use tokio::sync::Mutex;
use tower::{Layer, Service, ServiceExt, service_fn};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The counts are of all threads, so one test runs at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

const REQUESTS: usize = 1000;
const MOST: f64 = 8.0;
/// With a task of its own for the handler.
const MOST_TO_COMPLETION: f64 = 11.0;

/// Per request, of all threads: the crate's own are part of it. The least of some rounds, as a thread of the background may
/// wake up in one of them.
async fn allocations<F: Future>(mut request: impl FnMut() -> F) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        least = least.min(allocations_of_a_round(&mut request).await);
    }
    least
}

async fn allocations_of_a_round<F: Future>(request: &mut impl FnMut() -> F) -> f64 {
    // The first ones fill caches.
    for _ in 0..100 {
        request().await;
    }
    let region = Region::new(ALLOCATOR);
    for _ in 0..REQUESTS {
        request().await;
    }
    let change = region.change();
    (change.allocations + change.reallocations) as f64 / REQUESTS as f64
}

/// As a router calls a service: a clone of its own for each request.
async fn call<S, R>(service: &S)
where
    S: Service<Request<String>, Response = R, Error = Infallible> + Clone,
{
    let Ok(_) = service.clone().oneshot(Request::new(String::new())).await;
}

#[tokio::test]
async fn the_layer_over_memory_allocates_at_most_eight_times_a_request() {
    let _alone = ALONE.lock().await;
    let locks = Locks::memory();
    let key = || "account:42".to_owned();
    let bare = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let passing = LockLayer::by(&locks, |_| None::<String>).layer(bare);
    let locking = LockLayer::by(&locks, move |_| key()).layer(bare);

    // A router clones what it serves for each request.
    let typed = LockLayer::new(&locks, keys::fixed("account")).layer(bare);
    assert_eq!(allocations(async || (locking.clone(), typed.clone())).await, 0.0);

    let alone = allocations(|| call(&bare)).await;
    let passed = allocations(|| call(&passing)).await - alone;
    let named = allocations(async || locks.mutex(key())).await;
    let core = allocations(async || locks.mutex(key()).lock().await.unwrap().release().await.unwrap()).await;
    let all = allocations(|| call(&locking)).await - alone;

    println!("{all:5.2} allocations a request, of which");
    println!("{passed:5.2} before the key is known");
    println!("{named:5.2} for the key");
    println!("{:5.2} for lock and release", core - named);
    println!(
        "{:5.2} for the Lease, the limit to the wait and the response",
        all - passed - core
    );
    let completing = LockLayer::by(&locks, move |_| key())
        .run_to_completion(true)
        .layer(bare);
    let completed = allocations(|| call(&completing)).await - alone;
    println!("{completed:5.2} if the handler runs to completion");
    assert!(
        completed <= MOST_TO_COMPLETION,
        "{completed:.2} allocations, {MOST_TO_COMPLETION} at most"
    );
    assert!(all > 1.0, "nothing was locked");
    assert!(all <= MOST, "{all:.2} allocations a request, {MOST} at most");
}

/// A note is text, and has a place in memory. Without presence there is neither.
#[tokio::test]
async fn a_note_allocates_only_if_operators_can_see_it() {
    let _alone = ALONE.lock().await;
    let bare = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let mut more = Vec::new();
    for tells in [false, true] {
        let locks = Locks::builder().presence(tells).memory().unwrap();
        let layer = || LockLayer::by(&locks, |_| "a");
        let (plain, noted) = (layer().layer(bare), layer().noted().layer(bare));
        more.push(allocations(|| call(&noted)).await - allocations(|| call(&plain)).await);
    }
    println!(
        "{:5.2} allocations for a note, {:5.2} without presence",
        more[1], more[0]
    );
    assert!(more[0].abs() < 0.5, "{:.2} allocations without presence", more[0]);
    assert!(
        (1.0..=4.0).contains(&more[1]),
        "{:.2} allocations for a note",
        more[1]
    );
}

/// A body that comes in chunks of one byte, without a known length.
struct Chunks(usize);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let left = self.0.checked_sub(1);
        Poll::Ready(left.map(|left| {
            self.0 = left;
            Ok(Frame::data(Bytes::from_static(b"x")))
        }))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl From<Bytes> for Chunks {
    fn from(bytes: Bytes) -> Self {
        Chunks(bytes.len())
    }
}

/// One buffer that grows: however small the chunks are, a body takes no multiple of its size, and no allocation for each chunk.
#[tokio::test]
async fn a_body_in_small_chunks_is_read_into_one_buffer() {
    const SIZE: usize = 256 * 1024;
    let _alone = ALONE.lock().await;
    let inner = service_fn(async |request: Request<Chunks>| {
        let body = request.extensions().get::<BufferedBody>().unwrap().bytes();
        assert_eq!(body.len(), SIZE);
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let service = BufferBody::new(SIZE).layer(inner);
    let (mut bytes, mut allocations) = (usize::MAX, usize::MAX);
    // The least of some rounds, as a thread of the background may wake up in one of them.
    for _ in 0..5 {
        let region = Region::new(ALLOCATOR);
        let Ok(_) = service.clone().oneshot(Request::new(Chunks(SIZE))).await;
        let change = region.change();
        bytes = bytes.min(change.bytes_allocated);
        allocations = allocations.min(change.allocations + change.reallocations);
    }
    println!("{bytes} bytes in {allocations} allocations");
    assert!(bytes < 3 * SIZE, "{bytes} bytes for {SIZE}");
    assert!(allocations < 60, "{allocations} allocations");
}
