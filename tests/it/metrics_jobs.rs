//! The gauges of a job, in a process of its own: they are those of the process.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::scheduler::JobError;
use tenure::testing::{Replica, Simulation, fire_tick};
use tenure::{Locks, MemoryStore};
use tokio::sync::Notify;

use crate::help::{block_on, ms, soon, until};
use crate::support::alone::alone;
use crate::support::meter::Meter;

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn a_job_shows_its_success_when_the_next_is_due_and_its_pause() {
    alone(
        "metrics_jobs::a_job_shows_its_success_when_the_next_is_due_and_its_pause",
        || {
            block_on(shows());
        },
    );
}

/// Returns the latest two o'clock, and the present time, in seconds since 1970.
fn two_o_clock() -> (Duration, f64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let since = (now - Duration::from_secs(7_200)).as_secs() % 86_400;
    (Duration::from_secs(now.as_secs() - since), now.as_secs_f64())
}

async fn shows() {
    let meter = Meter::global();
    let store = MemoryStore::new();
    let node = || Locks::builder().lease(ms(5_000)).memory_shared(&store).unwrap();
    let gauge = |name: &str| {
        let series = format!("tenure_job_{name}{{job_name=nightly}}");
        meter.gauge(&series).unwrap_or_else(|| panic!("no {series}"))
    };
    let success = || gauge("last_success_timestamp_seconds");
    let due = || gauge("success_due_timestamp_seconds");
    let (goes_on, locks) = (Arc::new(Notify::new()), node());
    let waits = goes_on.clone();
    let job = locks.cron("nightly", "0 0 2 * * *").run(move |_| {
        let waits = waits.clone();
        async move { waits.notified().await }
    });
    let job = job.unwrap();
    let (latest, now) = two_o_clock();
    let next = (latest + DAY).as_secs_f64();
    // Without a success it is due at the next tick, not at one before the job was made. Both timestamps are shown after the first
    // look: a 0 before it would be a success of 1970.
    let series = ["last_success", "success_due"]
        .map(|name| format!("tenure_job_{name}_timestamp_seconds{{job_name=nightly}}"));
    assert_eq!(series.each_ref().map(|series| meter.gauge(series)), [None; 2]);
    until("it has looked", || meter.gauge(&series[1]).is_some()).await;
    assert_eq!(
        (success(), due(), gauge("paused"), gauge("running")),
        (0.0, next, 0.0, 0.0)
    );
    assert!(now < next);

    // A triggered success of yesterday changes nothing: no tick since then was scheduled.
    let (yesterday, run) = (UNIX_EPOCH + latest - DAY, locks.clone());
    let run = tokio::spawn(async move { fire_tick(&run, "nightly", yesterday).await });
    until("it runs", || gauge("running") == 1.0).await;
    goes_on.notify_one();
    assert_eq!(soon(run).await.unwrap(), "done");
    let at = (latest - DAY).as_secs_f64();
    assert_eq!((success(), due(), gauge("running")), (at, next, 0.0));
    assert_eq!(meter.values("tenure_job_run_seconds{job_name=nightly}").len(), 1);

    // A replica that starts now shows the same after its first look.
    drop(job);
    drop(locks);
    until("nothing is known", || success().is_nan() && due().is_nan()).await;
    assert_eq!(gauge("paused"), 0.0);
    let other = node();
    let job = other
        .cron("nightly", "0 0 2 * * *")
        .run(|_| async { Err::<(), _>("no") })
        .unwrap();
    until("it has looked", || success() == at).await;
    assert_eq!(due(), next);

    // A failure changes nothing.
    assert_eq!(fire_tick(&other, "nightly", UNIX_EPOCH + latest).await, "failed");
    assert_eq!((success(), due()), (at, next));

    other.jobs().pause("nightly", "ann", "").await.unwrap();
    until("it shows the pause", || gauge("paused") == 1.0).await;
    other.jobs().resume("nightly", false, "ann", "").await.unwrap();
    until("it shows the end of the pause", || gauge("paused") == 0.0).await;
    assert_eq!((success(), due()), (at, next));

    // A job of two `Locks` is known until both have ended.
    let third = node();
    let of_third = third.cron("nightly", "0 0 2 * * *").run(|_| async {}).unwrap();
    drop(job);
    drop(other);
    assert_eq!(due(), next);
    third.shutdown().await;
    until("nothing is known", || success().is_nan() && due().is_nan()).await;
    drop(of_third);
    assert!(due().is_nan());
}

#[test]
fn a_success_is_due_since_the_store_first_saw_the_schedule() {
    alone(
        "metrics_jobs::a_success_is_due_since_the_store_first_saw_the_schedule",
        || {
            let mut paused = tokio::runtime::Builder::new_current_thread();
            let paused = paused.enable_all().start_paused(true).build().unwrap();
            paused.block_on(is_due_since());
        },
    );
}

/// Starts a replica with a daily job, and lets it look.
async fn start(sim: &Simulation, ahead: Duration, cron: &'static str, fails: bool) -> Replica {
    let setup = async |locks: Locks, scheduler| {
        let job = locks.cron("daily", cron);
        let job = job.run(move |_| async move { if fails { Err("no") } else { Ok(()) } })?;
        locks.add_job(&scheduler, job).await?;
        Ok::<(), JobError>(())
    };
    let replica = sim.replica("a").clock_ahead_ms(ahead.as_millis() as i64);
    let replica = replica.start(setup).await;
    sim.run_for(Duration::from_secs(60)).await;
    replica
}

async fn is_due_since() {
    let (meter, sim) = (Meter::global(), Simulation::at("2026-10-01T12:00:00Z"));
    // Two o'clock in the afternoon of the first day.
    let at_two = (sim.now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(7_200)).as_secs_f64();
    let (day, hour) = (DAY.as_secs_f64(), 3_600.0);
    let shown = || {
        ["last_success", "success_due"].map(|name| {
            let gauge = meter.gauge(&format!("tenure_job_{name}_timestamp_seconds{{job_name=daily}}"));
            gauge.unwrap_or_else(|| panic!("no {name}"))
        })
    };
    let fails = start(&sim, Duration::ZERO, "0 0 14 * * *", true).await;
    assert_eq!(shown(), [0.0, at_two]);
    sim.run_until("2026-10-01T15:00:00Z").await;
    assert_eq!(shown(), [0.0, at_two], "the run failed");

    // Neither a start nor a wrong clock postpones what is due.
    fails.crash();
    let restarted = start(&sim, Duration::ZERO, "0 0 14 * * *", true).await;
    assert_eq!(shown(), [0.0, at_two]);
    restarted.crash();
    let ahead = start(&sim, DAY, "0 0 14 * * *", true).await;
    assert_eq!(shown(), [0.0, at_two]);
    ahead.crash();

    let works = start(&sim, Duration::ZERO, "0 0 14 * * *", false).await;
    sim.run_until("2026-10-02T16:00:00Z").await;
    assert_eq!(shown(), [at_two + day, at_two + 2.0 * day]);

    // A deploy changes the schedule: no success was due at three o'clock before it.
    works.crash();
    let deployed = start(&sim, Duration::ZERO, "0 0 15 * * *", false).await;
    assert_eq!(shown(), [at_two + day, at_two + 2.0 * day + hour]);

    // What was due in a pause is due no more when it ends.
    let jobs = deployed.locks().jobs();
    jobs.pause("daily", "ann", "").await.unwrap();
    sim.run_until("2026-10-03T16:00:00Z").await;
    assert_eq!(shown(), [at_two + day, at_two + 2.0 * day + hour]);
    jobs.resume("daily", false, "ann", "").await.unwrap();
    sim.run_for(Duration::from_secs(60)).await;
    assert_eq!(shown(), [at_two + day, at_two + 3.0 * day + hour]);
    sim.run_until("2026-10-04T16:00:00Z").await;
    assert_eq!(shown(), [at_two + 3.0 * day + hour, at_two + 4.0 * day + hour]);
    drop(deployed);
}

#[test]
fn only_the_first_hundred_names_have_gauges_and_all_are_counted() {
    alone(
        "metrics_jobs::only_the_first_hundred_names_have_gauges_and_all_are_counted",
        || {
            block_on(hundred());
        },
    );
}

async fn hundred() {
    let meter = Meter::global();
    let locks = Locks::memory();
    let made = (0..103).map(|job| {
        let job = locks.cron(format!("job:{job}"), "0 0 2 * * *");
        job.run(|_| async {}).unwrap()
    });
    let made: Vec<_> = made.collect();
    let tick = UNIX_EPOCH + two_o_clock().0;
    for job in [99, 100, 101, 102] {
        assert_eq!(fire_tick(&locks, format!("job:{job}"), tick).await, "done");
    }
    let ticks = |job: &str| meter.count(&format!("tenure_ticks_total{{job_name={job},outcome=done}}"));
    assert_eq!((ticks("job:99"), ticks("job:100"), ticks("other")), (1, 0, 3));
    let paused = |job: &str| meter.gauge(&format!("tenure_job_paused{{job_name={job}}}"));
    assert_eq!((paused("job:99"), paused("other")), (Some(0.0), None));
    assert_eq!(meter.values("tenure_job_run_seconds{job_name=other}").len(), 3);
    drop(made);
}
