//! Jobs with their own schedules: zones, periods, and clocks that their engine gets wrong.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::error::LostCause;
use tenure::scheduler::JobError;
use tenure::{Locks, Tick};
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::help::{ms, soon, until};
use crate::support::events::Watch;
use crate::support::jobs::ByHand;

/// Records the ticks that it runs.
#[derive(Clone, Default)]
struct Ticks(Arc<Mutex<Vec<u64>>>);

impl Ticks {
    fn note(&self) -> impl Fn(Tick) -> std::future::Ready<()> + Send + Sync + 'static {
        let ticks = self.clone();
        move |tick| {
            ticks.0.lock().unwrap().push(tick.nominal_unix());
            std::future::ready(())
        }
    }

    fn all(&self) -> Vec<u64> {
        self.0.lock().unwrap().clone()
    }
}

async fn refused(made: Result<Job, JobError>, why: &str) {
    match made {
        Err(error @ JobError::Unfit { .. }) => {
            assert!(error.to_string().contains(why), "{error}");
            assert!(error.to_string().contains("the job `bad` cannot"), "{error}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{why}"),
    }
}

#[tokio::test]
async fn an_invalid_expression_zone_or_period_is_refused_at_construction() {
    let locks = Locks::memory();
    let work = |_: Tick| async {};
    for bad in ["", "nonsense", "* * * * *", "60 * * * * *", "* * * 32 * *"] {
        refused(locks.cron("bad", bad).run(work), "not a cron expression").await;
    }
    for bad in ["", "Europe", "Europe/Atlantis", "+01:00"] {
        let job = locks.cron("bad", "0 0 0 * * *").timezone(bad);
        refused(job.run(work), "not a time zone").await;
    }
    for bad in [Duration::ZERO, ms(500), ms(1_500)] {
        refused(locks.every("bad", bad).run(work), "whole seconds").await;
    }
    let zero = locks.cron("bad", "0 0 0 * * *").lease(Duration::ZERO).run(work);
    assert!(matches!(zero, Err(JobError::Options(_))));
    let zero = locks.cron("bad", "0 0 0 * * *").timeout(Duration::ZERO).run(work);
    assert!(matches!(zero, Err(JobError::Options(_))));
    // None of the refused jobs has kept the name.
    let kept = locks
        .cron("bad", "0 0 0 * * *")
        .timezone("Europe/Berlin")
        .run(work)
        .unwrap();
    let twice = locks.every("bad", ms(1_000)).run(work);
    assert!(matches!(twice, Err(JobError::Duplicate { .. })));
    drop(kept);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_with_a_zone_are_run_whichever_way_they_were_made() {
    let locks = Locks::memory();
    let scheduler = JobScheduler::new().await.unwrap();
    let [by_cron, by_name, by_period] = [(); 3].map(|()| Ticks::default());
    let cron = locks.cron("by cron", "* * * * * *").timezone("Asia/Kolkata");
    let zone = chrono_tz::Asia::Kolkata;
    let named = locks
        .cron("by zone", "* * * * * *")
        .timezone(zone)
        .run(by_name.note());
    let period = locks.every("by period", ms(2_000)).run(by_period.note());
    for job in [cron.run(by_cron.note()).unwrap(), named.unwrap(), period.unwrap()] {
        locks.add_job(&scheduler, job).await.unwrap();
    }
    scheduler.start().await.unwrap();
    until("all are run", || {
        by_cron.all().len() >= 3 && by_name.all().len() >= 3 && by_period.all().len() >= 2
    })
    .await;
    for ticks in [&by_cron, &by_name, &by_period] {
        let ticks = ticks.all();
        assert!(
            ticks.windows(2).all(|two| two[0] < two[1]),
            "each once: {ticks:?}"
        );
    }
    assert!(
        by_period.all().iter().all(|tick| tick % 2 == 0),
        "{:?}",
        by_period.all()
    );
    scheduler.clone().shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_its_engine_fires_at_other_moments_is_started_by_the_nodes_clock() {
    // After a change of clocks, the engine continues with the offset that it froze.
    let (locks, ticks, watch) = (Locks::memory(), Ticks::default(), Watch::of("job=frozen "));
    let scheduler = JobScheduler::new().await.unwrap();
    let job = locks.cron("frozen", "* * * * * *").timezone("Europe/Berlin");
    let id = locks
        .add_job(&scheduler, job.run(ticks.note()).unwrap())
        .await
        .unwrap();
    let data = scheduler.context.metadata_storage.clone();
    let later = chrono::Utc::now() + ms(3_600_000);
    let set = data.write().await.set_next_and_last_tick(id, Some(later), None);
    set.await.unwrap();
    scheduler.start().await.unwrap();
    until("it is run", || ticks.all().len() >= 3).await;
    watch.until("engine_missed").await;
    let ticks = ticks.all();
    assert!(ticks.windows(2).all(|two| two[0] < two[1]), "{ticks:?}");
    scheduler.clone().shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_scheduler_has_the_nodes_clock_beside_it() {
    let (locks, ticks) = (Locks::memory(), Ticks::default());
    let mut before = JobScheduler::new().await.unwrap();
    let other = locks.cron("before", "0 0 0 1 1 *").run(|_| async {}).unwrap();
    locks.add_job(&before, other).await.unwrap();
    before.shutdown().await.unwrap();
    // The scheduler is never started, so it fires nothing.
    let scheduler = JobScheduler::new().await.unwrap();
    let job = locks.cron("replaced", "* * * * * *").run(ticks.note()).unwrap();
    locks.add_job(&scheduler, job).await.unwrap();
    until("it is run", || ticks.all().len() >= 2).await;
    scheduler.clone().shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_was_never_added_is_never_run() {
    let (locks, idle, added) = (Locks::memory(), Ticks::default(), Ticks::default());
    let _kept = locks.cron("kept", "* * * * * *").run(idle.note()).unwrap();
    let job = Job::new_async("* * * * * *", locks.job("added", added.note()).unwrap()).unwrap();
    let scheduler = JobScheduler::new().await.unwrap();
    scheduler.add(job).await.unwrap();
    scheduler.start().await.unwrap();
    until("others are run", || added.all().len() >= 4).await;
    assert!(idle.all().is_empty());
    scheduler.clone().shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_lasts_too_long_is_cancelled_and_its_tick_is_over() {
    let (locks, watch) = (Locks::memory(), Watch::of("job=too long "));
    let (dropped, cause) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
    struct Noted(Arc<AtomicUsize>);
    impl Drop for Noted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (drops, causes) = (dropped.clone(), cause.clone());
    let work = move |tick: Tick| {
        let (noted, causes, lost) = (Noted(drops.clone()), causes.clone(), tick.lost());
        tokio::spawn(async move { *causes.lock().unwrap() = Some(lost.await) });
        async move {
            let _noted = noted;
            std::future::pending::<()>().await;
        }
    };
    let scheduler = JobScheduler::new().await.unwrap();
    let job = Job::new_async("0 0 0 1 1 *", |_, _| Box::pin(async {})).unwrap();
    let id = scheduler.add(job).await.unwrap();
    let mut fire = locks.job_builder("too long").timeout(ms(100)).run(work).unwrap();
    soon(fire(id, scheduler.clone())).await;
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    until("the tasks of the run are told", || {
        cause.lock().unwrap().is_some()
    })
    .await;
    assert_eq!(*cause.lock().unwrap(), Some(LostCause::Released));
    let failed = watch.until("tick_failed").await;
    assert!(failed.text.contains("timeout of 100ms"), "{failed:?}");
    soon(fire(id, scheduler)).await;
    let outcomes: Vec<_> = watch
        .told()
        .into_iter()
        .filter(|told| told.event == "tick")
        .collect();
    assert!(outcomes[0].text.contains("outcome=timed_out"), "{outcomes:?}");
    assert!(
        outcomes[1].text.contains("outcome=elsewhere"),
        "it is not run again: {outcomes:?}"
    );
}

#[tokio::test]
async fn clock_change_days_are_reported_when_a_job_is_made() {
    let (locks, odd, plain) = (Locks::memory(), Watch::of("job=odd "), Watch::of("job=plain "));
    let made = |name: &'static str, expression: &str| {
        locks
            .cron(name, expression)
            .timezone("Europe/Berlin")
            .run(|_| async {})
            .unwrap()
    };
    let _jobs = [made("plain", "0 0 12 * * *"), made("odd", "0 30 2 * * *")];
    let told = odd.until("job_odd_days").await;
    assert!(told.text.contains("02:30:00 comes at 03:00:00"), "{told:?}");
    assert_eq!(plain.count("job_odd_days"), 0);
    let days = tenure::scheduler::explain("0 30 2 * * *", "Europe/Berlin").unwrap();
    assert_eq!(days.len(), 2, "one in each of two years: {days:?}");
    for (expression, zone) in [("nonsense", "UTC"), ("0 0 0 * * *", "Europe/Atlantis")] {
        let refused = tenure::scheduler::explain(expression, zone);
        assert!(matches!(refused, Err(JobError::Unfit { .. })), "{refused:?}");
    }
}
