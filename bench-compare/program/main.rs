//! The program of `bench-compare/versions` and `bench-compare/path`. It uses only the public API, so it builds against any
//! version of the crate.
//!
//! `measure <what>` prints figures. `compare <other program> [what …]` runs the other program and itself in turns.
//! `cycles <n>` locks and releases n times on Redis, and `locks <n>` locks n times.
#![allow(clippy::disallowed_methods)]

#[path = "../../benches/support/mod.rs"]
mod support;

mod counted;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use http::{Request, Response};
use rustix::time::{ClockId, clock_gettime};
use support::scenes;
use support::server::RedisServer;
use support::wire::{self, Wire};
use support::{Raw, Report, Target, is_quick, median};
use tenure::{LockLayer, Locks};
use tower::{Layer, Service, ServiceExt, service_fn};

/// The bound for figures that must not grow. It allows 5 % of noise.
const SAME: f64 = 1.05;

/// The measurements and their figures. Each figure has a name, a bound of the ratio of after to before, and a bound of the
/// figure itself.
const ALL: [(&str, &[(&str, Target, Target)]); 6] = [
    (
        "server",
        &[(
            "lock + release of a free key: server µs",
            Target::AtMost(SAME),
            Target::None,
        )],
    ),
    (
        "hot",
        &[(
            "one key, 100 tasks, 0.25 ms each way: cycles/s",
            Target::AtLeast(0.7),
            Target::None,
        )],
    ),
    (
        "layer",
        &[
            ("layer over memory: ns/request", Target::AtMost(0.7), Target::None),
            (
                "layer over memory: allocations/request",
                Target::None,
                Target::AtMost(12.0),
            ),
        ],
    ),
    (
        "hand-over",
        &[
            (
                "hand-over between nodes: server µs",
                Target::AtMost(0.7),
                Target::None,
            ),
            (
                "hand-over between nodes: commands",
                Target::None,
                Target::AtMost(19.0),
            ),
        ],
    ),
    (
        "idle",
        &[
            (
                "1,000 leases held: ms of CPU a second",
                Target::AtMost(SAME),
                Target::None,
            ),
            (
                "1,000 leases held: ms of Redis a second",
                Target::AtMost(SAME),
                Target::None,
            ),
        ],
    ),
    (
        "memory",
        &[
            (
                "one key in memory, 100 tasks: cycles/s",
                Target::None,
                Target::None,
            ),
            (
                "the same, of tokio::sync::Mutex",
                Target::None,
                Target::AtLeast(0.125),
            ),
        ],
    ),
];

fn main() {
    wire::serve_if_asked();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["measure", what] => {
            for figure in support::runtime().block_on(measure(what)) {
                println!("{figure}");
            }
        }
        ["compare", before, wanted @ ..] => compare(Path::new(before), wanted),
        [verb @ ("cycles" | "locks"), times] => {
            let times = times.parse().expect("a number");
            support::runtime().block_on(times_on_redis(times, *verb == "cycles"));
        }
        _ => panic!("usage: measure, compare, cycles or locks"),
    }
}

fn window() -> Duration {
    5 * support::window()
}

/// Returns the figures, in the order of `ALL`.
async fn measure(what: &str) -> Vec<f64> {
    match what {
        "server" => vec![server_micros().await],
        "hot" => {
            let server = RedisServer::as_service();
            let wire = Wire::start(server.port(), Duration::from_micros(250));
            let locks = Locks::connect(&wire.url()).await.expect("the server is there");
            scenes::hot(&locks, 100, support::window()).await;
            vec![scenes::hot(&locks, 100, window()).await]
        }
        "layer" => layer().await,
        "hand-over" => {
            let server = RedisServer::as_service();
            let mut raw = Raw::connect(&server.url()).await;
            let pair = scenes::hand_overs(&server.url(), if is_quick() { 1 } else { 20 }, &mut raw).await;
            assert!(pair.pushed > 0.99, "each pair is a hand-over: {pair:?}");
            vec![pair.micros, pair.commands]
        }
        "idle" => idle().await,
        "memory" => {
            let locks = Locks::memory();
            scenes::hot(&locks, 100, support::window()).await;
            let ours = scenes::hot(&locks, 100, window()).await;
            vec![ours, ours / scenes::tokio_mutex(100, window()).await]
        }
        other => panic!("no such measurement: {other}"),
    }
}

/// Returns the server's median time in scripts for one lock and release of a free key, in microseconds.
async fn server_micros() -> f64 {
    let server = RedisServer::as_service();
    let locks = Locks::connect(&server.url()).await.expect("the server is there");
    let mut raw = Raw::connect(&server.url()).await;
    let mut micros = Vec::new();
    for cycle in 0..if is_quick() { 10 } else { 2_000 } {
        raw.forget_stats().await;
        let guard = locks.mutex(format!("key:{cycle}")).lock().await;
        let guard = guard.expect("a free lock");
        guard.release().await.expect("a release in time");
        micros.push(raw.stats(|name| name == "evalsha").await.1);
    }
    median(micros)
}

/// Returns the nanoseconds and the allocations that the layer adds to a request.
async fn layer() -> Vec<f64> {
    let locks = Locks::memory();
    let bare = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let full = LockLayer::by(&locks, |_| format!("account:{}", black_box(42))).layer(bare);
    let requests = if is_quick() { 100 } else { 10_000 };
    let mut nanos = Vec::new();
    for _ in 0..=support::pairs() {
        let start = Instant::now();
        requests_to(&full, requests).await;
        let with = start.elapsed();
        requests_to(&bare, requests).await;
        let without = start.elapsed() - with;
        nanos.push(with.saturating_sub(without).as_nanos() as f64 / requests as f64);
    }
    let without = counted::allocations(requests_to(&bare, requests)).await;
    let with = counted::allocations(requests_to(&full, requests)).await;
    // The first round warms up caches and allocators.
    vec![
        median(nanos.split_off(1)),
        (with - without) as f64 / requests as f64,
    ]
}

/// Calls a clone of the service for each request, as a router does.
async fn requests_to<S, R>(service: &S, requests: usize)
where
    S: Service<Request<String>, Response = R, Error = Infallible> + Clone,
{
    for _ in 0..requests {
        let Ok(response) = service.clone().oneshot(Request::new(String::new())).await;
        black_box(response);
    }
}

/// Holds leases of 3 s for some seconds. They were acquired evenly over 1 s, the period of renewal. Returns the CPU time of
/// this process and of Redis, in milliseconds per second.
async fn idle() -> Vec<f64> {
    let (leases, seconds) = if is_quick() { (100, 1) } else { (1000, 5) };
    let server = RedisServer::as_service();
    let mut raw = Raw::connect(&server.url()).await;
    let locks = Locks::builder()
        .lease(Duration::from_secs(3))
        .connect(&server.url())
        .await;
    let locks = locks.expect("the server is there");
    let mut guards = Vec::new();
    let start = tokio::time::Instant::now();
    for nth in 0..leases {
        tokio::time::sleep_until(start + Duration::from_secs(1).mul_f64(f64::from(nth) / f64::from(leases)))
            .await;
        guards.push(locks.mutex(format!("held:{nth}")).lock().await.expect("a lock"));
    }
    let before = (cpu_millis(), server_millis(&mut raw).await);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let after = (cpu_millis(), server_millis(&mut raw).await);
    assert!(guards.iter().all(|guard| guard.is_held()), "all are held");
    [after.0 - before.0, after.1 - before.1]
        .map(|millis| millis / seconds as f64)
        .to_vec()
}

fn cpu_millis() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 * 1e3 + used.tv_nsec as f64 / 1e6
}

async fn server_millis(raw: &mut Raw) -> f64 {
    let text: String = raw.run(redis::cmd("INFO").arg("cpu")).await;
    let seconds = |name: &str| -> f64 {
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value
            .and_then(|value| value.trim().parse().ok())
            .expect("seconds in INFO")
    };
    1e3 * (seconds("used_cpu_user") + seconds("used_cpu_sys"))
}

/// Locks one key after the other on Redis, and releases each if `release` is set. Exits without further releases.
async fn times_on_redis(times: usize, release: bool) {
    let server = RedisServer::start();
    let locks = Locks::connect(&server.url()).await.expect("the server is there");
    let mut held = Vec::new();
    for time in 0..times {
        let guard = locks
            .mutex(format!("key:{time}"))
            .lock()
            .await
            .expect("a free lock");
        if release {
            guard.release().await.expect("a release in time");
        } else {
            held.push(guard);
        }
    }
    drop(server);
    std::process::exit(0);
}

/// Runs both programs in turns, with one process for each measurement.
fn compare(before: &Path, wanted: &[&str]) {
    let sides = [before.to_owned(), std::env::current_exe().expect("this program")];
    let mut report = Report::new("versions");
    report.section("after to before, medians of interleaved runs");
    for (what, figures) in ALL {
        if !wanted.is_empty() && !wanted.contains(&what) {
            continue;
        }
        let mut rounds: Vec<[Vec<f64>; 2]> = Vec::new();
        for round in 0..if is_quick() { 1 } else { 7 } {
            let mut round_of: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
            for turn in 0..2 {
                let side = (round + turn) % 2;
                round_of.insert(side, run(&sides[side], what));
            }
            rounds.push([0, 1].map(|side| round_of.remove(&side).expect("it ran")));
        }
        for (nth, &(name, ratio, absolute)) in figures.iter().enumerate() {
            let of = |side: usize| median(rounds.iter().map(|round| round[side][nth]));
            let ratios = median(rounds.iter().map(|round| round[1][nth] / round[0][nth]));
            let beside = [("before", of(0)), ("after", of(1))];
            report.line(name, ratios, ratio, &beside);
            if !matches!(absolute, Target::None) {
                report.line("  after", of(1), absolute, &[]);
            }
        }
    }
    let directory = std::env::var("TENURE_BENCH_OUT").unwrap_or_else(|_| "target/tmp".into());
    report.write(&directory);
}

fn run(program: &Path, what: &str) -> Vec<f64> {
    let output = Command::new(program)
        .args(["measure", what])
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{program:?} measure {what}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    text.lines().map(|line| line.parse().expect("a figure")).collect()
}
