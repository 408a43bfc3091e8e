//! What the layer over the store in memory allocates for a request. A binary of its own, as the allocator that counts
//! is everybody's.

use std::alloc::System;
use std::convert::Infallible;

use http::{Request, Response};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tenure::middleware::keys;
use tenure::{LockLayer, Locks};
use tower::{Layer, Service, ServiceExt, service_fn};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

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
