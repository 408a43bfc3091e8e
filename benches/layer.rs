//! The cost that each part of the layer adds to a request on the store in memory: time and allocations.
//!
//! `cargo bench --bench layer`. It sends one request at a time, on one free key. Times include the cost of counting, which is
//! some nanoseconds per allocation. So compare only differences within the same round.
#![allow(clippy::too_many_lines, clippy::type_complexity)]
#![allow(clippy::disallowed_methods)]

mod support;

use std::alloc::System;
use std::convert::Infallible;
use std::future::Future;
use std::hint::black_box;
use std::time::{Duration, Instant};

use http::{Request, Response};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::{Report, Target, median};
use tenure::middleware::IntoLockKey;
use tenure::{Key, LockLayer, Locks};
use tower::{Layer, Service, ServiceExt, service_fn};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    if !support::is_wanted() {
        return;
    }
    let mut report = Report::new("layer");
    support::runtime().block_on(layer(&mut report));
    report.write(env!("CARGO_TARGET_TMPDIR"));
}

/// The cost per request.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    nanos: f64,
    allocations: f64,
    bytes: f64,
}

impl std::ops::Sub for Cost {
    type Output = Cost;

    fn sub(self, other: Cost) -> Cost {
        Cost {
            nanos: self.nanos - other.nanos,
            allocations: self.allocations - other.allocations,
            bytes: self.bytes - other.bytes,
        }
    }
}

fn requests() -> usize {
    if support::is_quick() { 100 } else { 10_000 }
}

async fn cost<F: Future>(mut request: impl FnMut() -> F) -> Cost {
    let region = Region::new(ALLOCATOR);
    let start = Instant::now();
    for _ in 0..requests() {
        black_box(request().await);
    }
    let (elapsed, change) = (start.elapsed(), region.change());
    let per = |total: f64| total / requests() as f64;
    Cost {
        nanos: per(elapsed.as_nanos() as f64),
        allocations: per((change.allocations + change.reallocations) as f64),
        bytes: per(change.bytes_allocated as f64),
    }
}

fn request() -> Request<String> {
    Request::new(String::new())
}

/// Calls a clone of the service, as a router does for each request.
async fn call<S, R>(service: &S) -> R
where
    S: Service<Request<String>, Response = R, Error = Infallible> + Clone,
{
    let Ok(response) = service.clone().oneshot(request()).await;
    response
}

fn key() -> String {
    format!("account:{}", black_box(42))
}

async fn lock(locks: &Locks, key: &Key) {
    let guard = locks.mutex(key).lock().await.expect("a free lock");
    black_box(guard.fence());
    guard.release().await.expect("a release in time");
}

/// Locks with a limit to the wait, as the layer does.
async fn lock_timeout(locks: &Locks, key: &Key) {
    let wait = Duration::from_secs(5);
    let guard = locks.mutex(key).lock_timeout(wait).await.expect("a free lock");
    black_box(guard.fence());
    guard.release().await.expect("a release in time");
}

const STAGES: usize = 6;
const BARE: usize = 0;
const PASSED: usize = 1;
const KEY: usize = 2;
const CORE: usize = 3;
const PATIENT: usize = 4;
const FULL: usize = 5;

async fn layer(report: &mut Report) {
    let locks = Locks::memory();
    let held = Key::from(key());
    let bare = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let passed = LockLayer::by(&locks, |_| None::<String>).layer(bare);
    let full = LockLayer::by(&locks, |_| key()).layer(bare);
    let mut rounds: Vec<[Cost; STAGES]> = Vec::new();
    for round in 0..=support::pairs() {
        let mut costs = [Cost::default(); STAGES];
        for turn in 0..STAGES {
            let stage = (round + turn) % STAGES;
            costs[stage] = match stage {
                BARE => cost(|| call(&bare)).await,
                PASSED => cost(|| call(&passed)).await,
                KEY => cost(async || key().into_lock_key()).await,
                CORE => cost(|| lock(&locks, &held)).await,
                PATIENT => cost(|| lock_timeout(&locks, &held)).await,
                _ => cost(|| call(&full)).await,
            };
        }
        // The first round warms up caches and allocators.
        if round > 0 {
            rounds.push(costs);
        }
    }

    let mut line = |what: &str, cost: &dyn Fn(&[Cost; STAGES]) -> Cost| {
        let of = |part: fn(Cost) -> f64| median(rounds.iter().map(|round| part(cost(round))));
        let beside = [
            ("allocations", of(|cost| cost.allocations)),
            ("bytes", of(|cost| cost.bytes)),
        ];
        report.line(what, of(|cost| cost.nanos), Target::None, &beside);
    };
    println!("\nwhat each costs: nanoseconds, allocations and bytes per request");
    line("the service alone", &|c| c[BARE]);
    line("behind the layer, no key: passes through", &|c| c[PASSED]);
    line("the key alone", &|c| c[KEY]);
    line("lock + release alone", &|c| c[CORE]);
    line("lock_timeout + release alone", &|c| c[PATIENT]);
    line("behind the layer, locked", &|c| c[FULL]);
    println!("\nwhat each part adds");
    line("the layer, before it knows a key", &|c| c[PASSED] - c[BARE]);
    line("the key", &|c| c[KEY]);
    line("lock + release", &|c| c[CORE]);
    line("the limit to the wait", &|c| c[PATIENT] - c[CORE]);
    line("the Lease for the handler, and its watch", &|c| {
        c[FULL] - c[PASSED] - c[KEY] - c[PATIENT]
    });
    line("all of it", &|c| c[FULL] - c[BARE]);
}
