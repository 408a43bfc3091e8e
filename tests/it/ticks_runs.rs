//! How runs end: they fail, panic, lose their lease, block their thread or take longer than a tick.

use crate::help::{ms, soon, until};
use crate::support::events::Watch;
use crate::support::jobs::ByHand;
use crate::ticks::{EACH_YEAR, Log, Rude, by_hand, counted, drained, node, stop, ticking};
use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tenure::error::LostCause;
use tenure::scheduler::StillRunning;
use tenure::{Locks, MemoryStore, Tick};
use tokio::time::sleep;

#[cfg(feature = "testing")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_drops_the_job_and_the_next_attempt_has_a_larger_fence() {
    use tenure::protocol::message::Name;
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let (locks, watch) = (node(&store), Watch::of("overwritten"));
    let (told, of_job) = (Arc::new(AtomicUsize::new(0)), log.clone());
    let heard = told.clone();
    let work = move |tick: Tick| {
        let (log, heard, lost) = (of_job.clone(), heard.clone(), tick.lost_token());
        tokio::spawn(async move {
            lost.cancelled().await;
            heard.fetch_add(1, Ordering::SeqCst);
        });
        let second = tick.attempt() > 1;
        log.during(0, tick, async move {
            if !second {
                pending().await
            }
        })
    };
    let mut fire = locks.job_with("overwritten", ms(3_000), work).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler.clone()));
    until("it runs", || log.count("start") >= 1).await;
    store.with_ledger(|ledger, _| ledger.overwrite(&Name::job("overwritten".into()), None));
    soon(pursuit).await.unwrap();
    assert_eq!(log.count("dropped"), 1);
    assert_eq!(log.count("end"), 1);
    let starts = log.all("start");
    assert_eq!(starts[1].attempt, 2);
    assert!(starts[1].fence > starts[0].fence);
    until("both were told", || told.load(Ordering::SeqCst) == 2).await;
    watch.until("lost").await;
}

// What a job may do:

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_ends_its_tick_and_nothing_else() {
    // A panic in the closure of a tokio-cron-scheduler job ends that job for ever.
    for when in ["before", "after"] {
        let (store, name) = (MemoryStore::new(), format!("panics {when}"));
        let (runs, watch) = (Arc::new(AtomicUsize::new(0)), Watch::of(name.clone()));
        let mut schedulers = Vec::new();
        for _ in 0..2 {
            let runs = runs.clone();
            let work = move |_| {
                runs.fetch_add(1, Ordering::SeqCst);
                assert!(when == "after", "before its first await");
                async move {
                    sleep(ms(1)).await;
                    assert!(when == "before", "after its first await");
                }
            };
            schedulers.push(ticking(node(&store).job(name.as_str(), work).unwrap()).await);
        }
        let ran = || runs.load(Ordering::SeqCst);
        let panicked = |watch: &Watch| {
            let told = watch.told();
            told.iter().any(|told| told.text.contains("outcome=panicked"))
        };
        until("ticks go on", || {
            ran() >= 2 && watch.count("tick_failed") >= 2 && panicked(&watch)
        })
        .await;
        stop(schedulers).await;
        let told = watch.told();
        let text: Vec<_> = told.iter().map(|told| told.text.as_str()).collect();
        let again = text.iter().any(|text| text.contains("attempt=2"));
        assert!(!again, "its tick has ended: {text:#?}");
    }
}

/// An error that keeps its causes, like those of `anyhow`.
struct Caused;

impl fmt::Display for Caused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the books do not close")?;
        if f.alternate() {
            f.write_str(": the ledger is locked: disk full")?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_failure_tells_its_causes_and_any_result_is_an_output() {
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let (locks, watch) = (Locks::memory(), Watch::of("has causes"));
    let work = |_| async { Err::<u32, _>(Caused) };
    let mut fire = locks.job("has causes", work).unwrap();
    soon(fire(id, scheduler)).await;
    let told = watch.until("tick_failed").await;
    assert!(
        told.text
            .contains("do not close: the ledger is locked: disk full"),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_is_reported_and_ends_the_tick() {
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let locks = Locks::memory();
    let (watch, rude) = (Watch::of("says that it failed"), Watch::of("is rude"));
    let work = |_| async { Err::<(), _>("no space left") };
    let mut fire = locks.job("says that it failed", work).unwrap();
    let mut rudely = locks.job("is rude", |_| async { Err::<(), _>(Rude) }).unwrap();
    for _ in 0..2 {
        soon(fire(id, scheduler.clone())).await;
        soon(rudely(id, scheduler.clone())).await;
    }
    let told = watch.until("tick_failed").await;
    assert!(told.text.contains("no space left"), "{told:?}");
    assert_eq!(watch.count("tick_starts"), 1);
    let has = |watch: &Watch, word: &str| watch.told().iter().any(|told| told.text.contains(word));
    assert!(has(&watch, "outcome=failed"), "{:#?}", watch.told());
    assert_eq!(rude.count("tick_starts"), 1);
    assert!(has(&rude, "outcome=panicked"), "{:#?}", rude.told());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_job_overlaps_no_run_and_its_skipped_ticks_are_reported() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (watch, fires) = (Watch::of("slow job"), Arc::new(AtomicUsize::new(0)));
    let (nodes, mut schedulers) = ([node(&store), node(&store)], Vec::new());
    for (who, locks) in nodes.iter().enumerate() {
        let log = log.clone();
        let work = move |tick| log.clone().during(who, tick, sleep(ms(3_300)));
        let fire = locks.job("slow job", work).unwrap();
        schedulers.push(ticking(counted(fires.clone(), fire)).await);
    }
    until("two runs", || log.count("end") >= 2).await;
    stop(schedulers).await;
    for locks in &nodes {
        drained(locks, Duration::ZERO).await;
    }
    // A late engine also fires for ticks that were started without it.
    until("every fire is reported", || {
        watch.count("tick") >= fires.load(Ordering::SeqCst)
    })
    .await;
    let (starts, ends) = (log.all("start"), log.all("end"));
    assert!(
        ends[0].at <= starts[1].at,
        "one after the other: {starts:?} {ends:?}"
    );
    let passed = starts[1].tick - starts[0].tick;
    assert!(passed >= 2, "{starts:?}");
    let (told, mut skipped) = (watch.told(), 0);
    for tick in starts[0].tick + 1..starts[1].tick {
        let text = format!("tick_ms={tick}000 ");
        let is = |outcome: &str| {
            told.iter()
                .any(|told| told.text.contains(&text) && told.text.contains(outcome))
        };
        // Or no engine fired it, because the machine stalled.
        assert!(is("outcome=skipped") || !is("outcome="), "{tick}: {told:#?}");
        skipped += usize::from(is("outcome=skipped"));
    }
    assert!(skipped > 0, "{told:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_never_yields_keeps_its_lease() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let (blocks, other) = (node(&store), node(&store));
    let (of_first, watch) = (log.clone(), Watch::of("job=never yields "));
    let (goes_on, waits) = std::sync::mpsc::channel::<()>();
    let waits = Arc::new(Mutex::new(waits));
    let work = move |tick| {
        let waits = waits.clone();
        let blocked = async move {
            // The thread sleeps longer than its lease, and until the drain has given up.
            std::thread::sleep(ms(5_000));
            let _ = waits.lock().unwrap().recv();
        };
        of_first.clone().during(0, tick, blocked)
    };
    let mut fire = blocks.job_with("never yields", ms(3_000), work).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler.clone()));
    until("it runs", || log.count("start") == 1).await;
    let of_other = log.clone();
    let work = move |tick| of_other.clone().during(1, tick, async {});
    let mut fire_other = other.job_with("never yields", ms(3_000), work).unwrap();
    let standby = tokio::spawn(fire_other(id, scheduler.clone()));
    let told = watch.until("job_blocks").await;
    assert_eq!(told.level, tracing::Level::WARN);
    let drained = soon(blocks.drain(ms(10))).await;
    assert!(
        matches!(drained, Err(StillRunning { jobs: 1, .. })),
        "{drained:?}: the job has reached no await"
    );
    drop(goes_on);
    soon(pursuit).await.unwrap();
    soon(standby).await.unwrap();
    assert_eq!(log.count("end"), 1, "it was finished, and only once");
    assert_eq!(soon(blocks.drain(ms(10))).await, Ok(()));
}

#[cfg(feature = "testing")]
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn spawned_work_is_told_while_its_job_blocks() {
    use tenure::protocol::message::Name;
    for how in ["lost", "drained"] {
        let (store, log) = (MemoryStore::new(), Log::default());
        let (id, scheduler) = by_hand(EACH_YEAR).await;
        let (locks, name) = (node(&store), format!("blocks and is {how}"));
        let (of_job, (causes, mut cause)) = (log.clone(), tokio::sync::mpsc::unbounded_channel());
        let work = move |tick: Tick| {
            let (log, causes) = (of_job.clone(), causes.clone());
            async move {
                log.note("start", 0, &tick);
                if tick.attempt() > 1 {
                    return;
                }
                let (tells, hears) = std::sync::mpsc::channel();
                let (lost, token, (up, is_up)) =
                    (tick.lost(), tick.lost_token(), tokio::sync::oneshot::channel());
                tokio::spawn(async move {
                    up.send(()).unwrap();
                    causes.send(lost.await).unwrap();
                    assert!(token.is_cancelled(), "both at once");
                    let _ = tells.send(());
                });
                // The task starts on another worker, so that blocking this worker does not delay it.
                is_up.await.unwrap();
                log.note("blocks", 0, &tick);
                let told = hears.recv_timeout(ms(15_000)).is_ok();
                log.note(if told { "told" } else { "not told" }, 0, &tick);
            }
        };
        let mut fire = locks.job_with(name.as_str(), ms(3_000), work).unwrap();
        let pursuit = tokio::spawn(fire(id, scheduler));
        until("it blocks", || log.count("blocks") == 1).await;
        match how {
            "lost" => store.with_ledger(|ledger, _| ledger.overwrite(&Name::job(name.into()), None)),
            _ => drained(&locks, Duration::ZERO).await,
        }
        soon(pursuit).await.unwrap();
        assert_eq!((log.count("told"), log.count("not told")), (1, 0), "{how}");
        let (cause, expected) = (
            soon(cause.recv()).await.unwrap(),
            if how == "lost" {
                LostCause::Gone
            } else {
                LostCause::Shutdown
            },
        );
        assert_eq!(cause, expected);
        // A run that ended before it was dropped has succeeded, unless the lease was lost.
        assert_eq!(log.count("start"), if how == "lost" { 2 } else { 1 }, "{how}");
    }
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("in the middle of a drop");
    }
}

#[cfg(feature = "testing")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_panics_when_it_is_cancelled_kills_nothing() {
    use tenure::protocol::message::Name;
    for how in ["lost", "drained"] {
        let (store, log) = (MemoryStore::new(), Log::default());
        let (id, scheduler) = by_hand(EACH_YEAR).await;
        let (locks, other) = (node(&store), node(&store));
        let name = format!("drops badly and is {how}");
        let (watch, job) = (Watch::of(name.clone()), Name::job(name.as_str().into()));
        let of_job = log.clone();
        let work = move |tick: Tick| {
            let first = tick.attempt() == 1;
            of_job.clone().during(0, tick, async move {
                if first {
                    let _bad = PanicsWhenDropped;
                    pending::<()>().await;
                }
            })
        };
        let of_other = log.clone();
        let standby = move |tick| of_other.clone().during(1, tick, async {});
        let mut fire = locks.job_with(name.as_str(), ms(3_000), work).unwrap();
        let pursuit = tokio::spawn(fire(id, scheduler.clone()));
        until("it runs", || log.count("start") >= 1).await;
        let mut fire_other = other.job_with(name.as_str(), ms(3_000), standby).unwrap();
        let standby = tokio::spawn(fire_other(id, scheduler.clone()));
        match how {
            "lost" => store.with_ledger(|ledger, _| ledger.overwrite(&job, None)),
            _ => drained(&locks, Duration::ZERO).await,
        }
        soon(pursuit).await.expect("no panic gets out");
        soon(standby).await.unwrap();
        let told = watch.until("tick_failed").await;
        assert!(told.text.contains("panicked while it was cancelled"), "{told:?}");
        let panicked = watch.told();
        let panicked = panicked
            .iter()
            .filter(|told| told.text.contains("outcome=panicked"));
        if how == "drained" {
            assert_eq!(panicked.count(), 1, "its tick has ended: {:#?}", watch.told());
            assert_eq!(log.count("start"), 1);
        } else {
            assert_eq!(panicked.count(), 0, "{:#?}", watch.told());
            assert_eq!(
                (log.count("start"), log.count("end")),
                (2, 1),
                "the tick was run again"
            );
        }
        until("nothing is held", || store.is_empty()).await;
    }
}
