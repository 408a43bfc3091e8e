//! Jobs on the real tokio-cron-scheduler, on a store in memory.

use std::fmt;
use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure::scheduler::{JobError, StillRunning};
use tenure::{Locks, MemoryStore, Tick};
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};
use uuid::Uuid;

use crate::support::events::Watch;

const EACH_SECOND: &str = "* * * * * *";
/// Its latest tick is the same for as long as the tests run.
const EACH_YEAR: &str = "0 0 0 1 1 *";

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Fails loudly instead of hanging for ever.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(ms(20_000), future)
        .await
        .expect("did not happen in time")
}

async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let look = async {
        while !so() {
            sleep(ms(2)).await;
        }
    };
    let seen = tokio::time::timeout(ms(20_000), look).await;
    assert!(seen.is_ok(), "in vain: {what}");
}

fn node(store: &MemoryStore) -> Locks {
    Locks::builder().memory_shared(store).unwrap()
}

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Line>>>);

#[derive(Debug, Clone, PartialEq)]
struct Line {
    what: &'static str,
    who: usize,
    tick: u64,
    attempt: u32,
    fence: u64,
    at: Instant,
}

impl Log {
    fn note(&self, what: &'static str, who: usize, tick: &Tick) {
        let line = Line {
            what,
            who,
            tick: tick.nominal_unix(),
            attempt: tick.attempt(),
            fence: tick.fence().get(),
            at: Instant::now(),
        };
        self.0.lock().unwrap().push(line);
    }

    fn all(&self, what: &str) -> Vec<Line> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.what == what).cloned().collect()
    }

    fn count(&self, what: &str) -> usize {
        self.all(what).len()
    }

    /// Notes the start, and however it ends: "end" or "dropped".
    async fn during(self, who: usize, tick: Tick, work: impl Future<Output = ()>) {
        let mut noted = Noted(self, who, tick, "dropped");
        noted.0.note("start", who, &noted.2);
        work.await;
        noted.3 = "end";
    }
}

struct Noted(Log, usize, Tick, &'static str);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.note(self.3, self.1, &self.2);
    }
}

/// A scheduler that ticks each second and runs this job.
async fn ticking(
    closure: impl FnMut(Uuid, JobScheduler) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync + 'static,
) -> JobScheduler {
    let scheduler = JobScheduler::new().await.unwrap();
    scheduler
        .add(Job::new_async(EACH_SECOND, closure).unwrap())
        .await
        .unwrap();
    scheduler.start().await.unwrap();
    scheduler
}

/// A scheduler that never fires, with a job of that expression: closures are called by hand.
async fn by_hand(expression: &str) -> (Uuid, JobScheduler) {
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async(expression, |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    (id, scheduler)
}

async fn stop(schedulers: impl IntoIterator<Item = JobScheduler>) {
    for mut scheduler in schedulers {
        scheduler.shutdown().await.unwrap();
    }
}

// Who runs a tick.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_tick_is_run_once_by_three_nodes_out_of_phase() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let mut schedulers = Vec::new();
    for who in 0..3 {
        let log = log.clone();
        let work = move |tick| log.clone().during(who, tick, sleep(ms(50)));
        schedulers.push(ticking(node(&store).job("out of phase", work).unwrap()).await);
        sleep(ms(170)).await;
    }
    sleep(ms(5_000)).await;
    stop(schedulers).await;
    let starts = log.all("start");
    let ticks: Vec<u64> = starts.iter().map(|line| line.tick).collect();
    let first = ticks[0];
    let all: Vec<u64> = (first..first + ticks.len() as u64).collect();
    assert!(ticks.len() >= 4, "{starts:?}");
    assert_eq!(ticks, all, "each once, in order, none left out");
    assert!(starts.windows(2).all(|two| two[0].fence < two[1].fence));
    assert!(starts.iter().all(|line| line.attempt == 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_that_fires_again_is_over() {
    // The engine fires again: every 500 ms when its store cannot be updated, and after a restart with an older clock.
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let watch = Watch::of("fires again");
    for who in 0..3 {
        let (locks, log) = (node(&store), log.clone());
        let work = move |tick| log.clone().during(who, tick, async {});
        let mut fire = locks.job("fires again", work).unwrap();
        for _ in 0..5 {
            soon(fire(id, scheduler.clone())).await;
        }
    }
    assert_eq!(log.count("start"), 1);
    let outcomes = watch.told();
    let elsewhere = outcomes
        .iter()
        .filter(|told| told.text.contains("outcome=elsewhere"));
    assert_eq!(elsewhere.count(), 14);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_over_what_its_winner_left() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let nodes = [node(&store), node(&store)];
    let mut pursuits = Vec::new();
    for (who, locks) in nodes.iter().enumerate() {
        let of_this = log.clone();
        let work = move |tick| of_this.clone().during(who, tick, pending());
        let mut fire = locks.job_with("left", ms(1_000), work).unwrap();
        let pursuit = fire(id, scheduler.clone());
        pursuits.push(tokio::spawn(async move {
            // The closure lives as long as the scheduler would.
            let _fire = fire;
            pursuit.await;
        }));
        until("the first one runs", || log.count("start") == 1).await;
    }
    sleep(ms(300)).await;
    assert_eq!(log.count("start"), 1, "the other stands by");
    nodes[0].drain(ms(500)).await.unwrap();
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

#[cfg(feature = "testing")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_drops_the_job_and_the_next_attempt_has_a_larger_fence() {
    use tenure::claim::Name;
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let (locks, watch) = (node(&store), Watch::of("overwritten"));
    let (told, of_job) = (Arc::new(AtomicUsize::new(0)), log.clone());
    let heard = told.clone();
    let work = move |tick: Tick| {
        let (log, heard, cancelled) = (of_job.clone(), heard.clone(), tick.cancelled());
        tokio::spawn(async move {
            cancelled.cancelled().await;
            heard.fetch_add(1, Ordering::SeqCst);
        });
        let second = tick.attempt() > 1;
        log.during(0, tick, async move {
            if !second {
                pending().await
            }
        })
    };
    let mut fire = locks.job_with("overwritten", ms(900), work).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler.clone()));
    until("it runs", || log.count("start") == 1).await;
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

// What a job may do.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_ends_its_tick_and_nothing_else() {
    // A panic in the closure of a job of tokio-cron-scheduler itself ends that job for ever.
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
        until("ticks go on", || ran() >= 2 && watch.count("tick_failed") >= 2).await;
        stop(schedulers).await;
        let told = watch.told();
        let text: Vec<_> = told.iter().map(|told| told.text.as_str()).collect();
        assert!(
            text.iter().any(|text| text.contains("outcome=panicked")),
            "{text:#?}"
        );
        let again = text.iter().any(|text| text.contains("attempt=2"));
        assert!(!again, "its tick has ended: {text:#?}");
    }
}

struct Rude;

impl fmt::Display for Rude {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("an error that cannot be told")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_is_told_and_ends_the_tick() {
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
async fn a_slow_job_overlaps_nobody_and_what_it_skips_is_said() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let watch = Watch::of("slow job");
    let mut schedulers = Vec::new();
    for who in 0..2 {
        let log = log.clone();
        let work = move |tick| log.clone().during(who, tick, sleep(ms(2_300)));
        schedulers.push(ticking(node(&store).job("slow job", work).unwrap()).await);
    }
    until("two runs", || log.count("end") == 2).await;
    stop(schedulers).await;
    let (starts, ends) = (log.all("start"), log.all("end"));
    assert!(
        ends[0].at <= starts[1].at,
        "one after the other: {starts:?} {ends:?}"
    );
    let passed = starts[1].tick - starts[0].tick;
    assert!(passed >= 2, "{starts:?}");
    let skipped = |tick: u64| {
        let (tick, told) = (format!("tick_ms={tick}000 "), watch.told());
        let of_tick = told.iter().filter(|told| told.text.contains(&tick));
        of_tick
            .filter(|told| told.text.contains("outcome=skipped"))
            .count()
    };
    for tick in starts[0].tick + 1..starts[1].tick {
        assert!(skipped(tick) > 0, "nothing said of {tick}: {:#?}", watch.told());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_never_yields_keeps_its_lease() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let (blocks, other) = (node(&store), node(&store));
    let of_first = log.clone();
    let work = move |tick| {
        let blocked = async { std::thread::sleep(ms(2_500)) };
        of_first.clone().during(0, tick, blocked)
    };
    let mut fire = blocks.job_with("never yields", ms(500), work).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler.clone()));
    until("it runs", || log.count("start") == 1).await;
    let of_other = log.clone();
    let work = move |tick| of_other.clone().during(1, tick, async {});
    let mut fire_other = other.job_with("never yields", ms(500), work).unwrap();
    let standby = tokio::spawn(fire_other(id, scheduler.clone()));
    let drained = soon(blocks.drain(ms(10))).await;
    assert_eq!(drained, Err(StillRunning { jobs: 1 }), "it has come to no await");
    soon(pursuit).await.unwrap();
    soon(standby).await.unwrap();
    assert_eq!(log.count("end"), 1, "it was finished, and by nobody else");
    assert_eq!(soon(blocks.drain(ms(10))).await, Ok(()));
}

// The end of a node.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_claims_nothing_however_often_it_fires() {
    let (locks, log) = (Locks::memory(), Log::default());
    let (watch, of_job) = (Watch::of("fires too late"), log.clone());
    let work = move |tick| of_job.clone().during(0, tick, async {});
    let mut scheduler = ticking(locks.job("fires too late", work).unwrap()).await;
    soon(locks.drain(Duration::ZERO)).await.unwrap();
    let before = log.count("start");
    // At least two fires after the drain, and perhaps one after the scheduler's own shutdown.
    until("it fires", || watch.count("tick") >= before + 2).await;
    scheduler.shutdown().await.unwrap();
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

/// Takes a while to be dropped, as a transaction that is rolled back does.
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
        sleep(ms(100)).await;
        let began = Instant::now();
        soon(leaves.drain(ms(patience))).await.unwrap();
        assert!(began.elapsed() >= ms(patience));
        soon(standby).await.unwrap();
        soon(pursuit).await.unwrap();
        let (dropped, starts) = (log.all("dropped"), log.all("start"));
        assert_eq!((dropped.len(), starts.len(), log.count("end")), (1, 2, 1));
        assert!(dropped[0].at <= starts[1].at, "{dropped:?} {starts:?}");
        assert_eq!(starts[1].attempt, 2);
    }
}

// Bad input.

async fn nothing(_: Tick) {}

#[tokio::test]
async fn names_and_leases_that_make_no_sense_are_refused() {
    let locks = Locks::memory();
    for length in [0, 513, 100_000] {
        let refused = locks.job(vec![b'x'; length], nothing).err();
        let refused = refused.expect("a bad name");
        assert!(
            matches!(refused, JobError::Name { length: l, limit: 512, .. } if l == length),
            "{refused}"
        );
    }
    for lease in [Duration::ZERO, ms(49), ms(31 * 24 * 3_600_000), Duration::MAX] {
        let refused = locks.job_with("bad lease", lease, nothing).err();
        assert!(matches!(refused, Some(JobError::Options(_))), "{lease:?}");
    }
    let first = locks.job("twin", nothing).unwrap();
    let refused = locks.clone().job("twin", nothing).err().unwrap();
    assert!(matches!(refused, JobError::Duplicate { .. }));
    assert!(refused.to_string().contains("twin"), "{refused}");
    assert!(Locks::memory().job("twin", nothing).is_ok(), "of another node");
    drop(first);
    drop(locks.job("twin", nothing).unwrap());
    for bad in [
        "",
        "nonsense",
        "* * * * *",
        "60 * * * * *",
        "* * * * * * * *",
        "* * * 32 * *",
    ] {
        let refused = Job::new_async(bad, locks.job("twin", nothing).unwrap());
        assert!(refused.is_err(), "`{bad}` and its job is gone");
    }
    drop(locks.job("twin", nothing).unwrap());
}

#[tokio::test]
async fn a_name_may_have_every_byte() {
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let locks = Locks::memory();
    let every: Vec<u8> = (0..=255).collect();
    let mut names: Vec<Vec<u8>> = every.iter().map(|byte| vec![*byte]).collect();
    names.push(every);
    let runs = Arc::new(AtomicUsize::new(0));
    for name in &names {
        let runs = runs.clone();
        let work = move |tick: Tick| {
            runs.fetch_add(1, Ordering::SeqCst);
            async move { assert!(tick.is_held()) }
        };
        let mut fire = locks.job(name.clone(), work).unwrap();
        soon(fire(id, scheduler.clone())).await;
        soon(fire(id, scheduler.clone())).await;
    }
    assert_eq!(runs.load(Ordering::SeqCst), names.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_ticks_that_all_agree_on_is_refused_with_an_event() {
    let locks = Locks::memory();
    let offset = chrono::FixedOffset::east_opt(3600).unwrap();
    let scheduler = JobScheduler::new().await.unwrap();
    let (zone, repeated, unknown) = (
        Watch::of("of a zone"),
        Watch::of("job of repetition"),
        Watch::of("unknown job"),
    );
    let closure = locks.job("of a zone", nothing).unwrap();
    scheduler
        .add(Job::new_async_tz(EACH_SECOND, offset, closure).unwrap())
        .await
        .unwrap();
    let closure = locks.job("job of repetition", nothing).unwrap();
    scheduler
        .add(Job::new_repeated_async(ms(1_000), closure).unwrap())
        .await
        .unwrap();
    scheduler.start().await.unwrap();
    let mut unheard = locks.job("unknown job", nothing).unwrap();
    soon(unheard(Uuid::new_v4(), scheduler.clone())).await;
    assert!(zone.until("job_refused").await.text.contains("3600 s off UTC"));
    assert!(
        repeated
            .until("job_refused")
            .await
            .text
            .contains("no cron expression")
    );
    assert!(
        unknown
            .until("job_refused")
            .await
            .text
            .contains("does not know the job")
    );
    for watch in [zone, repeated, unknown] {
        assert_eq!(watch.count("tick_starts"), 0);
    }
    stop([scheduler]).await;
}

#[tokio::test]
async fn a_tick_tells_its_nominal_time() {
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let locks = Locks::memory();
    let ticks = Arc::new(Mutex::new(Vec::new()));
    let kept = ticks.clone();
    let work = move |tick: Tick| {
        kept.lock().unwrap().push(tick);
        async {}
    };
    soon(locks.job("of this year", work).unwrap()(id, scheduler)).await;
    let tick = ticks.lock().unwrap().pop().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(
        tick.nominal(),
        UNIX_EPOCH + Duration::from_secs(tick.nominal_unix())
    );
    assert!(tick.nominal_unix() <= now && now - tick.nominal_unix() < 367 * 86_400);
    assert_eq!(tick.nominal_unix() % 86_400, 0);
    assert_eq!(tick.job().as_bytes(), b"of this year");
    assert!(!tick.is_held() && tick.cancelled().is_cancelled(), "it is over");
}
