//! `instructions <stage> <n>` runs one stage of `cargo bench --bench layer` n times, under callgrind.

use std::convert::Infallible;
use std::hint::black_box;
use std::time::Duration;

use http::{Request, Response};
use tenure::middleware::IntoLockKey;
use tenure::{Guard, Key, LockLayer, Locks};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Calls a clone of the service, as a router does for each request.
async fn call<S, R>(service: &S)
where
    S: Service<Request<String>, Response = R, Error = Infallible> + Clone,
{
    let Ok(response) = service.clone().oneshot(Request::new(String::new())).await;
    black_box(response);
}

fn key() -> String {
    format!("account:{}", black_box(42))
}

async fn release(guard: Guard) {
    black_box(guard.fence());
    guard.release().await.expect("a release in time");
}

async fn run(stage: &str, times: usize) {
    let locks = Locks::memory();
    let held = Key::from(key());
    let bare = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let passed = LockLayer::by(&locks, |_| None::<String>).layer(bare);
    let full = LockLayer::by(&locks, |_| key()).layer(bare);
    for _ in 0..times {
        match stage {
            "bare" => call(&bare).await,
            "passed" => call(&passed).await,
            "key" => drop(black_box(key().into_lock_key())),
            "core" => release(locks.mutex(&held).lock().await.expect("a free lock")).await,
            "patient" => {
                let wait = Duration::from_secs(5);
                release(locks.mutex(&held).lock_timeout(wait).await.expect("a free lock")).await;
            }
            "full" => call(&full).await,
            _ => panic!("no such stage: {stage}"),
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [stage, times] = &words[..] else {
        panic!("usage: instructions <stage> <n>");
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(run(stage, times.parse().expect("a number")));
}
