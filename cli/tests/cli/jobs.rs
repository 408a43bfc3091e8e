//! `jobs`: the list, one job, its history, and whether a success is recent.

use std::time::Duration;

use tenure::scheduler::Retry;
use tenure::{Locks, Tick};
use tokio::sync::watch;
use tokio_cron_scheduler::JobScheduler;

use crate::server::RedisServer;
use crate::tools::{node, python, rows, run_on, until};

/// A job that is due each second: its first run fails with an odd text, the second goes on until it is released, and then each
/// succeeds.
struct Stage {
    server: RedisServer,
    locks: Locks,
    _scheduler: JobScheduler,
    release: watch::Sender<bool>,
}

const ODD: &str = "no rates: \u{1b}[31m%0A";

async fn stage() -> Stage {
    let server = RedisServer::start();
    let locks = node(&server, "web 1").await;
    let scheduler = JobScheduler::new().await.unwrap();
    let (release, released) = watch::channel(false);
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let work = move |_: Tick| {
        let run = runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let mut released = released.clone();
        async move {
            match run {
                // The second call is the retry of the first tick.
                0 | 1 => return Err(ODD),
                2 => drop(released.wait_for(|released| *released).await),
                _ => {}
            }
            Ok(())
        }
    };
    let pause = Duration::from_millis(1);
    let job = locks.cron("reconcile", "* * * * * *").timezone("Europe/Berlin");
    let job = job.retry(Retry::times(1).pauses(pause, pause)).run(work).unwrap();
    locks.add_job(&scheduler, job).await.unwrap();
    scheduler.start().await.unwrap();
    Stage {
        server,
        locks,
        _scheduler: scheduler,
        release,
    }
}

/// Waits until the store knows that the job is in this state.
async fn until_job(locks: &Locks, what: &str, is: impl Fn(&tenure::scheduler::JobEntry) -> bool) {
    until(what, async || {
        let job = locks.jobs().show("reconcile").await.unwrap();
        job.is_some_and(|job| is(&job))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_listed_shown_checked_and_paused_and_has_a_history() {
    let stage = stage().await;
    runs_after_a_failure(&stage).await;
    let list = run_on(&stage.server, &["jobs"]).well();
    is_listed(&stage, &list);
    succeeds(&stage).await;
    is_paused(&stage).await;
    is_left(&stage).await;
}

/// The first tick has failed, and the second is being run.
async fn runs_after_a_failure(stage: &Stage) {
    let on = |args: &[&str]| run_on(&stage.server, args);
    // The look of the node and its first failure may come in any order.
    until_job(&stage.locks, "the second tick runs", |job| {
        job.state.word() == "running"
            && job.plan.is_some()
            && job.latest.as_ref().is_some_and(|run| run.retries == 0)
    })
    .await;
    let failed_then_running = async || {
        let table = on(&["jobs", "history", "reconcile"]).well();
        table.contains("failed") && table.contains("running")
    };
    until(
        "the first run has failed and the second goes on",
        failed_then_running,
    )
    .await;

    // No success yet.
    let checked = on(&["jobs", "check", "reconcile", "--within", "1h"]);
    assert_eq!(
        (checked.code, &*checked.out),
        (1, "`reconcile` has had no success\n")
    );
    let table = on(&["jobs", "history", "reconcile", "--zone", "Asia/Tokyo"]).well();
    let failed = table
        .lines()
        .find(|line| line.contains("failed"))
        .expect("a failure");
    assert!(
        failed.contains("+09:00") && failed.contains(r"no rates: \x1b[31m%0A"),
        "{failed}"
    );
    assert!(failed.contains("web 1"), "{failed}");
    let program = "import sys,json\nfor line in sys.stdin:\n  run=json.loads(line).get('run')\n  if run and run['state']=='failed': \
                   print(run['attempt'],run['retries'],run['text'],end='')";
    let lines = on(&["jobs", "history", "reconcile", "--json"]).well();
    assert_eq!(python(program, &lines), format!("1 1 {ODD}"));

    let shown = on(&["jobs", "show", "reconcile"]).well();
    for line in [
        "state     running",
        "plan      * * * * * *",
        "zone      Europe/Berlin",
        "nodes     1",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
}

/// The table and the JSON have the job.
fn is_listed(stage: &Stage, list: &str) {
    let on = |args: &[&str]| run_on(&stage.server, args);
    let header: Vec<_> = list.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        header.join(" "),
        "JOB STATE NODE LAST TOOK LAST-SUCCESS NEXT NODES"
    );
    assert_eq!(rows(list)[0][..3], ["reconcile", "running", "web 1"]);
    assert_eq!(on(&["jobs", "other:"]).well().lines().count(), 1);
    let json = on(&["jobs", "reco", "--json"]).well();
    let program =
        "import sys,json; job=json.load(sys.stdin); print(job['job'],job['state'],job['nodes'][0]['name'])";
    assert_eq!(python(program, &json).trim(), "reconcile running web 1");
}

/// The second tick succeeds, and the check says so.
async fn succeeds(stage: &Stage) {
    let on = |args: &[&str]| run_on(&stage.server, args);
    stage.release.send(true).unwrap();
    until_job(&stage.locks, "it succeeds", |job| job.last_success.is_some()).await;
    let checked = on(&["jobs", "check", "reconcile", "--within", "1h"]).well();
    assert!(
        checked.starts_with("`reconcile` had its last success for "),
        "{checked}"
    );
}

/// Operators pause the job and resume it.
async fn is_paused(stage: &Stage) {
    let on = |args: &[&str]| run_on(&stage.server, args);
    let act = |args: &[&str]| on(&[&["jobs"], args, &["--by", "ann", "--why", "INC-7"]].concat());
    act(&["pause", "reconcile"]).refuses_after_a_table(2, "without a terminal the command needs --yes");
    let paused = act(&["pause", "reconcile", "--yes"]).well();
    assert!(paused.ends_with("reconcile: paused\n"), "{paused}");
    let again = act(&["pause", "reconcile", "--yes"]);
    assert!(
        again.code == 1 && again.out.ends_with("reconcile: was paused already\n"),
        "{again:?}"
    );
    let shown = on(&["jobs", "show", "reconcile"]).well();
    assert!(shown.contains("paused    by ann: INC-7"), "{shown}");
    until("no run goes on", async || {
        rows(&on(&["jobs"]).well())[0][1] == "paused"
    })
    .await;
    let resumed = act(&["resume", "--all", "reco", "--yes", "--json"]).well();
    assert!(
        resumed.contains(r#"{"job":"reconcile","outcome":"resumed"}"#),
        "{resumed}"
    );
    assert_eq!(act(&["resume", "reconcile", "--yes"]).code, 1);
    act(&["pause", "nothing", "--yes"]).refuses(1, "the store knows no job `nothing`");
    let history = on(&["jobs", "history", "reconcile"]).well();
    assert!(
        history.contains("resumed") && history.contains("by ann: INC-7"),
        "{history}"
    );
    let audit = on(&["audit"]).well();
    assert!(audit.contains("resumed") && audit.contains("paused"), "{audit}");
}

/// The node goes, its job has no next tick, and its last success gets too old.
async fn is_left(stage: &Stage) {
    let on = |args: &[&str]| run_on(&stage.server, args);
    stage.locks.drain(Duration::from_secs(5)).await.unwrap();
    until("the node has withdrawn", async || {
        let shown = on(&["jobs", "show", "reconcile"]).well();
        shown.contains("nodes     0") && shown.contains("next      -")
    })
    .await;
    until("the last success is too old", async || {
        let late = on(&["jobs", "check", "reconcile", "--within", "1s"]);
        late.code == 1 && late.out.contains("which is too long ago")
    })
    .await;
    // A clock was ahead once.
    let memory = redis::cmd("KEYS")
        .arg("tenure1:j:*")
        .query::<Vec<String>>(&mut stage.server.client())
        .unwrap();
    let hset = redis::cmd("HSET")
        .arg(&memory[0])
        .arg(&["well", "4000000000000"])
        .exec(&mut stage.server.client());
    hset.unwrap();
    let ahead = on(&["jobs", "check", "reconcile", "--within", "1h"]);
    assert!(
        ahead.code == 1 && ahead.out.contains("ahead of the store's clock"),
        "{ahead:?}"
    );
    let json = on(&["jobs", "check", "reconcile", "--within", "1h", "--json"]).out;
    let program =
        "import sys,json; said=json.load(sys.stdin); print(said['is_recent'],said['job']['last_success'])";
    assert_eq!(python(program, &json).trim(), "False 2096-10-02T07:06:40.000Z");
    // A key of another type is no job, and hides no other.
    for command in ["DEL", "SET"] {
        let arguments = if command == "SET" {
            &[&*memory[0], "x"][..]
        } else {
            &[&*memory[0]]
        };
        let changed = redis::cmd(command)
            .arg(arguments)
            .exec(&mut stage.server.client());
        changed.unwrap();
    }
    assert_eq!(on(&["jobs"]).well().lines().count(), 1);
    on(&["jobs", "show", "reconcile"]).refuses(3, "holds a value");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_job_is_code_1_and_wrong_usage_code_2() {
    let server = RedisServer::start();
    for args in [
        &["jobs", "show", "nothing"][..],
        &["jobs", "history", "nothing"],
        &["jobs", "check", "nothing", "--within", "1h"],
    ] {
        run_on(&server, args).refuses(1, "the store knows no job `nothing`");
    }
    for (args, words) in [
        (
            &["jobs", "history", "a", "--zone", "Mars/Olympus"][..],
            "no time zone",
        ),
        (
            &["jobs", "history", "a", "--zone", "UTC", "--json"],
            "all times are in UTC",
        ),
        (&["jobs", "history", "a", "--since", "3"], "--since"),
        (&["jobs", "check", "a"], "--within"),
    ] {
        run_on(&server, args).refuses(2, words);
    }
    assert_eq!(run_on(&server, &["jobs"]).well().lines().count(), 1);
}
