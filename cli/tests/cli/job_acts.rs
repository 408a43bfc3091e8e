//! `jobs trigger`, `cancel`, `reset` and `forget`, with each exit code.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Locks, Tick};
use tokio::sync::watch;
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::server::RedisServer;
use crate::tools::{Answer, at_a_terminal, command, node, python, run, run_on, until};

/// A job that is due once a year, and so runs only when it is triggered.
struct Stage {
    server: RedisServer,
    locks: Locks,
    _scheduler: JobScheduler,
    /// Whether runs fail.
    fails: Arc<AtomicBool>,
    /// Whether runs may end.
    ends: watch::Sender<bool>,
    /// The nominal second of each run, and its operator.
    runs: Arc<Mutex<Vec<(u64, String)>>>,
}

/// The tick of the year 2026, in Berlin.
const TICK: u64 = 1_767_222_000;

async fn stage() -> Stage {
    let server = RedisServer::start();
    let locks = node(&server, "web 1").await;
    let scheduler = JobScheduler::new().await.unwrap();
    let (ends, ended) = watch::channel(true);
    let (fails, runs) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<_>>>::default());
    let (of_job, log) = (fails.clone(), runs.clone());
    let work = move |tick: Tick| {
        let by = tick.triggered().map_or("".into(), |act| act.by);
        log.lock().unwrap().push((tick.nominal_unix(), by.to_string()));
        let (mut ended, fails) = (ended.clone(), of_job.clone());
        async move {
            drop(ended.wait_for(|ended| *ended).await);
            match fails.load(Ordering::SeqCst) {
                true => Err("no rates"),
                false => Ok(()),
            }
        }
    };
    let job: Job = locks
        .cron("reconcile", "0 0 0 1 1 *")
        .timezone("Europe/Berlin")
        .run(work)
        .unwrap();
    locks.add_job(&scheduler, job).await.unwrap();
    scheduler.start().await.unwrap();
    let stage = Stage {
        server,
        locks,
        _scheduler: scheduler,
        fails,
        ends,
        runs,
    };
    until("the store knows the job", async || {
        let job = stage.locks.jobs().show("reconcile").await.unwrap();
        job.is_some_and(|job| job.plan.is_some())
    })
    .await;
    stage
}

impl Stage {
    fn on(&self, args: &[&str]) -> Answer {
        run_on(&self.server, &[&["jobs"], args].concat())
    }

    fn act(&self, args: &[&str]) -> Answer {
        self.on(&[args, &["--yes", "--by", "ann", "--why", "INC-7"]].concat())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_triggered_and_its_end_decides_the_exit_code() {
    let stage = stage().await;
    stage
        .on(&["trigger", "reconcile"])
        .refuses_after_a_table(2, "without a terminal the command needs --yes");
    let done = stage.act(&["trigger", "reconcile", "--wait"]).well();
    assert!(
        done.ends_with("reconcile: triggered\nreconcile: done\n"),
        "{done}"
    );
    assert_eq!(stage.runs.lock().unwrap()[0].1, "ann");
    stage.on(&["check", "reconcile", "--within", "1h"]).well();

    stage.fails.store(true, Ordering::SeqCst);
    let failed = stage.act(&["trigger", "reconcile", "--wait"]);
    assert!(
        failed.code == 1 && failed.out.ends_with("reconcile: failed\n"),
        "{failed:?}"
    );
    let history = stage.on(&["history", "reconcile"]).well();
    assert!(history.contains("triggered: no rates"), "{history}");
    assert!(history.contains("by ann: INC-7"), "{history}");
    let program = "import sys,json\nfor line in sys.stdin:\n  run=json.loads(line).get('run')\n  \
                   if run: print(run['state'],run['triggered'],end=' ')";
    let lines = stage.on(&["history", "reconcile", "--json"]).well();
    assert_eq!(python(program, &lines), "done True failed True ");
    stage
        .act(&["trigger", "nothing"])
        .refuses(1, "the store knows no job `nothing`");
    let json = stage.act(&["trigger", "reconcile", "--json"]).well();
    assert_eq!(json, "{\"job\":\"reconcile\",\"outcome\":\"triggered\"}\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_triggered_for_a_tick_of_the_plan_only() {
    let stage = stage().await;
    for (tick, words) in [
        ("Saturday", "it is no time"),
        ("2026-01-02T00:00", "it is no tick of the plan"),
        ("2026-01-01T00:00:00Z", "it is no tick of the plan"),
        ("1969-01-01 00:00", "it is no time"),
    ] {
        let trigger = ["trigger", "reconcile", "--for", tick];
        stage.act(&trigger).refuses(2, words);
    }
    let early = stage.act(&["trigger", "reconcile", "--for", "2096-01-01 00:00"]);
    assert!(
        early.code == 1 && early.out.contains("has not come yet"),
        "{early:?}"
    );
    for (at, tick) in [
        "2026-01-01 00:00:00+01:00",
        "2026-01-01 00:00",
        "2026-01-01T00:00:00",
        "2025-12-31T23:00:00Z",
    ]
    .into_iter()
    .enumerate()
    {
        let done = stage
            .act(&["trigger", "reconcile", "--for", tick, "--wait"])
            .well();
        let before = match at {
            0 => "no run of 2026-01-01 00:00:00+01:00 is known\n",
            _ => "triggered\n",
        };
        assert!(
            done.contains(before) && done.ends_with("reconcile: done\n"),
            "{done}"
        );
    }
    let runs = stage.runs.lock().unwrap().clone();
    assert_eq!(runs, [const { TICK }; 4].map(|tick| (tick, "ann".to_owned())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_cancelled_once() {
    let stage = stage().await;
    stage.ends.send(false).unwrap();
    stage.act(&["trigger", "reconcile"]).well();
    until("it runs", async || !stage.runs.lock().unwrap().is_empty()).await;
    let again = stage.act(&["trigger", "reconcile"]);
    assert!(
        again.code == 1 && again.out.ends_with("reconcile: a run is wanted already\n"),
        "{again:?}"
    );
    let shown = stage.on(&["show", "reconcile"]).well();
    assert!(shown.contains("by ann: INC-7"), "{shown}");
    stage
        .on(&["cancel", "reconcile"])
        .refuses_after_a_table(2, "without a terminal the command needs --yes");
    let cancelled = stage.act(&["cancel", "reconcile", "--grace", "0s"]).well();
    assert!(cancelled.ends_with("reconcile: cancelled\n"), "{cancelled}");
    let history = stage.on(&["history", "reconcile"]).well();
    assert_eq!(history.matches("cancelled").count(), 2, "{history}");
    stage
        .act(&["cancel", "reconcile"])
        .refuses_after_a_table(1, "no tick of `reconcile` runs, is open or is wanted");

    // The job ends itself within the grace, so there is nothing to cancel.
    stage.act(&["trigger", "reconcile"]).well();
    until("it runs again", async || stage.runs.lock().unwrap().len() == 2).await;
    stage.ends.send(true).unwrap();
    let ended = stage.act(&["cancel", "reconcile", "--grace", "20s"]);
    let is_late = ended.code == 1 && ended.err.contains("no tick of `reconcile` runs");
    let has_ended = ended.code == 1 && ended.out.contains("the tick has ended");
    let was_asked = ended.code == 0 && ended.out.contains("the run was asked, and its tick has ended");
    assert!(is_late || has_ended || was_asked, "{ended:?}");
}

/// Waits for a run in the background, as an operator at another terminal.
fn waiting(stage: &Stage) -> tokio::task::JoinHandle<Answer> {
    let url = stage.server.url();
    let args = [
        "jobs",
        "trigger",
        "reconcile",
        "--wait",
        "--yes",
        "--by",
        "ann",
        "--url",
    ];
    let args = args.map(str::to_owned).into_iter().chain([url]);
    let args: Vec<String> = args.collect();
    tokio::task::spawn_blocking(move || run(&args.iter().map(|arg| &**arg).collect::<Vec<_>>()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_with_the_run_that_was_triggered() {
    let stage = stage().await;
    stage.ends.send(false).unwrap();
    let waits = waiting(&stage);
    until("it runs", async || !stage.runs.lock().unwrap().is_empty()).await;
    // Another operator cancels it, and triggers a run that succeeds at once.
    let jobs = stage.locks.jobs();
    let current = jobs.show("reconcile").await.unwrap().unwrap().current.unwrap();
    jobs.cancel("reconcile", current, Duration::ZERO, "bob", "")
        .await
        .unwrap();
    stage.ends.send(true).unwrap();
    jobs.trigger("reconcile", None, "bob", "").await.unwrap();
    let waited = waits.await.unwrap();
    assert!(
        waited.code == 1 && waited.out.ends_with("reconcile: cancelled\n"),
        "{waited:?}"
    );
    until("that of bob ends", async || {
        let job = jobs.show("reconcile").await.unwrap().unwrap();
        job.wanted.is_none()
    })
    .await;

    // A trigger that is withdrawn before a run is none of those before it.
    stage.locks.drain(Duration::from_secs(5)).await.unwrap();
    let waits = waiting(&stage);
    let wanted = async || jobs.show("reconcile").await.unwrap().unwrap().wanted;
    until("it is wanted", async || wanted().await.is_some()).await;
    let tick = wanted().await.unwrap().tick_entry();
    jobs.cancel("reconcile", tick, Duration::ZERO, "bob", "")
        .await
        .unwrap();
    let waited = waits.await.unwrap();
    assert!(
        waited.code == 1 && waited.out.ends_with("reconcile: ended without a run\n"),
        "{waited:?}"
    );
    assert!(waited.err.contains("no node has the job"), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_outlives_an_outage_of_the_store() {
    let stage = stage().await;
    stage.ends.send(false).unwrap();
    let waits = waiting(&stage);
    until("it runs", async || !stage.runs.lock().unwrap().is_empty()).await;
    stage.server.freeze();
    // Longer than the command waits for an answer.
    tokio::time::sleep(Duration::from_secs(4)).await;
    stage.server.thaw();
    stage.ends.send(true).unwrap();
    let waited = waits.await.unwrap();
    assert!(
        waited.code == 0 && waited.out.ends_with("reconcile: done\n"),
        "{waited:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_is_gone_stops_no_act() {
    let stage = stage().await;
    let url = stage.server.url();
    let pause = ["jobs", "pause", "--all", "--yes", "--url", &url];
    let mut child = command(&pause).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let job = stage.locks.jobs().show("reconcile").await.unwrap().unwrap();
    assert!(job.paused.is_some());
    // The exit code is that of the act, not of the reader.
    let mut child = command(&pause).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_terminal_the_operator_of_a_job_is_asked() {
    let stage = stage().await;
    let url = stage.server.url();
    let args = ["jobs", "trigger", "reconcile", "--wait", "--url", &url];
    let (code, shown) = at_a_terminal(&args, "n\n");
    assert!(
        code == 1 && shown.contains("Run `reconcile` once more? [y/N]"),
        "{shown}"
    );
    assert!(shown.contains("nothing was done"), "{shown}");
    let args = args.map(str::to_owned);
    let triggering = move || at_a_terminal(&args.each_ref().map(|arg| &**arg), "y\n");
    let (code, shown) = tokio::task::spawn_blocking(triggering).await.unwrap();
    assert!(code == 0 && shown.contains("reconcile: done"), "{shown}");
    assert_eq!(stage.runs.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_reset_and_forgotten() {
    let stage = stage().await;
    let reset = stage.on(&["reset", "reconcile", "--yes"]);
    assert!(
        reset.code == 1 && reset.out.ends_with("reconcile: no tick lies ahead\n"),
        "{reset:?}"
    );
    // A clock was ahead once.
    let mut client = stage.server.client();
    let memory = redis::cmd("KEYS")
        .arg("tenure1:j:*")
        .query::<Vec<String>>(&mut client)
        .unwrap();
    let ahead = &["mark", "4000000000000", "done", "1", "attempt", "1"];
    let hset = redis::cmd("HSET").arg(&memory[0]).arg(ahead).exec(&mut client);
    hset.unwrap();
    let reset = stage.on(&["reset", "reconcile", "--yes"]).well();
    assert!(reset.ends_with("reconcile: reset\n"), "{reset}");
    let forgotten = stage.on(&["forget", "reconcile", "--yes"]);
    assert!(
        forgotten.code == 1 && forgotten.out.ends_with("`tenure jobs show` names the nodes\n"),
        "{forgotten:?}"
    );
    stage.locks.drain(Duration::from_secs(5)).await.unwrap();
    until("the node has withdrawn", async || {
        stage.on(&["forget", "reconcile", "--yes"]).code == 0
    })
    .await;
    for command in ["forget", "reset", "cancel"] {
        stage
            .on(&[command, "reconcile", "--yes"])
            .refuses(1, "the store knows no job `reconcile`");
    }
}
