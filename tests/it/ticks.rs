//! Jobs on the real tokio-cron-scheduler, on a store in memory.
//!
//! What that crate does to a job in UTC (0.15.1), and the test that shows what a leased job does about it:
//!
//! | the crate | the test |
//! |---|---|
//! | looks every 500 ms at a phase of its own, so replicas fire apart | `each_tick_is_run_once_by_three_nodes_out_of_phase`, and `live/jobs.rs` |
//! | tells no nominal time | `a_tick_tells_its_nominal_time` |
//! | lets runs overlap | `a_slow_job_overlaps_no_run_and_its_skipped_ticks_are_reported` |
//! | is starved by jobs that block | `a_job_that_never_yields_keeps_its_lease` |
//! | fires once for all that it slept through | `an_engine_that_was_held_up_runs_the_newest_tick_once`, and stopped processes in `live/jobs.rs` |
//! | fires again when its storage cannot be written | `an_engine_that_cannot_write_fires_repeatedly_without_a_run` |
//! | fires again after a restart with an older clock | `a_tick_that_fires_again_is_not_run_again` |
//! | is ended by a panic in the closure | `a_panic_ends_its_tick_and_nothing_else` |
//! | loses what does not fit into its channel | `ticks_that_the_engine_of_one_replica_loses_are_run_by_another` |
//! | fires after its shutdown | `a_drained_node_claims_nothing_however_often_it_fires` |
//! | freezes offsets | `schedules`: `a_job_that_its_engine_fires_at_other_moments_is_started_by_the_nodes_clock` |
//! | fires a day's tick an hour apart on nodes of before and after a change of clocks | `event_table`: `nodes_were_started_on_both_sides_of_a_change_of_clocks` |
//! | sleeps until a time that its clock no longer shows | `event_table`: `the_engine_does_not_fire` |
//! | has jobs of others in a storage that is shared | `a_storage_shared_by_several_schedulers_is_refused_and_reported` |

use crate::help::{ms, soon, until};
use crate::support::events::{Told, Watch};
use crate::support::jobs::ByHand;
use std::fmt;
use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tenure::error::LostCause;
use tenure::protocol::ledger::JobRecord as StoredJob;
use tenure::protocol::message::{Name, TickTime};
use tenure::scheduler::JobError;
use tenure::{Locks, MemoryStore, Tick};
use tokio::time::sleep;
use tokio_cron_scheduler::{Job, JobScheduler};
use uuid::Uuid;

pub(crate) const EACH_SECOND: &str = "* * * * * *";

/// The latest tick of this expression stays the same during the tests.
pub(crate) const EACH_YEAR: &str = "0 0 0 1 1 *";

pub(crate) fn node(store: &MemoryStore) -> Locks {
    Locks::builder().memory_shared(store).unwrap()
}

/// Waits until `count` replicas stand by for a tick of the job.
pub(crate) async fn until_standing_by(store: &MemoryStore, job: &str, count: usize) {
    let name = Name::job(job.into());
    let standing = || store.with_ledger(|ledger, _| ledger.waiters(&name).len());
    until("it stands by", || standing() == count).await;
}

/// Drains until nothing runs. On a machine that stalls, a cancelled run may outlast the grace period. A drain must
/// not give up sooner.
pub(crate) async fn drained(locks: &Locks, timeout: Duration) {
    soon(async {
        let mut began = Instant::now();
        while let Err(still) = locks.drain(timeout).await {
            assert!(began.elapsed() >= ms(1_000), "{still} so soon");
            began = Instant::now();
        }
    })
    .await;
}

/// What happened, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(pub(crate) Arc<Mutex<Vec<Line>>>);

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) what: &'static str,
    pub(crate) who: usize,
    pub(crate) tick: u64,
    pub(crate) attempt: u32,
    pub(crate) fence: u64,
    pub(crate) at: Instant,
}

impl Log {
    pub(crate) fn note(&self, what: &'static str, who: usize, tick: &Tick) {
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

    pub(crate) fn all(&self, what: &str) -> Vec<Line> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.what == what).cloned().collect()
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        self.all(what).len()
    }

    /// Notes the start, and then "end" or "dropped".
    pub(crate) async fn during(self, who: usize, tick: Tick, work: impl Future<Output = ()>) {
        let mut noted = Noted(self, who, tick, "dropped");
        noted.0.note("start", who, &noted.2);
        work.await;
        noted.3 = "end";
    }
}

pub(crate) struct Noted(
    pub(crate) Log,
    pub(crate) usize,
    pub(crate) Tick,
    pub(crate) &'static str,
);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.note(self.3, self.1, &self.2);
    }
}

pub(crate) type Pursuit = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Counts the calls by the engine.
pub(crate) fn counted(
    fires: Arc<AtomicUsize>,
    mut closure: impl FnMut(Uuid, JobScheduler) -> Pursuit + Send + Sync + 'static,
) -> impl FnMut(Uuid, JobScheduler) -> Pursuit + Send + Sync + 'static {
    move |id, scheduler| {
        fires.fetch_add(1, Ordering::SeqCst);
        closure(id, scheduler)
    }
}

/// A scheduler that ticks each second and runs this job.
pub(crate) async fn ticking(
    closure: impl FnMut(Uuid, JobScheduler) -> Pursuit + Send + Sync + 'static,
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
pub(crate) async fn by_hand(expression: &str) -> (Uuid, JobScheduler) {
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async(expression, |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    (id, scheduler)
}

pub(crate) async fn stop(schedulers: impl IntoIterator<Item = JobScheduler>) {
    for mut scheduler in schedulers {
        scheduler.shutdown().await.unwrap();
    }
}

// Which replica runs a tick.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_tick_is_run_once_by_three_nodes_out_of_phase() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (watch, fires) = (Watch::of("out of phase"), Arc::new(AtomicUsize::new(0)));
    let mut schedulers = Vec::new();
    for who in 0..3 {
        let log = log.clone();
        let work = move |tick| log.clone().during(who, tick, sleep(ms(50)));
        let fire = node(&store).job("out of phase", work).unwrap();
        schedulers.push(ticking(counted(fires.clone(), fire)).await);
        // The engine looks every 500 ms from its start, so this sets its phase.
        sleep(ms(170)).await;
    }
    until("four ticks are run", || log.count("end") >= 4).await;
    stop(schedulers).await;
    // A late engine also fires for ticks that were started without it.
    until("every fire is reported", || {
        watch.count("tick") >= fires.load(Ordering::SeqCst)
    })
    .await;
    let (told, starts) = (watch.told(), log.all("start"));
    let ticks: Vec<u64> = starts.iter().map(|line| line.tick).collect();
    assert!(
        ticks.is_sorted_by(|one, next| one < next),
        "each once, in order: {starts:?}"
    );
    // Except ticks that no engine fired, because the machine stalled.
    for told in told.iter().filter(|told| told.event == "tick") {
        let is_run = ticks
            .iter()
            .any(|tick| told.text.contains(&format!("tick_ms={tick}000 ")));
        assert!(
            is_run || told.text.contains("outcome=skipped"),
            "left out: {told:?} {starts:?}"
        );
    }
    assert!(starts.windows(2).all(|two| two[0].fence < two[1].fence));
    assert!(starts.iter().all(|line| line.attempt == 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_that_fires_again_is_not_run_again() {
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

/// The limit of waiting callers does not apply to jobs: a standby uses no place of a caller, and its tick must be
/// run.
#[tokio::test]
async fn a_tick_is_run_while_the_node_is_full_of_waiters() {
    let (locks, log) = (
        Locks::builder().max_waiters_per_node(1).memory().unwrap(),
        Log::default(),
    );
    let _guard = locks.mutex("held").lock().await.unwrap();
    let waiting = tokio::spawn(locks.mutex("held").lock());
    until("it waits", || locks.waiter_count() == 1).await;
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(0, tick, async {});
    let mut fire = locks.job("beside waiters", work).unwrap();
    soon(fire(id, scheduler)).await;
    assert_eq!(log.count("end"), 1);
    waiting.abort();
}

pub(crate) fn once(ago: Duration) -> String {
    let at = chrono::Utc::now() - ago;
    at.format("%S %M %H %d %m *").to_string()
}

/// Starts a tick on its own node, which drains before the run has ended. No replica stands by.
pub(crate) async fn begun(store: &MemoryStore, name: &'static str, ago: Duration, log: &Log) -> Line {
    let (id, scheduler) = by_hand(&once(ago)).await;
    let (locks, of_job) = (node(store), log.clone());
    let work = move |tick| of_job.clone().during(0, tick, pending());
    let mut fire = locks.job(name, work).unwrap();
    let pursuit = tokio::spawn(fire(id, scheduler));
    until("it begins", || log.count("start") == 1).await;
    drained(&locks, Duration::ZERO).await;
    soon(pursuit).await.unwrap();
    log.all("start").remove(0)
}

pub(crate) struct Rude;

impl fmt::Display for Rude {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("an error that cannot be displayed")
    }
}

// Events.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_ticks_skipped_in_a_row_are_an_alarm() {
    let (locks, watch) = (Locks::memory(), Watch::of("job=hangs "));
    let scheduler = ticking(locks.job("hangs", |_| pending::<()>()).unwrap()).await;
    let told = watch.until("job_skips").await;
    let skipped = |told: &&Told| told.event == "tick" && told.text.contains("outcome=skipped");
    assert!(
        watch.told().iter().filter(skipped).count() >= 2,
        "{:#?}",
        watch.told()
    );
    assert!(told.text.contains("skips=3"), "{told:?}");
    stop([scheduler]).await;
    drained(&locks, Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_ahead_of_the_stores_clock_is_reported_and_can_be_reset() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (name, far) = (Name::job("ahead".into()), TickTime(1 << 50));
    // A machine whose clock was decades ahead leaves such a record.
    let job = StoredJob {
        mark: Some(far),
        done: true,
        attempt: 1,
        ..StoredJob::default()
    };
    store.with_ledger(|ledger, _| ledger.set_job(&name, job));
    let (locks, watch, of_job) = (node(&store), Watch::of("job=ahead "), log.clone());
    let work = move |tick| of_job.clone().during(0, tick, async {});
    let scheduler = ticking(locks.job("ahead", work).unwrap()).await;
    let told = watch.until("mark_ahead").await;
    assert_eq!(told.level, tracing::Level::ERROR);
    assert_eq!(log.count("start"), 0, "its ticks are over before they come");
    assert!(locks.jobs().reset("ahead").await.unwrap());
    until("ticks are run again", || log.count("end") >= 2).await;
    assert!(
        !locks.jobs().reset("ahead").await.unwrap(),
        "there is nothing to reset"
    );
    stop([scheduler]).await;
}

#[tokio::test]
async fn a_tick_that_is_overtaken_by_the_next_is_reported() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let first = begun(&store, "overtaken", ms(60_000), &log).await;
    let watch = Watch::of("job=overtaken ");
    let (id, scheduler) = by_hand(&once(ms(20_000))).await;
    let (locks, of_job) = (node(&store), log.clone());
    let work = move |tick| of_job.clone().during(1, tick, async {});
    let mut fire = locks.job("overtaken", work).unwrap();
    soon(fire(id, scheduler)).await;
    let told = watch.until("tick_overtaken").await;
    assert!(
        told.text.contains(&format!("tick_ms={}000 ", first.tick)),
        "{told:?}"
    );
    assert_eq!(log.count("end"), 1);
}

/// Fires a job of that name on its own node.
async fn of_service(
    store: &MemoryStore,
    service: &str,
    name: &'static str,
    expression: &str,
) -> Box<dyn Send> {
    let locks = Locks::builder().service(service).memory_shared(store).unwrap();
    let job = locks.cron(name, expression).run(nothing).unwrap();
    // The tick is long over, and the node asks the store about the job.
    soon(tenure::testing::fire_tick(
        &locks,
        name,
        UNIX_EPOCH + Duration::from_secs(1),
    ))
    .await;
    Box::new(job)
}

#[tokio::test]
async fn two_services_with_the_same_job_name_are_reported() {
    let store = MemoryStore::new();
    let (same, services, expressions) = (
        Watch::of("job=same "),
        Watch::of("job=of_two "),
        Watch::of("job=changed "),
    );
    let other = "0 0 0 2 1 *";
    let mut kept = Vec::new();
    for (service, name, expression) in [
        ("books", "same", EACH_YEAR),
        ("books", "same", EACH_YEAR),
        ("books", "of_two", EACH_YEAR),
        ("stock", "of_two", EACH_YEAR),
        ("books", "changed", EACH_YEAR),
        ("books", "changed", other),
    ] {
        kept.push(of_service(&store, service, name, expression).await);
    }
    services.until("job_differs").await;
    expressions.until("job_differs").await;
    assert_eq!(same.count("job_differs"), 0);
}

#[tokio::test]
async fn a_job_that_these_locks_did_not_make_is_refused() {
    let (locks, others) = (Locks::memory(), Locks::memory());
    let scheduler = JobScheduler::new().await.unwrap();
    let plain = Job::new_async(EACH_YEAR, |_, _| Box::pin(async {})).unwrap();
    let of_others = others.cron("theirs", EACH_YEAR).run(nothing).unwrap();
    for job in [plain, of_others] {
        let added = locks.add_job(&scheduler, job).await;
        let Err(error @ JobError::NotLeased { .. }) = added else {
            panic!("{added:?}")
        };
        let text = error.to_string();
        assert!(
            text.contains("`Locks::cron`") && text.contains("`JobScheduler::add`"),
            "{text}"
        );
    }
    assert!(
        others.cron("theirs", EACH_YEAR).run(nothing).is_ok(),
        "its name is free again"
    );
    let job = locks.cron("ours", EACH_YEAR).run(nothing).unwrap();
    let id = locks.add_job(&scheduler, job).await.unwrap();
    scheduler.remove(&id).await.unwrap();
}

// Bad input.

pub(crate) async fn nothing(_: Tick) {}

#[tokio::test]
async fn invalid_names_and_leases_are_refused() {
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
    assert!(!tick.is_held() && tick.lost_token().is_cancelled(), "it is over");
    assert_eq!(soon(tick.lost()).await, LostCause::Released);
}
