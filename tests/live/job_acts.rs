//! What operators do about jobs, on real servers: pauses, triggers and cancels.
//!
//! `TENURE_JOBS_SECONDS=120` makes the run of three processes long. Run it so from time to time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure::error::{StoreErrorKind, StoreRefusal};
use tenure::scheduler::{
    HistoryEntry, JobActOutcome, JobEntry, JobRun, JobState, RunOutcome, RunState, TickEntry,
};
use tenure::{Locks, Tick};
use tokio_cron_scheduler::Job;

use crate::cluster::Cluster;
use crate::help::{self, Eyes, ms, on_cluster, soon};
use crate::server::RedisServer;
use crate::store::{locks_of, rights_of};
use crate::ticks::{Heard, Setup, Worker, check_runs};

/// So rare that no tick comes during a test.
const RARE: &str = "0 0 0 1 1 *";

/// The nominal second, the attempt and the operator of each run that began.
type Runs = Arc<Mutex<Vec<(u64, u32, Option<String>)>>>;

/// A job whose runs end at once.
fn job(locks: &Locks, name: &str, lease: Duration, runs: &Runs) -> Job {
    let runs = runs.clone();
    let work = move |tick: Tick| {
        let by = tick.triggered().map(|act| format!("{}: {}", act.by, act.why));
        let run = (tick.nominal_unix(), tick.attempt(), by);
        runs.lock().unwrap().push(run);
        async {}
    };
    locks.cron(name, RARE).lease(lease).run(work).unwrap()
}

async fn until(locks: &Locks, name: &str, so: impl Fn(&JobEntry) -> bool) -> JobEntry {
    soon(async {
        loop {
            if let Some(job) = locks.jobs().show(name).await.unwrap().filter(&so) {
                return job;
            }
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await
}

fn is_done(outcome: &JobActOutcome) -> bool {
    matches!(outcome, JobActOutcome::Done { unwritten: None, .. })
}

/// Waits until each node of a job hears the news of the server.
async fn until_heard(server: &RedisServer, job: &JobEntry) {
    let mut eyes = Eyes::on(server);
    let channels = job.nodes.iter().map(|node| format!("tenure1:n:{}", node.id));
    for channel in channels {
        let ask = format!("PUBSUB NUMSUB {channel}");
        help::until("it has subscribed", || eyes.text::<(String, u64)>(&ask).1 == 1).await;
    }
}

/// With a lease of a month no second look comes during the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_triggered_run_begins_before_the_next_look() {
    let (server, runs) = (RedisServer::start(), Runs::default());
    let nodes = [
        help::connect(&server.url()).await.unwrap(),
        help::connect(&server.url()).await.unwrap(),
    ];
    let lease = Duration::from_secs(30 * 24 * 3_600);
    let jobs = nodes.each_ref().map(|node| job(node, "a", lease, &runs));
    let known = until(&nodes[0], "a", |job| job.nodes.len() == 2).await;
    until_heard(&server, &known).await;
    let triggered = nodes[0].jobs().trigger("a", None, "ann", "INC-7").await.unwrap();
    assert!(is_done(&triggered), "{triggered:?}");
    let ended = until(&nodes[0], "a", |job| {
        job.wanted.is_none() && job.last_success.is_some()
    })
    .await;
    assert_eq!(ended.latest.as_ref().map(|run| run.is_triggered), Some(true));
    let runs = runs.lock().unwrap().clone();
    let by = Some("ann: INC-7".to_owned());
    assert!(matches!(&*runs, [(_, 1, of)] if *of == by), "{runs:?}");
    drop(jobs);
}

/// A user without the right to subscribe hears of nothing, so its node begins at its next look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_subscribe_a_triggered_run_begins_at_the_next_look() {
    let (server, runs) = (RedisServer::start(), Runs::default());
    let rights = rights_of("tenure");
    let _: String = Eyes::on(&server).text(&format!(
        "ACL SETUSER deaf on >secret {rights} -subscribe resetchannels"
    ));
    let url = server.url().replace("redis://", "redis://deaf:secret@");
    let deaf = help::connect(&url).await.unwrap();
    let operator = help::connect(&server.url()).await.unwrap();
    let job = job(&deaf, "a", ms(1_000), &runs);
    until(&operator, "a", |job| job.nodes.len() == 1).await;
    assert!(is_done(
        &operator.jobs().trigger("a", None, "ann", "").await.unwrap()
    ));
    until(&operator, "a", |job| job.last_success.is_some()).await;
    assert_eq!(runs.lock().unwrap().len(), 1);
    drop(job);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_operators_one_triggers_and_each_gets_an_answer() {
    let (server, runs) = (RedisServer::start(), Runs::default());
    let node = help::connect(&server.url()).await.unwrap();
    let job = job(&node, "a", ms(60_000), &runs);
    until(&node, "a", |job| job.nodes.len() == 1).await;
    // Without a node a triggered run stays wanted.
    let operators = [
        help::connect(&server.url()).await.unwrap(),
        help::connect(&server.url()).await.unwrap(),
    ];
    drop(job);
    until(&node, "a", |job| job.nodes.is_empty()).await;
    let acts = |act: &'static str| {
        let operators = operators.clone();
        async move {
            let mut tasks = tokio::task::JoinSet::new();
            for (at, operator) in operators.iter().cycle().take(8).enumerate() {
                let (jobs, by) = (operator.jobs(), format!("operator {at}"));
                tasks.spawn(async move {
                    match act {
                        "pause" => jobs.pause("a", by, "").await,
                        "resume" => jobs.resume("a", false, by, "").await,
                        "trigger" => jobs.trigger("a", None, by, "").await,
                        _ => {
                            let job = jobs.show("a").await?.unwrap();
                            let Some(current) = job.current else {
                                return Ok(JobActOutcome::OtherTick);
                            };
                            jobs.cancel("a", current, Duration::ZERO, by, "").await
                        }
                    }
                });
            }
            let outcomes = soon(tasks.join_all()).await.into_iter().map(Result::unwrap);
            let (done, refused): (Vec<_>, Vec<_>) = outcomes.partition(is_done);
            assert_eq!((done.len(), refused.len()), (1, 7), "{act}: {refused:?}");
            refused
        }
    };
    for act in ["pause", "resume", "trigger"] {
        let refused = acts(act).await;
        assert!(
            refused
                .iter()
                .all(|outcome| matches!(outcome, JobActOutcome::Unchanged)),
            "{act}: {refused:?}"
        );
    }
    let refused = acts("cancel").await;
    assert!(
        refused
            .iter()
            .all(|outcome| matches!(outcome, JobActOutcome::OtherTick)),
        "{refused:?}"
    );
    let audit = node.inspect().audit().await.unwrap();
    let mut whats: Vec<_> = audit.iter().map(|act| &*act.what).collect();
    whats.sort_unstable();
    assert_eq!(whats, ["cancelled", "paused", "resumed", "triggered"]);
}

/// Names and reasons of every byte, and long ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_and_a_reason_may_have_every_character() {
    let (server, runs) = (RedisServer::start(), Runs::default());
    let node = help::connect(&server.url()).await.unwrap();
    let every: String = (0..=0xff_u32).filter_map(char::from_u32).collect();
    let name: Vec<u8> = (0..=255).collect();
    let runs_of = runs.clone();
    let work = move |tick: Tick| {
        let by = tick.triggered().map(|act| format!("{}{}", act.by, act.why));
        runs_of.lock().unwrap().push((0, tick.attempt(), by));
        async {}
    };
    let job = node.cron(name.clone(), RARE).lease(ms(1_000)).run(work).unwrap();
    let jobs = node.jobs();
    let known = async || jobs.show(name.clone()).await.unwrap();
    soon(async {
        while known().await.is_none() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    for (by, why) in [
        (every.clone(), "100% \0\n! late".to_owned()),
        ("ann".to_owned(), "ä! ".repeat(3_000)),
    ] {
        let jobs = node.jobs();
        assert!(is_done(&jobs.pause(name.clone(), &by, &why).await.unwrap()));
        let paused = known().await.unwrap().paused.unwrap();
        // What the store keeps is a beginning: whole characters.
        assert!(by.starts_with(&*paused.by) && !paused.by.is_empty());
        assert!(why.starts_with(&*paused.why) && !paused.why.is_empty());
        runs.lock().unwrap().clear();
        assert!(is_done(
            &jobs.trigger(name.clone(), None, &by, &why).await.unwrap()
        ));
        soon(async {
            while known().await.unwrap().wanted.is_some() {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        let of_run = runs.lock().unwrap()[0].2.clone().unwrap();
        assert_eq!(of_run, format!("{}{}", paused.by, paused.why));
        assert!(is_done(
            &jobs.resume(name.clone(), false, &by, &why).await.unwrap()
        ));
    }
    for unknown in [b"".to_vec(), b"reconcil".to_vec(), vec![b'x'; 10_000]] {
        let triggered = jobs.trigger(unknown.clone(), None, "ann", "").await.unwrap();
        assert!(matches!(triggered, JobActOutcome::Unknown), "{triggered:?}");
        assert!(jobs.show(unknown).await.unwrap().is_none());
    }
    let tick = |at: SystemTime| TickEntry::scheduled(at);
    for tick in [
        UNIX_EPOCH,
        UNIX_EPOCH - Duration::from_secs(1),
        UNIX_EPOCH + Duration::from_secs(1 << 54),
    ]
    .map(tick)
    {
        let cancelled = jobs.cancel(name.clone(), tick, Duration::ZERO, "ann", "").await;
        assert!(matches!(cancelled, Ok(JobActOutcome::OtherTick)), "{cancelled:?}");
    }
    let far = Some(UNIX_EPOCH + Duration::from_secs(1 << 54));
    let early = jobs.trigger(name.clone(), far, "ann", "").await.unwrap();
    assert!(matches!(early, JobActOutcome::InFuture), "{early:?}");
    drop(job);
}

/// A user who may look may not act, a Redis that is away gets no act, and a quorum serves no jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_act_that_is_refused_says_why() {
    let (mut server, runs) = (RedisServer::start(), Runs::default());
    let node = help::connect(&server.url()).await.unwrap();
    let job = job(&node, "a", ms(1_000), &runs);
    until(&node, "a", |job| job.nodes.len() == 1).await;
    let looks = locks_of(&server, "look").await;
    let current = TickEntry::scheduled(UNIX_EPOCH);
    for refused in [
        looks.jobs().trigger("a", None, "eve", "").await,
        looks.jobs().pause("a", "eve", "").await,
        looks.jobs().cancel("a", current, Duration::ZERO, "eve", "").await,
    ] {
        let error = refused.unwrap_err();
        let tenure::Error::Connect { source, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(
            source.kind(),
            &StoreErrorKind::Refused(StoreRefusal::NoPermission),
            "{error}"
        );
    }
    // The user of the guide for operators may do everything.
    let steals = locks_of(&server, "steal").await;
    assert!(is_done(
        &steals.jobs().trigger("a", None, "ann", "").await.unwrap()
    ));
    until(&node, "a", |job| job.last_success.is_some()).await;
    assert!(!steals.jobs().reset("a").await.unwrap());
    assert!(steals.jobs().forget("a").await.unwrap_err().is_busy());
    server.kill();
    let away = soon(steals.jobs().trigger("a", None, "ann", "").into_future()).await;
    assert!(away.unwrap_err().is_unreachable());
    drop(job);

    let masters = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let urls = masters.each_ref().map(RedisServer::url);
    let quorum = help::quorum(urls).await.unwrap();
    let refused = quorum.jobs().trigger("a", None, "ann", "").await.unwrap_err();
    assert!(refused.to_string().contains("quorum"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_a_cluster_is_paused_triggered_and_cancelled() {
    let (cluster, runs) = (Cluster::start(3, 0), Runs::default());
    let node = on_cluster(cluster.urls()).await.unwrap();
    let operator = on_cluster(cluster.urls()).await.unwrap();
    for name in ["a", "b", "c", "d"] {
        // Should a node not hear of it yet, it looks again after five seconds.
        let job = job(&node, name, ms(1_000), &runs);
        until(&operator, name, |job| job.nodes.len() == 1).await;
        let jobs = operator.jobs();
        assert!(is_done(&jobs.pause(name, "ann", "").await.unwrap()));
        assert!(is_done(&jobs.trigger(name, None, "ann", "").await.unwrap()));
        let ended = until(&operator, name, |job| job.last_success.is_some()).await;
        assert_eq!((ended.state, ended.wanted), (JobState::Paused, None));
        drop(job);
        until(&operator, name, |job| job.nodes.is_empty()).await;
        assert!(is_done(&jobs.trigger(name, None, "ann", "").await.unwrap()));
        let current = until(&operator, name, |job| job.current.is_some()).await;
        let cancelled = jobs.cancel(name, current.current.unwrap(), Duration::ZERO, "ann", "");
        assert!(is_done(&cancelled.await.unwrap()));
        assert!(is_done(&jobs.resume(name, false, "ann", "").await.unwrap()));
    }
}

/// What the store keeps of a job does not grow with the number of its ticks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_history_has_a_bounded_size() {
    // A name and a text of 256 bytes are the longest that are kept.
    for (name, text, expected, limit) in [
        ("web-1".to_owned(), String::new(), "done", 50_000),
        ("n".repeat(256), "t".repeat(256), "failed", 100_000),
    ] {
        let server = RedisServer::start();
        let locks = help::builder().node_name(name.as_str());
        let locks = locks.connect(&server.url()).await.unwrap();
        let work = move |_: Tick| {
            let text = text.clone();
            async move { if text.is_empty() { Ok(()) } else { Err(text) } }
        };
        let job = locks.every("a", Duration::from_secs(1)).run(work).unwrap();
        until(&locks, "a", |job| job.nodes.len() == 1).await;
        let mut eyes = Eyes::on(&server);
        let first = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - 1_000;
        let mut sizes = Vec::new();
        for ticks in [0..110, 110..160] {
            for tick in ticks {
                let nominal = UNIX_EPOCH + Duration::from_secs(first + tick);
                let outcome = tenure::testing::fire_tick(&locks, "a", nominal).await;
                assert_eq!(outcome, expected);
            }
            let memory: String = eyes.text::<Vec<String>>("KEYS tenure1:j:*").remove(0);
            let fields: u64 = eyes.text(&format!("HLEN {memory}"));
            let bytes: u64 = eyes.text(&format!("MEMORY USAGE {memory} SAMPLES 0"));
            sizes.push((fields, bytes));
        }
        println!("fields and bytes after 110 and 160 ticks: {sizes:?}");
        assert_eq!(sizes[0].0, sizes[1].0, "{sizes:?}");
        assert!(sizes.iter().all(|(_, bytes)| *bytes <= limit), "{sizes:?}");
        drop(job);
    }
}

/// The number of acts. One and what follows it takes about a second.
fn rounds() -> u64 {
    let seconds = std::env::var("TENURE_JOBS_SECONDS");
    seconds.map_or(20, |text| text.parse().expect("a number of seconds"))
}

/// What the operator of the three processes saw and did.
struct Operator {
    locks: Locks,
    /// All runs that the history had, by fence.
    runs: BTreeMap<u64, JobRun>,
    triggers: usize,
    acts: Vec<(SystemTime, String)>,
}

impl Operator {
    const JOB: &'static str = "replicated";

    /// The store keeps 100 runs. So the history is read often.
    async fn read(&mut self) {
        let history = self.locks.jobs().history(Self::JOB, UNIX_EPOCH).await.unwrap();
        let Some(history) = history else { return };
        let mut seen = BTreeMap::new();
        self.acts.clear();
        for entry in history.entries {
            match entry {
                HistoryEntry::Run(run) => {
                    let again = seen.insert(run.fence.get(), run.clone());
                    assert!(again.is_none(), "a run is there once: {run:?}");
                    let before = self.runs.insert(run.fence.get(), run.clone());
                    let is_fixed = before.is_none_or(|before| {
                        !matches!(before.state, RunState::Ended(_)) || before.state == run.state
                    });
                    assert!(is_fixed, "an end changed: {run:?}");
                }
                HistoryEntry::Act(act) => self.acts.push((act.time(), act.what.clone())),
                _ => {}
            }
        }
    }

    async fn act(&mut self, lasts: Duration) {
        let jobs = self.locks.jobs();
        match fastrand::u8(..5) {
            0 => {
                let Ok(paused) = jobs.pause(Self::JOB, "ann", "").await else {
                    return;
                };
                assert!(is_done(&paused), "{paused:?}");
                self.trigger(None).await;
                tokio::time::sleep(lasts).await;
                let resumed = jobs.resume(Self::JOB, fastrand::bool(), "ann", "").await;
                assert!(is_done(&resumed.unwrap()));
            }
            1 => {
                let past = UNIX_EPOCH + Duration::from_secs(fastrand::u64(1_000_000..1_000_100));
                self.trigger(Some(past)).await;
            }
            _ => self.trigger(None).await,
        }
    }

    async fn trigger(&mut self, for_tick: Option<SystemTime>) {
        let triggered = self.locks.jobs().trigger(Self::JOB, for_tick, "ann", "").await;
        match triggered.unwrap() {
            JobActOutcome::Done { .. } => self.triggers += 1,
            JobActOutcome::Unchanged | JobActOutcome::TickUnfinished => {}
            other => panic!("{other:?}"),
        }
    }

    /// Checks that in each pause only triggered runs began, and that each trigger had one run to its end.
    fn check(&self) {
        let ended = |run: &&JobRun| run.is_triggered && run.state == RunState::Ended(RunOutcome::Done);
        assert_eq!(
            self.runs.values().filter(ended).count(),
            self.triggers,
            "{:#?}",
            self.runs
        );
        let mut since = None;
        for (at, what) in &self.acts {
            match &**what {
                "paused" => since = Some(*at),
                "resumed" | "resumed_to_catch_up" => {
                    // The list has milliseconds.
                    let pause = since.take().unwrap() + ms(1)..*at;
                    let mut runs = self.runs.values().filter(|run| !run.is_triggered);
                    let began = runs.find(|run| pause.contains(&run.began));
                    assert!(began.is_none(), "{began:?} began in {pause:?}");
                }
                _ => {}
            }
        }
    }
}

/// Replicas are killed and drained, and an operator pauses, resumes and triggers, all at random.
#[test]
fn three_processes_run_what_operators_want() {
    let (server, heard) = (RedisServer::start(), Heard::default());
    let setup = Setup {
        lease: ms(2_000),
        lasts: Some(ms(200)),
        ..Setup::on(server.url())
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut operator = Operator {
        locks: runtime.block_on(locks_of(&server, "steal")),
        runs: BTreeMap::new(),
        triggers: 0,
        acts: Vec::new(),
    };
    let mut workers: Vec<_> = (0..3).map(|who| Worker::start(who, &setup, &heard)).collect();
    heard.until_all_ready();
    heard.until("a run", |line| line.what == "start");
    let mut faults = 0;
    for _ in 0..rounds() {
        std::thread::sleep(ms(1_000).mul_f64(fastrand::f64()));
        runtime.block_on(operator.act(ms(fastrand::u64(1_000..3_000))));
        if fastrand::bool() {
            let who = fastrand::usize(..3);
            match fastrand::bool() {
                true => workers[who].kill(),
                false => {
                    workers[who].signal("-TERM");
                    let _ = workers[who].child.wait();
                }
            }
            workers[who] = Worker::start(who, &setup, &heard);
            faults += 1;
        }
        runtime.block_on(operator.read());
    }
    // What is wanted and open comes to its end.
    let ended = |job: &JobEntry| job.wanted.is_none();
    runtime.block_on(until(&operator.locks, Operator::JOB, ended));
    for worker in &mut workers {
        worker.signal("-TERM");
        let _ = worker.child.wait();
    }
    drop(workers);
    runtime.block_on(operator.read());
    heard.check();
    operator.check();
    let (triggers, count) = (operator.triggers, operator.runs.len());
    println!("{faults} kills and drains, {triggers} triggers, {count} runs in the history");
    check_runs(operator.runs, &heard);
}
