//! The cost of a lock + release on Redis for the client process, compared with raw redis-rs: allocations, bytes and CPU time
//! per cycle, of all threads. Unlike rates, these figures are meaningful on a busy machine.
//!
//! `cargo bench --bench allocations`
#![allow(clippy::too_many_lines, clippy::type_complexity)]
#![allow(clippy::disallowed_methods)]

mod support;

use std::alloc::System;

use rustix::time::{ClockId, clock_gettime};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::server::RedisServer;
use support::{Raw, Report, Target, median};
use tenure::Locks;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const TOKEN: &str = "5f0c3a52d7e84d0f9a61";

fn main() {
    if !support::is_wanted() {
        return;
    }
    let server = RedisServer::start();
    let mut report = Report::new("allocations");
    support::runtime().block_on(cycles(&server.url(), &mut report));
    report.write(env!("CARGO_TARGET_TMPDIR"));
}

/// Returns the allocations, the bytes and the CPU microseconds per cycle of one window.
async fn cost<F: Future<Output = usize>>(window: F) -> [f64; 3] {
    let region = Region::new(ALLOCATOR);
    let start = cpu_micros();
    let cycles = window.await as f64;
    let (micros, change) = (cpu_micros() - start, region.change());
    [
        (change.allocations + change.reallocations) as f64 / cycles,
        change.bytes_allocated as f64 / cycles,
        micros / cycles,
    ]
}

fn cpu_micros() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Runs `tasks` tasks of `cycles` cycles each, and returns the number of all cycles.
async fn all<F>(tasks: usize, cycles: usize, task: impl Fn(usize) -> F) -> usize
where
    F: Future<Output = ()> + Send + 'static,
{
    let running: Vec<_> = (0..tasks).map(|n| tokio::spawn(task(n))).collect();
    for task in running {
        task.await.expect("a task of the bench");
    }
    tasks * cycles
}

async fn cycles(url: &str, report: &mut Report) {
    let locks = Locks::connect(url).await.expect("the server is there");
    let raw = Raw::connect(url).await;
    report.section("a key per task, lock + release: allocations per cycle");
    for tasks in [1, 100] {
        let cycles = if support::is_quick() { 200 } else { 10_000 } / tasks;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=support::pairs() {
            let tenure = cost(all(tasks, cycles, |task| {
                let mutex = locks.mutex(format!("own:{task}"));
                async move {
                    for _ in 0..cycles {
                        let guard = mutex.lock().await.expect("a free lock");
                        guard.release().await.expect("a release in time");
                    }
                }
            }));
            let tenure = tenure.await;
            let raw = cost(all(tasks, cycles, |task| {
                let (mut raw, key) = (raw.clone(), format!("raw:{task}"));
                async move {
                    for _ in 0..cycles {
                        raw.lock_and_release(&key, TOKEN).await;
                    }
                }
            }));
            let raw = raw.await;
            // The first round warms up caches and connections.
            if round > 0 {
                ours.push(tenure);
                theirs.push(raw);
            }
        }
        let of = |costs: &[[f64; 3]], what: usize| median(costs.iter().map(|cost| cost[what]));
        report.line(
            &format!("{tasks} tasks"),
            of(&ours, 0),
            Target::None,
            &[
                ("raw", of(&theirs, 0)),
                ("bytes", of(&ours, 1)),
                ("raw", of(&theirs, 1)),
                ("CPU µs", of(&ours, 2)),
                ("raw", of(&theirs, 2)),
            ],
        );
    }
}
