//! Compares tenure with "raw", the minimal lock on Redis: `SET NX PX` and a script that compares and deletes. Raw uses one
//! multiplexed connection. The bench starts its own Redis, behind a wire with a delay. TCP_NODELAY is set on both sides and on
//! the wire. Only the ratios from interleaved windows are meaningful.
//!
//! `cargo bench --bench redis` runs all parts. `-- keys`, `-- hot`, `-- memory`, `-- layer`, `-- kinds`, `-- hand-off`,
//! `-- steal` or `-- server` runs one part. `-- profile <tenure|hot|raw> <tasks> <seconds> [redis url]` runs one side alone, for perf and
//! strace.
#![allow(clippy::too_many_lines, clippy::type_complexity)]
#![allow(clippy::disallowed_methods)]

mod support;

use std::convert::Infallible;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::pin::{Pin, pin};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{Request, Response};
use rustix::time::{ClockId, clock_gettime};
use support::scenes::{self, lock_and_release};
use support::server::RedisServer;
use support::wire::{self, Wire};
use support::{Raw, Report, Target, median, rate};
use tenure::inspect::{Entry, HolderEntry};
use tenure::{LockLayer, Locks, Mutex};
use tower::{Layer, Service, ServiceExt, service_fn};

const TOKEN: &str = "5f0c3a52d7e84d0f9a61";
const TASKS: [usize; 4] = [1, 10, 100, 1000];

/// The delay each way, and the required share of raw's rate at 1, 10, 100 and 1,000 tasks.
const WIRES: [(Duration, [f64; 4]); 2] = [
    (Duration::from_micros(250), [0.9, 0.85, 0.8, 0.9]),
    (Duration::from_millis(1), [0.9, 0.9, 0.9, 0.85]),
];

fn main() {
    wire::serve_if_asked();
    let words: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["child", url] => return support::runtime().block_on(hand_off_child(url)),
        ["profile", side, tasks, seconds, url @ ..] => {
            let (tasks, seconds) = (tasks.parse().expect("tasks"), seconds.parse().expect("seconds"));
            let server = url.is_empty().then(RedisServer::as_service);
            let url = server
                .as_ref()
                .map_or_else(|| url[0].to_owned(), RedisServer::url);
            return support::runtime().block_on(profile(&url, side, tasks, Duration::from_secs_f64(seconds)));
        }
        _ => {}
    }
    if !support::is_wanted() {
        return;
    }
    let server = RedisServer::as_service();
    let mut report = Report::new("redis");
    support::runtime().block_on(async {
        let wires = WIRES.map(|(delay, bounds)| (Wire::start(server.port(), delay), bounds));
        if support::asks_for("keys") || support::asks_for("hot") {
            for (wire, bounds) in &wires {
                let place = Place::connect(&server, Some(wire), &mut report).await;
                place.measure(bounds.map(Target::AtLeast), &mut report).await;
            }
            let loopback = Place::connect(&server, None, &mut report).await;
            loopback.measure([Target::None; 4], &mut report).await;
        }
        if support::asks_for("memory") {
            memory(&mut report).await;
        }
        if support::asks_for("layer") {
            layer(&wires[1].0, &mut report).await;
        }
        if support::asks_for("kept") {
            kept(&server, &wires[0].0, &mut report).await;
        }
        if support::asks_for("kinds") {
            kinds(&server, &wires[0].0, &mut report).await;
        }
        if support::asks_for("hand-off") {
            let (wire, _) = &wires[1];
            hand_off(&wire.url(), "1 ms each way", Target::AtMost(1.1), &mut report).await;
            // A round trip on loopback is mostly the time that three threads take to wake up; on a network it is the wire.
            hand_off(&server.url(), "loopback", Target::None, &mut report).await;
        }
        if support::asks_for("steal") {
            // On the shorter wire the work of the threads counts as much as the trips.
            for ((wire, _), target) in wires.iter().zip([Target::None, Target::AtMost(3.0)]) {
                steals(wire, target, &mut report).await;
            }
        }
        if support::asks_for("server") {
            cycles_on_the_server(&server, &mut report).await;
            hand_overs_on_the_server(&server, &mut report).await;
        }
    });
    report.write(env!("CARGO_TARGET_TMPDIR"));
}

/// A route to the server, and the connections of both sides over it.
struct Place {
    name: String,
    /// The maximum of cycles per second for one task, at two round trips each; `None` without a wire.
    limit: Option<f64>,
    raw: Raw,
    locks: Locks,
    /// A connection to the server without the wire.
    stats: Raw,
}

/// Returns tenure's cycles per second in one window.
async fn tenure(locks: &Locks, tasks: usize) -> f64 {
    let cycle = |task: usize| {
        let mutex = locks.mutex(format!("own:{task}"));
        move || lock_and_release(mutex.clone())
    };
    rate(tasks, support::window(), cycle).await
}

async fn raw(raw: &Raw, tasks: usize) -> f64 {
    let cycle = |task: usize| {
        let (raw, key) = (raw.clone(), format!("raw:{task}"));
        move || {
            let (mut raw, key) = (raw.clone(), key.clone());
            async move { raw.lock_and_release(&key, TOKEN).await }
        }
    };
    rate(tasks, support::window(), cycle).await
}

/// Measures leases that stay with their process: beside a lock without them, in memory, and between two processes.
async fn kept(server: &RedisServer, wire: &Wire, report: &mut Report) {
    report.section("behind 0.25 ms each way, leases are kept for 10 s: lock + release, cycles/s");
    let keeping = || Locks::builder().keep(Duration::from_secs(10));
    let locks = keeping().connect(&wire.url()).await.expect("the server is there");
    let memory = keeping().memory().expect("good options");
    let other = Raw::connect(&wire.url()).await;
    // The first claim that waits opens the inbox, without which nothing is kept.
    lock_and_release(locks.mutex("first")).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut stats = Raw::connect(&server.url()).await;
    for tasks in [1, 100] {
        let (before, _) = stats.stats(|name| name == "evalsha").await;
        let kept = tenure(&locks, tasks).await;
        let (after, _) = stats.stats(|name| name == "evalsha").await;
        let (raw, memory) = (raw(&other, tasks).await, tenure(&memory, tasks).await);
        let facts = [
            ("of raw", kept / raw),
            ("of memory", kept / memory),
            ("EVALSHA", after - before),
            ("cycles/s", kept),
        ];
        let (name, target) = match tasks {
            1 => ("1 task: times the cycles of raw commands", Target::AtLeast(100.0)),
            _ => ("100 tasks on their own keys: of memory", Target::AtLeast(0.6)),
        };
        let value = if tasks == 1 { kept / raw } else { kept / memory };
        report.line(name, value, target, &facts);
    }
}

/// Returns the CPU time of this process, in microseconds.
fn cpu_micros() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 * 1e6 + used.tv_nsec as f64 / 1e3
}

fn place_of(wire: &Wire) -> String {
    format!("{} ms each way", wire.delay().as_secs_f64() * 1000.0)
}

impl Place {
    /// Connects both sides, and reports how exact the wire is.
    async fn connect(server: &RedisServer, wire: Option<&Wire>, report: &mut Report) -> Self {
        let url = wire.map_or_else(|| server.url(), Wire::url);
        let name = wire.map_or_else(|| "loopback".to_owned(), place_of);
        let mut place = Place {
            limit: wire.map(|wire| 1.0 / (4.0 * wire.delay().as_secs_f64())),
            raw: Raw::connect(&url).await,
            locks: Locks::connect(&url).await.expect("the server is there"),
            stats: Raw::connect(&server.url()).await,
            name,
        };
        if let Some(wire) = wire {
            let pings = if support::is_quick() { 20 } else { 500 };
            let micros = |trip: Duration| trip.as_secs_f64() * 1e6;
            let (through, beside) = (place.raw.ping(pings).await, place.stats.ping(pings).await);
            report.section(&format!("{}: the wire", place.name));
            report.line(
                "µs too late each way, by a PING through it",
                micros(through.saturating_sub(beside)) / 2.0 - micros(wire.delay()),
                Target::AtMost(50.0),
                &[("PING µs", micros(through)), ("without it", micros(beside))],
            );
        }
        // Warms up caches and allocators.
        raw(&place.raw, 100).await;
        tenure(&place.locks, 100).await;
        place
    }

    async fn measure(&self, targets: [Target; 4], report: &mut Report) {
        if support::asks_for("keys") {
            report.section(&format!(
                "{}: a key per task, lock + release: times the rate of raw",
                self.name
            ));
            for (tasks, target) in TASKS.into_iter().zip(targets) {
                self.keys(tasks, target, report).await;
            }
        }
        if support::asks_for("hot") {
            self.hot(report).await;
        }
    }

    /// Measures tasks that each lock and release their own key.
    async fn keys(&self, tasks: usize, target: Target, report: &mut Report) {
        let mut stats = self.stats.clone();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let (mut cost, mut their_cost, mut batch) = (Vec::new(), Vec::new(), Vec::new());
        let (mut cpu, mut their_cpu) = (Vec::new(), Vec::new());
        for pair in 0..support::pairs() {
            for turn in 0..2 {
                stats.forget_stats().await;
                let before = cpu_micros();
                if (pair + turn) % 2 == 0 {
                    let rate = raw(&self.raw, tasks).await;
                    their_cpu.push((cpu_micros() - before) / (rate * support::window().as_secs_f64()));
                    // Redis counts the commands of a script separately, too.
                    let (_, set) = stats.stats(|name| name == "set").await;
                    let (cycles, scripts) = stats.stats(|name| name == "evalsha").await;
                    theirs.push(rate);
                    their_cost.push((set + scripts) / cycles);
                } else {
                    let rate = tenure(&self.locks, tasks).await;
                    cpu.push((cpu_micros() - before) / (rate * support::window().as_secs_f64()));
                    let (calls, scripts) = stats.stats(|name| name == "evalsha").await;
                    let cycles = rate * support::window().as_secs_f64();
                    ours.push(rate);
                    cost.push(scripts / cycles);
                    batch.push(2.0 * cycles / calls);
                }
            }
        }
        let ratio = median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs));
        let their_rate = median(theirs);
        let mut beside = vec![("cycles/s", median(ours)), ("raw", their_rate)];
        // If this is far below 1, the CPU is the limit, not the wire.
        beside.extend(
            self.limit
                .map(|limit| ("raw of the wire's limit", their_rate / (limit * tasks as f64))),
        );
        beside.extend([
            ("server µs/cycle", median(cost)),
            ("raw", median(their_cost)),
            ("own CPU µs/cycle", median(cpu)),
            ("raw", median(their_cpu)),
            ("requests/batch", median(batch)),
        ]);
        report.line(&format!("{tasks} tasks"), ratio, target, &beside);
    }

    /// Measures 100 tasks that compete for one key. `bench-compare/versions` has a bound for it.
    async fn hot(&self, report: &mut Report) {
        report.section(&format!(
            "{}: one key, 100 tasks of one process: times the rate of one task of raw",
            self.name
        ));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for pair in 0..support::pairs() {
            for turn in 0..2 {
                if (pair + turn) % 2 == 0 {
                    theirs.push(raw(&self.raw, 1).await);
                } else {
                    ours.push(scenes::hot(&self.locks, 100, support::window()).await);
                }
            }
        }
        let ratio = median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs));
        report.line(
            "100 tasks",
            ratio,
            Target::None,
            &[("cycles/s", median(ours)), ("raw", median(theirs))],
        );
    }
}

/// Measures one key in memory, compared with `tokio::sync::Mutex`: the cost of task switches alone.
async fn memory(report: &mut Report) {
    report.section("in memory: one key, 100 tasks of one process: times the rate of tokio::sync::Mutex");
    let locks = Locks::memory();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for pair in 0..support::pairs() {
        for turn in 0..2 {
            if (pair + turn) % 2 == 0 {
                theirs.push(scenes::tokio_mutex(100, support::window()).await);
            } else {
                ours.push(scenes::hot(&locks, 100, support::window()).await);
            }
        }
    }
    let ratio = median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs));
    let rates = [("cycles/s", median(ours)), ("tokio's Mutex", median(theirs))];
    report.line("100 tasks", ratio, Target::AtLeast(0.125), &rates);
}

/// Measures the median round trips that a layer adds to a request with its own key.
async fn layer(wire: &Wire, report: &mut Report) {
    report.section("behind 1 ms each way, a key per request: round trips that the layer adds to it");
    let locks = Locks::connect(&wire.url()).await.expect("the server is there");
    let trip = Raw::connect(&wire.url()).await.ping(200).await.as_secs_f64();
    let requests = if support::is_quick() { 20 } else { 1000 };
    let service = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let by = || LockLayer::by(&locks, |parts: &Parts| parts.uri.path().to_owned());
    let rows = [
        ("the answer does not wait", by(), Target::AtMost(1.1)),
        (
            "the same, runs to completion",
            by().run_to_completion(true),
            Target::AtMost(1.1),
        ),
        (
            "release before answer",
            by().release_before_answer(),
            Target::None,
        ),
    ];
    for (row, (what, layer, target)) in rows.into_iter().enumerate() {
        let added = added_by(layer.layer(service), row, requests).await;
        let beside = [("ms", added * 1e3), ("PING ms", trip * 1e3)];
        report.line(what, added / trip, target, &beside);
    }
    let two = LockLayer::by(&locks, |parts: &Parts| {
        let path = parts.uri.path();
        [("from", path.to_owned()), ("to", path.to_owned())]
    });
    let added = added_by(two.layer(service), 3, requests).await;
    let beside = [("ms", added * 1e3), ("PING ms", trip * 1e3)];
    report.line("two keys", added / trip, Target::AtMost(1.2), &beside);
}

/// Returns the median time in seconds that a layer adds to a request with a path of its own.
async fn added_by<S, B>(layered: S, row: usize, requests: usize) -> f64
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
{
    let bare_service = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let (mut bare, mut locked) = (Vec::new(), Vec::new());
    for n in 0..requests {
        let request = || Request::get(format!("/{row}/{n}")).body(()).expect("a request");
        let start = Instant::now();
        let Ok(response) = bare_service.oneshot(request()).await;
        bare.push(start.elapsed().as_secs_f64());
        assert_eq!(response.status(), 200);
        let start = Instant::now();
        let Ok(response) = layered.clone().oneshot(request()).await;
        locked.push(start.elapsed().as_secs_f64());
        assert_eq!(response.status(), 200);
    }
    median(locked) - median(bare)
}

/// A repeated operation. `n` is the number of earlier repetitions.
trait Cycle {
    fn run(&self, n: usize) -> Pin<Box<dyn Future<Output = ()> + '_>>;
}

impl<F: AsyncFn(usize)> Cycle for F {
    fn run(&self, n: usize) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self(n))
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// Measures each kind of lock on free keys: the round trips that the server counts, and the median time of a cycle relative to
/// a mutex.
async fn kinds(server: &RedisServer, wire: &Wire, report: &mut Report) {
    report.section("behind 0.25 ms each way, free keys: times the median of lock + release of a mutex");
    let locks = Locks::connect(&wire.url()).await.expect("the server is there");
    let mut stats = Raw::connect(&server.url()).await;
    let released = "the bench still holds the lock";
    let mutex = async |n: usize| {
        let guard = locks.mutex(n).lock().await.expect("a lock");
        guard.release().await.expect(released);
    };
    let read = async |n: usize| {
        let guard = locks.rw_lock(n).read().await.expect("a lock");
        guard.release().await.expect(released);
    };
    let write = async |n: usize| {
        let guard = locks.rw_lock(n).write().await.expect("a lock");
        guard.release().await.expect(released);
    };
    let downgrade = async |n: usize| {
        let guard = locks.rw_lock(n).write().await.expect("a lock");
        let guard = guard.downgrade().await.expect("still held");
        guard.release().await.expect(released);
    };
    let multi = async |n: usize| {
        let guard = locks.multi(5 * n..5 * n + 5).lock().await.expect("locks");
        guard.release().await.expect(released);
    };
    let permit = async |n: usize| {
        let guard = locks.semaphore(n, 3).acquire().await.expect("a permit");
        guard.release().await.expect(released);
    };
    let adopt = async |n: usize| {
        let guard = locks.mutex(n).lock().await.expect("a lock");
        let transfer = guard.into_transfer(MINUTE).await.expect("still held");
        let guard = locks
            .adopt(&transfer)
            .await
            .expect("the transfer was not adopted before");
        guard.release().await.expect(released);
    };
    let extend = async |n: usize| {
        let guard = locks.mutex(n).lock().await.expect("a lock");
        let transfer = guard.into_transfer(MINUTE).await.expect("still held");
        locks
            .extend_transfer(&transfer, 2 * MINUTE)
            .await
            .expect("still there");
        locks.release_transfer(&transfer).await.expect(released);
    };
    let count_down = async |n: usize| {
        let latch = locks.latch(n).life(Duration::from_secs(1));
        assert!(latch.try_set_count(1).await.expect("a latch"));
        assert_eq!(latch.count_down().await.expect("the latch is set"), 0);
    };
    let guarded = async |n: usize| {
        let guard = locks.mutex(n).lock().await.expect("a lock");
        let write = guard.atomically().command("SET").key("written").arg(n);
        write.query::<()>().await.expect("still held");
        guard.release().await.expect(released);
    };
    let proclaim = async |n: usize| {
        let election = locks.election(n);
        let guard = election.campaign().await.expect("no other candidate");
        election
            .proclaim("10.0.0.7:8080")
            .await
            .expect("the leader may proclaim");
        guard.release().await.expect(released);
    };
    let cycles: [(&str, f64, f64, &dyn Cycle); 11] = [
        ("a mutex", 2.0, 1.0, &mutex),
        ("a reader", 2.0, 1.1, &read),
        ("a writer", 2.0, 1.1, &write),
        ("a writer that goes on as a reader", 3.0, 1.65, &downgrade),
        ("five keys at once", 2.0, 1.25, &multi),
        ("a permit", 2.0, 1.1, &permit),
        ("a lock that is given up and adopted", 4.0, 2.2, &adopt),
        ("one that is given up, extended and given back", 4.0, 2.2, &extend),
        ("a latch that is set and counted down", 2.0, 1.1, &count_down),
        ("a lock and a write under it", 3.0, 1.65, &guarded),
        ("a leader that proclaims something", 3.0, 1.65, &proclaim),
    ];
    let rounds = if support::is_quick() { 5 } else { 400 };
    let mut times = cycles.map(|_| Vec::new());
    let (mut trips, mut micros) = (cycles.map(|_| 0.0), cycles.map(|_| Vec::new()));
    for round in 0..=rounds {
        for (at, (.., cycle)) in cycles.iter().enumerate() {
            stats.forget_stats().await;
            let start = Instant::now();
            cycle.run(round).await;
            let took = start.elapsed().as_secs_f64();
            // The first round loads scripts and warms up caches.
            if round > 0 {
                times[at].push(took);
                let (calls, spent) = stats.stats(|name| name == "evalsha").await;
                trips[at] += calls / rounds as f64;
                micros[at].push(spent);
            }
        }
    }
    let (base, server_base) = (median(times[0].clone()), median(micros[0].clone()));
    for (at, (what, wanted, most, _)) in cycles.into_iter().enumerate() {
        assert!((trips[at] - wanted).abs() < 1e-6, "{what}: {} trips", trips[at]);
        let (time, spent) = (median(times[at].clone()), median(micros[at].clone()));
        let beside = [
            ("trips", trips[at]),
            ("ms", time * 1e3),
            ("server µs", spent),
            ("times a mutex's", spent / server_base),
        ];
        // One more round trip adds half of the time of a mutex.
        report.line(what, time / base, Target::AtMost(most), &beside);
        if let "a reader" | "a permit" = what {
            let shared = format!("{what}: server time");
            report.line(&shared, spent / server_base, Target::AtMost(2.2), &[]);
        }
    }
}

/// Measures the server time of a cycle, by the size of the batches of requests.
async fn cycles_on_the_server(server: &RedisServer, report: &mut Report) {
    report.section("lock + release of so many keys at once: server µs per cycle, by INFO commandstats");
    let locks = Locks::connect(&server.url()).await.expect("the server is there");
    let mut raw = Raw::connect(&server.url()).await;
    for size in [1, 16, 64] {
        let (mut cost, mut batch) = (Vec::new(), Vec::new());
        for _ in 0..support::pairs() {
            let rounds = if support::is_quick() { 10 } else { 4000 / size };
            let (micros, requests) = scenes::in_step(&locks, size, rounds, &mut raw).await;
            cost.push(micros);
            batch.push(requests);
        }
        let batch = [("requests/batch", median(batch))];
        report.line(&format!("{size} at once"), median(cost), Target::None, &batch);
    }
}

/// Measures the server's cost of a hand-over between two nodes.
async fn hand_overs_on_the_server(server: &RedisServer, report: &mut Report) {
    report
        .section("a claim that queues and a leave that hands over, two nodes: the server's share of a pair");
    let mut raw = Raw::connect(&server.url()).await;
    let mut pairs = Vec::new();
    for _ in 0..support::pairs() {
        let windows = if support::is_quick() { 1 } else { 5 };
        pairs.push(scenes::hand_overs(&server.url(), windows, &mut raw).await);
    }
    let of = |f: fn(&scenes::HandOver) -> f64| median(pairs.iter().map(f));
    report.line(
        "commands, EVALSHA and those called from Lua",
        of(|pair| pair.commands),
        Target::AtMost(19.0),
        &[
            ("EVALSHA", of(|pair| pair.scripts)),
            ("grants pushed", of(|pair| pair.pushed)),
        ],
    );
    report.line("server µs", of(|pair| pair.micros), Target::None, &[]);
    println!("  {}", pairs[0].calls.join(" "));
}

// Two child processes compete for one key, as the parent process tells them. In steady contention each child has two tasks
// that lock and release, without local hand-over. The queue always has a waiter, so each release hands over to the other
// child. The time of a hand-off is the window divided by the number of changes of owner. It is compared with the round trip of
// the raw script, which one task calls in a closed loop in the same round. That round trip is measured in one child while the
// other idles, and in both at once, because a hand-off keeps both awake.
//
// A lone hand-off lasts from the release of one child until the other child holds the key, with a pause before each release.
// Round trips are measured at the same pace, because a core that went to sleep takes longer to answer.

/// How long a child holds the key: long enough for the other child to queue again.
const HOLD: Duration = Duration::from_millis(1);

fn hand_offs() -> usize {
    if support::is_quick() { 5 } else { 60 }
}

fn nanos() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Reads from standard input what to measure. Writes lines of figures, then `end`.
async fn hand_off_child(url: &str) {
    let locks = Locks::connect(url).await.expect("the server is there");
    let unsharing = Locks::builder().burst(1, Duration::ZERO).connect(url);
    let unsharing = unsharing.await.expect("the server is there");
    let mut raw = Raw::connect(url).await;
    let mut out = std::io::stdout();
    for line in std::io::stdin().lines() {
        let lines = match line.expect("the parent writes lines of UTF-8").as_str() {
            "trips" => vec![closed_loop(&mut raw).await],
            "contend" => contend(&unsharing.mutex("contended")).await,
            "spaced trips" => vec![spaced_trips(&mut raw).await],
            "hand over" => hand_over(&locks.mutex("handed over")).await,
            other => panic!("unknown command from the parent: {other}"),
        };
        out.write_all((lines.concat() + "end\n").as_bytes())
            .expect("the parent reads the output");
        out.flush().expect("the parent reads the output");
    }
}

/// Returns the round trip of the raw script in a closed loop: the window divided by the calls, as for hand-offs.
async fn closed_loop(raw: &mut Raw) -> String {
    let (start, mut calls) = (nanos(), 0);
    let window = support::window().as_nanos() as i64;
    while nanos() - start < window {
        raw.release("free", TOKEN).await;
        calls += 1;
    }
    format!("{}\n", (nanos() - start) / calls)
}

/// Returns each grant of a window: its number, and the time of the grant in nanoseconds.
async fn contend(mutex: &Mutex) -> Vec<String> {
    let (stop, held) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(StdMutex::new(Vec::new())),
    );
    let tasks = [(); 2].map(|()| {
        let (mutex, stop, held) = (mutex.clone(), stop.clone(), held.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = mutex.lock().await.expect("a lock");
                let holding = (guard.fence().number(), nanos());
                held.lock().expect("no panics").push(holding);
                guard.release().await.expect("a release in time");
            }
        })
    });
    tokio::time::sleep(support::window()).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a task of the bench");
    }
    let held = held.lock().expect("no panics");
    held.iter()
        .map(|(number, at)| format!("{number} {at}\n"))
        .collect()
}

/// Returns the median round trips of PING and of the raw script, with a pause before each.
async fn spaced_trips(raw: &mut Raw) -> String {
    let (mut pings, mut scripts) = (Vec::new(), Vec::new());
    for _ in 0..hand_offs() {
        tokio::time::sleep(HOLD).await;
        let start = nanos();
        raw.run::<()>(&redis::cmd("PING")).await;
        pings.push((nanos() - start) as f64);
        tokio::time::sleep(HOLD).await;
        let start = nanos();
        raw.release("free", TOKEN).await;
        scripts.push((nanos() - start) as f64);
    }
    format!("{} {}\n", median(pings), median(scripts))
}

/// Returns for each holding the time of the grant and the time of the release, in nanoseconds.
async fn hand_over(mutex: &Mutex) -> Vec<String> {
    let mut holdings = Vec::new();
    for _ in 0..hand_offs() {
        let guard = mutex.lock().await.expect("a lock");
        let held = nanos();
        tokio::time::sleep(HOLD).await;
        let released = nanos();
        guard.release().await.expect("a release in time");
        holdings.push(format!("{held} {released}\n"));
    }
    holdings
}

struct Child {
    process: std::process::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Child {
    fn start(url: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["child", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child process");
        let out = process.stdout.take().expect("its output");
        Child {
            process,
            lines: BufReader::new(out).lines(),
        }
    }

    fn tell(&mut self, word: &str) {
        let input = self.process.stdin.as_mut().expect("its input");
        writeln!(input, "{word}").expect("the child reads its input");
    }

    fn hear(&mut self) -> Vec<Vec<f64>> {
        let line = || {
            self.lines
                .next()
                .expect("a line from the child")
                .expect("a line from the child")
        };
        let numbers = |line: String| line.split(' ').map(|n| n.parse().expect("a number")).collect();
        std::iter::repeat_with(line)
            .take_while(|line| line != "end")
            .map(numbers)
            .collect()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a command to both children at once, and returns both answers.
fn both(children: &mut [Child; 2], word: &str) -> [Vec<Vec<f64>>; 2] {
    children.iter_mut().for_each(|child| child.tell(word));
    children.each_mut().map(Child::hear)
}

async fn hand_off(url: &str, place: &str, target: Target, report: &mut Report) {
    let mut children = [Child::start(url), Child::start(url)];
    let mut steady = Vec::new();
    let mut alone = Vec::new();
    for round in 0..=support::pairs() {
        let figures = (
            steady_hand_offs(&mut children, round),
            lone_hand_offs(&mut children, round),
        );
        // The first round warms up caches and connections.
        if round > 0 {
            steady.push(figures.0);
            alone.push(figures.1);
        }
    }
    report.section(&format!(
        "{place}: one hot key between two processes that both always want it, a hand-off in round trips"
    ));
    let of = |f: fn(&Steady) -> f64| median(steady.iter().map(f));
    report.line(
        "of one process's round trips",
        of(|s| s.hand_off / s.trip),
        target,
        &[
            ("µs", of(|s| s.hand_off / 1000.0)),
            ("EVALSHA µs", of(|s| s.trip / 1000.0)),
            ("grants per change", of(|s| s.grants_per_change)),
        ],
    );
    report.line(
        "of both processes' at once",
        of(|s| s.hand_off / s.trip_of_both),
        Target::None,
        &[("EVALSHA µs", of(|s| s.trip_of_both / 1000.0))],
    );
    report.section(&format!(
        "{place}: one key, two processes, each holding for a millisecond, a hand-off in round trips"
    ));
    let of = |f: fn(&[f64; 3]) -> f64| median(alone.iter().map(f));
    let micros = [
        ("µs", of(|[hand_off, ..]| hand_off / 1000.0)),
        ("EVALSHA µs", of(|[_, _, script]| script / 1000.0)),
        ("PING µs", of(|[_, ping, _]| ping / 1000.0)),
    ];
    let ratio = of(|[hand_off, _, script]| hand_off / script);
    report.line("of a small script's round trips", ratio, Target::None, &micros);
    let ratio = of(|[hand_off, ping, _]| hand_off / ping);
    report.line("of PING's round trips", ratio, Target::None, &[]);
}

/// Measures the time from a revoke to the next holder on another node, whose holder before leaves as soon as it learns of it.
async fn steals(wire: &Wire, target: Target, report: &mut Report) {
    let (url, place) = (wire.url(), place_of(wire));
    let connect = async || Locks::connect(&url).await.expect("the server is there");
    let (holders, next) = (connect().await, connect().await);
    let trip = Raw::connect(&url).await.ping(200).await.as_secs_f64();
    let mut took = Vec::new();
    for round in 0..hand_offs() {
        let key = format!("stolen:{round}");
        let guard = holders.mutex(&*key).lock().await.expect("a lock");
        let mutex = next.mutex(&*key);
        let waiting = tokio::spawn(async move {
            let guard = mutex.lock().await.expect("a lock");
            (guard, Instant::now())
        });
        let inspection = next.inspect();
        // The operator sees that a node waits, and that the holder's node can be told.
        let entry = loop {
            let page = inspection.show(&*key).await.expect("the server is there");
            let is_ready = |entry: &Entry| {
                let told = |holder: &HolderEntry| holder.node.presence.is_some();
                entry.waiter_count == 1 && entry.holders.iter().all(told)
            };
            if let Some(entry) = page.entries.into_iter().find(is_ready) {
                break entry;
            }
        };
        let work = tokio::spawn(async move {
            guard.lost().await;
            drop(guard);
        });
        let start = Instant::now();
        let steal = inspection.steal(&entry).grace(Duration::ZERO);
        let stealing = tokio::spawn(steal.into_future());
        let (guard, got) = waiting.await.expect("a task of the bench");
        took.push((got - start).as_secs_f64());
        work.await.expect("a task of the bench");
        guard.release().await.expect("a release in time");
        stealing
            .await
            .expect("a task of the bench")
            .expect("the lease is taken");
    }
    report.section(&format!(
        "{place}: a lease is revoked, its holder leaves at once; the next holder in round trips after the revoke began"
    ));
    let took = median(took);
    let micros = [("µs", took * 1e6), ("PING µs", trip * 1e6)];
    report.line("of PING's round trips", took / trip, target, &micros);
}

/// The figures of one round in steady contention. Times are in nanoseconds.
struct Steady {
    hand_off: f64,
    grants_per_change: f64,
    trip: f64,
    trip_of_both: f64,
}

fn steady_hand_offs(children: &mut [Child; 2], round: usize) -> Steady {
    let one = &mut children[round % 2];
    one.tell("trips");
    let trip = one.hear()[0][0];
    let grants = both(children, "contend");
    let trips = both(children, "trips");
    // Grant number, time, child. Only grants while both children compete count.
    let begin = f64::max(grants[0][0][1], grants[1][0][1]);
    let last = |lines: &Vec<Vec<f64>>| lines.last().expect("each child had a grant")[1];
    let end = f64::min(last(&grants[0]), last(&grants[1]));
    let mut grants: Vec<(f64, f64, usize)> = grants
        .iter()
        .enumerate()
        .flat_map(|(who, lines)| lines.iter().map(move |line| (line[0], line[1], who)))
        .filter(|(_, at, _)| (begin..=end).contains(at))
        .collect();
    grants.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(
        grants.windows(2).all(|pair| pair[0].1 < pair[1].1),
        "grants are not in the order of their numbers"
    );
    let changes = grants.windows(2).filter(|pair| pair[0].2 != pair[1].2).count() as f64;
    Steady {
        hand_off: (end - begin) / changes,
        grants_per_change: (grants.len() - 1) as f64 / changes,
        trip,
        trip_of_both: (trips[0][0][0] + trips[1][0][0]) / 2.0,
    }
}

/// Runs one round with pauses. Returns the median hand-off, and the round trips of PING and of the raw script.
fn lone_hand_offs(children: &mut [Child; 2], round: usize) -> [f64; 3] {
    let one = &mut children[round % 2];
    one.tell("spaced trips");
    let trips = one.hear();
    // Time of the grant, time of the release, child.
    let mut holdings: Vec<(f64, f64, usize)> = Vec::new();
    for (who, lines) in both(children, "hand over").iter().enumerate() {
        holdings.extend(lines.iter().map(|line| (line[0], line[1], who)));
    }
    holdings.sort_by(|a, b| a.0.total_cmp(&b.0));
    let between: Vec<f64> = holdings
        .windows(2)
        .filter(|pair| pair[0].2 != pair[1].2)
        .map(|pair| pair[1].0 - pair[0].1)
        .collect();
    assert!(
        between.iter().all(|&nanos| nanos > 0.0),
        "both children held the key at once"
    );
    [median(between), trips[0][0], trips[0][1]]
}

/// Runs one side alone. Counts how often the future of a cycle is polled.
async fn profile(url: &str, side: &str, tasks: usize, time: Duration) {
    static CYCLES: AtomicU64 = AtomicU64::new(0);
    static POLLS: AtomicU64 = AtomicU64::new(0);
    async fn counted(cycle: impl Future<Output = ()>) {
        let mut cycle = pin!(cycle);
        let polls = std::future::poll_fn(|cx| {
            POLLS.fetch_add(1, Ordering::Relaxed);
            cycle.as_mut().poll(cx).map(|()| Poll::Ready(()))
        });
        let _ = polls.await;
        CYCLES.fetch_add(1, Ordering::Relaxed);
    }
    let mut peer = Raw::connect(url).await;
    let start = Instant::now();
    if side == "raw" {
        let cycle = |task: usize| {
            let (raw, key) = (peer.clone(), format!("raw:{task}"));
            move || {
                let (mut raw, key) = (raw.clone(), key.clone());
                counted(async move { raw.lock_and_release(&key, TOKEN).await })
            }
        };
        rate(tasks, time, cycle).await;
    } else {
        let locks = Locks::connect(url).await.expect("the server is there");
        peer.forget_stats().await;
        let cycle = |task: usize| {
            let mutex = locks.mutex(if side == "hot" {
                "hot".to_owned()
            } else {
                format!("own:{task}")
            });
            move || counted(lock_and_release(mutex.clone()))
        };
        rate(tasks, time, cycle).await;
    }
    let (cycles, polls) = (
        CYCLES.load(Ordering::Relaxed) as f64,
        POLLS.load(Ordering::Relaxed) as f64,
    );
    let (calls, micros) = peer.stats(|name| name == "evalsha").await;
    println!(
        "{side} {tasks} tasks: cycles {cycles}, cycles/s {:.0}, polls/cycle {:.2}, scripts/cycle {:.3}, script µs/cycle {:.2}",
        cycles / start.elapsed().as_secs_f64(),
        polls / cycles,
        calls / cycles,
        micros / cycles
    );
}
