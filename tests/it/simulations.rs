//! The simulation for users' tests: its clocks, and the proof that it runs the shipped code.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use tenure::scheduler::{HistoryEntry, JobError, RunOutcome, RunState};
use tenure::testing::{Replica, Simulation};
use tenure::{Error, Locks, Tick};
use tokio_cron_scheduler::JobScheduler;

use crate::support::events::Watch;

/// The replica, the tick, the attempt, and whether the run ended.
type Runs = Arc<Mutex<Vec<(&'static str, u64, u32, bool)>>>;

async fn schedule(
    locks: Locks,
    scheduler: JobScheduler,
    who: &'static str,
    runs: Runs,
) -> Result<(), JobError> {
    let job = locks.cron("reconcile", "0 0 0 * * *").timezone("Europe/Berlin");
    let job = job.run(move |tick: Tick| {
        let runs = runs.clone();
        let note = move |ends| {
            runs.lock()
                .unwrap()
                .push((who, tick.nominal_unix(), tick.attempt(), ends))
        };
        async move {
            note(false);
            tokio::time::sleep(Duration::from_secs(1800)).await;
            note(true);
        }
    })?;
    locks.add_job(&scheduler, job).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_week_of_three_replicas_with_a_change_of_clocks_and_a_crash() {
    let (runs, began) = (Runs::default(), std::time::Instant::now());
    let sim = Simulation::at("2026-10-22T12:00:00Z");
    let mut replicas: Vec<Replica> = Vec::new();
    for (name, ahead_ms) in [("a", 0), ("b", 40_000), ("c", -3_000)] {
        let replica = sim.replica(name).clock_ahead_ms(ahead_ms);
        let setup = |locks, scheduler| schedule(locks, scheduler, name, runs.clone());
        replicas.push(replica.start(setup).await);
    }
    // In the middle of a run.
    sim.run_until("2026-10-26T23:10:00Z").await;
    let winner = runs.lock().unwrap().last().expect("it runs").0;
    let at = replicas.iter().position(|replica| replica.name() == winner);
    replicas.remove(at.expect("it is one of them")).crash();
    sim.run_until("2026-10-29T12:00:00Z").await;
    let ended: Vec<_> = runs
        .lock()
        .unwrap()
        .iter()
        .filter(|run| run.3)
        .map(|run| (run.1, run.2))
        .collect();
    // Midnight in Berlin: 22:00 UTC, and 23:00 from the 25th on.
    let midnights = (0..7).map(|day| 1_792_706_400 + day * 86_400 + if day > 2 { 3_600 } else { 0 });
    let expected: Vec<_> = midnights.zip([1, 1, 1, 1, 2, 1, 1]).collect();
    assert_eq!(ended, expected);
    check_history(&replicas[0], &ended, winner).await;
    println!(
        "a week of three replicas, with a run of half an hour each night, in {:?}",
        began.elapsed()
    );
}

/// Checks that the history has these ticks with their attempts, and the run that was cut short on `killed`.
async fn check_history(replica: &Replica, ended: &[(u64, u32)], killed: &str) {
    let jobs = replica.locks().jobs();
    let history = jobs.history("reconcile", SystemTime::UNIX_EPOCH).await.unwrap();
    let (mut done, mut lost) = (Vec::new(), Vec::new());
    for entry in history.expect("the store knows the job").entries {
        let HistoryEntry::Run(run) = entry else {
            panic!("each midnight has a run: {entry:?}")
        };
        let tick = run.tick.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        if run.state == RunState::Ended(RunOutcome::Done) {
            assert_eq!(run.took, Some(Duration::from_secs(1800)));
            done.push((tick, run.attempt));
        } else {
            assert_eq!(run.state, RunState::Lost);
            lost.push((tick, run.attempt, run.node_name.to_string()));
        }
    }
    assert_eq!(done, ended);
    assert_eq!(lost, [(ended[4].0, 1, killed.to_owned())]);
    let job = jobs
        .show("reconcile")
        .await
        .unwrap()
        .expect("the store knows the job");
    let mut names: Vec<_> = job.nodes.iter().map(|node| node.name.to_string()).collect();
    names.sort();
    assert_eq!(names.len(), 2, "{names:?} without {killed}");
    assert!(!names.contains(&killed.to_owned()));
    let plan = job.plan.expect("the nodes told it");
    assert_eq!((&*plan.zone, &*plan.expression), ("Europe/Berlin", "0 0 0 * * *"));
    assert_eq!(job.last_success, job.latest.map(|run| run.tick));
    assert_eq!(
        job.next.map(|next| next.duration_since(job.now).unwrap()),
        Some(Duration::from_secs(11 * 3600))
    );
}

#[tokio::test(start_paused = true)]
async fn one_run_of_one_tick() {
    let runs = Runs::default();
    let sim = Simulation::at("2026-10-22T12:00:00Z");
    let replica = sim
        .replica("a")
        .start(|locks, scheduler| schedule(locks, scheduler, "a", runs.clone()))
        .await;
    let nominal = sim.now() - Duration::from_secs(60);
    assert_eq!(replica.fire_tick("reconcile", nominal).await, "done");
    assert_eq!(replica.fire_tick("reconcile", nominal).await, "elsewhere");
    // The simulation waits for the future.
    let nominal = sim.now() + Duration::from_secs(60);
    assert_eq!(replica.fire_tick("reconcile", nominal).await, "done");
    assert!(sim.now() >= nominal);
    assert_eq!(runs.lock().unwrap().len(), 4);
}

#[tokio::test]
#[should_panic(expected = "start_paused = true")]
async fn a_clock_that_runs_is_refused() {
    Simulation::at("2026-10-22T12:00:00Z");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_its_service_removes_is_not_run_again() {
    let runs = Runs::default();
    let sim = Simulation::at("2026-10-22T12:00:00Z");
    let replica = sim
        .replica("a")
        .start(|locks, scheduler| schedule(locks, scheduler, "a", runs.clone()))
        .await;
    sim.run_for(Duration::from_secs(86_400)).await;
    assert_eq!(runs.lock().unwrap().len(), 2);
    let scheduler = replica.scheduler();
    let listing = scheduler.context.metadata_storage.write().await.list_next_ticks();
    for tick in listing.await.expect("it is in memory") {
        scheduler
            .remove(&tick.id.expect("it has one").into())
            .await
            .expect("it is there");
    }
    sim.run_for(Duration::from_secs(3 * 86_400)).await;
    assert_eq!(runs.lock().unwrap().len(), 2);
}

/// Kills the first of the standbys: nothing is handed to it, and no replica waits for its lease to end.
async fn a_standby_is_killed(comes_back_from_a_copy: bool) {
    let runs = Runs::default();
    let sim = Simulation::at("2026-10-22T21:59:00Z");
    let mut replicas = Vec::new();
    for (name, phase) in [("a", 100), ("b", 200), ("c", 300)] {
        let replica = sim.replica(name).phase(Duration::from_millis(phase));
        let setup = |locks, scheduler| schedule(locks, scheduler, name, runs.clone());
        replicas.push(replica.start(setup).await);
    }
    sim.run_until("2026-10-22T22:00:10Z").await;
    let midnight = runs.lock().unwrap()[0].1;
    assert_eq!(*runs.lock().unwrap(), [("a", midnight, 1, false)]);
    let copy = sim.store().copy();
    replicas.remove(1).crash();
    sim.run_for(Duration::from_millis(1)).await;
    if comes_back_from_a_copy {
        sim.store().restart_from(&copy);
    }
    sim.run_for(Duration::from_secs(1)).await;
    replicas.remove(0).shut_down(Duration::ZERO).await.unwrap();
    sim.run_for(Duration::from_secs(3)).await;
    assert_eq!(runs.lock().unwrap()[1..], [("c", midnight, 2, false)]);
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_was_killed_is_passed_over() {
    a_standby_is_killed(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_was_killed_is_passed_over_when_its_place_comes_back_with_a_copy() {
    a_standby_is_killed(true).await;
}

/// The instants of daily jobs in a year, by zone and time of day; `tests/zones/expected.py` generates them.
const EXPECTED: &str = include_str!("../../src/scheduler/zones.csv");

/// Returns each zone, its local time, and its instants of a year.
fn years() -> Vec<(&'static str, Vec<u64>)> {
    let mut years: Vec<(&str, Vec<u64>)> = Vec::new();
    for line in EXPECTED.lines() {
        let words: Vec<&str> = line.split(',').collect();
        let [zone, "00:00", first, last, offset] = words[..] else {
            continue;
        };
        if years.last().is_none_or(|(of, _)| *of != zone) {
            years.push((zone, Vec::new()));
        }
        let days = &mut years.last_mut().expect("it was put there").1;
        let (mut day, last): (NaiveDate, NaiveDate) = (first.parse().unwrap(), last.parse().unwrap());
        while let (true, Ok(offset)) = (day <= last, offset.parse::<i64>()) {
            let midnight = day.and_time(NaiveTime::MIN).and_utc().timestamp();
            days.push((midnight + offset) as u64);
            day = day.succ_opt().unwrap();
        }
    }
    years
}

/// Checked with the jobs, the engine and the store. Replicas were started before the clock changes, after them and in
/// between, and one is killed now and then.
#[tokio::test(start_paused = true)]
async fn a_year_of_midnights_in_five_zones() {
    let years = years();
    assert_eq!(years.len(), 5);
    for (zone, midnights) in years {
        let runs: Arc<Mutex<Vec<u64>>> = Arc::default();
        let (first, last) = (midnights[0], *midnights.last().unwrap());
        let text = |unix: u64| {
            DateTime::<Utc>::from_timestamp(unix as i64, 0)
                .unwrap()
                .to_rfc3339()
        };
        let sim = Simulation::at(&text(first - 3_600));
        let setup = async |locks: Locks, scheduler: JobScheduler| {
            let runs = runs.clone();
            let job = locks
                .cron("daily", "0 0 0 * * *")
                .timezone(zone)
                .run(move |tick: Tick| {
                    runs.lock().unwrap().push(tick.nominal_unix());
                    async {}
                })?;
            locks.add_job(&scheduler, job).await?;
            Ok::<_, JobError>(())
        };
        let _oldest = sim.replica("oldest").start(&setup).await;
        let mut other: Option<Replica> = None;
        for month in 0..12 {
            if let Some(other) = other.take() {
                other.crash();
            }
            other = Some(sim.replica(format!("of month {month}")).start(&setup).await);
            sim.run_until(&text(first + (last - first) / 12 * (month + 1)))
                .await;
        }
        sim.run_until(&text(last + 3_600)).await;
        assert_eq!(*runs.lock().unwrap(), midnights, "{zone}");
    }
}

/// On Redis a server failure is one event, and its return is one event. The simulation emits the same for each
/// outage.
#[tokio::test(start_paused = true)]
async fn each_outage_is_reported_with_its_end() {
    let sim = Simulation::at("2026-10-22T12:00:00Z");
    let replica = sim
        .replica("told of each outage")
        .start(async |_, _| Ok::<_, Error>(()))
        .await;
    let watch = Watch::of("node_name=told of each outage ");
    let mutex = replica.locks().mutex("a");
    for round in 1..=3 {
        mutex.lock().await.unwrap().release().await.unwrap();
        sim.store().go_away();
        for _ in 0..10 {
            assert!(mutex.lock().await.unwrap_err().is_unreachable());
        }
        sim.store().come_back();
        // A store that fails again within five seconds had not recovered.
        sim.run_for(Duration::from_secs(6)).await;
        mutex.lock().await.unwrap().release().await.unwrap();
        assert_eq!(
            (watch.count("store_failing"), watch.count("store_recovered")),
            (round, round),
            "{:#?}",
            watch.told()
        );
    }
}

/// Returns how often a replica's driver slept until its next due time, and how long the machine took.
async fn cost_of(sim: &Simulation, span: Duration) -> (u64, Duration) {
    let sleeps = || tokio::runtime::Handle::current().metrics().worker_park_count(0);
    let (before, began) = (sleeps(), std::time::Instant::now());
    sim.run_for(span).await;
    (sleeps() - before, began.elapsed())
}

/// Checks the costs in the docs of `SimulatedStore::go_away`.
#[tokio::test(start_paused = true)]
async fn an_outage_costs_what_reconnecting_once_a_second_costs() {
    let (hour, runs) = (Duration::from_secs(3600), Runs::default());
    let sim = Simulation::at("2026-10-22T12:00:00Z");
    let replica = sim
        .replica("a")
        .start(|locks, scheduler| schedule(locks, scheduler, "a", runs.clone()))
        .await;
    // A caller waited for a grant, so the node wants an inbox.
    let locks = replica.locks();
    locks.mutex("a").lock().await.unwrap().release().await.unwrap();
    let quiet = cost_of(&sim, hour).await;
    sim.store().go_away();
    let away = cost_of(&sim, hour).await;
    sim.store().come_back();
    let back = cost_of(&sim, hour).await;
    println!("an hour: {quiet:?}; of an outage: {away:?}; after it: {back:?}");
    // Pauses last half a second to a second; each ends with a few polls for readable data.
    assert!((3_600..8 * 3_600).contains(&away.0), "{away:?}");
    assert!(quiet.0 < 100 && back.0 < 100, "{quiet:?} {back:?}");
}
