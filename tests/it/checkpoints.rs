//! What a run knows of itself, and what it leaves for a later run of its tick.

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::error::LostCause;
use tenure::protocol::ledger::{JobRecord as StoredJob, Record, RecordOwner};
use tenure::protocol::message::{Name, TickTime};
use tenure::scheduler::LONGEST_CHECKPOINT;
use tenure::{Error, Locks, MemoryStore, Tick};
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::help::{ms, soon};
use crate::support::jobs::ByHand;

/// The latest tick of this expression stays the same during the tests.
const EACH_YEAR: &str = "0 0 0 1 1 *";

fn node(store: &MemoryStore) -> Locks {
    Locks::builder().memory_shared(store).unwrap()
}

/// Fires a job once on its own node, and returns the result of its run. Drains the node if the run does not end.
async fn fires<T: Send + 'static, Fut>(
    store: &MemoryStore,
    name: &str,
    work: impl Fn(Tick) -> Fut + Send + Sync + 'static,
) -> T
where
    Fut: Future<Output = (T, bool)> + Send + 'static,
{
    let (id, scheduler) = by_hand().await;
    let (locks, made) = (node(store), Arc::new(Mutex::new(None)));
    let (of_job, work) = (made.clone(), Arc::new(work));
    let mut fire = locks
        .job(name, move |tick| {
            let (made, work) = (of_job.clone(), work.clone());
            async move {
                let (value, ends) = work(tick).await;
                *made.lock().unwrap() = Some(value);
                if !ends {
                    pending::<()>().await;
                }
            }
        })
        .unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler));
    let taken = soon(async {
        loop {
            if let Some(value) = made.lock().unwrap().take() {
                return value;
            }
            sleep(ms(2)).await;
        }
    })
    .await;
    while locks.drain(Duration::ZERO).await.is_err() {}
    soon(pursuit).await.unwrap();
    taken
}

async fn by_hand() -> (uuid::Uuid, JobScheduler) {
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async(EACH_YEAR, |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    (id, scheduler)
}

/// Makes the job's mark old, as if the next tick had come.
fn next_tick(store: &MemoryStore, name: &str) {
    let name = Name::job(name.into());
    store.with_ledger(|ledger, _| {
        let mut job: StoredJob = ledger.job(&name).cloned().unwrap();
        job.mark = Some(TickTime(1_000));
        job.saved
            .iter_mut()
            .for_each(|saved| saved.tick = TickTime(1_000));
        ledger.set_job(&name, job);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_resumes_from_the_latest_checkpoint_and_the_next_tick_from_nothing() {
    let store = MemoryStore::new();
    let first = |tick: Tick| async move {
        assert_eq!(tick.resume().await.unwrap(), None);
        for cursor in [b"batch 1".as_slice(), b"batch 2"] {
            tick.checkpoint(cursor).await.unwrap();
        }
        let own = tick.resume().await.unwrap();
        ((tick.attempt(), own), false)
    };
    let (attempt, own) = fires(&store, "resumes", first).await;
    assert_eq!((attempt, own.as_deref()), (1, Some(&b"batch 2"[..])));
    let second = |tick: Tick| async move {
        let found = tick.resume().await.unwrap();
        tick.checkpoint(&[0, 255, b':']).await.unwrap();
        ((tick.attempt(), found), false)
    };
    let (attempt, found) = fires(&store, "resumes", second).await;
    assert_eq!((attempt, found.as_deref()), (2, Some(&b"batch 2"[..])));
    let third = |tick: Tick| async move { ((tick.attempt(), tick.resume().await.unwrap()), true) };
    let (attempt, found) = fires(&store, "resumes", third).await;
    assert_eq!((attempt, found.as_deref()), (3, Some(&[0, 255, b':'][..])));
    next_tick(&store, "resumes");
    let next = |tick: Tick| async move { ((tick.attempt(), tick.resume().await.unwrap()), true) };
    assert_eq!(fires(&store, "resumes", next).await, (1, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_that_is_overtaken_leaves_nothing_to_the_next() {
    let store = MemoryStore::new();
    let leaves = |tick: Tick| async move { (tick.checkpoint(b"of this tick").await.unwrap(), false) };
    fires(&store, "overtaken", leaves).await;
    next_tick(&store, "overtaken");
    let next = |tick: Tick| async move { (tick.resume().await.unwrap(), true) };
    assert_eq!(fires(&store, "overtaken", next).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_lost_its_tick_is_refused_and_reads_no_checkpoint() {
    let store = MemoryStore::new();
    let of_job = store.clone();
    let work = move |tick: Tick| {
        let store = of_job.clone();
        async move {
            tick.checkpoint(b"while it is owned").await.unwrap();
            tick.check().unwrap();
            tick.verify().await.unwrap();
            let name = Name::job(tick.job().clone());
            let foreign = Record {
                owner: RecordOwner::Foreign,
                expires: None,
                may_keep: false,
            };
            let before = store.with_ledger(|ledger, now| ledger.record(&name, now).cloned());
            store.with_ledger(|ledger, _| ledger.overwrite(&name, Some(foreign)));
            // This process cannot know of the loss yet, but the store does.
            tick.check().unwrap();
            let told = [
                tick.verify().await,
                tick.checkpoint(b"late").await,
                tick.resume().await.map(drop),
                tick.last_success().await.map(drop),
            ];
            store.with_ledger(|ledger, _| ledger.overwrite(&name, before));
            let kept = tick.resume().await.unwrap();
            ((told, kept), true)
        }
    };
    let (told, kept) = fires(&store, "owns", work).await;
    for told in told {
        assert!(matches!(told, Err(Error::Lost { .. })), "{told:?}");
    }
    assert_eq!(kept.as_deref(), Some(&b"while it is owned"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_of_a_stopped_run_reports_the_stop() {
    let (id, scheduler) = by_hand().await;
    let (locks, made) = (Locks::memory(), Arc::new(Mutex::new(Vec::new())));
    let (of_job, runtime) = (made.clone(), tokio::runtime::Handle::current());
    // A thread cannot be cancelled, so its lease is kept.
    let job = locks.job_builder("told").timeout(ms(50));
    let mut fire = job
        .run_blocking(move |tick: Tick| {
            let told = runtime.block_on(async {
                tick.lost().await;
                assert!(tick.is_held());
                [
                    tick.check(),
                    tick.verify().await,
                    tick.checkpoint(b"late").await,
                    tick.resume().await.map(drop),
                    tick.last_success().await.map(drop),
                ]
            });
            of_job.lock().unwrap().extend(told);
        })
        .unwrap();
    soon(fire(id, scheduler)).await;
    let told = std::mem::take(&mut *made.lock().unwrap());
    assert_eq!(told.len(), 5);
    for told in told {
        let cause = match told {
            Err(Error::Lost { cause, .. }) => Some(cause),
            _ => None,
        };
        assert_eq!(cause, Some(LostCause::Shutdown), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_has_a_largest_size() {
    let work = |tick: Tick| async move {
        let largest = vec![7; LONGEST_CHECKPOINT];
        tick.checkpoint(&largest).await.unwrap();
        let error = tick.checkpoint(&[largest.clone(), vec![0]].concat()).await;
        let kept = tick.resume().await.unwrap();
        ((error, kept == Some(largest)), true)
    };
    let (error, is_kept) = fires(&MemoryStore::new(), "large", work).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("65536 bytes at most, not 65537"), "{error}");
    assert!(is_kept);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_told_to_end_sees_it_without_an_await() {
    let (id, scheduler) = by_hand().await;
    let (locks, seen) = (node(&MemoryStore::new()), Arc::new(AtomicUsize::new(0)));
    let of_job = seen.clone();
    let work = move |tick: Tick| {
        let seen = of_job.clone();
        async move {
            seen.fetch_add(1, Ordering::SeqCst);
            while tick.check().is_ok() {
                std::thread::sleep(ms(2));
            }
            assert!(tick.is_held(), "a drain keeps the lease until the job has ended");
            seen.fetch_add(1, Ordering::SeqCst);
        }
    };
    let mut fire = locks.job("told", work).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler));
    soon(async {
        while seen.load(Ordering::SeqCst) < 1 {
            sleep(ms(2)).await;
        }
    })
    .await;
    while locks.drain(Duration::ZERO).await.is_err() {}
    soon(pursuit).await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_success_is_of_a_run_that_returned_no_error() {
    let store = MemoryStore::new();
    let (id, scheduler) = by_hand().await;
    let (seen, fails) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    for fail in [0, 1, 0] {
        let locks = node(&store);
        fails.store(fail, Ordering::SeqCst);
        let (seen, fails) = (seen.clone(), fails.clone());
        let mut fire = locks
            .job("succeeds", move |tick: Tick| {
                let (seen, fails) = (seen.clone(), fails.clone());
                async move {
                    let last = tick.last_success().await.unwrap();
                    seen.lock().unwrap().push((tick.nominal(), last));
                    match fails.load(Ordering::SeqCst) {
                        0 => Ok(()),
                        _ => Err("it failed"),
                    }
                }
            })
            .unwrap();
        soon(fire(id, scheduler.clone())).await;
        next_tick(&store, "succeeds");
    }
    let seen = seen.lock().unwrap();
    let nominal = seen[0].0;
    assert!(nominal > UNIX_EPOCH && nominal < SystemTime::now());
    let last: Vec<_> = seen.iter().map(|(_, last)| *last).collect();
    assert_eq!(last, [None, Some(nominal), Some(nominal)]);
}

#[cfg(all(feature = "chrono", feature = "jiff"))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nominal_time_is_the_same_in_every_librarys_type() {
    let work = |tick: Tick| async move {
        let all = (tick.nominal(), tick.nominal_chrono(), tick.nominal_jiff());
        (all, true)
    };
    let (std, chrono, jiff) = fires(&MemoryStore::new(), "types", work).await;
    assert_eq!(SystemTime::from(chrono), std);
    assert_eq!(SystemTime::from(jiff), std);
}
