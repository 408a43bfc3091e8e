//! Faults of a node's engine at a tick: it fires late, twice or never, or it loses or shares its storage.

use crate::help::{ms, until};
use crate::support::events::Watch;
use crate::support::jobs::ByHand;
use crate::ticks::{EACH_SECOND, EACH_YEAR, Log, drained, node, stop, ticking};
use std::collections::HashSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tenure::scheduler::JobError;
use tenure::{Locks, MemoryStore};
use tokio_cron_scheduler::job::job_data::{JobAndNextTick, JobStoredData};
use tokio_cron_scheduler::store::{DataStore, InitStore, MetaDataStorage};
use tokio_cron_scheduler::{
    Job, JobScheduler, JobSchedulerError, SimpleJobCode, SimpleMetadataStore, SimpleNotificationCode,
    SimpleNotificationStore,
};
use uuid::Uuid;

/// The scheduler's own storage, which can be read but not written, like that of a full database.
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
async fn an_engine_that_cannot_write_fires_repeatedly_without_a_run() {
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
    // There is one tick, in three or four seconds, and the next in an hour. The job must be added before the tick.
    let at = chrono::Utc::now() + ms(4_000);
    let job = Job::new_async(at.format("%S %M * * * *").to_string(), closure).unwrap();
    scheduler.add(job).await.unwrap();
    scheduler.start().await.unwrap();
    let fired = || fired.load(Ordering::SeqCst);
    until("it fires while the job runs", || fired() >= 3).await;
    until("only the first pursues it", || ended.load(Ordering::SeqCst) >= 2).await;
    assert_eq!(
        locks.waiter_count(),
        0,
        "no replica stands by for its own node: {:#?}",
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
    // The only thread is blocked, so that the engine looks for no ticks. A stopped process or virtual machine behaves
    // alike.
    std::thread::sleep(ms(3_300));
    until("two more ticks are run", || log.count("end") >= before + 2).await;
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
    // There is one tick, in seven or eight seconds, and the next in an hour. All jobs must be added before the tick.
    let at = chrono::Utc::now() + ms(8_000);
    let expression = at.format("%S %M * * * *").to_string();
    // Records the jobs in sets, as an engine that was held up may fire one of them twice.
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
            // The channel has room for all jobs.
            let scheduler = JobScheduler::new_with_channel_size(2 * JOBS).await.unwrap();
            add(1, &locks, &scheduler).await;
            until("every job runs", || log.count("end") >= JOBS).await;
            until("this one loses none", || fired(1) == JOBS).await;
            until("the other one has fired", || fired(0) >= 256).await;
            // A job that fires now fires too late.
            drained(&locks, Duration::ZERO).await;
            stop([scheduler]).await;
        });
        ends.send(()).unwrap();
    });
    assert!((0..JOBS).all(|n| ran(n) == 1), "{:?}", log.all("start"));
    // This is what tokio-cron-scheduler does today. If it stops, the documentation of this fault can be removed.
    assert_eq!(fired(0), 256);
}

/// A scheduler's storage that others use as well, such as one in a database.
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
async fn a_storage_shared_by_several_schedulers_is_refused_and_reported() {
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
    let job = |locks: &Locks| locks.cron("shared", EACH_YEAR).run(|_| async {}).unwrap();
    nodes[0].add_job(&schedulers[0], job(&nodes[0])).await.unwrap();
    let added = nodes[1].add_job(&schedulers[1], job(&nodes[1])).await;
    assert!(matches!(added, Err(JobError::SharedStorage { .. })), "{added:?}");
    // A job that was added without this crate is reported when it fires.
    let watch = Watch::of("job=past us ");
    let past = nodes[1].cron("past us", EACH_SECOND).run(|_| async {}).unwrap();
    schedulers[1].add(past).await.unwrap();
    schedulers[1].start().await.unwrap();
    watch.until("storage_shared").await;
    stop(schedulers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_that_the_engine_does_not_fire_is_started_without_it() {
    // A node's clock was ahead and is set right: the engine sleeps until the time that it knew.
    let (locks, log, watch) = (Locks::memory(), Log::default(), Watch::of("job=unfired "));
    let of_job = log.clone();
    let work = move |tick| of_job.clone().during(0, tick, async {});
    let (scheduler, id) = {
        let scheduler = JobScheduler::new().await.unwrap();
        let job = locks.cron("unfired", EACH_SECOND).run(work).unwrap();
        let id = scheduler.add(job).await.unwrap();
        scheduler.start().await.unwrap();
        (scheduler, id)
    };
    until("it runs", || log.count("end") >= 1).await;
    let later = chrono::Utc::now() + ms(40_000);
    let data = scheduler.context.metadata_storage.clone();
    let postpone = async {
        loop {
            let set = data.write().await.set_next_and_last_tick(id, Some(later), None);
            set.await.unwrap();
            // The engine may have been about to note its next tick, over this one.
            tokio::time::sleep(ms(700)).await;
        }
    };
    tokio::select! {
        () = postpone => {}
        _ = watch.until("engine_missed") => {}
    }
    let seen = log.count("end");
    until("two more ticks are run", || log.count("end") >= seen + 2).await;
    stop([scheduler]).await;
    until("it ends with its engine", || {
        let seen = log.count("start");
        // Two ticks come meanwhile, and no engine starts them.
        std::thread::sleep(ms(2_200));
        log.count("start") == seen
    })
    .await;
}
