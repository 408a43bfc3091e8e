//! Many jobs that are due in one second: each is run once, and nobody asks more than he must.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::help::{addr, locks, ms, now, soon, url};
use crate::server::RedisServer;
use crate::support::jobs::ByHand;
use crate::support::proxy::Direction::{Replies, Requests};
use crate::support::proxy::{Flow, Proxy};

const JOBS: usize = 1_000;
const NODES: usize = 3;

fn calls(client: &mut redis::Connection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(client).unwrap();
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// On this machine a store answers before much has gathered, and behind a wire later: each command carries many all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_jobs_that_are_due_in_one_second_are_run_once_each() {
    const CLAIMS_PER_CALL: u64 = 8;
    // By the session's rule: a node sends so often at most, but for batches that are full, of 128 requests.
    const GATHERS: Duration = ms(20);
    const FULL: u64 = 2 * (JOBS * NODES) as u64 / 128;
    // Whoever stood by asks after a third of the lease, some sooner and some later.
    const STANDBYS: Duration = ms(1_200);
    for wire in [ms(0), ms(1), ms(2)] {
        let (claims, calls, took) = run_many(wire).await;
        println!(
            "{claims} claims, their ends and waits in {calls} calls, over a wire of {wire:?} each way, in {took:?}"
        );
        // A machine that takes seconds until all have run has little to gather.
        let batches = (took + STANDBYS).div_duration_f64(GATHERS) as u64 + 2;
        let by_rule = NODES as u64 * batches + FULL;
        let allowed = by_rule.max(claims / CLAIMS_PER_CALL);
        assert!(
            calls <= allowed,
            "{calls} calls for {claims} claims, of {allowed} in {took:?}"
        );
    }
}

/// Runs all of them once, and says how many claims that were, how many calls, and how long it took until the last had
/// run.
async fn run_many(wire: Duration) -> (u64, u64, Duration) {
    let server = RedisServer::start();
    let mut client = server.client();
    let proxy = Proxy::start(addr(&server));
    if !wire.is_zero() {
        proxy.set(Requests, Flow::Delay(wire));
        proxy.set(Replies, Flow::Delay(wire));
    }
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async("0 0 0 1 1 *", |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    let runs: Arc<Vec<AtomicUsize>> = Arc::new((0..JOBS).map(|_| AtomicUsize::new(0)).collect());
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        let locks = locks(&url(proxy.addr()), ms(30_000)).await;
        let fires: Vec<_> = (0..JOBS)
            .map(|n| {
                let runs = runs.clone();
                let work = move |_| {
                    runs[n].fetch_add(1, Ordering::SeqCst);
                    async {}
                };
                locks.job(format!("one of many {n}"), work).unwrap()
            })
            .collect();
        nodes.push((locks, fires));
    }
    let (before, began) = (calls(&mut client), now());
    let mut pursuits = JoinSet::new();
    for (_, fires) in &mut nodes {
        for fire in fires {
            pursuits.spawn(fire(id, scheduler.clone()));
        }
    }
    let all_ran = async {
        while runs
            .iter()
            .map(|times| times.load(Ordering::SeqCst))
            .sum::<usize>()
            < JOBS
        {
            sleep(ms(2)).await;
        }
        now() - began
    };
    let all_told = async { while pursuits.join_next().await.is_some() {} };
    let (took, ()) = soon(async { tokio::join!(all_ran, all_told) }).await;
    let calls = calls(&mut client) - before;
    let times: Vec<usize> = runs.iter().map(|times| times.load(Ordering::SeqCst)).collect();
    assert!(times.iter().all(|times| *times == 1), "{times:?}");
    ((JOBS * NODES) as u64, calls, took)
}
