//! tokio-cron-scheduler's own loop beside the model of it that simulations run.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, FixedOffset, Utc};
use tenure::testing::{After, EngineModel, LOOKS_EVERY};
use tokio::sync::broadcast::Receiver;
use tokio::time::sleep;
use tokio_cron_scheduler::job::job_data::{JobAndNextTick, JobStoredData};
use tokio_cron_scheduler::store::{DataStore, InitStore, MetaDataStorage};
use tokio_cron_scheduler::{
    Job, JobScheduler, JobSchedulerError, SimpleJobCode, SimpleMetadataStore, SimpleNotificationCode,
    SimpleNotificationStore,
};
use uuid::Uuid;

use crate::help::ms;

/// When the loop looked, and what it fired then.
type Looks = Vec<(DateTime<Utc>, BTreeSet<Uuid>)>;

/// The scheduler's storage, which notes when the loop looks at it.
#[derive(Default)]
struct Watched(SimpleMetadataStore, Arc<Mutex<(Looks, Option<Receiver<Uuid>>)>>);

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, JobSchedulerError>> + Send>>;

impl DataStore<JobStoredData> for Watched {
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

impl InitStore for Watched {
    fn init(&mut self) -> Answer<()> {
        self.0.init()
    }

    fn inited(&mut self) -> Answer<bool> {
        self.0.inited()
    }
}

impl MetaDataStorage for Watched {
    fn list_next_ticks(&mut self) -> Answer<Vec<JobAndNextTick>> {
        let mut seen = self.1.lock().unwrap();
        let (looks, fired) = &mut *seen;
        // What it fired when it looked before, it has fired by now.
        while let (Some((_, last)), Some(Ok(id))) = (looks.last_mut(), fired.as_mut().map(Receiver::try_recv))
        {
            last.insert(id);
        }
        looks.push((Utc::now(), BTreeSet::new()));
        drop(seen);
        self.0.list_next_ticks()
    }

    fn set_next_and_last_tick(
        &mut self,
        id: Uuid,
        next: Option<DateTime<Utc>>,
        last: Option<DateTime<Utc>>,
    ) -> Answer<()> {
        self.0.set_next_and_last_tick(id, next, last)
    }

    fn time_till_next_job(&mut self) -> Answer<Option<Duration>> {
        self.0.time_till_next_job()
    }
}

/// So soon after a whole second the loop may have read its clock before it, and its storage after it.
const UNSURE: Duration = ms(25);

#[tokio::test]
async fn the_engine_fires_what_its_model_fires() {
    let storage = Watched::default();
    let looks = storage.1.clone();
    let scheduler = JobScheduler::new_with_storage_and_code(
        Box::new(storage),
        Box::new(SimpleNotificationStore::default()),
        Box::new(SimpleJobCode::default()),
        Box::new(SimpleNotificationCode::default()),
        200,
    );
    let scheduler = scheduler.await.unwrap();
    looks.lock().unwrap().1 = Some(scheduler.context.job_activation_tx.subscribe());
    let mut model = EngineModel::default();
    let india = FixedOffset::east_opt(19_800).unwrap();
    let expressions = [
        "* * * * * *",
        "*/2 * * * * *",
        "1/3 * * * * *",
        "*/5 * * * * *",
        "0 0 0 1 1 *",
    ];
    for (expression, offset) in expressions
        .map(|expression| (expression, None))
        .into_iter()
        .chain([("*/2 * * * * *", Some(india)), ("30 59 23 31 12 *", Some(india))])
    {
        let work =
            |_: Uuid, _: JobScheduler| -> Pin<Box<dyn Future<Output = ()> + Send>> { Box::pin(async {}) };
        let before = Utc::now();
        let mut job = match offset {
            Some(offset) => Job::new_async_tz(expression, offset, work).unwrap(),
            None => Job::new_async(expression, work).unwrap(),
        };
        let data = job.job_data().unwrap();
        let cron = data.schedule().unwrap();
        let frozen = FixedOffset::east_opt(data.time_offset_seconds).unwrap();
        let after: After = Arc::new(move |at| {
            let next = cron.iter_after(at.with_timezone(&frozen)).next();
            next.map(|next| next.with_timezone(&Utc))
        });
        // A second may have gone by in between.
        let first = |at| after(at).map(|first| first.timestamp() as u64);
        let made = [before, Utc::now()]
            .into_iter()
            .find(|at| first(*at) == Some(data.next_tick));
        let made = made.unwrap_or_else(|| panic!("{expression}: {} at {before}", data.next_tick));
        model.add(job.guid(), made, after);
        scheduler.add(job).await.unwrap();
    }
    scheduler.start().await.unwrap();
    let mut stalls = [2, 5]
        .map(|after| Utc::now() + Duration::from_secs(after))
        .into_iter()
        .peekable();
    let until = Utc::now() + Duration::from_secs(8);
    while Utc::now() < until {
        if stalls.next_if(|stall| Utc::now() >= *stall).is_some() {
            // What it slept through it fires once.
            std::thread::sleep(ms(1_700));
        }
        sleep(ms(10)).await;
    }
    scheduler.clone().shutdown().await.unwrap();
    let looks = looks.lock().unwrap().0.clone();
    let mut compared = 0;
    // What came of the last one is not known.
    for two in looks.windows(2) {
        let [(look, real), (next, _)] = two else {
            unreachable!()
        };
        let gap = (*next - *look).to_std().unwrap();
        assert!(gap + ms(2) >= LOOKS_EVERY, "{gap:?}");
        let before = model.clone();
        let mut modelled = BTreeSet::from_iter(model.look(*look));
        if modelled != *real && ms(u64::from(look.timestamp_subsec_millis())) < UNSURE {
            model = before;
            modelled = BTreeSet::from_iter(model.look(*look - UNSURE));
        }
        assert_eq!(modelled, *real, "at {look}, of {looks:#?}");
        compared += real.len();
    }
    println!("{compared} fires in {} looks", looks.len());
    assert!(
        compared > 10 && looks.len() > 5,
        "{compared} fires in {} looks",
        looks.len()
    );
}
