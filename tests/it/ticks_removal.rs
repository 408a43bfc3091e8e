//! Removed jobs and drained nodes.

use crate::help::{ms, soon, until};
use crate::support::events::Watch;
use crate::support::jobs::ByHand;
use crate::ticks::{EACH_SECOND, EACH_YEAR, Log, by_hand, drained, node, stop, ticking, until_standing_by};
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tenure::scheduler::Overlap;
use tenure::{Locks, MemoryStore};
use tokio::time::sleep;
use tokio_cron_scheduler::JobScheduler;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_removed_leaves_its_name() {
    let (locks, log) = (Locks::memory(), Log::default());
    let scheduler = JobScheduler::new().await.unwrap();
    scheduler.start().await.unwrap();
    for who in 0..2 {
        let of_job = log.clone();
        let work = move |tick| of_job.clone().during(who, tick, async {});
        let mut free = None;
        until("its name is free", || {
            free = locks.cron("removed", EACH_SECOND).run(work.clone()).ok();
            free.is_some()
        })
        .await;
        let id = scheduler.add(free.unwrap()).await.unwrap();
        until("it runs", || log.all("end").iter().any(|line| line.who == who)).await;
        scheduler.remove(&id).await.unwrap();
    }
    stop([scheduler]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_job_is_forgotten_and_a_running_job_is_not() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let nodes = [node(&store), node(&store)];
    assert!(
        !nodes[0].jobs().forget("no more").await.unwrap(),
        "nothing was known"
    );
    let (go_on, gate) = tokio::sync::watch::channel(false);
    let work = {
        let log = log.clone();
        move |tick| {
            let mut gate = gate.clone();
            log.clone()
                .during(0, tick, async move { drop(gate.wait_for(|open| *open).await) })
        }
    };
    let mut fire = nodes[0].job("no more", work.clone()).unwrap();
    let run = tokio::spawn(fire(id, scheduler.clone()));
    until("it runs", || log.count("start") == 1).await;
    let error = nodes[1].jobs().forget("no more").await.unwrap_err();
    assert!(error.is_busy(), "{error}");
    go_on.send(true).unwrap();
    soon(run).await.unwrap();
    soon(nodes[0].idle()).await;
    soon(fire(id, scheduler.clone())).await;
    assert_eq!(log.count("start"), 1, "its tick is known to be over");

    // A node that has the job would make a new record, and could run the tick again.
    until_known(&nodes[1], 1).await;
    let error = nodes[1].jobs().forget("no more").await.unwrap_err();
    assert!(error.is_busy(), "{error}");
    drop(fire);
    until_known(&nodes[1], 0).await;
    assert!(nodes[1].jobs().forget("no more").await.unwrap());
    assert!(!nodes[1].jobs().forget("no more").await.unwrap());
    assert!(store.is_empty());
    // The store no longer knows that this tick was run.
    let mut fire = nodes[0].job("no more", work).unwrap();
    soon(fire(id, scheduler.clone())).await;
    assert_eq!(log.count("start"), 2);
}

/// Waits until the store knows so many nodes that have the job.
async fn until_known(locks: &tenure::Locks, count: usize) {
    let known = async {
        loop {
            let job = locks.jobs().show("no more").await.unwrap().unwrap();
            if job.nodes.len() == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(known).await;
}

// The life of a job.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_job_ends_its_standby_and_frees_its_name() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (winner, stands_by) = (node(&store), node(&store));
    let (id, scheduler) = by_hand(EACH_SECOND).await;
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(0, tick, pending());
    let mut fire = winner.job("removed", work).unwrap();
    let run = tokio::spawn(fire(id, scheduler));
    until("it runs", || log.count("start") == 1).await;
    // A later tick waits for that one. The job is on its own scheduler.
    let scheduler = JobScheduler::new().await.unwrap();
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(1, tick, async {});
    let job = || stands_by.cron("removed", EACH_SECOND).overlap(Overlap::QueueOne);
    let id = scheduler.add(job().run(work).unwrap()).await.unwrap();
    scheduler.start().await.unwrap();
    until_standing_by(&store, "removed", 1).await;
    scheduler.remove(&id).await.unwrap();
    until_standing_by(&store, "removed", 0).await;
    until("its name is free", || job().run(|_| async {}).is_ok()).await;
    drained(&winner, Duration::ZERO).await;
    soon(run).await.unwrap();
    assert_eq!(
        log.count("start"),
        1,
        "what was removed is not run: {:?}",
        log.all("start")
    );
    stop([scheduler]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_removed_while_it_runs_completes() {
    let (locks, log) = (Locks::memory(), Log::default());
    let goes_on = Arc::new(tokio::sync::Notify::new());
    let (of_job, wait) = (log.clone(), goes_on.clone());
    let work = move |tick| {
        let wait = wait.clone();
        of_job
            .clone()
            .during(0, tick, async move { wait.notified().await })
    };
    let scheduler = JobScheduler::new().await.unwrap();
    let job = locks.cron("runs on", EACH_SECOND).run(work).unwrap();
    let id = scheduler.add(job).await.unwrap();
    scheduler.start().await.unwrap();
    until("it runs", || log.count("start") == 1).await;
    scheduler.remove(&id).await.unwrap();
    until("its name is free", || {
        locks.cron("runs on", EACH_YEAR).run(|_| async {}).is_ok()
    })
    .await;
    goes_on.notify_one();
    until("it ends", || log.count("end") == 1).await;
    assert_eq!(log.count("dropped"), 0);
    stop([scheduler]).await;
}

// The end of a node.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_standby_gives_up_its_place() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let nodes = [node(&store), node(&store), node(&store)];
    let (mut pursuits, mut fires) = (Vec::new(), Vec::new());
    for (who, locks) in nodes.iter().enumerate() {
        let of_this = log.clone();
        let work = move |tick| {
            of_this.clone().during(who, tick, async move {
                if who == 0 {
                    pending().await
                }
            })
        };
        let mut fire = locks.job("three of us", work).unwrap();
        pursuits.push(tokio::spawn(fire(id, scheduler.clone())));
        fires.push(fire);
        // The nodes are queued in this order.
        until("the first one runs", || log.count("start") == 1).await;
        until_standing_by(&store, "three of us", who).await;
    }
    // The drain returns at once, and not after the winner has ended.
    soon(nodes[1].drain(ms(60_000))).await.unwrap();
    soon(pursuits.remove(1)).await.unwrap();
    soon(nodes[1].idle()).await;
    drained(&nodes[0], Duration::ZERO).await;
    for pursuit in pursuits {
        soon(pursuit).await.unwrap();
    }
    let starts: Vec<_> = log
        .all("start")
        .iter()
        .map(|line| (line.who, line.attempt))
        .collect();
    assert_eq!(
        starts,
        [(0, 1), (2, 2)],
        "the next in the queue, without the drained node"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_may_be_called_many_times() {
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let (locks, log) = (Locks::memory(), Log::default());
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(0, tick, pending());
    let mut fire = locks.job("drained twice", work).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler));
    until("it runs", || log.count("start") == 1).await;
    // The drain with the longer timeout does not delay the other, and also sees the end.
    let patient = locks.drain(Duration::MAX);
    let (patient, ()) = soon(async { tokio::join!(patient, drained(&locks, ms(50))) }).await;
    assert_eq!(patient, Ok(()));
    assert_eq!((log.count("end"), log.count("dropped")), (0, 1));
    soon(pursuit).await.unwrap();
    for patience in [Duration::ZERO, Duration::MAX] {
        assert_eq!(soon(locks.drain(patience)).await, Ok(()), "nothing is left to do");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_claims_nothing_however_often_it_fires() {
    let (locks, log) = (Locks::memory(), Log::default());
    let (watch, of_job) = (Watch::of("fires too late"), log.clone());
    let work = move |tick| of_job.clone().during(0, tick, async {});
    let mut scheduler = ticking(locks.job("fires too late", work).unwrap()).await;
    drained(&locks, Duration::ZERO).await;
    let before = log.count("start");
    // At least two fires come after the drain, and perhaps one after the scheduler's own shutdown.
    until("it fires", || watch.count("tick") >= before + 2).await;
    scheduler.shutdown().await.unwrap();
    // The engine may fire once more, within 500 ms.
    sleep(ms(700)).await;
    assert_eq!(log.count("start"), before);
    assert!(
        watch
            .told()
            .iter()
            .any(|told| told.text.contains("outcome=drained"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_what_runs() {
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let (locks, log) = (Locks::memory(), Log::default());
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(0, tick, sleep(ms(400)));
    let mut fire = locks.job("takes its time", work).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler));
    until("it runs", || log.count("start") == 1).await;
    soon(locks.drain(ms(10_000))).await.unwrap();
    assert_eq!((log.count("end"), log.count("dropped")), (1, 0));
    soon(pursuit).await.unwrap();
}

/// Its drop takes a while, like a transaction that is rolled back.
struct SlowToDrop;

impl Drop for SlowToDrop {
    fn drop(&mut self) {
        std::thread::sleep(ms(300));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_drain_gives_a_tick_back_only_after_its_future_has_ended() {
    for patience in [0, 200] {
        let (store, log) = (MemoryStore::new(), Log::default());
        let (id, scheduler) = by_hand(EACH_YEAR).await;
        let (leaves, stays) = (node(&store), node(&store));
        let (name, of_first, of_other) = (format!("handed on {patience}"), log.clone(), log.clone());
        let work = move |tick| {
            of_first.clone().during(0, tick, async {
                let _slow = SlowToDrop;
                pending().await
            })
        };
        let mut fire = leaves.job(name.as_str(), work).unwrap();
        let pursuit = tokio::spawn(fire(id, scheduler.clone()));
        until("it runs", || log.count("start") == 1).await;
        let work = move |tick| of_other.clone().during(1, tick, async {});
        let mut fire_other = stays.job(name.as_str(), work).unwrap();
        let standby = tokio::spawn(fire_other(id, scheduler.clone()));
        until_standing_by(&store, &name, 1).await;
        let began = Instant::now();
        drained(&leaves, ms(patience)).await;
        assert!(began.elapsed() >= ms(patience));
        soon(standby).await.unwrap();
        soon(pursuit).await.unwrap();
        let (dropped, starts) = (log.all("dropped"), log.all("start"));
        assert_eq!((dropped.len(), starts.len(), log.count("end")), (1, 2, 1));
        assert!(dropped[0].at <= starts[1].at, "{dropped:?} {starts:?}");
        assert_eq!(starts[1].attempt, 2);
    }
}
