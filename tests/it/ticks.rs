//! Jobs on the real tokio-cron-scheduler, on a store in memory.
//!
//! What that crate does to a job in UTC (0.15.1), and where it is seen what a leased one makes of it:
//!
//! | it | |
//! |---|---|
//! | looks every 500 ms at a phase of its own, so replicas fire apart | `each_tick_is_run_once_by_three_nodes_out_of_phase`, and `live/jobs.rs` |
//! | tells no nominal time | `a_tick_tells_its_nominal_time` |
//! | lets runs overlap | `a_slow_job_overlaps_nobody_and_what_it_skips_is_said` |
//! | is starved by jobs that block | `a_job_that_never_yields_keeps_its_lease` |
//! | fires once for all that it slept through | `an_engine_that_was_held_up_runs_the_newest_tick_once`, and stopped processes in `live/jobs.rs` |
//! | fires again when its storage cannot be written | `an_engine_that_cannot_write_fires_again_and_again_in_vain` |
//! | fires again after a restart with an older clock | `a_tick_that_fires_again_is_over` |
//! | is ended by a panic in the closure | `a_panic_ends_its_tick_and_nothing_else` |
//! | loses what does not fit into its channel | `ticks_that_the_engine_of_one_replica_loses_are_run_by_another` |
//! | fires after its shutdown | `a_drained_node_claims_nothing_however_often_it_fires` |
//! | reads two days in two ways, if a builder made the job | `a_builder_whose_first_tick_is_none_runs_the_one_before_it_once` |
//! | freezes offsets; loses repeated jobs | `what_has_no_ticks_that_all_agree_on_is_refused_with_an_event` |
//! | fires a day's tick an hour apart on nodes of before and after a change of clocks | `event_table`: `nodes_were_started_on_both_sides_of_a_change_of_clocks` |
//! | sleeps until a time that its clock no longer shows | `event_table`: `the_engine_does_not_fire` |
//! | has jobs of others in a storage that is shared | `a_storage_that_several_schedulers_share_is_refused_and_told_of` |

use std::collections::HashSet;
use std::fmt;
use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure::error::LostCause;
use tenure::protocol::ledger::JobRecord as StoredJob;
use tenure::protocol::message::{Name, TickTime};
use tenure::scheduler::{JobError, StillRunning};
use tenure::{Guard, Locks, MemoryStore, Tick};
use tokio::time::sleep;
use tokio_cron_scheduler::job::job_data::{JobAndNextTick, JobStoredData};
use tokio_cron_scheduler::store::{DataStore, InitStore, MetaDataStorage};
use tokio_cron_scheduler::{
    Job, JobBuilder, JobScheduler, JobSchedulerError, SimpleJobCode, SimpleMetadataStore,
    SimpleNotificationCode, SimpleNotificationStore,
};
use uuid::Uuid;

use crate::help::{ms, soon, until};
use crate::support::events::{Told, Watch};

const EACH_SECOND: &str = "* * * * * *";
/// Its latest tick is the same for as long as the tests run.
const EACH_YEAR: &str = "0 0 0 1 1 *";

fn node(store: &MemoryStore) -> Locks {
    Locks::builder().memory_shared(store).unwrap()
}

/// Until so many stand by for a tick of the job.
async fn until_standing_by(store: &MemoryStore, job: &str, count: usize) {
    let name = Name::job(job.into());
    let standing = || store.with_ledger(|ledger, _| ledger.waiters(&name).len());
    until("it stands by", || standing() == count).await;
}

/// Drains until nothing runs. On a machine that stands still what was cancelled may outlast the grace; sooner nobody may
/// give it up.
async fn drained(locks: &Locks, timeout: Duration) {
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

type Pursuit = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Counts how often the engine calls it.
fn counted(
    fires: Arc<AtomicUsize>,
    mut closure: impl FnMut(Uuid, JobScheduler) -> Pursuit + Send + Sync + 'static,
) -> impl FnMut(Uuid, JobScheduler) -> Pursuit + Send + Sync + 'static {
    move |id, scheduler| {
        fires.fetch_add(1, Ordering::SeqCst);
        closure(id, scheduler)
    }
}

/// A scheduler that ticks each second and runs this job.
async fn ticking(closure: impl FnMut(Uuid, JobScheduler) -> Pursuit + Send + Sync + 'static) -> JobScheduler {
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
    let (watch, fires) = (Watch::of("out of phase"), Arc::new(AtomicUsize::new(0)));
    let mut schedulers = Vec::new();
    for who in 0..3 {
        let log = log.clone();
        let work = move |tick| log.clone().during(who, tick, sleep(ms(50)));
        let fire = node(&store).job("out of phase", work).unwrap();
        schedulers.push(ticking(counted(fires.clone(), fire)).await);
        // The phase of an engine, which looks every 500 ms from when it was started.
        sleep(ms(170)).await;
    }
    until("four ticks are run", || log.count("end") >= 4).await;
    stop(schedulers).await;
    // An engine that is late fires for what was started without it.
    until("all that fired is told", || {
        watch.count("tick") >= fires.load(Ordering::SeqCst)
    })
    .await;
    let (told, starts) = (watch.told(), log.all("start"));
    let ticks: Vec<u64> = starts.iter().map(|line| line.tick).collect();
    assert!(
        ticks.is_sorted_by(|one, next| one < next),
        "each once, in order: {starts:?}"
    );
    // But for those that no engine fired, because the machine stood still.
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

/// The limit of callers that wait is none of a job's: it waits in nobody's way, and its tick must be run.
#[tokio::test]
async fn a_tick_is_run_while_the_node_is_full_of_waiters() {
    let (locks, log) = (
        Locks::builder().max_waiters_per_node(1).memory().unwrap(),
        Log::default(),
    );
    let _guard = locks.mutex("held").lock().await.unwrap();
    let waiting = tokio::spawn(locks.mutex("held").lock());
    until("it waits", || locks.waiting() == 1).await;
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(0, tick, async {});
    let mut fire = locks.job("beside waiters", work).unwrap();
    soon(fire(id, scheduler)).await;
    assert_eq!(log.count("end"), 1);
    waiting.abort();
}

/// The scheduler's own storage, which can be read but not written, as that of a database which is full.
#[derive(Default)]
struct ReadOnly(SimpleMetadataStore);

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, JobSchedulerError>> + Send>>;

impl DataStore<JobStoredData> for ReadOnly {
    fn get(&mut self, id: Uuid) -> Answer<Option<JobStoredData>> {
        self.0.get(id)
    }

    fn add_or_update(&mut self, data: JobStoredData) -> Answer<()> {
        self.0.add_or_update(data)
    }

    fn delete(&mut self, id: Uuid) -> Answer<()> {
        self.0.delete(id)
    }
}

impl InitStore for ReadOnly {
    fn init(&mut self) -> Answer<()> {
        self.0.init()
    }

    fn inited(&mut self) -> Answer<bool> {
        self.0.inited()
    }
}

impl MetaDataStorage for ReadOnly {
    fn list_next_ticks(&mut self) -> Answer<Vec<JobAndNextTick>> {
        self.0.list_next_ticks()
    }

    fn set_next_and_last_tick(
        &mut self,
        _: Uuid,
        _: Option<chrono::DateTime<chrono::Utc>>,
        _: Option<chrono::DateTime<chrono::Utc>>,
    ) -> Answer<()> {
        Box::pin(async { Err(JobSchedulerError::UpdateJobData) })
    }

    fn time_till_next_job(&mut self) -> Answer<Option<Duration>> {
        self.0.time_till_next_job()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_cannot_write_fires_again_and_again_in_vain() {
    let (locks, log, watch) = (Locks::memory(), Log::default(), Watch::of("of a full database"));
    let scheduler = JobScheduler::new_with_storage_and_code(
        Box::new(ReadOnly::default()),
        Box::new(SimpleNotificationStore::default()),
        Box::new(SimpleJobCode::default()),
        Box::new(SimpleNotificationCode::default()),
        200,
    );
    let scheduler = scheduler.await.unwrap();
    let (fired, ended, over) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(tokio::sync::Notify::new()),
    );
    let (of_job, goes_on) = (log.clone(), over.clone());
    let work = move |tick| {
        let goes_on = goes_on.clone();
        of_job
            .clone()
            .during(0, tick, async move { goes_on.notified().await })
    };
    let mut fire = locks.job("of a full database", work).unwrap();
    let (fires, ends) = (fired.clone(), ended.clone());
    let closure = move |id, scheduler| {
        fires.fetch_add(1, Ordering::SeqCst);
        let (pursuit, ends) = (fire(id, scheduler), ends.clone());
        let counted = async move {
            pursuit.await;
            ends.fetch_add(1, Ordering::SeqCst);
        };
        Box::pin(counted) as Pin<Box<dyn Future<Output = ()> + Send>>
    };
    // One tick, in three or four seconds, and the next in an hour. Until then it is to be added.
    let at = chrono::Utc::now() + ms(4_000);
    let job = Job::new_async(at.format("%S %M * * * *").to_string(), closure).unwrap();
    scheduler.add(job).await.unwrap();
    scheduler.start().await.unwrap();
    let fired = || fired.load(Ordering::SeqCst);
    until("it fires while the job runs", || fired() >= 3).await;
    until("only the first pursues it", || ended.load(Ordering::SeqCst) >= 2).await;
    assert_eq!(
        locks.waiting(),
        0,
        "none stands by for this very node: {:#?}",
        watch.told()
    );
    over.notify_one();
    until("it ends", || log.count("end") == 1).await;
    let seen = fired();
    until("it fires when the job has ended", || fired() >= seen + 2).await;
    assert_eq!(log.count("start"), 1);
    stop([scheduler]).await;
}

#[tokio::test]
async fn an_engine_that_was_held_up_runs_the_newest_tick_once() {
    let log = Log::default();
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(0, tick, async {});
    let scheduler = ticking(Locks::memory().job("held up", work).unwrap()).await;
    until("it runs", || log.count("end") >= 1).await;
    let before = log.count("end");
    // On the only thread, so that nobody looks for ticks; a stopped process or a virtual machine is no different.
    std::thread::sleep(ms(3_300));
    until("it goes on", || log.count("end") >= before + 2).await;
    stop([scheduler]).await;
    let ticks: Vec<u64> = log.all("start").iter().map(|line| line.tick).collect();
    assert!(ticks.windows(2).all(|two| two[0] < two[1]), "{ticks:?}");
    let slept = ticks[before] - ticks[before - 1];
    assert!(slept >= 3, "nothing is made up for: {ticks:?}");
}

#[test]
fn ticks_that_the_engine_of_one_replica_loses_are_run_by_another() {
    const JOBS: usize = 300;
    let (store, log) = (MemoryStore::new(), Log::default());
    // One tick, in seven or eight seconds, and the next in an hour. Until then all are to be added.
    let at = chrono::Utc::now() + ms(8_000);
    let expression = at.format("%S %M * * * *").to_string();
    // Which jobs, as an engine that was held up may fire one of them twice.
    let fired = [(); 2].map(|()| Arc::new(Mutex::new(HashSet::new())));
    let add = async |who: usize, locks: &Locks, scheduler: &JobScheduler| {
        for n in 0..JOBS {
            let (log, fired) = (log.clone(), fired[who].clone());
            let work = move |tick| log.clone().during(n, tick, async {});
            let mut fire = locks.job(format!("lost {n}"), work).unwrap();
            let closure = move |id, scheduler| {
                fired.lock().unwrap().insert(n);
                fire(id, scheduler)
            };
            let job = Job::new_async(expression.as_str(), closure).unwrap();
            scheduler.add(job).await.unwrap();
        }
        scheduler.start().await.unwrap();
    };
    let fired = |who: usize| fired[who].lock().unwrap().len();
    let ran = |n: usize| log.all("end").iter().filter(|line| line.who == n).count();
    std::thread::scope(|scope| {
        let loses = node(&store);
        let (add, log) = (&add, &log);
        let (ends, end) = tokio::sync::oneshot::channel::<()>();
        scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let scheduler = JobScheduler::new().await.unwrap();
                add(0, &loses, &scheduler).await;
                let _ = end.await;
                stop([scheduler]).await;
            });
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let locks = node(&store);
            // Room for all.
            let scheduler = JobScheduler::new_with_channel_size(2 * JOBS).await.unwrap();
            add(1, &locks, &scheduler).await;
            until("every job runs", || log.count("end") >= JOBS).await;
            until("this one loses none", || fired(1) == JOBS).await;
            until("the other one has fired", || fired(0) >= 256).await;
            // Whatever fires now fires too late.
            drained(&locks, Duration::ZERO).await;
            stop([scheduler]).await;
        });
        ends.send(()).unwrap();
    });
    assert!((0..JOBS).all(|n| ran(n) == 1), "{:?}", log.all("start"));
    // What tokio-cron-scheduler does today. When it does so no more, its documentation here may go.
    assert_eq!(fired(0), 256);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_builder_whose_first_tick_is_none_runs_the_one_before_it_once() {
    let (store, log) = (MemoryStore::new(), Log::default());
    // The seconds of a day of the month that is a day of the week as well, and neither today nor tomorrow. To the
    // builder either is enough, so each second of today is one.
    let (now, next) = (chrono::Utc::now(), chrono::Utc::now() + ms(86_400_000));
    let date = ["10", "20"].into_iter().find(|date| {
        let is = |at: &chrono::DateTime<chrono::Utc>| at.format("%d").to_string() == **date;
        !is(&now) && !is(&next)
    });
    let (date, days) = (
        date.unwrap(),
        format!("{},{}", now.format("%a"), next.format("%a")).to_uppercase(),
    );
    let (mut schedulers, watch) = (Vec::new(), Watch::of("built"));
    for who in 0..2 {
        let log = log.clone();
        let work = move |tick| log.clone().during(who, tick, async {});
        let job = JobBuilder::new()
            .with_cron_job_type()
            .with_schedule(format!("* * * {date} * {days}"))
            .unwrap()
            .with_run_async(Box::new(node(&store).job("built", work).unwrap()))
            .build()
            .unwrap();
        let scheduler = JobScheduler::new().await.unwrap();
        scheduler.add(job).await.unwrap();
        scheduler.start().await.unwrap();
        schedulers.push(scheduler);
    }
    until("both have fired", || watch.count("tick") == 2).await;
    stop(schedulers).await;
    let starts = log.all("start");
    assert_eq!(starts.len(), 1, "{starts:?}");
    let tick = chrono::DateTime::<chrono::Utc>::from_timestamp(starts[0].tick as i64, 0).unwrap();
    assert_eq!(tick.format("%d %T").to_string(), format!("{date} 23:59:59"));
    assert!(
        days.contains(&tick.format("%a").to_string().to_uppercase()),
        "{tick}"
    );
    assert!(tick + ms(86_400_000) < now, "long ago: {tick}");
}

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
            free = locks.job("removed", work.clone()).ok();
            free.is_some()
        })
        .await;
        let job = Job::new_async(EACH_SECOND, free.unwrap()).unwrap();
        let id = scheduler.add(job).await.unwrap();
        until("it runs", || log.all("end").iter().any(|line| line.who == who)).await;
        scheduler.remove(&id).await.unwrap();
    }
    stop([scheduler]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_no_more_is_forgotten_and_one_that_runs_is_not() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (id, scheduler) = by_hand(EACH_YEAR).await;
    let nodes = [node(&store), node(&store)];
    assert!(
        !nodes[0].forget_job("no more").await.unwrap(),
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
    let error = nodes[1].forget_job("no more").await.unwrap_err();
    assert!(error.is_busy(), "{error}");
    go_on.send(true).unwrap();
    soon(run).await.unwrap();
    soon(nodes[0].idle()).await;
    soon(fire(id, scheduler.clone())).await;
    assert_eq!(log.count("start"), 1, "its tick is known to be over");

    assert!(nodes[1].forget_job("no more").await.unwrap());
    assert!(!nodes[1].forget_job("no more").await.unwrap());
    assert!(store.is_empty());
    // So it is not known any more that this tick was run.
    soon(fire(id, scheduler.clone())).await;
    assert_eq!(log.count("start"), 2);
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
        let mut fire = locks.job_with("left", ms(10_000), work).unwrap();
        let pursuit = fire(id, scheduler.clone());
        pursuits.push(tokio::spawn(async move {
            // The closure lives as long as the scheduler would.
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

/// An expression whose latest tick was so long ago, and whose next is in a year.
/// Runs a tick whose work leaves another guard of its lease behind, and has a standby wait for the end of that guard. Says
/// how often it was run.
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
    assert!(guard.is_held(), "its lease goes on");
    let standby = tokio::spawn(second(id, scheduler.clone()));
    until_standing_by(&store, name, 1).await;
    end(guard).await;
    soon(standby).await.unwrap();
    // Nor does whoever comes later.
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

/// On one thread, so that the job is told before anything else of its run goes on.
#[tokio::test]
async fn a_run_that_ends_as_the_drain_told_it_to_is_taken_over() {
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

fn once(ago: Duration) -> String {
    let at = chrono::Utc::now() - ago;
    at.format("%S %M %H %d %m *").to_string()
}

/// Begins a tick on a node of its own, which drains before it has ended, with nobody to stand by.
async fn begun(store: &MemoryStore, name: &'static str, ago: Duration, log: &Log) -> Line {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_whose_winner_and_standbys_are_gone_is_finished_by_whoever_comes_later() {
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
    // Nor is it begun once more by who asks next.
    let (locks, of_job, watch) = (node(&store), log.clone(), Watch::of("asks last"));
    let work = move |tick| of_job.clone().during(3, tick, async {});
    let _fire = locks.job("left by all", work).unwrap();
    begun(&store, "asks last", ms(60_000), &Log::default()).await;
    let _last = locks.job("asks last", |_| async {}).unwrap();
    until("later questions are answered", || watch.count("tick_starts") == 2).await;
    assert_eq!(log.count("start"), 2, "{:?}", log.all("start"));
}

/// A job that kills its process must not kill one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_that_was_begun_as_often_as_it_may_is_given_up() {
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
    // Nor does anybody else find it open.
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
async fn whoever_comes_later_stands_by_for_a_tick_that_is_being_run() {
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

/// A job may be made on a runtime that ends, as that of a program's beginning.
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
        // It fires for another job's tick, which is far back: what matters is where.
        let (id, scheduler) = by_hand(EACH_YEAR).await;
        soon(fire(id, scheduler)).await;
        until("the open tick is found", || log.count("end") == 1).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_tick_is_left_alone_by_a_job_that_is_no_more_and_when_it_is_too_old() {
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
    // A question that is asked after both of them is answered.
    let young = Log::default();
    begun(&store, "young", ms(60_000), &young).await;
    let of_job = young.clone();
    let work = move |tick| of_job.clone().during(1, tick, async {});
    let _young = locks.job("young", work).unwrap();
    until("it is finished", || young.count("end") == 1).await;
    assert_eq!((log.count("start"), old.count("start")), (1, 1));
}

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

/// An error that keeps its causes, as those of `anyhow` do.
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
    // An engine that is late fires for what was started without it.
    until("all that fired is told", || {
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
        // Or no engine fired it, because the machine stood still.
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
            // For longer than its lease, and until the drain has given up.
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
        "{drained:?}: it has come to no await"
    );
    drop(goes_on);
    soon(pursuit).await.unwrap();
    soon(standby).await.unwrap();
    assert_eq!(log.count("end"), 1, "it was finished, and by nobody else");
    assert_eq!(soon(blocks.drain(ms(10))).await, Ok(()));
}

#[cfg(feature = "testing")]
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_a_job_has_spawned_is_told_while_the_job_itself_blocks() {
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
                // From another worker on, so that blocking this one does not hold it up.
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
        // What came to its end before it was dropped has ended well, unless the lease was lost.
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
            assert_eq!((log.count("start"), log.count("end")), (2, 1), "somebody ran it");
        }
        until("nothing is held", || store.is_empty()).await;
    }
}

// What is told.

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
async fn a_mark_ahead_of_the_stores_clock_is_told_and_can_be_reset() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (name, far) = (Name::job("ahead".into()), TickTime(1 << 50));
    // As a machine leaves it behind whose clock was decades ahead.
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
    assert!(locks.reset_job("ahead").await.unwrap());
    until("ticks are run again", || log.count("end") >= 2).await;
    assert!(
        !locks.reset_job("ahead").await.unwrap(),
        "there is nothing to mend"
    );
    stop([scheduler]).await;
}

#[tokio::test]
async fn a_tick_that_is_overtaken_by_the_next_is_told() {
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

/// Fires a job of that name at a node of its own.
async fn of_service(
    store: &MemoryStore,
    service: &str,
    name: &'static str,
    expression: &str,
) -> Box<dyn Send> {
    let (id, scheduler) = by_hand(expression).await;
    let locks = Locks::builder().service(service).memory_shared(store).unwrap();
    let mut fire = locks.job(name, |_| async {}).unwrap();
    soon(fire(id, scheduler)).await;
    Box::new(fire)
}

#[tokio::test]
async fn two_services_with_one_name_of_a_job_are_told_of_each_other() {
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
async fn what_has_no_ticks_that_all_agree_on_is_refused_when_it_is_added() {
    let locks = Locks::memory();
    let scheduler = JobScheduler::new().await.unwrap();
    let leased = |name: &'static str| locks.job(name, |_| async {}).unwrap();
    let east = chrono::FixedOffset::east_opt(3_600).unwrap();
    let refused = [
        (
            Job::new_async_tz("0 0 0 * * *", east, leased("off")).unwrap(),
            "3600 s off UTC",
        ),
        (
            Job::new_repeated_async(ms(60_000), leased("repeated")).unwrap(),
            "no cron expression",
        ),
        (
            Job::new_one_shot_async(ms(60_000), leased("one shot")).unwrap(),
            "no cron expression",
        ),
    ];
    for (job, why) in refused {
        let added = locks.add_job(&scheduler, job).await;
        assert!(
            matches!(&added, Err(error @ JobError::Unfit { .. }) if error.to_string().contains(why)),
            "{added:?}"
        );
    }
    assert!(locks.job("off", |_| async {}).is_ok(), "its name is free again");
    let job = Job::new_async(EACH_YEAR, leased("fit")).unwrap();
    let id = locks.add_job(&scheduler, job).await.unwrap();
    scheduler.remove(&id).await.unwrap();
}

/// A scheduler's storage that others use as well, as one in a database.
#[derive(Clone, Default)]
struct SharedData(Arc<Mutex<SimpleMetadataStore>>);

impl DataStore<JobStoredData> for SharedData {
    fn get(&mut self, id: Uuid) -> Answer<Option<JobStoredData>> {
        self.0.lock().unwrap().get(id)
    }

    fn add_or_update(&mut self, data: JobStoredData) -> Answer<()> {
        self.0.lock().unwrap().add_or_update(data)
    }

    fn delete(&mut self, id: Uuid) -> Answer<()> {
        self.0.lock().unwrap().delete(id)
    }
}

impl InitStore for SharedData {
    fn init(&mut self) -> Answer<()> {
        self.0.lock().unwrap().init()
    }

    fn inited(&mut self) -> Answer<bool> {
        self.0.lock().unwrap().inited()
    }
}

impl MetaDataStorage for SharedData {
    fn list_next_ticks(&mut self) -> Answer<Vec<JobAndNextTick>> {
        self.0.lock().unwrap().list_next_ticks()
    }

    fn set_next_and_last_tick(
        &mut self,
        id: Uuid,
        next: Option<chrono::DateTime<chrono::Utc>>,
        last: Option<chrono::DateTime<chrono::Utc>>,
    ) -> Answer<()> {
        self.0.lock().unwrap().set_next_and_last_tick(id, next, last)
    }

    fn time_till_next_job(&mut self) -> Answer<Option<Duration>> {
        self.0.lock().unwrap().time_till_next_job()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storage_that_several_schedulers_share_is_refused_and_told_of() {
    let (data, store) = (SharedData::default(), MemoryStore::new());
    let scheduler = || {
        JobScheduler::new_with_storage_and_code(
            Box::new(data.clone()),
            Box::new(SimpleNotificationStore::default()),
            Box::new(SimpleJobCode::default()),
            Box::new(SimpleNotificationCode::default()),
            200,
        )
    };
    let schedulers = [scheduler().await.unwrap(), scheduler().await.unwrap()];
    let nodes = [node(&store), node(&store)];
    let job = |locks: &Locks| Job::new_async(EACH_YEAR, locks.job("shared", |_| async {}).unwrap()).unwrap();
    nodes[0].add_job(&schedulers[0], job(&nodes[0])).await.unwrap();
    let added = nodes[1].add_job(&schedulers[1], job(&nodes[1])).await;
    assert!(matches!(added, Err(JobError::SharedStorage { .. })), "{added:?}");
    // Who adds it past us is told when it fires.
    let watch = Watch::of("job=past us ");
    let mut fire = nodes[1].job("past us", |_| async {}).unwrap();
    let past = Job::new_async(EACH_YEAR, |_, _| Box::pin(async {})).unwrap();
    let id = schedulers[1].add(past).await.unwrap();
    soon(fire(id, schedulers[1].clone())).await;
    watch.until("storage_shared").await;
}

// The life of a job.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_job_ends_its_standby_and_frees_its_name() {
    let (store, log) = (MemoryStore::new(), Log::default());
    let (winner, stands_by) = (node(&store), node(&store));
    let expression = once(ms(60_000));
    let (id, scheduler) = by_hand(&expression).await;
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(0, tick, pending());
    let mut fire = winner.job("removed", work).unwrap();
    let run = tokio::spawn(fire(id, scheduler));
    until("it runs", || log.count("start") == 1).await;
    // On a scheduler of its own, which fires once.
    let scheduler = JobScheduler::new().await.unwrap();
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(1, tick, async {});
    let leased = stands_by.job("removed", work).unwrap();
    let (mut leased, fires) = (leased, Arc::new(AtomicUsize::new(0)));
    let counts = fires.clone();
    let job = Job::new_async(expression.as_str(), move |id, scheduler| {
        counts.fetch_add(1, Ordering::SeqCst);
        leased(id, scheduler)
    });
    let id = scheduler.add(job.unwrap()).await.unwrap();
    // It is kept by a task of the scheduler's own.
    let kept = async || scheduler.context.job_code.write().await.get(id).await.unwrap();
    let code = soon(async {
        loop {
            match kept().await {
                Some(code) => return code,
                None => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    let pursuit = tokio::spawn((code.write().await)(id, scheduler.clone()));
    drop(code);
    until_standing_by(&store, "removed", 1).await;
    scheduler.remove(&id).await.unwrap();
    soon(pursuit).await.unwrap();
    until_standing_by(&store, "removed", 0).await;
    let again = stands_by.job("removed", |_| async {});
    assert!(again.is_ok(), "its name is free");
    drop(again);
    drained(&winner, Duration::ZERO).await;
    soon(run).await.unwrap();
    assert_eq!(
        log.count("start"),
        1,
        "what was removed is not run: {:?}",
        log.all("start")
    );
    assert_eq!(fires.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_removed_while_it_runs_comes_to_its_end() {
    let (locks, log) = (Locks::memory(), Log::default());
    let (goes_on, waits) = (
        Arc::new(tokio::sync::Notify::new()),
        Arc::new(AtomicUsize::new(0)),
    );
    let (of_job, wait) = (log.clone(), goes_on.clone());
    let work = move |tick| {
        let wait = wait.clone();
        of_job
            .clone()
            .during(0, tick, async move { wait.notified().await })
    };
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async(EACH_SECOND, counted(waits, locks.job("runs on", work).unwrap())).unwrap();
    let id = scheduler.add(job).await.unwrap();
    scheduler.start().await.unwrap();
    until("it runs", || log.count("start") == 1).await;
    scheduler.remove(&id).await.unwrap();
    until("its name is free", || locks.job("runs on", |_| async {}).is_ok()).await;
    goes_on.notify_one();
    until("it ends", || log.count("end") == 1).await;
    assert_eq!(log.count("dropped"), 0);
    stop([scheduler]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_that_the_engine_does_not_fire_is_started_without_it() {
    // As when a node's clock was ahead and is set right: the engine sleeps until the time that it knew.
    let (locks, log, watch) = (Locks::memory(), Log::default(), Watch::of("job=unfired "));
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(0, tick, async {});
    let (scheduler, id) = {
        let scheduler = JobScheduler::new().await.unwrap();
        let job = Job::new_async(EACH_SECOND, locks.job("unfired", work).unwrap()).unwrap();
        let id = scheduler.add(job).await.unwrap();
        scheduler.start().await.unwrap();
        (scheduler, id)
    };
    until("it runs", || log.count("end") >= 1).await;
    let later = chrono::Utc::now() + ms(40_000);
    let data = scheduler.context.metadata_storage.clone();
    let set = data.write().await.set_next_and_last_tick(id, Some(later), None);
    set.await.unwrap();
    watch.until("engine_missed").await;
    let seen = log.count("end");
    until("it goes on", || log.count("end") >= seen + 2).await;
    stop([scheduler]).await;
    until("it ends with its engine", || {
        let seen = log.count("start");
        // Two ticks come meanwhile, and nobody starts them.
        std::thread::sleep(ms(2_200));
        log.count("start") == seen
    })
    .await;
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
        // In this order they stand in line.
        until("the first one runs", || log.count("start") == 1).await;
        until_standing_by(&store, "three of us", who).await;
    }
    // At once, and not when the winner has ended.
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
        "whoever is next in line, but for the drained one"
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
    // The more patient one does not hold up the other, and sees the end, too.
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
    // At least two fires after the drain, and perhaps one after the scheduler's own shutdown.
    until("it fires", || watch.count("tick") >= before + 2).await;
    scheduler.shutdown().await.unwrap();
    // It may fire once more, within 500 ms.
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
    let refused = repeated.until("job_refused").await;
    for words in ["no cron expression", "use `Locks::every`"] {
        assert!(refused.text.contains(words), "{refused:?}");
    }
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
    assert!(!tick.is_held() && tick.lost_token().is_cancelled(), "it is over");
    assert_eq!(soon(tick.lost()).await, LostCause::Released);
}
