//! A deploy that goes there and back: replicas of two versions on one Redis, replaced one by one while they work.
//!
//! Each adds to counters by reading, waiting and writing under the lock of the counter, so an overlap loses an addition;
//! and it writes its fence, which must exceed the one that it finds.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure::Locks;
use tokio::signal::unix::{SignalKind, signal};

use crate::support::server::RedisServer;

const COUNTERS: usize = 3;
const REPLICAS: usize = 3;
const TASKS: usize = 4;
const LEASE: Duration = Duration::from_secs(2);

/// One replica, until SIGTERM.
pub async fn replica(url: &str) {
    let mut asked = signal(SignalKind::terminate()).expect("a signal handler");
    let locks = Locks::builder()
        .lease(LEASE)
        .redis(url)
        .await
        .expect("the server is there");
    let client = redis::Client::open(url).expect("a URL");
    let books = client
        .get_multiplexed_async_connection()
        .await
        .expect("the server is there");
    let ends = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, books, ends) = (locks.clone(), books.clone(), ends.clone());
            tokio::spawn(async move {
                while !ends.load(Ordering::Relaxed) {
                    add(&locks, books.clone(), task % COUNTERS).await;
                }
            })
        })
        .collect();
    asked.recv().await;
    ends.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a task that ends well");
    }
    locks.shutdown().await;
}

async fn add(locks: &Locks, mut books: redis::aio::MultiplexedConnection, counter: usize) {
    let guard = match locks.mutex(format!("rolling:{counter}")).lock().await {
        Ok(guard) => guard,
        Err(error) => panic!("no lock, on a healthy server: {error}"),
    };
    let name = |what: &str| format!("rolling:{what}:{counter}");
    let (value, fence): (Option<u64>, Option<u64>) = redis::cmd("MGET")
        .arg(name("counter"))
        .arg(name("fence"))
        .query_async(&mut books)
        .await
        .expect("the server is there");
    tokio::time::sleep(Duration::from_micros(200)).await;
    let mine = guard.fence().get();
    let mut write = redis::pipe();
    write.atomic();
    write.cmd("SET").arg(name("counter")).arg(value.unwrap_or(0) + 1);
    write.cmd("SET").arg(name("fence")).arg(mine);
    write.cmd("INCR").arg(name("added"));
    if fence.is_some_and(|before| mine <= before) {
        write.cmd("INCR").arg("rolling:disorder");
    }
    write.exec_async(&mut books).await.expect("the server is there");
    guard.release().await.expect("a lease that was held");
}

/// Replaces one replica after the other, by a release and by a kill in turns, there and back until the time is over.
pub async fn rolling(before: &Path, seconds: u64) {
    let server = RedisServer::as_service();
    let url = server.url();
    let after = std::env::current_exe().expect("this program");
    let start = |program: &Path| {
        let mut replica = Command::new(program);
        replica.args(["replica", &url]).stdin(Stdio::null());
        replica.spawn().expect("a replica")
    };
    let mut replicas: Vec<Child> = (0..REPLICAS).map(|_| start(before)).collect();
    let (begin, mut turn) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(seconds) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let program = if turn / REPLICAS % 2 == 0 { &after } else { before };
        let leaves = &mut replicas[turn % REPLICAS];
        if turn % 2 == 0 {
            terminate(leaves);
        } else {
            leaves.kill().expect("a child");
            leaves.wait().expect("a child");
        }
        *leaves = start(program);
        turn += 1;
    }
    for replica in &mut replicas {
        terminate(replica);
    }
    let client = redis::Client::open(url.as_str()).expect("a URL");
    let mut books = client
        .get_multiplexed_async_connection()
        .await
        .expect("the server is there");
    let mut get = async |name: String| -> u64 {
        let found: Option<u64> = redis::cmd("GET")
            .arg(name)
            .query_async(&mut books)
            .await
            .expect("a number");
        found.unwrap_or(0)
    };
    let mut wrong = get("rolling:disorder".into()).await;
    println!(
        "{turn} replicas replaced, {} of them killed; fences out of order: {wrong}",
        turn / 2
    );
    for counter in 0..COUNTERS {
        let (value, added) = (
            get(format!("rolling:counter:{counter}")).await,
            get(format!("rolling:added:{counter}")).await,
        );
        println!("counter {counter}: {added} additions, {value} is its value");
        wrong += added - value;
        assert!(added > 0, "nobody worked");
    }
    assert_eq!(wrong, 0, "two versions were not one at a time");
}

fn terminate(replica: &mut Child) {
    let pid = replica.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status().expect("kill");
    assert!(sent.success(), "the replica ended by itself");
    assert!(replica.wait().expect("a child").success(), "a replica failed");
}
