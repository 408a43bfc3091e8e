//! A tick whose owner has gone is finished by standbys and later nodes.

use crate::help::{ms, soon, until};
use crate::support::events::Watch;
use crate::support::jobs::ByHand;
use crate::ticks::{EACH_YEAR, Log, begun, by_hand, drained, node, once, until_standing_by};
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tenure::{Guard, MemoryStore, Tick};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_over_what_its_winner_left() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let nodes = [node(&store), node(&store)];
    let mut pursuits = Vec::new();
    for (who, locks) in nodes.iter().enumerate() {
        let of_this = log.clone();
        let work = move |tick| of_this.clone().during(who, tick, pending());
        let mut fire = locks.job_with("left", ms(10_000), work).unwrap();
        let pursuit = fire(id, scheduler.clone());
        pursuits.push(tokio::spawn(async move {
            // The closure lives as long as the scheduler keeps it.
            let _fire = fire;
            pursuit.await;
        }));
        until("the first one runs", || log.count("start") == 1).await;
    }
    until_standing_by(&store, "left", 1).await;
    assert_eq!(log.count("start"), 1, "the other stands by");
    drained(&nodes[0], ms(500)).await;
    until("the standby takes over", || log.count("start") == 2).await;
    let (starts, dropped) = (log.all("start"), log.all("dropped"));
    assert_eq!((starts[0].who, starts[0].attempt), (0, 1));
    assert_eq!((starts[1].who, starts[1].attempt), (1, 2));
    assert!(starts[1].fence > starts[0].fence);
    assert_eq!(starts[1].tick, starts[0].tick);
    assert_eq!(dropped[0].who, 0);
    assert!(dropped[0].at <= starts[1].at, "before it was given back");
    pursuits.iter().for_each(|pursuit| pursuit.abort());
}

/// Runs a tick whose work leaves another guard of its lease behind. A standby waits for the end of that guard.
/// Returns how often the tick was run.
async fn runs_beside_a_guard<Fut>(name: &'static str, end: impl FnOnce(Guard) -> Fut) -> usize
where
    Fut: Future<Output = ()>,
{
    let (store, log, kept) = (
        MemoryStore::new(),
        Log::default(),
        Arc::new(Mutex::new(Vec::new())),
    );
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let nodes = [node(&store), node(&store)];
    let work = |who: usize| {
        let (log, kept) = (log.clone(), kept.clone());
        move |tick: Tick| {
            if who == 0 {
                kept.lock().unwrap().push(tick.lease().again().unwrap());
            }
            log.clone().during(who, tick, async {})
        }
    };
    let mut first = nodes[0].job_with(name, ms(1_500), work(0)).unwrap();
    let mut second = nodes[1].job_with(name, ms(1_500), work(1)).unwrap();
    soon(first(id, scheduler.clone())).await;
    let guard = kept.lock().unwrap().pop().expect("it was left there");
    assert!(guard.is_held(), "its lease continues");
    let standby = tokio::spawn(second(id, scheduler.clone()));
    until_standing_by(&store, name, 1).await;
    end(guard).await;
    soon(standby).await.unwrap();
    // A later pursuit does not run it either.
    soon(first(id, scheduler)).await;
    log.count("start")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_whose_lease_goes_on_with_another_guard_is_over_when_that_ends() {
    let watch = Watch::of("job=a guard goes on ");
    let drops = |guard| async move { drop::<Guard>(guard) };
    let dropped = runs_beside_a_guard("a guard goes on", drops).await;
    assert_eq!(dropped, 1, "it was run to its end");
    let releases = |guard: Guard| async move { guard.release().await.unwrap() };
    let released = runs_beside_a_guard("a guard goes on", releases).await;
    assert_eq!(released, 1, "it was run to its end");
    assert_eq!(watch.count("store_went_back"), 0);
}

/// On one thread, so that the job is told before any other part of its run continues.
#[tokio::test]
async fn a_run_that_a_drain_ended_is_taken_over() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let nodes = [node(&store), node(&store)];
    let of_job = log.clone();
    let mut first = nodes[0]
        .job("says so", move |tick: Tick| {
            of_job.note("start", 0, &tick);
            async move {
                tick.lost().await;
                tick.check()
            }
        })
        .unwrap();
    let of_job = log.clone();
    let mut second = nodes[1]
        .job("says so", move |tick| of_job.clone().during(1, tick, async {}))
        .unwrap();
    let run = tokio::spawn(first(id, scheduler.clone()));
    until("it runs", || log.count("start") == 1).await;
    drained(&nodes[0], Duration::ZERO).await;
    soon(run).await.unwrap();
    soon(second(id, scheduler)).await;
    let begun: Vec<_> = log
        .all("start")
        .iter()
        .map(|line| (line.who, line.attempt))
        .collect();
    assert_eq!(begun, [(0, 1), (1, 2)], "its tick was handed over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_of_a_tick_becomes_no_reader() {
    let downgrades = |guard: Guard| async move {
        let fence = guard.fence();
        let guard = guard.downgrade().await.unwrap();
        assert!(guard.is_held() && guard.fence() == fence);
    };
    assert_eq!(runs_beside_a_guard("downgraded", downgrades).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_whose_winner_and_standbys_are_gone_is_finished_by_a_later_node() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let first = begun(&store, "left by all", ms(60_000), &log).await;
    let mut later = Vec::new();
    for who in 1..=2 {
        let (locks, of_job) = (node(&store), log.clone());
        let work = move |tick| of_job.clone().during(who, tick, async {});
        // No scheduler fires it.
        later.push((locks.job("left by all", work).unwrap(), locks));
    }
    until("it is finished", || log.count("end") == 1).await;
    let second = log.all("start").remove(1);
    assert_eq!((second.tick, second.attempt), (first.tick, 2));
    assert!(second.fence > first.fence);
    // A later claim does not start it again either.
    let (locks, of_job, watch) = (node(&store), log.clone(), Watch::of("asks last"));
    let work = move |tick| of_job.clone().during(3, tick, async {});
    let _fire = locks.job("left by all", work).unwrap();
    begun(&store, "asks last", ms(60_000), &Log::default()).await;
    let _last = locks.job("asks last", |_| async {}).unwrap();
    until("later questions are answered", || watch.count("tick_starts") == 2).await;
    assert_eq!(log.count("start"), 2, "{:?}", log.all("start"));
}

/// A job that kills its process must not kill one process after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_is_given_up_after_its_last_attempt() {
    let (store, log, watch) = (MemoryStore::new(), Log::default(), Watch::of("job=kills "));
    begun(&store, "kills", ms(60_000), &log).await;
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(1, tick, async {});
    let locks = node(&store);
    let leased = locks.job_builder("kills").attempts(1).run(work).unwrap();
    let told = watch.until("tick_given_up").await;
    assert_eq!(told.level, tracing::Level::WARN);
    until("it is over", || {
        let told = watch.told();
        told.iter().any(|told| told.text.contains("outcome=given_up"))
    })
    .await;
    drop(leased);
    assert_eq!(log.count("start"), 1);
    // No other node finds it open either.
    let (other, of_job, last) = (node(&store), log.clone(), Log::default());
    let work = move |tick| of_job.clone().during(2, tick, async {});
    let _kills = other.job("kills", work).unwrap();
    begun(&store, "asked for last", ms(60_000), &last).await;
    let of_job = last.clone();
    let work = move |tick| of_job.clone().during(2, tick, async {});
    let _last = other.job("asked for last", work).unwrap();
    until("later questions are answered", || last.count("end") == 1).await;
    assert_eq!(log.count("start"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_node_stands_by_for_a_tick_in_progress() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(&once(ms(60_000))).await;
    let (winner, of_job) = (node(&store), log.clone());
    let work = move |tick| of_job.clone().during(0, tick, pending());
    let mut fire = winner.job("rolled", work).unwrap();
    let run = tokio::spawn(fire(id, scheduler));
    until("it runs", || log.count("start") == 1).await;
    let (later, of_job) = (node(&store), log.clone());
    let work = move |tick| of_job.clone().during(1, tick, async {});
    let _fire = later.job("rolled", work).unwrap();
    until_standing_by(&store, "rolled", 1).await;
    drained(&winner, Duration::ZERO).await;
    soon(run).await.unwrap();
    until("the later one ends it", || log.count("end") == 1).await;
    assert_eq!(log.all("start")[1].attempt, 2);
}

/// A job may be created on a runtime that ends, such as the one a program starts with.
#[test]
fn open_ticks_are_looked_for_on_whichever_runtime_is_left() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    };
    let (store, log) = (MemoryStore::new(), Log::default());
    let (locks, of_job) = (node(&store), log.clone());
    let work = move |tick| of_job.clone().during(1, tick, async {});
    let mut fire = {
        let first = runtime();
        let _entered = first.enter();
        locks.job("moved", work).unwrap()
    };
    runtime().block_on(async {
        begun(&store, "moved", ms(60_000), &log).await;
        // The job fires for another job's tick, which is long ago: only the runtime matters.
        let (id, scheduler) = by_hand(EACH_YEAR).await;
        soon(fire(id, scheduler)).await;
        until("the open tick is found", || log.count("end") == 1).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_tick_is_left_alone_if_it_is_too_old_or_its_job_was_removed() {
    let (store, log) = (MemoryStore::new(), Log::default());
    begun(&store, "no more", ms(60_000), &log).await;
    let (locks, of_job) = (node(&store), log.clone());
    let work = move |tick| of_job.clone().during(1, tick, async {});
    drop(locks.job("no more", work).unwrap());
    let old = Log::default();
    begun(&store, "too old", ms(25 * 3_600_000), &old).await;
    let of_job = old.clone();
    let work = move |tick| of_job.clone().during(1, tick, async {});
    let _old = locks.job("too old", work).unwrap();
    // This open tick is looked for after the other two, and is found.
    let young = Log::default();
    begun(&store, "young", ms(60_000), &young).await;
    let of_job = young.clone();
    let work = move |tick| of_job.clone().during(1, tick, async {});
    let _young = locks.job("young", work).unwrap();
    until("it is finished", || young.count("end") == 1).await;
    assert_eq!((log.count("start"), old.count("start")), (1, 1));
}
