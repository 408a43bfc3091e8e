//! Work with locks that several benches measure. It uses only the public API, so it also compiles against other versions of
//! the crate.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure::{Guard, Locks, Mutex};

use super::{Raw, rate};

pub async fn lock_and_release(mutex: Mutex) {
    let guard = mutex.lock().await.expect("a lock");
    std::hint::black_box(guard.fence());
    guard.release().await.expect("a release in time");
}

/// Returns the cycles per second of `tasks` tasks that compete for one key.
pub async fn hot(locks: &Locks, tasks: usize, window: Duration) -> f64 {
    let mutex = locks.mutex("hot");
    let cycle = |_| {
        let mutex = mutex.clone();
        move || lock_and_release(mutex.clone())
    };
    rate(tasks, window, cycle).await
}

/// Returns the cycles per second of tasks that compete for a `tokio::sync::Mutex`: the cost of task switches alone.
pub async fn tokio_mutex(tasks: usize, window: Duration) -> f64 {
    let mutex = Arc::new(tokio::sync::Mutex::new(0_u64));
    let cycle = |_| {
        let mutex = mutex.clone();
        move || {
            let mutex = mutex.clone();
            async move { *mutex.lock().await += 1 }
        }
    };
    rate(tasks, window, cycle).await
}

/// Locks `size` keys at once, then releases them at once, in each round. Returns server µs per cycle, and requests per batch.
pub async fn in_step(locks: &Locks, size: usize, rounds: usize, raw: &mut Raw) -> (f64, f64) {
    let mutexes: Vec<Mutex> = (0..size).map(|n| locks.mutex(format!("in step:{n}"))).collect();
    let round = async || {
        let guards = immediate(mutexes.iter().map(Mutex::lock)).await;
        let releases = guards.into_iter().map(|guard| guard.expect("a lock").release());
        for released in immediate(releases).await {
            released.expect("a release in time");
        }
    };
    round().await;
    raw.forget_stats().await;
    for _ in 0..rounds {
        round().await;
    }
    let (batches, micros) = raw.stats(|name| name == "evalsha").await;
    let cycles = (rounds * size) as f64;
    (micros / cycles, 2.0 * cycles / batches)
}

/// Polls all futures in one task, so that their requests are sent in one batch.
async fn immediate<F: IntoFuture>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<(Pin<Box<F::IntoFuture>>, Option<F::Output>)> = futures
        .map(|future| (Box::pin(future.into_future()), None))
        .collect();
    let all = std::future::poll_fn(|cx| {
        let mut left = 0;
        for (future, output) in futures.iter_mut().filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(cx) {
                Poll::Ready(value) => *output = Some(value),
                Poll::Pending => left += 1,
            }
        }
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    });
    all.await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}

/// The server's cost of a claim that queues plus a leave that hands over.
#[derive(Debug)]
pub struct HandOver {
    /// EVALSHA, and the commands that scripts called.
    pub commands: f64,
    /// EVALSHA alone.
    pub scripts: f64,
    /// The server's time in the best window: other load on the machine increases it.
    pub micros: f64,
    /// Published grants per pair. Less than 1 means that some pairs were no hand-over.
    pub pushed: f64,
    /// Each command and how often it ran.
    pub calls: Vec<String>,
}

/// The number of keys that are handed over at the same time. Each key has its own two nodes, so no batch has two requests, and
/// the server does not fall asleep.
const KEYS: usize = 32;
/// How often each key is handed over and back in a window.
const WINDOW: usize = 10;
/// The time after which a claim is in the queue.
const QUEUED: Duration = Duration::from_millis(3);

pub async fn hand_overs(url: &str, windows: usize, raw: &mut Raw) -> HandOver {
    let mut keys = Vec::new();
    for key in 0..KEYS {
        let mut nodes = Vec::new();
        for _ in 0..2 {
            // Long enough that no renewal is due.
            let node = Locks::builder()
                .lease(Duration::from_secs(300))
                .connect(url)
                .await;
            nodes.push(
                node.expect("the server is there")
                    .mutex(format!("handed over:{key}")),
            );
        }
        let held = nodes[0].lock().await.expect("a free lock");
        keys.push((nodes, held));
    }
    let mut keys = side_by_side(keys, 2).await;
    let (mut micros, mut commands) = (f64::INFINITY, Vec::new());
    for _ in 0..windows {
        raw.forget_stats().await;
        // The statistics are read before the last holders release.
        keys = side_by_side(keys, 2 * WINDOW).await;
        commands = raw.commands().await;
        let script = commands.iter().find(|command| command.0 == "evalsha");
        micros = script.map_or(micros, |(.., spent)| micros.min(*spent));
    }
    let pairs = (KEYS * 2 * WINDOW) as f64;
    let ours = commands
        .iter()
        .filter(|(name, ..)| name != "info" && !name.starts_with("config"));
    let of = |name: &str| commands.iter().find(|command| command.0 == name);
    HandOver {
        commands: ours.clone().map(|(_, calls, _)| calls).sum::<f64>() / pairs,
        scripts: of("evalsha").map_or(0.0, |(_, calls, _)| calls / pairs),
        micros: micros / pairs,
        pushed: of("publish").map_or(0.0, |(_, calls, _)| calls / pairs),
        calls: ours
            .map(|(name, calls, _)| format!("{name} {:.2}", calls / pairs))
            .collect(),
    }
}

/// The mutexes of both nodes of a key, and the guard of the first node.
type Contended = (Vec<Mutex>, Guard);

async fn side_by_side(keys: Vec<Contended>, times: usize) -> Vec<Contended> {
    let tasks: Vec<_> = keys
        .into_iter()
        .map(|key| tokio::spawn(to_and_fro(key, times)))
        .collect();
    let mut keys = Vec::new();
    for task in tasks {
        keys.push(task.await.expect("a task of the bench"));
    }
    keys
}

/// Hands the key over `times` times, which must be even. Each time the other node queues, then the holder releases.
async fn to_and_fro((nodes, mut held): Contended, times: usize) -> Contended {
    for time in 1..=times {
        let next = nodes[time % 2].clone();
        let next = tokio::spawn(async move { next.lock().await.expect("a lock") });
        tokio::time::sleep(QUEUED).await;
        held.release().await.expect("a release in time");
        held = next.await.expect("a task of the bench");
    }
    (nodes, held)
}
