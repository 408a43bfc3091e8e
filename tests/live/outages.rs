//! After a short outage all delayed work continues at once: no caller waits for a time on the scale of its lease.

use std::time::Duration;

use tenure::Locks;
use tokio::task::JoinSet;

use crate::contest::Contest;
use crate::help::{Eyes, PATIENCE, addr, held, held_at_last, locks, ms, now, patient, soon, until, url};
use crate::server::RedisServer;
use crate::support::events::Watch;
use crate::support::proxy::{Direction, Flow, Proxy};

/// A pause on the scale of one of these is far longer than [`PATIENCE`].
const LEASES: [Duration; 3] = [ms(2 * 3_600_000), ms(6 * 3_600_000), ms(12 * 3_600_000)];
const OUTAGES: [Duration; 3] = [ms(300), ms(700), ms(1_200)];

async fn leasing(url: &str, lease: Duration) -> Locks {
    locks(url, lease).await
}

/// Breaks every connection and refuses new ones.
fn cut(proxy: &Proxy) {
    proxy.refuse(true);
    proxy.reset();
}

/// A lock that is released or dropped in an outage is free soon after it, however long its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_released_in_an_outage_is_free_soon_after_it() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut eyes = Eyes::on(&server);
    let mut nodes = Vec::new();
    for lease in LEASES {
        nodes.push((lease, leasing(&url(proxy.addr()), lease).await));
    }
    let mut late = Vec::new();
    for outage in OUTAGES {
        let mut held_here = Vec::new();
        for (lease, locks) in &nodes {
            for way in ["dropped", "released"] {
                for moment in ["at once", "later"] {
                    let key = format!("{way} {moment}, lease {lease:?}, outage {outage:?}");
                    held_here.push((held_at_last(locks.mutex(key.as_str())).await, way, moment, key));
                }
            }
        }
        cut(&proxy);
        let away = now();
        let mut releases = JoinSet::new();
        let mut keys = Vec::new();
        let (immediate, later): (Vec<_>, Vec<_>) =
            held_here.into_iter().partition(|held| held.2 == "at once");
        for (guards, wait) in [(immediate, Duration::ZERO), (later, outage / 2)] {
            tokio::time::sleep(wait).await;
            for (guard, way, _, key) in guards {
                keys.push(key);
                match way {
                    "dropped" => drop(guard),
                    _ => drop(releases.spawn(guard.release())),
                }
            }
        }
        tokio::time::sleep((away + outage).saturating_sub(now())).await;
        proxy.heal();
        let back = now();
        while !keys.is_empty() && now() - back < PATIENCE {
            keys.retain(|key| {
                eyes.ask::<Option<String>>(&[b"GET", format!("lock:{key}").as_bytes()])
                    .is_some()
            });
            tokio::time::sleep(ms(5)).await;
        }
        late.append(&mut keys);
    }
    assert!(
        late.is_empty(),
        "held {PATIENCE:?} after the store was back: {late:#?}"
    );
}

/// Keys that nodes hand over to each other continue soon after an outage, however long their leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_continue_soon_after_an_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut pairs = Vec::new();
    for lease in LEASES {
        let url = url(proxy.addr());
        pairs.push((lease, [leasing(&url, lease).await, leasing(&url, lease).await]));
    }
    let keys_of = |lease: Duration| (0..8).map(move |n| format!("{n}, lease {lease:?}"));
    let sides = pairs
        .iter()
        .flat_map(|(lease, nodes)| keys_of(*lease).map(move |key| (key, &nodes[..])));
    let contest = Contest::start(sides, ms(5));
    let keys: Vec<String> = LEASES.into_iter().flat_map(keys_of).collect();
    for outage in OUTAGES {
        contest.until_handed_over(&keys, now(), 3).await;
        cut(&proxy);
        tokio::time::sleep(outage).await;
        proxy.heal();
        // No key stalls.
        contest.until_handed_over(&keys, now(), 1).await;
    }
}

/// A waiter survives an outage of up to a lease, counted from the last answer of the store: also if the holder is in the
/// same process, and renewed its lease some time before.
async fn a_queue_survives(outage: impl FnOnce(&Proxy)) {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    // Long, so that a slow machine reconnects in what is left of it.
    let lease = ms(30_000);
    let locks = leasing(&url(proxy.addr()), lease).await;
    let key = format!("line {}", proxy.addr());
    let watch = Watch::of(format!("key={key} "));
    let guard = held(&locks, key.as_str()).await;
    let mut line = JoinSet::new();
    for _ in 0..20 {
        let waiting = locks.mutex(key.as_str()).lock();
        line.spawn(async move {
            match waiting.await {
                Ok(guard) => guard.release().await.map_err(|error| (now(), error)),
                Err(error) => Err((now(), error)),
            }
        });
    }
    until("they wait", || locks.waiter_count() == 20).await;
    // Shortly before the next renewal of the lease.
    watch.until("renewed").await;
    tokio::time::sleep(ms(9_000)).await;
    held(&locks, "heard").await.release().await.unwrap();
    let away = now();
    outage(&proxy);
    // Counted from the renewal, the lease would end two seconds before.
    let back = away + ms(23_000);
    let denied = async {
        while let Some(answer) = line.join_next().await {
            if let Err((at, error)) = answer.unwrap() {
                panic!(
                    "denied {:?} after the store was last heard, with a lease of {lease:?}: {error}",
                    at - away
                );
            }
        }
    };
    let mut denied = std::pin::pin!(denied);
    let healed = tokio::time::timeout(back.saturating_sub(now()), &mut denied).await;
    assert!(healed.is_err(), "a caller got the lock without a store");
    proxy.heal();
    soon(denied).await;
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_survives_refused_connections() {
    a_queue_survives(cut).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_survives_a_mute_server() {
    a_queue_survives(|proxy| proxy.set(Direction::Both, Flow::Hold)).await;
}

/// No waiter gets an error before the outage has lasted for a lease: neither waiters behind a holder of their own process
/// whose renewal was just due, nor waiters that came after the latest answer, nor waiters of another process.
async fn all_waiters_survive(outage: impl FnOnce(&Proxy)) {
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let lease = ms(3_000);
    let here = leasing(&url(proxy.addr()), lease).await;
    let elsewhere = leasing(&url(proxy.addr()), lease).await;
    let key = format!("all {}", proxy.addr());
    let watch = Watch::of(format!("key={key} "));
    let guard = held(&here, key.as_str()).await;
    let mut waits = JoinSet::new();
    let mut wait = |locks: &Locks, count: usize| {
        for _ in 0..count {
            let waiting = locks.mutex(key.as_str()).lock();
            waits.spawn(async move {
                match waiting.await {
                    Ok(guard) => {
                        let _ = guard.release().await;
                        Ok(())
                    }
                    Err(error) => Err((now(), error)),
                }
            });
        }
    };
    wait(&elsewhere, 4);
    wait(&here, 10);
    until("they wait", || {
        here.waiter_count() == 10 && elsewhere.waiter_count() == 4
    })
    .await;
    // Shortly before the next renewal of the lease.
    watch.until("renewed").await;
    tokio::time::sleep(ms(900)).await;
    wait(&here, 10);
    until("all wait", || here.waiter_count() == 20).await;
    let away = now();
    outage(&proxy);
    tokio::time::sleep((away + lease * 98 / 100).saturating_sub(now())).await;
    proxy.heal();
    let mut early = Vec::new();
    while let Some(answer) = soon(waits.join_next()).await {
        if let Err((at, error)) = answer.unwrap()
            && at - away < lease
        {
            early.push((at - away, error.to_string()));
        }
    }
    assert!(
        early.is_empty(),
        "{} of 24 were denied, the first {:?} after the outage began, with a lease of {lease:?}: {}",
        early.len(),
        early[0].0,
        early[0].1
    );
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiters_survive_refused_connections() {
    all_waiters_survive(cut).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiters_survive_a_mute_server() {
    all_waiters_survive(|proxy| proxy.set(Direction::Both, Flow::Hold)).await;
}

/// Grants are pushed again as soon as commands pass again, in every process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_are_back_with_the_commands() {
    // The number is large, so that some keys would meet the longest random pause.
    const PAIRS: usize = 12;
    let server = RedisServer::start();
    let proxy = Proxy::start(addr(&server));
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        let url = url(proxy.addr());
        pairs.push([leasing(&url, ms(10_000)).await, leasing(&url, ms(10_000)).await]);
    }
    let keys: Vec<String> = (0..PAIRS).map(|n| n.to_string()).collect();
    let sides = keys.iter().cloned().zip(pairs.iter().map(|pair| &pair[..]));
    let contest = Contest::start(sides, ms(20));
    // A machine that stalls for a second hands nothing over. Three outages in a row are no stall.
    let mut seen = Vec::new();
    for _ in 0..3 {
        contest.until_handed_over(&keys, now(), 3).await;
        cut(&proxy);
        tokio::time::sleep(ms(5_000)).await;
        proxy.heal();
        let back = now();
        until("commands pass", || {
            keys.iter().any(|key| !contest.turns(key, back).is_empty())
        })
        .await;
        // One second for the last connection, and one more for a busy machine.
        let from = now() + ms(2_000);
        let to = from + ms(750);
        tokio::time::sleep(to.saturating_sub(now())).await;
        let counts = keys.iter().map(|key| contest.handed_over(key, from, to));
        let counts: Vec<usize> = counts.collect();
        if counts.iter().all(|&count| count >= 5) {
            return;
        }
        seen.push(counts);
    }
    panic!("hand-overs of each key in 750 ms, two seconds after commands passed again: {seen:?}");
}

/// With inboxes that break all the time, no caller waits for a timer on the scale of its lease: an hour or more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_stay_short_while_inboxes_break() {
    let server = RedisServer::start();
    let mut eyes = Eyes::on(&server);
    let nodes = [patient(&server.url()).await, patient(&server.url()).await];
    let keys: Vec<String> = (0..4).map(|n| n.to_string()).collect();
    let contest = Contest::start(keys.iter().map(|key| (key.clone(), &nodes[..])), ms(5));
    contest.until_handed_over(&keys, now(), 3).await;
    let mut killed = 0;
    for _ in 0..30 {
        killed += eyes.text::<u64>("CLIENT KILL TYPE pubsub");
        contest.until_handed_over(&keys, now(), 3).await;
    }
    assert!(killed > 2, "{killed} inboxes were killed");
    assert!(contest.errors().is_empty(), "{:?}", contest.errors());
}
