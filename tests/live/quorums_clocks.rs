//! A quorum of five masters whose wall clocks are apart, and step.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure::{Error, Locks};
use tokio::task::{JoinSet, block_in_place};

use crate::child::nod;
use crate::deployment::{eventually, query};
use crate::help::{Canary, Other, ms, now, soon, until};
use crate::masters::{Masters, is_none_lost, locks_of, mutexes};
use crate::server::RedisServer;
use crate::wall_clock::WallClock;

/// By how many seconds the clock of each master is off.
const OFF: [i64; 5] = [-7, -3, 0, 4, 9];
/// By how many seconds a clock steps, from where it began.
const STEPS: [i64; 4] = [5, 0, -5, 0];

/// Starts masters, each with its clock.
fn start() -> (Masters, Vec<WallClock>) {
    let clock = |off: i64| {
        let clock = WallClock::new();
        clock.step(off);
        clock
    };
    let clocks: Vec<_> = OFF.into_iter().map(clock).collect();
    let servers = clocks
        .iter()
        .map(|clock| RedisServer::preloading(&clock.library()));
    (Masters(servers.collect()), clocks)
}

/// Ends the recoveries of the masters' first use.
async fn first_use(masters: &Masters, lease: Duration) -> Locks {
    let locks = masters.locks(lease).await;
    block_in_place(|| {
        masters.until_used();
        masters.end_recoveries();
    });
    locks
}

/// Tries to take each key, as often as it can. Counts its tries.
async fn contends(locks: Locks, names: Vec<String>, stop: Arc<AtomicBool>, tries: Arc<AtomicU64>) {
    while !stop.load(Ordering::Relaxed) {
        for mutex in mutexes(&locks, &names) {
            match soon(mutex.try_lock()).await {
                Ok(None) | Err(Error::Store { .. }) => {}
                Ok(Some(guard)) => panic!("a second holder: {guard:?}"),
                Err(error) => panic!("{error}"),
            }
            tries.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Records on the master whose clock steps end at once, or much later. The next renewals mend that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_steps_ends_no_lease_that_stands_on_all_masters() {
    let lease = ms(2_000);
    let names: Vec<String> = (0..10).map(|n| format!("held:{n}")).collect();
    // A machine that stalled for a part of a lease gets another round.
    for round in 1.. {
        let (masters, clocks) = block_in_place(start);
        let (locks, other) = (first_use(&masters, lease).await, masters.locks(lease).await);
        let mut canary = Canary::start();
        masters.0.iter().for_each(|master| canary.watch(master));
        let mut guards = Vec::new();
        for mutex in mutexes(&locks, &names) {
            guards.push(soon(mutex.lock()).await.unwrap());
        }
        let all = [0, 1, 2, 3, 4];
        let on_all = || {
            names
                .iter()
                .for_each(|name| masters.until_renewed(&format!("lock:{name}"), &all))
        };
        block_in_place(on_all);
        let (stop, tries) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let contender = tokio::spawn(contends(other, names.clone(), stop.clone(), tries.clone()));
        // The latest clock, from which fences are taken, and the one in the middle.
        for (at, step) in [4, 2].into_iter().flat_map(|at| STEPS.map(|step| (at, step))) {
            clocks[at].step(OFF[at] + step);
            let before = tries.load(Ordering::Relaxed);
            // Each key is tried after the step.
            let enough = before + 2 * names.len() as u64;
            until("each key is tried", || {
                tries.load(Ordering::Relaxed) >= enough || contender.is_finished()
            })
            .await;
            block_in_place(|| {
                on_all();
                names
                    .iter()
                    .for_each(|name| until_mended(&masters, at, name, lease));
            });
        }
        stop.store(true, Ordering::Relaxed);
        let contended = soon(contender).await;
        println!("{} tries of others", tries.load(Ordering::Relaxed));
        if !is_none_lost(&guards, lease, &canary, round) {
            continue;
        }
        contended.unwrap();
        return;
    }
}

/// Waits until the record of a lease ends as late as a renewal says.
fn until_mended(masters: &Masters, at: usize, name: &str, lease: Duration) {
    let hold = (lease + ms(250)).as_millis() as i64;
    eventually("a renewal mends the record", || {
        let left: i64 = query(&masters.0[at], &["PTTL", &format!("lock:{name}")]).ok()?;
        // A lease that was lost is reported elsewhere.
        (left <= hold).then_some(())
    });
}

/// How many fences are taken, of how many keys, and by how many processes.
const FENCES: u64 = 10_000;
const KEYS: u64 = 5;
const PROCESSES: usize = 3;
/// The number of bytes of a line in a file of fences: the fence and the process.
const LINE: u64 = 28;

/// Longer than ten thousand fences take. Only a failed test waits for it.
const PATIENCE: Duration = Duration::from_secs(240);

fn path(dir: &Path, key: u64) -> PathBuf {
    dir.join(format!("fences-{key}"))
}

/// Returns how many fences of all keys were taken.
fn taken(dir: &Path) -> u64 {
    let lines = |key| std::fs::metadata(path(dir, key)).map_or(0, |file| file.len() / LINE);
    (0..KEYS).map(lines).sum()
}

/// The role of a process: takes the fences of all keys, until each key has enough. A holder adds its fence to a file, so the
/// lines of the file are in the order of the grants.
pub async fn takes_fences(urls: &str, dir: &str, lease: Duration) {
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    // Each fence is a grant of the masters.
    let builder = crate::help::builder()
        .lease(lease)
        .burst(1, ms(1))
        .request_timeout(ms(10_000));
    let locks = locks_of(&urls, lease, builder).await;
    println!("@ready");
    nod().await;
    let mut tasks = JoinSet::new();
    for key in 0..KEYS {
        let (mutex, path) = (locks.mutex(format!("fences:{key}")), path(Path::new(dir), key));
        tasks.spawn(async move {
            let open = OpenOptions::new().create(true).append(true).open(path);
            let mut file: File = open.unwrap();
            loop {
                let guard = soon(mutex.lock()).await.unwrap();
                if file.metadata().unwrap().len() >= FENCES / KEYS * LINE {
                    return;
                }
                let line = format!(
                    "{:20} {:6}\n",
                    guard.fence().get(),
                    std::process::id() % 1_000_000
                );
                file.write_all(line.as_bytes()).unwrap();
                assert!(guard.is_held(), "this machine stalled for {lease:?}");
                soon(guard.release()).await.unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    soon(locks.shutdown()).await;
    println!("@took");
}

/// The latest clock steps to and fro meanwhile. Each process proposes fences by what it knows of the clocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_while_the_clocks_are_apart() {
    // Records outlive the steps.
    let lease = ms(10_000);
    let (masters, clocks) = block_in_place(start);
    drop(first_use(&masters, lease).await);
    let dir = std::env::temp_dir().join(format!("tenure-fences-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let (urls, at) = (masters.urls().join(","), dir.display().to_string());
    let began = now();
    let took = block_in_place(|| {
        let process = |_| Other::plays("takes fences", &urls, &at, lease);
        let mut processes: Vec<Other> = (0..PROCESSES).map(process).collect();
        for process in &mut processes {
            process.hears("ready");
            process.nod();
        }
        for (n, step) in (1..).zip(STEPS) {
            until_taken(&dir, FENCES * n / (STEPS.len() as u64 + 1));
            clocks[4].step(OFF[4] + step);
        }
        until_taken(&dir, FENCES);
        processes.iter_mut().for_each(|process| {
            process.hears("took");
        });
        now() - began
    });
    let mut processes = std::collections::BTreeMap::<String, u64>::new();
    for key in 0..KEYS {
        let text = std::fs::read_to_string(path(&dir, key)).unwrap();
        let mut last = 0;
        for line in text.lines() {
            let (fence, process) = line.trim_start().split_once(' ').unwrap();
            let fence: u64 = fence.parse().unwrap();
            assert!(fence > last, "key {key}: {fence} after {last}");
            last = fence;
            *processes.entry(process.trim().to_owned()).or_default() += 1;
        }
    }
    println!(
        "{:?} fences of {PROCESSES} processes in {took:?}",
        processes.values()
    );
    assert_eq!(processes.len(), PROCESSES);
    assert_eq!(processes.values().sum::<u64>(), FENCES);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Waits until so many fences were taken.
fn until_taken(dir: &Path, count: u64) {
    let began = now();
    while taken(dir) < count {
        assert!(now() - began < PATIENCE, "{} fences in {PATIENCE:?}", taken(dir));
        std::thread::sleep(ms(5));
    }
}
