//! A server that comes back with an older copy of what it had acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::testing::fire_tick;
use tenure::{Locks, Tick};
use tokio_cron_scheduler::Job;

use crate::help::{locks, ms, soon};
use crate::server::RedisServer;
use crate::support::events::Watch;

/// A replica with the job, whose ticks are fired by hand.
async fn replica(url: &str, runs: &Arc<AtomicUsize>) -> (Locks, Job) {
    let (locks, runs) = (locks(url, ms(10_000)).await, runs.clone());
    let job = locks
        .cron("restored", "0 0 0 1 1 *")
        .lease(ms(2_000))
        .run(move |_: Tick| {
            runs.fetch_add(1, Ordering::SeqCst);
            async {}
        });
    (locks, job.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_stays_so_when_the_server_comes_back_with_an_older_copy() {
    let (mut server, runs, watch) = (RedisServer::start(), Arc::default(), Watch::of("job=restored "));
    let (knows, _job) = replica(&server.url(), &runs).await;
    let hour = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3_600;
    let tick = |back: u64| UNIX_EPOCH + Duration::from_secs((hour - back) * 3_600);
    assert_eq!(soon(fire_tick(&knows, "restored", tick(3))).await, "done");
    // As a backup, or a replica that was behind when it was promoted.
    redis::cmd("SAVE").exec(&mut server.client()).unwrap();
    assert_eq!(soon(fire_tick(&knows, "restored", tick(2))).await, "done");
    server.restart();
    let told = soon(watch.until("store_went_back")).await;
    assert!(
        told.text.contains(&format!("tick_ms={}", (hour - 2) * 3_600_000)),
        "{told:?}"
    );
    // Who was started since, and knows nothing, hears of it.
    let (new, _job) = replica(&server.url(), &runs).await;
    assert_eq!(soon(fire_tick(&new, "restored", tick(2))).await, "elsewhere");
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(soon(fire_tick(&new, "restored", tick(1))).await, "done");
    let memory: Vec<String> = redis::cmd("KEYS")
        .arg("tenure1:j:*")
        .query(&mut server.client())
        .unwrap();
    let mark: String = redis::cmd("HGET")
        .arg(&memory[0])
        .arg("mark")
        .query(&mut server.client())
        .unwrap();
    assert_eq!(mark, ((hour - 1) * 3_600_000).to_string());
}
