//! Who does nothing costs nothing: what is left of `Locks` that were dropped, and how often those that hold nothing
//! are woken. Each in a process of its own, where no other test has threads.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tenure::Locks;

use crate::help::{Other, ms, soon, until};
use crate::server::RedisServer;

/// The crate has one thread for the events of the whole process, which stays.
const EVENT_THREADS: usize = 1;
const DROPPED: usize = 100;
const WATCHED: Duration = Duration::from_secs(10);

/// Not a test but the door for the others.
#[test]
fn plays_a_role() {
    let Ok(role) = std::env::var("TENURE_IDLE_ROLE") else {
        return;
    };
    let url = std::env::var("TENURE_URL").unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        match role.as_str() {
            "drops" => drops(&url).await,
            "idles" => idles(&url).await,
            other => panic!("no such role: {other}"),
        }
    });
}

fn other(role: &str, url: &str) -> Other {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["idle::plays_a_role", "--exact", "--nocapture", "--test-threads=1"])
        .env("TENURE_IDLE_ROLE", role)
        .env("TENURE_URL", url);
    Other::runs(command)
}

/// On memory without an URL.
async fn connected(url: &str) -> Locks {
    if url.is_empty() {
        Locks::memory()
    } else {
        soon(crate::help::connect(url)).await.unwrap()
    }
}

async fn used(locks: &Locks) {
    let guard = soon(locks.mutex("used").lock()).await.unwrap();
    soon(guard.release()).await.unwrap();
    soon(locks.idle()).await;
}

/// What there is under `/proc/self`: threads, or descriptors, sockets among them.
fn own(what: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/self/{what}")).expect("a Linux");
    entries.map(|entry| entry.unwrap().path()).collect()
}

async fn drops(url: &str) {
    // Whatever the runtime and the process start once is there from now on.
    used(&connected(url).await).await;
    tokio::time::sleep(ms(500)).await;
    let (threads, descriptors) = (own("task").len(), own("fd").len());
    println!("@before {threads} {descriptors}");
    let mut all = Vec::new();
    for _ in 0..DROPPED {
        let locks = connected(url).await;
        used(&locks).await;
        all.push(locks);
    }
    println!("@meanwhile {} {}", own("task").len(), own("fd").len());
    drop(all);
    // They end on their own; what stays longer than this, stays.
    let ended = || own("task").len() <= threads + EVENT_THREADS && own("fd").len() <= descriptors;
    let patience = tokio::time::Instant::now() + Duration::from_secs(10);
    while !ended() && tokio::time::Instant::now() < patience {
        tokio::time::sleep(ms(20)).await;
    }
    println!("@after {} {}", own("task").len(), own("fd").len());
    for left in own("task") {
        eprintln!(
            "thread {}",
            fs::read_to_string(left.join("comm")).unwrap_or_default().trim()
        );
    }
    for left in own("fd") {
        eprintln!("{} is {:?}", left.display(), fs::read_link(&left));
    }
}

async fn idles(url: &str) {
    let locks = connected(url).await;
    used(&locks).await;
    println!("@idles {}", std::process::id());
    std::future::pending::<()>().await;
}

/// Two numbers behind a word.
fn pair(line: &str) -> (usize, usize) {
    let (one, other) = line.split_once(' ').unwrap();
    (one.parse().unwrap(), other.parse().unwrap())
}

fn leaves_nothing(url: &str) {
    let mut other = other("drops", url);
    let before = pair(&other.hears("before"));
    let meanwhile = pair(&other.hears("meanwhile"));
    let after = pair(&other.hears("after"));
    println!(
        "threads and descriptors: {before:?}, {meanwhile:?} with {DROPPED} Locks, {after:?} when they are dropped"
    );
    assert!(
        after.0 <= before.0 + EVENT_THREADS,
        "threads stay: {after:?} after {before:?}"
    );
    assert!(
        after.1 <= before.1,
        "descriptors stay: {after:?} after {before:?}"
    );
}

/// How often each thread of a process went to sleep, which is how often it was woken.
fn sleeps(process: &str) -> Vec<(String, u64)> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("a Linux");
    let of = |task: PathBuf| {
        let status = fs::read_to_string(task.join("status")).ok()?;
        let field = |name: &str| {
            Some(
                status
                    .lines()
                    .find_map(|line| line.strip_prefix(name))?
                    .trim()
                    .to_owned(),
            )
        };
        let id = task.file_name()?.to_string_lossy().into_owned();
        Some((
            format!("{id} {}", field("Name:")?),
            field("voluntary_ctxt_switches:")?.parse().ok()?,
        ))
    };
    tasks.filter_map(|task| of(task.unwrap().path())).collect()
}

async fn sleeps_well(url: &str) {
    let mut other = other("idles", url);
    let process = other.hears("idles");
    // What the last lock left to do is done.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = sleeps(&process);
    tokio::time::sleep(WATCHED).await;
    let mut all = 0;
    println!("woken in {WATCHED:?}, by thread:");
    for (thread, count) in sleeps(&process) {
        let earlier = before.iter().find(|(earlier, _)| *earlier == thread);
        let woken = count - earlier.map_or(0, |(_, count)| *count);
        println!("{woken:6}  {thread}");
        all += woken;
    }
    assert!(all <= WATCHED.as_secs(), "woken {all} times in {WATCHED:?}");
}

#[test]
fn a_hundred_dropped_leave_nothing_behind_in_memory() {
    leaves_nothing("");
}

#[tokio::test]
async fn a_hundred_dropped_leave_nothing_behind_on_redis() {
    let server = RedisServer::start();
    leaves_nothing(&server.url());
    // Nor at the server: this connection, and nobody's.
    let mut eyes = server.client();
    until("all connections are closed", || {
        let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut eyes).unwrap();
        clients.lines().count() == 1
    })
    .await;
}

#[tokio::test]
async fn idle_locks_in_memory_are_woken_at_most_once_a_second() {
    sleeps_well("").await;
}

#[tokio::test]
async fn idle_locks_on_redis_are_woken_at_most_once_a_second() {
    let server = RedisServer::start();
    sleeps_well(&server.url()).await;
}
