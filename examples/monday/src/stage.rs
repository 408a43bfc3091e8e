//! A server, three replicas, what happens to them at the weekend, and the command of the operator.
//!
//! At the end the stage compares what the command printed with the screen in `docs/jobs.md`.

#![allow(
    clippy::disallowed_methods,
    reason = "a program reads the clock, and the demonstration waits"
)]
#![allow(
    unreachable_pub,
    reason = "a program exports nothing, and `server` is included elsewhere"
)]

#[path = "../../../tests/live/server.rs"]
mod server;

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, UNIX_EPOCH};

use tenure::Locks;
use tenure::scheduler::{HistoryEntry, JobRun, RunOutcome, RunState, WhyNoRun};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::{BoxError, replica};
use server::RedisServer;

/// The list from which the next run takes what happens to it.
const FATE: &str = "monday:fate";
/// The time that a run takes if nothing happens.
const RUN_TAKES: Duration = Duration::from_millis(300);
/// The timeout of each step, longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);
const DOCS: &str = include_str!("../../../docs/jobs.md");

/// The work of a run, and what happens to it.
pub(crate) async fn book(tick: u64) -> Result<(), String> {
    let fate = fate().await.unwrap_or_default();
    sleep(RUN_TAKES).await;
    match &*fate {
        "crash" => {
            println!("a replica crashes");
            std::process::exit(1)
        }
        "failure" => Err("no rates".to_owned()),
        "long" => {
            sleep(Duration::from_secs(3)).await;
            Ok(())
        }
        _ => {
            println!("booked {tick}");
            Ok(())
        }
    }
}

async fn fate() -> Option<String> {
    let url = std::env::args().nth(2)?;
    let mut redis = redis::Client::open(url)
        .ok()?
        .get_multiplexed_async_connection()
        .await
        .ok()?;
    redis::cmd("LPOP").arg(FATE).query_async(&mut redis).await.ok()
}

struct Stage {
    server: RedisServer,
    locks: Locks,
    replicas: Vec<Child>,
}

impl Stage {
    fn start_replica(&mut self) -> Result<(), BoxError> {
        let name = format!("web-{}", self.replicas.len() + 1);
        let child = Command::new(std::env::current_exe()?)
            .args(["replica", &self.server.url(), &name])
            .kill_on_drop(true)
            .spawn()?;
        self.replicas.push(child);
        Ok(())
    }

    /// Returns what the store knows of the job, oldest first.
    async fn history(&self) -> Vec<HistoryEntry> {
        let history = self.locks.jobs().history("reconcile", UNIX_EPOCH).await;
        history
            .ok()
            .flatten()
            .map_or(Vec::new(), |history| history.entries)
    }

    async fn until(&self, what: &str, is: impl Fn(&[HistoryEntry]) -> bool) -> Result<(), BoxError> {
        println!("until {what}");
        let seen = timeout(PATIENCE, async {
            while !is(&self.history().await) {
                sleep(Duration::from_millis(100)).await;
            }
        });
        Ok(seen.await?)
    }

    /// Waits until one more run is done.
    async fn until_done(&self) -> Result<(), BoxError> {
        let done = |entries: &[HistoryEntry]| runs(entries, RunState::Ended(RunOutcome::Done)).count();
        let before = done(&self.history().await);
        self.until("a run is done", |entries| done(entries) > before)
            .await
    }

    /// Decides what happens to the next run.
    async fn next(&self, fate: &str) -> Result<(), BoxError> {
        let client = redis::Client::open(self.server.url())?;
        let mut redis = client.get_multiplexed_async_connection().await?;
        Ok(redis::cmd("RPUSH")
            .arg(FATE)
            .arg(fate)
            .exec_async(&mut redis)
            .await?)
    }

    /// Runs the command `tenure`, and prints and returns what it prints.
    async fn tenure(&self, args: &[&str]) -> Result<String, BoxError> {
        println!("\n$ tenure {}", args.join(" "));
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let mut command = Command::new(cargo);
        command.args(["run", "--quiet", "-p", "tenure-cli", "--"]);
        command.args(args).env("TENURE_URL", self.server.url());
        let output = command.stderr(Stdio::inherit()).output().await?;
        let text = String::from_utf8(output.stdout)?;
        print!("{text}");
        match output.status.success() {
            true => Ok(text),
            false => Err(format!("`tenure {}` failed", args.join(" ")).into()),
        }
    }

    async fn weekend(&mut self) -> Result<(), BoxError> {
        self.until_done().await?;
        self.next("crash").await?;
        self.until("a run is lost", |entries| {
            runs(entries, RunState::Lost).next().is_some()
        })
        .await?;
        self.start_replica()?;
        self.until_done().await?;
        self.next("failure").await?;
        self.until("a run has failed", |entries| failed(entries).is_some())
            .await?;
        self.next("long").await?;
        self.until("a tick is skipped", |entries| {
            has_none(entries, WhyNoRun::Skipped)
        })
        .await?;
        self.until_done().await?;
        let why = ["--by", "ann", "--why", "new rates", "--yes"];
        self.tenure(&[&["jobs", "pause", "reconcile"], &why[..]].concat())
            .await?;
        self.until("a tick has come in the pause", |entries| {
            has_none(entries, WhyNoRun::Paused)
        })
        .await?;
        self.tenure(&[&["jobs", "resume", "reconcile"], &why[..]].concat())
            .await?;
        self.until_done().await?;
        println!("Redis is stopped");
        self.server.kill();
        sleep(Duration::from_secs(7)).await;
        self.server.restart();
        println!("Redis runs again");
        self.until("a tick had no run", |entries| has_none(entries, WhyNoRun::None))
            .await?;
        self.until_done().await
    }

    async fn monday(&self) -> Result<(), BoxError> {
        let history = ["jobs", "history", "reconcile", "--since", "1h"];
        let screen = self.tenure(&history).await?;
        let failed = screen.lines().find(|line| line.contains("no rates"));
        let tick = failed
            .and_then(|line| line.get(..25))
            .ok_or("no run has failed")?;
        let trigger = ["jobs", "trigger", "reconcile", "--for", tick, "--wait", "--yes"];
        let who = ["--by", "ann", "--why", "INC-7"];
        self.tenure(&[&trigger[..], &who].concat()).await?;
        let screen = self.tenure(&history).await?;
        let (docs, shown) = (kinds(docs_screen()?), kinds(&screen));
        if docs != shown {
            return Err(format!("docs/jobs.md shows {docs:?}, and the command {shown:?}").into());
        }
        println!(
            "\nthe screen of docs/jobs.md has the same {} kinds of lines",
            shown.len()
        );
        Ok(())
    }
}

fn runs(entries: &[HistoryEntry], state: RunState) -> impl Iterator<Item = &JobRun> {
    entries.iter().filter_map(move |entry| match entry {
        HistoryEntry::Run(run) if run.state == state => Some(run),
        _ => None,
    })
}

fn failed(entries: &[HistoryEntry]) -> Option<&JobRun> {
    runs(entries, RunState::Ended(RunOutcome::Failed)).next()
}

fn has_none(entries: &[HistoryEntry], why: WhyNoRun) -> bool {
    let is_of = |entry: &HistoryEntry| matches!(entry, HistoryEntry::NoRun(none) if none.why == why);
    entries.iter().any(is_of)
}

/// Returns the screen of the docs: its first block of text.
fn docs_screen() -> Result<&'static str, BoxError> {
    let (_, rest) = DOCS.split_once("```text\n").ok_or("the page has no screen")?;
    let (screen, _) = rest.split_once("```").ok_or("the screen has no end")?;
    Ok(screen)
}

/// Returns the outcomes of a screen, each with the number of its columns. What runs now is left out.
fn kinds(screen: &str) -> BTreeSet<(String, usize)> {
    let cells = |line: &str| -> Vec<String> {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect()
    };
    let rows = screen.lines().skip(1).map(cells).filter(|cells| cells.len() > 1);
    let mut kinds: BTreeSet<_> = rows.map(|cells| (cells[1].clone(), cells.len())).collect();
    kinds.retain(|(outcome, _)| outcome != "running" && outcome != "pending");
    kinds
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        // The child processes that this program starts.
        ["replica", url, name] => return replica(url, name).await,
        _ => return Err("usage: cargo run -p tenure-monday".into()),
    }
    // What the server has acknowledged is there again when it comes back.
    let server = RedisServer::with_args(&["--appendonly", "yes", "--appendfsync", "always"]);
    let locks = Locks::builder().lazy().connect(&server.url()).await?;
    let mut stage = Stage {
        server,
        locks,
        replicas: Vec::new(),
    };
    // The command is built before the weekend begins.
    stage.tenure(&["--version"]).await?;
    for _ in 0..3 {
        stage.start_replica()?;
    }
    stage.weekend().await?;
    stage.monday().await
}
