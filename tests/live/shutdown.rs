//! A shutdown ends when everything has ended by itself, at the latest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::Locks;
use tokio::sync::Notify;
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::help::{Canary, addr, held, locks, ms, now, soon, until, url};
use crate::server::RedisServer;
use crate::support::proxy::Proxy;

const LEASE: Duration = ms(3_000);

/// What is left of a lease, its margin, and a second. And as much again for a slow machine.
const BOUND: Duration = ms(2 * (3_000 + 300 + 1_000));

async fn ends_in_time(locks: &Locks) {
    let (canary, began) = (Canary::start(), now());
    let ended = tokio::time::timeout(4 * BOUND, locks.shutdown()).await;
    let (took, stall) = (now() - began, canary.worst());
    assert!(
        ended.is_ok() && took < BOUND + 2 * stall,
        "it took {took:?} with stalls of {stall:?}, and ended: {}",
        ended.is_ok()
    );
}

/// A job whose run ended while the server was away is nothing to wait for longer than for its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ended_in_an_outage_is_not_waited_for() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let locks = Locks::builder().lease(LEASE).redis(&url(proxy.addr())).await;
    let locks = locks.unwrap();
    let (begins, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (began, end) = (begins.clone(), goes_on.clone());
    let work = move |_| {
        let (begins, goes_on) = (begins.clone(), goes_on.clone());
        async move {
            begins.notify_one();
            goes_on.notified().await;
        }
    };
    let mut fire = locks.job_with("ends in an outage", LEASE, work).unwrap();
    // One that never fires: it is called by hand.
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async("0 0 0 1 1 *", |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler));
    soon(began.notified()).await;
    proxy.refuse(true);
    proxy.reset();
    end.notify_one();
    soon(pursuit).await.unwrap();
    ends_in_time(&locks).await;
}

/// Nor are locks, held or given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_in_an_outage_are_not_waited_for() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let locks = Locks::builder().lease(LEASE).redis(&url(proxy.addr())).await;
    let locks = locks.unwrap();
    let held_on = held(&locks, "a").await;
    let dropped = held(&locks, "b").await;
    proxy.refuse(true);
    proxy.reset();
    drop(dropped);
    ends_in_time(&locks).await;
    assert!(!held_on.is_held());
}

/// Who stood by for several ticks of a job withdraws from one after the other. Nothing but its timer makes the driver look up
/// between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stood_by_for_several_ticks_is_not_waited_for() {
    // Far below the time that a request has, 10 s here, at whose end the driver looks up in any case.
    const BOUND: Duration = ms(3_000);
    const TICKS: usize = 4;
    let server = RedisServer::start();
    let nodes = [
        locks(&url(addr(&server)), LEASE).await,
        locks(&url(addr(&server)), LEASE).await,
    ];
    let ran = Arc::new(AtomicUsize::new(0));
    let mut schedulers = Vec::new();
    for locks in &nodes {
        let ran = ran.clone();
        let work = move |_| {
            ran.fetch_add(1, Ordering::SeqCst);
            async {}
        };
        // Who stands by asks after a third of the lease: not before this is over.
        let job = locks.job_with("every second", ms(300_000), work).unwrap();
        let scheduler = JobScheduler::new().await.unwrap();
        scheduler
            .add(Job::new_async("* * * * * *", job).unwrap())
            .await
            .unwrap();
        scheduler.start().await.unwrap();
        schedulers.push(scheduler);
    }
    until("some ticks ran", || ran.load(Ordering::SeqCst) >= TICKS).await;
    for mut scheduler in schedulers {
        scheduler.shutdown().await.unwrap();
    }
    let (canary, began) = (Canary::start(), now());
    let [one, other] = &nodes;
    tokio::join!(one.shutdown(), other.shutdown());
    let (took, stall) = (now() - began, canary.worst());
    assert!(
        took < BOUND + 2 * stall,
        "it took {took:?} with stalls of {stall:?}"
    );
}
