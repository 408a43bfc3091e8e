//! Three processes could relay the outbox, and one of them does. It is killed in the middle of it, and another goes on when its
//! lease has ended; that one is told to end, and hands over at once. Who leads is seen by somebody who never stands.
//!
//! Without a server, three relays in this one process, for a few seconds. None is killed there: each is told to end.
//!
//!     cargo run --example leader
//!
//! Three processes of their own, on a Redis, the first of which is killed with -9:
//!
//!     REDIS_URL=redis://127.0.0.1/ cargo run --example leader

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

/// Short, so that a takeover can be watched. The default of ten seconds is right for most.
const LEASE: Duration = Duration::from_secs(2);
/// So many messages are relayed until the next thing happens.
const MESSAGES: usize = 5;

type Trouble = Box<dyn Error + Send + Sync>;

// The service.

/// One process: relays messages while it leads.
async fn relay(locks: Locks, report: impl Fn(String) + Clone) -> Result<(), tenure::Error> {
    let election = locks.election("outbox-relay");
    let work = |lease: Lease| {
        let (election, report) = (election.clone(), report.clone());
        async move {
            // By which others would reach it. That it is not told is no reason not to work.
            let _ = election.proclaim("10.0.0.7:8080").await;
            loop {
                // The partner refuses a smaller fence than it has seen.
                report(format!("relays {}", lease.fence()));
                sleep(Duration::from_millis(100)).await;
            }
        }
    };
    election.lead(work).await
}

/// As `main` of a service does it: work until SIGTERM, then hand over.
async fn process(url: &str, name: &str) -> Result<(), Trouble> {
    let locks = Locks::builder().lease(LEASE).node_name(name).redis(url).await?;
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = relay(locks.clone(), |line| println!("{line}")) => ended?,
        _ = term.recv() => {}
    }
    locks.shutdown().await;
    Ok(())
}

// The show.

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
        let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
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

    /// Ends it without a word, where it is a process.
    async fn kill(self) -> Result<&'static str, Trouble> {
        match self {
            Relay::Process(mut child) => {
                child.kill().await?;
                Ok("is killed, and its lease of 2 s must end first")
            }
            relay => relay.end().await,
        }
    }

    /// Tells it to end.
    async fn end(self) -> Result<&'static str, Trouble> {
        match self {
            Relay::Process(mut child) => {
                let id = child.id().ok_or("it has ended")?.to_string();
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

#[allow(clippy::too_many_lines, reason = "a story")]
#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let url = std::env::var("REDIS_URL").ok();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match (&args[..], &url) {
        ([], _) => {}
        // What the processes are that it starts.
        (["--process", name], Some(url)) => return process(url, name).await,
        _ => {
            eprintln!(
                "usage: cargo run --example leader\nREDIS_URL=redis://127.0.0.1/ makes the relays three processes on that Redis."
            );
            std::process::exit(2);
        }
    }
    let store = MemoryStore::new();
    let builder = Locks::builder().lease(LEASE);
    let looks = match &url {
        Some(url) => builder.redis(url).await?,
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
                assert!(fence > highest, "no larger than the fence of the leader before");
                (leads, highest) = (Some(who), fence);
            }
            assert_eq!((leads, highest), (Some(who), fence), "two relay at once");
            println!("    message {:>2}, fence {fence}", turn * MESSAGES + n);
        }
        let who = leads.ok_or("nobody led")?;
        let relay = relays[who].take().ok_or("it led before")?;
        since = Instant::now();
        let how = match turn {
            0 => relay.kill().await?,
            _ => relay.end().await?,
        };
        println!("{} {how}", name(who));
        ended.push(who);
    }
    let seen = observing.await??;
    println!("\nwhat was seen by somebody who never stands: {seen}");
    looks.shutdown().await;
    Ok(())
}

/// What is relayed next, and by whom. What somebody said before its end may come late.
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

/// Until three have led, and nobody does.
async fn observe(mut observer: Observer) -> Result<String, tenure::Error> {
    let mut seen: Vec<String> = Vec::new();
    loop {
        let leader = observer.next().await?;
        let name = leader.as_ref().map_or(Some("nobody"), Leader::node_name);
        if let Some(name) = name
            && seen.last().is_none_or(|last| last != name)
        {
            seen.push(name.to_owned());
        }
        let led = seen.iter().filter(|name| *name != "nobody").count();
        if led == 3 && leader.is_none() {
            return Ok(seen.join(", "));
        }
    }
}
