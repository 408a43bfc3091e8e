//! Three relays, the kill of the first leader, and an observer.

#[path = "../replicas/mod.rs"]
mod replicas;

use tenure::{Fence, Leader, Locks, Observer};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{BoxError, connect, election, relay, run};
use replicas::process::{Line, spawn};
use replicas::store::Store;

/// How many messages each leader relays before it ends.
const MESSAGES: usize = 5;

enum Relay {
    Process(Child),
    Task(Locks, JoinHandle<Result<(), tenure::Error>>),
}

impl Relay {
    /// Starts a relay: a process, or a task if the store is this process's memory.
    async fn start(
        store: &Store,
        index: usize,
        lines: mpsc::UnboundedSender<Line>,
    ) -> Result<Relay, BoxError> {
        if !store.is_memory() {
            let child = spawn(index, &["--process", &name(index)], lines)?;
            return Ok(Relay::Process(child));
        }
        let locks = connect(store.url(), &name(index)).await?;
        let send = move |fence| drop(lines.send((index, message(fence))));
        let task = tokio::spawn(relay(locks.clone(), send));
        Ok(Relay::Task(locks, task))
    }

    /// Kills the relay if it is a process; otherwise shuts it down.
    async fn kill(self) -> Result<&'static str, BoxError> {
        match self {
            Relay::Process(mut child) => {
                child.kill().await?;
                Ok("is killed, and its lease of 2 s must end first")
            }
            relay @ Relay::Task(..) => relay.end().await,
        }
    }

    /// Shuts the relay down: a process by SIGTERM.
    async fn end(self) -> Result<&'static str, BoxError> {
        match self {
            Relay::Process(mut child) => {
                let id = child.id().ok_or("the relay has ended")?.to_string();
                Command::new("kill").args(["-TERM", &id]).status().await?;
                child.wait().await?;
            }
            Relay::Task(locks, task) => {
                task.abort();
                locks.shutdown().await;
            }
        }
        Ok("is told to end, and hands over")
    }
}

fn name(index: usize) -> String {
    format!("relay-{}", index + 1)
}

/// Returns the message that a relay sends under `fence`.
fn message(fence: Fence) -> String {
    format!("relays {fence}")
}

pub(crate) async fn play() -> Result<(), BoxError> {
    let store = Store::from_env();
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        // The child processes that this program starts.
        ["--process", name] if !store.is_memory() => {
            return run(store.url(), name, |fence| println!("{}", message(fence))).await;
        }
        _ => {
            eprintln!(
                "usage: cargo run --example leader\nTENURE_URL=redis://127.0.0.1/ makes the relays three processes on that Redis."
            );
            std::process::exit(2);
        }
    }
    let observer = connect(store.url(), "observer").await?;
    let place = if store.is_memory() {
        "in this process on one store in memory"
    } else {
        "processes on one Redis"
    };
    println!("Three relays, {place}. One of them leads.\n");
    let (sender, lines) = mpsc::unbounded_channel();
    let since = Instant::now();
    let mut relays = Vec::new();
    for index in 0..3 {
        relays.push(Some(Relay::start(&store, index, sender.clone()).await?));
    }
    let observation = tokio::spawn(observe(election(&observer).observe()));
    lead_in_turn(relays, lines, since).await?;
    println!("\nthe observer saw: {}", observation.await??);
    observer.shutdown().await;
    Ok(())
}

/// Watches each relay lead, and ends it after some messages: the first by a kill. The relays were started at `since`.
async fn lead_in_turn(
    mut relays: Vec<Option<Relay>>,
    mut lines: mpsc::UnboundedReceiver<Line>,
    mut since: Instant,
) -> Result<(), BoxError> {
    let (mut highest, mut ended) = (0, Vec::new());
    for turn in 0..3 {
        let mut leader = None;
        for n in 1..=MESSAGES {
            let (index, fence) = next(&mut lines, &ended).await?;
            if leader.is_none() {
                println!("{} leads after {:.2?}", name(index), since.elapsed());
                assert!(
                    fence > highest,
                    "the fence is not larger than the fence of the previous leader"
                );
                (leader, highest) = (Some(index), fence);
            }
            assert_eq!(
                (leader, highest),
                (Some(index), fence),
                "two relays work at the same time"
            );
            println!("    message {:>2}, fence {fence}", turn * MESSAGES + n);
        }
        let index = leader.ok_or("no relay led")?;
        let relay = relays[index].take().ok_or("a relay led again after its end")?;
        since = Instant::now();
        let end = match turn {
            0 => relay.kill().await?,
            _ => relay.end().await?,
        };
        println!("{} {end}", name(index));
        ended.push(index);
    }
    Ok(())
}

/// Returns the next relay that reports work, and its fence. Skips late reports of relays that have ended.
async fn next(lines: &mut mpsc::UnboundedReceiver<Line>, ended: &[usize]) -> Result<(usize, u64), BoxError> {
    loop {
        let (index, line) = lines.recv().await.ok_or("all relays have ended")?;
        if let Some(fence) = line.strip_prefix("relays ")
            && !ended.contains(&index)
        {
            return Ok((index, fence.parse()?));
        }
    }
}

/// Observes until three nodes have led and there is no leader. Returns the names in order, from the first leader on.
async fn observe(mut observer: Observer) -> Result<String, tenure::Error> {
    let mut seen: Vec<String> = Vec::new();
    loop {
        let leader = observer.next().await?;
        let name = leader.as_ref().map_or(Some("none"), Leader::node_name);
        let is_before_first = seen.is_empty() && leader.is_none();
        if let Some(name) = name
            && !is_before_first
            && seen.last().is_none_or(|last| last != name)
        {
            seen.push(name.to_owned());
        }
        let led = seen.iter().filter(|name| *name != "none").count();
        if led == 3 && leader.is_none() {
            return Ok(seen.join(", "));
        }
    }
}
