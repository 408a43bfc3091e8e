//! Three processes can relay the outbox; the leader of an election does. The first leader is killed while it works. Another
//! process takes over when the lease of 2 s has expired. That leader shuts down, and hands over at once. An observer that is
//! no candidate sees each leader.
//!
//! Without a server: three relays in this process, for a few seconds. None is killed: each shuts down.
//!
//!     cargo run --example leader
//!
//! With three processes on a Redis. The first leader is killed with SIGKILL:
//!
//!     TENURE_URL=redis://127.0.0.1/ cargo run --example leader

use std::error::Error;
use std::process::Stdio;
use std::time::Duration;

use tenure::{Leader, Lease, Locks, MemoryStore, Observer};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Short, so that a takeover is quick to watch. The default of 10 s suits most services.
const LEASE: Duration = Duration::from_secs(2);
/// How many messages each leader relays before it ends.
const MESSAGES: usize = 5;

type Trouble = Box<dyn Error + Send + Sync>;

// The service.

/// One process: relays messages while it is the leader.
async fn relay(locks: Locks, report: impl Fn(String) + Clone) -> Result<(), tenure::Error> {
    let election = locks.election("outbox-relay");
    let work = |lease: Lease| {
        let (election, report) = (election.clone(), report.clone());
        async move {
            // The address at which other processes reach the leader. The work does not depend on it.
            let _ = election.proclaim("10.0.0.7:8080").await;
            loop {
                // The receiver refuses a fence that is smaller than one it has seen.
                report(format!("relays {}", lease.fence()));
                sleep(Duration::from_millis(100)).await;
            }
        }
    };
    election.lead(work).await
}

/// Works until SIGTERM, then hands over, as `main` of a service does.
async fn process(url: &str, name: &str) -> Result<(), Trouble> {
    let locks = Locks::builder().lease(LEASE).node_name(name).connect(url).await?;
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = relay(locks.clone(), |line| println!("{line}")) => ended?,
        _ = term.recv() => {}
    }
    locks.shutdown().await;
    Ok(())
}

// The demonstration.

enum Relay {
    Process(Child),
    Here(Locks, JoinHandle<Result<(), tenure::Error>>),
}

impl Relay {
    fn spawn(who: usize, said: mpsc::UnboundedSender<(usize, String)>) -> Result<Relay, Trouble> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--process", &name(who)])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("the child has no stdout")?).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let _ = said.send((who, line));
            }
        });
        Ok(Relay::Process(child))
    }

    fn here(
        store: &MemoryStore,
        who: usize,
        said: mpsc::UnboundedSender<(usize, String)>,
    ) -> Result<Relay, Trouble> {
        let builder = Locks::builder().lease(LEASE).node_name(name(who));
        let locks = builder.memory_shared(store)?;
        let report = move |line| drop(said.send((who, line)));
        let task = tokio::spawn(relay(locks.clone(), report));
        Ok(Relay::Here(locks, task))
    }

    /// Kills the relay if it is a process; otherwise shuts it down.
    async fn kill(self) -> Result<&'static str, Trouble> {
        match self {
            Relay::Process(mut child) => {
                child.kill().await?;
                Ok("is killed, and its lease of 2 s must end first")
            }
            relay => relay.end().await,
        }
    }

    /// Shuts the relay down: a process by SIGTERM.
    async fn end(self) -> Result<&'static str, Trouble> {
        match self {
            Relay::Process(mut child) => {
                let id = child.id().ok_or("the relay has ended")?.to_string();
                Command::new("kill").args(["-TERM", &id]).status().await?;
                child.wait().await?;
            }
            Relay::Here(locks, task) => {
                task.abort();
                locks.shutdown().await;
            }
        }
        Ok("is told to end, and hands over")
    }
}

fn name(who: usize) -> String {
    format!("relay-{}", who + 1)
}

#[allow(clippy::too_many_lines, reason = "one linear demonstration")]
#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let url = std::env::var("TENURE_URL").ok();
    let url = url.filter(|url| !url.starts_with("memory:"));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match (&args[..], &url) {
        ([], _) => {}
        // The child processes that this program starts.
        (["--process", name], Some(url)) => return process(url, name).await,
        _ => {
            eprintln!(
                "usage: cargo run --example leader\nTENURE_URL=redis://127.0.0.1/ makes the relays three processes on that Redis."
            );
            std::process::exit(2);
        }
    }
    let store = MemoryStore::new();
    let builder = Locks::builder().lease(LEASE);
    let looks = match &url {
        Some(url) => builder.connect(url).await?,
        None => builder.memory_shared(&store)?,
    };
    println!(
        "Three relays, {}. One of them leads.\n",
        if url.is_some() {
            "processes on one Redis"
        } else {
            "in this process on one store in memory"
        }
    );
    let (said, mut hears) = mpsc::unbounded_channel();
    let mut relays = Vec::new();
    for who in 0..3 {
        relays.push(Some(match url {
            Some(_) => Relay::spawn(who, said.clone())?,
            None => Relay::here(&store, who, said.clone())?,
        }));
    }
    let observing = tokio::spawn(observe(looks.election("outbox-relay").observe()));

    let (mut highest, mut ended, mut since) = (0, Vec::new(), Instant::now());
    for turn in 0..3 {
        let mut leads = None;
        for n in 1..=MESSAGES {
            let (who, fence) = next(&mut hears, &ended).await?;
            if leads.is_none() {
                println!("{} leads after {:.2?}", name(who), since.elapsed());
                assert!(
                    fence > highest,
                    "the fence is not larger than the fence of the previous leader"
                );
                (leads, highest) = (Some(who), fence);
            }
            assert_eq!(
                (leads, highest),
                (Some(who), fence),
                "two relays work at the same time"
            );
            println!("    message {:>2}, fence {fence}", turn * MESSAGES + n);
        }
        let who = leads.ok_or("no relay led")?;
        let relay = relays[who].take().ok_or("a relay led again after its end")?;
        since = Instant::now();
        let how = match turn {
            0 => relay.kill().await?,
            _ => relay.end().await?,
        };
        println!("{} {how}", name(who));
        ended.push(who);
    }
    let seen = observing.await??;
    println!("\nthe observer saw: {seen}");
    looks.shutdown().await;
    Ok(())
}

/// Returns the next relay that reports work, and its fence. Skips late reports of relays that have ended.
async fn next(
    hears: &mut mpsc::UnboundedReceiver<(usize, String)>,
    ended: &[usize],
) -> Result<(usize, u64), Trouble> {
    loop {
        let (who, line) = hears.recv().await.ok_or("all relays have ended")?;
        if let Some(fence) = line.strip_prefix("relays ")
            && !ended.contains(&who)
        {
            return Ok((who, fence.parse()?));
        }
    }
}

/// Observes until three nodes have led and there is no leader. Returns the names in order.
async fn observe(mut observer: Observer) -> Result<String, tenure::Error> {
    let mut seen: Vec<String> = Vec::new();
    loop {
        let leader = observer.next().await?;
        let name = leader.as_ref().map_or(Some("none"), Leader::node_name);
        if let Some(name) = name
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
