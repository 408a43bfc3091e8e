//! A table of events and what happens to the job after each. Each row is a simulated test with the same words.
//!
//! | what happens | what happens to the job |
//! |---|---|
//! | several nodes fire, at any phase and skew | one runs the tick |
//! | a clock is ahead | it waits until the store says that it is time |
//! | a clock is far behind, or a node is restarted in the past | it runs nothing |
//! | nodes were started on both sides of a change of clocks | one run for each local date |
//! | the owner dies | a standby runs the tick again within a lease, the margin and a timer |
//! | the owner is stopped past its lease | its successor has a larger fence; the owner is told when it wakes, and its run is dropped |
//! | renewals fail, as the store is away | the run is cancelled by its deadline, and not before |
//! | the store is away at the tick | no replica runs until it is back, and then the newest tick runs once |
//! | the store went backwards | a tick that a node knows to be over is not run again, and each such node reports it |
//! | a run lasts into the next tick | that tick is skipped |
//! | a tick comes while an earlier one is run, and is to be skipped | it is skipped, on every replica |
//! | a tick comes while an earlier one is run, and is to wait | the latest of such ticks is run after it, and the
//! others are skipped |
//! | ticks are missed and are to be skipped | none of them is run |
//! | ticks are missed and the newest is to be run | it is run once, if it is young enough |
//! | ticks are missed and all are to be run | they are run one after the other, from the oldest that is young enough, and not too many |
//! | ticks are missed and clocks are off | the store's clock decides how old a tick is, whichever node fires |
//! | the owner dies again and again | the number of attempts is limited |
//! | the owner dies and its tick is not to be run again | it is over |
//! | a job fails and is to be tried again | the same replica does so under the same lease, after pauses that double |
//! | the owner dies between two tries | a standby runs the tick again, and tries as often |
//! | a job lasts longer than its timeout | it is cancelled then, and its tick is over |
//! | the job fails, panics or lasts too long | its tick is over |
//! | replicas are replaced one by one during a run | a later replica finishes its tick |
//! | a replica is shut down during a run | a standby takes over at once, when the run has ended |
//! | the engine does not fire | the node's own clock starts the tick |
//! | releases differ in the job's expression | both run it, and a warning reports it |

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Tick;
use tenure::scheduler::{JobError, LeasedJob};
use tenure::testing::{Replica, ReplicaBuilder, Simulation};
use tokio::time::{Instant, sleep};

use crate::support::events::Watch;

mod policies;

const MIDNIGHT: &str = "0 0 0 * * *";
const LEASE: Duration = Duration::from_secs(30);
/// A lease, its margin and a waiter's timer.
const TAKEN_OVER: Duration = Duration::from_secs(43);

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// What a run did, and when, counted from the beginning of the simulation.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    what: &'static str,
    at: Duration,
    who: &'static str,
    tick: u64,
    attempt: u32,
    fence: u64,
    is_catch_up: bool,
}

#[derive(Clone)]
struct Log {
    began: Instant,
    lines: Arc<Mutex<Vec<Line>>>,
}

impl Log {
    fn new() -> Log {
        Log {
            began: Instant::now(),
            lines: Arc::default(),
        }
    }

    fn note(&self, what: &'static str, who: &'static str, tick: &Tick) {
        self.lines.lock().unwrap().push(Line {
            what,
            at: self.began.elapsed(),
            who,
            tick: tick.nominal_unix(),
            attempt: tick.attempt(),
            fence: tick.fence().get(),
            is_catch_up: tick.is_catch_up(),
        });
    }

    fn of(&self, what: &str) -> Vec<Line> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|line| line.what == what).cloned().collect()
    }

    /// Returns the only line of this kind.
    fn one(&self, what: &str) -> Line {
        let lines = self.of(what);
        assert_eq!(lines.len(), 1, "{:#?}", self.lines.lock().unwrap());
        lines[0].clone()
    }

    /// Returns how often each tick was run to its end.
    fn ended(&self) -> BTreeMap<u64, usize> {
        let mut ended = BTreeMap::new();
        self.of("ends")
            .iter()
            .for_each(|line| *ended.entry(line.tick).or_default() += 1);
        ended
    }
}

/// Notes when a run is dropped before its end.
struct Run(Log, &'static str, Option<Tick>);

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(tick) = self.2.take() {
            self.0.note("dropped", self.1, &tick);
        }
    }
}

/// A service with one job, which notes what it does.
#[derive(Clone)]
struct Service {
    log: Log,
    job: &'static str,
    expression: &'static str,
    zone: &'static str,
    lasts: Duration,
    /// The number of failures in each run.
    fails: u32,
    set: fn(LeasedJob) -> LeasedJob,
}

impl Service {
    fn new(job: &'static str, expression: &'static str, lasts: Duration) -> Service {
        Service {
            log: Log::new(),
            job,
            expression,
            zone: "UTC",
            lasts,
            fails: 0,
            set: |job| job,
        }
    }

    async fn start(&self, sim: &Simulation, who: &'static str) -> Replica {
        self.start_ahead(sim, who, 0).await
    }

    async fn start_ahead(&self, sim: &Simulation, who: &'static str, ahead_ms: i64) -> Replica {
        self.start_on(sim.replica(who).clock_ahead_ms(ahead_ms), who)
            .await
    }

    async fn start_on(&self, replica: ReplicaBuilder<'_>, who: &'static str) -> Replica {
        let service = self.clone();
        let setup = async move |locks: tenure::Locks, scheduler| {
            let (log, lasts, fails) = (service.log, service.lasts, service.fails);
            let job = locks.cron(service.job, service.expression).timezone(service.zone);
            let job = (service.set)(job).run(move |tick| {
                let log = log.clone();
                async move {
                    log.note("begins", who, &tick);
                    let fails = tick.retry() < fails;
                    let mut run = Run(log.clone(), who, Some(tick));
                    sleep(lasts).await;
                    let tick = run.2.take().expect("it was put there");
                    log.note(if fails { "fails" } else { "ends" }, who, &tick);
                    if fails { Err("it is said so") } else { Ok(()) }
                }
            })?;
            locks.add_job(&scheduler, job).await?;
            Ok::<_, JobError>(())
        };
        replica.start(setup).await
    }

    async fn three(&self, sim: &Simulation) -> HashMap<&'static str, Replica> {
        let mut replicas = HashMap::new();
        for who in ["a", "b", "c"] {
            replicas.insert(who, self.start(sim, who).await);
        }
        replicas
    }
}

#[tokio::test(start_paused = true)]
async fn several_nodes_fire_at_any_phase_and_skew() {
    let sim = Simulation::at("2026-10-01T00:00:30Z");
    let service = Service::new("any-phase", "0 * * * * *", secs(0));
    let mut replicas = Vec::new();
    for (who, ahead_ms) in [
        ("a", 0),
        ("b", 170),
        ("c", -170),
        ("d", 2_000),
        ("e", -2_000),
        ("f", 400),
    ] {
        replicas.push(service.start_ahead(&sim, who, ahead_ms).await);
    }
    sim.run_for(secs(3_600)).await;
    let ended = service.log.ended();
    assert_eq!(ended.len(), 60, "each minute of an hour: {ended:?}");
    assert!(ended.values().all(|runs| *runs == 1), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_clock_is_ahead() {
    let told = Watch::of("is-ahead");
    let sim = Simulation::at("2026-10-01T12:00:00Z");
    let service = Service::new("is-ahead", MIDNIGHT, secs(1));
    let _ahead = service.start_ahead(&sim, "a", 90_000).await;
    sim.run_until("2026-10-02T00:00:00Z").await;
    assert!(service.log.of("begins").is_empty(), "its clock shows half past");
    assert!(told.count("tick_early") > 0);
    sim.run_for(secs(2)).await;
    let ran = service.log.one("ends");
    assert_eq!(
        (ran.attempt, ran.at),
        (1, secs(12 * 3600 + 1)),
        "as soon as it is time"
    );
}

#[tokio::test(start_paused = true)]
async fn a_clock_is_far_behind_or_a_node_is_restarted_in_the_past() {
    let sim = Simulation::at("2026-10-01T12:00:00Z");
    let service = Service::new("far-behind", MIDNIGHT, secs(1));
    let replicas = service.three(&sim).await;
    let _behind = service.start_ahead(&sim, "behind", -3_600_000).await;
    sim.run_until("2026-10-02T00:30:00Z").await;
    let _past = service.start_ahead(&sim, "past", -86_400_000).await;
    sim.run_until("2026-10-02T12:00:00Z").await;
    // Their clocks show midnight an hour and a day later.
    let ran = service.log.one("ends");
    assert!(replicas.contains_key(ran.who), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn nodes_were_started_on_both_sides_of_a_change_of_clocks() {
    let sim = Simulation::at("2026-03-01T12:00:00Z");
    let mut service = Service::new("both-sides", MIDNIGHT, secs(5));
    service.zone = "America/New_York";
    let _before = service.start(&sim, "before").await;
    sim.run_until("2026-03-08T12:00:00Z").await;
    let _after = service.start(&sim, "after").await;
    sim.run_until("2026-03-15T12:00:00Z").await;
    let days: Vec<_> = service.log.of("ends").iter().map(|line| line.tick).collect();
    // Midnight is 05:00 UTC until the 8th, and 04:00 from then on.
    let expected = (0..14).map(|day| 1_772_427_600 + day * 86_400 - u64::from(day > 6) * 3_600);
    assert_eq!(days, expected.collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn the_owner_dies() {
    let sim = Simulation::at("2026-10-01T23:59:00Z");
    let service = Service::new("owner-dies", MIDNIGHT, secs(600));
    let mut replicas = service.three(&sim).await;
    sim.run_for(secs(120)).await;
    let first = service.log.one("begins");
    replicas.remove(first.who).expect("it runs").crash();
    let died = service.log.began.elapsed();
    sim.run_for(secs(1_000)).await;
    let again = service.log.of("begins")[1].clone();
    assert!(
        again.at > died && again.at < died + TAKEN_OVER,
        "{again:?}, died at {died:?}"
    );
    assert_eq!((again.tick, again.attempt), (first.tick, 2));
    assert!(again.fence > first.fence && again.who != first.who);
    assert_eq!(service.log.one("ends").attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn the_owner_is_stopped_past_its_lease() {
    let sim = Simulation::at("2026-10-01T23:59:00Z");
    let service = Service::new("owner-stopped", MIDNIGHT, secs(600));
    let replicas = service.three(&sim).await;
    sim.run_for(secs(120)).await;
    let first = service.log.one("begins");
    replicas[first.who].stop();
    sim.run_for(secs(300)).await;
    assert!(service.log.of("dropped").is_empty(), "it stands still");
    replicas[first.who].go_on();
    sim.run_for(secs(1)).await;
    assert_eq!(
        service.log.one("dropped").who,
        first.who,
        "before it does anything else"
    );
    sim.run_for(secs(1_000)).await;
    let ran = service.log.one("ends");
    assert!(
        ran.attempt == 2 && ran.fence > first.fence && ran.who != first.who,
        "{ran:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn renewals_fail_as_the_store_is_away() {
    let sim = Simulation::at("2026-10-01T23:59:00Z");
    let service = Service::new("renewals-fail", MIDNIGHT, secs(600));
    let _replicas = service.three(&sim).await;
    sim.run_for(secs(120)).await;
    let first = service.log.one("begins");
    // A run survives an outage that is shorter than two thirds of a lease.
    sim.store().go_away();
    sim.run_for(LEASE / 2).await;
    assert!(service.log.of("dropped").is_empty());
    sim.store().come_back();
    sim.run_for(secs(60)).await;
    assert!(service.log.of("dropped").is_empty());
    sim.store().go_away();
    let away = service.log.began.elapsed();
    sim.run_for(secs(120)).await;
    let lost = service.log.one("dropped");
    assert!(
        lost.at <= away + LEASE && lost.at >= away + LEASE / 2,
        "{lost:?}, away at {away:?}"
    );
    assert_eq!(
        service.log.of("begins").len(),
        1,
        "no replica runs a tick that it cannot claim"
    );
    sim.store().come_back();
    sim.run_for(secs(1_000)).await;
    let ran = service.log.one("ends");
    assert!(
        ran.tick == first.tick && ran.attempt == 2 && ran.fence > first.fence,
        "{ran:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_store_is_away_at_the_tick() {
    let told = Watch::of("store-away");
    let sim = Simulation::at("2026-10-01T12:00:30Z");
    let service = Service::new("store-away", "0 */5 * * * *", secs(1));
    let _replicas = service.three(&sim).await;
    sim.run_until("2026-10-01T12:04:00Z").await;
    sim.store().go_away();
    sim.run_until("2026-10-01T12:17:00Z").await;
    assert!(service.log.of("begins").is_empty());
    sim.store().come_back();
    sim.run_until("2026-10-01T12:19:00Z").await;
    assert_eq!(service.log.one("ends").tick, 1_790_856_900, "that of 12:15");
    let missed = told
        .told()
        .iter()
        .filter(|told| told.level == tracing::Level::WARN && told.text.contains("outcome=missed"))
        .count();
    assert_eq!(missed, 6, "12:05 and 12:10, on each of three");
}

#[tokio::test(start_paused = true)]
async fn the_store_went_backwards() {
    let told = Watch::of("went-back");
    let sim = Simulation::at("2026-10-01T00:59:00Z");
    let service = Service::new("went-back", "0 0 * * * *", secs(600));
    let mut replicas = service.three(&sim).await;
    sim.run_until("2026-10-01T02:05:00Z").await;
    // A tick is being run, and the tick before it is over.
    let old = sim.store().copy();
    sim.run_until("2026-10-01T05:30:00Z").await;
    assert_eq!(service.log.of("ends").len(), 5);
    sim.store().restart_from(&old);
    sim.run_for(secs(60)).await;
    assert!(told.count("store_went_back") > 0);
    // None of the replicas that start now knows more than the store.
    let _new = service.start(&sim, "d").await;
    replicas.drain().for_each(|(_, replica)| replica.crash());
    sim.run_until("2026-10-01T07:30:00Z").await;
    let all = service.log.ended();
    assert!(all.len() == 7 && all.values().all(|runs| *runs == 1), "{all:?}");
    assert!(
        service
            .log
            .of("begins")
            .windows(2)
            .all(|two| two[0].fence < two[1].fence)
    );
}

#[tokio::test(start_paused = true)]
async fn a_run_lasts_into_the_next_tick() {
    let told = Watch::of("overrun");
    let sim = Simulation::at("2026-10-01T12:00:30Z");
    let service = Service::new("overrun", "0 * * * * *", secs(90));
    let _replicas = service.three(&sim).await;
    sim.run_for(secs(630)).await;
    let ended = service.log.ended();
    assert_eq!(ended.len(), 5, "every second minute: {ended:?}");
    let begins = service.log.of("begins");
    assert!(
        begins.windows(2).all(|two| two[0].at + secs(90) <= two[1].at),
        "one at a time"
    );
    let skipped = told
        .told()
        .iter()
        .filter(|told| told.text.contains("outcome=skipped"))
        .count();
    assert!(skipped > 0);
}

#[tokio::test(start_paused = true)]
async fn the_job_fails_panics_or_lasts_too_long() {
    let sim = Simulation::at("2026-10-01T12:00:30Z");
    let calls = Arc::new(Mutex::new(Vec::new()));
    let setup = async |locks: tenure::Locks, scheduler| {
        let calls = calls.clone();
        let job = locks
            .cron("ends-badly", "0 * * * * *")
            .timeout(secs(20))
            .run(move |tick| {
                let mut calls = calls.lock().unwrap();
                calls.push(tick.nominal_unix());
                let n = calls.len();
                drop(calls);
                assert!(n != 2, "before its first await");
                async move {
                    sleep(secs(1)).await;
                    assert!(n != 3, "after it");
                    if n == 4 {
                        sleep(secs(50)).await;
                    }
                    if n == 1 { Err("it is said so") } else { Ok(()) }
                }
            })?;
        locks.add_job(&scheduler, job).await?;
        Ok::<_, JobError>(())
    };
    let told = Watch::of("ends-badly");
    let mut replicas = Vec::new();
    for who in ["a", "b"] {
        replicas.push(sim.replica(who).start(&setup).await);
    }
    sim.run_for(secs(300)).await;
    let calls = calls.lock().unwrap().clone();
    assert_eq!(calls.len(), 5);
    assert!(
        calls.windows(2).all(|two| two[0] + 60 == two[1]),
        "each tick once: {calls:?}"
    );
    let ends = told.told();
    for (outcome, times) in [("failed", 1), ("panicked", 2), ("timed_out", 1), ("done", 1)] {
        let text = format!("outcome={outcome}");
        let count = ends
            .iter()
            .filter(|told| told.event == "tick" && told.text.contains(&text))
            .count();
        assert_eq!(count, times, "{outcome}: {ends:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_are_replaced_one_by_one_during_a_run() {
    let sim = Simulation::at("2026-10-01T23:59:00Z");
    let service = Service::new("rolled", MIDNIGHT, secs(300));
    let mut replicas = service.three(&sim).await;
    sim.run_for(secs(70)).await;
    service.log.one("begins");
    for (old, new) in [("a", "d"), ("b", "e"), ("c", "f")] {
        let old = replicas.remove(old).expect("it is one of them");
        let _ = old.shut_down(secs(5)).await;
        service.start(&sim, new).await;
        sim.run_for(secs(20)).await;
    }
    sim.run_for(secs(900)).await;
    let ran = service.log.one("ends");
    assert!(["d", "e", "f"].contains(&ran.who) && ran.attempt > 1, "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_replica_is_shut_down_during_a_run() {
    let sim = Simulation::at("2026-10-01T23:59:00Z");
    let service = Service::new("shut-down", MIDNIGHT, secs(600));
    let mut replicas = service.three(&sim).await;
    sim.run_for(secs(70)).await;
    let first = service.log.one("begins");
    let drained = replicas
        .remove(first.who)
        .expect("it runs")
        .shut_down(secs(25))
        .await;
    assert!(drained.is_ok(), "{drained:?}");
    let dropped = service.log.one("dropped");
    sim.run_for(secs(1)).await;
    let again = service.log.of("begins")[1].clone();
    assert!(
        again.at >= dropped.at && again.at <= dropped.at + secs(1),
        "{again:?} after {dropped:?}"
    );
    assert_eq!((again.tick, again.attempt), (first.tick, 2));
    sim.run_for(secs(1_000)).await;
    assert_eq!(service.log.ended(), BTreeMap::from([(first.tick, 1)]));
}

#[tokio::test(start_paused = true)]
async fn the_engine_does_not_fire() {
    let told = Watch::of("not-fired");
    let sim = Simulation::at("2026-10-01T12:00:30Z");
    let service = Service::new("not-fired", "0 * * * * *", secs(1));
    // Its engine looks for the next tick in an hour, and then the clock is set right.
    let replica = service.start_ahead(&sim, "a", 3_600_000).await;
    sim.run_for(secs(10)).await;
    replica.set_clock_ahead_ms(0);
    sim.run_for(secs(600)).await;
    assert_eq!(service.log.ended().len(), 10);
    assert_eq!(told.count("engine_missed"), 10);
}

#[tokio::test(start_paused = true)]
async fn an_engine_with_more_jobs_than_its_channel_holds_loses_some_and_all_are_run() {
    const JOBS: usize = 300;
    let told = Watch::of("of-many-");
    let sim = Simulation::at("2026-10-01T23:59:00Z");
    let runs = Arc::new(Mutex::new(BTreeMap::new()));
    let setup = async |locks: tenure::Locks, scheduler| {
        for n in 0..JOBS {
            let runs = runs.clone();
            let job = locks.cron(format!("of-many-{n}"), MIDNIGHT).run(move |_| {
                *runs.lock().unwrap().entry(n).or_insert(0) += 1;
                async {}
            })?;
            locks.add_job(&scheduler, job).await?;
        }
        Ok::<_, JobError>(())
    };
    let _replica = sim.replica("a").start(&setup).await;
    sim.run_for(secs(120)).await;
    let runs = runs.lock().unwrap();
    assert_eq!(runs.len(), JOBS);
    assert!(runs.values().all(|runs| *runs == 1));
    assert!(
        told.count("engine_missed") >= JOBS - 256,
        "{}",
        told.count("engine_missed")
    );
}

#[tokio::test(start_paused = true)]
async fn releases_differ_in_the_jobs_expression() {
    let told = Watch::of("two-releases");
    let sim = Simulation::at("2026-10-01T12:00:30Z");
    let old = Service::new("two-releases", "0 0 * * * *", secs(1));
    let _old = old.start(&sim, "old").await;
    let mut new = old.clone();
    new.expression = "0 30 * * * *";
    let _new = new.start(&sim, "new").await;
    sim.run_for(secs(2 * 3_600)).await;
    assert!(told.count("job_differs") > 0);
    assert_eq!(old.log.ended().len(), 4, "both run it");
}

/// The store knows the expression of the release before. No process uses that expression any more.
#[tokio::test(start_paused = true)]
async fn a_deploy_with_another_expression_is_no_difference_between_processes() {
    let told = Watch::of("one-release");
    let sim = Simulation::at("2026-10-01T12:00:30Z");
    let old = Service::new("one-release", "0 0 * * * *", secs(1));
    let before = old.start(&sim, "old").await;
    sim.run_for(secs(600)).await;
    before.crash();
    let mut new = old.clone();
    new.expression = "0 30 * * * *";
    let _new = new.start(&sim, "new").await;
    sim.run_for(secs(2 * 3_600)).await;
    assert_eq!(told.count("job_differs"), 0);
    assert_eq!(old.log.ended().len(), 2);
}
