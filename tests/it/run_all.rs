//! Jobs that skip no tick, although something blocked their ticks before.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::protocol::ledger::JobRecord as StoredJob;
use tenure::protocol::message::{Name, TickTime};
use tenure::scheduler::Misfire;
use tenure::{Locks, MemoryStore, Tick};
use tokio::sync::watch;
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::help::{known_since_ever, soon, two, until};
use crate::support::events::Watch;
use crate::support::jobs::ByHand;

const HOUR: Duration = Duration::from_secs(3_600);
const ALL: Misfire = Misfire::RunAll {
    within: Duration::from_secs(24 * 3_600),
    at_most: 9,
};

/// The runs: hour and attempt.
type Ran = Arc<Mutex<Vec<(u64, u32)>>>;

fn note(ran: &Ran, tick: &Tick) {
    let line = (tick.nominal_unix() / HOUR.as_secs(), tick.attempt());
    ran.lock().unwrap().push(line);
}

fn noting(ran: &Ran) -> impl Fn(Tick) -> std::future::Ready<()> + Send + Sync + 'static {
    let ran = ran.clone();
    move |tick| {
        note(&ran, &tick);
        std::future::ready(())
    }
}

/// Returns the current hour. Waits if the next hour is near, as it adds a tick.
fn hour() -> u64 {
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let left = HOUR.as_secs() - now.as_secs() % HOUR.as_secs();
        if left > 60 {
            return now.as_secs() / HOUR.as_secs();
        }
        std::thread::sleep(Duration::from_secs(left));
    }
}

fn at(hour: u64) -> TickTime {
    TickTime(hour * HOUR.as_millis() as u64)
}

/// The store's record of a job that runs each hour.
fn record((mark, done): (u64, bool), skipped: Option<u64>) -> StoredJob {
    StoredJob {
        mark: Some(at(mark)),
        done,
        attempt: 1,
        skipped: skipped.map(at),
        ..StoredJob::default()
    }
}

/// The job's policy was to skip, and its latest tick came during a slow run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_skipped_tick_blocks_no_other_tick() {
    let (store, now) = (MemoryStore::new(), hour());
    type Case<'a> = (&'a str, (u64, bool), u64, &'a [(u64, u32)]);
    let cases: [Case<'_>; 3] = [
        ("just before", (now - 2, true), now - 1, &[(now, 1)]),
        (
            "long before",
            (now - 5, true),
            now - 3,
            &[(now - 2, 1), (now - 1, 1), (now, 1)],
        ),
        (
            "during a run",
            (now - 2, false),
            now - 1,
            &[(now - 2, 2), (now, 1)],
        ),
    ];
    for (name, mark, skipped, expected) in cases {
        let job = |locks: &Locks| locks.every(name, HOUR).run(|_| async {}).unwrap();
        known_since_ever((&store, name), job, record(mark, Some(skipped))).await;
        let watch = Watch::of(format!("job={name} "));
        let (ran, (one, other)) = (Ran::default(), two(&store));
        let make = |locks: &Locks| locks.every(name, HOUR).misfire(ALL).run(noting(&ran)).unwrap();
        let _jobs = (make(&one), make(&other));
        until(name, || ran.lock().unwrap().len() >= expected.len()).await;
        // The next hour may have begun since.
        assert_eq!(ran.lock().unwrap()[..expected.len()], *expected, "{name}");
        soon(async { while one.drain(Duration::ZERO).await.is_err() {} }).await;
        soon(async { while other.drain(Duration::ZERO).await.is_err() {} }).await;
        let told = watch.count("tick");
        assert!(told <= 4 * (expected.len() + 3), "{name}: told of {told} ticks");
    }
}

/// A node learns a job's schedule only when the job fires, and comes while another node runs its tick.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_from_before_the_job_fires_continues_from_its_tick() {
    let (store, now) = (MemoryStore::new(), hour());
    let job = |locks: &Locks| {
        let job = locks.cron("deployed", "0 0 * * * *").timezone("UTC");
        job.run(|_| async {}).unwrap()
    };
    known_since_ever((&store, "deployed"), job, record((now - 1, false), None)).await;
    let watch = Watch::of("job=deployed ");
    let (one, other) = two(&store);
    let (ran, others) = (Ran::default(), Ran::default());
    let (ends, ended) = watch::channel(false);
    let slow = {
        let ran = ran.clone();
        move |tick: Tick| {
            note(&ran, &tick);
            let mut ended = ended.clone();
            async move {
                let _ = ended.wait_for(|ended| *ended).await;
            }
        }
    };
    let _slow = one.job_builder("deployed").misfire(ALL).run(slow).unwrap();
    until("the open tick is run", || !ran.lock().unwrap().is_empty()).await;
    let mut fire = other
        .job_builder("deployed")
        .misfire(ALL)
        .run(noting(&others))
        .unwrap();
    let name = Name::job("deployed".into());
    let standing = || store.with_ledger(|ledger, _| ledger.waiters(&name).len());
    until("it stands by", || standing() == 1).await;
    let scheduler = JobScheduler::new().await.unwrap();
    let hourly = Job::new_async("0 0 * * * *", |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(hourly).await.unwrap();
    // The tick that it fires is left to the standby.
    soon(fire(id, scheduler)).await;
    assert_eq!(others.lock().unwrap().len(), 0);
    ends.send(true).unwrap();
    until("the next is run", || !others.lock().unwrap().is_empty()).await;
    assert_eq!(ran.lock().unwrap()[0], (now - 1, 2));
    assert_eq!(others.lock().unwrap()[0], (now, 1));
    soon(async { while one.drain(Duration::ZERO).await.is_err() {} }).await;
    soon(async { while other.drain(Duration::ZERO).await.is_err() {} }).await;
    let told = watch.count("tick");
    assert!(told <= 6, "told of {told} ticks: {:#?}", watch.told());
}
