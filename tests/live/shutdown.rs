//! A shutdown ends when everything has ended by itself, at the latest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::Locks;
use tokio::sync::Notify;
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::help::{HOUR, addr, held, ms, soon, until, url};
use crate::server::RedisServer;
use crate::support::jobs::ByHand;
use crate::support::proxy::Proxy;

const LEASE: Duration = ms(3_000);

async fn with_timeout(url: &str, request_timeout: Duration) -> Locks {
    let builder = crate::help::builder()
        .lease(LEASE)
        .request_timeout(request_timeout);
    builder.connect(url).await.unwrap()
}

/// A job whose run ended while the server was away is nothing to wait for longer than for its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ended_in_an_outage_is_not_waited_for() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let locks = with_timeout(&url(proxy.addr()), ms(2_000)).await;
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
    soon(locks.shutdown()).await;
}

/// Nor are locks, held or given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_in_an_outage_are_not_waited_for() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let locks = with_timeout(&url(proxy.addr()), ms(2_000)).await;
    let held_on = held(&locks, "a").await;
    let dropped = held(&locks, "b").await;
    proxy.refuse(true);
    proxy.reset();
    drop(dropped);
    soon(locks.shutdown()).await;
    assert!(!held_on.is_held());
}

/// A standby of several ticks of a job withdraws from one after the other. Nothing but its timer makes the driver look up
/// between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stood_by_for_several_ticks_is_not_waited_for() {
    const TICKS: usize = 4;
    let server = RedisServer::start();
    let nodes = [
        with_timeout(&url(addr(&server)), HOUR).await,
        with_timeout(&url(addr(&server)), HOUR).await,
    ];
    let ran = Arc::new(AtomicUsize::new(0));
    let mut schedulers = Vec::new();
    for locks in &nodes {
        let ran = ran.clone();
        let work = move |_| {
            ran.fetch_add(1, Ordering::SeqCst);
            async {}
        };
        // A standby asks again after a third of the lease: not before the end of this test.
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
    let [one, other] = &nodes;
    soon(async { tokio::join!(one.shutdown(), other.shutdown()) }).await;
}
