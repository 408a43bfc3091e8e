//! Three replicas schedule the same cron job. One of them runs each tick, and a table shows which.
//!
//! Without a server: three schedulers in this process, for 12 s:
//!
//!     cargo run --example reconcile
//!
//! Three processes on a Redis:
//!
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example reconcile
//!
//! Three processes; the replica that runs the fourth tick is killed in the middle of it. Another replica runs that tick again,
//! as attempt 2 with a larger fence.
//!
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example reconcile -- --kill-winner

use std::error::Error;
use std::process::Stdio;
use std::time::Duration;

use tenure::{Locks, MemoryStore, Tick};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_cron_scheduler::JobScheduler;

/// Short, so that a takeover is quick to watch. The default of 30 s suits most jobs.
const LEASE: Duration = Duration::from_secs(2);
const SHOW: Duration = Duration::from_secs(12);
/// The run in which the winner is killed, counted from 1.
const FATAL: usize = 4;

const USAGE: &str = "usage: cargo run --example reconcile [-- --kill-winner]
TENURE_URL=redis://127.0.0.1/ makes the replicas three processes on that Redis.";

// The service.

/// Starts one replica: a scheduler with the job, which reports the start and the end of each run.
async fn replica(
    locks: &Locks,
    report: impl Fn(String) + Clone + Send + Sync + 'static,
) -> Result<JobScheduler, Box<dyn Error>> {
    let reconcile = move |tick: Tick| {
        let report = report.clone();
        async move {
            let run = format!("{} {} {}", tick.nominal_unix(), tick.attempt(), tick.fence());
            report(format!("start {run}"));
            sleep(Duration::from_millis(300)).await;
            report(format!("end {run}"));
        }
    };
    let scheduler = JobScheduler::new().await?;
    let job = locks
        .cron("reconcile", "* * * * * *")
        .lease(LEASE)
        .run(reconcile)?;
    locks.add_job(&scheduler, job).await?;
    scheduler.start().await?;
    Ok(scheduler)
}

// The demonstration.

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("TENURE_URL").ok();
    let url = url.filter(|url| !url.starts_with("memory:"));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let kill = match (&args[..], &url) {
        ([], _) => false,
        (["--kill-winner"], _) => true,
        // The child processes that this program starts.
        (["--replica"], Some(url)) => {
            let locks = Locks::connect(url).await?;
            let _scheduler = replica(&locks, |line| println!("{line}")).await?;
            return std::future::pending().await;
        }
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    };
    let (said, hears) = mpsc::unbounded_channel();
    let mut replicas = Vec::new();
    let store = MemoryStore::new();
    match &url {
        Some(url) => {
            // Connects once before the replicas start, so that a connection error appears once.
            Locks::connect(url).await?.shutdown().await;
            println!("Three processes on one Redis, each with a scheduler that fires every second.");
        }
        None => println!(
            "Three schedulers in this process on one store in memory, each firing every second.\n\
             With TENURE_URL=redis://127.0.0.1/ they are three processes."
        ),
    }
    for who in 0..3 {
        let said = said.clone();
        replicas.push(match url {
            Some(_) => Replica::Process(spawn(who, said)?),
            None => {
                let locks = Locks::builder().memory_shared(&store)?;
                let report = move |line| drop(said.send((who, line)));
                Replica::Here(locks.clone(), replica(&locks, report).await?)
            }
        });
        // Replicas never start together.
        sleep(Duration::from_millis(170)).await;
    }
    show(replicas, hears, kill).await
}

enum Replica {
    Process(Child),
    Here(Locks, JobScheduler),
    Dead,
}

fn spawn(who: usize, said: mpsc::UnboundedSender<(usize, String)>) -> Result<Child, Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--replica")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("the child has no stdout")?).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let _ = said.send((who, line));
        }
    });
    Ok(child)
}

#[allow(clippy::too_many_lines, reason = "one linear demonstration")]
async fn show(
    mut replicas: Vec<Replica>,
    mut hears: mpsc::UnboundedReceiver<(usize, String)>,
    kill: bool,
) -> Result<(), Box<dyn Error>> {
    println!("\n      tick   replica 1  replica 2  replica 3   attempt  fence");
    let until = Instant::now() + SHOW;
    let (mut starts, mut ends, mut killed) = (0, std::collections::BTreeMap::new(), None);
    while let Ok(Some((who, line))) = timeout_at(until, hears.recv()).await {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, tick, attempt, fence] = words[..] else {
            continue;
        };
        if what == "end" {
            *ends.entry(tick.to_owned()).or_insert(0) += 1;
            continue;
        }
        starts += 1;
        let mut row = [""; 3];
        row[who] = "runs";
        let [one, two, three] = row;
        println!("{tick:>10}   {one:<9}  {two:<9}  {three:<9}   {attempt:>7}  {fence}");
        if let (Some((fatal, at)), "2") = (&killed, attempt)
            && *fatal == tick
        {
            let at: &Instant = at;
            println!(
                "             replica {} has taken over, {:.1?} after the end of the winner; ticks in between are skipped",
                who + 1,
                at.elapsed()
            );
        }
        if kill && starts == FATAL {
            sleep(Duration::from_millis(100)).await;
            match std::mem::replace(&mut replicas[who], Replica::Dead) {
                Replica::Process(mut child) => {
                    child.kill().await?;
                    println!(
                        "             replica {} is killed in the middle of it; its lease of {LEASE:?} must end first",
                        who + 1
                    );
                }
                Replica::Here(locks, mut scheduler) => {
                    scheduler.shutdown().await?;
                    locks.shutdown().await;
                    println!(
                        "             replica {} is ended in the middle of it, and gives its lease back",
                        who + 1
                    );
                }
                Replica::Dead => {}
            }
            killed = Some((tick.to_owned(), Instant::now()));
        }
    }
    for replica in replicas {
        match replica {
            Replica::Process(mut child) => child.kill().await?,
            Replica::Here(locks, mut scheduler) => {
                // The order in which a service must end: first the jobs, then the scheduler.
                locks.drain(Duration::from_secs(1)).await?;
                scheduler.shutdown().await?;
            }
            Replica::Dead => {}
        }
    }
    let twice = ends.values().filter(|times| **times > 1).count();
    println!(
        "\n{starts} runs, {} of them to their end; ticks that were run twice: {twice}",
        ends.values().sum::<i32>()
    );
    if ends.is_empty() {
        return Err("no replica finished a run".into());
    }
    if twice > 0 {
        return Err("a tick was run twice".into());
    }
    Ok(())
}
