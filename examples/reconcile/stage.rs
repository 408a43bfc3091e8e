//! Three replicas, the kill of a winner, and the table of the ticks.

#[path = "../replicas/mod.rs"]
mod replicas;

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::{Locks, Tick};
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_cron_scheduler::JobScheduler;

use crate::{BoxError, LEASE, end, start};
use replicas::process::{Line, spawn};
use replicas::store::Store;

const SHOW: Duration = Duration::from_secs(12);
/// The run in which the winner is killed, counted from 1.
const FATAL: usize = 4;

const USAGE: &str = "usage: cargo run --example reconcile [-- --kill-winner]
TENURE_URL=redis://127.0.0.1/ makes the replicas three processes on that Redis.";

enum Replica {
    Process(Child),
    Task(Locks, JobScheduler),
    Dead,
}

impl Replica {
    /// Starts a replica: a process, or a scheduler in this one if the store is this process's memory.
    async fn start(
        store: &Store,
        index: usize,
        lines: mpsc::UnboundedSender<Line>,
    ) -> Result<Replica, BoxError> {
        if !store.is_memory() {
            return Ok(Replica::Process(spawn(index, &["--replica"], lines)?));
        }
        let locks = Locks::connect(store.url()).await?;
        let report = move |event: &str, tick: &Tick| drop(lines.send((index, line(event, tick))));
        let scheduler = start(&locks, report).await?;
        Ok(Replica::Task(locks, scheduler))
    }

    /// Kills the replica if it is a process; otherwise shuts it down. Returns what happened to it.
    async fn kill(self) -> Result<String, BoxError> {
        match self {
            Replica::Process(mut child) => {
                child.kill().await?;
                Ok(format!(
                    "is killed in the middle of it; its lease of {LEASE:?} must end first"
                ))
            }
            Replica::Task(locks, mut scheduler) => {
                scheduler.shutdown().await?;
                locks.shutdown().await;
                Ok("is ended in the middle of it, and gives its lease back".to_owned())
            }
            Replica::Dead => Err("a dead replica has run a tick".into()),
        }
    }
}

/// Returns the line that a replica reports.
fn line(event: &str, tick: &Tick) -> String {
    format!(
        "{event} {} {} {}",
        tick.nominal_unix(),
        tick.attempt(),
        tick.fence()
    )
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let store = Store::from_env();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has_kill = match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--kill-winner"] => true,
        // The child processes that this program starts.
        ["--replica"] if !store.is_memory() => {
            let locks = Locks::connect(store.url()).await?;
            let report = |event: &str, tick: &Tick| println!("{}", line(event, tick));
            let _scheduler = start(&locks, report).await?;
            return std::future::pending().await;
        }
        _ => {
            eprintln!("{USAGE}");
            std::process::exit(2);
        }
    };
    if store.is_memory() {
        println!(
            "Three schedulers in this process on one store in memory, each firing every second.\n\
             With TENURE_URL=redis://127.0.0.1/ they are three processes."
        );
    } else {
        // Connects once before the replicas start, so that a connection error appears once.
        Locks::connect(store.url()).await?.shutdown().await;
        println!("Three processes on one Redis, each with a scheduler that fires every second.");
    }
    let (sender, lines) = mpsc::unbounded_channel();
    let mut replicas = Vec::new();
    for index in 0..3 {
        replicas.push(Replica::start(&store, index, sender.clone()).await?);
        // Replicas never start together.
        sleep(Duration::from_millis(170)).await;
    }
    let table = Table::default();
    table.show(replicas, lines, has_kill).await
}

/// The table of the ticks.
#[derive(Default)]
struct Table {
    starts: usize,
    /// How often each tick was run to its end.
    ends: BTreeMap<String, u32>,
    /// The tick whose winner was killed, and when.
    killed: Option<(String, Instant)>,
}

impl Table {
    /// Prints the ticks as they come, and fails if a tick was run twice.
    async fn show(
        mut self,
        mut replicas: Vec<Replica>,
        mut lines: mpsc::UnboundedReceiver<Line>,
        has_kill: bool,
    ) -> Result<(), BoxError> {
        println!("\n      tick   replica 1  replica 2  replica 3   attempt  fence");
        let until = Instant::now() + SHOW;
        while let Ok(Some((index, line))) = timeout_at(until, lines.recv()).await {
            let words: Vec<&str> = line.split(' ').collect();
            let [event, tick, attempt, fence] = words[..] else {
                continue;
            };
            if event == "end" {
                *self.ends.entry(tick.to_owned()).or_insert(0) += 1;
                continue;
            }
            self.starts += 1;
            self.print_start(index, [tick, attempt, fence]);
            if has_kill && self.starts == FATAL {
                sleep(Duration::from_millis(100)).await;
                let winner = std::mem::replace(&mut replicas[index], Replica::Dead);
                println!("             replica {} {}", index + 1, winner.kill().await?);
                self.killed = Some((tick.to_owned(), Instant::now()));
            }
        }
        for replica in replicas {
            match replica {
                Replica::Process(mut child) => child.kill().await?,
                Replica::Task(locks, scheduler) => end(&locks, scheduler).await?,
                Replica::Dead => {}
            }
        }
        self.verdict()
    }

    fn print_start(&self, index: usize, [tick, attempt, fence]: [&str; 3]) {
        let mut row = [""; 3];
        row[index] = "runs";
        let [one, two, three] = row;
        println!("{tick:>10}   {one:<9}  {two:<9}  {three:<9}   {attempt:>7}  {fence}");
        if let (Some((fatal, at)), "2") = (&self.killed, attempt)
            && fatal == tick
        {
            println!(
                "             replica {} has taken over, {:.1?} after the end of the winner; ticks in between are skipped",
                index + 1,
                at.elapsed()
            );
        }
    }

    fn verdict(&self) -> Result<(), BoxError> {
        let twice = self.ends.values().filter(|times| **times > 1).count();
        println!(
            "\n{} runs, {} of them to their end; ticks that were run twice: {twice}",
            self.starts,
            self.ends.values().sum::<u32>()
        );
        if self.ends.is_empty() {
            return Err("no replica finished a run".into());
        }
        if twice > 0 {
            return Err("a tick was run twice".into());
        }
        Ok(())
    }
}
