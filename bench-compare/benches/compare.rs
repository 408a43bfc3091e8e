//! Compares tenure with rslock 0.10, the Redis lock that Rust services use most. Both use the bench's own Redis. Their windows
//! alternate, so that other load on the machine affects both.
//!
//! `cargo bench --manifest-path bench-compare/Cargo.toml`
#![allow(clippy::disallowed_methods)]

#[path = "../../benches/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use rslock::LockManager;
use support::server::RedisServer;
use support::{Raw, Report, Target, median, rate};
use tenure::Locks;

const TOKEN: &str = "5f0c3a52d7e84d0f9a61";
const TTL: Duration = Duration::from_secs(10);

fn main() {
    if !support::is_wanted() {
        return;
    }
    let server = RedisServer::as_service();
    let mut report = Report::new("compare");
    support::runtime().block_on(async {
        let peers = Peers {
            raw: Raw::connect(&server.url()).await,
            locks: Locks::connect(&server.url()).await.expect("the server is there"),
            manager: LockManager::new(vec![server.url()]),
        };
        if support::asks_for("keys") {
            peers.keys(&mut report).await;
        }
        peers.hot(&mut report).await;
        peers.everybody(&mut report).await;
    });
    report.write(env!("CARGO_TARGET_TMPDIR"));
}

struct Peers {
    raw: Raw,
    locks: Locks,
    manager: LockManager,
}

/// Which key a task uses.
#[derive(Clone, Copy)]
enum Keys {
    Own,
    Hot,
}

impl Keys {
    fn name(self, prefix: &str, task: usize) -> String {
        match self {
            Keys::Own => format!("{prefix}:{task}"),
            Keys::Hot => format!("{prefix}:hot"),
        }
    }
}

impl Peers {
    async fn tenure(&self, tasks: usize, keys: Keys) -> f64 {
        let cycle = |task: usize| {
            let mutex = self.locks.mutex(keys.name("tenure", task));
            move || {
                let mutex = mutex.clone();
                async move {
                    let guard = mutex.lock().await.expect("a lock");
                    std::hint::black_box(guard.fence());
                    guard.release().await.expect("a release in time");
                }
            }
        };
        rate(tasks, support::window(), cycle).await
    }

    async fn rslock(&self, tasks: usize, keys: Keys) -> f64 {
        let cycle = |task: usize| {
            let (manager, key) = (self.manager.clone(), keys.name("rslock", task).into_bytes());
            move || {
                let (manager, key) = (manager.clone(), key.clone());
                async move {
                    // rslock retries in its own loop until it has the lock. It has no fences and no renewal.
                    let lock = manager.acquire_no_guard(&key[..], TTL).await.expect("a lock");
                    manager.unlock(&lock).await;
                }
            }
        };
        rate(tasks, support::window(), cycle).await
    }

    async fn raw(&self, tasks: usize) -> f64 {
        let cycle = |task: usize| {
            let (raw, key) = (self.raw.clone(), Keys::Own.name("raw", task));
            move || {
                let (mut raw, key) = (raw.clone(), key.clone());
                async move { raw.lock_and_release(&key, TOKEN).await }
            }
        };
        rate(tasks, support::window(), cycle).await
    }

    async fn keys(&self, report: &mut Report) {
        report.section("a key per task, lock + release: times the rate of rslock");
        for tasks in [1, 10, 100, 1000] {
            let mut rounds: Vec<[f64; 3]> = Vec::new();
            for round in 0..=support::pairs() {
                let mut rates = [0.0; 3];
                for turn in 0..3 {
                    let who = (round + turn) % 3;
                    rates[who] = match who {
                        0 => self.tenure(tasks, Keys::Own).await,
                        1 => self.rslock(tasks, Keys::Own).await,
                        _ => self.raw(tasks).await,
                    };
                }
                // The first round warms up caches, allocators and connections.
                if round > 0 {
                    rounds.push(rates);
                }
            }
            let of = |over: usize, under: usize| median(rounds.iter().map(|r| r[over] / r[under]));
            report.line(
                &format!("{tasks} tasks"),
                of(0, 1),
                Target::None,
                &[
                    ("tenure of raw", of(0, 2)),
                    ("rslock of raw", of(1, 2)),
                    ("raw/s", median(rounds.iter().map(|r| r[2]))),
                ],
            );
        }
    }

    async fn hot(&self, report: &mut Report) {
        report.section("one key, 100 tasks of one process: times the rate of rslock");
        let (mut ours, mut theirs, mut local) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..support::pairs() {
            for turn in 0..3 {
                match (pair + turn) % 3 {
                    0 => theirs.push(self.rslock(100, Keys::Hot).await),
                    1 => ours.push(self.tenure(100, Keys::Hot).await),
                    _ => local.push(tokio_mutex(100).await),
                }
            }
        }
        let ratio = median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs));
        report.line(
            "100 tasks",
            ratio,
            Target::AtLeast(100.0),
            &[
                ("cycles/s", median(ours)),
                ("rslock", median(theirs)),
                ("tokio's own Mutex, no lease at all", median(local)),
            ],
        );
    }

    /// Measures the time until each of 100 tasks has had the lock ten times. Cycles per window would favour a lock that lets
    /// other tasks starve.
    async fn everybody(&self, report: &mut Report) {
        report.section("one key, until each of 100 tasks had it 10 times: rslock's time in ours");
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for pair in 0..support::pairs() {
            for turn in 0..2 {
                let is_ours = (pair + turn) % 2 == 0;
                let start = Instant::now();
                let tasks: Vec<_> = (0..100).map(|_| tokio::spawn(self.ten_times(is_ours))).collect();
                for task in tasks {
                    task.await.expect("a task of the bench");
                }
                let millis = start.elapsed().as_secs_f64() * 1000.0;
                if is_ours {
                    ours.push(millis)
                } else {
                    theirs.push(millis)
                }
            }
        }
        let ratio = median(theirs.iter().zip(&ours).map(|(theirs, ours)| theirs / ours));
        let times = [("ms", median(ours)), ("rslock", median(theirs))];
        report.line("100 tasks", ratio, Target::AtLeast(100.0), &times);
    }

    fn ten_times(&self, is_ours: bool) -> impl Future<Output = ()> + Send + 'static {
        let (mutex, manager) = (self.locks.mutex("ten times"), self.manager.clone());
        async move {
            for _ in 0..10 {
                // Other tasks run while the key is held, as with real work.
                if is_ours {
                    let guard = mutex.lock().await.expect("a lock");
                    tokio::task::yield_now().await;
                    guard.release().await.expect("a release in time");
                } else {
                    let lock = manager
                        .acquire_no_guard(&b"ten times: rslock"[..], TTL)
                        .await
                        .expect("a lock");
                    tokio::task::yield_now().await;
                    manager.unlock(&lock).await;
                }
            }
        }
    }
}

/// Returns the cycles per second of tasks that compete for a `tokio::sync::Mutex`: the cost of task switches alone.
async fn tokio_mutex(tasks: usize) -> f64 {
    let mutex = std::sync::Arc::new(tokio::sync::Mutex::new(0_u64));
    let cycle = |_| {
        let mutex = mutex.clone();
        move || {
            let mutex = mutex.clone();
            async move { *mutex.lock().await += 1 }
        }
    };
    rate(tasks, support::window(), cycle).await
}
