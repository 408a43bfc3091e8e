//! Ticks that overlap, were missed, failed or were cut short, and work that blocks its thread.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::protocol::ledger::JobRecord as StoredJob;
use tenure::protocol::message::{Name, TickTime};
use tenure::scheduler::{Misfire, Overlap, Retry};
use tenure::{Locks, MemoryStore, Tick};
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};
use tracing::Level;

use crate::help::{known_since_ever, ms, soon};
use crate::support::events::{Told, Watch};
use crate::support::jobs::ByHand;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn node(store: &MemoryStore) -> Locks {
    Locks::builder().memory_shared(store).unwrap()
}

async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let look = async {
        while !so() {
            sleep(ms(2)).await;
        }
    };
    let seen = tokio::time::timeout(ms(20_000), look).await;
    assert!(seen.is_ok(), "timed out: {what}");
}

/// A scheduler that never fires, with a job whose latest tick stays the same during the tests.
async fn by_hand() -> (uuid::Uuid, JobScheduler) {
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async("0 0 0 1 1 *", |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    (id, scheduler)
}

async fn drained(locks: &Locks) {
    soon(async { while locks.drain(Duration::ZERO).await.is_err() {} }).await;
}

async fn until_standing_by(store: &MemoryStore, job: &str) {
    let name = Name::job(job.into());
    let standing = || store.with_ledger(|ledger, _| ledger.waiters(&name).len());
    until("it stands by", || standing() == 1).await;
}

/// The runs: minute, attempt, and whether the tick was missed before.
type Ran = Arc<Mutex<Vec<(u64, u32, bool)>>>;

fn noting(ran: &Ran) -> impl Fn(Tick) -> std::future::Ready<()> + Send + Sync + 'static {
    let ran = ran.clone();
    move |tick| {
        let line = (tick.nominal_unix() / 60, tick.attempt(), tick.is_catch_up());
        ran.lock().unwrap().push(line);
        std::future::ready(())
    }
}

/// Returns the current minute. Waits if the minute is about to end.
async fn minute() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let left = 60 - now.as_secs() % 60;
    // Waits in the first seconds, too: a tick that has just come is never too old.
    if !(15..50).contains(&left) {
        sleep(Duration::from_secs(if left < 15 { left + 10 } else { left - 49 })).await;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs() / 60
}

/// Sets the store's record of a job that runs each minute.
async fn known(store: &MemoryStore, name: &str, minute: u64, done: bool) {
    let job = |locks: &Locks| locks.every(name, MINUTE).run(|_| async {}).unwrap();
    known_since_ever((store, name), job, record(minute, done)).await;
}

fn record(minute: u64, done: bool) -> StoredJob {
    StoredJob {
        mark: Some(TickTime(minute * 60_000)),
        done,
        attempt: 1,
        ..StoredJob::default()
    }
}

// Ticks that were missed.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missed_ticks_are_run_as_the_policy_says() {
    let (store, now) = (MemoryStore::new(), minute().await);
    let within = HOUR;
    let policies = [
        ("by default", None),
        ("skipped", Some(Misfire::Skip)),
        ("once", Some(Misfire::RunOnce { within })),
        ("never known", Some(Misfire::RunAll { within, at_most: 9 })),
        ("all", Some(Misfire::RunAll { within, at_most: 9 })),
        ("three", Some(Misfire::RunAll { within, at_most: 3 })),
    ];
    let watch = Watch::of("job=three ");
    let (mut jobs, mut ran) = (Vec::new(), Vec::new());
    for (name, policy) in policies {
        if name != "never known" {
            known(&store, name, now - 5, true).await;
        }
        // There are two nodes, and each tick is still run once.
        let of_job = Ran::default();
        for _ in 0..2 {
            let locks = node(&store);
            let mut job = locks.every(name, MINUTE);
            if let Some(policy) = policy {
                job = job.misfire(policy);
            }
            jobs.push((job.run(noting(&of_job)).unwrap(), locks));
        }
        ran.push(of_job);
    }
    until("all that was missed", || ran[4].lock().unwrap().len() >= 5).await;
    until("three of it", || ran[5].lock().unwrap().len() >= 3).await;
    until("the newest of it", || !ran[2].lock().unwrap().is_empty()).await;
    watch.until("ticks_passed_over").await;
    for (_, locks) in &jobs {
        drained(locks).await;
    }
    let made_up = |from: u64| (from..=now).map(|minute| (minute, 1, true)).collect::<Vec<_>>();
    let expected = [
        vec![],
        vec![],
        made_up(now),
        vec![],
        made_up(now - 4),
        made_up(now - 2),
    ];
    for ((ran, expected), (name, _)) in ran.iter().zip(expected).zip(policies) {
        assert_eq!(*ran.lock().unwrap(), expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_that_was_cut_short_is_run_again_before_those_that_come_after_it() {
    let (store, now) = (MemoryStore::new(), minute().await);
    known(&store, "chained", now - 3, false).await;
    let (ran, locks) = (Ran::default(), node(&store));
    let policy = Misfire::RunAll {
        within: HOUR,
        at_most: 9,
    };
    let job = locks.every("chained", MINUTE).misfire(policy);
    let _job = job.run(noting(&ran)).unwrap();
    until("all of them", || ran.lock().unwrap().len() >= 4).await;
    drained(&locks).await;
    let ran = ran.lock().unwrap();
    let run: Vec<_> = ran
        .iter()
        .map(|(minute, attempt, _)| (*minute, *attempt))
        .collect();
    assert_eq!(run, [(now - 3, 2), (now - 2, 1), (now - 1, 1), (now, 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ticks_that_are_too_old_are_not_run() {
    let (store, now) = (MemoryStore::new(), minute().await);
    let all = Misfire::RunAll {
        within: ms(150_000),
        at_most: 100,
    };
    let once = Misfire::RunOnce { within: ms(1_000) };
    // One missed tick was begun, and blocks those that are young enough.
    known(&store, "old and open", now - 30, false).await;
    known(&store, "old", now - 30, true).await;
    let (ran, old) = (Ran::default(), Ran::default());
    let (one, other) = (node(&store), node(&store));
    let job = one.every("old and open", MINUTE).misfire(all);
    let _all = job.run(noting(&ran)).unwrap();
    let _once = other
        .every("old", MINUTE)
        .misfire(once)
        .run(noting(&old))
        .unwrap();
    until("the young ones", || {
        ran.lock().unwrap().last().is_some_and(|last| last.0 == now)
    })
    .await;
    drained(&one).await;
    drained(&other).await;
    let ran: Vec<_> = ran.lock().unwrap().iter().map(|line| line.0).collect();
    assert!(
        ran == [now - 1, now] || ran == [now - 2, now - 1, now],
        "{ran:?} at {now}"
    );
    assert_eq!(*old.lock().unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_with_a_zone_follows_its_policies() {
    let (store, now) = (MemoryStore::new(), minute().await);
    let (locks, ran, watch) = (node(&store), Ran::default(), Watch::of("job=built"));
    let scheduler = JobScheduler::new().await.unwrap();
    let each_minute = |locks: &Locks, name: &str| locks.cron(name, "0 * * * * *").timezone("Europe/Berlin");
    for name in ["built", "built to fail", "built to block"] {
        let job = |locks: &Locks| each_minute(locks, name).run(|_| async {}).unwrap();
        known_since_ever((&store, name), job, record(now - 5, true)).await;
    }
    let within = HOUR;
    let set_up = |name: &str| each_minute(&locks, name).misfire(Misfire::RunOnce { within });
    let made_up = set_up("built").run(noting(&ran)).unwrap();
    let retry = Retry::times(1).pauses(ms(1), ms(1));
    let fails = set_up("built to fail").retry(retry);
    let of_job = ran.clone();
    let work = move |tick: Tick| {
        let line = (tick.retry().into(), tick.attempt(), tick.is_catch_up());
        of_job.lock().unwrap().push(line);
        async { Err::<(), _>("as ever") }
    };
    let fails = fails.run(work).unwrap();
    // The thread cannot be cancelled, and its result counts.
    let blocks = set_up("built to block").timeout(ms(30));
    let work = |tick: Tick| {
        while tick.check().is_ok() {
            std::thread::sleep(ms(2));
        }
    };
    let blocks = blocks.run_blocking(work).unwrap();
    for job in [made_up, fails, blocks] {
        locks.add_job(&scheduler, job).await.unwrap();
    }
    let outcome = |name: &str, outcome: &str| {
        let (name, outcome) = (format!("job={name} "), format!("outcome={outcome}"));
        let is_it = |told: &Told| told.text.contains(&name) && told.text.contains(&outcome);
        watch.told().iter().any(is_it)
    };
    until("the missed tick is made up for", || outcome("built", "done")).await;
    until("it fails twice", || outcome("built to fail", "failed")).await;
    until("its thread ends", || outcome("built to block", "done")).await;
    drained(&locks).await;
    let mut ran = ran.lock().unwrap().clone();
    ran.sort_unstable();
    assert_eq!(ran, [(0, 1, true), (1, 1, true), (now, 1, true)]);
}

// Ticks that overlap.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_run_only_the_latest_tick_that_came_during_it_is_run() {
    let store = MemoryStore::new();
    let wall = || SystemTime::now();
    type Spans = Arc<Mutex<Vec<(SystemTime, SystemTime, Option<SystemTime>)>>>;
    let (spans, mut nodes) = (Spans::default(), Vec::new());
    for _ in 0..2 {
        let (locks, of_job) = (node(&store), spans.clone());
        let work = move |tick: Tick| {
            let spans = of_job.clone();
            async move {
                let at = {
                    let mut spans = spans.lock().unwrap();
                    spans.push((tick.nominal(), wall(), None));
                    spans.len() - 1
                };
                sleep(ms(if at == 0 { 2_600 } else { 10 })).await;
                spans.lock().unwrap()[at].2 = Some(wall());
            }
        };
        let job = locks
            .every("queues", Duration::from_secs(1))
            .overlap(Overlap::QueueOne);
        let scheduler = JobScheduler::new().await.unwrap();
        locks.add_job(&scheduler, job.run(work).unwrap()).await.unwrap();
        scheduler.start().await.unwrap();
        nodes.push((locks, scheduler));
    }
    until("three runs", || {
        spans
            .lock()
            .unwrap()
            .iter()
            .filter(|span| span.2.is_some())
            .count()
            >= 3
    })
    .await;
    for (locks, mut scheduler) in nodes {
        scheduler.shutdown().await.unwrap();
        drained(&locks).await;
    }
    let spans = spans.lock().unwrap();
    let (first, second) = (spans[0], spans[1]);
    let end = first.2.unwrap();
    assert!(second.1 >= end, "one after the other: {spans:?}");
    assert!(
        second.0 <= end,
        "it came during the first run, and waited: {spans:?}"
    );
    assert!(
        second.0 > first.0 + ms(1_000),
        "it is the latest of them: {spans:?}"
    );
    assert!(
        spans.windows(2).all(|two| two[0].0 < two[1].0),
        "each once: {spans:?}"
    );
}

// Runs that fail, and runs that are cut short.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_fails_panics_or_hangs_is_tried_again_under_the_same_lease() {
    let (store, watch) = (MemoryStore::new(), Watch::of("job=tries "));
    let (id, scheduler) = by_hand().await;
    let (locks, tries) = (node(&store), Arc::new(Mutex::new(Vec::new())));
    let of_job = tries.clone();
    let work = move |tick: Tick| {
        let tries = of_job.clone();
        async move {
            let found = tick.resume().await.unwrap();
            let fence = tick.fence().get();
            tries
                .lock()
                .unwrap()
                .push((tick.retry(), tick.attempt(), fence, found));
            tick.checkpoint(&[tick.retry() as u8]).await.unwrap();
            match tick.retry() {
                0 => Err("it failed"),
                1 => panic!("it panics"),
                2 => pending().await,
                _ => Ok(()),
            }
        }
    };
    let job = locks.job_builder("tries").timeout(ms(300));
    let mut fire = job.retry(Retry::times(3).pauses(ms(1), ms(5))).run(work).unwrap();
    soon(fire(id, scheduler)).await;
    let tries = tries.lock().unwrap();
    let fence = tries[0].2;
    let found = |retry: u32| retry.checked_sub(1).map(|before| vec![before as u8]);
    let expected: Vec<_> = (0..=3).map(|retry| (retry, 1, fence, found(retry))).collect();
    assert_eq!(*tries, expected);
    let told = watch.told();
    assert!(
        told.iter().any(|told| told.text.contains("outcome=done")),
        "{told:#?}"
    );
    let failed: Vec<_> = told.iter().filter(|told| told.event == "tick_failed").collect();
    let expected = [
        (Level::INFO, "a job failed: try 1 of 4, again in "),
        (Level::INFO, "a job failed: try 2 of 4, again in "),
        // A timeout is always a warning.
        (Level::WARN, "a job failed: try 3 of 4, again in "),
    ];
    assert_eq!(failed.len(), expected.len(), "{told:#?}");
    for (told, (level, text)) in failed.iter().zip(expected) {
        assert!(told.level == level && told.text.contains(text), "{told:?}");
    }
}

/// The events of a run tell an operator when it began, and how it ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_told_with_its_time_attempt_and_fence() {
    let (watch, (id, scheduler)) = (Watch::of("job=told of "), by_hand().await);
    let (locks, fence) = (node(&MemoryStore::new()), Arc::new(Mutex::new(0)));
    let of_job = fence.clone();
    let work = move |tick: Tick| {
        *of_job.lock().unwrap() = tick.fence().get();
        sleep(ms(50))
    };
    let mut fire = locks.job("told of", work).unwrap();
    soon(fire(id, scheduler)).await;
    let (starts, over) = (watch.until("tick_starts").await, watch.until("tick").await);
    assert_eq!((starts.level, over.level), (Level::INFO, Level::INFO));
    let year = chrono::Utc::now().format("%Y");
    let time = format!("tick={year}-01-01T00:00:00Z ");
    let fence = format!("fence={} ", fence.lock().unwrap());
    for field in [&*time, "attempt=1 "] {
        assert!(starts.text.contains(field), "{field} is not in {starts:?}");
    }
    for field in [&*time, &*fence, "attempt=1 ", "outcome=done "] {
        assert!(over.text.contains(field), "{field} is not in {over:?}");
    }
    let (_, took) = over.text.split_once("took_ms=").unwrap();
    let took: u64 = took.split(' ').next().unwrap().parse().unwrap();
    assert!(took >= 50, "{over:?}");
}

/// A node that was disconnected does not know what other nodes ran. It asks before it reports a missed tick.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_is_missed_only_if_the_store_knows_of_no_run() {
    let (store, (id, scheduler)) = (MemoryStore::new(), by_hand().await);
    let locks = node(&store);
    let year = chrono::Utc::now().format("%Y-01-01T00:00:00Z").to_string();
    let year: chrono::DateTime<chrono::Utc> = year.parse().unwrap();
    let first = TickTime(year.timestamp_millis() as u64);
    let later = chrono::Utc::now() + chrono::TimeDelta::hours(1);
    let mark = TickTime(later.timestamp_millis() as u64);
    // The tick that was granted before the latest one.
    for (name, before, expected) in [
        ("run elsewhere", first, (Level::DEBUG, "outcome=elsewhere ")),
        ("run by no node", TickTime(1), (Level::WARN, "outcome=missed ")),
    ] {
        let job = StoredJob {
            mark: Some(mark),
            done: true,
            attempt: 1,
            passed: Some((before, mark)),
            ..StoredJob::default()
        };
        store.with_ledger(|ledger, _| ledger.set_job(&Name::job(name.into()), job));
        let watch = Watch::of(format!("job={name} "));
        let job = locks.job_builder(name).misfire(Misfire::Skip);
        let mut fire = job.run(|_| async {}).unwrap();
        // From now on this node knows by the store's clock how old a tick is.
        watch.until("mark_ahead").await;
        soon(fire(id, scheduler.clone())).await;
        let told = watch.told().into_iter().filter(|told| told.event == "tick");
        let told: Vec<_> = told.collect();
        let is_expected = |told: &Told| told.level == expected.0 && told.text.contains(expected.1);
        assert!(told.len() == 1 && is_expected(&told[0]), "{told:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_ends_after_its_last_failed_attempt() {
    let (watch, (id, scheduler)) = (Watch::of("job=fails "), by_hand().await);
    let locks = node(&MemoryStore::new());
    let retry = Retry::times(2).pauses(ms(1), ms(1));
    let work = |_| async { Err::<(), _>("again") };
    let mut fire = locks.job_builder("fails").retry(retry).run(work).unwrap();
    soon(fire(id, scheduler.clone())).await;
    soon(fire(id, scheduler)).await;
    assert_eq!(watch.count("tick_starts"), 3);
    let told = watch.told();
    assert!(
        told.iter().any(|told| told.text.contains("outcome=failed")),
        "{told:#?}"
    );
    let last = told.iter().rfind(|told| told.event == "tick_failed").unwrap();
    assert_eq!(last.level, Level::WARN);
    assert!(last.text.contains("try 3 of 3 "), "{last:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_during_the_pause_of_a_retry_hands_the_tick_over() {
    let store = MemoryStore::new();
    let (id, scheduler) = by_hand().await;
    let (one, other) = (node(&store), node(&store));
    let runs = Arc::new(AtomicUsize::new(0));
    let of_job = runs.clone();
    let fails = move |_| {
        of_job.fetch_add(1, Ordering::SeqCst);
        async { Err::<(), _>("for now") }
    };
    let retry = Retry::times(9).pauses(HOUR, HOUR);
    let mut fire = one.job_builder("pauses").retry(retry).run(fails).unwrap();
    let first = tokio::spawn(fire(id, scheduler.clone()));
    until("it failed", || runs.load(Ordering::SeqCst) == 1).await;
    let ran = Ran::default();
    let mut fire = other.job("pauses", noting(&ran)).unwrap();
    let second = tokio::spawn(fire(id, scheduler));
    until_standing_by(&store, "pauses").await;
    drained(&one).await;
    soon(first).await.unwrap();
    soon(second).await.unwrap();
    assert_eq!(ran.lock().unwrap()[0].1, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_that_was_cut_short_is_not_run_again_under_that_policy() {
    let (store, watch) = (MemoryStore::new(), Watch::of("job=at most once "));
    let (id, scheduler) = by_hand().await;
    let (one, other) = (node(&store), node(&store));
    let hang = |_| pending::<()>();
    let mut fire = one.job_builder("at most once").attempts(1).run(hang).unwrap();
    let first = tokio::spawn(fire(id, scheduler.clone()));
    watch.until("tick_starts").await;
    let ran = Ran::default();
    let job = other.job_builder("at most once").attempts(1);
    let mut fire = job.run(noting(&ran)).unwrap();
    let second = tokio::spawn(fire(id, scheduler));
    until_standing_by(&store, "at most once").await;
    drained(&one).await;
    soon(first).await.unwrap();
    soon(second).await.unwrap();
    watch.until("tick_given_up").await;
    assert_eq!(*ran.lock().unwrap(), []);
}

// Work that blocks its thread.

/// A thread that works until it is let go, or told to end.
struct Thread {
    began: Arc<AtomicUsize>,
    told: Arc<AtomicUsize>,
    goes: Arc<AtomicBool>,
    /// Whether the thread was told to end while it worked.
    is_told: Arc<AtomicBool>,
}

impl Thread {
    fn new() -> Thread {
        Thread {
            began: Arc::default(),
            told: Arc::default(),
            goes: Arc::new(AtomicBool::new(true)),
            is_told: Arc::default(),
        }
    }

    /// Returns the work of a job. Its result tells whether it was told to end.
    fn work(&self) -> impl Fn(Tick) -> Result<(), &'static str> + Send + Sync + 'static {
        let (began, told, goes) = (self.began.clone(), self.told.clone(), self.goes.clone());
        let is_told = self.is_told.clone();
        move |tick| {
            began.fetch_add(1, Ordering::SeqCst);
            while goes.load(Ordering::SeqCst) {
                is_told.fetch_or(tick.check().is_err(), Ordering::SeqCst);
                std::thread::sleep(ms(2));
            }
            let told = told.fetch_add(usize::from(tick.check().is_err()), Ordering::SeqCst);
            if tick.check().is_err() && told < 100 {
                return Err("it was told to end");
            }
            Ok(())
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_job_keeps_its_lease_until_its_thread_has_ended() {
    let (store, thread) = (MemoryStore::new(), Thread::new());
    let (id, scheduler) = by_hand().await;
    let short = || Locks::builder().short_leases().memory_shared(&store).unwrap();
    let (one, other) = (short(), short());
    let lease = ms(300);
    let mut fire = one
        .job_builder("blocks")
        .lease(lease)
        .run_blocking(thread.work())
        .unwrap();
    let first = tokio::spawn(fire(id, scheduler.clone()));
    until("it began", || thread.began.load(Ordering::SeqCst) == 1).await;
    let ran = Ran::default();
    let mut fire = other.job_with("blocks", lease, noting(&ran)).unwrap();
    let second = tokio::spawn(fire(id, scheduler));
    until_standing_by(&store, "blocks").await;
    // Longer than its lease and the margin, although it was told to end.
    let still = one.drain(ms(1_200)).await.unwrap_err();
    assert_eq!(still.jobs, 1);
    assert_eq!(*ran.lock().unwrap(), [], "the thread keeps running");
    thread.goes.store(false, Ordering::SeqCst);
    soon(first).await.unwrap();
    soon(second).await.unwrap();
    // The work reported that it did not finish.
    assert_eq!(ran.lock().unwrap()[0].1, 2);
    assert!(one.drain(ms(1_000)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_job_that_is_told_to_end_and_does_its_work_is_done() {
    let (thread, watch) = (Thread::new(), Watch::of("job=does its work "));
    let (id, scheduler) = by_hand().await;
    let locks = node(&MemoryStore::new());
    // The work returns no error, although it is told to end.
    thread.told.store(1_000, Ordering::SeqCst);
    let job = locks.job_builder("does its work").timeout(ms(50));
    let mut fire = job.run_blocking(thread.work()).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler));
    until("it began", || thread.began.load(Ordering::SeqCst) == 1).await;
    until("its time is over", || thread.is_told.load(Ordering::SeqCst)).await;
    thread.goes.store(false, Ordering::SeqCst);
    soon(pursuit).await.unwrap();
    assert_eq!(thread.told.load(Ordering::SeqCst), 1_001, "its time was over");
    let told = watch.told();
    assert!(
        told.iter().any(|told| told.text.contains("outcome=done")),
        "{told:#?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_job_whose_lease_is_lost_is_not_begun_again_beside_itself() {
    let (store, thread) = (MemoryStore::new(), Thread::new());
    let (id, scheduler) = by_hand().await;
    let locks = Locks::builder().short_leases().memory_shared(&store).unwrap();
    let watch = Watch::of("loses its lease");
    let job = locks.job_builder("loses its lease").lease(ms(300));
    let mut fire = job.run_blocking(thread.work()).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler));
    until("it began", || thread.began.load(Ordering::SeqCst) == 1).await;
    let name = Name::job("loses its lease".into());
    store.with_ledger(|ledger, _| ledger.overwrite(&name, None));
    watch.until("lost").await;
    sleep(ms(300)).await;
    assert_eq!(thread.began.load(Ordering::SeqCst), 1, "the thread keeps running");
    thread.goes.store(false, Ordering::SeqCst);
    soon(pursuit).await.unwrap();
    assert_eq!(thread.began.load(Ordering::SeqCst), 2, "and then it is run again");
    assert_eq!(thread.told.load(Ordering::SeqCst), 1, "the first was told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_job_that_panics_has_ended() {
    let (id, scheduler) = by_hand().await;
    let (locks, watch) = (node(&MemoryStore::new()), Watch::of("job=blocks and panics "));
    let work = |_| -> () { panic!("in its thread") };
    let mut fire = locks.job_builder("blocks and panics").run_blocking(work).unwrap();
    soon(fire(id, scheduler.clone())).await;
    soon(fire(id, scheduler)).await;
    assert_eq!(watch.count("tick_starts"), 1);
    let told = watch.told();
    assert!(
        told.iter().any(|told| told.text.contains("outcome=panicked")),
        "{told:#?}"
    );
}

/// A runtime that ends waits for no thread: the thread keeps the lease.
#[test]
fn a_blocking_job_outlives_its_runtime_with_its_lease() {
    let (store, thread) = (MemoryStore::new(), Thread::new());
    let locks = node(&store);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut fire = locks.job_builder("outlives").run_blocking(thread.work()).unwrap();
    runtime.block_on(async {
        let (id, scheduler) = by_hand().await;
        tokio::spawn(fire(id, scheduler));
        until("it began", || thread.began.load(Ordering::SeqCst) == 1).await;
    });
    runtime.shutdown_background();
    let name = Name::job("outlives".into());
    let is_held = || store.with_ledger(|ledger, now| ledger.record(&name, now).is_some());
    std::thread::sleep(ms(100));
    assert!(is_held());
    thread.goes.store(false, Ordering::SeqCst);
    for _ in 0..10_000 {
        if !is_held() {
            return;
        }
        std::thread::sleep(ms(2));
    }
    panic!("it keeps its lease for ever");
}
