//! A server, a database, three replicas, a kill and a deploy, and the table of the runs.
//!
//! The first replica to run the job is killed, and another one continues. Then a new release replaces the replicas one by one,
//! and the new release finishes the job. At the end the stage checks that each entry was booked once.

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

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::ledger::Ledger;
use crate::{BoxError, replica};
use server::RedisServer;

const ENTRIES: i64 = 600;
/// The number of booked entries after which the first run is killed.
const KILLED_AT: i64 = 160;
/// The number of booked entries after which the deploy begins.
const DEPLOYED_AT: i64 = 340;
/// The timeout of each step, longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A line from a replica.
struct Line {
    replica: String,
    words: Vec<String>,
}

struct Replicas {
    url: String,
    path: String,
    expression: String,
    running: BTreeMap<String, Child>,
    sender: mpsc::UnboundedSender<Line>,
    lines: mpsc::UnboundedReceiver<Line>,
}

impl Replicas {
    /// Starts a replica, and waits until it is ready.
    async fn start(&mut self, name: &str) -> Result<(), BoxError> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["replica", &self.url, &self.path, &self.expression])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("the child has no stdout")?).lines();
        let (replica, sender) = (name.to_owned(), self.sender.clone());
        self.running.insert(name.to_owned(), child);
        let (ready, is_ready) = oneshot::channel();
        tokio::spawn(async move {
            let mut ready = Some(ready);
            while let Ok(Some(line)) = output.next_line().await {
                if line == "ready" {
                    ready.take().map(|ready| ready.send(()));
                    continue;
                }
                let words = line.split(' ').map(str::to_owned).collect();
                let replica = replica.clone();
                let _ = sender.send(Line { replica, words });
            }
        });
        timeout(PATIENCE, is_ready).await??;
        Ok(())
    }

    /// Returns the next line of any replica.
    async fn next(&mut self) -> Result<Line, BoxError> {
        let line = timeout(PATIENCE, self.lines.recv()).await?;
        Ok(line.ok_or("all replicas have ended")?)
    }

    async fn kill(&mut self, name: &str) -> Result<(), BoxError> {
        let child = self.running.remove(name);
        let mut child = child.ok_or("the replica of the latest run is not running")?;
        Ok(child.kill().await?)
    }

    /// Sends SIGTERM to a replica, as an orchestrator does.
    fn terminate(&mut self, name: &str) -> Result<(), BoxError> {
        let id = self.running[name].id().ok_or("the replica has ended")?;
        std::process::Command::new("kill").arg(id.to_string()).status()?;
        Ok(())
    }

    /// Replaces each replica by one of the new release.
    async fn deploy(&mut self) -> Result<(), BoxError> {
        let old: Vec<String> = self.running.keys().cloned().collect();
        for (old, new) in old.iter().zip(["new-a", "new-b"]) {
            self.start(new).await?;
            self.terminate(old)?;
        }
        Ok(())
    }
}

/// A run of the job.
struct Run {
    replica: String,
    attempt: String,
    fence: String,
    /// The last entry that was booked before the run.
    from: i64,
    /// The last entry that the run has booked.
    upto: i64,
}

/// The table of the runs.
struct Runs(Vec<Run>);

impl Runs {
    fn note(&mut self, Line { replica, words }: &Line) {
        match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["begins", attempt, fence, from] => {
                let from = from.parse().unwrap_or_default();
                println!("{replica} begins attempt {attempt} after entry {from}");
                self.0.push(Run {
                    replica: replica.clone(),
                    attempt: (*attempt).to_owned(),
                    fence: (*fence).to_owned(),
                    from,
                    upto: from,
                });
            }
            ["booked", attempt, upto] => {
                let mut runs = self.0.iter_mut();
                if let Some(run) = runs.find(|run| run.replica == *replica && run.attempt == *attempt) {
                    run.upto = upto.parse().unwrap_or_default();
                }
            }
            _ => {}
        }
    }

    fn print(&self) {
        println!("\n| replica | attempt | fence | entries |\n|---|---|---|---|");
        for run in &self.0 {
            println!(
                "| {} | {} | {} | {} to {} |",
                run.replica,
                run.attempt,
                run.fence,
                run.from + 1,
                run.upto
            );
        }
    }
}

/// Returns a cron expression that fires once a day, next in 6 s: the midnight of this demonstration.
fn soon() -> Result<String, BoxError> {
    let at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() + 6;
    Ok(format!("{} {} {} * * *", at % 60, at / 60 % 60, at / 3_600 % 24))
}

/// Runs until the job has ended. Kills the replica of the first run, and later replaces all replicas.
async fn night(replicas: &mut Replicas) -> Result<Runs, BoxError> {
    let (mut runs, mut is_killed, mut is_deployed) = (Runs(Vec::new()), false, false);
    loop {
        let line = replicas.next().await?;
        runs.note(&line);
        if line.words[0] == "ends" {
            println!("{} has finished", line.replica);
            return Ok(runs);
        }
        let Some(latest) = runs.0.last() else { continue };
        if !is_killed && latest.upto >= KILLED_AT {
            println!("{} is killed", latest.replica);
            replicas.kill(&latest.replica).await?;
            is_killed = true;
        } else if !is_deployed && latest.upto >= DEPLOYED_AT {
            println!("a new release: each replica is replaced");
            replicas.deploy().await?;
            is_deployed = true;
        }
    }
}

/// Runs the demonstration, and fails if an entry is missing or a balance is wrong.
async fn show(url: String, path: String) -> Result<(), BoxError> {
    let ledger = Ledger::create(&path, ENTRIES)?;
    let (sender, lines) = mpsc::unbounded_channel();
    let mut replicas = Replicas {
        url,
        path,
        expression: soon()?,
        running: BTreeMap::new(),
        sender,
        lines,
    };
    println!(
        "three replicas, {ENTRIES} entries, midnight at `{}` UTC",
        replicas.expression
    );
    for name in ["old-a", "old-b", "old-c"] {
        replicas.start(name).await?;
    }
    let runs = night(&mut replicas).await?;
    runs.print();
    let (booked, wrong) = (ledger.booked()?, ledger.wrong_balances()?);
    println!("\n{booked} of {ENTRIES} entries are booked, each once; {wrong} balances are wrong");
    let is_right = booked == ENTRIES && wrong == 0 && runs.0.len() >= 3;
    if is_right {
        Ok(())
    } else {
        Err("entries are missing, balances are wrong, or there were fewer than three runs".into())
    }
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        // The child processes that this program starts.
        ["replica", url, path, expression] => return replica(url, (*path).to_owned(), expression).await,
        _ => return Err("usage: cargo run -p tenure-reconcile-sqlite".into()),
    }
    let url = std::env::var("TENURE_URL").unwrap_or_default();
    if url.starts_with("memory:") {
        return Err("three processes share no memory: unset TENURE_URL, or set it to a Redis".into());
    }
    // An empty variable counts as unset.
    let server = url.is_empty().then(RedisServer::start);
    let url = server.as_ref().map_or(url, RedisServer::url);
    let directory = std::env::temp_dir().join(format!("tenure-reconcile-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let shown = show(url, directory.join("ledger.db").display().to_string()).await;
    std::fs::remove_dir_all(&directory)?;
    shown
}
