//! One record, many languages: the real redis-py and tenure exclude each other. `pairs` tests each library of the guide's
//! table.

pub mod foreign;
mod pairs;
mod pairs_on_masters;

use std::time::Duration;

use tenure::error::LostCause;

use crate::help::{Eyes, PATIENCE, held, locks, ms, now, patient, soon, until};
use crate::server::RedisServer;

use foreign::{Foreign, Library};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_excludes_the_other() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let mut theirs = Foreign::runs(Library::RedisPy, &server);
    let ours = crate::help::connect(&server.url()).await.unwrap();
    let mutex = ours.mutex("account:42");

    assert_eq!(theirs.asks("acquire lock:account:42 60 0"), "yes");
    let token = eyes.owner("account:42");
    assert!(soon(mutex.try_lock()).await.unwrap().is_none());
    assert!(soon(mutex.lock_timeout(ms(50))).await.unwrap_err().is_busy());
    assert_eq!(eyes.owner("account:42"), token);
    assert_eq!(theirs.asks("release lock:account:42"), "yes");
    soon(ours.idle()).await;

    let guard = soon(mutex.try_lock()).await.unwrap().expect("the key is free");
    assert_eq!(theirs.asks("acquire lock:account:42 60 0"), "no");
    assert_eq!(theirs.asks("acquire lock:account:42 60 0.1"), "no");
    assert!(guard.is_held());
    // redis-py polls, and finds the record gone.
    theirs.tells("acquire lock:account:42 60 20");
    guard.release().await.unwrap();
    assert_eq!(theirs.said(), "yes");
    assert_eq!(theirs.asks("release lock:account:42"), "yes");
    soon(ours.idle()).await;
    eyes.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_removes_or_extends_the_record_of_the_other() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let mut theirs = Foreign::runs(Library::RedisPy, &server);
    let ours = locks(&server.url(), ms(4_000)).await;

    // The foreign lock expired, and tenure acquired the key.
    assert_eq!(theirs.asks("acquire lock:a 0.1 0"), "yes");
    let guard = held(&ours, "a").await;
    let owner = eyes.owner("a");
    assert_eq!(theirs.asks("owned lock:a"), "no");
    assert_eq!(theirs.asks("extend lock:a 60"), "LockNotOwnedError");
    assert_eq!(theirs.asks("release lock:a"), "LockNotOwnedError");
    assert_eq!(eyes.owner("a"), owner);
    assert!(eyes.pttl("a") < 5_000);
    assert!(guard.is_held());
    guard.release().await.unwrap();

    // The record of tenure was removed, and the foreign lock was acquired: a renewal notices that, and so does a release.
    for released in [false, true] {
        // A release that is repeated after a timeout could not tell whether it was done before.
        let lease = ms(if released { 30_000 } else { 4_000 });
        let guard = soon(ours.mutex("b").lease(lease).lock()).await.unwrap();
        let _: u64 = eyes.text("DEL lock:b");
        assert_eq!(theirs.asks("acquire lock:b 60 0"), "yes");
        let ends = "PEXPIRETIME lock:b";
        let (token, before) = (eyes.owner("b"), eyes.text::<i64>(ends));
        if released {
            assert!(guard.release().await.unwrap_err().is_lost());
        } else {
            assert_eq!(soon(guard.lost()).await, LostCause::Gone);
            drop(guard);
        }
        soon(ours.idle()).await;
        assert_eq!(eyes.owner("b"), token);
        assert_eq!(
            eyes.text::<i64>(ends),
            before,
            "another client changed its expiry"
        );
        assert_eq!(theirs.asks("owned lock:b"), "yes");
        assert_eq!(theirs.asks("release lock:b"), "yes");
    }
    eyes.until_empty().await;
}

/// A foreign release does not use tenure's queue. The waiters poll often while the owner is foreign.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_get_the_lock_after_a_foreign_release() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let mut theirs = Foreign::runs(Library::RedisPy, &server);
    // A timer takes an hour or more.
    let (one, other) = (patient(&server.url()).await, patient(&server.url()).await);

    assert_eq!(theirs.asks("acquire lock:a 600 0"), "yes");
    let first = tokio::spawn(one.mutex("a").lock());
    until("the first waits", || eyes.queue("a") == 1).await;
    let second = tokio::spawn(other.mutex("a").lock());
    until("the second waits", || eyes.queue("a") == 2).await;
    assert_eq!(theirs.asks("release lock:a"), "yes");
    let guard = soon(first).await.unwrap().unwrap();
    assert!(!second.is_finished());
    // Between tenure nodes a push arrives without a timer.
    guard.release().await.unwrap();
    let guard = soon(second).await.unwrap().unwrap();
    guard.release().await.unwrap();

    // For a record with an expiry, waiters poll at its end, not after a third of a long lease.
    assert_eq!(theirs.asks("acquire lock:b 0.3 0"), "yes");
    held(&one, "b").await.release().await.unwrap();
    for locks in [&one, &other] {
        soon(locks.idle()).await;
    }
    eyes.until_empty().await;
}

/// Foreign services hold 30 keys for half of each second. No push tells of their releases, and a timer takes an hour or more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_get_the_lock_soon_after_a_foreign_release() {
    const KEYS: usize = 30;
    const SPAN: Duration = ms(6_000);
    let server = RedisServer::start();
    let mut theirs = Foreign::runs(Library::RedisPy, &server);
    let mut eyes = Eyes::on(&server);
    let halves = format!("halves lock:{{}} {} {KEYS}", SPAN.as_secs());

    let ours = patient(&server.url()).await;
    let since = now();
    theirs.tells(&halves);
    let tasks: Vec<_> = (0..KEYS)
        .map(|key| {
            let mutex = ours.mutex(format!("{{}}{key}"));
            tokio::spawn(async move {
                let mut waits = Vec::new();
                while now() < since + SPAN {
                    let asked = now();
                    let guard = mutex.lock_timeout(PATIENCE).await.expect("never refused");
                    waits.push((asked, now()));
                    guard.release().await.unwrap();
                    tokio::time::sleep(ms(fastrand::u64(0..300))).await;
                }
                waits
            })
        })
        .collect();
    let mut waits = Vec::new();
    for task in tasks {
        waits.push(soon(task).await.unwrap());
    }
    let released = theirs.said();

    let mut late: Vec<Duration> = released
        .split(',')
        .filter_map(|released| {
            let (key, at) = released.split_once(':').unwrap();
            let at = Duration::from_nanos(at.parse().unwrap());
            let of_key = &waits[key.parse::<usize>().unwrap()];
            // The callers that waited at the release.
            let wait = of_key.iter().find(|(asked, got)| *asked < at && at < *got)?;
            Some(wait.1 - at)
        })
        .collect();
    late.sort();
    let (p50, worst) = (late[late.len() / 2], late[late.len() - 1]);
    println!(
        "after {} of {} foreign releases: p50 {p50:?}, worst {worst:?}",
        late.len(),
        released.split(',').count(),
    );
    assert!(late.len() >= KEYS, "too few callers waited: {late:?}");
    soon(ours.idle()).await;
    eyes.until_empty().await;
}

/// The cost of polling for Redis, with foreign owners of all keys, and with short waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polling_foreign_owners_costs_redis_little() {
    const KEYS: usize = 10;
    const SPAN: Duration = ms(4_000);
    let server = RedisServer::start();
    let mut theirs = Foreign::runs(Library::RedisPy, &server);
    let mut eyes = Eyes::on(&server);
    let ours = crate::help::connect(&server.url()).await.unwrap();
    for key in 0..KEYS {
        assert_eq!(theirs.asks(&format!("acquire lock:{key} endless 0")), "yes");
    }
    let (since, before) = (now(), eyes.cpu());
    tokio::time::sleep(SPAN / 4).await;
    let idle = (eyes.cpu() - before).div_duration_f64(now() - since);

    let (since, before, calls) = (now(), eyes.cpu(), eyes.calls());
    let tasks: Vec<_> = (0..KEYS)
        .map(|key| {
            let mutex = ours.mutex(format!("{key}"));
            tokio::spawn(async move {
                while now() < since + SPAN {
                    assert!(mutex.lock_timeout(ms(1_000)).await.unwrap_err().is_busy());
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    let span = now() - since;
    let cpu = (eyes.cpu() - before).div_duration_f64(span) - idle;
    let after = eyes.calls();
    let scripts = (after["evalsha"] - calls.get("evalsha").unwrap_or(&0)) as f64 / span.as_secs_f64();
    println!(
        "{KEYS} keys: {scripts:.0} scripts a second, {:.2} % of a core",
        cpu * 100.0
    );
    // 0.9 % beside seven other busy processes on two processors. A slower processor needs more.
    assert!(cpu <= 0.02, "{cpu} of a core");
    // One script for all keys, 33 times a second, and further scripts for each wait that begins and ends.
    assert!(scripts <= 33.4 + 3.0 * KEYS as f64, "{scripts} scripts a second");
    soon(ours.idle()).await;
}

/// redis-py's default: a lock that ends only when it is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_lock_without_an_end_makes_no_busy_loop() {
    const LEASE: Duration = ms(3_000);
    const LOOK: Duration = Duration::from_secs(4);
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let mut theirs = Foreign::runs(Library::RedisPy, &server);
    let (one, other) = (
        locks(&server.url(), LEASE).await,
        locks(&server.url(), LEASE).await,
    );

    assert_eq!(theirs.asks("acquire lock:a endless 0"), "yes");
    assert_eq!(eyes.pttl("a"), -1);
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let mutex = if n % 2 == 0 { &one } else { &other }.mutex("a");
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    until("they wait", || {
        one.waiter_count() == 10 && other.waiter_count() == 10 && eyes.queue("a") == 2
    })
    .await;
    // In the first two seconds the waiters poll often.
    tokio::time::sleep(ms(2_050)).await;
    let (since, before) = (now(), eyes.calls());
    tokio::time::sleep(LOOK).await;
    let after = eyes.calls();
    // On a busy machine the time was longer.
    let looked = now() - since;
    let calls = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
    // Each node polls once in 250 ms.
    let looks = 2 * looked.div_duration_f64(ms(250)).ceil() as u64;
    let scripts = calls("evalsha") + calls("eval");
    assert!(
        (5..=looks + 2).contains(&scripts),
        "{scripts} scripts, not {looks}"
    );
    let all: u64 = after.keys().map(|name| calls(name)).sum();
    assert!(all < 12 * looks, "{all} commands for {looks} looks");

    // No other client removes the record. When its owner does, all callers get the lock.
    assert_eq!(theirs.asks("owned lock:a"), "yes");
    assert_eq!(theirs.asks("release lock:a"), "yes");
    for task in tasks {
        soon(task).await.unwrap();
    }
    soon(one.idle()).await;
    soon(other.idle()).await;
    eyes.until_empty().await;
}
