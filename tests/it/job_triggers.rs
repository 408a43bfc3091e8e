//! Runs that an operator triggers and ticks that an operator cancels, on several replicas of a simulation.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::Tick;
use tenure::scheduler::{
    EndedRun, HistoryEntry, JobActOutcome, JobEntry, JobError, JobState, LeasedJob, Misfire, Overlap,
    RunOutcome, WhyNoRun,
};
use tenure::testing::{Replica, Simulation};

use crate::support::events::Watch;

/// 12:00 UTC on that day, in seconds.
const NOON: u64 = 1_792_670_400;
/// The time that an operator gives a run to end itself.
const GRACE: Duration = Duration::from_secs(60);

/// What happened, each with the minutes of its tick after noon.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn minute_of(tick: SystemTime) -> u64 {
    (tick.duration_since(UNIX_EPOCH).unwrap().as_secs() - NOON) / 60
}

struct Stage {
    sim: Simulation,
    replicas: Vec<Replica>,
    log: Log,
    /// Whether runs fail.
    fails: Arc<AtomicBool>,
    /// Each test has a job of its own: events of other tests are heard, too.
    job: &'static str,
}

/// Two replicas with a job that is due each hour and runs for ten minutes; a triggered run for `long` minutes. It is a minute past
/// noon.
async fn stage(
    job: &'static str,
    long: u64,
    with: impl Fn(LeasedJob) -> LeasedJob + Clone + Send + 'static,
) -> Stage {
    let mut stage = Stage {
        sim: Simulation::at("2026-10-22T12:01:00Z"),
        replicas: Vec::new(),
        log: Log::default(),
        fails: Arc::default(),
        job,
    };
    for name in ["a", "b"] {
        stage.start(name, long, with.clone()).await;
    }
    stage
}

impl Stage {
    async fn start(&mut self, name: &str, long: u64, with: impl Fn(LeasedJob) -> LeasedJob + Send + 'static) {
        let (log, fails, job) = (self.log.clone(), self.fails.clone(), self.job);
        let setup = async move |locks: tenure::Locks, scheduler: tokio_cron_scheduler::JobScheduler| {
            let ends = log.clone();
            let begun = Arc::new(Mutex::new(HashSet::new()));
            let fences = begun.clone();
            let on_end = move |end: EndedRun| {
                // What a job writes with the fence of its tick can be found by the end.
                let is_known = fences.lock().unwrap().remove(&end.fence.get());
                assert!(is_known || end.outcome == RunOutcome::Missed, "{:?}", end.fence);
                let kind = if end.is_triggered { "t" } else { "" };
                ends.add(format!("{}{kind} {}", minute_of(end.tick), end.outcome.word()));
                async {}
            };
            let job = with(locks.cron(job, "0 0 * * * *").on_end(on_end)).run(move |tick: Tick| {
                let by = tick
                    .triggered()
                    .map_or(String::new(), |act| format!("t {}: {}", act.by, act.why));
                log.add(format!("{}#{}{by}", minute_of(tick.nominal()), tick.attempt()));
                begun.lock().unwrap().insert(tick.fence().get());
                let (minutes, fails) = (if by.is_empty() { 10 } else { long }, fails.clone());
                async move {
                    tokio::time::sleep(Duration::from_secs(60 * minutes)).await;
                    if fails.load(Ordering::SeqCst) {
                        Err("no rates")
                    } else {
                        Ok(())
                    }
                }
            })?;
            locks.add_job(&scheduler, job).await?;
            Ok::<(), JobError>(())
        };
        self.replicas.push(self.sim.replica(name).start(setup).await);
    }

    /// Goes on until so many minutes after noon.
    async fn until(&self, minutes: u64) {
        let now = self.sim.now().duration_since(UNIX_EPOCH).unwrap();
        self.sim
            .run_for(Duration::from_secs(NOON + 60 * minutes) - now)
            .await;
    }

    fn locks(&self) -> tenure::Locks {
        self.replicas[0].locks().clone()
    }

    async fn trigger(&self, for_minute: Option<u64>) -> JobActOutcome {
        let for_tick = for_minute.map(|minute| UNIX_EPOCH + Duration::from_secs(NOON + 60 * minute));
        let jobs = self.locks().jobs();
        jobs.trigger(self.job, for_tick, "ann", "INC-7").await.unwrap()
    }

    async fn show(&self) -> JobEntry {
        self.locks().jobs().show(self.job).await.unwrap().unwrap()
    }

    /// Cancels what `show` names.
    async fn cancel(&self, grace: Duration) -> JobActOutcome {
        let current = self.show().await.current.expect("a tick has begun or is wanted");
        let jobs = self.locks().jobs();
        jobs.cancel(self.job, current, grace, "ann", "wrong rates")
            .await
            .unwrap()
    }

    /// Removes the replica that runs the job from the list.
    async fn take_owner(&mut self) -> Replica {
        let owner = self.show().await.latest.expect("a tick was granted").node_name;
        let mut replicas = self.replicas.iter();
        let at = replicas.position(|replica| replica.name() == &*owner);
        self.replicas.remove(at.expect("it is one of them"))
    }

    /// Returns the states of all runs, oldest first.
    async fn states(&self) -> Vec<String> {
        let history = self.locks().jobs().history(self.job, UNIX_EPOCH).await;
        let runs = history
            .unwrap()
            .unwrap()
            .entries
            .into_iter()
            .filter_map(|entry| match entry {
                HistoryEntry::Run(run) => Some(format!("{} {}", minute_of(run.tick), run.state.word())),
                _ => None,
            });
        runs.collect()
    }
}

fn as_it_is(job: LeasedJob) -> LeasedJob {
    job
}

fn is_done(outcome: &JobActOutcome) -> bool {
    matches!(outcome, JobActOutcome::Done { unwritten: None, .. })
}

#[tokio::test(start_paused = true)]
async fn a_triggered_run_begins_at_once_and_once() {
    let stage = stage("idle", 10, as_it_is).await;
    stage.until(30).await;
    assert!(is_done(&stage.trigger(None).await));
    stage.until(31).await;
    assert_eq!(stage.log.take(), ["30#1t ann: INC-7"]);
    let job = stage.show().await;
    assert_eq!(job.state, JobState::Running);
    assert_eq!(job.wanted.map(|wanted| minute_of(wanted.tick)), Some(30));
    // Two wishes at once are refused, as long as the run goes on.
    assert!(matches!(stage.trigger(None).await, JobActOutcome::Unchanged));
    stage.until(45).await;
    assert!(stage.show().await.wanted.is_none());
    assert!(is_done(&stage.trigger(None).await));
    stage.until(71).await;
    assert_eq!(
        stage.log.take(),
        ["30t done", "45#1t ann: INC-7", "45t done", "60#1", "60 done"]
    );
    let jobs = stage.locks().jobs();
    let unknown = jobs.trigger("reconcil", None, "ann", "").await.unwrap();
    assert!(matches!(unknown, JobActOutcome::Unknown));
    let early = stage.trigger(Some(120)).await;
    assert!(matches!(early, JobActOutcome::InFuture), "{early:?}");
}

#[tokio::test(start_paused = true)]
async fn a_triggered_run_waits_for_the_tick_that_runs() {
    let stage = stage("busy", 10, as_it_is).await;
    stage.until(65).await;
    assert!(is_done(&stage.trigger(None).await));
    stage.until(69).await;
    assert_eq!(stage.log.take(), ["60#1"]);
    stage.until(90).await;
    // The end is told while the next run begins.
    let mut log = stage.log.take();
    log.sort();
    assert_eq!(log, ["60 done", "65#1t ann: INC-7", "65t done"]);
}

#[tokio::test(start_paused = true)]
async fn a_triggered_run_begins_in_a_pause() {
    let mut stage = stage("paused-trigger", 10, as_it_is).await;
    stage.until(30).await;
    let jobs = stage.locks().jobs();
    jobs.pause(stage.job, "ann", "").await.unwrap();
    assert!(is_done(&stage.trigger(None).await));
    stage.until(90).await;
    assert_eq!(stage.log.take(), ["30#1t ann: INC-7", "30t done"]);
    // A tick that was begun may not run again in the pause, so nothing can run after it.
    jobs.resume(stage.job, false, "ann", "").await.unwrap();
    stage.until(121).await;
    jobs.pause(stage.job, "ann", "").await.unwrap();
    stage.take_owner().await.crash();
    stage.until(130).await;
    let open = stage.trigger(None).await;
    assert!(matches!(open, JobActOutcome::TickUnfinished), "{open:?}");
    // Without a run the cancel ends the open tick.
    assert!(is_done(&stage.cancel(GRACE).await));
    assert!(is_done(&stage.trigger(Some(120)).await));
    stage.until(150).await;
    assert_eq!(stage.log.take(), ["120#1", "120#1t ann: INC-7", "120t done"]);
}

#[tokio::test(start_paused = true)]
async fn a_tick_waits_for_a_triggered_run() {
    // The triggered run lasts into two ticks.
    type With = fn(LeasedJob) -> LeasedJob;
    let table: [(&'static str, With, &[&str]); 3] = [
        ("before-a-tick", as_it_is, &["120#1", "120 done"]),
        (
            "before-a-tick-queues",
            |job| job.overlap(Overlap::QueueOne),
            &["120#1", "120 done"],
        ),
        (
            "before-a-tick-all",
            |job| {
                let within = Duration::from_secs(86_400);
                job.misfire(Misfire::RunAll { within, at_most: 9 })
            },
            &["60#1", "60 done", "120#1", "120 done"],
        ),
    ];
    for (name, with, ticks) in table {
        let told = Watch::of(name);
        let stage = stage(name, 70, with).await;
        stage.until(59).await;
        assert!(is_done(&stage.trigger(None).await));
        stage.until(170).await;
        let (mut log, mut expected) = (
            stage.log.take(),
            [&["59#1t ann: INC-7", "59t done"], ticks].concat(),
        );
        // The end is told while the next run begins.
        log.sort();
        expected.sort_unstable();
        assert_eq!(log, expected, "{name}");
        assert_eq!(told.count("job_skips"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_for_a_failed_tick_does_its_work() {
    let stage = stage("failed", 10, as_it_is).await;
    stage.fails.store(true, Ordering::SeqCst);
    stage.until(75).await;
    stage.fails.store(false, Ordering::SeqCst);
    stage.until(131).await;
    assert_eq!(stage.log.take(), ["60#1", "60 failed", "120#1", "120 done"]);
    assert!(is_done(&stage.trigger(Some(60)).await));
    stage.until(145).await;
    assert_eq!(stage.log.take(), ["60#1t ann: INC-7", "60t done"]);
    let job = stage.show().await;
    // The latest success is not that of an earlier tick.
    assert_eq!(job.last_success.map(minute_of), Some(120));
    assert_eq!(stage.states().await, ["60 failed", "120 done", "60 done"]);
}

#[tokio::test(start_paused = true)]
async fn a_triggered_run_whose_owner_dies_runs_again() {
    let mut stage = stage("dies", 10, as_it_is).await;
    stage.until(30).await;
    assert!(is_done(&stage.trigger(None).await));
    stage.until(32).await;
    stage.take_owner().await.crash();
    stage.until(59).await;
    assert_eq!(
        stage.log.take(),
        ["30#1t ann: INC-7", "30#2t ann: INC-7", "30t done"]
    );
    assert_eq!(stage.states().await, ["30 lost", "30 done"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_tick_runs_on_no_standby() {
    let stage = stage("standbys", 10, as_it_is).await;
    stage.until(65).await;
    assert!(is_done(&stage.cancel(Duration::ZERO).await));
    stage.until(66).await;
    assert_eq!(stage.log.take(), ["60#1", "60 cancelled"]);
    let shown = stage.show().await;
    assert_eq!((shown.state, shown.current), (JobState::Idle, None));
    stage.until(131).await;
    assert_eq!(stage.log.take(), ["120#1", "120 done"]);
    assert_eq!(stage.states().await, ["60 cancelled", "120 done"]);
    // A wish without a run is withdrawn, and a triggered run is cancelled as a tick is.
    assert!(is_done(&stage.trigger(None).await));
    stage.until(132).await;
    assert!(is_done(&stage.cancel(Duration::ZERO).await));
    stage.until(170).await;
    assert_eq!(stage.log.take(), ["131#1t ann: INC-7", "131t cancelled"]);
    assert!(stage.show().await.wanted.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_cancel_names_a_tick_and_no_other() {
    let stage = stage("another", 10, as_it_is).await;
    stage.until(65).await;
    let current = stage.show().await.current.unwrap();
    stage.until(125).await;
    let jobs = stage.locks().jobs();
    let cancelled = jobs.cancel(stage.job, current, GRACE, "ann", "").await.unwrap();
    assert!(matches!(cancelled, JobActOutcome::OtherTick), "{cancelled:?}");
    stage.until(131).await;
    assert_eq!(stage.log.take(), ["60#1", "60 done", "120#1", "120 done"]);
}

#[tokio::test(start_paused = true)]
async fn a_tick_is_cancelled_as_its_lease_is_lost() {
    for (name, seconds, is_taken_over) in [("loses", 3, false), ("lost", 15, false), ("taken-over", 60, true)]
    {
        let mut stage = stage(name, 10, as_it_is).await;
        stage.until(65).await;
        stage.take_owner().await.crash();
        stage.sim.run_for(Duration::from_secs(seconds)).await;
        assert!(is_done(&stage.cancel(Duration::ZERO).await), "{name}");
        stage.until(90).await;
        let expected: &[&str] = match is_taken_over {
            true => &["60#1", "60#2", "60 cancelled"],
            false => &["60#1"],
        };
        assert_eq!(stage.log.take(), expected, "{name}");
        stage.until(131).await;
        assert_eq!(stage.log.take(), ["120#1", "120 done"], "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tick_is_cancelled_during_a_drain() {
    let mut stage = stage("drains", 10, as_it_is).await;
    stage.until(65).await;
    let owner = stage.take_owner().await;
    let drained = tokio::spawn(owner.shut_down(Duration::from_secs(60)));
    stage.sim.run_for(Duration::from_secs(20)).await;
    assert!(is_done(&stage.cancel(Duration::ZERO).await));
    stage.until(90).await;
    assert!(drained.await.unwrap().is_ok());
    assert_eq!(stage.log.take(), ["60#1", "60 cancelled"]);
    stage.until(131).await;
    assert_eq!(stage.log.take(), ["120#1", "120 done"]);
    assert_eq!(stage.states().await, ["60 cancelled", "120 done"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_holds_for_the_tick_whoever_runs_it() {
    let mut stage = stage("grace", 10, as_it_is).await;
    stage.until(62).await;
    // The operator saw the first run.
    let current = stage.show().await.current.unwrap();
    stage.take_owner().await.crash();
    stage.until(64).await;
    let jobs = stage.locks().jobs();
    let cancelled = jobs.cancel(stage.job, current, GRACE, "ann", "").await.unwrap();
    assert!(is_done(&cancelled), "{cancelled:?}");
    stage.until(90).await;
    assert_eq!(stage.log.take(), ["60#1", "60#2", "60 cancelled"]);
    stage.until(131).await;
    assert_eq!(stage.log.take(), ["120#1", "120 done"]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_awaits_it_can_end_itself_within_the_grace() {
    let sim = Simulation::at("2026-10-22T12:01:00Z");
    let log = Log::default();
    let of_setup = log.clone();
    let setup = async move |locks: tenure::Locks, scheduler: tokio_cron_scheduler::JobScheduler| {
        let job = locks.cron("asked", "0 0 * * * *").run(move |tick: Tick| {
            let log = of_setup.clone();
            async move {
                let notice = tick.lease().asked().await.expect("the lease is held");
                log.add(format!("{} asks: {}", notice.by, notice.why));
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        })?;
        locks.add_job(&scheduler, job).await?;
        Ok::<(), JobError>(())
    };
    let replica = sim.replica("a").start(setup).await;
    sim.run_for(Duration::from_secs(3_600)).await;
    let jobs = replica.locks().jobs();
    let current = jobs.show("asked").await.unwrap().unwrap().current.unwrap();
    let cancelled = jobs
        .cancel("asked", current, GRACE, "ann", "deploy")
        .await
        .unwrap();
    assert!(matches!(cancelled, JobActOutcome::EndedItself), "{cancelled:?}");
    assert_eq!(log.take(), ["ann asks: deploy"]);
    // The operator left a trace, though nothing was cancelled.
    let acts = replica.locks().inspect().audit().await.unwrap();
    let asked = acts.iter().map(|act| (&*act.what, &*act.by, &*act.why));
    assert_eq!(asked.collect::<Vec<_>>(), [("asked", "ann", "deploy")]);
    let latest = jobs.show("asked").await.unwrap().unwrap().latest.unwrap();
    assert_eq!(latest.state.word(), "done");
}

#[tokio::test(start_paused = true)]
async fn a_triggered_run_begins_within_a_day_or_not_at_all() {
    for (hours, runs) in [(23, true), (25, false)] {
        let mut stage = stage("a-day", 10, as_it_is).await;
        stage.until(30).await;
        for replica in stage.replicas.drain(1..) {
            replica.crash();
        }
        let jobs = stage.locks().jobs();
        jobs.pause(stage.job, "ann", "").await.unwrap();
        let last = stage.replicas.remove(0);
        let store = last.locks().clone();
        let gone = last.shut_down(Duration::from_secs(1));
        gone.await.unwrap();
        let _ = store;
        let operator = stage
            .sim
            .replica("operator")
            .start(async |_, _| Ok::<(), JobError>(()))
            .await;
        let jobs = operator.locks().jobs();
        assert!(is_done(&jobs.trigger(stage.job, None, "ann", "").await.unwrap()));
        stage.until(30 + 60 * hours).await;
        stage.start("c", 10, as_it_is).await;
        stage.until(45 + 60 * hours).await;
        let log = stage.log.take();
        assert_eq!(log.len(), if runs { 2 } else { 0 }, "{hours}: {log:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_function_for_ends_delays_no_tick_and_a_drain_waits_for_it() {
    let told = Watch::of("job=ends ");
    let sim = Simulation::at("2026-10-22T12:01:00Z");
    let log = Log::default();
    let of_setup = log.clone();
    let setup = async move |locks: tenure::Locks, scheduler: tokio_cron_scheduler::JobScheduler| {
        let on_end = move |end: EndedRun| {
            let log = of_setup.clone();
            // The call itself panics, then its future; the third is too slow, and the last one is not.
            let minute = minute_of(end.tick);
            assert_ne!(minute, 2, "a planted panic");
            async move {
                assert_ne!(minute, 3, "a planted panic");
                tokio::time::sleep(Duration::from_secs(if minute == 4 { 3_600 } else { 5 })).await;
                log.add(format!("{minute} {} {:?}", end.outcome.word(), &*end.text));
            }
        };
        let job = locks.cron("ends", "0 * * * * *").on_end(on_end);
        let job = job.run(|_: Tick| async { Err::<(), _>("no rates") })?;
        locks.add_job(&scheduler, job).await?;
        Ok::<(), JobError>(())
    };
    let replica = sim.replica("a").start(setup).await;
    sim.run_for(Duration::from_secs(4 * 60 + 2)).await;
    assert_eq!(log.take(), [r#"1 failed "no rates""#]);
    replica.shut_down(Duration::from_secs(20)).await.unwrap();
    assert_eq!(log.take(), [r#"5 failed "no rates""#]);
    assert_eq!(told.count("on_end_failed"), 3);
    assert_eq!(told.count("tick_starts"), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_job_is_told_of_a_cancel() {
    let locks = tenure::Locks::memory();
    let (began, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (begins, ends) = (began.clone(), ended.clone());
    let job = locks
        .every("blocks", Duration::from_secs(3_600))
        .run_blocking(move |tick: Tick| {
            begins.store(true, Ordering::SeqCst);
            while tick.check().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            ends.store(true, Ordering::SeqCst);
            tick.check()
        })
        .unwrap();
    let nominal = UNIX_EPOCH + Duration::from_secs(NOON);
    let fired = tokio::spawn({
        let locks = locks.clone();
        async move { tenure::testing::fire_tick(&locks, "blocks", nominal).await }
    });
    while !began.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let jobs = locks.jobs();
    let current = jobs.show("blocks").await.unwrap().unwrap().current.unwrap();
    let cancelled = jobs
        .cancel("blocks", current, Duration::ZERO, "ann", "")
        .await
        .unwrap();
    assert!(is_done(&cancelled), "{cancelled:?}");
    assert_eq!(fired.await.unwrap(), "cancelled");
    assert!(ended.load(Ordering::SeqCst));
    drop(job);
}

#[tokio::test]
async fn a_trigger_during_a_cancelled_run_that_goes_on_is_run() {
    let store = tenure::MemoryStore::new();
    let node = tenure::Locks::builder().lease(Duration::from_secs(60));
    let locks = node.memory_shared(&store).unwrap();
    let (log, ends) = (Log::default(), Arc::new(AtomicBool::new(false)));
    let (of_job, may_end, told) = (log.clone(), ends.clone(), log.clone());
    let job = locks
        .cron("goes-on", "0 0 0 1 1 *")
        .on_end(move |end: EndedRun| {
            told.add(end.outcome.word().to_owned());
            async {}
        })
        .run_blocking(move |tick: Tick| {
            of_job.add(
                tick.triggered()
                    .map_or_else(String::new, |act| act.why.to_string()),
            );
            // It does not hear of the cancel.
            while !may_end.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .unwrap();
    let jobs = locks.jobs();
    let eventually = async |what: &str, count: usize| {
        crate::help::until(what, || log.0.lock().unwrap().len() >= count).await;
    };
    while jobs.show("goes-on").await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let tick = Some(UNIX_EPOCH + Duration::from_secs(NOON));
    assert!(is_done(
        &jobs.trigger("goes-on", tick, "ann", "first").await.unwrap()
    ));
    eventually("it runs", 1).await;
    let current = jobs.show("goes-on").await.unwrap().unwrap().current.unwrap();
    assert!(is_done(
        &jobs
            .cancel("goes-on", current, Duration::ZERO, "ann", "")
            .await
            .unwrap()
    ));
    // The node hears of this trigger while the first run goes on.
    assert!(is_done(
        &jobs.trigger("goes-on", tick, "ann", "second").await.unwrap()
    ));
    tokio::time::sleep(Duration::from_millis(200)).await;
    ends.store(true, Ordering::SeqCst);
    eventually("both have ended", 4).await;
    assert_eq!(log.take(), ["first", "cancelled", "second", "done"]);
    drop(job);
}

#[tokio::test(start_paused = true)]
async fn a_trigger_in_a_pause_leaves_the_ticks_of_the_pause_to_the_misfire_policy() {
    for misfire in [
        None,
        Some(Misfire::RunOnce {
            within: Duration::from_secs(7_200),
        }),
    ] {
        let stage = stage("pause-and-trigger", 10, move |job| match misfire {
            Some(misfire) => job.misfire(misfire),
            None => job,
        })
        .await;
        stage.until(90).await;
        stage.log.take();
        let jobs = stage.locks().jobs();
        jobs.pause(stage.job, "ann", "").await.unwrap();
        stage.until(135).await;
        assert!(is_done(&stage.trigger(None).await));
        stage.until(150).await;
        assert_eq!(stage.log.take(), ["135#1t ann: INC-7", "135t done"]);
        jobs.resume(stage.job, true, "ann", "").await.unwrap();
        stage.until(170).await;
        assert_eq!(stage.log.take(), ["120#1", "120 done"], "{misfire:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_waited_for_a_triggered_run_is_not_too_old() {
    let stage = stage("in-time", 10, |job| job.misfire(Misfire::Skip)).await;
    stage.until(55).await;
    assert!(is_done(&stage.trigger(None).await));
    stage.until(80).await;
    let mut log = stage.log.take();
    log.sort();
    assert_eq!(log, ["55#1t ann: INC-7", "55t done", "60 done", "60#1"]);
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_is_open_and_too_old_does_not_keep_a_triggered_run_waiting() {
    let five_minutes = |job: LeasedJob| job.finish_within(Duration::from_secs(300));
    let mut stage = stage("abandoned", 10, five_minutes).await;
    stage.until(65).await;
    for replica in stage.replicas.drain(..) {
        replica.crash();
    }
    stage.until(75).await;
    stage.start("c", 10, five_minutes).await;
    stage.until(76).await;
    assert_eq!(stage.show().await.state, JobState::Open);
    assert!(is_done(&stage.trigger(None).await));
    stage.until(90).await;
    let mut log = stage.log.take();
    log.sort();
    assert_eq!(log, ["60 missed", "60#1", "76#1t ann: INC-7", "76t done"]);
    assert_eq!(stage.states().await, ["60 lost", "60 missed", "76 done"]);
}

#[tokio::test(start_paused = true)]
async fn a_triggered_run_that_ended_does_not_run_again_after_a_restore() {
    let stage = stage("restored", 10, as_it_is).await;
    stage.until(30).await;
    assert!(is_done(&stage.trigger(None).await));
    stage.until(35).await;
    let copy = stage.sim.store().copy();
    stage.until(45).await;
    assert_eq!(stage.log.take(), ["30#1t ann: INC-7", "30t done"]);
    let told = Watch::of("job=restored");
    stage.sim.store().restart_from(&copy);
    stage.until(59).await;
    // A node that knows that the run has ended ends it again, and says so.
    assert_eq!(stage.log.take(), ["30t missed"]);
    assert!(told.count("store_went_back") > 0);
    assert!(stage.show().await.wanted.is_none());
    assert!(is_done(&stage.trigger(None).await));
}

#[tokio::test(start_paused = true)]
async fn a_node_knows_at_once_that_its_triggered_run_has_ended() {
    let mut stage = stage("restored-at-once", 10, as_it_is).await;
    stage.until(30).await;
    assert!(is_done(&stage.trigger(None).await));
    stage.until(35).await;
    let owner = stage.take_owner().await;
    let other = stage.replicas.pop().unwrap();
    other.crash();
    let copy = stage.sim.store().copy();
    // The run ends, and the store goes back before the next look.
    while stage.log.0.lock().unwrap().len() < 2 {
        stage.sim.run_for(Duration::from_millis(20)).await;
    }
    assert_eq!(stage.log.take(), ["30#1t ann: INC-7", "30t done"]);
    stage.sim.store().restart_from(&copy);
    stage.until(59).await;
    assert_eq!(stage.log.take(), ["30t missed"]);
    owner.crash();
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_ends_as_cancelled_also_if_the_next_tick_waits_for_it() {
    let stage = stage("behind", 50, as_it_is).await;
    stage.until(30).await;
    assert!(is_done(&stage.trigger(None).await));
    stage.until(62).await;
    assert!(is_done(&stage.cancel(Duration::ZERO).await));
    stage.until(90).await;
    let mut log = stage.log.take();
    log.sort();
    assert_eq!(log, ["30#1t ann: INC-7", "30t cancelled", "60 done", "60#1"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_of_a_triggered_run_names_its_trigger() {
    let stage = stage("later", 10, as_it_is).await;
    stage.until(90).await;
    assert!(is_done(&stage.trigger(Some(60)).await));
    stage.until(92).await;
    let first = stage.show().await.current.unwrap();
    stage.until(110).await;
    assert!(is_done(&stage.trigger(Some(60)).await));
    stage.until(112).await;
    let jobs = stage.locks().jobs();
    let cancelled = jobs.cancel(stage.job, first, GRACE, "bob", "").await.unwrap();
    assert!(matches!(cancelled, JobActOutcome::OtherTick), "{cancelled:?}");
    // Its own entry, and one that names no trigger.
    let mut second = stage.show().await.current.unwrap();
    assert!(second.since > first.since);
    second.since = None;
    let cancelled = jobs
        .cancel(stage.job, second, Duration::ZERO, "bob", "")
        .await
        .unwrap();
    assert!(is_done(&cancelled), "{cancelled:?}");
    stage.until(119).await;
    assert_eq!(stage.states().await, ["60 done", "60 done", "60 cancelled"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_of_a_lost_run_leaves_its_history() {
    let none = |job: LeasedJob| job.finish_within(Duration::ZERO);
    let mut stage = stage("long-lost", 10, none).await;
    stage.until(62).await;
    for replica in stage.replicas.drain(..) {
        replica.crash();
    }
    stage.until(190).await;
    stage.start("c", 10, none).await;
    stage.until(195).await;
    assert_eq!(stage.show().await.state, JobState::Open);
    assert!(is_done(&stage.cancel(GRACE).await));
    assert_eq!(stage.states().await, ["60 lost"]);
    let history = stage.locks().jobs().history(stage.job, UNIX_EPOCH).await;
    let entries = history.unwrap().unwrap().entries;
    // No run lasted into the ticks that no node ran.
    let has_none = |entry: &HistoryEntry| matches!(entry, HistoryEntry::NoRun(none) if none.why == WhyNoRun::None && none.count == 2);
    assert!(entries.iter().any(has_none), "{entries:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_run_has_the_name_of_the_operator_who_wants_it() {
    let stage = stage("named", 10, as_it_is).await;
    stage.until(131).await;
    stage.log.take();
    assert!(is_done(&stage.trigger(Some(60)).await));
    stage.until(133).await;
    assert!(is_done(&stage.cancel(Duration::ZERO).await));
    let noon = UNIX_EPOCH + Duration::from_secs(NOON + 3_600);
    let jobs = stage.locks().jobs();
    let again = jobs.trigger(stage.job, Some(noon), "bob", "again").await.unwrap();
    assert!(is_done(&again));
    stage.until(150).await;
    let mut log = stage.log.take();
    // Two nodes may tell of the end of one run and of the begin of the next at one moment.
    log.sort();
    let expected = [
        "60#1t ann: INC-7",
        "60#1t bob: again",
        "60t cancelled",
        "60t done",
    ];
    assert_eq!(log, expected);
}

#[tokio::test(start_paused = true)]
async fn a_slow_function_for_ends_keeps_no_lease_and_no_drain() {
    let sim = Simulation::at("2026-10-22T12:01:30Z");
    let setup = async move |locks: tenure::Locks, scheduler: tokio_cron_scheduler::JobScheduler| {
        let on_end = |_: EndedRun| tokio::time::sleep(Duration::from_secs(8));
        let job = locks.cron("slow-end", "0 * * * * *").on_end(on_end);
        let job = job.run(|_: Tick| std::future::pending::<()>())?;
        locks.add_job(&scheduler, job).await?;
        Ok::<(), JobError>(())
    };
    let replica = sim.replica("a").start(setup).await;
    sim.run_for(Duration::from_secs(60)).await;
    replica.shut_down(Duration::from_secs(3)).await.unwrap();
}

/// A stolen tick is run again, so the run that lost it was not cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_lease_was_stolen_was_not_cancelled() {
    let store = tenure::MemoryStore::new();
    let nodes = [
        tenure::Locks::builder().memory_shared(&store).unwrap(),
        tenure::Locks::builder().memory_shared(&store).unwrap(),
    ];
    let log = Log::default();
    let nominal = UNIX_EPOCH + Duration::from_secs(NOON);
    let mut jobs = Vec::new();
    let mut fired = Vec::new();
    for locks in &nodes {
        let (log, ends) = (log.clone(), log.clone());
        let work = move |tick: Tick| {
            log.add(format!("#{}", tick.attempt()));
            async move {
                if tick.attempt() == 1 {
                    std::future::pending::<()>().await;
                }
            }
        };
        let on_end = move |end: EndedRun| {
            ends.add(format!("#{} {}", end.attempt, end.outcome.word()));
            async {}
        };
        let job = locks.every("stolen", Duration::from_secs(3_600)).on_end(on_end);
        jobs.push(job.run(work).unwrap());
        let locks = locks.clone();
        fired.push(tokio::spawn(async move {
            tenure::testing::fire_tick(&locks, "stolen", nominal).await
        }));
        while store.is_empty() {
            tokio::task::yield_now().await;
        }
    }
    let inspection = nodes[0].inspect();
    let entry = loop {
        let page = inspection.show("stolen").await.unwrap();
        if let Some(entry) = page.entries.into_iter().find(|entry| entry.waiter_count == 1) {
            break entry;
        }
        tokio::task::yield_now().await;
    };
    inspection.steal(&entry).grace(Duration::ZERO).await.unwrap();
    let mut outcomes = Vec::new();
    for run in fired {
        outcomes.push(run.await.unwrap());
    }
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["done", "elsewhere"]);
    for locks in &nodes {
        locks.drain(Duration::from_secs(5)).await.unwrap();
    }
    assert_eq!(log.take(), ["#1", "#2", "#2 done"]);
}
