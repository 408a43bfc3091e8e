//! The demonstration: a server, a database, three replicas, a kill and a deploy.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::ledger::Ledger;
use crate::server::RedisServer;

const ENTRIES: i64 = 600;
/// The number of booked entries after which the first run is killed.
const KILLED_AT: i64 = 160;
/// The number of booked entries after which the deploy begins.
const DEPLOYED_AT: i64 = 340;
/// The timeout of each step, longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A line from a replica: the name of the replica, and the words of the line.
type Said = (String, Vec<String>);

struct Replicas {
    url: String,
    path: String,
    expression: String,
    running: BTreeMap<String, Child>,
    said: (mpsc::UnboundedSender<Said>, mpsc::UnboundedReceiver<Said>),
}

impl Replicas {
    /// Starts a replica, and waits until it is ready.
    async fn start(&mut self, who: &str) -> Result<(), Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["replica", &self.url, &self.path, &self.expression])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("the child has no stdout")?).lines();
        let (who, said) = (who.to_owned(), self.said.0.clone());
        self.running.insert(who.clone(), child);
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let mut ready = Some(ready);
            while let Ok(Some(line)) = lines.next_line().await {
                if line == "ready" {
                    ready.take().map(|ready| ready.send(()));
                    continue;
                }
                let words = line.split(' ').map(str::to_owned).collect();
                let _ = said.send((who.clone(), words));
            }
        });
        timeout(PATIENCE, is_ready).await??;
        Ok(())
    }

    /// Returns the next line of any replica.
    async fn next(&mut self) -> Result<Said, Box<dyn Error>> {
        Ok(timeout(PATIENCE, self.said.1.recv())
            .await?
            .ok_or("all replicas have ended")?)
    }

    /// Sends SIGTERM to a replica, as an orchestrator does.
    fn terminate(&mut self, who: &str) -> Result<(), Box<dyn Error>> {
        let id = self.running[who].id().ok_or("the replica has ended")?;
        std::process::Command::new("kill").arg(id.to_string()).status()?;
        Ok(())
    }
}

/// A table of the runs: replica, attempt, fence, first and last entry.
struct Runs(Vec<(String, String, String, i64, i64)>);

impl Runs {
    fn note(&mut self, (who, words): &Said) {
        match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["begins", attempt, fence, from] => {
                let from = from.parse().unwrap_or_default();
                println!("{who} begins attempt {attempt} after entry {from}");
                let run = (
                    who.clone(),
                    (*attempt).to_owned(),
                    (*fence).to_owned(),
                    from,
                    from,
                );
                self.0.push(run);
            }
            ["booked", attempt, _, upto] => {
                let of_run =
                    |run: &&mut (String, String, String, i64, i64)| run.0 == *who && run.1 == *attempt;
                if let Some(run) = self.0.iter_mut().find(of_run) {
                    run.4 = upto.parse().unwrap_or_default();
                }
            }
            _ => {}
        }
    }

    fn print(&self) {
        println!("\n| replica | attempt | fence | entries |\n|---|---|---|---|");
        for (who, attempt, fence, from, upto) in &self.0 {
            println!("| {who} | {attempt} | {fence} | {} to {upto} |", from + 1);
        }
    }

    /// Returns the replica of the latest run, and the last entry that it booked.
    fn latest(&self) -> Option<(&str, i64)> {
        self.0.last().map(|run| (run.0.as_str(), run.4))
    }
}

/// Returns a cron expression that fires once a day, next in 6 s: the midnight of this demonstration.
fn soon() -> Result<String, Box<dyn Error>> {
    let at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() + 6;
    Ok(format!("{} {} {} * * *", at % 60, at / 60 % 60, at / 3_600 % 24))
}

/// Runs until the job has ended. Kills the replica of the first run, and later replaces all replicas.
async fn play(replicas: &mut Replicas) -> Result<Runs, Box<dyn Error>> {
    let (mut runs, mut killed, mut deployed) = (Runs(Vec::new()), false, false);
    loop {
        let said = replicas.next().await?;
        runs.note(&said);
        if said.1[0] == "ends" {
            println!("{} has finished", said.0);
            return Ok(runs);
        }
        let Some((who, upto)) = runs.latest().map(|(who, upto)| (who.to_owned(), upto)) else {
            continue;
        };
        if !killed && upto >= KILLED_AT {
            println!("{who} is killed");
            let mut child = replicas
                .running
                .remove(&who)
                .ok_or("the replica of the latest run is not running")?;
            child.kill().await?;
            killed = true;
        } else if !deployed && upto >= DEPLOYED_AT {
            println!("a new release: each replica is replaced");
            let old: Vec<String> = replicas.running.keys().cloned().collect();
            for (old, new) in old.iter().zip(["new-a", "new-b"]) {
                replicas.start(new).await?;
                replicas.terminate(old)?;
            }
            deployed = true;
        }
    }
}

/// Runs the demonstration, and fails if an entry is missing or a balance is wrong.
pub async fn run() -> Result<(), Box<dyn Error>> {
    let own = std::env::var("TENURE_URL").is_err().then(RedisServer::start);
    let url = match &own {
        Some(server) => server.url(),
        None => std::env::var("TENURE_URL")?,
    };
    let directory = std::env::temp_dir().join(format!("tenure-reconcile-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let path = directory.join("ledger.db").display().to_string();
    let ledger = Ledger::create(&path, ENTRIES).map_err(|error| error as Box<dyn Error>)?;
    let mut replicas = Replicas {
        url,
        path,
        expression: soon()?,
        running: BTreeMap::new(),
        said: mpsc::unbounded_channel(),
    };
    println!(
        "three replicas, {ENTRIES} entries, midnight at `{}` UTC",
        replicas.expression
    );
    for who in ["old-a", "old-b", "old-c"] {
        replicas.start(who).await?;
    }
    let runs = play(&mut replicas).await?;
    runs.print();
    let say = |error: Box<dyn Error + Send + Sync>| error as Box<dyn Error>;
    let (booked, wrong) = (
        ledger.booked().map_err(say)?,
        ledger.wrong_balances().map_err(say)?,
    );
    println!("\n{booked} of {ENTRIES} entries are booked, each once; {wrong} balances are wrong");
    drop(replicas);
    std::fs::remove_dir_all(&directory)?;
    let is_right = booked == ENTRIES && wrong == 0 && runs.0.len() >= 3;
    if is_right {
        Ok(())
    } else {
        Err("entries are missing, balances are wrong, or there were fewer than three runs".into())
    }
}
