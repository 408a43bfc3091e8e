//! Keys that are used once leave nothing behind: neither on the server nor in the process that used them.

use std::sync::Arc;
use std::time::Duration;

use tenure::Locks;
use tokio::task::JoinSet;

use crate::help::{Eyes, PATIENCE, ms, soon, until};
use crate::server::RedisServer;

/// Says how many keys, to this binary once more: what it measures of its own memory is nobody else's.
const CHILD: &str = "TENURE_KEYS_CHILD";
/// Of a latch: the shortest that there is.
const LIFE: Duration = Duration::from_secs(1);
/// So many tasks at once.
const TASKS: u64 = 32;
/// One to read, one to write, and five at once. The first is a semaphore, a latch and an election, too.
const BLOCK: u64 = 7;

#[test]
fn keys_that_are_used_once_leave_nothing() {
    if let Ok(keys) = std::env::var(CHILD) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(used_once(keys.parse().unwrap()));
    }
    let keys = std::env::var("TENURE_KEYS").unwrap_or("20000".into());
    let done = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "many_keys::keys_that_are_used_once_leave_nothing",
            "--nocapture",
        ])
        .env(CHILD, keys)
        .output()
        .expect("this binary once more");
    let (out, err) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    let told: String = out.lines().filter(|line| line.contains(" keys")).collect();
    println!("{told}");
    assert!(done.status.success() && !told.is_empty(), "{out}{err}");
}

async fn used_once(keys: u64) {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let builder = crate::help::builder()
        .lease(ms(60_000))
        .request_timeout(ms(10_000));
    let locks = builder.presence(false).connect(&server.url()).await.unwrap();
    let locks = Arc::new(locks);
    let blocks = keys / BLOCK;
    // Buffers, tables and allocators reach their size.
    use_blocks(&locks, 0, blocks / 2).await;
    soon(locks.idle()).await;
    until("the clock alone is there", || eyes.text::<u64>("DBSIZE") == 1).await;
    let (theirs, ours) = (used(&mut eyes), resident());
    use_blocks(&locks, blocks / 2, blocks).await;
    soon(locks.idle()).await;
    assert_eq!((locks.key_count(), locks.waiter_count()), (0, 0));
    until("the clock alone is there", || eyes.text::<u64>("DBSIZE") == 1).await;
    // What a connection has for its answers is given back later.
    let look = async {
        while used(&mut eyes) > theirs + theirs / 100 {
            tokio::time::sleep(ms(50)).await;
        }
    };
    let has_back = tokio::time::timeout(PATIENCE, look).await.is_ok();
    let after = used(&mut eyes);
    assert!(
        has_back,
        "the server has {after} bytes, {theirs} after half of the keys"
    );
    let own = resident();
    println!(
        "{keys} keys: the server has {theirs} bytes after half of them and {after} after all, we {ours} and {own}"
    );
    assert!(own <= ours + ours / 100 + SLACK, "{} bytes more", own - ours);
}

async fn use_blocks(locks: &Arc<Locks>, from: u64, to: u64) {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let locks = locks.clone();
        tasks.spawn(async move {
            for block in (from + task..to).step_by(TASKS as usize) {
                let key = block * BLOCK;
                // Released, or dropped.
                let reader = locks.rw_lock(key).read().await.unwrap();
                if block % 2 == 0 {
                    reader.release().await.unwrap();
                }
                let writer = locks.rw_lock(key + 1).write().await.unwrap();
                let reader = if block % 4 == 0 {
                    writer.downgrade().await.unwrap()
                } else {
                    writer
                };
                reader.release().await.unwrap();
                let permits = locks.semaphore(key, 2);
                let permits = permits.acquire_many(1 + (block % 2) as u32).await.unwrap();
                if block % 4 < 2 {
                    permits.release().await.unwrap();
                } else {
                    let keep = Duration::from_secs(60);
                    let transfer = permits.into_transfer(keep).await.unwrap();
                    match block % 4 {
                        2 => locks.release_transfer(&transfer).await.unwrap(),
                        _ => drop(locks.adopt(&transfer).await.unwrap()),
                    }
                }
                let latch = locks.latch(key).life(LIFE);
                assert!(latch.try_set_count(1).await.unwrap());
                let (waited, counted) = tokio::join!(latch.wait(), latch.count_down());
                assert_eq!((waited.unwrap(), counted.unwrap()), ((), 0));
                lead_once(&locks, key).await;
                let several = locks.multi(key + 2..key + BLOCK).lock().await.unwrap();
                if block % 2 == 0 {
                    several.release().await.unwrap();
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// Seen by who observes that, now and then.
async fn lead_once(locks: &Locks, key: u64) {
    let election = locks.election(key);
    let led = election.lead(async |_| {
        election.proclaim("first").await.unwrap();
        if key.is_multiple_of(2) {
            let mut observer = election.observe();
            assert!(observer.next().await.unwrap().is_some());
            let (news, told) = tokio::join!(observer.next(), election.proclaim("here"));
            told.unwrap();
            assert!(news.unwrap().is_some());
        }
    });
    led.await.unwrap();
}

/// An allocator takes memory from the system in pieces, and each thread has some.
const SLACK: u64 = 512 << 10;

/// What the server has, but for its notes on commands that took long: a busy machine writes many.
fn used(eyes: &mut Eyes) -> u64 {
    let _: () = eyes.text("SLOWLOG RESET");
    let memory: String = eyes.text("INFO memory");
    let used = memory.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.expect("it is told").trim().parse().unwrap()
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells what is resident");
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number of pages") * 4096
}
