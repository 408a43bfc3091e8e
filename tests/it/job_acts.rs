//! Jobs that an operator pauses and resumes, on several replicas of a simulation.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Tick;
use tenure::scheduler::{JobActOutcome, JobError, JobState, Misfire};
use tenure::testing::{Replica, Simulation};

use crate::support::events::{Told, Watch};

/// The hour of each run that began, and its attempt.
type Runs = Arc<Mutex<Vec<(u64, u32)>>>;

/// 12:00 UTC on that day, in seconds.
const NOON: u64 = 1_792_670_400;

struct Stage {
    sim: Simulation,
    replicas: Vec<Replica>,
    runs: Runs,
    /// Each test has a job of its own: events of other tests are heard, too.
    job: &'static str,
}

/// Two replicas with a job that is due each hour, and runs for ten minutes. It is a minute past noon.
async fn stage(job: &'static str, misfire: Option<Misfire>) -> Stage {
    let mut stage = Stage {
        sim: Simulation::at("2026-10-22T12:01:00Z"),
        replicas: Vec::new(),
        runs: Runs::default(),
        job,
    };
    for name in ["a", "b"] {
        stage.start(name, misfire).await;
    }
    stage
}

impl Stage {
    async fn start(&mut self, name: &str, misfire: Option<Misfire>) {
        let (runs, job) = (self.runs.clone(), self.job);
        let setup = async move |locks: tenure::Locks, scheduler: tokio_cron_scheduler::JobScheduler| {
            let mut job = locks.cron(job, "0 0 * * * *");
            if let Some(misfire) = misfire {
                job = job.misfire(misfire);
            }
            let job = job.run(move |tick: Tick| {
                let hour = (tick.nominal_unix() - NOON) / 3_600;
                runs.lock().unwrap().push((hour, tick.attempt()));
                tokio::time::sleep(Duration::from_secs(600))
            })?;
            locks.add_job(&scheduler, job).await?;
            Ok::<(), JobError>(())
        };
        self.replicas.push(self.sim.replica(name).start(setup).await);
    }

    /// Goes on until so many minutes after noon.
    async fn until(&self, minutes: u64) {
        let now = self.sim.now().duration_since(std::time::UNIX_EPOCH).unwrap();
        self.sim
            .run_for(Duration::from_secs(NOON + 60 * minutes) - now)
            .await;
    }

    async fn pause(&self) {
        let paused = self.replicas[0]
            .locks()
            .jobs()
            .pause(self.job, "ann", "INC-7")
            .await;
        assert!(
            matches!(paused, Ok(JobActOutcome::Done { unwritten: None, .. })),
            "{paused:?}"
        );
    }

    async fn resume(&self, catch_up: bool) {
        let jobs = self.replicas[0].locks().jobs();
        let resumed = jobs.resume(self.job, catch_up, "ann", "mended").await;
        assert!(
            matches!(resumed, Ok(JobActOutcome::Done { unwritten: None, .. })),
            "{resumed:?}"
        );
    }

    fn runs(&self) -> Vec<(u64, u32)> {
        self.runs.lock().unwrap().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn no_tick_begins_in_a_pause_and_none_of_it_after() {
    let told = Watch::of("job=quiet ");
    let stage = stage("quiet", None).await;
    stage.until(90).await;
    stage.pause().await;
    let job = stage.replicas[0]
        .locks()
        .jobs()
        .show("quiet")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(job.state, JobState::Paused);
    assert_eq!(
        job.paused.map(|pause| pause.by.to_string()),
        Some("ann".to_owned())
    );
    // A pause of a pause changes nothing, and a typing error creates nothing.
    let jobs = stage.replicas[1].locks().jobs();
    assert!(matches!(
        jobs.pause("quiet", "bob", "").await,
        Ok(JobActOutcome::Unchanged)
    ));
    assert!(matches!(
        jobs.pause("reconcil", "bob", "").await,
        Ok(JobActOutcome::Unknown)
    ));
    assert!(jobs.show("reconcil").await.unwrap().is_none());
    stage.until(60 * 5 + 30).await;
    assert_eq!(stage.runs(), [(1, 1)]);
    // Each replica warns once, and no skip is counted.
    assert_eq!(told.count("job_paused"), 2);
    assert_eq!(told.count("engine_missed"), 0);
    let outcomes = |outcome: &str| {
        let text = format!("outcome=\"{outcome}\"");
        let is_of = |told: &&Told| {
            told.event == "tick" && (told.text.contains(&text) || told.text.contains(&text.replace('"', "")))
        };
        told.told().iter().filter(is_of).count()
    };
    // Four ticks on two replicas.
    assert_eq!(
        (outcomes("paused"), outcomes("skipped"), outcomes("missed")),
        (8, 0, 0)
    );
    stage.resume(false).await;
    assert!(matches!(
        jobs.resume("quiet", false, "bob", "").await,
        Ok(JobActOutcome::Unchanged)
    ));
    stage.until(60 * 7 + 30).await;
    assert_eq!(stage.runs(), [(1, 1), (6, 1), (7, 1)]);
    // The pause that is over is told of no tick again.
    assert_eq!(
        (outcomes("paused"), outcomes("skipped"), outcomes("missed")),
        (8, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_run_ends_in_a_pause_and_a_new_replica_knows_the_pause() {
    let mut stage = stage("deployed", None).await;
    stage.until(65).await;
    stage.pause().await;
    stage.until(80).await;
    let jobs = stage.replicas[0].locks().jobs();
    let job = jobs.show("deployed").await.unwrap().unwrap();
    assert_eq!(job.latest.map(|run| run.state.word()), Some("done"));
    // A deploy.
    for replica in stage.replicas.drain(..) {
        replica.crash();
    }
    stage.start("c", None).await;
    stage.until(60 * 3 + 30).await;
    assert_eq!(stage.runs(), [(1, 1)]);
    stage.resume(false).await;
    stage.until(60 * 4 + 30).await;
    assert_eq!(stage.runs(), [(1, 1), (4, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_tick_whose_owner_dies_in_a_pause_gets_its_next_attempt_after_it() {
    let mut stage = stage("left", None).await;
    stage.until(65).await;
    stage.pause().await;
    let jobs = stage.replicas[0].locks().jobs();
    let owner = jobs
        .show("left")
        .await
        .unwrap()
        .unwrap()
        .latest
        .unwrap()
        .node_name;
    let at = stage
        .replicas
        .iter()
        .position(|replica| replica.name() == &*owner);
    stage.replicas.remove(at.expect("it is one of them")).crash();
    stage.until(90).await;
    let job = stage.replicas[0]
        .locks()
        .jobs()
        .show("left")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(job.state, JobState::Paused);
    assert_eq!(stage.runs(), [(1, 1)]);
    stage.resume(false).await;
    stage.until(95).await;
    assert_eq!(stage.runs(), [(1, 1), (1, 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_resume_to_catch_up_asks_the_misfire_policy() {
    let hours = |hours: u64| Duration::from_secs(3_600 * hours);
    for (misfire, expected) in [
        // As after an outage, the newest tick that the replicas saw runs.
        (None, &[1, 5, 6][..]),
        (Some(Misfire::Skip), &[1, 6]),
        (Some(Misfire::RunOnce { within: hours(1) }), &[1, 5, 6]),
        (
            Some(Misfire::RunAll {
                within: hours(2),
                at_most: 9,
            }),
            &[1, 4, 5, 6],
        ),
    ] {
        let stage = stage("late", misfire).await;
        stage.until(90).await;
        stage.pause().await;
        stage.until(60 * 5 + 30).await;
        assert_eq!(stage.runs(), [(1, 1)], "{misfire:?}");
        stage.resume(true).await;
        stage.until(60 * 6 + 30).await;
        let ran: Vec<u64> = stage.runs().into_iter().map(|(hour, _)| hour).collect();
        assert_eq!(ran, expected, "{misfire:?}");
    }
}
