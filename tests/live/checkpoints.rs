//! What runs of a tick leave for those that run it again, on a Redis.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Error, Tick};
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::help::{Eyes, locks, ms, soon, until};
use crate::server::RedisServer;
use crate::support::jobs::ByHand;

/// Every byte, up to the largest size.
fn large() -> Vec<u8> {
    (0..64 * 1024).map(|at: u32| at as u8).collect()
}

type Seen = Arc<Mutex<Vec<(u32, Option<Vec<u8>>)>>>;

/// The first owner leaves something and loses its lease behind its back; its successor finds what it left and nothing that
/// it tried to leave later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_finds_what_was_left_in_time_and_a_stale_owner_is_refused() {
    let server = RedisServer::start();
    let scheduler = JobScheduler::new().await.unwrap();
    // Its latest tick is the same for as long as the test runs.
    let job = Job::new_async("0 0 0 1 1 *", |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    let nodes = [
        locks(&server.url(), ms(30_000)).await,
        locks(&server.url(), ms(30_000)).await,
    ];
    let (seen, stale): (Seen, Arc<Mutex<Option<Tick>>>) = Default::default();
    let mut pursuits = Vec::new();
    let mut fires = Vec::new();
    for locks in &nodes {
        let (of_job, first) = (seen.clone(), stale.clone());
        let work = move |tick: Tick| {
            let (seen, first) = (of_job.clone(), first.clone());
            async move {
                let found = tick.resume().await.unwrap();
                seen.lock().unwrap().push((tick.attempt(), found));
                if tick.attempt() == 1 {
                    tick.checkpoint(b"early").await.unwrap();
                    tick.checkpoint(&large()).await.unwrap();
                    *first.lock().unwrap() = Some(tick.clone());
                    std::future::pending::<()>().await;
                }
                tick.last_success().await.unwrap();
                tick.verify().await.unwrap();
            }
        };
        let mut fire = locks.job_with("reconcile", ms(30_000), work).unwrap();
        pursuits.push(tokio::spawn(fire(id, scheduler.clone())));
        fires.push(fire);
        until("the first one works", || stale.lock().unwrap().is_some()).await;
    }
    let tick = stale.lock().unwrap().clone().unwrap();
    tick.verify().await.unwrap();
    let mut eyes = Eyes::on(&server);
    let records: Vec<Vec<u8>> = eyes.text("KEYS tenure1:o:*");
    eyes.ask::<()>(&[b"DEL", &records[0]]);
    // The store knows; this process cannot yet.
    let refused = soon(tick.checkpoint(b"late")).await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    let refused = soon(tick.verify()).await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    // Whoever comes by moves the job on to its standby, when its own timer comes at the latest.
    until("a successor", || seen.lock().unwrap().len() == 2).await;
    for pursuit in pursuits {
        soon(pursuit).await.unwrap();
    }
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen[0], (1, None));
    assert_eq!(seen[1].0, 2);
    assert_eq!(seen[1].1.as_ref(), Some(&large()), "the latest that was kept");
    // It goes when the tick is over.
    let memory: Vec<Vec<u8>> = eyes.text("KEYS tenure1:j:*");
    let kept: Vec<Option<Vec<u8>>> = eyes.ask(&[b"HMGET", &memory[0], b"saved", b"data", b"well"]);
    assert!(
        kept[0].is_none() && kept[1].is_none() && kept[2].is_some(),
        "{kept:?}"
    );
    for locks in nodes {
        assert!(locks.drain(Duration::ZERO).await.is_ok());
    }
}

/// A checkpoint that is larger than what Redis has room for is refused, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_a_checkpoint_fails_and_the_tick_ends() {
    let server = RedisServer::start();
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async("0 0 0 1 1 *", |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    let locks = locks(&server.url(), ms(30_000)).await;
    let (eyes, told) = (
        Arc::new(Mutex::new(Eyes::on(&server))),
        Arc::new(Mutex::new(None)),
    );
    let (of_job, heard) = (eyes.clone(), told.clone());
    let work = move |tick: Tick| {
        let (eyes, told) = (of_job.clone(), heard.clone());
        async move {
            tick.checkpoint(b"small").await.unwrap();
            eyes.lock().unwrap().text::<()>("CONFIG SET maxmemory 1");
            let error = tick.checkpoint(b"large").await.unwrap_err();
            let found = tick.resume().await.unwrap();
            *told.lock().unwrap() = Some((error, found));
        }
    };
    let mut fire = locks.job_with("full", ms(30_000), work).unwrap();
    soon(fire(id, scheduler)).await;
    let (error, found) = told.lock().unwrap().take().unwrap();
    assert!(matches!(error, Error::Store { .. }), "{error}");
    assert_eq!(found.as_deref(), Some(&b"small"[..]));
    let mut eyes = eyes.lock().unwrap();
    let memory: Vec<Vec<u8>> = eyes.text("KEYS tenure1:j:*");
    let done: Vec<Option<String>> = eyes.ask(&[b"HMGET", &memory[0], b"done", b"saved"]);
    assert_eq!(done, [Some("1".into()), None], "it ended all the same");
}
